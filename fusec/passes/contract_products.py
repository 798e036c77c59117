"""Contraction is decided here: an fp32 product that only one fp32 sum reads becomes an fma by name.

What is not contracted here is never contracted later. Under numerics "strict" nothing is.
"""
from __future__ import annotations

from dataclasses import replace
from typing import Union

from ..ir.dtype import FLOATS
from ..ir.graph import Graph, Map, Node, Ref
from ..ir.rewrite import drop_dead, ordered, through, uses
from ..ir.scalar import Lit
from ..ir.tensor import Size
from .names import Names

Arg = Union[Ref, Lit, Size]


def contract_products(graph: Graph) -> Graph:
    """Single-use products inside sums and differences become fmas.

    add(mul(a, b), c) -> fma(a, b, c)      sub(mul(a, b), c) -> fma(a, b, -c)      sub(c, mul(a, b)) -> fma(-a, b, c)
    """
    if graph.numerics == "strict":
        return graph
    names = Names.of(graph)
    for name in [n.name for n in graph.nodes]:
        node = graph.table[name]
        made = _contract(graph, node, names)
        if made is not None:
            graph = graph.with_nodes(tuple(m for n in graph.nodes for m in (made if n is node else (n,))))
    return ordered(drop_dead(graph))


def _contract(graph: Graph, node: Node, names: Names) -> tuple[Node, ...] | None:
    """The fma (and the negation it may need) that replaces a sum or difference, or None."""
    if not (isinstance(node.op, Map) and node.op.fn in ("add", "sub") and node.dtype == "f32"):
        return None
    if not all(_is_float(graph, a) for a in node.op.args):
        return None
    sides = [i for i, a in enumerate(node.op.args) if isinstance(a, Ref) and _product(graph, a)]
    if not sides:
        return None
    args = node.op.args
    side = min(sides, key=lambda i: (_negation(graph, node, i), -_width(graph, args[i]), i))
    outer, other = node.op.args[side], node.op.args[1 - side]
    assert isinstance(outer, Ref)
    product = graph.table[outer.value].op
    assert isinstance(product, Map)
    a, b = (through(graph, outer, x) if isinstance(x, Ref) else x for x in product.args)
    extra: tuple[Node, ...] = ()
    if node.op.fn == "sub" and side == 0:
        other, extra = _negated(graph, node, other, names)
    elif node.op.fn == "sub":
        if _cost(graph, b) < _cost(graph, a):
            a, b = b, a
        a, extra = _negated(graph, node, a, names)
    return (*extra, replace(node, op=Map("fma", (a, b, other))))


def _negation(graph: Graph, node: Node, side: int) -> int:
    """What must be negated to contract the product on that side: the number of axes of it, 0 for a constant or for nothing."""
    assert isinstance(node.op, Map)
    if node.op.fn == "add":
        return 0
    if side == 0:
        return _cost(graph, node.op.args[1])
    outer = node.op.args[1]
    assert isinstance(outer, Ref)
    product = graph.table[outer.value].op
    assert isinstance(product, Map)
    return min(_cost(graph, x) for x in product.args)


def _cost(graph: Graph, arg: Arg) -> int:
    return 0 if isinstance(arg, Lit) else 1 + _width(graph, arg)


def _width(graph: Graph, arg: Arg) -> int:
    return len(_axes(graph, arg))


def _product(graph: Graph, ref: Ref) -> bool:
    node = graph.table[ref.value]
    if not (isinstance(node.op, Map) and node.op.fn == "mul" and node.dtype == "f32" and uses(graph)[node.name] == 1):
        return False
    return all(_is_float(graph, a) for a in node.op.args)


def _is_float(graph: Graph, arg: Arg) -> bool:
    if isinstance(arg, Ref):
        return graph.table[arg.value].dtype in FLOATS
    return isinstance(arg, Lit) and isinstance(arg.value, float)


def _axes(graph: Graph, arg: Arg) -> tuple[str, ...]:
    return tuple(a.name for a in graph.table[arg.value].axes) if isinstance(arg, Ref) else ()


def _negated(graph: Graph, node: Node, arg: Arg, names: Names) -> tuple[Arg, tuple[Node, ...]]:
    """-arg: a constant, or the operand of a negation node over the operand's own axes."""
    if isinstance(arg, Lit):
        return Lit(-arg.value), ()
    assert isinstance(arg, Ref)
    source = graph.table[arg.value]
    made = Node(names.unused(f"neg_{source.name}"), Map("neg", (Ref(source.name),)), source.axes, "f32", node.loc)
    return replace(arg, value=made.name), (made,)
