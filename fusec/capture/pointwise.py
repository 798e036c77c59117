"""Pointwise ops: one row each, and right here the scalar functions that the rows need beyond those of ir/scalar.py.

To add one: `@define` its scalar function if there is none, then a row. Operands are promoted as eager does it; the result is
computed in fp32 and rounded once to the dtype eager gives.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from ..ir.dtype import FLOATS, INTS
from ..ir.reference import SHORT_DTYPE, TORCH_DTYPE
from ..ir.scalar import COMPOSITES, PRIMITIVES, Lit, Term, define, f
from . import registry
from .builder import Builder, Value, lit
from .registry import Result

# ---- scalar functions -------------------------------------------------------------------------------------------------------------


def _define(name: str, doc: str = "") -> Callable[[Callable[..., Term]], object]:
    """`define`, unless ir/scalar.py has the function already."""
    return (lambda build: None) if name in COMPOSITES or name in PRIMITIVES else define(name, doc)


@_define("log_sigmoid", "min(x, 0) - log(1 + exp(-|x|)): exp never overflows.")
def _log_sigmoid(x: Term) -> Term:
    return f.min(x, 0.0) - f.log1p(f.exp(-f.abs(x)))


@_define("gelu", "x/2 (1 + erf(x / sqrt 2))")
def _gelu(x: Term) -> Term:
    return x * 0.5 * (1.0 + f.erf(x * 0.7071067811865476))


@_define("gelu_tanh", "x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))")
def _gelu_tanh(x: Term) -> Term:
    return x * 0.5 * (1.0 + f.tanh(0.7978845608028654 * (x + 0.044715 * (x * x * x))))


@_define("add_scaled", "a + alpha b")
def _add_scaled(a: Term, b: Term, alpha: Term) -> Term:
    return a + b * alpha


@_define("sub_scaled", "a - alpha b")
def _sub_scaled(a: Term, b: Term, alpha: Term) -> Term:
    return a - b * alpha


@_define("addcmul", "a + value x y")
def _addcmul(a: Term, x: Term, y: Term, value: Term) -> Term:
    return a + x * y * value


@_define("addcdiv", "a + value x / y")
def _addcdiv(a: Term, x: Term, y: Term, value: Term) -> Term:
    return a + value * (x / y)


@_define("lerp", "a + w (b - a), from b where w is 1/2 or more: exact at both ends.")
def _lerp(a: Term, b: Term, w: Term) -> Term:
    return f.select(f.lt(f.abs(w), 0.5), a + w * (b - a), b - (b - a) * (1.0 - w))


@_define("clamp", "min(max(x, low), high); NaN stays.")
def _clamp(x: Term, low: Term, high: Term) -> Term:
    return f.min(f.max(x, low), high)


@_define("leaky_relu")
def _leaky_relu(x: Term, slope: Term) -> Term:
    return f.select(f.gt(x, 0.0), x, x * slope)


@_define("elu", "x above 0, else alpha (exp(x) - 1)")
def _elu(x: Term, alpha: Term, scale: Term, input_scale: Term) -> Term:
    return f.select(f.gt(x, 0.0), x * scale, f.expm1(f.min(x, 0.0) * input_scale) * alpha * scale)


@_define("mish", "x tanh(log(1 + exp x))")
def _mish(x: Term) -> Term:
    return x * f.tanh(f.softplus(x, 1.0, 20.0))


@_define("hardsigmoid", "clamp(x + 3, 0, 6) / 6")
def _hardsigmoid(x: Term) -> Term:
    return f.min(f.max(x + 3.0, 0.0), 6.0) / 6.0


@_define("hardswish", "x clamp(x + 3, 0, 6) / 6")
def _hardswish(x: Term) -> Term:
    return x * f.min(f.max(x + 3.0, 0.0), 6.0) / 6.0


@_define("ceil")
def _ceil(x: Term) -> Term:
    return -f.floor(-x)


@_define("trunc")
def _trunc(x: Term) -> Term:
    return f.select(f.lt(x, 0.0), -f.floor(-x), f.floor(x))


@_define("round", "To the nearest integer, halves to the even one; every step is exact.")
def _round(x: Term) -> Term:
    low = f.floor(x)
    rest = x - low
    even = f.eq(low * 0.5, f.floor(low * 0.5))
    return f.select(f.lt(rest, 0.5), low, f.select(f.gt(rest, 0.5), low + 1.0, f.select(even, low, low + 1.0)))


@_define("frac")
def _frac(x: Term) -> Term:
    return x - f.trunc(x)


@_define("floor_div", "floor(a / b) of floats")
def _floor_div(a: Term, b: Term) -> Term:
    return f.floor(a / b)


@_define("trunc_div", "a / b towards zero, of floats")
def _trunc_div(a: Term, b: Term) -> Term:
    return f.trunc(a / b)


@_define("remainder", "a - b floor(a / b) of floats: the sign of b")
def _remainder(a: Term, b: Term) -> Term:
    return a - b * f.floor(a / b)


@_define("fmod", "a - b trunc(a / b) of floats: the sign of a")
def _fmod(a: Term, b: Term) -> Term:
    return a - b * f.trunc(a / b)


@_define("isnan")
def _isnan(x: Term) -> Term:
    return f.ne(x, x)


@_define("isinf")
def _isinf(x: Term) -> Term:
    return f.eq(f.abs(x), float("inf"))


@_define("isfinite")
def _isfinite(x: Term) -> Term:
    return f.lt(f.abs(x), float("inf"))


@_define("cube")
def _cube(x: Term) -> Term:
    return x * x * x


@_define("pow", "x^y by exp2 and log2; an integer y gives a negative x its sign, another one NaN.")
def _pow(x: Term, y: Term) -> Term:
    size = f.exp2(y * f.log2(f.abs(x)))
    odd = f.ne(f.floor(y * 0.5), y * 0.5)
    signed = f.select(f.eq(f.floor(y), y), f.select(odd, -size, size), float("nan"))
    return f.select(f.eq(y, 0.0), 1.0, f.select(f.eq(x, 1.0), 1.0, f.select(f.lt(x, 0.0), signed, size)))


@_define("log10")
def _log10(x: Term) -> Term:
    return f.log2(x) * 0.30102999566398120


@_define("tan")
def _tan(x: Term) -> Term:
    return f.sin(x) / f.cos(x)


@_define("sinh")
def _sinh(x: Term) -> Term:
    return 0.5 * (f.expm1(x) - f.expm1(-x))


@_define("cosh")
def _cosh(x: Term) -> Term:
    return 0.5 * (f.exp(x) + f.exp(-x))


@_define("nan_to_num")
def _nan_to_num(x: Term, nan: Term, high: Term, low: Term) -> Term:
    return f.select(f.ne(x, x), nan, f.select(f.eq(x, float("inf")), high, f.select(f.eq(x, float("-inf")), low, x)))


@_define("minnum", "The smaller one; a NaN loses.")
def _minnum(a: Term, b: Term) -> Term:
    return -f.maxnum(-a, -b)


@_define("logaddexp", "log(exp(a) + exp(b)); equal infinities give themselves.")
def _logaddexp(a: Term, b: Term) -> Term:
    return f.select(f.eq(a, b), a + 0.6931471805599453, f.max(a, b) + f.log1p(f.exp(-f.abs(a - b))))


@_define("xlogy", "x log(y), 0 where x is 0")
def _xlogy(x: Term, y: Term) -> Term:
    return f.select(f.ne(y, y), y, f.select(f.eq(x, 0.0), 0.0, x * f.log(y)))


# ---- promotion --------------------------------------------------------------------------------------------------------------------


def common_dtype(args: Sequence[Any]) -> str:
    """The dtype in which eager computes a binary op: 0-dim tensors and Python numbers count less, as in torch.result_type."""
    found: Any = None
    probes = []
    for a in args:
        if isinstance(a, Value):
            probes.append(torch.empty((1,) * a.rank, dtype=TORCH_DTYPE[a.dtype], device="meta"))
        elif a is not None:
            probes.append(1 if isinstance(a, sympy.Expr) and a.is_integer else 1.0 if isinstance(a, sympy.Expr) else a)
    found = probes[0]
    if len(probes) == 1:
        return SHORT_DTYPE[found.dtype]
    tensors = [p for p in probes if isinstance(p, torch.Tensor)]
    numbers = [p for p in probes if not isinstance(p, torch.Tensor)]
    total = tensors[0]
    for other in tensors[1:]:
        shape = (1,) * max(total.dim(), other.dim())
        total = torch.empty(shape, dtype=torch.result_type(total, other), device="meta")
    dtypes = [torch.result_type(total, n) for n in numbers] or [total.dtype]
    best = dtypes[0]
    for d in dtypes[1:]:
        best = torch.promote_types(best, d)
    return SHORT_DTYPE[best]


def promote(b: Builder, x: Any, common: str, exact: bool = False) -> Any:
    """An operand as a computation in `common` sees it. exact: constants are rounded to `common` first (comparisons do that)."""
    if isinstance(x, sympy.Expr) and not x.is_number:
        return b.scalar(x, common)
    if not isinstance(x, Value):
        number = float(x) if isinstance(x, sympy.Expr) and common in FLOATS else x
        if common in FLOATS and exact:
            number = torch.tensor(float(number), dtype=torch.float64).to(TORCH_DTYPE[common]).double().item()
        return lit(number, common)
    widened = x.dtype in FLOATS and (common == "f32" or x.dtype == common)
    return x if widened else b.cast(x, common)


def _float(dtype: str) -> str:
    return dtype if dtype in FLOATS else "f32"


# ---- rows -------------------------------------------------------------------------------------------------------------------------


def unary(fn: str, target: str = "", *samples: str, default: str = "x") -> None:
    """A row for a float function of one tensor."""
    def build(b: Builder, out: Result, x: Value) -> Value:
        return b.map(fn, promote(b, x, _float(out.dtype)), dtype=out.dtype)
    registry.add(f"{target or fn}.default", build, *(samples or (default,)))


def arithmetic(fn: str, *rows: tuple[str, str], ints: str | None = "") -> None:
    """Rows for a function of tensors and numbers, computed in the dtype of the result; `ints`: the function for integers."""
    def build(b: Builder, out: Result, *args: Any) -> Value:
        name = fn if out.dtype in FLOATS or ints == "" else ints
        if name is None:
            raise b.unsupported(f"is not supported for {out.dtype}", "convert to a float dtype first")
        return b.map(name, *(promote(b, a, out.dtype) for a in args), dtype=out.dtype)
    for target, sample in rows:
        registry.add(target, build, sample)


def comparison(fn: str) -> None:
    """x < y in the operands' common dtype."""
    def build(b: Builder, out: Result, x: Any, y: Any) -> Value:
        common = common_dtype([x, y])
        left, right = promote(b, x, common, True), promote(b, y, common, True)
        if common == "bool":
            left, right = (b.cast(v, "i32") if isinstance(v, Value) else Lit(int(v.value)) for v in (left, right))
        return b.map(fn, left, right, dtype="bool")
    registry.add(f"{fn}.Tensor", build, "x, y", "i, j", "x, x", "x, i", "m, m2")
    registry.add(f"{fn}.Scalar", build, "x, 0.5", "i, 1", "x, 0.3")


