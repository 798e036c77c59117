"""Functions of cute.math, cute.arch and cutlass on run-time values."""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .accuracy import Jitter, Shift, bound
from .machine import WARP, current, thread_index
from .numeric import Array, EmulationError, Float32, Int32, Numeric, as_numeric, common, convert, either
from .numeric import select as select_value
from .rounding import fma as fma_value
from .tensors import Vector

NEAREST_EVEN = "NEAREST_EVEN"
_erf = np.vectorize(math.erf, otypes=[np.float64])

EXACT: Mapping[str, Callable[[Array], Array]] = {
    "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "log10": np.log10, "log1p": np.log1p, "expm1": np.expm1,
    "tanh": np.tanh, "sin": np.sin, "cos": np.cos, "erf": lambda x: _erf(x) if x.size else x,
    "rsqrt": lambda x: 1 / np.sqrt(x), "sqrt": np.sqrt, "rcp": lambda x: 1 / x}
"""Functions of fp64 arrays: evaluated there, the result is rounded to fp32. What the hardware may make of them: accuracy.py."""

replacement: list[Mapping[str, Callable[[Array], Array]]] = [{}]
"""The last mapping overrides functions by name, on fp32 arrays: how a run is made to use another library's."""
jitter: list[Jitter | Shift | None] = [None]
"""The last one moves the results of approximate functions within their bounds."""


def _finished(v: Array, name: str, approx: bool) -> Array:
    v = np.asarray(v, np.float32)
    return v if jitter[-1] is None else jitter[-1](v, bound(name, approx))


def _unary(name: str) -> Callable[..., Any]:
    def apply(x: Any, *, approx: bool = False, fastmath: bool = False, ftz: bool = False) -> Any:
        if isinstance(x, Vector):
            if approx:
                raise EmulationError(f"{name}: approx is scalar-only")
            return Vector(apply(x.value, fastmath=fastmath), x.shape)
        x = _float(x)
        other = replacement[-1].get(name)
        if other is not None:
            return Float32.of(other(np.asarray(x.v)), x.undef)
        return Float32.of(_finished(EXACT[name](np.asarray(x.v, np.float64)), name, approx or fastmath), x.undef)
    apply.__name__ = name
    apply.__doc__ = f"{name} of fp32, as exactly as fp32 holds it."
    return apply


def _float(x: Any) -> Any:
    x = as_numeric(x)
    if type(x) is not Float32:
        raise EmulationError(f"a math function of {type(x).__name__}: convert to Float32")
    return x


exp, exp2, log, log2, log10, log1p, expm1, tanh, sin, cos, erf, rsqrt, sqrt, rcp = map(_unary, (
    "exp", "exp2", "log", "log2", "log10", "log1p", "expm1", "tanh", "sin", "cos", "erf", "rsqrt", "sqrt", "rcp"))


def floor(x: Any) -> Any:
    """The largest whole number not above x."""
    x = _float(x)
    return Float32.of(np.floor(x.v), x.undef)


def absolute(x: Any) -> Any:
    """|x|; the sign bit is cleared, NaN's as well."""
    if isinstance(x, Vector):
        return Vector(abs(x.value), x.shape)
    return abs(as_numeric(x))


def copysign(size: Any, sign: Any) -> Any:
    """|size| with the sign of `sign`."""
    a, b = _float(size), _float(sign)
    return Float32.of(np.copysign(a.v, b.v), either(a.undef, b.undef))


def fma(a: Any, b: Any, c: Any) -> Any:
    """a·b + c, rounded once."""
    a, b, c = _float(a), _float(b), _float(c)
    return Float32.of(fma_value(a.v, b.v, c.v), either(a.undef, b.undef, c.undef))


def mul(a: Any, b: Any, *, rounding: Any = None) -> Any:
    """a·b; with a rounding mode it is an instruction of its own that nothing contracts."""
    if rounding not in (None, NEAREST_EVEN):
        raise EmulationError(f"rounding mode {rounding}")
    if rounding is None:
        return _float(a) * _float(b)
    a, b = _float(a), _float(b)
    return Float32.of(np.multiply(a.v, b.v), either(a.undef, b.undef))


def div(a: Any, b: Any, *, full: bool = False) -> Any:
    """a / b, correctly rounded here; the full-range approximation may be 2 ulp off on hardware."""
    a, b = _float(a), _float(b)
    return Float32.of(_finished(np.divide(a.v, b.v), "div.full" if full else "div", False), either(a.undef, b.undef))


