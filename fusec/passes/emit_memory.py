"""Statements for global memory: index values, loads and stores."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ..errors import FusionError
from ..ir.dtype import BYTES
from ..ir.geometry import registers
from ..ir.graph import Load, Node, Store
from ..ir.kernel import (
    Apply,
    Condition,
    Copy,
    Elem,
    Global,
    Let,
    Linear,
    Value,
)
from ..ir.plan import Layout
from .emit_context import Context, Piece, Point
from .problem import VECTOR_BYTES


@dataclass(slots=True)
class Memory(Context):
    """Pieces for Loads, Stores and the integers they are addressed by."""

    # ---- memory ----

    def index(self, node: Node) -> Piece:
        """The 64-bit integer variable of an index value."""
        if self.shape(self.placed.result(node), self.local(node)):
            raise FusionError(
                f"the index value {node.name} differs within a thread", node.loc, "an index may depend on the rows only"
            )
        name = self.coords.fresh(f"{node.name}_at")
        self.indices[node.name] = name
        return Piece((), (Let(name, Elem(node.name), self.origin(node)),))

    def load(self, node: Node) -> Piece:
        assert isinstance(node.op, Load)
        layout, axes = self.placed.layouts[node.name], self.domain(node)
        _, point = self.loops(layout, axes)
        when = self.inside(layout, axes, point)
        if node.op.where is not None:
            when += (self._condition(self.operand(node, node.op.where, point)),)
        copy = self._global(node, node.op.tensor, layout, axes, point, when)
        return Piece(self.region(layout), (self.declare(node, 0.0 if when and node.dtype in BYTES else None), copy))

    def store(self, node: Node) -> Piece:
        assert isinstance(node.op, Store)
        layout, axes = self.placed.layouts[node.name], self.domain(node)
        _, point = self.loops(layout, axes)
        when = self.inside(layout, axes, point) + self.coords.owner(layout, axes)
        if node.op.where is not None:
            when += (self._condition(self.operand(node, node.op.where, point)),)
        return Piece(self.region(layout), (self._global(node, node.op.tensor, layout, axes, point, when),))

    @staticmethod
    def _condition(value: Value) -> Condition:
        assert isinstance(value, (Elem, Apply))
        return value

    def _global(
        self, node: Node, tensor: str, layout: Layout, axes: tuple[str, ...], point: Point, when: tuple[Condition, ...]
    ) -> Copy:
        assert isinstance(node.op, (Load, Store))
        argument, index = self.problem.graph.tensors[tensor], node.op.index

        def offset(at: Point) -> Linear:
            return self.coords.offset(tensor, index, layout, at, self.indices)

        def value(at: Point) -> Elem:
            if not isinstance(node.op, Store):
                return Elem(node.name, tuple(at[a, i] for a, i, _ in registers(layout, axes)))
            found = self.operand(node, node.op.arg, at)
            assert isinstance(found, Elem)
            return found

        limit = self.alignment.get(tensor, VECTOR_BYTES) // BYTES[argument.dtype]
        loops, at, width = self._vectorise(layout, axes, point, offset, value, limit, when)
        self.widths[tensor] = max(self.widths.get(tensor, 1), width)
        memory, held = Global(tensor, offset(at)), value(at)
        hint = "evict_first" if self._streams(node, tensor) else ""
        source, target = (memory, held) if isinstance(node.op, Load) else (held, memory)
        return Copy(source, target, loops, width, when, hint, self.origin(node), node.name)

    def _streams(self, node: Node, tensor: str) -> bool:
        """Whether the access is a large one of memory updated in place: read once and written once."""
        return tensor in self.problem.graph.mutated and prod(a.size for a in self.problem.domain(node)) >= 4096
