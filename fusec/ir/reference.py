"""The torch meaning of every scalar primitive, of rounding, and of monoids: what both interpreters evaluate with.

Values are in register form: floats as fp32 (or as fp64, when the model of the checker runs), integers as int32 or int64, bools as
bool. A value of a narrow float dtype is held exactly in the wider one; `round_to` is the only place where bits are lost on purpose.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Union

import torch
from torch import Tensor

from .dtype import FLOATS, INTS, NARROW, SATURATES, register
from .monoid import MONOIDS
from .scalar import COMPOSITES, PRIMITIVES, Call, Lit, Param, Scalar

TORCH_DTYPE: Mapping[str, torch.dtype] = {
    "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f8e4m3": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2, "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8,
    "bool": torch.bool}
SHORT_DTYPE: Mapping[torch.dtype, str] = {d: name for name, d in TORCH_DTYPE.items()}
FLOAT_REGISTER: Mapping[str, torch.dtype] = {"f32": torch.float32, "f64": torch.float64}


# ---- rounding ------------------------------------------------------------------------------------------------------------------

def _step(value: Tensor, toward_larger: Tensor, where: Tensor, bits: torch.dtype) -> Tensor:
    """The neighbour of `value` (larger or smaller in magnitude) where its last bit is even, elsewhere the value itself."""
    pattern = value.contiguous().view(bits)
    moved = pattern + torch.where(toward_larger, 1, -1).to(bits)
    return torch.where(where & ((pattern & 1) == 0), moved, pattern).view(value.dtype)


def odd_f32(x: Tensor) -> Tensor:
    """fp64 → fp32 rounded to odd: a second rounding to any narrower float is then as if it were the only one."""
    y = x.to(torch.float32)
    error = x - y.to(torch.float64)
    inexact = (error != 0) & ~x.isnan() & ~x.isinf()
    return _step(y, (x.abs() > y.to(torch.float64).abs()), inexact, torch.int32)


def round_to(x: Tensor, dtype: str, precision: str = "f32") -> Tensor:
    """`x` rounded to `dtype` as an eager cast does it, back in register form.

    Nearest even, once: from fp64 it does not go through a rounded fp32. e4m3 saturates at 448, infinities included, as the
    hardware's cvt.satfinite and torch's cast from 2.12 on do (before, torch makes NaN of what lies beyond); e5m2 from 61440 on is
    infinite. With precision "f64", dtype "f32" keeps fp64.
    """
    if dtype in FLOATS:
        wide = FLOAT_REGISTER[precision]
        if dtype == "f32":
            return x.to(wide)
        return _narrowed(x, dtype).to(wide)
    if dtype in INTS:
        return x.to(TORCH_DTYPE[dtype]).to(TORCH_DTYPE[register(dtype)])
    return x.to(torch.bool)


def to_register(x: Tensor, precision: str = "f32") -> Tensor:
    """A tensor of any supported element type as a register holds it."""
    return round_to(x.to(FLOAT_REGISTER[precision]) if x.is_floating_point() else x, SHORT_DTYPE[x.dtype], precision)


def from_register(x: Tensor, dtype: str) -> Tensor:
    """A register value as elements of `dtype` in memory (rounded once, where it is not already of that dtype)."""
    return _narrowed(x, dtype) if dtype in NARROW else x.to(TORCH_DTYPE[dtype])


def _narrowed(x: Tensor, dtype: str) -> Tensor:
    """A float in a type narrower than fp32, rounded once whatever it came from."""
    source = odd_f32(x) if x.dtype == torch.float64 else x
    largest = SATURATES.get(dtype)
    return (source if largest is None else source.clamp(-largest, largest)).to(TORCH_DTYPE[dtype])


# ---- scalar functions ----------------------------------------------------------------------------------------------------------

def _fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a·b + c with one rounding. In fp32 exactly: the fp64 product is exact, the sum is rounded to odd, then to fp32.

    In fp64 the product is rounded as well: there the result only stands for a value that is better than any fp32 order.
    """
    if a.dtype == torch.float64 or b.dtype == torch.float64 or c.dtype == torch.float64:
        return a.double() * b.double() + c.double()
    p, d = torch.broadcast_tensors(a.double() * b.double(), c.double())
    s = p + d
    part = s - p
    error = (p - (s - part)) + (d - part)
    inexact = (error != 0) & s.isfinite() & error.isfinite()
    return _step(s, (error > 0) == (s > 0), inexact, torch.int64).to(torch.float32)


