"""Rows that take no part: reads and writes of a pool's rows under a predicate, as functions that run in eager mode too.

Where the predicate is false nothing of the pool is read or written, whatever the index holds there. While a step is captured both
are functional ops of the registry, and the write is a copy into the pool.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError
from .builder import Builder, Value
from .registry import Result, op
from .trace import capturing

INDICES = (torch.int32, torch.int64)

_LIBRARY = torch.library.Library("fusec", "DEF")
_LIBRARY.define("load_rows(Tensor pool, Tensor index, Tensor? where) -> Tensor")
_LIBRARY.define("store_rows(Tensor pool, Tensor index, Tensor value, Tensor? where) -> Tensor")
_LIBRARY.define("store_rows_(Tensor(a!) pool, Tensor index, Tensor value, Tensor? where) -> ()")


def load_rows(pool: Tensor, index: Tensor, where: Tensor | None = None) -> Tensor:
    """The rows of a pool that an index names; zeros for a row whose predicate is false.

    pool [slots, …], index (int32 or int64, any shape), where bool, broadcast to the index's shape; None: all take part.
    -> index.shape + pool.shape[1:], of the pool's dtype. A row without its predicate is exactly +0 and reads nothing of the pool:
    its index may be −1 or anything else. The indices of the others lie in 0 … slots − 1.

    Raises ArgumentError for an index or a predicate of another dtype or shape.
    """
    _check(pool, index, where)
    return torch.ops.fusec.load_rows(pool, index, where)  # type: ignore[no-any-return]


def store_rows_(pool: Tensor, index: Tensor, value: Tensor, where: Tensor | None = None) -> Tensor:
    """pool[index] = value in place, except for rows whose predicate is false: they write nothing. Returns the pool.

    Shapes as in `load_rows`; the value broadcasts to index.shape + pool.shape[1:] and is rounded to the pool's dtype. Two rows that
    take part must not name one slot. In eager mode on a GPU this waits for the device (the number of live rows is a size there);
    compiled it does not.
    """
    _check(pool, index, where)
    if not torch.compiler.is_dynamo_compiling() and capturing():
        return pool.copy_(torch.ops.fusec.store_rows(pool, index, value, where))
    torch.ops.fusec.store_rows_(pool, index, value, where)
    return pool


def _check(pool: Tensor, index: Tensor, where: Tensor | None) -> None:
    if index.dtype not in INDICES:
        raise ArgumentError(f"index: expected int32 or int64, found {str(index.dtype).removeprefix('torch.')}", hint="index.long()")
    if pool.dim() == 0:
        raise ArgumentError("pool: expected [slots, …], found a tensor without dims")
    if where is not None and where.dtype != torch.bool:
        raise ArgumentError(f"where: expected bool, found {str(where.dtype).removeprefix('torch.')}",
                            hint="a comparison gives bools: where=index >= 0")
    if where is not None and not _broadcasts(where.shape, index.shape):
        raise ArgumentError(f"where: expected the shape of the index, {list(index.shape)}, found {list(where.shape)}")


def _broadcasts(shape: Any, target: Any) -> bool:
    return len(shape) <= len(target) and all(n == 1 or n == m for n, m in zip(reversed(shape), reversed(target)))


# ---- in eager mode --------------------------------------------------------------------------------------------------------------


def _bits(t: Tensor) -> Tensor:
    """One-byte floats as bytes: torch moves them, but indexes few of them."""
    return t.view(torch.uint8) if t.dtype.itemsize == 1 else t


def _load(pool: Tensor, index: Tensor, where: Tensor | None) -> Tensor:
    flat = index.reshape(-1)
    if where is None:
        rows = _bits(pool).index_select(0, flat)
    elif pool.shape[0] == 0:
        rows = _bits(pool).new_zeros((flat.shape[0], *pool.shape[1:]))
    else:  # Without a wait for the device: row 0 is read in the place of what is not there, and thrown away.
        live = where.expand(index.shape).reshape(-1)
        rows = _bits(pool).index_select(0, torch.where(live, flat, 0))
        rows.masked_fill_(~live.view(-1, *[1] * (pool.dim() - 1)), 0)
    return rows.view(pool.dtype).view(index.shape + pool.shape[1:])


def _store_in_place(pool: Tensor, index: Tensor, value: Tensor, where: Tensor | None) -> None:
    flat = index.reshape(-1)
    part = value.to(pool.dtype).expand(index.shape + pool.shape[1:]).reshape(flat.shape + pool.shape[1:])
    if where is not None:
        live = where.expand(index.shape).reshape(-1).nonzero().reshape(-1)
        flat, part = flat.index_select(0, live), _bits(part).index_select(0, live)
    _bits(pool).index_copy_(0, flat.long(), _bits(part))


def _store(pool: Tensor, index: Tensor, value: Tensor, where: Tensor | None) -> Tensor:
    new = pool.clone()
    _store_in_place(new, index, value, where)
    return new


_LIBRARY.impl("load_rows", _load, "CompositeExplicitAutograd")
_LIBRARY.impl("store_rows", _store, "CompositeExplicitAutograd")
_LIBRARY.impl("store_rows_", _store_in_place, "CompositeExplicitAutograd")


@torch.library.register_fake("fusec::load_rows", lib=_LIBRARY)
def _load_fake(pool: Tensor, index: Tensor, where: Tensor | None) -> Tensor:
    return pool.new_empty((*index.shape, *pool.shape[1:]))


@torch.library.register_fake("fusec::store_rows", lib=_LIBRARY)
def _store_fake(pool: Tensor, index: Tensor, value: Tensor, where: Tensor | None) -> Tensor:
    torch.broadcast_to(value, (*index.shape, *pool.shape[1:]))  # For its error.
    return torch.empty_like(pool)


@torch.library.register_fake("fusec::store_rows_", lib=_LIBRARY)
def _store_in_place_fake(pool: Tensor, index: Tensor, value: Tensor, where: Tensor | None) -> None:
    torch.broadcast_to(value, (*index.shape, *pool.shape[1:]))


# ---- as rows of the registry ----------------------------------------------------------------------------------------------------


def _mask(b: Builder, index: Value, where: Value | None) -> Value | None:
    return None if where is None else b.expand(where, index.shape)


@op(space="fusec", load_rows=("x, k, None", "x, k - 1, k > 0", "x, k[:, None], k[:1] > 0", "h, k - 1, k > 0"))
def _load_rows(b: Builder, out: Result, pool: Value, index: Value, where: Value | None) -> Value:
    return b.gather(pool, 0, index, _mask(b, index, where))


@op(space="fusec", store_rows=("x, k, y, None", "x, k - 1, y, k > 0", "x, k - 1, y[0], k > 0", "h, k - 1, y, k > 0"))
def _store_rows(b: Builder, out: Result, pool: Value, index: Value, value: Value, where: Value | None) -> Value:
    return b.update(pool, value, 0, index, _mask(b, index, where))
