"""Statements for one node at a time: elementwise work here, memory, exchanges and reductions in the classes this one joins."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import FusionError
from ..ir.dtype import NARROW
from ..ir.geometry import registers
from ..ir.graph import Iota, Join, Map, Node, Reduce
from ..ir.kernel import (
    Apply,
    Assign,
    Compute,
    Coordinate,
    Elem,
    For,
    Linear,
    Round,
    Statement,
    Value,
)
from ..ir.plan import Layout
from ..ir.scalar import COMPOSITES
from .emit_context import Piece
from .emit_exchange import Exchanges
from .emit_memory import Memory
from .emit_reduce import Reductions


@dataclass(slots=True)
class Emitter(Memory, Exchanges, Reductions):
    """Builds the pieces of a kernel."""

    # ---- computing ----

    def compute(self, node: Node) -> Piece:
        layout, axes = self.placed.layouts[node.name], self.domain(node)
        loops, point = self.loops(layout, axes)
        if isinstance(node.op, Join):
            return self._join(node, layout, axes)
        if isinstance(node.op, Iota):
            value: Value = Coordinate(self.coords.at(layout, node.axes[0].name, point))
        else:
            assert isinstance(node.op, Map)
            args = tuple(self.operand(node, a, point) for a in node.op.args)
            value = args[0] if node.op.fn == "identity" else Apply(self._spelled(node), args)
        if node.dtype in NARROW:
            value = Round(value, node.dtype)
        return Piece(self.region(layout), (self.declare(node), Compute(loops, (Assign(self.own(node), value, self.origin(node)),))))

    def _spelled(self, node: Node) -> str:
        """A product that a later addition could swallow is one that cannot be contracted."""
        assert isinstance(node.op, Map)
        if node.op.fn != "mul" or node.dtype != "f32":
            return node.op.fn
        for reader in self.problem.graph.readers(node.name):
            adds = isinstance(reader.op, Map) and (reader.op.fn in ("add", "sub") or reader.op.fn in COMPOSITES)
            if adds or isinstance(reader.op, Reduce) and reader.op.monoid == "sum":
                return "mul_rn"
        return "mul"

    def _join(self, node: Node, layout: Layout, axes: tuple[str, ...]) -> Piece:
        assert isinstance(node.op, Join)
        if len([1 for a, _, _ in registers(layout, axes) if a == node.op.axis]) != 1:
            raise FusionError(
                f"the joined axis {node.op.axis} does not lie in the registers of one thread",
                node.loc,
                "join along an axis of at most a few positions, or write the parts to the output one by one",
            )
        body: list[Statement] = [self.declare(node)]
        for start, length, ref in node.op.parts:
            loops, point = self.loops(layout, axes)
            position = next((i for a, i, _ in registers(layout, axes) if a == node.op.axis))
            name = point[node.op.axis, position].terms[0].var
            inner = dict(point)
            if length == 1:
                inner[node.op.axis, position] = Linear()
            target = dict(point)
            target[node.op.axis, position] = inner[node.op.axis, position] + Linear((), start)
            value = self.operand(node, ref, inner)
            elem = Elem(node.name, tuple(target[a, i] for a, i, _ in registers(layout, axes)))
            shorter = tuple(For(f.var, length) if f.var == name else f for f in loops if f.var != name or length > 1)
            body.append(Compute(shorter, (Assign(elem, value, self.origin(node)),)))
        return Piece(self.region(layout), tuple(body))
