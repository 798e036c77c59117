"""Statements for values that go through shared memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..ir.dtype import BYTES, register
from ..ir.geometry import registers, thread_factors
from ..ir.graph import Node
from ..ir.kernel import (
    Copy,
    Declare,
    Elem,
    Linear,
    Shared,
)
from ..ir.plan import VEC, Exchange
from .emit_context import Context, Piece, Point, Read, row_major
from .problem import VECTOR_BYTES


@dataclass(slots=True)
class Exchanges(Context):
    """Pieces that write a value where its owners hold it and read it where others need it."""

    # ---- exchanges ----

    def buffer(self, node: Node) -> Exchange:
        if node.name not in self.exchanges:
            axes, within = self._buffer_order(node), self.within(node)
            extents = tuple(self.coords.extent(a, within) for a in axes)
            self.exchanges[node.name] = Exchange(node.name, self.coords.fresh(f"{node.name}_shared"), axes, extents, node.dtype)
        return self.exchanges[node.name]

    def within(self, node: Node) -> bool:
        """Whether a value is handed over within a turn of the block's walk: it is made there and nobody needs it later."""
        return self.problem.in_turn(node)

    def _buffer_order(self, node: Node) -> tuple[str, ...]:
        """The axes of a buffer, outermost first: what neighbouring threads or vector elements hold lies side by side."""
        layout = self.placed.result(node)

        def nearness(axis: str) -> int:
            if any(f.place == VEC for f in layout.factors(axis)):
                return 0
            return min((f.step for _, _, f in thread_factors(layout, (axis,))), default=1 << 20)

        return tuple(sorted(self.local(node), key=lambda a: (-nearness(a), self.rank[a])))

    def write(self, node: Node) -> Piece:
        layout, axes = self.placed.result(node), self.local(node)
        _, point = self.loops(layout, axes)
        exchange = self.buffer(node)
        when = self.inside(layout, axes, point) + self.coords.owner(layout, axes)

        def offset(at: Point) -> Linear:
            return row_major(exchange, [self.coords.at(layout, a, at, True, self.within(node)) for a in exchange.axes])

        def value(at: Point) -> Elem:
            return Elem(node.name, tuple(at[a, i] for a, i, _ in registers(layout, axes)))

        loops, at, width = self._vectorise(layout, axes, point, offset, value, VECTOR_BYTES // BYTES[node.dtype], when)
        return Piece(
            self.region(layout), (Copy(value(at), Shared(exchange.buffer, offset(at)), loops, width, when, "", self.origin(node)),)
        )

    def _ends(self, key: Read, exchange: Exchange) -> dict[str, int]:
        """Register loops of a reader that has more positions than the value: a join, of which the value is a shorter part."""
        extents, bind = dict(zip(exchange.axes, exchange.extents)), dict(key.bind)
        held: dict[str, int] = {}
        for axis in exchange.axes:
            index = bind[axis]
            own = [(i, n) for a, i, n in registers(key.layout, key.axes) if a == index.axis]
            if len(own) == 1 and own[0][1] > extents[axis] - index.offset:
                vector = key.layout.factors(str(index.axis))[own[0][0]].place == VEC
                held[self.loop_name(str(index.axis), "v" if vector else "r")] = extents[axis] - index.offset
        return held

    def read(self, key: Read) -> Piece:
        node = self.table[key.value]
        exchange = self.buffer(node)
        _, point = self.loops(key.layout, key.axes)
        when = self.inside(key.layout, key.axes, point)

        def offset(at: Point) -> Linear:
            places = []
            for axis in exchange.axes:
                index = dict(key.bind)[axis]
                own = index.axis == axis  # Along another axis the buffer has all positions, not those of the block or the turn.
                known = index.axis is not None and (not own or key.layout.has(index.axis))
                base = self.coords.at(key.layout, str(index.axis), at, own, own and self.within(node)) if known else Linear()
                places.append(base + Linear((), index.offset))
            return row_major(exchange, places)

        def value(at: Point) -> Elem:
            return Elem(key.name, tuple(at[a, i] for a, i, _ in registers(key.layout, key.axes)))

        limit, ends = VECTOR_BYTES // BYTES[node.dtype], self._ends(key, exchange)
        loops, at, width = self._vectorise(key.layout, key.axes, point, offset, value, 1 if ends else limit, when)
        loops = tuple(replace(f, extent=min(f.extent, ends.get(f.var, f.extent))) for f in loops)
        declare = Declare(key.name, self.shape(key.layout, key.axes), register(node.dtype), 0.0 if when else None)
        return Piece(self.region(key.layout), (declare, Copy(Shared(exchange.buffer, offset(at)), value(at), loops, width, when)))
