"""Statements for one node at a time: loads, elementwise ops, reductions, exchanges, stores, under the layouts that were placed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod

from ..errors import FusionError
from ..ir.dtype import BYTES, NARROW, register
from ..ir.geometry import WARP_SIZE, registers, thread_factors
from ..ir.graph import Index, Iota, Join, Load, Map, Node, Reduce, Ref, Store
from ..ir.kernel import (
    Apply,
    Assign,
    Compute,
    Condition,
    Coordinate,
    Copy,
    Declare,
    Elem,
    For,
    Global,
    LaneReduce,
    Less,
    Let,
    Linear,
    Origin,
    Round,
    Shared,
    Statement,
    TensorSize,
    Value,
)
from ..ir.monoid import MONOIDS
from ..ir.plan import VEC, Exchange, Layout
from ..ir.scalar import COMPOSITES, Call, Lit, Param, Scalar
from ..ir.tensor import Size
from .coordinates import Coordinates, var
from .price import free_edge
from .problem import VECTOR_BYTES, Placement, Problem

Point = dict[tuple[str, int], Linear]
"""Register digits by (axis, factor position)."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Statements of one unit, and the region they belong to (the conditions on the thread)."""

    when: tuple[Condition, ...]
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Read:
    """A value read back from shared memory under a reader's layout: `bind` maps its local axes to the reader's coordinates."""

    name: str
    value: str
    bind: tuple[tuple[str, Index], ...]
    layout: Layout
    axes: tuple[str, ...]


