"""After this pass lanes that all have the result of a reduction share out what is made of it.

A butterfly gives its sum to every lane, and what follows is computed as often as there are lanes. Where a thread holds as many
results along an axis as a reduction has lanes, each lane takes one of them, and so do the values made of it: a quarter of the work
after a sum over four lanes. The order of no sum changes but of those over the shared axis.
"""
from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..ir.geometry import WARP_SIZE, elements, registers, thread_factors
from ..ir.graph import Join, Node, Reduce, Ref, refs
from ..ir.plan import REG, THREAD, Factor, Layout
from .price import free_edge, node_cost
from .problem import Placement, Problem, Share
from .strands import fits

PICK = 2.0  # Slots of a thread for choosing one of two results: what sharing has to save beyond that.


def share_lanes(problem: Problem, placed: Placement) -> Placement:
    """The placement with layouts shared out where that saves more than it costs."""
    if problem.walk is not None:
        return placed
    for node in problem.graph.nodes:
        if isinstance(node.op, Reduce) and not problem.crosses(node, placed.layouts[node.name]):
            for share in _ways(problem, placed, node):
                found = _Sharing(problem, placed, share).placement(node)
                if found is not None:
                    placed = found
                    break
    return placed


def _ways(problem: Problem, placed: Placement, node: Node) -> list[Share]:
    """The register digits of a reduction's result that as many of its lanes could share."""
    assert isinstance(node.op, Reduce)
    layout, kept = placed.layouts[node.name], tuple(a.name for a in problem.axes(node))
    lanes = [f for _, _, f in thread_factors(layout, tuple(a.name for a in problem.grid.local(node.op.axes))) if f.step < WARP_SIZE]
    held = [(a, i) for a, i, _ in registers(layout, kept) if layout.factors(a)[i].place == REG]
    return [Share(a, i, f) for f in lanes for a, i in held if layout.factors(a)[i].extent == f.extent]


@dataclass(slots=True)
class _Sharing:
    """What has to be shared out together. layouts, results: those that change; roots: reductions whose results are picked from."""

    problem: Problem
    placed: Placement
    share: Share
    layouts: dict[str, Layout] = field(default_factory=dict)
    results: dict[str, Layout] = field(default_factory=dict)
    roots: dict[str, Share] = field(default_factory=dict)

    def placement(self, node: Node) -> Placement | None:
        """The placement with the result of a reduction shared out; None where something stands against it, or it does not pay."""
        if not self._picked(node):
            return None
        table = self.problem.table
        saved = sum(node_cost(self.problem, table[n], self.placed.layouts[n]) - node_cost(self.problem, table[n], new)
                    for n, new in self.layouts.items())
        picks = sum(elements(self.results[n], tuple(a.name for a in self.problem.axes(table[n]))) * (self.share.factor.extent - 1)
                    for n in self.roots)
        if saved <= PICK * picks:
            return None
        was = self.placed
        return replace(was, layouts={**was.layouts, **self.layouts}, results={**was.results, **self.results},
                       dealt={**was.dealt, **self.roots})

    def _picked(self, node: Node) -> bool:
        """Whether the result of a reduction over the lanes can be shared out, and all that is made of it."""
        held = self.placed.result(node)
        if node.name in self.placed.dealt or not self._idle(held):
            return False
        self.roots[node.name], self.results[node.name] = self.share, self._moved(held)
        return self._readers(node)

    def _readers(self, node: Node) -> bool:
        """Whether all that reads a value whose layout changes can change with it."""
        before = self.placed.result(node)
        for reader in self.problem.graph.readers(node.name):
            for ref in (r for r in refs(reader.op) if r.value == node.name):
                if free_edge(self.problem, reader.name, ref, before, self.placed.layouts[reader.name]):
                    if not self._in_place(ref) or not self._changed(reader):
                        return False
        return True

    def _in_place(self, ref: Ref) -> bool:
        """Whether a value is read at the reader's own coordinate of the axis."""
        at = ref.index(self.share.axis)
        return at.axis == self.share.axis and at.offset == 0

    def _changed(self, node: Node) -> bool:
        """Whether a node that has the axis can be computed shared out, with its operands and its readers."""
        if node.name in self.layouts:
            return True
        layout, axis = self.placed.layouts[node.name], self.share.axis
        if isinstance(node.op, Join) and node.op.axis == axis or not layout.has(axis) or not self._idle(layout):
            return False
        new = self._moved(layout)
        crossing = self.problem.crosses(node, layout)
        if new == layout or crossing or not fits(self.problem.orders, node, new):
            return False
        self.layouts[node.name] = new
        if isinstance(node.op, Reduce):
            self.results[node.name] = new.project(tuple(a.name for a in self.problem.axes(node)))
        return all(self._operand(node, r) for r in refs(node.op)) and (not self._has_axis(node) or self._readers(node))

    def _has_axis(self, node: Node) -> bool:
        return any(a.name == self.share.axis for a in self.problem.axes(node))

    def _operand(self, node: Node, ref: Ref) -> bool:
        """Whether an operand of a node that changes can change too, where the node's thread holds it."""
        value = self.problem.table[ref.value]
        if not self._has_axis(value) or value.name in self.roots or value.name in self.layouts:
            return True
        if not free_edge(self.problem, node.name, ref, self.placed.result(value), self.placed.layouts[node.name]):
            return True
        if not self._in_place(ref):
            return False
        if isinstance(value.op, Reduce):
            return self.share in _ways(self.problem, self.placed, value) and self._picked(value)
        return self._changed(value) and self._readers(value)

    def _idle(self, layout: Layout) -> bool:
        """Whether a layout of all threads leaves the lanes unused."""
        mine = self.share.factor
        used = [f for _, own in layout.axes for f in own if f.place == THREAD and f.extent > 1]
        return not layout.count and all(f.step * f.extent <= mine.step or f.step >= mine.step * mine.extent for f in used)

    def _moved(self, layout: Layout) -> Layout:
        """A layout with the lanes in place of the register digit; the layout itself where it has no such digit."""
        def factors(axis: str, own: tuple[Factor, ...]) -> tuple[Factor, ...]:
            here = axis == self.share.axis and self.share.position < len(own)
            if not here or own[self.share.position] != Factor(REG, self.share.factor.extent):
                return own
            return (*own[:self.share.position], self.share.factor, *own[self.share.position + 1:])
        return replace(layout, axes=tuple((a, factors(a, f)) for a, f in layout.axes))
