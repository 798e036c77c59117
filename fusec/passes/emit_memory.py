"""Statements for global memory: index values, loads and stores."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from ..ir.dtype import BYTES
from ..ir.geometry import registers
from ..ir.graph import Ref, Load, Node, Store
from ..ir.kernel import (
    Statement,
    Apply,
    Condition,
    Copy,
    Elem,
    Global,
    Less,
    Let,
    Linear,
    Value,
)
from ..ir.plan import Layout
from .coordinates import var
from .localize import elements_of
from .emit_context import Context, Piece, Point

MOST_ALIGNED = 256  # Bytes: what the base of an allocation and its rows may be multiples of where nothing is said.


@dataclass(slots=True)
class Memory(Context):
    """Pieces for Loads, Stores and the integers they are addressed by."""

    # ---- memory ----

    def index(self, node: Node) -> Piece:
        """The 64-bit integer variable of an index value."""
        name = self.coords.fresh(f"{node.name}_at")
        self.indices[node.name] = name
        return Piece((), (Let(name, Elem(node.name), self.origin(node)),))

    def load(self, node: Node) -> Piece:
        copies = self._accesses(node)
        masked = any(isinstance(c, Copy) and c.when for c in copies)
        return Piece(self.region(self.placed.layouts[node.name]), (self.declare(node, 0.0 if masked else None), *copies))

    def store(self, node: Node) -> Piece:
        return Piece(self._first_block(node) + self.region(self.placed.layouts[node.name]), self._accesses(node))

    def _first_block(self, node: Node) -> tuple[Condition, ...]:
        """What all blocks of a cluster have is stored by the first."""
        cluster = self.placed.grid.cluster
        every = bool(cluster) and all(a.name != cluster for a in node.domain)
        return (Less(var(self.coords.grid_name(cluster)), 1),) if every else ()

    def varies(self, node: Node) -> bool:
        """Whether a thread holds several values of an index: each of its accesses is then a statement of its own."""
        return bool(self.shape(self.placed.result(node), self.local(node)))

    def _accesses(self, node: Node) -> tuple[Statement, ...]:
        """The copies of a Load or Store: one, or one per value of the indices that vary within a thread."""
        assert isinstance(node.op, (Load, Store))
        layout, axes = self.placed.layouts[node.name], self.domain(node)
        loops, point = self.loops(layout, axes)
        named = [d.source for dim in node.op.index for d in dim if isinstance(d.source, Ref)]
        varying = [r for r in named if self.varies(self.table[r.value]) or not self.is_free(node, r)]
        own = {v for ref in varying for e in elements_of(self.operand(node, ref, point)) for i in e.index for v in i.variables}
        apart = [f for f in loops if f.var in own]
        body: list[Statement] = []
        for digits in itertools.product(*(range(f.extent) for f in apart)):
            fixed = {f.var: digit for f, digit in zip(apart, digits, strict=True)}
            at = {
                key: Linear((), fixed[place.terms[0].var]) if place.terms[0].var in fixed else place for key, place in point.items()
            }
            indices = dict(self.indices)
            for ref in varying:
                indices[ref.value] = self.coords.fresh(f"{ref.value}_at")
                found = self.operand(node, ref, at)
                assert isinstance(found, Elem)
                body.append(Let(indices[ref.value], found, self.origin(node)))
            when = self.inside(layout, axes, at)
            if isinstance(node.op, Store):
                when += self.coords.owner(layout, axes)
            if node.op.where is not None:
                when += (self._condition(self.operand(node, node.op.where, at)),)
            body.append(self._global(node, layout, axes, at, when, indices))
        return tuple(body)

    def _read_again(self, node: Node) -> bool:
        """Whether a later walk of the block reads the same memory."""
        walk = self.problem.walk
        return walk is not None and any(
            isinstance(n.op, Load) and n.op == node.op and walk.phases[n.name] > walk.phases[node.name]
            for n in self.problem.graph.nodes
        )

    @staticmethod
    def _condition(value: Value) -> Condition:
        assert isinstance(value, (Elem, Apply))
        return value

    def _global(
        self, node: Node, layout: Layout, axes: tuple[str, ...], point: Point, when: tuple[Condition, ...], indices: dict[str, str]
    ) -> Copy:
        assert isinstance(node.op, (Load, Store))
        tensor, index = node.op.tensor, node.op.index
        argument = self.problem.graph.tensors[tensor]

        def offset(at: Point) -> Linear:
            return self.coords.offset(tensor, index, layout, at, indices)

        def value(at: Point) -> Elem:
            if not isinstance(node.op, Store):
                return Elem(node.name, tuple(at[a, i] for a, i, _ in registers(layout, axes)))
            found = self.operand(node, node.op.arg, at)
            assert isinstance(found, Elem)
            return found

        limit = min(self.alignment.get(tensor, MOST_ALIGNED), self.problem.vector_bytes(node)) // BYTES[argument.dtype]
        loops, at, width = self._vectorise(layout, axes, point, offset, value, limit, when)
        vector = self._run(loops, offset(at), width, limit, when)
        self.widths[tensor] = max(self.widths.get(tensor, 1), vector)
        memory, held = Global(tensor, offset(at)), value(at)
        hint = "evict_first" if self.problem.passes_once(node) and not self._read_again(node) else ""
        source, target = (memory, held) if isinstance(node.op, Load) else (held, memory)
        return Copy(source, target, loops, width, when, hint, self.origin(node), node.name, vector)
