"""Device functions over the lanes of a warp: copied into emitted files by name, linted and tested here.

All are butterflies over neighbours first, so that every lane gets the same bits; every lane of the warp must arrive.
"""
import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Int32

from .values import maximum, minimum, mul


@cute.jit
def lane_sum(value, step: cutlass.Constexpr, lanes: cutlass.Constexpr):
    """The sum over `lanes` lanes, `step` apart: neighbours first, every lane gets it."""
    offset = step
    while cutlass.const_expr(offset < step * lanes):
        value = value + cute.arch.shuffle_sync_bfly(value, offset=offset)
        offset = offset * 2
    return value


@cute.jit
def lane_max(value, step: cutlass.Constexpr, lanes: cutlass.Constexpr):
    """The maximum over `lanes` lanes, `step` apart: every lane gets it; NaN if one is."""
    offset = step
    while cutlass.const_expr(offset < step * lanes):
        value = maximum(value, cute.arch.shuffle_sync_bfly(value, offset=offset))
        offset = offset * 2
    return value


@cute.jit
def lane_min(value, step: cutlass.Constexpr, lanes: cutlass.Constexpr):
    """The minimum over `lanes` lanes, `step` apart: every lane gets it; NaN if one is."""
    offset = step
    while cutlass.const_expr(offset < step * lanes):
        value = minimum(value, cute.arch.shuffle_sync_bfly(value, offset=offset))
        offset = offset * 2
    return value


@cute.jit
def lane_product(value, step: cutlass.Constexpr, lanes: cutlass.Constexpr):
    """The product over `lanes` lanes, `step` apart: neighbours first, every lane gets it."""
    offset = step
    while cutlass.const_expr(offset < step * lanes):
        value = mul(value, cute.arch.shuffle_sync_bfly(value, offset=offset))
        offset = offset * 2
    return value


@cute.jit
def lane_largest(value, step: cutlass.Constexpr, lanes: cutlass.Constexpr):
    """The largest integer of `lanes` lanes, `step` apart: every lane gets it."""
    offset = step
    while cutlass.const_expr(offset < step * lanes):
        value = cutlass.max(value, cute.arch.shuffle_sync_bfly(value, offset=offset))
        offset = offset * 2
    return value


@cute.jit
def lane_smallest(value, step: cutlass.Constexpr, lanes: cutlass.Constexpr):
    """The smallest integer of `lanes` lanes, `step` apart: every lane gets it."""
    offset = step
    while cutlass.const_expr(offset < step * lanes):
        value = cutlass.min(value, cute.arch.shuffle_sync_bfly(value, offset=offset))
        offset = offset * 2
    return value


@cute.jit
def lane_any(value, step: cutlass.Constexpr, lanes: cutlass.Constexpr):
    """Whether it holds in one of `lanes` lanes, `step` apart."""
    bits = Int32(value)
    offset = step
    while cutlass.const_expr(offset < step * lanes):
        bits = bits | cute.arch.shuffle_sync_bfly(bits, offset=offset)
        offset = offset * 2
    return Boolean(bits != 0)


@cute.jit
def lane_all(value, step: cutlass.Constexpr, lanes: cutlass.Constexpr):
    """Whether it holds in all of `lanes` lanes, `step` apart."""
    bits = Int32(value)
    offset = step
    while cutlass.const_expr(offset < step * lanes):
        bits = bits & cute.arch.shuffle_sync_bfly(bits, offset=offset)
        offset = offset * 2
    return Boolean(bits != 0)