for _fn in ("neg", "abs"):
    arithmetic(_fn, (f"{_fn}.default", "x"))
arithmetic("sign", ("sign.default", "x"), ("sgn.default", "x"), ints=None)
for _fn in ("exp", "exp2", "expm1", "log1p", "sin", "cos", "tanh", "sigmoid", "silu", "log_sigmoid", "erf", "mish", "hardswish",
            "hardsigmoid", "tan", "sinh", "cosh", "relu"):
    unary(_fn)
for _fn in ("log", "log2", "log10", "sqrt", "rsqrt"):
    unary(_fn, "", "p")
for _fn in ("floor", "ceil", "trunc", "round", "frac"):
    unary(_fn, "", "x * 3", "h")
unary("rcp", "reciprocal")
arithmetic("square", ("square.default", "x"))
arithmetic("relu", ("relu_.default", "x"))
arithmetic("max", ("maximum.default", "x, y"), ("max.other", "x, n"), ("clamp_min.default", "x, 0.5"), ("clamp_min.Tensor", "x, y"))
arithmetic("min", ("minimum.default", "x, y"), ("min.other", "x, n"), ("clamp_max.default", "x, 0.5"), ("clamp_max.Tensor", "x, y"))
arithmetic("maxnum", ("fmax.default", "x, n"), ints="max")
arithmetic("minnum", ("fmin.default", "x, n"), ints="min")
arithmetic("mul", ("mul.Tensor", "x, y"), ("mul.Scalar", "x, 0.1"), ("multiply.Tensor", "x, y"))
arithmetic("logaddexp", ("logaddexp.default", "x, y"))
arithmetic("xlogy", ("xlogy.Tensor", "x, p"))
arithmetic("lerp", ("lerp.Scalar", "x, y, 0.3"), ("lerp.Tensor", "x, y, p"))
arithmetic("leaky_relu", ("leaky_relu.default", "x, 0.1"))
arithmetic("elu", ("elu.default", "x, 1.5, 1.0, 0.7"))
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


