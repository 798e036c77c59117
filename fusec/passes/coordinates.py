"""Coordinates as integer expressions: where a thread of a block stands along each axis under a layout."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..ir.geometry import idle_digits, span, weight
from ..ir.graph import DimIndex, Graph, Ref
from ..ir.kernel import AtLeast, Condition, Digit, Launch, Less, Let, Linear, Term
from ..ir.plan import GRID, REG, SERIAL, THREAD, VEC, Factor, Layout
from .problem import Placement, Problem


def var(name: str, coef: int = 1) -> Linear:
    """coef * name."""
    return Linear((Term(name, coef),)) if coef else Linear()


@dataclass(slots=True)
class Coordinates:
    """Names the integer variables of a kernel once each: block digits, thread digits. `lets` are their definitions in order."""

    problem: Problem
    placed: Placement
    lets: list[Let] = field(default_factory=list)
    names: dict[tuple[int, int, int], str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.taken |= {n.name for n in self.graph.nodes} | set(self.graph.tensors)

    @property
    def graph(self) -> Graph:
        return self.problem.graph

    def fresh(self, name: str) -> str:
        """A variable name that nothing else has."""
        base, count = name, 1
        while name in self.taken:
            count += 1
            name = f"{base}_{count}"
        self.taken.add(name)
        return name

    def launch(self) -> Launch:
        """Blocks on x, neighbours first along the last grid axis: neighbouring blocks then read neighbouring memory.

        A second axis of run-time size goes on y. Defines one variable per grid axis.
        """
        axes = self.placed.grid.axes
        first = [(n, b) for n, b, _ in axes if isinstance(b, str)][:1] + [(n, b) for n, b, _ in axes if isinstance(b, int)]
        second = [(n, b) for n, b, _ in axes if isinstance(b, str)][1:]
        step = 1
        for i, (name, blocks) in reversed(list(enumerate(first))):
            whole = len(first) == 1
            value = var("block_x") if whole else Digit("block_x", step, 0 if i == 0 else int(blocks))
            self.lets.append(Let(self.grid_name(name), value))
            step *= 1 if isinstance(blocks, str) else blocks
        for name, _ in second:
            self.lets.append(Let(self.grid_name(name), var("block_y")))
        return Launch(
            (tuple(b for _, b in first) or (1,), tuple(b for _, b in second) or (1,), (1,)),
            self.placed.threads,
            self.placed.min_blocks,
            cluster=self.placed.grid.peers,
        )

    def grid_name(self, axis: str) -> str:
        """The variable of a block's place along a grid axis."""
        key = (-1, -1, list(a for a, _, _ in self.placed.grid.axes).index(axis))
        if key not in self.names:
            part = next(p for a, _, p in self.placed.grid.axes if a == axis)
            self.names[key] = self.fresh(axis if part == 1 else f"{axis}_block")
        return self.names[key]

    def digit(self, first: int, factor: Factor, axis: str, total: int) -> str:
        """The variable of one thread digit, counted from thread `first`."""
        if factor.step * factor.extent <= 32 and first % 32 == 0:
            first, total = 0, self.placed.threads  # A lane is a lane wherever the region begins.
        top = factor.step * factor.extent >= total
        key = (first, factor.step, 0 if top else factor.extent)
        if key not in self.names:
            source = self.base(first)
            if factor.step == 1 and top:
                self.names[key] = source
            else:
                name = self.fresh(self._digit_name(first, factor, axis, top))
                self.lets.append(Let(name, Digit(source, factor.step, 0 if top else factor.extent)))
                self.names[key] = name
        return self.names[key]

    @staticmethod
    def _digit_name(first: int, factor: Factor, axis: str, top: bool) -> str:
        """`warp` and `lane` for the hardware's own, else the axis that the digit was first used for."""
        if factor.step == 32 and top:
            return f"warp_from_{first // 32}" if first else "warp"
        if factor.step == 1 and factor.extent == 32:
            return "lane"
        return f"{axis}_{factor.kind.lower().replace('·', '_')}"

    def base(self, first: int) -> str:
        """The variable of the thread's place in a region that begins at thread `first`."""
        if not first:
            return "thread"
        key = (first, 0, 0)
        if key not in self.names:
            self.names[key] = self.fresh(f"thread_from_{first}")
            self.lets.append(Let(self.names[key], var("thread") + Linear((), -first)))
        return self.names[key]

    def total(self, layout: Layout) -> int:
        return layout.count or self.placed.threads

    @property
    def turn(self) -> str:
        """The variable of the turn of the block's walk."""
        assert self.problem.walk is not None
        key = (-2, 0, 0)
        if key not in self.names:
            self.names[key] = self.fresh(f"{self.problem.walk.axis}_turn")
        return self.names[key]

    def at(
        self, layout: Layout, axis: str, loops: dict[tuple[str, int], Linear], local: bool = False, within: bool = False
    ) -> Linear:
        """The coordinate along an axis; `loops` gives the register digits by (axis, factor position). `local`: without the
        grid's part; `within`: and without the turn's."""
        if axis in {a for a, _, p in self.placed.grid.axes if p == 1}:
            return Linear() if local else var(self.grid_name(axis))
        total, out = self.total(layout), Linear()
        for position, factor in enumerate(layout.factors(axis)):
            if factor.extent == 1:
                continue
            scale = weight(layout.factors(axis), position)
            if factor.place == GRID:
                part = next(p for a, _, p in self.placed.grid.axes if a == axis)
                out = out + (Linear() if local else var(self.grid_name(axis), part))
            elif factor.place == SERIAL:
                out = out + (Linear() if within else var(self.turn, scale))
            elif factor.place == THREAD:
                out = out + var(self.digit(layout.first, factor, axis, total), scale)
            else:
                out = out + loops[axis, position].scaled(scale)
        return out

    def inside(self, layout: Layout, axes: tuple[str, ...], loops: dict[tuple[str, int], Linear]) -> tuple[Condition, ...]:
        """Conditions for the padded axes: the position is one the axis has. Innermost registers that fit are in or out as one."""
        found: list[Condition] = []
        for axis in axes:
            extent = self.extent(axis)
            if span(layout.factors(axis)) > extent:
                last = len(layout.factors(axis)) - 1
                whole = {
                    (axis, i): Linear()
                    for i, f in enumerate(layout.factors(axis))
                    if extent % f.extent == 0 and (f.place == VEC or f.place == REG and i == last)
                }
                found.append(Less(self.at(layout, axis, {**loops, **whole}, local=True), extent))
        return tuple(found)

    def extent(self, axis: str, within: bool = False) -> int:
        """Elements of an axis in a block, or `within` one turn of its walk."""
        walk = self.problem.walk
        if within and walk is not None and walk.axis == axis:
            return walk.part
        part = {a: p for a, _, p in self.placed.grid.axes}
        return part[axis] if axis in part else self.graph.axis(axis).size

    def owner(self, layout: Layout, axes: tuple[str, ...]) -> tuple[Condition, ...]:
        """Conditions under which a thread is the one that stores a replicated value."""
        found: list[Condition] = []
        for idle in idle_digits(layout, axes, self.placed.threads):
            factor = Factor(THREAD, idle.extent, idle.step)
            found.append(Less(var(self.digit(layout.first, factor, "replica", self.total(layout))), 1))
        return tuple(found)

    def region(self, layout: Layout, whole_warps: bool) -> tuple[Condition, ...]:
        """Conditions under which a thread belongs to a layout's region."""
        if not layout.count:
            return ()
        last = layout.first + (-(-layout.count // 32) * 32 if whole_warps else layout.count)
        low: tuple[Condition, ...] = (AtLeast(var("thread"), layout.first),) if layout.first else ()
        high: tuple[Condition, ...] = (Less(var("thread"), last),) if last < self.placed.threads else ()
        return low + high

    def offset(
        self,
        tensor: str,
        index: tuple[DimIndex, ...],
        layout: Layout,
        loops: dict[tuple[str, int], Linear],
        value: "dict[str, str]",
    ) -> Linear:
        """The element offset of a memory access; `value` names the integer variables of index values."""
        out = Linear()
        for dim, (digits, stride) in enumerate(zip(index, self.graph.tensors[tensor].strides, strict=True)):
            for digit in digits:
                if isinstance(digit.source, Ref):
                    place = var(value[digit.source.value])
                elif digit.source.axis is None:
                    place = Linear((), digit.source.offset)
                else:
                    place = self.at(layout, digit.source.axis, loops) + Linear((), digit.source.offset)
                out = out + _times(place.scaled(digit.step), tensor, dim, stride)
        return out


def _times(place: Linear, tensor: str, dim: int, stride: int | None) -> Linear:
    if stride is not None:
        return place.scaled(stride)
    terms = [Term(t.var, t.coef, (tensor, dim)) for t in place.terms]
    if place.const:
        terms.append(Term("one", place.const, (tensor, dim)))
    return Linear(tuple(terms))
