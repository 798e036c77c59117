"""After this pass neighbouring axes that everything has together are one axis.

Cuts of a merged dim (channels of different kinds, a head's part of a projection) leave axes behind that no value tells apart.

    x[a:2, b:4] = load X[8 c + 4 a + b]; sum(x) over a, b      ->      x[a:8] = load X[8 c + a]; sum(x) over a
"""
from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..ir.axis import Axis
from ..ir.graph import Digit, DimIndex, Graph, Index, Join, Load, Node, Reduce, Ref, Store, refs
from ..ir.rewrite import map_refs


@dataclass(frozen=True, slots=True)
class Pair:
    """Axes a and b that become one of extent a · b, b the faster one."""

    a: Axis
    b: Axis

    @property
    def merged(self) -> Axis:
        return Axis(self.a.name, self.a.size * self.b.size)

    def at(self, a: Index, b: Index) -> Index:
        """The coordinate along the merged axis of coordinates along both; both have an axis or neither has."""
        return Index(a.axis, a.offset * self.b.size + b.offset)


def merge_axes(graph: Graph) -> Graph:
    """The graph with as few axes as its values, reductions and memory accesses allow; nothing else changes."""
    while pair := next((p for p in _neighbours(graph) if all(_together(graph, p, n) for n in graph.nodes)), None):
        graph = _merge(graph, pair)
    return graph


def _neighbours(graph: Graph) -> Iterator[Pair]:
    """Axes that stand beside each other in some access to memory."""
    table = {a.name: a for a in graph.axes if not a.dynamic}
    seen = set()
    for node in graph.nodes:
        for dim in getattr(node.op, "index", ()):
            steps = {d.step: table[d.source.axis] for d in dim if isinstance(d.source, Index) and d.source.axis in table}
            for step, b in steps.items():
                a = steps.get(step * b.size)
                if a is not None and (a.name, b.name) not in seen:
                    seen.add((a.name, b.name))
                    yield Pair(a, b)


# ---- may they? -----------------------------------------------------------------------------------------------------------------

def _together(graph: Graph, pair: Pair, node: Node) -> bool:
    """Whether a node never tells the two axes apart."""
    both = {pair.a.name, pair.b.name}
    spaces = [node.axes, node.op.axes] if isinstance(node.op, Reduce) else [node.axes]
    if any(len(both & {x.name for x in space}) == 1 for space in spaces):
        return False
    if isinstance(node.op, Join) and node.op.axis in both:
        return False
    in_memory = all(_digits_together(pair, dim) for dim in getattr(node.op, "index", ()))
    return in_memory and all(_read_together(graph, pair, r) for r in refs(node.op))


def _digits_together(pair: Pair, dim: DimIndex) -> bool:
    a, b = ([d for d in dim if isinstance(d.source, Index) and d.source.axis == x.name] for x in (pair.a, pair.b))
    return not a and not b or len(a) == len(b) == 1 and a[0].step == b[0].step * pair.b.size


def _read_together(graph: Graph, pair: Pair, ref: Ref) -> bool:
    """A reference reads both at the same two axes, or both at constants; and nothing else at one of them."""
    own = {x.name for x in graph.table[ref.value].axes}
    others = [ref.index(x) for x in own - {pair.a.name, pair.b.name}]
    if any(i.axis in (pair.a.name, pair.b.name) for i in others):
        return False
    if pair.a.name not in own:
        return True
    a, b = ref.index(pair.a.name), ref.index(pair.b.name)
    return a.axis is None and b.axis is None or (a.axis, b.axis) == (pair.a.name, pair.b.name)


# ---- merging -------------------------------------------------------------------------------------------------------------------

def _merge(graph: Graph, pair: Pair) -> Graph:
    name = _name(graph, pair)
    axis = Axis(name, pair.merged.extent)

    def space(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(axis if x == pair.a else x for x in axes if x != pair.b)

    def index(dim: DimIndex) -> DimIndex:
        digits = {d.source.axis: d for d in dim if isinstance(d.source, Index)}
        if pair.a.name not in digits:
            return dim
        a, b = digits[pair.a.name], digits[pair.b.name]
        assert isinstance(a.source, Index) and isinstance(b.source, Index)
        one = Digit(replace(pair.at(a.source, b.source), axis=name), b.step)
        return tuple(one if d is a else d for d in dim if d is not b)

    def ref(r: Ref) -> Ref:
        own = {x.name for x in graph.table[r.value].axes}
        if pair.a.name not in own:
            return r
        at = pair.at(r.index(pair.a.name), r.index(pair.b.name))
        at = at if at.axis is None else replace(at, axis=name)
        rest = tuple((x, i) for x, i in r.bind if x not in (pair.a.name, pair.b.name))
        return Ref(r.value, rest if at == Index(name) else (*rest, (name, at)))

    def node(n: Node) -> Node:
        op = map_refs(n.op, ref)
        if isinstance(op, (Load, Store)):
            op = replace(op, index=tuple(index(dim) for dim in op.index))
        if isinstance(op, Reduce):
            op = replace(op, axes=space(op.axes))
        return replace(n, op=op, axes=space(n.axes))
    return replace(graph, axes=space(graph.axes), nodes=tuple(node(n) for n in graph.nodes))


def _name(graph: Graph, pair: Pair) -> str:
    """`state_1` of the pieces `state_1_0` and `state_1_1` once all pieces are one again, else the first one's name."""
    stem = re.sub(r"_\d+$", "", pair.a.name)
    pieces = [a.name for a in graph.axes if re.sub(r"_\d+$", "", a.name) == stem]
    taken = {*graph.tensors, *graph.table, *(a.name for a in graph.axes)}
    whole = stem != pair.a.name and set(pieces) == {pair.a.name, pair.b.name} and re.search(r"_\d+$", stem) and stem not in taken
    return stem if whole else pair.a.name
