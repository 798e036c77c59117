"""Statements for reductions: registers, lanes, warps."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from ..ir.dtype import BYTES, NARROW, register
from ..ir.geometry import WARP_SIZE, registers, thread_factors
from ..ir.graph import Node, Reduce
from ..ir.kernel import (
    Apply,
    Assign,
    Compute,
    Coordinate,
    Copy,
    Declare,
    Elem,
    For,
    LaneReduce,
    Less,
    Linear,
    Round,
    Shared,
    Statement,
    Value,
)
from ..ir.monoid import MONOIDS
from ..ir.plan import Exchange, Layout
from ..ir.scalar import Call, Lit, Param, Scalar
from .coordinates import var
from .emit_context import Context, Piece, Point, row_major
from .problem import VECTOR_BYTES


@dataclass(slots=True)
class Reductions(Context):
    """Pieces of the steps of a reduction, in the order of its form."""

    # ---- reductions ----

    def over_turns(self, node: Node) -> bool:
        """Whether a reduction folds what all turns of the block's walk have."""
        assert isinstance(node.op, Reduce)
        walk = self.problem.walk
        return walk is not None and walk.within(node.name) and any(a.name == walk.axis for a in node.op.axes)

    @staticmethod
    def _start(node: Node) -> float | int | bool:
        assert isinstance(node.op, Reduce)
        return MONOIDS[node.op.monoid].start(register(node.dtype))

    def carry(self, node: Node) -> Piece:
        """What every thread folds into, as yet the identity."""
        assert isinstance(node.op, Reduce)
        name, inner, kept = self._inner(node)
        declare = Declare(name, self.shape(inner, kept), register(node.dtype), self._start(node))
        return Piece(self.region(self.placed.layouts[node.name]), (declare,))

    def accumulate(self, node: Node) -> Piece:
        """The serial part: every thread folds what it holds."""
        assert isinstance(node.op, Reduce)
        monoid = MONOIDS[node.op.monoid]
        layout, axes = self.placed.layouts[node.name], self.domain(node)
        loops, point = self.loops(layout, axes)
        reduced = tuple(a.name for a in self.problem.grid.local(node.op.axes))
        name, inner, kept = self._inner(node)
        carry = Elem(name, tuple(point[a, i] for a, i, _ in registers(inner, kept)))
        args = tuple(self.operand(node, a, point) for a in node.op.args)
        if monoid.accumulate is not None:
            value = substitute(monoid.accumulate[0], (carry, *args))
        else:
            value = substitute(monoid.combine[0], (carry, substitute(monoid.lift[0], args)))
        when = self.inside(layout, reduced, point)
        declare = () if self.over_turns(node) else self.carry(node).body
        return Piece(self.region(layout), (*declare, Compute(loops, (Assign(carry, value, self.origin(node)),), when)))

    def _inner(self, node: Node) -> tuple[str, Layout, tuple[str, ...]]:
        kept = self.local(node)
        return self.partials.get(node.name, node.name), self.placed.layouts[node.name].project(kept), kept

    def lanes(self, node: Node) -> Piece:
        assert isinstance(node.op, Reduce)
        name, inner, kept = self._inner(node)
        fn = MONOIDS[node.op.monoid].combine[0]
        assert isinstance(fn, Call)
        body = tuple(
            LaneReduce((name,), fn.fn, step, lanes, self.shape(inner, kept), self.origin(node))
            for step, lanes in self.lane_steps(node)
        )
        return Piece(self.region(self.placed.layouts[node.name]), body)

    def _warps(self, node: Node) -> tuple[tuple[str, int], ...]:
        """(variable, extent) of the warp digits of the reduced axes, outermost first."""
        assert isinstance(node.op, Reduce)
        layout = self.placed.layouts[node.name]
        axes = [a.name for a in self.problem.grid.local(node.op.axes)]
        found = [
            (f.step, self.coords.digit(layout.first, f, a, self.coords.total(layout)), f.extent)
            for a, _, f in thread_factors(layout, axes)
            if f.step >= WARP_SIZE
        ]
        return tuple((name, extent) for _, name, extent in sorted(found, reverse=True))

    def _blocks(self, node: Node) -> int:
        """Blocks of the cluster whose parts a reduction folds."""
        return self.placed.grid.peers if self.problem.folds_blocks(node) else 1

    def _partial_buffer(self, node: Node) -> Exchange:
        key = f"{node.name}!partial"
        if key not in self.exchanges:
            kept, blocks = self.local(node), self._blocks(node)
            extents = tuple(n for _, n in self._warps(node)) + tuple(self.coords.extent(a, True) for a in kept)
            name = self.coords.fresh(f"{node.name}_{'blocks' if blocks > 1 else 'warps'}")
            extents = (blocks, *extents) if blocks > 1 else extents
            self.exchanges[key] = Exchange(node.name, name, ("warp", *kept), extents, register(node.dtype))
        return self.exchanges[key]

    def write_partial(self, node: Node) -> Piece:
        """What each warp has, by the first lane that has it; where blocks share the reduction, into the shared memory of each."""
        assert isinstance(node.op, Reduce)
        name, inner, kept = self._inner(node)
        layout = self.placed.layouts[node.name]
        exchange = self._partial_buffer(node)
        _, point = self.loops(inner, kept)
        reduced = tuple(a.name for a in self.problem.grid.local(node.op.axes))
        lanes = tuple(
            Less(var(self.coords.digit(layout.first, f, a, self.coords.total(layout))), 1)
            for a, _, f in thread_factors(layout, reduced)
            if f.step < WARP_SIZE
        )
        when = self.inside(inner, kept, point) + lanes + self.coords.owner(layout, self.domain(node))

        blocks = self._blocks(node)
        own = [var(self.coords.grid_name(self.placed.grid.cluster))] if blocks > 1 else []

        def offset(at: Point) -> Linear:
            place = [var(v) for v, _ in self._warps(node)] + [self.coords.at(inner, a, at, True, True) for a in kept]
            return row_major(exchange, own + place)

        def value(at: Point) -> Elem:
            return Elem(name, tuple(at[a, i] for a, i, _ in registers(inner, kept)))

        limit = VECTOR_BYTES // BYTES[exchange.dtype] if blocks == 1 else 1
        loops, at, width = self._vectorise(inner, kept, point, offset, value, limit, when)
        target = Shared(exchange.buffer, offset(at), var(self.peer) if blocks > 1 else None)
        loops = (For(self.peer, blocks), *loops) if blocks > 1 else loops
        return Piece(self.region(layout), (Copy(value(at), target, loops, width, when, "", self.origin(node)),))

    def _parts(self, node: Node) -> int:
        """Parts that a reduction across warps or blocks folds at last."""
        return self._blocks(node) * prod(n for _, n in self._warps(node))

    def read_partials(self, node: Node) -> Piece:
        assert isinstance(node.op, Reduce)
        exchange = self._partial_buffer(node)
        layout, kept = self.placed.results[node.name], self.local(node)
        loops, point = self.loops(layout, kept)
        count = self._parts(node)
        extents = tuple(self.coords.extent(a, True) for a in kept)
        inner = Exchange(node.name, exchange.buffer, kept, extents, exchange.dtype)
        offset = row_major(inner, [self.coords.at(layout, a, point, True, True) for a in kept]) + var(self.turn, prod(extents))
        parts = f"{node.name}_parts"
        target = Elem(parts, (var(self.turn), *(var(f.var) for f in loops)))
        when = self.inside(layout, kept, point)
        declare = Declare(parts, (count, *self.shape(layout, kept)), exchange.dtype, self._start(node) if when else None)
        return Piece(
            self.region(layout), (declare, Copy(Shared(exchange.buffer, offset), target, (For(self.turn, count), *loops), 1, when))
        )

    def finish(self, node: Node) -> Piece:
        """The partials of all warps in order, or a lane's own of the results, then the rounding to the node's dtype."""
        assert isinstance(node.op, Reduce)
        monoid = MONOIDS[node.op.monoid]
        layout, kept = self.placed.results[node.name], self.local(node)
        loops, _ = self.loops(layout, kept)
        target = self.own(node)
        body: list[Statement] = []
        if node.name in self.placed.dealt:
            body.append(Declare(node.name, self.shape(layout, kept), register(node.dtype)))
            body.append(Compute(loops, (Assign(target, self._own_part(node), self.origin(node)),)))
        elif node.name in self.partials:
            count = self._parts(node)
            part = Elem(f"{node.name}_parts", (var(self.turn), *target.index))
            body.append(Declare(node.name, self.shape(layout, kept), register(node.dtype), self._start(node)))
            body.append(
                Compute(
                    (For(self.turn, count), *loops),
                    (Assign(target, substitute(monoid.combine[0], (target, part)), self.origin(node)),),
                )
            )
        if node.dtype in NARROW:
            body.append(Compute(loops, (Assign(target, Round(target, node.dtype), self.origin(node)),)))
        return Piece(self.region(layout), tuple(body))

    def _own_part(self, node: Node) -> Value:
        """Of the results that all lanes have, the one that is this lane's."""
        share = self.placed.dealt[node.name]
        name, inner, kept = self._inner(node)
        _, point = self.loops(self.placed.results[node.name], kept)
        lane = Coordinate(var(self.coords.digit(inner.first, share.factor, share.axis, self.coords.total(inner))))

        def part(number: int) -> Elem:
            at = {**point, (share.axis, share.position): Linear((), number)}
            return Elem(name, tuple(at[a, i] for a, i, _ in registers(inner, kept)))
        value: Value = part(share.factor.extent - 1)
        for number in reversed(range(share.factor.extent - 1)):
            value = Apply("select", (Apply("lt", (lane, Lit(number + 1))), part(number), value))
        return value


def substitute(expr: Scalar, args: tuple[Value, ...]) -> Value:
    """A monoid's expression with values for its Params."""
    if isinstance(expr, Param):
        return args[expr.position]
    if isinstance(expr, Lit):
        return expr
    return Apply(expr.fn, tuple(substitute(a, args) for a in expr.args))
