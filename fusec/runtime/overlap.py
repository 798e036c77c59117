"""Do two strided views of memory share a byte? Exact arithmetic on shapes and strides: no torch, no enumeration of elements.

An element of a view lies at start + sum(stride * i). Two views meet where the difference of two such sums falls into a window as
wide as their elements. Equal strides of both views are one term, so that two views interleaved in pages (one slot stride, disjoint
ranges inside a page) take a handful of steps.
"""
from __future__ import annotations

from dataclasses import dataclass
from math import gcd

STEPS = 20_000
"""Search steps before the answer is "perhaps": only layouts that interleave in several incommensurable strides need more."""


@dataclass(frozen=True, slots=True)
class View:
    """Where a tensor lies: shape, strides in bytes (none negative), and bytes per element."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    item: int

    @property
    def empty(self) -> bool:
        return 0 in self.shape

    @property
    def extent(self) -> int:
        """Bytes from the first byte of the view to the one after its last."""
        return 0 if self.empty else sum(s * (n - 1) for n, s in zip(self.shape, self.strides)) + self.item


Term = tuple[int, int, int]
"""(stride, least, greatest): stride * t for every integer t in the range."""


def meet(first: View, second: View, distance: int) -> bool | None:
    """Whether two views share a byte, `distance` = start of the second minus start of the first in bytes; None: not decided."""
    if first.empty or second.empty or distance >= first.extent or -distance >= second.extent:
        return False
    ranges: dict[int, tuple[int, int]] = {}
    for view, sign in ((first, 1), (second, -1)):
        for n, stride in zip(view.shape, view.strides):
            if n > 1 and stride:
                low, high = ranges.get(stride, (0, 0))
                ranges[stride] = (low, high + n - 1) if sign > 0 else (low - n + 1, high)
    terms = [(s, low, high) for s, (low, high) in sorted(ranges.items(), reverse=True)]
    # An element of the first less one of the second is the sum less the distance; they touch where it is in (-item 1, item 2).
    return _reach(terms, distance - first.item + 1, distance + second.item - 1)


def repeats(view: View) -> bool | None:
    """Whether two different indices of the view share a byte (an expanded dim, overlapping windows); None: not decided."""
    if view.empty:
        return False
    dims = sorted((s, n) for n, s in zip(view.shape, view.strides) if n > 1)
    span = view.item
    for stride, n in dims:
        if stride < span:
            break
        span = stride * (n - 1) + span
    else:
        return False
    if any(s < view.item for s, _ in dims):
        return True
    # The dim with the greatest stride that differs between the two indices differs by t > 0; the others by anything.
    for position, (stride, n) in enumerate(dims):
        terms = [(stride, 1, n - 1), *((s, 1 - m, m - 1) for s, m in reversed(dims[:position]))]
        found = _reach(terms, 1 - view.item, view.item - 1)
        if found is not False:
            return found
    return False


def _reach(terms: list[Term], low: int, high: int) -> bool | None:
    """Whether some sum of the terms, strides descending, lies in [low, high]; None after STEPS steps."""
    count = len(terms)
    least, greatest, common = [0] * (count + 1), [0] * (count + 1), [0] * (count + 1)
    for i in range(count - 1, -1, -1):
        stride, a, b = terms[i]
        least[i], greatest[i], common[i] = least[i + 1] + stride * a, greatest[i + 1] + stride * b, gcd(common[i + 1], stride)
    stack, steps = [(0, low, high)], 0
    while stack:
        i, low, high = stack.pop()
        steps += 1
        if steps > STEPS:
            return None
        low, high = max(low, least[i]), min(high, greatest[i])
        if low > high or common[i] and low + -low % common[i] > high:
            continue
        if i == count:
            return True
        stride, a, b = terms[i]
        # The smaller terms must reach what remains: t from (low - greatest rest) / stride to (high - least rest) / stride.
        first, last = max(a, -((greatest[i + 1] - low) // stride)), min(b, (high - least[i + 1]) // stride)
        if last - first > STEPS:
            return None
        stack.extend((i + 1, low - stride * t, high - stride * t) for t in range(first, last + 1))
    return False
