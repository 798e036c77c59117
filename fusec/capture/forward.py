"""Updates and what is read after them: a read through the index that was just written is the written value, and a view of an
updated tensor is an update of a view.

Rows that share a slot are the caller's error, so what was stored under an index is what is read under it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ir.tensor import Iota, Join, Permute, Reshape, Slice, Update
from .builder import Builder, Extent, Shape, Value


def stored(b: Builder, x: Value, dim: int, index: Value, where: Value | None = None) -> Value | None:
    """x[..., index, ...] along a dim out of what was stored there; None where nothing was, or through another index or predicate.

    Before: gather(slice(update(t, v, i)), i)   After: slice(v)
    """
    op = b.node(x).op
    if not b.forwards:
        return None
    if isinstance(op, Update):
        same = op.index == index.name and op.dim == dim and op.where in (None, where.name if where is not None else None)
        return b.values[op.value] if same else None
    if isinstance(op, Slice) and op.dim != dim:
        below = stored(b, b.values[op.arg], dim, index, where)
        return None if below is None else b.slice(below, _moved(op.dim, dim, index), op.start, x.shape[op.dim], op.step)
    if isinstance(op, Permute):
        below = stored(b, b.values[op.arg], op.order[dim], index, where)
        return None if below is None else b.permute(below, _order(op.order, dim, index))
    if isinstance(op, Reshape):
        at = same_dim(b.values[op.arg].shape, x.shape, dim)
        below = None if at is None else stored(b, b.values[op.arg], at, index, where)
        return None if below is None else b.reshape(below, x.shape[:dim] + index.shape + x.shape[dim + 1 :])
    if isinstance(op, Join) and op.dim != dim:
        parts = [b.values[p] for p in op.parts]
        found = [stored(b, p, dim, index, where) for p in parts]
        if any(f is not None for f in found):
            picked = [b.gather(p, dim, index, where) if f is None else f for p, f in zip(parts, found)]
            return b.join(picked, _moved(op.dim, dim, index))
    return None


def _moved(other: int, dim: int, index: Value) -> int:
    """Where another dim stands once `dim` is replaced by the dims of the index."""
    return other if other < dim else other + index.rank - 1


def _order(order: Sequence[int], dim: int, index: Value) -> list[int]:
    """The permutation of a gathered value that follows the permutation of what it was gathered from."""
    source, out = order[dim], []
    for i, d in enumerate(order):
        out += range(source, source + index.rank) if i == dim else [_moved(d, source, index)]
    return out


# ---- views of what was updated -------------------------------------------------------------------------------------------------


def updated(b: Builder, x: Value) -> tuple[Value, Value, int, Value, Value | None] | None:
    """(target, value, dim, index, where) where x is an update of a dim through an index."""
    op = b.node(x).op
    if not b.forwards or not isinstance(op, Update) or op.index is None:
        return None
    return b.values[op.target], b.values[op.value], op.dim, b.values[op.index], None if op.where is None else b.values[op.where]


def sliced(b: Builder, x: Value, dim: int, start: int, length: Extent, step: int) -> Value | None:
    """slice(update(t, v, i)) -> update(slice(t), slice(v), i), along another dim than the updated one; v where the first elements
    were written and are read; else None."""
    parts = updated(b, x)
    if parts is None:
        return None
    target, value, at, index, where = parts
    if at == dim:
        same = isinstance(b.node(index).op, Iota) and (start, step, where) == (0, 1, None) and index.shape == (length,)
        return value if same else None
    new = b.slice(value, _moved(dim, at, index), start, length, step)
    return b.update(b.slice(target, dim, start, length, step), new, at, index, where)


def permuted(b: Builder, x: Value, order: Sequence[int]) -> Value | None:
    """permute(update(t, v, i)) -> update(permute(t), permute(v), i)"""
    parts = updated(b, x)
    if parts is None:
        return None
    target, value, dim, index, where = parts
    at = list(order).index(dim)
    return b.update(b.permute(target, order), b.permute(value, _order(order, at, index)), at, index, where)


def reshaped(b: Builder, x: Value, shape: Shape) -> Value | None:
    """reshape(update(t, v, i)) -> update(reshape(t), reshape(v), i), where the updated dim stays a dim; else None."""
    parts = updated(b, x)
    at = None if parts is None else next((d for d in range(len(shape)) if same_dim(x.shape, shape, d) == parts[2]), None)
    if parts is None or at is None:
        return None
    target, value, _, index, where = parts
    return b.update(b.reshape(target, shape), b.reshape(value, shape[:at] + index.shape + shape[at + 1 :]), at, index, where)


def joined(b: Builder, parts: Sequence[Value], dim: int) -> Value | None:
    """join(update(t, v, i), update(u, w, i)) -> update(join(t, u), join(v, w), i), all along another dim; else None."""
    found = [updated(b, p) for p in parts]
    if any(f is None or f[2:] != found[0][2:] or f[2] == dim for f in found):
        return None
    _, _, at, index, where = found[0]
    values = b.join([f[1] for f in found], _moved(dim, at, index))
    return b.update(b.join([f[0] for f in found], dim), values, at, index, where)


def same_dim(before: Shape, after: Shape, dim: int) -> int | None:
    """The dim of `before` that a dim of its reshape is, None where it was merged or cut; unit dims do not count."""
    if after[dim] == 1:
        return None
    lead = [n for n in after[:dim] if n != 1]
    seen: list[object] = []
    for at, n in enumerate(before):
        if n != 1:
            if seen == lead and n == after[dim]:
                return at
            seen.append(n)
    return None
