"""Activations: one row each, and right here the scalar functions they need beyond those of ir/scalar.py.

To add one: define its scalar function if there is none, then a row. A narrow result is rounded once, from fp32.
"""

from __future__ import annotations

from typing import Any

from ..ir.scalar import Lit, Term, f
from . import registry
from .builder import Builder, Value, lit
from .promote import arithmetic, define_new, unary
from .registry import Result

# ---- scalar functions ---------------------------------------------------------------------------------------------------------


@define_new("log_sigmoid", "min(x, 0) - log(1 + exp(-|x|)): exp never overflows.")
def _log_sigmoid(x: Term) -> Term:
    return f.min(x, 0.0) - f.log1p(f.exp(-f.abs(x)))


@define_new("gelu", "x/2 (1 + erf(x / sqrt 2))")
def _gelu(x: Term) -> Term:
    return x * 0.5 * (1.0 + f.erf(x * 0.7071067811865476))


@define_new("gelu_tanh", "x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))")
def _gelu_tanh(x: Term) -> Term:
    return x * 0.5 * (1.0 + f.tanh(0.7978845608028654 * (x + 0.044715 * (x * x * x))))


@define_new("leaky_relu")
def _leaky_relu(x: Term, slope: Term) -> Term:
    return f.select(f.gt(x, 0.0), x, x * slope)


@define_new("elu", "x above 0, else alpha (exp(x) - 1)")
def _elu(x: Term, alpha: Term, scale: Term, input_scale: Term) -> Term:
    return f.select(f.gt(x, 0.0), x * scale, f.expm1(f.min(x, 0.0) * input_scale) * alpha * scale)


@define_new("mish", "x tanh(log(1 + exp x))")
def _mish(x: Term) -> Term:
    return x * f.tanh(f.softplus(x, 1.0, 20.0))


@define_new("hardsigmoid", "clamp(x + 3, 0, 6) / 6")
def _hardsigmoid(x: Term) -> Term:
    return f.min(f.max(x + 3.0, 0.0), 6.0) / 6.0


@define_new("hardswish", "x clamp(x + 3, 0, 6) / 6")
def _hardswish(x: Term) -> Term:
    return x * f.min(f.max(x + 3.0, 0.0), 6.0) / 6.0


# ---- rows ---------------------------------------------------------------------------------------------------------------------


for _fn in ("sigmoid", "tanh", "silu", "log_sigmoid", "mish", "hardswish", "hardsigmoid"):
    unary(_fn)
arithmetic("relu", ("relu.default", "x", "i - 2"))
arithmetic("leaky_relu", ("leaky_relu.default", "x, 0.1"))
arithmetic("elu", ("elu.default", "x, 1.5, 1.0, 0.7"))
arithmetic("clamp", ("hardtanh.default", "x, -0.5, 0.5"))


def _relu6(b: Builder, out: Result, x: Value) -> Value:
    return b.map("clamp", x, lit(0, out.dtype), lit(6, out.dtype), dtype=out.dtype)


registry.add("relu6.default", _relu6, "x * 9", "i * 4")


def _gelu_op(b: Builder, out: Result, x: Value, approximate: str = "none") -> Value:
    return b.map("gelu" if approximate == "none" else "gelu_tanh", x, dtype=out.dtype)


def _softplus_op(b: Builder, out: Result, x: Value, beta: Any = 1, threshold: Any = 20) -> Value:
    return b.map("softplus", x, Lit(float(beta)), Lit(float(threshold)), dtype=out.dtype)


registry.add("gelu.default", _gelu_op, "x", "x, approximate='tanh'")
registry.add("softplus.default", _softplus_op, "x", "x * 40", "x, 2.0, 3.0")


@define_new("glu", "a sigmoid(g)")
def _glu_scalar(a: Term, g: Term) -> Term:
    return a * f.sigmoid(g)


def _glu(b: Builder, out: Result, x: Value, dim: int) -> Value:
    half = out.shape[dim]
    assert isinstance(half, int)
    return b.map("glu", b.slice(x, dim, 0, half), b.slice(x, dim, half, half), dtype=out.dtype)


registry.add("glu.default", _glu, "x")


def _celu(b: Builder, out: Result, x: Value, alpha: Any = 1.0) -> Value:
    return b.map("elu", x, Lit(float(alpha)), Lit(1.0), Lit(1.0 / alpha), dtype=out.dtype)


def _selu(b: Builder, out: Result, x: Value) -> Value:
    return b.map("elu", x, Lit(1.6732632423543772), Lit(1.0507009873554805), Lit(1.0), dtype=out.dtype)


def _threshold(b: Builder, out: Result, x: Value, limit: Any, value: Any) -> Value:
    above = b.map("gt", x, lit(limit, out.dtype), dtype="bool")
    return b.map("select", above, x, lit(value, out.dtype), dtype=out.dtype)


registry.add("celu.default", _celu, "x", "x, 0.7")
registry.add("selu.default", _selu, "x")
registry.add("threshold.default", _threshold, "x, 0.5, -2.0")
registry.alias(special_expit="sigmoid")
