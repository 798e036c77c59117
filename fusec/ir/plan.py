"""Decisions as data: where each axis of each value lives, and what a kernel's block looks like."""

from __future__ import annotations

from dataclasses import dataclass

REG, VEC, THREAD, GRID, SERIAL = "REG", "VEC", "THREAD", "GRID", "SERIAL"


@dataclass(frozen=True, slots=True)
class Factor:
    """`extent` consecutive digits of an axis on one place.

    THREAD: the digit is (thread // step) % extent; steps below 32 are lanes, at and above 32 warps. GRID: likewise of the block
    index.
    REG and VEC: a register coordinate of that extent (step unused); VEC digits are contiguous in memory. SERIAL: the turn of the
    block's walk along the streamed axis.
    """

    place: str
    extent: int
    step: int = 1

    @property
    def kind(self) -> str:
        """THREAD split by hardware: LANE, WARP, or LANE·WARP."""
        if self.place != THREAD:
            return self.place
        if self.step >= 32:
            return "WARP"
        return "LANE" if self.step * self.extent <= 32 else "LANE·WARP"

    def __str__(self) -> str:
        return f"{self.kind}{self.extent}" + (f"@{self.step}" if self.place in (THREAD, GRID) else "")


@dataclass(frozen=True, slots=True)
class Layout:
    """A linear map (thread, register, vector) -> coordinates of a set of axes.

    axes: (axis name, factors from the outermost digit to the innermost). An axis whose product of extents exceeds its own extent is
    padded: positions beyond hold nothing. Threads [first, first + count) take part, the digits count from `first`; an axis of a
    value that the layout lacks is not allowed, a thread digit that no axis of the value uses means the value is replicated there.
    """

    axes: tuple[tuple[str, tuple[Factor, ...]], ...]
    first: int = 0
    count: int = 0

    def factors(self, axis: str) -> tuple[Factor, ...]:
        return dict(self.axes)[axis]

    def has(self, axis: str) -> bool:
        return axis in dict(self.axes)

    def project(self, names: tuple[str, ...]) -> "Layout":
        """The same map on fewer axes: what a value that lacks the others looks like (replicated along their digits)."""
        return Layout(tuple((a, f) for a, f in self.axes if a in names), self.first, self.count)

    def __str__(self) -> str:
        inner = ", ".join(f"{a}={'·'.join(map(str, f)) or '1'}" for a, f in self.axes)
        return f"[{inner}]" + (f" threads {self.first}..{self.first + self.count - 1}" if self.count else "")


@dataclass(frozen=True, slots=True)
class Exchange:
    """A value that goes through shared memory: written by the owners of its layout, read under another layout.

    buffer: name; axes: its local axes in the order of the row-major buffer, `extents` their sizes (a partial of a cross-warp
    reduction has the extra leading axis "warp").
    """

    value: str
    buffer: str
    axes: tuple[str, ...]
    extents: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a graph becomes one kernel: grid, block, the layout of every value, and the values exchanged.

    grid: (axis, blocks along it, elements of it per block), outermost first. layouts: (value, layout). `anchor` names the value
    whose region was placed first.
    forms: (reduction, its order as text).
    """

    anchor: str
    threads: int
    grid: tuple[tuple[str, int | str, int], ...]
    layouts: tuple[tuple[str, Layout], ...]
    exchanges: tuple[Exchange, ...] = ()
    forms: tuple[tuple[str, str], ...] = ()

    def layout(self, value: str) -> Layout:
        return dict(self.layouts)[value]


@dataclass(frozen=True, slots=True)
class Buffer:
    """A planned piece of shared memory: bytes [offset, offset + bytes), `count` elements of `dtype`; live over statements
    [first, last]."""

    name: str
    dtype: str
    count: int
    offset: int
    first: int
    last: int

    @property
    def bytes(self) -> int:
        from .dtype import BYTES

        return self.count * BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class SmemPlan:
    """Where every buffer lies; `total` bytes are asked for at the launch."""

    buffers: tuple[Buffer, ...] = ()
    total: int = 0