@dataclass(slots=True)
class Emitter:
    """Builds pieces. `alignment` gives, per tensor, the bytes its rows and base are multiples of."""

    problem: Problem
    placed: Placement
    coords: Coordinates
    alignment: dict[str, int]
    reads: dict[tuple[object, ...], Read] = field(default_factory=dict)
    indices: dict[str, str] = field(default_factory=dict)
    exchanges: dict[str, Exchange] = field(default_factory=dict)
    widths: dict[str, int] = field(default_factory=dict)
    whole: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.rank = {a.name: i for i, a in enumerate(self.problem.graph.axes)}
        self.table, self.turn = self.problem.table, self.coords.fresh("turn")
        for node in self.problem.graph.nodes:
            if isinstance(node.op, Reduce) and self.lane_steps(node):
                layout = self.placed.layouts[node.name]
                self.whole.add((layout.first, layout.count))

    rank: dict[str, int] = field(default_factory=dict)
    table: dict[str, Node] = field(default_factory=dict)
    turn: str = ""
    loop_names: dict[tuple[str, str], str] = field(default_factory=dict)

    # ---- names and loops ----

    def local(self, node: Node) -> tuple[str, ...]:
        """The axes of a node's value within a block, in the graph's order."""
        return tuple(sorted((a.name for a in self.problem.axes(node)), key=self.rank.__getitem__))

    def domain(self, node: Node) -> tuple[str, ...]:
        return tuple(sorted((a.name for a in self.problem.domain(node)), key=self.rank.__getitem__))

    def loops(self, layout: Layout, axes: tuple[str, ...]) -> tuple[tuple[For, ...], Point]:
        """One unrolled loop per register dim of these axes, and the digits they stand for."""
        found: list[For] = []
        point: Point = {}
        for axis, position, extent in registers(layout, axes):
            name = self.loop_name(axis, "v" if layout.factors(axis)[position].place == VEC else "r")
            found.append(For(name, extent))
            point[axis, position] = var(name)
        return tuple(found), point

    def loop_name(self, axis: str, kind: str) -> str:
        """The variable of an axis' register (r), vector (v) or chunk (c) loop: one name, that nothing else has."""
        if (axis, kind) not in self.loop_names:
            self.loop_names[axis, kind] = self.coords.fresh(f"{axis}_{kind}")
        return self.loop_names[axis, kind]

    def shape(self, layout: Layout, axes: tuple[str, ...]) -> tuple[int, ...]:
        return tuple(extent for _, _, extent in registers(layout, axes))

    def region(self, layout: Layout) -> tuple[Condition, ...]:
        return self.coords.region(layout, (layout.first, layout.count) in self.whole)

    def exact(self, layout: Layout) -> tuple[Condition, ...]:
        """Under a guard of whole warps: the threads that have an element."""
        if (layout.first, layout.count) in self.whole and layout.count % WARP_SIZE:
            return (Less(var("thread"), layout.first + layout.count),)
        return ()

    def inside(self, layout: Layout, axes: tuple[str, ...], point: Point) -> tuple[Condition, ...]:
        return self.exact(layout) + self.coords.inside(layout, axes, point)

    def own(self, node: Node) -> Elem:
        """The value of a node at the point of its own loops."""
        layout, axes = self.placed.result(node), self.local(node)
        return Elem(node.name, tuple(var(f.var) for f in self.loops(layout, axes)[0]))

    def declare(self, node: Node, init: float | int | bool | None = None) -> Declare:
        return Declare(node.name, self.shape(self.placed.result(node), self.local(node)), register(node.dtype), init)

    @staticmethod
    def origin(node: Node) -> Origin:
        return Origin((node.loc.short,) if node.loc.frames else (), node.loc.target)

    # ---- operands ----

    def is_free(self, node: Node, ref: Ref) -> bool:
        return free_edge(self.problem, ref, self.placed.result(self.table[ref.value]), self.placed.layouts[node.name])

    def read_key(self, node: Node, ref: Ref) -> Read:
        """The read from shared memory that serves an operand; one per (value, bind, place)."""
        layout = self.placed.layouts[node.name]
        producer = self.table[ref.value]
        bind = tuple((a, ref.index(a)) for a in self.local(producer))
        axes = tuple(sorted({i.axis for _, i in bind if i.axis is not None and layout.has(i.axis)}, key=self.rank.__getitem__))
        mine = layout.project(axes)
        key = (ref.value, bind, mine)
        if key not in self.reads:
            self.reads[key] = Read(self.coords.fresh(f"{ref.value}_s"), ref.value, bind, mine, axes)
        return self.reads[key]

    def operand(self, node: Node, arg: object, point: Point) -> Value:
        """An operand at a point of the node's loops."""
        if isinstance(arg, Lit):
            return arg
        if not isinstance(arg, Ref):
            assert isinstance(arg, Size)
            return TensorSize(arg.tensor, arg.dim)
        layout = self.placed.layouts[node.name]
        if not self.is_free(node, arg):
            read = self.read_key(node, arg)
            return Elem(read.name, tuple(point[a, i] for a, i, _ in registers(read.layout, read.axes)))
        producer = self.table[arg.value]
        where = self.placed.result(producer)
        index: list[Linear] = []
        for axis, position, _ in registers(where, self.local(producer)):
            bound = arg.index(axis)
            if (
                bound.axis is not None
                and not bound.offset
                and layout.has(bound.axis)
                and layout.factors(bound.axis) == where.factors(axis)
            ):
                index.append(point[bound.axis, position])
            elif bound.axis is None:
                index.append(Linear((), bound.offset))
            else:
                index.append(self.coords.at(layout, bound.axis, point, local=True) + Linear((), bound.offset))
        return Elem(arg.value, tuple(index))

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

    def _vectorise(
        self,
        layout: Layout,
        axes: tuple[str, ...],
        point: Point,
        offset: Callable[[Point], Linear],
        value: Callable[[Point], Elem],
        limit: int,
        when: tuple[Condition, ...],
    ) -> tuple[tuple[For, ...], Point, int]:
        """The loops of a copy with its widest access: along the vector digit, where memory and registers both are contiguous."""
        loops, _ = self.loops(layout, axes)
        vectors = [(a, i, n) for a, i, n in registers(layout, axes) if layout.factors(a)[i].place == VEC]
        if len(vectors) != 1:
            return loops, point, 1
        axis, position, extent = vectors[0]
        name = point[axis, position].terms[0].var
        terms = {t.var: t for t in offset(point).terms}
        last = value(point).index[-1:]
        along = terms.get(name)
        if along is None or along.coef != 1 or along.stride is not None or last != (var(name),):
            return loops, point, 1
        width = min(extent, max(limit, 1), 1 << 4)
        rest = [t.coef for t in offset(point).terms if t.var != name and t.stride is None] + [offset(point).const]
        while width > 1 and (extent % width or any(c % width for c in rest) or _mentions(when, name)):
            width //= 2
        if width == 1:
            return loops, point, 1
        kept = tuple(f for f in loops if f.var != name)
        chunk = (For(self.loop_name(axis, "c"), extent // width),) if extent > width else ()
        moved = dict(point)
        moved[axis, position] = var(chunk[0].var, width) if chunk else Linear()
        return kept + chunk, moved, width

    # ---- exchanges ----

    def buffer(self, node: Node) -> Exchange:
        if node.name not in self.exchanges:
            axes = self._buffer_order(node)
            self.exchanges[node.name] = Exchange(
                node.name, self.coords.fresh(f"{node.name}_shared"), axes, tuple(self.coords.extent(a) for a in axes), node.dtype
            )
        return self.exchanges[node.name]

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
            return self._row_major(exchange, [self.coords.at(layout, a, at, local=True) for a in exchange.axes])

        def value(at: Point) -> Elem:
            return Elem(node.name, tuple(at[a, i] for a, i, _ in registers(layout, axes)))

        loops, at, width = self._vectorise(layout, axes, point, offset, value, VECTOR_BYTES // BYTES[node.dtype], when)
        return Piece(
            self.region(layout), (Copy(value(at), Shared(exchange.buffer, offset(at)), loops, width, when, "", self.origin(node)),)
        )

    def read(self, key: Read) -> Piece:
        node = self.table[key.value]
        exchange = self.buffer(node)
        _, point = self.loops(key.layout, key.axes)
        when = self.inside(key.layout, key.axes, point)

        def offset(at: Point) -> Linear:
            places = []
            for axis in exchange.axes:
                index = dict(key.bind)[axis]
                base = (
                    self.coords.at(key.layout, index.axis, at, local=True)
                    if index.axis is not None and key.layout.has(index.axis)
                    else Linear()
                )
                places.append(base + Linear((), index.offset))
            return self._row_major(exchange, places)

        def value(at: Point) -> Elem:
            return Elem(key.name, tuple(at[a, i] for a, i, _ in registers(key.layout, key.axes)))

        loops, at, width = self._vectorise(key.layout, key.axes, point, offset, value, VECTOR_BYTES // BYTES[node.dtype], when)
        declare = Declare(key.name, self.shape(key.layout, key.axes), register(node.dtype), 0.0 if when else None)
        return Piece(self.region(key.layout), (declare, Copy(Shared(exchange.buffer, offset(at)), value(at), loops, width, when)))

    @staticmethod
    def _row_major(exchange: Exchange, places: list[Linear]) -> Linear:
        out = Linear()
        for i, place in enumerate(places):
            out = out + place.scaled(prod(exchange.extents[i + 1 :]))
        return out

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

    # ---- reductions ----

    def lane_steps(self, node: Node) -> tuple[tuple[int, int], ...]:
        """(step, lanes) of the butterflies of a reduction, innermost first."""
        assert isinstance(node.op, Reduce)
        axes = [a.name for a in self.problem.grid.local(node.op.axes)]
        found = [(f.step, f.extent) for _, _, f in thread_factors(self.placed.layouts[node.name], axes) if f.step < WARP_SIZE]
        return tuple(sorted(found))

    def accumulate(self, node: Node) -> Piece:
        """The serial part: every thread folds what it holds."""
        assert isinstance(node.op, Reduce)
        monoid = MONOIDS[node.op.monoid]
        layout, axes = self.placed.layouts[node.name], self.domain(node)
        loops, point = self.loops(layout, axes)
        reduced = tuple(a.name for a in self.problem.grid.local(node.op.axes))
        kept = self.local(node)
        inner = layout.project(kept)
        carry = Elem(node.name, tuple(point[a, i] for a, i, _ in registers(inner, kept)))
        name = node.name if node.name not in self.partials else self.partials[node.name]
        carry = Elem(name, carry.index)
        args = tuple(self.operand(node, a, point) for a in node.op.args)
        if monoid.accumulate is not None:
            value = substitute(monoid.accumulate[0], (carry, *args))
        else:
            value = substitute(monoid.combine[0], (carry, substitute(monoid.lift[0], args)))
        declare = Declare(name, self.shape(inner, kept), register(node.dtype), monoid.identity[0].value)
        when = self.inside(layout, reduced, point)
        return Piece(self.region(layout), (declare, Compute(loops, (Assign(carry, value, self.origin(node)),), when)))

    partials: dict[str, str] = field(default_factory=dict)

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

    def _partial_buffer(self, node: Node) -> Exchange:
        key = f"{node.name}!partial"
        if key not in self.exchanges:
            kept = self.local(node)
            extents = tuple(n for _, n in self._warps(node)) + tuple(self.coords.extent(a) for a in kept)
            self.exchanges[key] = Exchange(node.name, self.coords.fresh(f"{node.name}_warps"), ("warp", *kept), extents, "f32")
        return self.exchanges[key]

    def write_partial(self, node: Node) -> Piece:
        """What each warp has, by the first lane that has it."""
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

        def offset(at: Point) -> Linear:
            return self._row_major(
                exchange, [var(v) for v, _ in self._warps(node)] + [self.coords.at(inner, a, at, local=True) for a in kept]
            )

        def value(at: Point) -> Elem:
            return Elem(name, tuple(at[a, i] for a, i, _ in registers(inner, kept)))

        loops, at, width = self._vectorise(inner, kept, point, offset, value, VECTOR_BYTES // 4, when)
        return Piece(
            self.region(layout), (Copy(value(at), Shared(exchange.buffer, offset(at)), loops, width, when, "", self.origin(node)),)
        )

    def read_partials(self, node: Node) -> Piece:
        assert isinstance(node.op, Reduce)
        exchange = self._partial_buffer(node)
        layout, kept = self.placed.results[node.name], self.local(node)
        loops, point = self.loops(layout, kept)
        count = prod(n for _, n in self._warps(node))
        size = prod(self.coords.extent(a) for a in kept)
        inner = Exchange(node.name, exchange.buffer, kept, tuple(self.coords.extent(a) for a in kept), "f32")
        offset = self._row_major(inner, [self.coords.at(layout, a, point, local=True) for a in kept]) + var(self.turn, size)
        parts = f"{node.name}_parts"
        target = Elem(parts, (var(self.turn), *(var(f.var) for f in loops)))
        when = self.inside(layout, kept, point)
        identity = MONOIDS[node.op.monoid].identity[0].value
        declare = Declare(parts, (count, *self.shape(layout, kept)), "f32", identity if when else None)
        return Piece(
            self.region(layout), (declare, Copy(Shared(exchange.buffer, offset), target, (For(self.turn, count), *loops), 1, when))
        )

    def finish(self, node: Node) -> Piece:
        """The partials of all warps in order, then the rounding to the node's dtype."""
        assert isinstance(node.op, Reduce)
        monoid = MONOIDS[node.op.monoid]
        layout, kept = self.placed.results[node.name], self.local(node)
        loops, _ = self.loops(layout, kept)
        target = self.own(node)
        body: list[Statement] = []
        if node.name in self.partials:
            count = prod(n for _, n in self._warps(node))
            part = Elem(f"{node.name}_parts", (var(self.turn), *target.index))
            body.append(Declare(node.name, self.shape(layout, kept), register(node.dtype), monoid.identity[0].value))
            body.append(
                Compute(
                    (For(self.turn, count), *loops),
                    (Assign(target, substitute(monoid.combine[0], (target, part)), self.origin(node)),),
                )
            )
        if node.dtype in NARROW:
            body.append(Compute(loops, (Assign(target, Round(target, node.dtype), self.origin(node)),)))
        return Piece(self.region(layout), tuple(body))


def substitute(expr: Scalar, args: tuple[Value, ...]) -> Value:
    """A monoid's expression with values for its Params."""
    if isinstance(expr, Param):
        return args[expr.position]
    if isinstance(expr, Lit):
        return expr
    return Apply(expr.fn, tuple(substitute(a, args) for a in expr.args))


def _mentions(when: tuple[Condition, ...], name: str) -> bool:
    from .localize import condition_variables

    return any(name in condition_variables(c) for c in when)