def _bitcast(kind: torch.dtype) -> Callable[[Tensor], Tensor]:
    def cast(x: Tensor) -> Tensor:
        return (x.to(torch.float32) if x.is_floating_point() else x.to(torch.int32)).contiguous().view(kind)
    return cast


def _select(c: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return torch.where(c, a, b)


def _by_nonzero(divide: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Integer division whose result by 0 is some number, as on the device: lanes without an element divide too."""
    def apply_(a: Tensor, b: Tensor) -> Tensor:
        whole = isinstance(b, Tensor) and not b.is_floating_point()
        return divide(a, torch.where(b == 0, torch.ones_like(b), b) if whole else b)
    return apply_


PRIMITIVE_MEANING: dict[str, Callable[..., Tensor]] = {
    "add": torch.add, "sub": torch.sub, "neg": torch.neg, "mul": torch.mul, "mul_rn": torch.mul, "abs": torch.abs, "fma": _fma,
    "div": torch.div, "rcp": torch.reciprocal, "rcp_approx": torch.reciprocal, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt,
    "max": torch.maximum, "min": torch.minimum, "maxnum": torch.fmax, "floor": torch.floor, "sign": torch.sign,
    "exp": torch.exp, "exp2": torch.exp2, "log": torch.log, "log2": torch.log2, "log1p": torch.log1p, "expm1": torch.expm1,
    "tanh": torch.tanh, "sin": torch.sin, "cos": torch.cos, "erf": torch.erf,
    "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge, "eq": torch.eq, "ne": torch.ne,
    "and": torch.logical_and, "or": torch.logical_or, "not": torch.logical_not, "select": _select, "identity": torch.clone,
    "floordiv": _by_nonzero(torch.floor_divide), "mod": _by_nonzero(torch.remainder),
    "shl": torch.bitwise_left_shift, "shr": torch.bitwise_right_shift, "bitand": torch.bitwise_and, "bitor": torch.bitwise_or,
    "bitxor": torch.bitwise_xor, "bitcast_i32": _bitcast(torch.int32), "bitcast_f32": _bitcast(torch.float32),
}
"""Scalar function -> torch function, on tensors in register form that broadcast.

`max` and `min` propagate NaN, `maxnum` ignores it.
"""

assert set(PRIMITIVE_MEANING) == set(PRIMITIVES), sorted(set(PRIMITIVE_MEANING) ^ set(PRIMITIVES))

Number = Union[Tensor, Lit]
TAKE_BOOLS = frozenset({"and", "or", "not", "eq", "ne", "select", "identity"})
"""Functions of bools; any other takes them as the integers 0 and 1."""


def literal(lit: Lit, precision: str = "f32") -> Tensor:
    """A constant in register form. A float constant is an fp32 number in both precisions: that is what the kernel has."""
    if isinstance(lit.value, bool):
        return torch.tensor(lit.value)
    if isinstance(lit.value, int):
        return torch.tensor(lit.value, dtype=torch.int64)
    exact = math.isinf(lit.value) or math.isnan(lit.value)
    value = lit.value if exact else torch.tensor(lit.value, dtype=torch.float32).item()
    return torch.tensor(value, dtype=FLOAT_REGISTER[precision])


def _agree(args: Sequence[Tensor]) -> list[Tensor]:
    """Constants (0-dim) take the kind of the other operands: an integer literal beside a float is a float."""
    floats = [a.dtype for a in args if a.is_floating_point()]
    if not floats:
        ints = [a.dtype for a in args if a.dtype != torch.bool and a.dim()]
        return [a.to(ints[0]) if ints and not a.dim() and a.dtype == torch.int64 else a for a in args]
    wide = torch.float64 if torch.float64 in floats else torch.float32
    return [a if a.dtype == torch.bool else a.to(wide) for a in args]


def apply(fn: str, args: Sequence[Number], precision: str = "f32") -> Tensor:
    """A scalar function, primitive or composite, of register values that broadcast; not yet rounded to a narrow dtype.

    Raises KeyError for an unknown function.
    """
    values = _agree([literal(a, precision) if isinstance(a, Lit) else a for a in args])
    if fn in PRIMITIVE_MEANING:
        if fn not in TAKE_BOOLS:
            values = [v.to(torch.int32) if v.dtype == torch.bool else v for v in values]
        return PRIMITIVE_MEANING[fn](*values)
    return evaluate(COMPOSITES[fn].body, values, precision)


def evaluate(expr: Scalar, params: Sequence[Tensor], precision: str = "f32") -> Tensor:
    """An expression over Params, every intermediate in register form and unrounded beyond that."""
    if isinstance(expr, Param):
        return params[expr.position]
    if isinstance(expr, Lit):
        return literal(expr, precision)
    assert isinstance(expr, Call)
    return apply(expr.fn, [evaluate(a, params, precision) for a in expr.args], precision)


# ---- reductions ----------------------------------------------------------------------------------------------------------------

_FOLDS: Mapping[str, Callable[[Tensor, tuple[int, ...]], Tensor]] = {
    "sum": lambda x, d: x.sum(d), "max": lambda x, d: x.amax(d), "min": lambda x, d: x.amin(d),
    "any": lambda x, d: x.any(d), "all": lambda x, d: x.all(d)}


def reduce(monoid: str, args: Sequence[Tensor], dims: tuple[int, ...], precision: str = "f32") -> Tensor:
    """The fold of aligned operands over `dims` in an order of torch's choice; an empty range gives the monoid's identity."""
    row = MONOIDS[monoid]
    if not dims:
        lifted = [evaluate(e, args, precision) for e in row.lift]
        return evaluate(row.finish[0], lifted, precision)
    if monoid == "dot":
        return (args[0] * args[1]).sum(dims)
    if monoid == "prod":
        out = args[0]
        for dim in sorted(dims, reverse=True):
            out = out.prod(dim)
        return out
    if monoid in _FOLDS:
        empty = any(args[0].shape[d] == 0 for d in dims) and monoid in ("max", "min")
        return _fill_identity(args[0], dims, row.identity[0], precision) if empty else _FOLDS[monoid](args[0], dims)
    return _fold_serially(monoid, args, dims, precision)


def _fill_identity(x: Tensor, dims: tuple[int, ...], identity: Lit, precision: str) -> Tensor:
    shape = [n for i, n in enumerate(x.shape) if i not in dims]
    return literal(identity, precision).to(x.dtype).expand(shape).clone()


def _fold_serially(monoid: str, args: Sequence[Tensor], dims: tuple[int, ...], precision: str) -> Tensor:
    """Any monoid by its row: lift, combine ascending, finish."""
    row = MONOIDS[monoid]
    moved = [a.movedim(dims, tuple(range(len(dims)))).flatten(0, len(dims) - 1) for a in args]
    carry = [literal(i, precision).expand(moved[0].shape[1:]).clone() for i in row.identity]
    for step in range(moved[0].shape[0]):
        lifted = [evaluate(e, [m[step] for m in moved], precision) for e in row.lift]
        carry = [evaluate(e, [*carry, *lifted], precision) for e in row.combine]
    return evaluate(row.finish[0], carry, precision)
