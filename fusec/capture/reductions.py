"""Reductions and normalisations: sums, means, norms, softmax, layer and RMS norm, as compositions of primitives.

Eager computes a composite of narrow floats in fp32 and rounds once at the end; so do these: every step but the last is fp32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import sympy

from ..ir.dtype import FLOATS, ends
from ..ir.scalar import Lit
from .builder import Builder, Extent, Value, dims_of, plain
from .registry import Result, alias, op

FLOAT_EPSILON = 1.1920928955078125e-07  # What rms_norm takes where it is given none, for narrow inputs as well.
Dims = int | Sequence[int] | None


def count(x: Value, dims: Sequence[int]) -> Extent:
    """How many elements a fold over `dims` takes."""
    return plain(sympy.prod([sympy.sympify(x.shape[d]) for d in dims]))


def divided(b: Builder, x: Value, n: Extent | float, dtype: str) -> Value:
    """x / n, by its size where that is known at the call only."""
    return b.map("div", x, b.scalar(n, "f32"), dtype=dtype)


@op(sum="x", sum__dim_IntList=("x, [1]", "x, [-1], True", "i, [0]", "m, [1]", "h, [1], dtype=torch.float32", "x, []"))
def _sum(b: Builder, out: Result, x: Value, *rest: Any) -> Value:
    dims, keep = (rest[0], rest[1]) if len(rest) == 3 else (None, False)
    kind = x if x.dtype in FLOATS and out.dtype in FLOATS else b.cast(x, out.dtype)
    return b.reduce("sum", [kind], dims_of(dims, x.rank), out.dtype, keep)


INTEGERS = "a product of integers"


@op(prod="x", prod__dim_int=("x, 1", "x, -1, True"))
def _prod(b: Builder, out: Result, x: Value, *rest: Any) -> Value:
    dims, keep = (rest[0], rest[1]) if len(rest) == 3 else (None, False)
    if out.dtype not in FLOATS:
        raise b.unsupported(INTEGERS, "multiply them one by one, or convert to float32 first")
    return b.reduce("prod", [x], dims_of(dims, x.rank), out.dtype, keep)


@op(mean="x", mean__dim=("x, [1]", "x, [-1], True", "h, [1], dtype=torch.float32", "x, None"))
def _mean(b: Builder, out: Result, x: Value, *rest: Any) -> Value:
    dims, keep = (rest[0], rest[1]) if len(rest) == 3 else (None, False)
    over = dims_of(dims, x.rank)
    return divided(b, b.reduce("sum", [x], over, "f32", keep), count(x, over), out.dtype)


@op(amax=("x, [1]", "x, [-1], True", "i, [1]", "n, [1]", "m, [1]"))
def _amax(b: Builder, out: Result, x: Value, dims: Dims, keep: bool) -> Value:
    return b.reduce("max", [x], dims_of(dims, x.rank), out.dtype, keep)


@op(amin=("x, [1]", "x, [-1], True", "m, [1]"))
def _amin(b: Builder, out: Result, x: Value, dims: Dims, keep: bool) -> Value:
    return b.reduce("min", [x], dims_of(dims, x.rank), out.dtype, keep)


@op(max="x")
def _max(b: Builder, out: Result, x: Value) -> Value:
    return b.reduce("max", [x], dims_of(None, x.rank), out.dtype)


@op(min="x")
def _min(b: Builder, out: Result, x: Value) -> Value:
    return b.reduce("min", [x], dims_of(None, x.rank), out.dtype)


@op(aminmax="x, dim=1; 0")
def _aminmax(b: Builder, out: Result, x: Value, dim: int | None, keep: bool) -> tuple[Value, Value]:
    dims = dims_of(dim, x.rank)
    return b.reduce("min", [x], dims, out.dtype, keep), b.reduce("max", [x], dims, out.dtype, keep)


# ---- positions of extremes ------------------------------------------------------------------------------------------------------


def static_extent(b: Builder, x: Value, dim: int, most: int | None = None) -> int:
    """The size of a dim, which must be constant (and at most `most`)."""
    n = x.shape[dim]
    if not isinstance(n, int) or most is not None and n > most:
        limit = "" if most is None else f"at most {most} elements, "
        raise b.unsupported(f"an order along a dim of {n}", f"{limit}of a size known at compile time")
    return n


def extreme(b: Builder, x: Value, dim: int, monoid: str, taken: Value | None = None) -> tuple[Value, Value]:
    """(extreme, its first position as i64) along a dim, both with the dim kept; NaN is the extreme. taken: elements left out."""
    n = static_extent(b, x, dim)
    real = x.dtype in FLOATS
    free = x
    if taken is not None:
        worst = ends(x.dtype)[0 if monoid == "max" else 1]
        free = b.map("select", taken, Lit(worst), x, dtype=x.dtype)
    top = b.reduce(monoid, [free], [dim], x.dtype, True)
    hit = b.map("eq", x, top, dtype="bool")
    if real:
        hit = b.map("or", hit, b.map("isnan", x, dtype="bool"), dtype="bool")
    if taken is not None:
        hit = b.map("and", hit, b.map("not", taken, dtype="bool"), dtype="bool")
    at = b.map("select", hit, b.cast(along(b, x, dim), "f32"), Lit(float(n)), dtype="f32")  # Exact: no dim has 2^24 elements.
    return top, b.cast(b.reduce("min", [at], [dim], "f32", True), "i64")


def along(b: Builder, x: Value, dim: int) -> Value:
    """0, 1, 2, … along a dim of x, unit dims elsewhere."""
    return b.reshape(b.iota(x.shape[dim]), tuple(n if d == dim else 1 for d, n in enumerate(x.shape)))


def _squeezed(b: Builder, x: Value, dim: int, keep: bool) -> Value:
    return x if keep else b.reshape(x, x.shape[:dim] + x.shape[dim + 1 :])


@op(max__dim=("x, 1; 0", "n, 1; 1"), min__dim=("x, -1, True; 0", "x, -1, True; 1"))
def _max_dim(b: Builder, out: Result, x: Value, dim: int, keep: bool) -> tuple[Value, ...]:
    if x.rank == 0:
        return x, b.fill(0, (), "i64")
    dim %= x.rank
    monoid = "min" if b.source.startswith("aten.min") else "max"
    if not isinstance(x.shape[dim], int):
        return b.reduce(monoid, [x], [dim], out.dtype, keep), b.fill(0, out.shape, "i64")
    top, at = extreme(b, x, dim, monoid)
    return _squeezed(b, top, dim, keep), _squeezed(b, at, dim, keep)


@op(argmax=("x, 1", "x, -1, True", "i, 1", "x"), argmin=("x, 1", "n, 1"))
def _argmax(b: Builder, out: Result, x: Value, dim: int | None, keep: bool) -> Value:
    if dim is None:
        x = b.reshape(x, (plain(sympy.prod([sympy.sympify(n) for n in x.shape])),))
    at = extreme(b, x, (dim or 0) % x.rank, "min" if b.source.startswith("aten.argmin") else "max")[1]
    return b.reshape(at, out.shape)


MOST_SORTED = 16


@op(topk=("x, 2; 0", "x, 2; 1", "x, 3, 0; 1", "x, 2, -1, False; 1"))
def _topk(b: Builder, out: Result, x: Value, k: int, dim: int, largest: bool, *_: Any) -> tuple[Value, Value]:
    """One after the other: the extreme of what is left."""
    dim %= x.rank
    if not isinstance(k, int) or k > MOST_SORTED:
        raise b.unsupported(f"the {k} largest", f"they are found one by one: at most {MOST_SORTED}")
    values, places, taken = [], [], None
    for _step in range(k):
        top, at = extreme(b, x, dim, "max" if largest else "min", taken)
        values.append(top)
        places.append(at)
        here = b.map("eq", along(b, x, dim), at, dtype="bool")
        taken = here if taken is None else b.map("or", taken, here, dtype="bool")
    return b.join(values, dim), b.join(places, dim)


@op(
    sort=("x; 0", "x, -1, True; 1"),
    sort__stable="x, stable=True; 1",
    argsort=("x", "x, 0, True"),
    argsort__stable="x, stable=True",
)
def _sort(b: Builder, out: Result, x: Value, *rest: Any) -> Any:
    dim, descending = (rest[1], rest[2]) if b.source.endswith(".stable") else (rest[0], rest[1])
    n = static_extent(b, x, dim % x.rank, MOST_SORTED)
    values, places = _topk(b, out, x, n, dim, descending)
    return places if b.source.startswith("aten.argsort") else (values, places)


@op(any="m", any__dim=("m, 1", "x, -1, True"), all="m", all__dim=("m, -1, True", "m, 0"))
def _any(b: Builder, out: Result, x: Value, *rest: Any) -> Value:
    dims, keep = rest if rest else (None, False)
    monoid = "any" if b.source.startswith("aten.any") else "all"
    return b.cast(b.reduce(monoid, [b.cast(x, "bool")], dims_of(dims, x.rank), "bool", keep), out.dtype)


# ---- moments ------------------------------------------------------------------------------------------------------------------


def moments(b: Builder, x: Value, dims: Sequence[int], correction: float, keep: bool) -> tuple[Value, Value]:
    """(mean with the dims kept, variance) in fp32: the mean first, then the mean square of the differences, as eager is exact."""
    n = count(x, dims)
    mean = divided(b, b.reduce("sum", [x], dims, "f32", True), n, "f32")
    square = b.map("square", b.map("sub", x, mean, dtype="f32"), dtype="f32")
    less = plain(sympy.sympify(n) - int(correction)) if float(correction).is_integer() else float(n) - correction
    return mean, divided(b, b.reduce("sum", [square], dims, "f32", keep), less, "f32")


@op(
    var="x",
    var__dim=("x, [1]", "x, [1], False", "x, [-1], True, True"),
    var__correction=("x, [1]", "x, [1], correction=0"),
    std="x",
    std__dim=("x, [1]", "x, [1], False"),
    std__correction="x, [1], correction=0",
)
def _var(b: Builder, out: Result, x: Value, *rest: Any) -> Value:
    if b.source.endswith(".correction"):
        dims, correction, keep = rest[0], 1 if rest[1] is None else rest[1], rest[2]
    elif b.source.endswith(".dim"):
        dims, correction, keep = rest[0], int(rest[1]), rest[2]
    else:
        dims, correction, keep = None, int(rest[0]), False
    _, var = moments(b, x, dims_of(dims, x.rank), correction, keep)
    return b.map("sqrt", var, dtype=out.dtype) if b.source.startswith("aten.std") else b.cast(var, out.dtype)


@op(
    var_mean="x; 0",
    var_mean__dim="x, [1]; 1",
    var_mean__correction="x, [1], correction=0, keepdim=True; 0",
    std_mean="x; 0",
    std_mean__dim="x, [1], True, True; 0",
    std_mean__correction="x, [1], correction=0; 1",
)
def _var_mean(b: Builder, out: Result, x: Value, *rest: Any) -> tuple[Value, Value]:
    if len(rest) == 1:
        rest = (None, int(rest[0]), False)
    over, correction, keep = dims_of(rest[0], x.rank), 1 if rest[1] is None else rest[1], rest[2]
    mean, var = moments(b, x, over, correction, keep)
    if not keep:
        mean = b.reshape(mean, tuple(n for i, n in enumerate(x.shape) if i not in over))
    spread = b.map("sqrt", var, dtype=out.dtype) if b.source.startswith("aten.std") else b.cast(var, out.dtype)
    return spread, b.cast(mean, out.dtype)


def _affine(b: Builder, x: Value, weight: Value | None, bias: Value | None, dtype: str) -> Value:
    """x·w + b in fp32, rounded once."""
    if weight is not None:
        x = b.map("mul", x, weight, dtype="f32" if bias is not None else dtype)
    return b.map("add", x, bias, dtype=dtype) if bias is not None else b.cast(x, dtype)


def _normalised(b: Builder, x: Value, mean: Value | None, square: Value, eps: float) -> Value:
    """(x − mean) / sqrt(square + eps)"""
    rstd = b.map("rsqrt", b.map("add", square, Lit(float(eps)), dtype="f32"), dtype="f32")
    return b.map("mul", x if mean is None else b.map("sub", x, mean, dtype="f32"), rstd, dtype="f32")


@op(layer_norm=("x, [4]", "x, [4], x[0], y[0], 1e-3", "x, [4], x[0]", "x, [3, 4], x, y"))
def _layer_norm(b: Builder, out: Result, x: Value, shape: list[int], weight: Any, bias: Any, eps: float, *_: Any) -> Value:
    mean, var = moments(b, x, range(x.rank - len(shape), x.rank), 0, True)
    return _affine(b, _normalised(b, x, mean, var, eps), weight, bias, out.dtype)


@op(rms_norm=("x, [4], None, 1e-5", "x, [4], y[0], 1e-5", "x, [4]"))
def _rms_norm(b: Builder, out: Result, x: Value, shape: list[int], weight: Any, eps: float | None) -> Value:
    dims = tuple(range(x.rank - len(shape), x.rank))
    square = b.map("square", x, dtype="f32")
    mean = divided(b, b.reduce("sum", [square], dims, "f32", True), count(x, dims), "f32")
    return _affine(b, _normalised(b, x, None, mean, FLOAT_EPSILON if eps is None else eps), weight, None, out.dtype)


@op(group_norm=("x, 2", "x, 2, p[0], y[0], 1e-3"))
def _group_norm(b: Builder, out: Result, x: Value, groups: int, weight: Any, bias: Any, eps: float, *_: Any) -> Value:
    channels = x.shape[1]
    assert isinstance(channels, int)
    parts = b.reshape(x, (x.shape[0], groups, channels // groups) + x.shape[2:])
    mean, var = moments(b, parts, range(2, parts.rank), 0, True)
    normal = b.reshape(_normalised(b, parts, mean, var, eps), x.shape)
    wide = [v if v is None else b.reshape(v, (channels,) + (1,) * (x.rank - 2)) for v in (weight, bias)]
    return _affine(b, normal, wide[0], wide[1], out.dtype)


# ---- norms of vectors ---------------------------------------------------------------------------------------------------------


def vector_norm(b: Builder, x: Value, order: float, dims: Sequence[int], keep: bool, dtype: str) -> Value:
    """The p-norm in fp32: p of 0 < p ≤ ∞."""
    if order == 2:
        return b.map("sqrt", b.reduce("sum", [b.map("square", x, dtype="f32")], dims, "f32", keep), dtype=dtype)
    size = b.map("abs", x, dtype=x.dtype)
    if order == 1:
        return b.reduce("sum", [size], dims, dtype, keep)
    if math.isinf(order):
        return b.reduce("max" if order > 0 else "min", [size], dims, dtype, keep)
    if order == 0:
        return b.reduce("sum", [b.cast(b.map("ne", x, Lit(0.0), dtype="bool"), "f32")], dims, dtype, keep)
    total = b.reduce("sum", [b.map("pow", size, Lit(float(order)), dtype="f32")], dims, "f32", keep)
    return b.map("pow", total, Lit(1.0 / order), dtype=dtype)


@op(linalg_vector_norm=("x, 2", "x, 2, [-1], True", "x, 1, [1]", "x, float('inf'), [1]", "x, 3, [1]"))
def _vector_norm(b: Builder, out: Result, x: Value, order: float, dims: Dims, keep: bool, dtype: Any) -> Value:
    return vector_norm(b, x, order, dims_of(dims, x.rank), keep, out.dtype)


@op(norm__ScalarOpt_dim="x, 2, [1]", norm__Scalar="x", norm__ScalarOpt_dim_dtype="h, 2, [1], dtype=torch.float32, keepdim=True")
def _norm(b: Builder, out: Result, x: Value, order: float | None = 2, dims: Dims = None, keep: bool = False, *_: Any) -> Value:
    return vector_norm(b, x, 2 if order is None else order, dims_of(dims, x.rank), keep, out.dtype)


@op(linalg_norm=("x, None, [-1]", "x[0], 2"))
def _linalg_norm(b: Builder, out: Result, x: Value, order: float | None, dims: Dims, keep: bool, *_: Any) -> Value:
    if order is not None and (x.rank if dims is None else len(dims_of(dims, x.rank))) > 1:
        raise b.unsupported("a matrix norm", "write it with sums, or use torch.linalg.vector_norm")
    return vector_norm(b, x, 2 if order is None else order, dims_of(dims, x.rank), keep, out.dtype)


@op(cosine_similarity="x, y, -1")
def _cosine_similarity(b: Builder, out: Result, x: Value, y: Value, dim: int, eps: float) -> Value:
    """Eager composes it of single ops: each is rounded."""
    rank = max(x.rank, y.rank)
    low = Lit(float(eps))
    units = []
    for v in (x, y):
        norm = vector_norm(b, v, 2, [dim % rank - rank + v.rank], True, out.dtype)
        units.append(b.map("div", v, b.map("max", norm, low, dtype=out.dtype), dtype=out.dtype))
    return b.reduce("sum", [b.map("mul", units[0], units[1], dtype=out.dtype)], [dim % rank], out.dtype)


# ---- exponentials -------------------------------------------------------------------------------------------------------------


@op(softmax__int=("x, -1", "x, 0", "h, -1, torch.float32", "s, 0"), special_softmax="x, -1")
def _softmax(b: Builder, out: Result, x: Value, dim: int, dtype: Any) -> Value:
    dims = dims_of(dim, x.rank)
    e = b.map("exp", b.map("sub", x, b.reduce("max", [x], dims, x.dtype, True), dtype="f32"), dtype="f32")
    return b.map("div", e, b.reduce("sum", [e], dims, "f32", True), dtype=out.dtype)


@op(log_softmax__int=("x, -1", "h, -1, torch.float32"), special_log_softmax="x, -1")
def _log_softmax(b: Builder, out: Result, x: Value, dim: int, dtype: Any) -> Value:
    dims = dims_of(dim, x.rank)
    low = b.map("sub", x, b.reduce("max", [x], dims, x.dtype, True), dtype="f32")
    total = b.map("log", b.reduce("sum", [b.map("exp", low, dtype="f32")], dims, "f32", True), dtype="f32")
    return b.map("sub", low, total, dtype=out.dtype)


@op(logsumexp=("x, [1]", "x, [-1], True", "x + float('-inf'), [1]", "h, [1]"))
def _logsumexp(b: Builder, out: Result, x: Value, dims: Dims, keep: bool) -> Value:
    """Each step is rounded to the result's type: eager composes it of ops."""
    over, x = dims_of(dims, x.rank), b.cast(x, out.dtype)
    top = b.reduce("max", [x], over, x.dtype, True)
    infinite = b.map("isinf", top, dtype="bool")
    shift = b.map("select", infinite, Lit(0.0), top, dtype=top.dtype)
    powers = b.map("exp", b.map("sub", x, shift, dtype=x.dtype), dtype=x.dtype)
    total = b.reduce("sum", [powers], over, x.dtype, keep)
    shift = shift if keep else b.reshape(shift, total.shape)
    return b.map("add", b.map("log", total, dtype=x.dtype), shift, dtype=out.dtype)