for _target in ("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar", "rsub.Tensor", "rsub.Scalar", "subtract.Tensor"):
    _kind = "add" if _target.startswith("add") else "sub"
    _second = "y" if _target.endswith("Tensor") else "0.1"
    scaled(_target, _kind, f"{_kind}_scaled", f"x, {_second}", f"x, {_second}, alpha=0.3", swap=_target.startswith("rsub"))


def _div(b: Builder, out: Result, x: Any, y: Any, rounding_mode: str | None = None) -> Value:
    left, right = promote(b, x, out.dtype), promote(b, y, out.dtype)
    if rounding_mode is None:
        return b.map("div", left, right, dtype=out.dtype)
    if out.dtype in INTS and rounding_mode == "trunc":
        raise b.unsupported("division towards zero of integers", "use rounding_mode='floor'")
    return b.map("floordiv" if out.dtype in INTS else f"{rounding_mode}_div", left, right, dtype=out.dtype)


registry.add("div.Tensor", _div, "x, y", "x, 3.0", "i, k")
registry.add("div.Scalar", _div, "x, 3.0")
registry.add("true_divide.Tensor", _div, "x, y")
registry.add("div.Tensor_mode", _div, "x, y, rounding_mode='floor'", "x, y, rounding_mode='trunc'", "i, k, rounding_mode='floor'")
registry.add("div.Scalar_mode", _div, "x, 0.7, rounding_mode='floor'")
registry.add("floor_divide.default", lambda b, out, x, y: _div(b, out, x, y, "floor"), "x, y", "i, k")
arithmetic("remainder", ("remainder.Tensor", "x, y"), ("remainder.Scalar", "x, 0.7"), ints="mod")
arithmetic("fmod", ("fmod.Tensor", "x, y"), ("fmod.Scalar", "x, 0.7"), ints=None)
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
registry.add("clip.default", _clamp_op, "x, -0.5, 0.5")
registry.add("hardtanh.default", _clamp_op, "x, -0.5, 0.5")
registry.add("relu6.default", lambda b, out, x: _clamp_op(b, out, x, 0.0, 6.0), "x * 9")


