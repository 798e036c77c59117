"""After this pass many values that are divided by one are multiplied by its reciprocal, which is taken once.

Before: y = div(x, s)          (s lacks axes of x that have many elements)
After:  c = 2 ** 64 where |s| < 2 ** -64, 2 ** -64 where |s| > 2 ** 64, else 1; r = rcp(mul(s, c)); y = mul(mul(x, c), r)

Only where nothing looks at how close the quotient is: x / x need not be 1 any more, so a quotient that is compared, made an
integer, subtracted from a constant, or goes through a logarithm or a root stays one. The factor c keeps the reciprocal of the
smallest and the largest divisors in range; zero, infinity and NaN come out as by division. A normal result is within 1.5 units in
the last place: half of one for the reciprocal, half for each product, of which that by c is exact unless it leaves the range. Not
under numerics "strict".
"""
from __future__ import annotations

from dataclasses import replace
from math import prod

from ..ir.axis import Axis
from ..ir.dtype import FLOATS
from ..ir.graph import Graph, Map, Node, Op, Ref
from ..ir.rewrite import compose, replace_nodes
from ..ir.scalar import Lit
from .fold_reductions import axes_read
from .names import Names

MANY = 32
"""Divisions by one value from which on a reciprocal pays."""
STEPS = frozenset({"floor", "ceil", "trunc", "round", "sign", "mod", "floordiv", "log", "log2", "log10", "log1p", "sqrt", "rsqrt"})
"""Functions that turn a unit in the last place into much more somewhere; comparisons are no floats."""
NEAR, FAR = 2.0 ** -64, 2.0 ** 64


def share_reciprocals(graph: Graph) -> Graph:
    """The graph with such divisions as products."""
    if graph.numerics == "strict":
        return graph
    names = Names.of(graph)
    made: dict[str, tuple[Ref, Ref]] = {}
    return replace_nodes(graph, lambda g, node: _shared(g, node, names, made))


def _shared(graph: Graph, node: Node, names: Names, made: dict[str, tuple[Ref, Ref]]) -> tuple[Node, ...] | None:
    if not (isinstance(node.op, Map) and node.op.fn == "div" and isinstance(node.op.args[1], Ref)):
        return None
    x, s = node.op.args
    assert isinstance(s, Ref)
    divisor = graph.table[s.value]
    if divisor.dtype not in ("f32", "bf16", "f16") or _times(node.axes, axes_read(graph, (s,))) < MANY or _looked_at(graph, node):
        return None
    new: list[Node] = []
    if s.value not in made:
        made[s.value] = _reciprocal(divisor, names, new)
    factor, reciprocal = (compose(s, r, tuple(a.name for a in divisor.axes)) for r in made[s.value])
    scaled = Node(names.unused(f"{node.name}_scaled"), Map("mul", (x, factor)), node.axes, "f32", node.loc)
    return (*new, scaled, replace(node, op=Map("mul", (Ref(scaled.name), reciprocal))))


def _looked_at(graph: Graph, node: Node) -> bool:
    """Whether elementwise functions of a value have a step, a pole or a kink that one unit in the last place may cross."""
    todo, seen = [node.name], set[str]()
    while todo:
        name = todo.pop()
        for reader in graph.readers(name):
            if not isinstance(reader.op, Map) or reader.name in seen:
                continue
            constant = any(isinstance(a, Lit) for a in reader.op.args)
            if reader.op.fn in STEPS or reader.dtype not in FLOATS or (reader.op.fn in ("add", "sub") and constant):
                return True
            seen.add(reader.name)
            todo.append(reader.name)
    return False


def _times(axes: tuple[Axis, ...], read: set[str]) -> int:
    """Elements that share a divisor; an axis of dynamic size counts as one."""
    return prod(a.extent if isinstance(a.extent, int) else 1 for a in axes if a.name not in read)


def _reciprocal(s: Node, names: Names, new: list[Node]) -> tuple[Ref, Ref]:
    """c and r for a divisor, with the nodes that make them."""
    def node(name: str, op: Op, dtype: str = "f32") -> Ref:
        new.append(Node(names.unused(f"{s.name}_{name}"), op, s.axes, dtype, s.loc))
        return Ref(new[-1].name)

    size = node("size", Map("abs", (Ref(s.name),)))
    small, large = node("small", Map("lt", (size, Lit(NEAR))), "bool"), node("large", Map("lt", (Lit(FAR), size)), "bool")
    factor = node("factor", Map("select", (small, Lit(FAR), node("shrink", Map("select", (large, Lit(NEAR), Lit(1.0)))))))
    return factor, node("rcp", Map("rcp", (node("inside", Map("mul", (Ref(s.name), factor))),)))
