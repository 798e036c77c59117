"""Indexing by tensors: gathers from a dim, and updates of a dim, by the values of an index.

`t[i]` counts negative values from the end, index_select and index_copy do not take them; both as eager has it. Several index
tensors that broadcast together become one index into the merged dims.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy

from ..ir.dtype import FLOATS
from ..ir.tensor import Expand, Map, Permute, Reshape
from .builder import Builder, Extent, Value, broadcast, plain
from .forward import same_dim
from .registry import Result, op

ACCUMULATE = "read, add and write back (t[i] = t[i] + v) if the indices are distinct; else let each row read what it is the sum of"


def merged(b: Builder, x: Value, indices: Sequence[Value | None]) -> tuple[Value, Sequence[int], int, Value]:
    """(x with the indexed dims first-to-last merged into one, the order that brought them together, that dim, the one index).

    Before: x[i, :, j]   After: the dims of i and j side by side as one dim, and i · size(j) + j.
    """
    dims = [d for d, i in enumerate(indices) if i is not None]
    adjacent = dims == list(range(dims[0], dims[-1] + 1))
    at = dims[0] if adjacent else 0
    rest = [d for d in range(x.rank) if d not in dims]
    order = rest[:at] + dims + rest[at:]
    flat = b.permute(x, order)
    sizes = [x.shape[d] for d in dims]
    shape = flat.shape[:at] + (plain(sympy.prod([sympy.sympify(n) for n in sizes])),) + flat.shape[at + len(dims) :]
    wrapped = [b.wrap(i, n) for i, n in zip((indices[d] for d in dims), sizes)]
    index = wrapped[0]
    for more, n in zip(wrapped[1:], sizes[1:]):
        index = b.map("add", b.map("mul", index, b.size(n), dtype="i64"), more, dtype="i64")
    return b.reshape(flat, shape), order, at, index


def _is_mask(index: Value | None) -> bool:
    return index is not None and index.dtype in ("bool", "u8")


def _indices(b: Builder, x: Value, indices: Sequence[Value | None]) -> list[Value | None]:
    if any(map(_is_mask, indices)):
        raise b.unsupported("an index that is a mask", "use torch.where, or an integer index: a mask's size depends on its values")
    return list(indices)


def _where(b: Builder, x: Value, indices: Sequence[Value | None], value: Value, accumulate: bool) -> Value | None:
    """x with one number (or, along the dims after the mask's, one row of them) where a mask says; None where a mask is not the only
    index, or the values that are put are as many as the mask has elements that hold."""
    at = next((d for d, i in enumerate(indices) if i is not None), 0)
    mask = indices[at] if indices else None
    if mask is None or not _is_mask(mask) or sum(i is not None for i in indices) > 1:
        return None
    behind = x.rank - at - mask.rank
    if any(n != 1 for n in value.shape[: max(value.rank - behind, 0)]) or at and value.rank > behind:
        return None
    value = b.cast(b.reshape(value, value.shape[max(value.rank - behind, 0) :]), x.dtype)
    new = b.map("add", x, value, dtype=x.dtype) if accumulate else value
    return b.update(x, b.map("select", b.reshape(b.cast(mask, "bool"), mask.shape + (1,) * behind), new, x, dtype=x.dtype))


@op(
    index__Tensor=(
        "x, [k]",
        "x, [None, k]",
        "x, [k[:, None], k[None]]",
        "x, [k, k]",
        "x[None], [None, k, k]",
        "x[..., None] * y[:, None], [k, None, k]",
        "x, [k - 3]",
        "x, [k.to(torch.int32)]",
    )
)
def _index(b: Builder, out: Result, x: Value, indices: list[Value | None]) -> Value:
    given = _indices(b, x, indices)
    if sum(i is not None for i in given) == 1:
        dim = next(d for d, i in enumerate(given) if i is not None)
        return b.gather(x, dim, b.wrap(given[dim], x.shape[dim]))
    flat, _, at, index = merged(b, x, given)
    return b.gather(flat, at, index)


@op(index_select=("x, 0, k", "x, 1, k", "x, 0, k.to(torch.int32)"))
def _index_select(b: Builder, out: Result, x: Value, dim: int, index: Value) -> Value:
    return b.gather(x, dim % x.rank, index if index.rank else b.unsqueeze(index, 0))


@op(embedding="x, k")
def _embedding(b: Builder, out: Result, weight: Value, index: Value, *_: Any) -> Value:
    return b.gather(weight, 0, index)


@op(take="x, k")
def _take(b: Builder, out: Result, x: Value, index: Value) -> Value:
    flat = b.reshape(x, (plain(sympy.prod([sympy.sympify(n) for n in x.shape])),))
    return b.gather(flat, 0, b.wrap(index, flat.shape[0]))


@op(
    index_put=(
        "x, [k], y",
        "x, [k], s",
        "x, [None, k], y[:, :3]",
        "x, [k, k], y[:, 0]",
        "x, [k - 3], y[0]",
        "h, [k], y.to(h.dtype)",
        "i.to(x.dtype), [torch.cat([k, k[:1] - 3])], j[0].to(x.dtype), True",
        "x, [None, k], y[:, :3], True",
        "x, [x > 0], s",
        "x, [x[:, 0] > 0], y[0]",
        "x, [x[:, 0] > 0], y[:1, :1], True",
        "x[None], [None, x > 0], s",
        "x, [None, x[0] > 0], s",
    ),
    _unsafe_index_put="x, [k], y",
)
def _index_put(b: Builder, out: Result, x: Value, indices: list[Value | None], value: Value, accumulate: bool) -> Value:
    masked = _where(b, x, indices, value, accumulate)
    if masked is not None:
        return masked
    given = _indices(b, x, indices)
    one = sum(i is not None for i in given) == 1
    if accumulate and not (one and max(i.rank for i in given if i is not None) == 1):
        raise b.unsupported("with accumulate=True", ACCUMULATE)
    if one:
        dim = next(d for d, i in enumerate(given) if i is not None)
        if accumulate:
            place = b.wrap(given[dim], x.shape[dim])
            values = b.expand(value, x.shape[:dim] + place.shape + x.shape[dim + 1 :])
            return added(b, x, dim, b.reshape(place, (1,) * dim + place.shape + (1,) * (x.rank - 1 - dim)), values)
        return b.update(x, value, dim, b.wrap(given[dim], x.shape[dim]))
    flat, order, at, index = merged(b, x, given)
    new = b.update(flat, value, at, index)
    back = [list(order).index(d) for d in range(x.rank)]
    return b.permute(b.reshape(new, tuple(x.shape[d] for d in order)), back)


def _long(b: Builder, index: Value) -> Value:
    """The index as a list, where eager mode takes int64 alone."""
    if index.dtype != "i64":
        raise b.unsupported(f"an index of type {index.dtype}, which eager mode does not take here", "index.long()")
    return index if index.rank else b.unsqueeze(index, 0)


@op(index_copy=("x, 0, k, y", "x, 1, k, y[:, :3]", "h, 0, k, y.to(h.dtype)"))
def _index_copy(b: Builder, out: Result, x: Value, dim: int, index: Value, value: Value) -> Value:
    return b.update(x, value, dim % x.rank, _long(b, index))


@op(index_fill__int_Scalar="x, 0, k, 2.0")
def _index_fill(b: Builder, out: Result, x: Value, dim: int, index: Value, value: float) -> Value:
    return b.update(x, b.fill(value, (1,) * x.rank, x.dtype), dim % x.rank, b.wrap(_long(b, index), x.shape[dim]))


@op(index_reduce=())
def _accumulate(b: Builder, out: Result, *_: Any) -> Value:
    raise b.unsupported("folds at indices that may repeat", ACCUMULATE)


MOST_ADDED = 1 << 12


def added(b: Builder, x: Value, dim: int, index: Value, values: Value, alpha: float = 1) -> Value:
    """x with values added where the index (of the values' rank; one element where it repeats) says, repeated indices included.

    Every element of x sums over the values that name it, so that both sizes along the dim must be constant.
    """
    n, m = x.shape[dim], values.shape[dim]
    if not isinstance(n, int) or not isinstance(m, int) or n * m > MOST_ADDED:
        raise b.unsupported(f"adds at indices that may repeat, {m} values to a dim of {n}", ACCUMULATE)
    place = b.reshape(b.iota(n), (n,) + (1,) * (x.rank - 1 - dim))
    mask = b.map("eq", b.unsqueeze(b.cast(index, "i64"), dim + 1), place, dtype="bool")
    wide = "f32" if x.dtype in FLOATS else x.dtype
    chosen = b.map("select", mask, b.unsqueeze(values, dim + 1), b.scalar(0, values.dtype), dtype=values.dtype)
    total = b.reduce("sum", [chosen], [dim], wide)
    if alpha != 1:
        total = b.map("mul", total, b.scalar(alpha, wide), dtype=wide)
    return b.map("add", x, total, dtype=x.dtype)


@op(index_add=("x, 1, torch.cat([k, k[:1]]), y", "x, 1, k, y[:, :3], alpha=0.5"))
def _index_add(b: Builder, out: Result, x: Value, dim: int, index: Value, values: Value, alpha: float) -> Value:
    dim %= x.rank
    return added(b, x, dim, b.reshape(index, (1,) * dim + values.shape[dim : dim + 1] + (1,) * (x.rank - 1 - dim)), values, alpha)


@op(scatter_add="x, 1, i % 4, y")
def _scatter_add(b: Builder, out: Result, x: Value, dim: int, index: Value, values: Value) -> Value:
    dim %= x.rank
    if any(index.shape[d] != x.shape[d] for d in range(x.rank) if d != dim):
        raise b.unsupported("an index shorter than the tensor", "slice the tensor first")
    for d in range(x.rank):
        values = b.slice(values, d, 0, index.shape[d])
    return added(b, x, dim, index, values)


# ---- one index per element ----------------------------------------------------------------------------------------------------


def _along(b: Builder, x: Value, dim: int, index: Value) -> tuple[Value, Value]:
    """(x with the dims up to `dim` merged in front, the index into them) for x[a, …, index[a, …], …] with dims before it shared.

    Only dims before `dim` may be longer than one: those after it would need an index of their own.
    """
    lead = x.shape[:dim]
    index = b.cast(index, "i64")
    shape = broadcast([index.shape[:dim] + (index.shape[dim],), lead + (1,)]) if dim else index.shape[:1]
    position = b.reshape(index, index.shape[: dim + 1])
    flat = plain(sympy.prod([sympy.sympify(n) for n in x.shape[: dim + 1]]))
    scale: Extent = x.shape[dim]
    for d in reversed(range(dim)):
        if lead[d] != 1:
            steps = b.reshape(b.iota(lead[d]), tuple(lead[d] if i == d else 1 for i in range(dim + 1)))
            position = b.map("add", position, b.map("mul", steps, b.scalar(scale, "i64"), dtype="i64"), dtype="i64")
        scale = plain(sympy.sympify(scale) * lead[d])
    return b.reshape(x, (flat,) + x.shape[dim + 1 :]), b.expand(position, shape)


@op(
    gather=(
        "x, 1, k[:, None]",
        "x, 1, torch.stack([k, k], 1)",
        "x[..., None], 1, k[:, None, None]",
        "x, 0, k[:1, None].expand(1, 4)",
        "x, 0, k[:, None]",
        "x[:, :, None].expand(3, 4, 2), 1, k[:, None, None].expand(3, 1, 2)",
        "x, 0, k[:, None].repeat(1, 4)",
        "x, 0, k[:, None].repeat(1, 2).int().long()",
        "x, 0, torch.stack([k, 2 - k, k, k], 1)",
        "x[..., None] * y[:, None], 1, torch.stack([k, 3 - k, k, k], 1)[:, None].expand(3, 2, 4)",
        "x, 1, torch.stack([k, 2 - k], 1)[:2]",
        "x[..., None] * y[:, None], 0, torch.stack([k, 2 - k, k, k], 1)[:1, :, None].expand(1, 4, 4)",
    ),
)
def _gather(b: Builder, out: Result, x: Value, dim: int, index: Value, *_: Any) -> Value:
    dim %= x.rank
    for d in range(x.rank):
        x = x if d == dim else b.slice(x, d, 0, index.shape[d])
    if not _repeats(b, index, range(dim + 1, x.rank)):
        each = _each(b, x, dim, index)
        return b.permute(b.gather(each.flat, 0, each.position), [each.result.index(d) for d in range(x.rank)])
    flat, position = _along(b, x, dim, _first(b, index, dim))
    return b.reshape(b.gather(flat, 0, position), out.shape)


@op(
    scatter__src=(
        "x, 1, k[:, None], y",
        "x, 1, torch.stack([k, k], 1), y",
        "x, 0, k[:, None].expand(3, 4), y",
        "x, 0, k[:, None].repeat(1, 4), y",
        "x, 0, torch.stack([k, 2 - k, k, k], 1), y",
        "x[..., None] * y[:, None], 0, torch.stack([k, 2 - k, k, k], 1)[..., None].expand(3, 4, 4), y[..., None].expand(3, 4, 4)",
    ),
    scatter__value=("x, 1, k[:, None], 2.0", "x, 0, torch.stack([k, 2 - k, k, k], 1), 2.0"),
)
def _scatter(b: Builder, out: Result, x: Value, dim: int, index: Value, value: Any) -> Value:
    dim %= x.rank
    if isinstance(value, Value):
        for d in range(x.rank):
            value = b.slice(value, d, 0, index.shape[d])
    if any(index.shape[d] != n for d, n in enumerate(x.shape) if d != dim):
        raise b.unsupported("an index shorter than the tensor", "slice the tensor first")
    if not _repeats(b, index, range(dim + 1, x.rank)):
        each = _each(b, x, dim, index)
        value = b.permute(value if isinstance(value, Value) else b.fill(value, (1,) * x.rank, x.dtype), each.result)
        new = b.reshape(b.update(each.flat, value, 0, each.position), tuple(x.shape[d] for d in each.order))
        return b.permute(new, [each.order.index(d) for d in range(x.rank)])
    flat, position = _along(b, x, dim, _first(b, index, dim))
    if isinstance(value, Value):
        value = b.reshape(value, position.shape + x.shape[dim + 1 :])
    else:
        value = b.fill(value, (1,) * (position.rank + x.rank - dim - 1), x.dtype)
    return b.reshape(b.update(flat, value, 0, position), x.shape)


@dataclass(frozen=True, slots=True)
class Each:
    """x[a, index[a, b, c], c, d], which counts along a and c: x with the dims that count and the indexed one as one in front, the
    index into that, the order of x's dims in it, and that of the result's dims in what is picked."""

    flat: Value
    position: Value
    order: list[int]
    result: list[int]


def _each(b: Builder, x: Value, dim: int, index: Value) -> Each:
    spread = [d for d in range(dim + 1, x.rank) if _same_along(b, index, d)]
    order = [*(d for d in range(x.rank) if d != dim and d not in spread), dim, *spread]
    counted = order[: x.rank - len(spread)]
    for d in spread:
        index = b.slice(index, d, 0, 1)
    index = b.reshape(index, tuple(index.shape[d] for d in sorted(counted)))
    position, scale = b.cast(index, "i64"), sympy.sympify(x.shape[dim])
    for d in reversed(counted[:-1]):
        if (n := x.shape[d]) != 1:
            steps = b.reshape(b.iota(n), (n,) + (1,) * (len(counted) - 1 - sorted(counted).index(d)))
            position = b.map("add", position, b.map("mul", steps, b.scalar(plain(scale), "i64"), dtype="i64"), dtype="i64")
        scale = scale * n
    flat = b.reshape(b.permute(x, order), (plain(scale), *(x.shape[d] for d in spread)))
    return Each(flat, position, order, sorted(counted) + spread)


def _repeats(b: Builder, index: Value, dims: Iterable[int]) -> bool:
    """Whether the index is the same all along these dims."""
    return all(_same_along(b, index, d) for d in dims)


def _same_along(b: Builder, x: Value, dim: int) -> bool:
    """Whether a dim only repeats one element: counted from the front, as are the dims of all that x is made of."""
    op = b.node(x).op
    if dim < 0 or x.shape[dim] == 1:
        return True
    if isinstance(op, Map):
        return all(_same_along(b, b.values[a], dim - x.rank + b.values[a].rank) for a in op.args if isinstance(a, str))
    if isinstance(op, Expand):
        return _same_along(b, b.values[op.arg], dim - x.rank + b.values[op.arg].rank)
    if isinstance(op, Permute):
        return _same_along(b, b.values[op.arg], op.order[dim])
    at = same_dim(b.values[op.arg].shape, x.shape, dim) if isinstance(op, Reshape) else None
    return at is not None and isinstance(op, Reshape) and _same_along(b, b.values[op.arg], at)


def _first(b: Builder, index: Value, dim: int) -> Value:
    """An index that repeats along the dims after `dim`, with one element along those."""
    for d in range(dim + 1, index.rank):
        index = b.slice(index, d, 0, 1)
    return index
