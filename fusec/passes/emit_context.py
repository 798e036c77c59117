"""What every unit of emission shares: names, register loops, regions, operands, and the widest access of a copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod

from ..ir.dtype import register
from ..ir.geometry import WARP_SIZE, registers, thread_factors
from ..ir.graph import Index, Node, Reduce, Ref, Store
from ..ir.kernel import (
    Condition,
    Declare,
    Elem,
    For,
    Less,
    Linear,
    Origin,
    Statement,
    TensorSize,
    Value,
)
from ..ir.plan import REG, SERIAL, VEC, Exchange, Layout
from ..ir.scalar import Lit
from ..ir.tensor import Size
from .choose_grid import FREE
from .coordinates import Coordinates, var
from .localize import condition_variables
from .price import free_edge
from .problem import Placement, Problem

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
class Context:
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
        self.rank = _memory_rank(self.problem, self.placed)
        self.table, self.turn = self.problem.table, self.coords.fresh("turn")
        self.peer = self.coords.fresh("peer") if self.problem.grid.cluster else ""
        for node in self.problem.graph.nodes:
            if isinstance(node.op, Reduce) and self.lane_steps(node):
                layout = self.placed.layouts[node.name]
                self.whole.add((layout.first, layout.count))

    rank: dict[str, int] = field(default_factory=dict)
    table: dict[str, Node] = field(default_factory=dict)
    turn: str = ""
    peer: str = ""
    loop_names: dict[tuple[str, str], str] = field(default_factory=dict)

    partials: dict[str, str] = field(default_factory=dict)

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
            factors = layout.factors(axis)
            inner = factors[position].place == VEC or any(f.place == REG and f.extent > 1 for f in factors[:position])
            name = self.loop_name(axis, "v" if inner else "r")
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

    def lane_steps(self, node: Node) -> tuple[tuple[int, int], ...]:
        """(step, lanes) of the butterflies of a reduction, innermost first."""
        assert isinstance(node.op, Reduce)
        axes = [a.name for a in self.problem.grid.local(node.op.axes)]
        found: list[tuple[int, int]] = []
        for step, lanes in sorted((f.step, f.extent) for _, _, f in thread_factors(self.placed.layouts[node.name], axes)):
            if found and step == found[-1][0] * found[-1][1] and step < WARP_SIZE:
                found[-1] = (found[-1][0], found[-1][1] * lanes)
            elif step < WARP_SIZE:
                found.append((step, lanes))
        return tuple(found)

    # ---- operands ----

    def is_free(self, node: Node, ref: Ref) -> bool:
        return free_edge(self.problem, node.name, ref, self.placed.result(self.table[ref.value]), self.placed.layouts[node.name])

    def read_key(self, node: Node, ref: Ref) -> Read:
        """The read from shared memory that serves an operand; one per (value, bind, place), and per walk what differs by turn."""
        layout = self.placed.layouts[node.name]
        producer = self.table[ref.value]
        bind = tuple((a, ref.index(a)) for a in self.local(producer))
        axes = tuple(sorted({i.axis for _, i in bind if i.axis is not None and layout.has(i.axis)}, key=self.rank.__getitem__))
        mine = layout.project(axes)
        turning = any(f.place == SERIAL for _, factors in mine.axes for f in factors)
        walk = self.problem.walk.phases[node.name] if turning and self.problem.walk is not None else 0
        key = (ref.value, bind, mine, walk)
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

    # ---- the widest access ----

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
        held = {p.terms[0].var for p in point.values() if p.terms}
        loops = tuple(f for f in self.loops(layout, axes)[0] if f.var in held)
        vectors = [(a, i, n) for a, i, n in registers(layout, axes) if layout.factors(a)[i].place == VEC]
        if len(vectors) != 1:
            return loops, point, 1
        axis, position, extent = vectors[0]
        if not point[axis, position].terms:
            return loops, point, 1
        name = point[axis, position].terms[0].var
        terms = {t.var: t for t in offset(point).terms}
        last = value(point).index[-1:]
        along = terms.get(name)
        if along is None or along.coef != 1 or along.stride is not None or last != (var(name),):
            return loops, point, 1
        width = min(extent & -extent, max(limit, 1), 1 << 4)
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

    @staticmethod
    def _run(loops: tuple[For, ...], offset: Linear, width: int, limit: int, when: tuple[Condition, ...]) -> int:
        """The widest access where the points of the inner loops are neighbours in memory: `width` itself where they are not."""
        steps = {t.var: t.coef for t in offset.terms if t.stride is None}
        count, own = width, set[str]()
        for loop in reversed(loops):
            if steps.get(loop.var) != count:
                break
            count *= loop.extent
            own.add(loop.var)
        others = [t.coef for t in offset.terms if t.stride is None and t.var not in own] + [offset.const]
        vector = 1 << (max(limit, 1).bit_length() - 1)
        while vector > width and (count % vector or any(c % vector for c in others) or any(_mentions(when, v) for v in own)):
            vector //= 2
        return max(vector, width)


def _memory_rank(problem: Problem, placed: Placement) -> dict[str, int]:
    """The place of every axis among the dims of fragments: the graph's order. Where threads hold axes of the anchor's memory whole,
    axes are ordered as they lie in memory instead, so that neighbours there are neighbours in registers: the anchor's memory
    decides, then that of stores.
    """
    names, anchor = [a.name for a in problem.graph.axes], problem.table[placed.anchor]
    steps: dict[str, int] = {}
    if problem.held & {a.name for a in problem.domain(anchor)}:
        for node in (anchor, *(n for n in problem.graph.nodes if isinstance(n.op, Store))):
            for step, name in problem.strides(node):
                if step < FREE:
                    steps.setdefault(name, step)
    ordered = iter(sorted((n for n in names if n in steps), key=lambda n: -steps[n]))
    return {name: i for i, name in enumerate(next(ordered) if n in steps else n for n in names)}


def _mentions(when: tuple[Condition, ...], name: str) -> bool:
    return any(name in condition_variables(c) for c in when)


def row_major(exchange: Exchange, places: list[Linear]) -> Linear:
    """The element offset in a row-major buffer, from the coordinate along each of its extents."""
    out = Linear()
    for i, place in enumerate(places):
        out = out + place.scaled(prod(exchange.extents[i + 1 :]))
    return out
