"""Rounding as the hardware does it, on numpy arrays: narrow floats held in fp32, fma with one rounding, bits to values and back."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]

LIMITS = {"f8e4m3": (3, -6, 448.0), "f8e5m2": (2, -14, 57344.0)}
"""fp8 types: mantissa bits, exponent of the smallest normal, largest finite number (cvt.rn.satfinite, the only form PTX has)."""


def to_bf16(x: F32) -> F32:
    """fp32 rounded to nearest even bf16, held in fp32; NaN is the canonical one (cvt.rn.bf16.f32)."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) & np.uint32(0xFFFF0000)
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(nan, np.uint32(0x7FFF0000), rounded).view(np.float32)


def to_f16(x: F32) -> F32:
    """fp32 rounded to nearest even fp16, held in fp32; overflow is infinite (cvt.rn.f16.f32)."""
    return np.asarray(x, np.float32).astype(np.float16).astype(np.float32)


def to_f8(x: F32, dtype: str) -> F32:
    """fp32 rounded to nearest even fp8, held in fp32; it saturates at the largest finite number, infinities included."""
    mantissa, smallest, largest = LIMITS[dtype]
    x = np.asarray(x, np.float32)
    _, exponent = np.frexp(np.where(np.isfinite(x), x, np.float32(1)))
    quantum = np.ldexp(np.float32(1), np.maximum(exponent - 1, smallest) - mantissa)
    rounded = np.rint(x / quantum) * quantum
    return np.asarray(np.clip(rounded, np.float32(-largest), np.float32(largest)), np.float32)


ROUND: dict[str, Callable[[F32], F32]] = {"f32": lambda x: np.asarray(x, np.float32), "bf16": to_bf16, "f16": to_f16,
         "f8e4m3": lambda x: to_f8(x, "f8e4m3"), "f8e5m2": lambda x: to_f8(x, "f8e5m2")}
"""Short name of a float type -> rounding of an fp32 array to it."""


# ---- fma ------------------------------------------------------------------------------------------------------------------------

def _odd(s: NDArray[np.float64], p: NDArray[np.float64], c: NDArray[np.float64]) -> NDArray[np.float64]:
    """The fp64 sum s of p and c, rounded to odd: what a second rounding to fp32 cannot spoil."""
    part = s - p
    error = (p - (s - part)) + (c - part)
    bits = np.ascontiguousarray(s).view(np.int64)
    inexact = (error != 0) & np.isfinite(s) & np.isfinite(error)
    moved = bits + np.where((error > 0) == (s > 0), 1, -1)
    return np.where(inexact & ((bits & 1) == 0), moved, bits).view(np.float64)


def fma(a: F32, b: F32, c: F32) -> F32:
    """a·b + c in fp32 with one rounding.

    The fp64 product is exact. Its rounded sum with c gives a wrong fp32 only where it lies on a midpoint of two fp32 numbers, or
    where the result is no normal number: there the sum is rounded to odd first.
    """
    p = np.multiply(a, b, dtype=np.float64)
    wide = np.asarray(c, np.float64)
    s = np.atleast_1d(p + wide)
    midpoint = (s.view(np.int64) & 0x1FFFFFFF) == 0x10000000
    doubtful = midpoint | (np.abs(s) < 2.0 ** -125)
    if doubtful.any():
        s = _odd(s, p, wide)
    shape = np.broadcast_shapes(np.shape(a), np.shape(b), np.shape(c))
    return s.astype(np.float32).reshape(shape)


# ---- memory ---------------------------------------------------------------------------------------------------------------------

def _decode_table(dtype: str) -> F32:
    """The value of every byte of an fp8 type."""
    mantissa, smallest, _ = LIMITS[dtype]
    byte = np.arange(256)
    field, fraction = (byte & 0x7F) >> mantissa, byte & ((1 << mantissa) - 1)
    normal = np.ldexp(1.0 + fraction / (1 << mantissa), field + smallest - 1)
    value = np.where(field == 0, np.ldexp(fraction / (1 << mantissa), smallest), normal)
    if dtype == "f8e4m3":
        value[(byte & 0x7F) == 0x7F] = np.nan
    else:
        value[(field == 31) & (fraction == 0)], value[(field == 31) & (fraction != 0)] = np.inf, np.nan
    return np.where(byte >= 128, -value, value).astype(np.float32)


_F8 = {name: _decode_table(name) for name in LIMITS}


def decode(bits: NDArray[np.unsignedinteger], dtype: str) -> F32:
    """Elements of a float type in memory (unsigned integers of its width) as fp32."""
    if dtype == "f32":
        return bits.view(np.float32)
    if dtype == "bf16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return bits.view(np.float16).astype(np.float32) if dtype == "f16" else _F8[dtype][bits]


def encode(x: F32, dtype: str) -> NDArray[np.unsignedinteger]:
    """fp32 numbers that are exactly of a float type, as its bits."""
    x = np.ascontiguousarray(x, np.float32)
    if dtype == "f32":
        return x.view(np.uint32)
    if dtype == "bf16":
        return (x.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return x.astype(np.float16).view(np.uint16) if dtype == "f16" else _encode_f8(x, dtype)


def _encode_f8(x: F32, dtype: str) -> NDArray[np.uint8]:
    mantissa, smallest, _ = LIMITS[dtype]
    size = np.abs(x)
    fraction, exponent = np.frexp(np.where(np.isfinite(size), size, np.float32(0)))
    field = np.maximum(exponent - 1, smallest)
    steps = np.ldexp(size, mantissa - field)
    subnormal = exponent - 1 < smallest
    byte = np.where(np.isfinite(steps), steps, 0).astype(np.int64) - np.where(subnormal, 0, 1 << mantissa)
    byte += np.where(subnormal, 0, (field - smallest + 1) << mantissa)
    byte = np.where(size == 0, 0, byte)
    nan, inf = (0x7F, 0x7E) if dtype == "f8e4m3" else (0x7F, 0x7C)
    byte = np.where(np.isnan(x), nan, np.where(np.isinf(x), inf, byte))
    return (byte | np.where(np.signbit(x), 0x80, 0)).astype(np.uint8)
