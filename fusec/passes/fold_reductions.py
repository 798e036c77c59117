"""Reductions in the form a kernel wants: products inside sums become dots, and linear updates leave a dot that follows them.

Only values that are not rounded in between are touched. Under numerics "strict" nothing is.
"""
from __future__ import annotations

from dataclasses import replace

from ..ir.dtype import FLOATS
from ..ir.graph import Graph, Map, Node, Reduce, Ref, refs
from ..ir.rewrite import drop_dead, replace_nodes, through, uses
from .names import Names


def fold_reductions(graph: Graph) -> Graph:
    """The graph with dots for sums of products, and with dots of updated operands distributed where that saves a dependent pass."""
    if graph.numerics == "strict":
        return graph
    return drop_dead(_distribute_dots(drop_dead(_make_dots(graph))))


# ---- sum(a * b) -> dot(a, b) ---------------------------------------------------------------------------------------------------

def _make_dots(graph: Graph) -> Graph:
    """A product that only a sum reads accumulates by fma.

    Before: p = mul(a, b); s = sum(p)   After: s = dot(a, b)         (square(a) is a · a)
    """
    count, table = uses(graph), graph.table

    def change(node: Node) -> Node:
        if not (isinstance(node.op, Reduce) and node.op.monoid == "sum"):
            return node
        outer = node.op.args[0]
        product = table[outer.value]
        if count[product.name] != 1 or product.dtype != "f32" or not isinstance(product.op, Map):
            return node
        args = product.op.args * 2 if product.op.fn == "square" else product.op.args
        if product.op.fn not in ("mul", "square") or not all(isinstance(a, Ref) and table[a.value].dtype in FLOATS for a in args):
            return node
        pair = tuple(through(graph, outer, a) for a in args if isinstance(a, Ref))
        if not axes_read(graph, pair) >= {a.name for a in node.op.axes}:
            return node
        return replace(node, op=Reduce("dot", pair, node.op.axes))
    return graph.with_nodes(tuple(change(n) for n in graph.nodes))


def axes_read(graph: Graph, operands: tuple[Ref, ...]) -> set[str]:
    """The axes of the reader along which some operand is read."""
    table = graph.table
    return {at for r in operands for a in table[r.value].axes if (at := r.index(a.name).axis) is not None}


# ---- <h + d k, q> -> <h, q> + d <k, q> -----------------------------------------------------------------------------------------

def _distribute_dots(graph: Graph) -> Graph:
    """A dot with an operand that was just updated by an outer product does not wait for the update.

    Before: x = h + mul(d, k); o = dot(x, q) over K        (d lacks K and follows from another reduction over K)
    After:  o = dot(h, q) + d * dot(k, q)                  (dot(h, q) and what d needs are then one pass over h)

    Only where x carries more axes than the result, so that a pass over a large operand is saved, and only on unrounded fp32. Sums
    of finite terms stay finite unless d · <k, q> overflows while h + d k does not; infinities and NaN reach o either way.
    """
    names = Names.of(graph)
    return replace_nodes(graph, lambda g, node: _distribute(g, node, names))


def _distribute(graph: Graph, node: Node, names: Names) -> tuple[Node, ...] | None:
    """The nodes that replace one dot, or None where the rule does not apply."""
    if not (isinstance(node.op, Reduce) and node.op.monoid == "dot" and node.op.form is None):
        return None
    over = {a.name for a in node.op.axes}
    for side in (0, 1):
        outer, other = node.op.args[side], node.op.args[1 - side]
        found = _update_of(graph, outer, over)
        if found is None:
            continue
        sign, base, scale, vector = found
        wide = axes_read(graph, (outer,))
        if not wide > {a.name for a in node.axes} or not wide >= over or not axes_read(graph, (base,)) >= over:
            continue
        if not axes_read(graph, (vector, other)) >= over or axes_read(graph, (vector, other)) >= wide:
            continue
        if not waits_for_reduction(graph, scale.value, over):
            continue
        return _distributed(graph, node, (base, other), (vector, other), scale, sign, names)
    return None


def _update_of(graph: Graph, outer: Ref, over: set[str]) -> tuple[str, Ref, Ref, Ref] | None:
    """(add or sub, h, d, k) of a value h ± d·k as its reader sees it, where d has none of the axes `over`."""
    table = graph.table
    x = table[outer.value]
    if x.dtype != "f32" or not isinstance(x.op, Map) or x.op.fn not in ("add", "sub"):
        return None
    if not all(isinstance(a, Ref) for a in x.op.args):
        return None
    pairs = [(0, 1), (1, 0)] if x.op.fn == "add" else [(0, 1)]
    for b, p in pairs:
        base, product = x.op.args[b], x.op.args[p]
        assert isinstance(base, Ref) and isinstance(product, Ref)
        m = table[product.value]
        if m.dtype != "f32" or not isinstance(m.op, Map) or m.op.fn != "mul" or not all(isinstance(a, Ref) for a in m.op.args):
            continue
        factors = [through(graph, through(graph, outer, product), a) for a in m.op.args if isinstance(a, Ref)]
        for scale, vector in (factors, factors[::-1]):
            if not axes_read(graph, (scale,)) & over:
                return x.op.fn, through(graph, outer, base), scale, vector
    return None


def waits_for_reduction(graph: Graph, name: str, over: set[str]) -> bool:
    """Whether a value follows from a reduction over all of the axes."""
    table, seen, stack = graph.table, set[str](), [name]
    while stack:
        current = table[stack.pop()]
        if isinstance(current.op, Reduce) and over <= {a.name for a in current.op.axes}:
            return True
        fresh = [r.value for r in refs(current.op) if r.value not in seen]
        seen.update(fresh)
        stack += fresh
    return False


def _distributed(graph: Graph, node: Node, main: tuple[Ref, Ref], small: tuple[Ref, Ref], scale: Ref, sign: str,
                 names: Names) -> tuple[Node, ...]:
    assert isinstance(node.op, Reduce)
    over = {a.name for a in node.op.axes}
    kept = tuple(a for a in node.axes if a.name in axes_read(graph, small) - over)
    first = Node(names.unused(f"{node.name}_base"), Reduce("dot", main, node.op.axes), node.axes, "f32", node.loc)
    second = Node(names.unused(f"{node.name}_step"), Reduce("dot", small, node.op.axes), kept, "f32", node.loc)
    product = Node(names.unused(f"{node.name}_part"), Map("mul", (scale, Ref(second.name))), node.axes, "f32", node.loc)
    total = replace(node, op=Map(sign, (Ref(first.name), Ref(product.name))))
    return first, second, product, total


