"""After this pass nothing is reduced or stored along a wide dim that unequal parts were joined to: each part is by itself.

    sum(f(join(a, b)))  ->  sum(f(a)) + sum(f(b))            store f(join(a, b))  ->  store join(f(a), f(b))

Unequal parts have no axis of their own, so that a thread would have to hold the joined dim whole. Parts of equal sizes have one.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..ir.dtype import FLOATS
from ..ir.tensor import Contract, Join, Map, Reduce, TensorGraph, TensorNode, Update
from .changed_parts import changed_parts
from .cut_ranges import producers
from .push_reads import Pusher, Range
from .simplify_tensors import drop_dead, simplify_tensors

REGISTER_EXTENT = 8
"""A dim that a thread may well hold whole: a convolution's window stays one dim."""
MOST_PARTS = 8
COMBINE = {"sum": "add", "max": "max", "min": "min", "prod": "mul", "any": "or", "all": "and"}
Cut = tuple[int, int]
"""(start, length) along a dim."""


def split_joins(graph: TensorGraph, also: frozenset[str] = frozenset()) -> TensorGraph:
    """The same function in parts wherever unequal ones are joined; `also` names joins that count as wide and unequal.

    The order of a sum is not part of the captured graph: parts are summed each by itself.
    """
    joins = {n.name for n in graph.nodes if isinstance(n.op, Join) and _is_uneven(graph, n, n.op)} - changed_parts(graph) | also
    if not joins:
        return graph
    parts = _Parts(graph, frozenset(joins))
    for node in graph.nodes:
        parts.visit(node)
    outputs = tuple(o if o[0] in "=!" else parts.stored(o) for o in graph.outputs)
    mutations = tuple((a, v if isinstance(parts.table[v].op, Update) else parts.stored(v)) for a, v in graph.mutations)
    if not parts.changed:
        return graph
    return simplify_tensors(drop_dead(replace(parts.ordered(graph), outputs=outputs, mutations=mutations)))


def _is_uneven(graph: TensorGraph, node: TensorNode, op: Join) -> bool:
    sizes = {graph.table[p].shape[op.dim] for p in op.parts}
    extent = node.shape[op.dim]
    return isinstance(extent, int) and extent > REGISTER_EXTENT and len(sizes) > 1 and len(op.parts) <= MOST_PARTS


class _Parts(Pusher):
    """Replaces reductions and stored values one by one."""

    def __init__(self, graph: TensorGraph, joins: frozenset[str]) -> None:
        super().__init__(graph)
        self.joins = joins
        self.found: dict[tuple[str, int], frozenset[int]] = {}
        self.changed = False

    def visit(self, node: TensorNode) -> None:
        """A reduction over a joined dim becomes the combination of the parts' reductions."""
        op = node.op
        made: str | None = None
        if isinstance(op, Reduce) and op.monoid in COMBINE:
            made = self._reduced(node, op)
        elif isinstance(op, Contract):
            made = self._contracted(node, op)
        elif isinstance(op, Update) and op.value in self.table:
            value = self.stored(op.value, self._index_dims(op))
            if value != op.value:
                self.table[node.name] = replace(node, op=replace(op, value=value))
        if made is not None:
            self.changed = True
            self.table[node.name] = replace(self.table[made], name=node.name, loc=node.loc)

    def _index_dims(self, op: Update) -> range:
        rank = len(self.shape(op.index)) if op.index is not None else 0
        return range(op.dim, op.dim + rank)

    def stored(self, name: str, but: Sequence[int] = ()) -> str:
        """A value that is stored, as the join of its parts where it runs along joined ones."""
        node = self.table[name]
        for dim in range(len(node.shape)):
            cuts = self.cuts(name, dim) if dim not in but and not isinstance(node.op, Join) else []
            made = [self.part(name, Range(dim, start, length)) for start, length in cuts]
            if made and None not in made:
                self.changed = True
                return self.add(node, Join(tuple(m for m in made if m is not None), dim), node.shape)
        return name

    # ---- where ------------------------------------------------------------------------------------------------------------------

    def cuts(self, name: str, dim: int) -> list[Cut]:
        """The ranges of a dim between which no joined part ends; [] where it runs along no join."""
        ends = self._ends(name, dim)
        extent = self.shape(name)[dim]
        if not ends or not isinstance(extent, int) or len(ends) >= MOST_PARTS:
            return []
        marks = [0, *sorted(ends), extent]
        return [(a, b - a) for a, b in zip(marks, marks[1:])]

    def _ends(self, name: str, dim: int) -> frozenset[int]:
        if (name, dim) not in self.found:
            self.found[name, dim] = self._find_ends(name, dim)
        return self.found[name, dim]

    def _find_ends(self, name: str, dim: int) -> frozenset[int]:
        node, op = self.table[name], self.table[name].op
        if isinstance(op, Join) and op.dim == dim:
            if name not in self.joins:
                return frozenset()
            ends, start = set(), 0
            for part in op.parts[:-1]:
                start += int(str(self.shape(part)[dim]))
                ends.add(start)
            return frozenset(ends)
        return frozenset().union(*(self._ends(arg, at) for arg, at in producers(self.table, node, dim)))

    # ---- reductions -------------------------------------------------------------------------------------------------------------

    def _reduced(self, node: TensorNode, op: Reduce) -> str | None:
        rank = len(node.shape) + len(op.dims)
        for dim in op.dims:
            places = [dim - rank + len(self.shape(a)) for a in op.args]
            cuts = next((c for a, d in zip(op.args, places) if d >= 0 and (c := self.cuts(a, d))), [])
            folds = [self._fold(node, op, places, cut) for cut in cuts]
            if folds and None not in folds:
                return self._combined(node, [f for f in folds if f is not None], COMBINE[op.monoid])
        return None

    def _fold(self, node: TensorNode, op: Reduce, places: list[int], cut: Cut) -> str | None:
        args = [a if d < 0 or self.shape(a)[d] == 1 else self.part(a, Range(d, *cut)) for a, d in zip(op.args, places)]
        if None in args:
            return None
        return self.add(node, replace(op, args=tuple(a for a in args if a is not None)), node.shape, _wide(node))

    def _contracted(self, node: TensorNode, op: Contract) -> str | None:
        for letter in dict.fromkeys("".join(op.inputs)):
            holders = [(a, w.index(letter)) for a, w in zip(op.args, op.inputs) if letter in w]
            cuts = next((c for a, d in holders if (c := self.cuts(a, d))), []) if letter not in op.output else []
            sums = [self._product(node, op, letter, cut) for cut in cuts]
            if sums and None not in sums:
                return self._combined(node, [s for s in sums if s is not None], "add")
        return None

    def _product(self, node: TensorNode, op: Contract, letter: str, cut: Cut) -> str | None:
        args = [self.part(a, Range(w.index(letter), *cut)) if letter in w and self.shape(a)[w.index(letter)] != 1 else a
                for a, w in zip(op.args, op.inputs)]
        if None in args:
            return None
        return self.add(node, replace(op, args=tuple(a for a in args if a is not None)), node.shape, _wide(node))

    def _combined(self, node: TensorNode, folds: list[str], fn: str) -> str:
        total = folds[0]
        for fold in folds[1:]:
            total = self.add(node, Map(fn, (total, fold)), node.shape, node.dtype if fold is folds[-1] else _wide(node))
        return total


def _wide(node: TensorNode) -> str:
    """What partial results are kept in."""
    return "f32" if node.dtype in FLOATS else node.dtype
