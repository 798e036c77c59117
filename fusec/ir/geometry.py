"""Facts about layouts: register shapes, thread digits, replication, and whether two maps agree. All derived, nothing stored."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from .plan import GRID, REG, THREAD, VEC, Factor, Layout

WARP_SIZE = 32


def registers(layout: Layout, axes: Iterable[str]) -> tuple[tuple[str, int, int], ...]:
    """The register dims of a value with these axes: (axis, factor position, extent), REG dims in axis order, VEC dims last."""
    regs: list[tuple[str, int, int]] = []
    vecs: list[tuple[str, int, int]] = []
    for axis in axes:
        for position, factor in enumerate(layout.factors(axis)):
            if factor.extent > 1 and factor.place in (REG, VEC):
                (vecs if factor.place == VEC else regs).append((axis, position, factor.extent))
    return tuple(regs + vecs)


def elements(layout: Layout, axes: Iterable[str]) -> int:
    """Registers a thread needs for a value with these axes."""
    return prod(extent for _, _, extent in registers(layout, axes))


def span(factors: tuple[Factor, ...]) -> int:
    """Positions that the local factors of an axis cover; more than the extent where it is padded."""
    return prod(f.extent for f in factors if f.place != GRID)


def weight(factors: tuple[Factor, ...], position: int) -> int:
    """The distance in elements between neighbours of one factor: the extents of the factors further in."""
    return prod(f.extent for f in factors[position + 1 :])


def thread_factors(layout: Layout, axes: Iterable[str]) -> tuple[tuple[str, int, Factor], ...]:
    """(axis, position, factor) of every thread digit with more than one value."""
    return tuple((a, i, f) for a in axes for i, f in enumerate(layout.factors(a)) if f.place == THREAD and f.extent > 1)


@dataclass(frozen=True, slots=True)
class Idle:
    """A thread digit that a value does not use: it is replicated there, and the owner is digit 0."""

    step: int
    extent: int


def idle_digits(layout: Layout, axes: Iterable[str], threads: int) -> tuple[Idle, ...]:
    """The thread digits of the layout's threads that no axis of the value uses."""
    total = layout.count or threads
    used = sorted((f.step, f.extent) for _, _, f in thread_factors(layout, axes))
    found: list[Idle] = []
    at = 1
    for step, extent in used:
        if step > at:
            found.append(Idle(at, step // at))
        at = step * extent
    if at < total:
        found.append(Idle(at, -(-total // at)))
    return tuple(found)


def in_registers(layout: Layout, axis: str) -> bool:
    """Whether a thread holds the whole axis."""
    return all(f.place in (REG, VEC) or f.extent == 1 for f in layout.factors(axis))


def crosses_warps(layout: Layout, axes: Iterable[str]) -> bool:
    """Whether a reduction over these axes needs values of other warps."""
    return any(f.step >= WARP_SIZE for _, _, f in thread_factors(layout, axes))
