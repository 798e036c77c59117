"""Distances between floating-point values in units in the last place of their element type."""
from __future__ import annotations

import torch
from torch import Tensor

MANTISSA = {torch.float64: 52, torch.float32: 23, torch.bfloat16: 7, torch.float16: 10, torch.float8_e4m3fn: 3,
            torch.float8_e5m2: 2}
SMALLEST_EXPONENT = {torch.float64: -1022, torch.float32: -126, torch.bfloat16: -126, torch.float16: -14, torch.float8_e4m3fn: -6,
                     torch.float8_e5m2: -14}
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
UNLIKE = 2 ** 40
"""The distance between a NaN and a number: more than any two numbers of a type up to fp32 are apart."""


def bits(x: Tensor) -> Tensor:
    """The bit patterns of a tensor's elements, as int64 (bool as 0 and 1)."""
    if x.dtype == torch.bool:
        return x.to(torch.int64)
    return x.contiguous().view(BITS[x.element_size()]).to(torch.int64)


def _ordered(x: Tensor) -> Tensor:
    """int64 that grows by one from each number of the type to the next; -0 and 0 are the same."""
    pattern, sign = bits(x), 1 << (8 * x.element_size() - 1)
    magnitude = pattern & (sign - 1)
    return torch.where(pattern & sign != 0, -magnitude, magnitude)


def is_nan(x: Tensor) -> Tensor:
    """Where a tensor of any type is NaN."""
    if x.dtype not in MANTISSA:
        return torch.zeros_like(x, dtype=torch.bool)
    return (x if x.dtype == torch.float64 else x.to(torch.float32)).isnan()


def ulp_distance(a: Tensor, b: Tensor) -> Tensor:
    """How many numbers of their common element type lie between `a` and `b` (int64, elementwise).

    0 where both are NaN, UNLIKE where one is; -0 equals 0; an infinity is the neighbour of the largest number of its sign.
    Raises TypeError where the types differ or are not floating.
    """
    if a.dtype != b.dtype or a.dtype not in MANTISSA:
        raise TypeError(f"ulp_distance takes two tensors of one floating type, not {a.dtype} and {b.dtype}")
    one, other = is_nan(a), is_nan(b)
    far = (_ordered(a) - _ordered(b)).abs()
    return far.masked_fill(one & other, 0).masked_fill(one ^ other, UNLIKE)


def ulp_of(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The spacing of `dtype`'s numbers at `x` (fp64): the distance between the two that enclose it; 0 where x is not finite."""
    exponent = torch.frexp(x.to(torch.float64)).exponent - 1
    spacing = torch.pow(torch.tensor(2.0, dtype=torch.float64, device=x.device),
                        (exponent.clamp(min=SMALLEST_EXPONENT[dtype]) - MANTISSA[dtype]).to(torch.float64))
    return torch.where(x.isfinite(), spacing.where(x != 0, 2.0 ** (SMALLEST_EXPONENT[dtype] - MANTISSA[dtype])), 0.0)


def same_bits(a: Tensor, b: Tensor) -> Tensor:
    """Where both hold the same bits, or both are NaN: what a value that is only moved must satisfy (-0 is not 0)."""
    equal = bits(a) == bits(b)
    return equal | (is_nan(a) & is_nan(b))
