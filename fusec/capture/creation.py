"""Tensors made from nothing: constants, ranges, masks of positions."""

from __future__ import annotations

from typing import Any

from ..ir.dtype import FLOATS
from ..ir.scalar import Lit
from .builder import Builder, Value
from .registry import Result, op


@op(zeros="[3, 4]", new_zeros="x, [2, 3]", zeros_like="x", zero="x")
def _zeros(b: Builder, out: Result, *_: Any) -> Value:
    return b.fill(0, out.shape, out.dtype)


@op(empty__memory_format=(), new_empty=(), empty_like=(), empty_strided=(), new_empty_strided=())
def _empty(b: Builder, out: Result, *_: Any) -> Value:
    """What is not written before it is read is undefined in eager; here it is zero."""
    return b.fill(0, out.shape, out.dtype)


@op(ones="[3, 4]", new_ones="x, [2, 3]", ones_like="x")
def _ones(b: Builder, out: Result, *_: Any) -> Value:
    return b.fill(1, out.shape, out.dtype)


def _constant(b: Builder, out: Result, value: Any) -> Value:
    number = b.scalar(value, out.dtype)
    return b.fill(number.value, out.shape, out.dtype) if isinstance(number, Lit) else b.expand(b.cast(number, out.dtype), out.shape)


@op(full=("[3, 4], 2.5", "[3], 7", "[2], True", "[2], float('-inf')"))
def _full(b: Builder, out: Result, shape: Any, value: Any, *_: Any) -> Value:
    return _constant(b, out, value)


@op(full_like="x, 2.5", new_full="x, [2, 3], 1.5")
def _full_like(b: Builder, out: Result, x: Value, *rest: Any) -> Value:
    return _constant(b, out, rest[0] if b.source.startswith("aten.full_like") else rest[1])


@op(scalar_tensor=("2.5", "3"))
def _scalar_tensor(b: Builder, out: Result, value: Any, *_: Any) -> Value:
    return _constant(b, out, value)


@op(fill__Scalar=("x, 2.5", "h, 0.1"), fill__Tensor="x, s")
def _fill(b: Builder, out: Result, x: Value, value: Any) -> Value:
    return b.update(x, b.expand(b.cast(value, x.dtype), x.shape) if isinstance(value, Value) else _constant(b, out, value))


@op(arange="5", arange__start="2, 7", arange__start_step=("1, 9, 3", "0.5, 3.0, 0.5"))
def _arange(b: Builder, out: Result, *args: Any) -> Value:
    start, step = (
        (0, 1) if b.source == "aten.arange.default" else (args[0], 1) if b.source == "aten.arange.start" else (args[0], args[2])
    )
    kind = "f32" if out.dtype in FLOATS else "i64"
    steps = b.cast(b.iota(out.shape[0]), kind)
    if step != 1:
        steps = b.map("mul", steps, b.scalar(step, kind), dtype=kind)
    if start != 0:
        steps = b.map("add", steps, b.scalar(start, kind), dtype=kind)
    return b.cast(steps, out.dtype)


@op(linspace="0.0, 1.0, 5")
def _linspace(b: Builder, out: Result, start: float, end: float, steps: int, *_: Any) -> Value:
    width = (end - start) / max(steps - 1, 1)
    positions = b.map("mul", b.cast(b.iota(steps), "f32"), Lit(float(width)), dtype="f32")
    return b.map("add", positions, Lit(float(start)), dtype=out.dtype)


def _positions(b: Builder, x: Value) -> tuple[Value, Value]:
    return b.unsqueeze(b.iota(x.shape[-2]), 1), b.iota(x.shape[-1])


@op(tril=("x", "x, 1"), triu=("x", "x, -1"))
def _tril(b: Builder, out: Result, x: Value, diagonal: int) -> Value:
    row, column = _positions(b, x)
    limit = b.map("add", row, Lit(diagonal), dtype="i64") if diagonal else row
    keep = b.map("le" if b.source.startswith("aten.tril") else "ge", column, limit, dtype="bool")
    return b.map("select", keep, x, b.scalar(0, out.dtype), dtype=out.dtype)


@op(eye="3", eye__m="3, 4")
def _eye(b: Builder, out: Result, *_: Any) -> Value:
    rows, columns = b.unsqueeze(b.iota(out.shape[0]), 1), b.iota(out.shape[1])
    return b.cast(b.map("eq", rows, columns, dtype="bool"), out.dtype)


@op(one_hot="k, 9")
def _one_hot(b: Builder, out: Result, x: Value, classes: int) -> Value:
    return b.cast(b.map("eq", b.unsqueeze(b.cast(x, "i64"), x.rank), b.iota(out.shape[-1]), dtype="bool"), out.dtype)
