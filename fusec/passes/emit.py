"""Statements for one node at a time: elementwise work here, memory, exchanges and reductions in the classes this one joins."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import FusionError
from ..ir.dtype import BYTES, FLOATS, INTS, NARROW, register, wrapped
from ..ir.geometry import registers
from ..ir.graph import Iota, Join, Map, Node, Reduce, Ref
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
from ..ir.scalar import COMPOSITES, PRIMITIVES, Lit
from .emit_context import Piece
from .emit_exchange import Exchanges
from .emit_memory import Memory
from .emit_reduce import Reductions

GROWING = frozenset({"add", "sub", "neg", "mul", "mul_rn", "abs", "fma", "shl", "floordiv"})
"""Functions of integers whose results may need more bits than their operands have."""


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
            value = _held(args[0], node.dtype) if node.op.fn == "identity" else Apply(self._spelled(node), args)
        if node.dtype in NARROW or self._converts(node):
            value = Round(value, node.dtype)
        return Piece(self.region(layout), (self.declare(node), Compute(loops, (Assign(self.own(node), value, self.origin(node)),))))

    def _converts(self, node: Node) -> bool:
        """Whether a value that comes of integers, or becomes one, has to be converted where it is made.

        A float that becomes an integer, an integer that is cut to fewer bits or counted in 64, or that becomes a float which others
        like it are computed with: what is used once stands in the text of its reader, without a register that says what it is.
        """
        if not isinstance(node.op, Map):
            return False
        bits = 8 * BYTES[node.dtype]
        if node.op.fn != "identity":
            return node.dtype in INTS and bits < 32 and node.op.fn in GROWING
        before = self._converted(node)
        readers = [r for r in self.problem.graph.readers(node.name) if isinstance(r.op, Map)]
        if node.dtype in FLOATS:
            return before in INTS and any(self._of_integers(r) for r in readers)
        if node.dtype not in INTS or before in ("", "bool"):
            return False
        if before in FLOATS or bits < 32:
            return before != node.dtype
        return register(before) != node.dtype and any(self._outgrows(r) for r in readers)

    def _converted(self, node: Node) -> str:
        """The dtype of what a conversion converts, "" for a value that is none."""
        operand = node.op.args[0] if isinstance(node.op, Map) and node.op.fn == "identity" else None
        return self.problem.graph.table[operand.value].dtype if isinstance(operand, Ref) else ""

    def _of_integers(self, reader: Node) -> bool:
        """Whether a function of floats has nothing but integers in its text."""
        assert isinstance(reader.op, Map)
        fn = reader.op.fn
        if fn in COMPOSITES or PRIMITIVES[fn].approximate or fn in ("identity", "div", "rcp", "sqrt"):
            return False
        args = [a for a in reader.op.args[fn == "select":]]
        return all(isinstance(a, Ref) and self._converted(self.problem.graph.table[a.value]) in INTS for a in args)

    def _outgrows(self, reader: Node) -> bool:
        """Whether a function of an integer may leave 32 bits; sums with constants, sizes and positions count elements."""
        if not isinstance(reader.op, Map) or reader.op.fn not in GROWING:
            return False
        values = [self.problem.graph.table[a.value] for a in reader.op.args if isinstance(a, Ref)]
        return reader.op.fn not in ("add", "sub", "neg", "abs") or sum(not isinstance(v.op, Iota) for v in values) > 1

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


def _held(value: Value, dtype: str) -> Value:
    """A value as it is converted to dtype, where it is a constant that becomes an integer."""
    if not isinstance(value, Lit) or isinstance(value.value, bool) or dtype not in INTS or not math.isfinite(value.value):
        return value
    return Lit(wrapped(int(value.value), dtype))