def _extreme(larger: bool) -> Callable[..., Any]:
    def choose(a: Any, b: Any, *, nan: bool = False) -> Any:
        a, b = (x if type(x) is Float32 else Float32(x) for x in (a, b))
        return Float32.of(_zero_aware(np.asarray(a.v), np.asarray(b.v), larger, nan), either(a.undef, b.undef))
    choose.__doc__ = f"The {'larger' if larger else 'smaller'}; a NaN loses, or with nan=True wins. -0 is below +0."
    return choose


def _zero_aware(a: Array, b: Array, larger: bool, nan: bool) -> Array:
    rule = (np.maximum if nan else np.fmax) if larger else (np.minimum if nan else np.fmin)
    v = rule(a, b)
    zeros = (a == 0) & (b == 0)
    if zeros.any():
        negative = (np.signbit(a) & np.signbit(b)) if larger else (np.signbit(a) | np.signbit(b))
        v = np.where(zeros, np.where(negative, np.float32(-0.0), np.float32(0.0)), v)
    return v


fmax, fmin = _extreme(True), _extreme(False)


def _pick(larger: bool) -> Callable[..., Any]:
    def choose(*args: Any) -> Any:
        if not any(isinstance(a, Numeric) for a in args):
            return max(*args) if larger else min(*args)
        out = args[0]
        for other in args[1:]:
            x, y = as_numeric(out), as_numeric(other)
            kind = common(type(x), type(y), True)
            v = (np.maximum if larger else np.minimum)(convert(x.v, type(x), kind), convert(y.v, type(y), kind))
            out = kind.of(v, either(x.undef, y.undef))
        return out
    choose.__doc__ = f"The {'largest' if larger else 'smallest'} of values in their common type; NaN propagates."
    return choose


largest, smallest = _pick(True), _pick(False)


def select(condition: Any, yes: Any, no: Any) -> Any:
    """cutlass.select_: both operands are evaluated."""
    return select_value(condition, yes, no)


# ---- lanes ----------------------------------------------------------------------------------------------------------------------

def lane_idx() -> Any:
    """The lane of the thread."""
    return Int32.of((current().thread_number % WARP).astype(np.int32))


def warp_idx() -> Any:
    """The warp of the thread. It holds a full-mask shuffle: the whole warp must come here."""
    m = current()
    m.whole(min(WARP, m.threads), "divergent-shuffle", "warp_idx() (which holds a shuffle) reached")
    return Int32.of((m.thread_number // WARP).astype(np.int32))


def thread_idx() -> Any:
    """(x, y, z) of the thread in its block."""
    return thread_index()


def _full(mask: Any, mask_and_clamp: Any) -> None:
    if mask not in (-1, 0xFFFFFFFF) or mask_and_clamp != 31:
        raise EmulationError("shuffles take the whole warp")


def shuffle_sync_bfly(value: Any, offset: Any, mask: int = -1, mask_and_clamp: int = 31) -> Any:
    """The value of lane `lane ^ offset`."""
    _full(mask, mask_and_clamp)
    m = current()
    return m.shuffle(value, (m.thread_number % WARP) ^ _lanes(offset), "a butterfly shuffle")


def shuffle_sync(value: Any, offset: Any, mask: int = -1, mask_and_clamp: int = 31) -> Any:
    """The value of lane `offset`."""
    _full(mask, mask_and_clamp)
    return current().shuffle(value, _lanes(offset) % WARP, "a shuffle")


def shuffle_sync_down(value: Any, offset: Any, mask: int = -1, mask_and_clamp: int = 31) -> Any:
    """The value of lane `lane + offset`; its own beyond the warp."""
    _full(mask, mask_and_clamp)
    m = current()
    lane = m.thread_number % WARP
    return m.shuffle(value, np.where(lane + _lanes(offset) < WARP, lane + _lanes(offset), lane), "a shuffle")


def shuffle_sync_up(value: Any, offset: Any, mask: int = -1, mask_and_clamp: int = 0) -> Any:
    """The value of lane `lane - offset`; its own before the warp."""
    m = current()
    lane = m.thread_number % WARP
    return m.shuffle(value, np.where(lane >= _lanes(offset), lane - _lanes(offset), lane), "a shuffle")


def _lanes(offset: Any) -> Any:
    if isinstance(offset, Numeric):
        current().defined(offset, "the lane of a shuffle")
        return np.asarray(offset.v, np.int64)
    return offset


def warp_reduction_sum(value: Any, *, threads_in_group: int = WARP) -> Any:
    """The sum over neighbouring lanes, farthest first."""
    offset = threads_in_group // 2
    while offset > 0:
        value = value + shuffle_sync_bfly(value, offset)
        offset //= 2
    return value


def sync_threads() -> None:
    """The block's barrier."""
    current().sync_threads()