def _gelu_op(b: Builder, out: Result, x: Value, approximate: str = "none") -> Value:
    return b.map("gelu" if approximate == "none" else "gelu_tanh", x, dtype=out.dtype)


def _softplus_op(b: Builder, out: Result, x: Value, beta: Any = 1, threshold: Any = 20) -> Value:
    return b.map("softplus", x, Lit(float(beta)), Lit(float(threshold)), dtype=out.dtype)


def _nan_to_num_op(b: Builder, out: Result, x: Value, nan: Any = None, high: Any = None, low: Any = None) -> Value:
    top = torch.finfo(TORCH_DTYPE[out.dtype]).max
    numbers = (0.0 if nan is None else nan, top if high is None else high, -top if low is None else low)
    return b.map("nan_to_num", x, *(Lit(float(v)) for v in numbers), dtype=out.dtype)


registry.add("gelu.default", _gelu_op, "x", "x, approximate='tanh'")
registry.add("softplus.default", _softplus_op, "x", "x * 40", "x, 2.0, 3.0")
registry.add("nan_to_num.default", _nan_to_num_op, "n", "n, 1.0, 2.0, -2.0")
registry.add("glu.default", lambda b, out, x, dim=-1: _glu(b, out, x, dim), "x")


def _glu(b: Builder, out: Result, x: Value, dim: int) -> Value:
    half = out.shape[dim]
    assert isinstance(half, int)
    return b.map("glu", b.slice(x, dim, 0, half), b.slice(x, dim, half, half), dtype=out.dtype)


