"""After this pass a value one element of an axis of which is changed is a selection over that axis, not a join of ranges.

    y = join a: 0..2 = x[a], 3..3 = f(x[a=3], w)     ->     y = select(a < 3, x[a], f(x[a], w))

A join wants its axis in the registers of a thread, and its parts have domains of their own; a selection has one domain, which
threads may share in any way. f is computed at every coordinate and used at its own, so only elementwise f of a few operations are
lifted: rotating the last half of a head, overwriting one channel.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..ir.axis import Axis
from ..ir.graph import Digit, Graph, Index, Iota, Join, Load, Map, Node, Reduce, Ref, Store, refs
from ..ir.rewrite import drop_dead, make_ref, map_refs, replace_nodes
from ..ir.scalar import Lit
from .names import Names

MOST_LIFTED = 16
"""How many operations may be computed where they are not needed."""


def lift_parts(graph: Graph) -> Graph:
    """The graph with selections in place of the joins that only change single elements of one value."""
    names, same = Names.of(graph), list[tuple[Axis, Axis]]()
    graph = replace_nodes(graph, lambda g, node: _selected(g, node, names, same))
    now: dict[Axis, Axis] = {}
    for pair in same:
        axis, along = (now.get(a, a) for a in pair)
        if axis != along and not any(axis in n.domain and along in n.domain for n in graph.nodes):
            graph, now = _as_one(graph, axis, along), {**{a: along if b == axis else b for a, b in now.items()}, axis: along}
    return drop_dead(graph)


def _selected(graph: Graph, node: Node, names: Names, same: list[tuple[Axis, Axis]]) -> tuple[Node, ...] | None:
    """The nodes that replace a join, None where it stays; `same` gets its axis beside what it was along a changed value."""
    if not isinstance(node.op, Join):
        return None
    lift = _Lift(graph, node, names)
    made = lift.made()
    if made is not None:
        same += [(lift.axis, along) for along in lift.bases.values()]
    return made


def _as_one(graph: Graph, axis: Axis, along: Axis) -> Graph:
    """The graph with the second axis in place of the first, where no domain has both."""
    def name(own: str) -> str:
        return along.name if own == axis.name else own

    def ref(r: Ref) -> Ref:
        own = {name(a): Index(None if (i := r.index(a)).axis is None else name(i.axis), i.offset) for a in read[r.value]}
        return make_ref(r.value, tuple(own), own.__getitem__)

    def axes(found: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(along if a == axis else a for a in found)

    def digit(d: Digit) -> Digit:
        return Digit(Index(name(d.source.axis), d.source.offset), d.step) if isinstance(d.source, Index) and d.source.axis else d

    def node(n: Node) -> Node:
        op = map_refs(n.op, ref)
        if isinstance(op, (Load, Store)):
            op = replace(op, index=tuple(tuple(map(digit, dim)) for dim in op.index))
        if isinstance(op, Reduce):
            op = replace(op, axes=axes(op.axes))
        if isinstance(op, Join):
            op = replace(op, axis=name(op.axis))
        return replace(n, op=op, axes=axes(n.axes))
    read = {n.name: tuple(a.name for a in n.axes) for n in graph.nodes}
    return replace(graph.with_nodes(tuple(map(node, graph.nodes))), axes=tuple(a for a in graph.axes if a != axis))


class _Lift:
    """One join, seen as a change of values. bases: these values, each with its own axis that the join runs along."""

    def __init__(self, graph: Graph, join: Node, names: Names) -> None:
        assert isinstance(join.op, Join)
        self.table, self.join, self.op, self.names = graph.table, join, join.op, names
        self.axis = next(a for a in join.axes if a.name == join.op.axis)
        self.bases: dict[str, Axis] = {}
        self.lifted: dict[str, Node] = {}

    def made(self) -> tuple[Node, ...] | None:
        """New nodes, the join's last; None where a part is more than an elementwise change in its place."""
        whole = [self._in_place(ref, start, length) for start, length, ref in self.op.parts]
        if not any(whole) or all(whole):
            return None
        if any(not own and length != 1 for own, (_, length, _) in zip(whole, self.op.parts)):
            return None
        if any(self.table[r.value].dtype != self.join.dtype for _, _, r in self.op.parts):
            return None
        parts = [self._at_axis(r) if own else self._part(r, s) for own, (s, _, r) in zip(whole, self.op.parts)]
        if None in parts or len(self.lifted) > MOST_LIFTED:
            return None
        return tuple(self._chain([p for p in parts if p is not None]))

    def _in_place(self, ref: Ref, start: int, length: int) -> bool:
        """Whether a part reads a value at the join's own coordinate; the value is then one of the bases."""
        for along in self.table[ref.value].axes:
            at = ref.index(along.name)
            here = at == Index(self.axis.name, start) or length == 1 and at == Index(None, start)
            if here and along.extent == self.axis.extent and self.bases.get(ref.value, along) == along:
                self.bases[ref.value] = along
                return True
        return False

    def _at_axis(self, ref: Ref) -> Ref:
        """A reference to one of the bases, read along the join's axis."""
        def where(own: str) -> Index:
            return Index(self.axis.name) if own == self.bases[ref.value].name else ref.index(own)
        return make_ref(ref.value, tuple(a.name for a in self.table[ref.value].axes), where)

    def _part(self, ref: Ref, start: int) -> Ref | None:
        """A part of one element as a value that has the join's axis, where it depends on a base."""
        if any(at.axis == self.axis.name for _, at in ref.bind):
            return None
        name = self._lifted(ref.value, start)
        return None if name is None else replace(ref, value=name)

    def _lifted(self, name: str, start: int) -> str | None:
        """A value with the bases read at every coordinate instead of at `start`; None where it cannot be."""
        if not self._depends(name):
            return None if self.axis in self.table[name].axes else name
        if name in self.lifted:
            return self.lifted[name].name
        node = self.table[name]
        if name in self.bases or not isinstance(node.op, (Map, Join)) or self.axis in node.axes:
            return None
        changed: dict[Ref, Ref] = {}
        for ref in refs(node.op):
            if ref.value in self.bases:
                if ref.index(self.bases[ref.value].name) != Index(None, start):
                    return None
                changed[ref] = self._at_axis(ref)
            else:
                inner = self._lifted(ref.value, start)
                if inner is None or any(at.axis == self.axis.name for _, at in ref.bind):
                    return None
                changed[ref] = replace(ref, value=inner)
        op = map_refs(node.op, lambda r: changed[r])
        made = Node(self.names.unused(node.name), op, (*node.axes, self.axis), node.dtype, node.loc)
        self.lifted[name] = made
        return made.name

    def _depends(self, name: str) -> bool:
        """Whether a value is made of a base."""
        seen, stack = set[str](), [name]
        while stack:
            at = stack.pop()
            if at in self.bases:
                return True
            if at not in seen:
                seen.add(at)
                stack += [r.value for r in refs(self.table[at].op)]
        return False

    def _chain(self, parts: list[Ref]) -> Iterator[Node]:
        """The lifted values and the selections among the parts, by the ends of their ranges."""
        yield from self.lifted.values()
        where = Node(self.names.unused(f"{self.join.name}_at"), Iota(), (self.axis,), "i32", self.join.loc)
        yield where
        value = parts[-1]
        for number in reversed(range(len(parts) - 1)):
            start, length, _ = self.op.parts[number]
            test = Map("lt", (Ref(where.name), Lit(start + length)))
            before = Node(self.names.unused(f"{self.join.name}_is"), test, (self.axis,), "bool", self.join.loc)
            name = self.names.unused(self.join.name) if number else self.join.name
            yield before
            yield replace(self.join, name=name, op=Map("select", (Ref(before.name), parts[number], value)))
            value = Ref(name)
