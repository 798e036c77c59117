"""KernelSpec: one kernel as data, the only thing that rendering sees. Only str, int, float, bool, tuples and dataclasses.

What a thread holds: scalars and register fragments (`Declare`), integers it computes its coordinates from (`Let`). Values are fp32,
i32, i64 or bool in registers; a Round is a rounding to a narrower type and back. Loops are unrolled register loops unless a Repeat.
Few statement kinds, and none that knows what is computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Union

from .plan import SmemPlan
from .scalar import Lit


# ---- integers -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Term:
    """coef * var, and times the run-time stride of a tensor's dim where `stride` = (tensor, dim)."""

    var: str
    coef: int = 1
    stride: tuple[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Linear:
    """const + the sum of the terms. As a global offset it is 64-bit; as a register index it has loop variables only."""

    terms: tuple[Term, ...] = ()
    const: int = 0

    def __add__(self, other: "Linear") -> "Linear":
        merged: dict[tuple[str, tuple[str, int] | None], int] = {}
        for t in self.terms + other.terms:
            merged[t.var, t.stride] = merged.get((t.var, t.stride), 0) + t.coef
        return Linear(tuple(Term(v, c, s) for (v, s), c in merged.items() if c), self.const + other.const)

    def scaled(self, factor: int) -> "Linear":
        return Linear(tuple(Term(t.var, t.coef * factor, t.stride) for t in self.terms) if factor else (), self.const * factor)

    @property
    def variables(self) -> frozenset[str]:
        return frozenset(t.var for t in self.terms)


@dataclass(frozen=True, slots=True)
class Digit:
    """(source // step) % extent of an integer variable; no remainder is taken where extent is 0 (the topmost digit)."""

    source: str
    step: int
    extent: int


# ---- values ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Elem:
    """A scalar variable (index ()) or an element of a register fragment."""

    name: str
    index: tuple[Linear, ...] = ()


@dataclass(frozen=True, slots=True)
class Apply:
    """A scalar function (ir/scalar.py) of values."""

    fn: str
    args: tuple["Value", ...]


@dataclass(frozen=True, slots=True)
class Round:
    """The value rounded to `dtype` (nearest even) and widened again to what a register holds for that dtype."""

    value: "Value"
    dtype: str


@dataclass(frozen=True, slots=True)
class Coordinate:
    """An integer expression as a value (i32)."""

    value: Linear


@dataclass(frozen=True, slots=True)
class TensorSize:
    """The size of a tensor's dim at run time (i64)."""

    tensor: str
    dim: int


Value = Union[Lit, Elem, Apply, Round, Coordinate, TensorSize]


@dataclass(frozen=True, slots=True)
class Less:
    """Condition: value < bound."""

    value: Linear
    bound: int


@dataclass(frozen=True, slots=True)
class AtLeast:
    """Condition: value >= bound."""

    value: Linear
    bound: int


Condition = Union[Less, AtLeast, Elem, Apply]
"""An integer comparison, or a bool value."""


# ---- statements -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Origin:
    """What a statement comes from: `def`-relative reference lines (`step+12`) and a short remark for the reader."""

    lines: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Let:
    """An integer variable of the thread (i32), set once: a digit, a linear expression, or the i64 of an integer value."""

    name: str
    value: Union[Digit, Linear, Elem]
    origin: Origin = Origin()


@dataclass(frozen=True, slots=True)
class Declare:
    """A scalar (shape ()) or a register fragment, every element `init` (None: not yet anything, written before it is read)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    init: float | int | bool | None = None


@dataclass(frozen=True, slots=True)
class Global:
    """Elements of a tensor argument from a 64-bit element offset on."""

    tensor: str
    offset: Linear


@dataclass(frozen=True, slots=True)
class Shared:
    """Elements of a planned shared buffer from an element offset on: of the thread's own block, or of the block of rank `peer` in
    its cluster (written only)."""

    buffer: str
    offset: Linear
    peer: Linear | None = None


Place = Union[Global, Shared, Elem]
"""Where a Copy reads or writes. An Elem with a fragment stands for `width` elements from there along its last dim."""


@dataclass(frozen=True, slots=True)
class For:
    """An unrolled register loop: var = 0 … extent - 1."""

    var: str
    extent: int


@dataclass(frozen=True, slots=True)
class Copy:
    """For every point of the loops: `width` neighbouring elements from source to target, converted to the target's dtype.

    Memory to registers or registers to memory. width > 1 is one access: the offset is a multiple of it and so aligned, and the
    innermost register dim holds the neighbours. Points where a condition fails are left alone (registers keep their init).
    `hint`: "" or "evict_first". `node`: the Load or Store of the graph that a global access is of. `vector`, where above width: the
    inner loops run over so many neighbours in memory, the innermost loop fastest, from a multiple on: accesses may be that wide.
    """

    source: Place
    target: Place
    loops: tuple[For, ...] = ()
    width: int = 1
    when: tuple[Condition, ...] = ()
    hint: str = ""
    origin: Origin = Origin()
    node: str = ""
    vector: int = 1


@dataclass(frozen=True, slots=True)
class Assign:
    """target = value. A target without a Declare is a local of the loop body."""

    target: Elem
    value: Value
    origin: Origin = Origin()


@dataclass(frozen=True, slots=True)
class Compute:
    """For every point of the loops, in order: the assignments, where the conditions hold."""

    loops: tuple[For, ...]
    body: tuple[Assign, ...]
    when: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class LaneReduce:
    """Every element of the targets becomes the fold over `lanes` lanes, `step` apart, by a butterfly: all of them get the result.

    Several targets over the same lanes are one joint statement. The whole warp goes here: never under a divergent guard.
    """

    targets: tuple[str, ...]
    fn: str
    step: int
    lanes: int
    shape: tuple[int, ...]
    origin: Origin = Origin()


@dataclass(frozen=True, slots=True)
class Barrier:
    """All threads of the block, or of the cluster: everything written before is seen after. `reasons` name the buffers and hazards
    ordered. The scopes `arrive` and `wait` are the halves of a barrier of the cluster that says no more than: all blocks run."""

    reasons: tuple[str, ...]
    scope: str = "block"


@dataclass(frozen=True, slots=True)
class Guard:
    """The body where all conditions hold. `uniform`: the same for all threads of a block (only then may it hold a Barrier)."""

    when: tuple[Condition, ...]
    body: tuple["Statement", ...]
    uniform: bool = False


@dataclass(frozen=True, slots=True)
class Repeat:
    """A run-time loop: var = 0 … count - 1, not unrolled; the variables of `carried` live across turns."""

    var: str
    count: Value
    body: tuple["Statement", ...]
    carried: tuple[str, ...] = ()


Statement = Union[Let, Declare, Copy, Compute, LaneReduce, Barrier, Guard, Repeat]


# ---- the kernel -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Parameter:
    """A tensor argument of the kernel. shape: ints, and symbols by name (one name, one size). strides: ints, None where read at run
    time. align: bytes that the data pointer is a multiple of. divisible: per dim, what a run-time stride is a multiple of
    (elements)."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    strides: tuple[int | None, ...]
    align: int
    divisible: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Launch:
    """grid: three factors lists, each the product of ints and symbols; block_x, block_y, block_z are the kernel's block indices.

    once_below: the hint `evict_first` holds for grids of fewer blocks than this, larger ones run the same kernel without it; 0:
    always. cluster: so many neighbours along block_x are one cluster.
    """

    grid: tuple[tuple[int | str, ...], tuple[int | str, ...], tuple[int | str, ...]]
    threads: int
    min_blocks: int = 1
    once_below: int = 0
    cluster: int = 1


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """One kernel. `title`: what it computes, a line of text; `summary`: lines for the head of the file (grid, layout, shared
    memory)."""

    name: str
    title: str
    arch: str
    parameters: tuple[Parameter, ...]
    launch: Launch
    smem: SmemPlan
    body: tuple[Statement, ...]
    summary: tuple[str, ...] = ()


def walk(body: tuple[Statement, ...]) -> Iterator[Statement]:
    """Every statement in order, those inside guards and loops included."""
    for statement in body:
        yield statement
        if isinstance(statement, (Guard, Repeat)):
            yield from walk(statement.body)