@_define("glu", "a sigmoid(g)")
def _glu_scalar(a: Term, g: Term) -> Term:
    return a * f.sigmoid(g)


def _power(b: Builder, out: Result, x: Any, y: Any) -> Value:
    exact = {2: "square", 3: "cube", 1: "identity", 0.5: "sqrt", -0.5: "rsqrt", -1: "rcp"}
    if isinstance(x, Value) and isinstance(y, (int, float)) and y in exact and (out.dtype in FLOATS or y in (1, 2, 3)):
        return b.map(exact[y], promote(b, x, out.dtype), dtype=out.dtype)
    if out.dtype not in FLOATS:
        raise b.unsupported("an integer power", "convert to a float dtype first")
    if x == 2 and not isinstance(x, Value):
        return b.map("exp2", promote(b, y, out.dtype), dtype=out.dtype)
    return b.map("pow", promote(b, x, out.dtype), promote(b, y, out.dtype), dtype=out.dtype)


registry.add("pow.Tensor_Scalar", _power, "x, 2", "x, 3", "p, 0.5", "p, -0.5", "x, -1", "x, 4", "x, -3", "p, 1.7", "x, 0", "x, 1")
registry.add("pow.Tensor_Tensor", _power, "p, x", "x, i")
registry.add("pow.Scalar", _power, "2, x", "0.3, x")
for _fn, _fn_target in (("isnan", "n"), ("isinf", "n"), ("isfinite", "n")):
    registry.add(f"{_fn}.default", (lambda fn: lambda b, out, x: b.map(fn, promote(b, x, _float(x.dtype)), dtype="bool"))(_fn), _fn_target)


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
    return b.map("not", x, dtype="bool") if out.dtype == "bool" else b.map("bitxor", x, Lit(-1), dtype=out.dtype)


registry.add("bitwise_not.default", _not, "m", "i")
for _fn, _names in (("shl", ("__lshift__", "bitwise_left_shift")), ("shr", ("__rshift__", "bitwise_right_shift"))):
    arithmetic(_fn, (f"{_names[0]}.Tensor", "i, j"), (f"{_names[0]}.Scalar", "i, 1"), (f"{_names[1]}.Tensor", "i, j"),
               (f"{_names[1]}.Tensor_Scalar", "i, 1"))
