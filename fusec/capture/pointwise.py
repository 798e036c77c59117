"""Arithmetic, comparison and logic: one row each, and right here the scalar functions that the rows need beyond ir/scalar.py's.

To add one: define its scalar function if there is none, then a row. Operands are promoted as eager does it; the result is computed
in fp32 and rounded once to the dtype eager gives. Where torch on CPU and on CUDA round differently, this is what CUDA does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..ir.dtype import FLOATS, INTS
from ..ir.reference import TORCH_DTYPE
from ..ir.scalar import Lit, Term, f
from . import registry
from .builder import Builder, Value, lit
from .promote import arithmetic, as_float, comparison, define_new, promote, unary
from .registry import Result

# ---- scalar functions ---------------------------------------------------------------------------------------------------------


@define_new("add_scaled", "a + alpha b")
def _add_scaled(a: Term, b: Term, alpha: Term) -> Term:
    return a + b * alpha


@define_new("sub_scaled", "a - alpha b")
def _sub_scaled(a: Term, b: Term, alpha: Term) -> Term:
    return a - b * alpha


@define_new("addcmul", "a + value x y")
def _addcmul(a: Term, x: Term, y: Term, value: Term) -> Term:
    return a + x * y * value


@define_new("addcdiv", "a + value x / y")
def _addcdiv(a: Term, x: Term, y: Term, value: Term) -> Term:
    return a + value * (x / y)


@define_new("lerp", "a + w (b - a), from b where w is 1/2 or more: exact at both ends.")
def _lerp(a: Term, b: Term, w: Term) -> Term:
    return f.select(f.lt(f.abs(w), 0.5), a + w * (b - a), b - (b - a) * (1.0 - w))


@define_new("clamp", "min(max(x, low), high); NaN stays.")
def _clamp(x: Term, low: Term, high: Term) -> Term:
    return f.min(f.max(x, low), high)


@define_new("ceil")
def _ceil(x: Term) -> Term:
    return -f.floor(-x)


@define_new("trunc")
def _trunc(x: Term) -> Term:
    return f.select(f.lt(x, 0.0), -f.floor(-x), f.floor(x))


@define_new("round", "To the nearest integer, halves to the even one; every step is exact.")
def _round(x: Term) -> Term:
    low = f.floor(x)
    rest = x - low
    even = f.eq(low * 0.5, f.floor(low * 0.5))
    return f.select(f.lt(rest, 0.5), low, f.select(f.gt(rest, 0.5), low + 1.0, f.select(even, low, low + 1.0)))


@define_new("frac")
def _frac(x: Term) -> Term:
    return x - f.trunc(x)


@define_new("rest", "a - q b, with one rounding: its sign tells whether the quotient q was rounded up.")
def _rest(a: Term, b: Term, q: Term) -> Term:
    return f.fma(-q, b, a)


@define_new("opposed", "Whether x is not 0 and has another sign than y.")
def _opposed(x: Term, y: Term) -> Term:
    return f.select(f.lt(y, 0.0), f.gt(x, 0.0), f.lt(x, 0.0))


@define_new("floor_div", "floor of the exact quotient")
def _floor_div(a: Term, b: Term) -> Term:
    q = f.floor(a / b)
    return f.select(f.opposed(f.rest(a, b, q), b), q - 1.0, q)


@define_new("trunc_div", "a / b towards zero")
def _trunc_div(a: Term, b: Term) -> Term:
    return f.trunc(a / b)


@define_new("remainder", "a - b floor(a / b): the sign of b")
def _remainder(a: Term, b: Term) -> Term:
    r = f.rest(a, b, f.floor(a / b))
    return f.select(f.opposed(r, b), r + b, r)


@define_new("fmod", "a - b trunc(a / b): the sign of a")
def _fmod(a: Term, b: Term) -> Term:
    r = f.rest(a, b, f.trunc(a / b))
    return f.select(f.opposed(r, a), r + f.select(f.lt(a, 0.0), -f.abs(b), f.abs(b)), r)


@define_new("isnan")
def _isnan(x: Term) -> Term:
    return f.ne(x, x)


@define_new("isposinf")
def _isposinf(x: Term) -> Term:
    return f.eq(x, float("inf"))


@define_new("isneginf")
def _isneginf(x: Term) -> Term:
    return f.eq(x, float("-inf"))


@define_new("isinf")
def _isinf(x: Term) -> Term:
    return f.eq(f.abs(x), float("inf"))


@define_new("isfinite")
def _isfinite(x: Term) -> Term:
    return f.lt(f.abs(x), float("inf"))


@define_new("pow", "x^y by exp2 and log2; an integer y gives a negative x its sign, another one NaN.")
def _pow(x: Term, y: Term) -> Term:
    size = f.exp2(y * f.log2(f.abs(x)))
    odd = f.ne(f.floor(y * 0.5), y * 0.5)
    signed = f.select(f.eq(f.floor(y), y), f.select(odd, -size, size), float("nan"))
    return f.select(f.eq(y, 0.0), 1.0, f.select(f.eq(x, 1.0), 1.0, f.select(f.lt(x, 0.0), signed, size)))


@define_new("log10")
def _log10(x: Term) -> Term:
    return f.log2(x) * 0.30102999566398120


@define_new("tan")
def _tan(x: Term) -> Term:
    return f.sin(x) / f.cos(x)


@define_new("sinh")
def _sinh(x: Term) -> Term:
    return 0.5 * (f.expm1(x) - f.expm1(-x))


@define_new("cosh")
def _cosh(x: Term) -> Term:
    return 0.5 * (f.exp(x) + f.exp(-x))


@define_new("nan_to_num")
def _nan_to_num(x: Term, nan: Term, high: Term, low: Term) -> Term:
    return f.select(f.ne(x, x), nan, f.select(f.eq(x, float("inf")), high, f.select(f.eq(x, float("-inf")), low, x)))


@define_new("minnum", "The smaller one; a NaN loses.")
def _minnum(a: Term, b: Term) -> Term:
    return -f.maxnum(-a, -b)


@define_new("logaddexp", "log(exp(a) + exp(b)); equal infinities give themselves.")
def _logaddexp(a: Term, b: Term) -> Term:
    return f.select(f.eq(a, b), a + 0.6931471805599453, f.max(a, b) + f.log1p(f.exp(-f.abs(a - b))))


@define_new("xlogy", "x l for a logarithm l, 0 where x is 0 and l no NaN")
def _xlogy(x: Term, log_y: Term) -> Term:
    return f.select(f.ne(log_y, log_y), log_y, f.select(f.eq(x, 0.0), 0.0, x * log_y))


@define_new("signbit", "Whether the sign is negative, that of a zero included.")
def _signbit(x: Term) -> Term:
    return f.lt(f.bitcast_i32(x), 0)


@define_new("copysign", "|x| with the sign of y")
def _copysign(x: Term, y: Term) -> Term:
    return f.select(f.signbit(y), -f.abs(x), f.abs(x))


@define_new("atan_unit", "atan of |x| <= tan(pi / 8): odd polynomial (Cephes atanf)")
def _atan_unit(x: Term) -> Term:
    z = x * x
    tail = f.fma(f.fma(f.fma(8.05374449538e-2, z, -1.38776856032e-1), z, 1.99777106478e-1), z, -3.33329491539e-1)
    return f.fma(tail * z, x, x)


@define_new("atan_positive", "atan of x >= 0: about 0, 1 or infinity, whichever is near")
def _atan_positive(x: Term) -> Term:
    middle = 0.7853981633974483 + f.atan_unit((x - 1.0) / (x + 1.0))
    high = 1.5707963267948966 - f.atan_unit(1.0 / f.max(x, 1.0))
    return f.select(f.gt(x, 2.414213562373095), high, f.select(f.gt(x, 0.4142135623730950), middle, f.atan_unit(x)))


@define_new("atan")
def _atan(x: Term) -> Term:
    return f.copysign(f.atan_positive(f.abs(x)), x)


@define_new("atan2", "The angle of (x, y), signs of zeros and pairs of infinities as in C.")
def _atan2(y: Term, x: Term) -> Term:
    a, b = f.abs(y), f.abs(x)
    ratio = f.select(f.eq(a, b), f.select(f.eq(a, 0.0), 0.0, 1.0), a / b)
    angle = f.atan_positive(ratio)
    return f.copysign(f.select(f.signbit(x), 3.141592653589793 - angle, angle), y) + f.select(f.ne(x, x), x, 0.0)


@define_new("asin")
def _asin(x: Term) -> Term:
    return f.atan2(x, f.sqrt((1.0 - x) * (1.0 + x)))


@define_new("acos")
def _acos(x: Term) -> Term:
    return f.atan2(f.sqrt((1.0 - x) * (1.0 + x)), x)


@define_new("asinh", "log(|x| + sqrt(x^2 + 1)) with the sign of x; log 2|x| where the square could overflow.")
def _asinh(x: Term) -> Term:
    a = f.abs(x)
    small = f.min(a, 1e9)
    square = small * small
    near = f.log1p(small + square / (1.0 + f.sqrt(square + 1.0)))
    return f.copysign(f.select(f.gt(a, 1e9), f.log(a) + 0.6931471805599453, near), x)


@define_new("acosh", "log(x + sqrt(x^2 - 1))")
def _acosh(x: Term) -> Term:
    t = x - 1.0
    small = f.min(t, 1e9)
    return f.select(f.gt(t, 1e9), f.log(x) + 0.6931471805599453, f.log1p(small + f.sqrt(small * (small + 2.0))))


@define_new("atanh")
def _atanh(x: Term) -> Term:
    return 0.5 * f.log1p(2.0 * x / (1.0 - x))


@define_new("hypot", "sqrt(x^2 + y^2) without overflow")
def _hypot(x: Term, y: Term) -> Term:
    high, low = f.max(f.abs(x), f.abs(y)), f.min(f.abs(x), f.abs(y))
    ratio = f.select(f.eq(high, low), f.select(f.eq(high, 0.0), 0.0, 1.0), low / high)
    return high * f.sqrt(f.fma(ratio, ratio, 1.0))


@define_new("trunc_div_int", "a / b towards zero, of integers")
def _trunc_div_int(a: Term, b: Term) -> Term:
    q = f.floordiv(a, b)
    return f.select(getattr(f, "and")(f.ne(q * b, a), f.lt(q, 0)), q + 1, q)


@define_new("fmod_int", "a - b trunc(a / b) of integers: the sign of a")
def _fmod_int(a: Term, b: Term) -> Term:
    return a - f.trunc_div_int(a, b) * b


@define_new("sign_int", "1, 0 or -1 of an integer")
def _sign_int(x: Term) -> Term:
    return f.select(f.gt(x, 0), 1, f.select(f.lt(x, 0), -1, 0))


# ---- rows ---------------------------------------------------------------------------------------------------------------------


for _fn in ("neg", "abs"):
    arithmetic(_fn, (f"{_fn}.default", "x"))
arithmetic("sign", ("sign.default", "x", "i - 4"), ("sgn.default", "x"), ints="sign_int")
for _fn in ("exp", "exp2", "expm1", "log1p", "sin", "cos", "erf", "tan", "sinh", "cosh", "atan"):
    unary(_fn)
for _fn, _sample in (("asin", "x * 0.3"), ("acos", "x * 0.3"), ("asinh", "x * 9"), ("acosh", "p + 1"), ("atanh", "x * 0.3")):
    unary(_fn, "", _sample)
for _fn in ("log", "log2", "log10", "sqrt", "rsqrt"):
    unary(_fn, "", "p")
for _fn in ("floor", "ceil", "trunc", "round"):
    arithmetic(_fn, (f"{_fn}.default", "x * 3", "h", "i"), ints="identity")
unary("frac", "", "x * 3", "h")
unary("rcp", "reciprocal")
arithmetic("square", ("square.default", "x"))
arithmetic("max", ("maximum.default", "x, y", "m, m2"), ("max.other", "x, n"), ("clamp_min.default", "x, 0.5"),
           ("clamp_min.Tensor", "x, y"))
arithmetic("min", ("minimum.default", "x, y", "m, m2"), ("min.other", "x, n"), ("clamp_max.default", "x, 0.5"),
           ("clamp_max.Tensor", "x, y"))
arithmetic("maxnum", ("fmax.default", "x, n"), ints="max")
arithmetic("minnum", ("fmin.default", "x, n"), ints="min")
arithmetic("copysign", ("copysign.Tensor", "x, y"), ("copysign.Scalar", "x, -0.0"))
arithmetic("atan2", ("atan2.default", "x, y"))
arithmetic("hypot", ("hypot.default", "x, y"))
registry.add("signbit.default", lambda b, out, x: b.map("signbit", promote(b, x, as_float(x.dtype)), dtype="bool"), "x", "x * 0")
arithmetic("mul", ("mul.Tensor", "x, y", "m, m2"), ("mul.Scalar", "x, 0.1"))
arithmetic("logaddexp", ("logaddexp.default", "x, y"))
registry.add("xlogy.Tensor", lambda b, out, x, y: _xlogy_op(b, out, x, y), "x, p")
arithmetic("lerp", ("lerp.Scalar", "x, y, 0.3"), ("lerp.Tensor", "x, y, p"))
for _fn in ("lt", "le", "gt", "ge", "eq", "ne"):
    comparison(_fn)


def scaled(target: str, plain_fn: str, scaled_fn: str, *samples: str, swap: bool = False) -> None:
    """a ± alpha·b, with the operands exchanged for rsub."""

    def build(b: Builder, out: Result, x: Any, y: Any, alpha: Any = 1) -> Value:
        left, right = (promote(b, v, out.dtype) for v in ((y, x) if swap else (x, y)))
        if alpha == 1:
            return b.map(plain_fn, left, right, dtype=out.dtype)
        return b.map(scaled_fn, left, right, lit(alpha, out.dtype), dtype=out.dtype)

    registry.add(target, build, *samples)


for _target in ("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar", "rsub.Tensor", "rsub.Scalar"):
    _kind = "add" if _target.startswith("add") else "sub"
    _second = "y" if _target.endswith("Tensor") else "0.1"
    _bools = ("m, m2", "m, m2, alpha=True") if _target == "add.Tensor" else ()
    scaled(_target, _kind, f"{_kind}_scaled", f"x, {_second}", f"x, {_second}, alpha=0.3", *_bools, swap=_target.startswith("rsub"))


def _div(b: Builder, out: Result, x: Any, y: Any, rounding_mode: str | None = None) -> Value:
    left, right = promote(b, x, out.dtype), promote(b, y, out.dtype)
    if rounding_mode is None:
        return b.map("div", left, right, dtype=out.dtype)
    if out.dtype in INTS and rounding_mode == "trunc":
        return b.map("trunc_div_int", left, right, dtype=out.dtype)
    return b.map("floordiv" if out.dtype in INTS else f"{rounding_mode}_div", left, right, dtype=out.dtype)


registry.add("div.Tensor", _div, "x, y", "x, 3.0", "i, d")
registry.add("div.Scalar", _div, "x, 3.0")
registry.add("div.Tensor_mode", _div, "x, y, rounding_mode='floor'", "x, y, rounding_mode='trunc'", "i, d, rounding_mode='floor'",
             "i - 4, d - 2 * (i % 2) * d, rounding_mode='trunc'")
registry.add("div.Scalar_mode", _div, "x, 0.75, rounding_mode='floor'")
registry.add("floor_divide.default", lambda b, out, x, y: _div(b, out, x, y, "floor"), "x, y", "i, d")
arithmetic("remainder", ("remainder.Tensor", "x, y"), ("remainder.Scalar", "x, 0.7"), ints="mod", exact=True)
arithmetic("fmod", ("fmod.Tensor", "x, y", "i - 4, d - 2 * (i % 2) * d"), ("fmod.Scalar", "x, 0.7"), ints="fmod_int", exact=True)
arithmetic("addcmul", ("addcmul.default", "x, y, p, value=0.5"))
arithmetic("addcdiv", ("addcdiv.default", "x, y, p, value=0.5"))


def _where(b: Builder, out: Result, mask: Value, x: Any, y: Any) -> Value:
    return b.map("select", b.cast(mask, "bool"), promote(b, x, out.dtype), promote(b, y, out.dtype), dtype=out.dtype)


registry.add("where.self", _where, "m, x, y", "m, x, i")
registry.add("where.ScalarOther", _where, "m, x, 0.1")
registry.add("where.ScalarSelf", _where, "m, float('-inf'), x")
registry.add("where.Scalar", _where, "m, 0.1, 2.0")
registry.add("masked_fill.Scalar", lambda b, out, x, mask, value: _where(b, out, mask, value, x), "x, m, float('-inf')")
registry.add("masked_fill.Tensor", lambda b, out, x, mask, value: _where(b, out, mask, value, x), "x, m, s")


def _clamp_op(b: Builder, out: Result, x: Value, low: Any = None, high: Any = None) -> Value:
    x, low, high = (v if v is None else promote(b, v, out.dtype) for v in (x, low, high))
    if low is not None and high is not None:
        return b.map("clamp", x, low, high, dtype=out.dtype)
    return b.map("max", x, low, dtype=out.dtype) if high is None else b.map("min", x, high, dtype=out.dtype)


registry.add("clamp.default", _clamp_op, "x, 0.1", "x, max=float('inf')", "x, -0.5, 0.5", "i, 1, 2")
registry.add("clamp.Tensor", _clamp_op, "x, y", "x, y, p", "x, max=y")


def _nan_to_num_op(b: Builder, out: Result, x: Value, nan: Any = None, high: Any = None, low: Any = None) -> Value:
    top = torch.finfo(TORCH_DTYPE[out.dtype]).max
    numbers = (0.0 if nan is None else nan, top if high is None else high, -top if low is None else low)
    return b.map("nan_to_num", x, *(Lit(float(v)) for v in numbers), dtype=out.dtype)


registry.add("nan_to_num.default", _nan_to_num_op, "n", "n, 1.0, 2.0, -2.0")


def _xlogy_op(b: Builder, out: Result, x: Value, y: Value) -> Value:
    """The logarithm is rounded on its own, as eager has it."""
    return b.map("xlogy", promote(b, x, out.dtype), b.map("log", promote(b, y, out.dtype), dtype=out.dtype), dtype=out.dtype)


def _power(b: Builder, out: Result, x: Any, y: Any) -> Value:
    """Exponents with a function of their own, else exp2 and log2. Eager rounds the exponent, and the square within a cube."""
    exact = {2: "square", 1: "identity", 0.5: "sqrt", -0.5: "rsqrt", -1: "rcp"}
    if isinstance(x, Value) and isinstance(y, (int, float)) and y == 3:
        return b.map("mul", b.map("square", promote(b, x, out.dtype), dtype=out.dtype), x, dtype=out.dtype)
    if isinstance(x, Value) and isinstance(y, (int, float)) and y in exact and (out.dtype in FLOATS or y in (1, 2)):
        return b.map(exact[y], promote(b, x, out.dtype), dtype=out.dtype)
    if out.dtype not in FLOATS:
        raise b.unsupported("an integer power", "convert to a float dtype first")
    if x == 2 and not isinstance(x, Value):
        return b.map("exp2", promote(b, y, out.dtype), dtype=out.dtype)
    return b.map("pow", promote(b, x, out.dtype, True), promote(b, y, out.dtype, True), dtype=out.dtype)


registry.add("pow.Tensor_Scalar", _power, "x, 2", "x, 3", "p, 0.5", "p, -0.5", "x, -1", "x, 4", "x, -3", "p, 1.7", "x, 0", "x, 1")
registry.add("pow.Tensor_Tensor", _power, "p, x", "x, i")
registry.add("pow.Scalar", _power, "2, x", "0.3, x")
for _fn, _fn_target in (("isnan", "n"), ("isinf", "n"), ("isposinf", "n"), ("isneginf", "n"), ("isfinite", "n")):
    registry.add(
        f"{_fn}.default", (lambda fn: lambda b, out, x: b.map(fn, promote(b, x, as_float(x.dtype)), dtype="bool"))(_fn), _fn_target
    )


def _logical(fn: str) -> Callable[..., Value]:
    return lambda b, out, *args: b.map(fn, *(b.cast(a, "bool") for a in args), dtype="bool")


registry.add("logical_and.default", _logical("and"), "m, m2", "x, i")
registry.add("logical_or.default", _logical("or"), "m, m2")
registry.add("logical_xor.default", _logical("ne"), "m, m2")
registry.add("logical_not.default", _logical("not"), "m", "i")


def bitwise(fn: str, boolean: str, *names: str) -> None:
    """Rows for & | ^: logical for bools."""

    def build(b: Builder, out: Result, x: Any, y: Any) -> Value:
        return b.map(boolean if out.dtype == "bool" else fn, promote(b, x, out.dtype), promote(b, y, out.dtype), dtype=out.dtype)

    for name in names:
        registry.add(f"{name}.Tensor", build, "i, j", "m, m2")
        registry.add(f"{name}.Scalar", build, "i, 3")


bitwise("bitand", "and", "bitwise_and", "__and__")
bitwise("bitor", "or", "bitwise_or", "__or__")
bitwise("bitxor", "ne", "bitwise_xor", "__xor__")


def _not(b: Builder, out: Result, x: Value) -> Value:
    return b.map("not", x, dtype="bool") if out.dtype == "bool" else b.map("bitxor", x, lit(-1, out.dtype), dtype=out.dtype)


registry.add("bitwise_not.default", _not, "m", "i")
for _fn, _names in (("shl", ("__lshift__", "bitwise_left_shift")), ("shr", ("__rshift__", "bitwise_right_shift"))):
    arithmetic(
        _fn,
        (f"{_names[0]}.Tensor", "i, j"),
        (f"{_names[0]}.Scalar", "i, 1"),
        (f"{_names[1]}.Tensor", "i, j"),
        (f"{_names[1]}.Tensor_Scalar", "i, 1"),
        (f"{_names[1]}.Scalar_Tensor", "5, d"),
    )
registry.alias(multiply="mul", subtract="sub", divide="div", negative="neg", absolute="abs", clip="clamp", greater="gt", less="lt")
registry.alias(greater_equal="ge", less_equal="le", not_equal="ne", fix="trunc", special_exp2="exp2", special_expm1="expm1")
registry.alias(special_log1p="log1p", special_erf="erf")
registry.add("true_divide.Tensor", _div, "x, y")