@op(cummax="x, 1; 0", cummin="x, 0; 0")
def _cummax(b: Builder, out: Result, x: Value, dim: int) -> tuple[Value | None, ...]:
    fn, dim, parts = ("max" if b.source.startswith("aten.cummax") else "min"), dim % x.rank, list[Value]()
    for i in range(static_extent(b, x, dim, 64)):
        part = b.slice(x, dim, i, 1)
        parts.append(b.map(fn, parts[-1], part, dtype=x.dtype) if parts else part)
    return b.join(parts, dim), None


UNROLLED, MOST_FOLDED = 64, 256
"""Elements of a running fold that are added one after the other, and that are at all: beyond, each result is a fold of its own."""


@op(cumsum=("x, 1", "x, 0", "i, 1", "torch.cat([x] * 20, 1), 1", "torch.cat([i] * 20, 1), 1"),
    cumprod=("x, 1", "torch.cat([x] * 20, 1), 1"))
def _cumsum(b: Builder, out: Result, x: Value, dim: int, dtype: Any) -> Value:
    dim %= x.rank
    n = x.shape[dim]
    if not isinstance(n, int) or n > MOST_FOLDED:
        raise b.unsupported(
            f"a running fold over a dim of {n}", f"at most {MOST_FOLDED} elements, of a size known at compile time: cut the dim, "
            "fold each part, and fold what the parts end with"
        )
    fn, wide = ("mul" if b.source.startswith("aten.cumprod") else "add"), "f32" if out.dtype in FLOATS else out.dtype
    x = x if x.dtype in FLOATS else b.cast(x, wide)
    if n > UNROLLED and fn == "mul" and out.dtype not in FLOATS:
        raise b.unsupported(INTEGERS, f"at most {UNROLLED} elements, or convert to float32 first")
    if n > UNROLLED:
        place = b.reshape(b.iota(n), (n, 1) + (1,) * (x.rank - dim - 1))
        mask = b.map("ge", place, b.reshape(b.iota(n), (1, n) + (1,) * (x.rank - dim - 1)), dtype="bool")
        until = b.map("select", mask, b.unsqueeze(b.cast(x, wide), dim), b.scalar(int(fn == "mul"), wide), dtype=wide)
        return b.cast(b.reduce("prod" if fn == "mul" else "sum", [until], [dim + 1], wide), out.dtype)
    total, parts = None, []
    for i in range(n):
        part = b.slice(x, dim, i, 1)
        total = b.cast(part, wide) if total is None else b.map(fn, total, part, dtype=wide)
        parts.append(b.cast(total, out.dtype))
    return b.join(parts, dim)


alias(special_logsumexp="logsumexp")
