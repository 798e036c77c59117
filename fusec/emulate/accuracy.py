"""How far the hardware's elementary functions may be from the exact fp32 result, each with its source.

The emulator evaluates them in fp64 and rounds once. With `jitter` it moves every result within these bounds, at random but
repeatably: what a kernel computes must stand that.
"""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .numeric import Array

GUIDE = "CUDA C++ Programming Guide, Mathematical Functions, single precision, maximum ulp error"
PTX = "PTX ISA, floating point instructions"


@dataclass(frozen=True, slots=True)
class Bound:
    """ulp: units in the last place of the exact result; absolute: where that is larger (near a zero of the function)."""

    ulp: float
    source: str
    absolute: float = 0.0


EXACT = Bound(0.5, "IEEE 754, rounded to nearest even")
BOUNDS: dict[str, Bound] = {
    # What the DSL's default forms compile to; rcp and sqrt are rcp.rn and sqrt.rn.
    "rcp": EXACT, "sqrt": EXACT, "div": EXACT,
    "exp": Bound(2, f"{GUIDE}: expf 2"), "exp2": Bound(2, f"{GUIDE}: exp2f 2; it is ex2.approx"),
    "expm1": Bound(1, f"{GUIDE}: expm1f 1"), "log": Bound(1, f"{GUIDE}: logf 1"), "log2": Bound(1, f"{GUIDE}: log2f 1"),
    "log10": Bound(2, f"{GUIDE}: log10f 2"), "log1p": Bound(1, f"{GUIDE}: log1pf 1"), "tanh": Bound(2, f"{GUIDE}: tanhf 2"),
    "sin": Bound(2, f"{GUIDE}: sinf 2"), "cos": Bound(2, f"{GUIDE}: cosf 2"), "erf": Bound(2, f"{GUIDE}: erff 2"),
    "rsqrt": Bound(2, f"{GUIDE}: rsqrtf 2; it is rsqrt.approx"),
    # Forms asked for by approx=True or full=True.
    "rcp.approx": Bound(1, f"{PTX}: rcp.approx.f32, maximum error 1 ulp"),
    "sqrt.approx": Bound(2, f"{PTX}: sqrt.approx.f32, maximum relative error 2^-23"),
    "rsqrt.approx": Bound(2, f"{PTX}: rsqrt.approx.f32, maximum relative error 2^-22.9"),
    "exp2.approx": Bound(2, f"{PTX}: ex2.approx.f32, maximum error 2 ulp"),
    "log2.approx": Bound(4, f"{PTX}: lg2.approx.f32, 2^-22 absolute from 0.5 to 2, 2^-22 relative elsewhere", 2.0 ** -22),
    "tanh.approx": Bound(2 ** 13, f"{PTX}: tanh.approx.f32, maximum relative error 2^-11"),
    "div.full": Bound(2, f"{PTX}: div.full.f32, 2 ulp over the whole range"),
}
"""Function, or function and form -> bound."""


def bound(name: str, approx: bool = False) -> Bound:
    """The bound of a function in a form. The fast forms of exp and log are products of the approximations of base 2."""
    if approx and f"{name}.approx" in BOUNDS:
        return BOUNDS[f"{name}.approx"]
    return BOUNDS[name] if name in BOUNDS else Bound(16, "not documented; products of base-2 approximations")


class Shift:
    """Moves every result as far as its bound allows, up (1) or down (-1)."""

    def __init__(self, sign: int) -> None:
        self.sign = sign

    def __call__(self, v: Array, limit: Bound) -> Array:
        """fp32 numbers the bound away from v; what is not finite or near zero stays."""
        steps = np.full(v.shape, int(limit.ulp) * self.sign, np.int32)
        return _moved(v, np.where(np.signbit(v), -steps, steps))


def _moved(v: Array, steps: Array) -> Array:
    """The numbers so many places away in magnitude."""
    moved = (np.ascontiguousarray(v, np.float32).view(np.int32).reshape(v.shape) + steps).view(np.float32)
    safe = np.isfinite(v) & np.isfinite(moved) & (np.abs(v) > np.finfo(np.float32).tiny * 2)
    return np.asarray(np.where(safe, moved, v), np.float32)


class Jitter:
    """Moves results within their bounds; equal seeds give equal moves."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def __call__(self, v: Array, limit: Bound) -> Array:
        """fp32 numbers near v: as many ulp away as the bound allows at most; what is not finite or zero stays."""
        most = int(limit.ulp)
        if not most:
            return v
        return _moved(v, self.random.integers(-most, most + 1, v.shape).astype(np.int32))
