"""Elements of a computed value at places that an index names: a comparison of positions, and the one element where it holds.

A dim that the index only counts along (the rows of an index per row) is the reader's own dim. Along any other dim the element is
found among all, so that the dim must be of constant size; that of the rows never is.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Union

from ..ir.scalar import Lit
from ..ir.tensor import Gather, Iota, Reshape, Shape, TensorNode
from .atoms import Size as Extent
from .digits import Pieces, core, digits, divided, pieces, refined
from .make_nodes import Maker

MOST_COMPARED = 1 << 14
"""How many positions may be compared per row and column, to pick from a computed value."""


@dataclass(frozen=True, slots=True)
class Named:
    """A coordinate that an integer value names; `dims`: the dims of the result that the value's dims are."""

    value: str
    dims: tuple[int, ...]


Coordinate = Union[int, Named]
"""Along one piece of a value: a dim of the result, or what a value names."""


@dataclass(slots=True)
class Reading:
    """A read over the dims of a result: per piece of what is read its coordinate. shape: the result's, in pieces."""

    pieces: Pieces
    shape: Shape
    at: list[Coordinate] = field(default_factory=list)


def reading(maker: Maker, stored: Shape, shown: Shape, dim: int | None, index: str | None, cut: Shape, divide: bool = False
            ) -> Reading | None:
    """How shown[..., index, ...] (all of `shown` without an index) reads a value of shape `stored` that is viewed as `shown`.

    cut: a shape of the same elements whose dims are pieces as well. divide: whether digits are computed where the strides of the
    index do not give them. None where the sizes, or else the strides of the index, do not nest.
    """
    common = pieces(stored, shown)
    if common is None:
        return None
    common = refined(common, cut)
    own = [i for i, d in enumerate(common.second) if d == dim]
    extents = tuple(common.extents[i] for i in own)
    named = digits(maker, index, extents) if index is not None and own else []
    if named is None and divide and index is not None and all(isinstance(n, int) for n in extents):
        named = divided(maker, maker.table[index], index, extents)
    if named is None:
        return None
    at: list[Coordinate] = [0] * len(common.extents)
    shape: list[Extent] = []
    for d in range(len(shown)):
        if d == dim and index is not None:
            place = range(len(shape), len(shape) + len(maker.shape(index)))
            shape += maker.shape(index)
            for i, value in zip(own, named, strict=True):
                lead = len(place) - len(maker.shape(value))
                at[i] = Named(value, tuple(place)[lead:])
            continue
        for i in (i for i, e in enumerate(common.second) if e == d):
            at[i] = len(shape)
            shape.append(common.extents[i])
    return Reading(common, tuple(shape), at)


def counted(maker: Maker, at: Named, extent: object) -> int | None:
    """The dim of the result that a named coordinate counts along from 0 to `extent`; None for any other."""
    found = core(maker, at.value)
    if isinstance(maker.table[found.value].op, Iota) and maker.shape(found.value) == (extent,):
        return at.dims[found.dims[0]]
    return None


def element(maker: Maker, like: TensorNode, value: str, at: Mapping[int, Coordinate], shape: Shape) -> str | None:
    """The value, whose dim d is read at at[d], over the dims of a result of the given shape (unit dims where it has none).

    None where a dim of a size known at the call only would have to be searched, or too large a one.
    """
    rank, taken = len(shape), set[int]()
    places: list[int] = []
    searched: list[tuple[int, Coordinate]] = []
    for d, extent in enumerate(maker.shape(value)):
        where = at[d]
        own = counted(maker, where, extent) if isinstance(where, Named) else where
        if own is not None and own not in taken:
            taken.add(own)
            places.append(own)
        else:
            places.append(rank + len(searched))
            searched.append((d, where))
    sizes = [maker.shape(value)[d] for d, _ in searched]
    if any(not isinstance(n, int) for n in sizes):
        return None
    total = rank + len(searched)
    wide = maker.placed(value, places, total)
    if not searched:
        return wide
    mask: str | None = None
    for k, (_, where) in enumerate(searched):
        position, other = maker.along(like, sizes[k], rank + k, total), positions(maker, like, where, shape, total)
        test = maker.map(like, "eq", (position, other), "bool")
        mask = test if mask is None else maker.map(like, "and", (mask, test), "bool")
    assert mask is not None
    if compared(maker.shape(mask)) > MOST_COMPARED:
        return None
    return maker.only(like, mask, wide, tuple(range(rank, total)))


def positions(maker: Maker, like: TensorNode, at: Coordinate, shape: Shape, rank: int) -> str:
    """A coordinate as an integer value of that rank whose first dims are those of the result."""
    return maker.placed(at.value, at.dims, rank) if isinstance(at, Named) else maker.along(like, shape[at], at, rank)


def compared(shape: Shape) -> int:
    """Positions that are compared, dims known at the call only not counted."""
    total = 1
    for n in shape:
        total *= n if isinstance(n, int) else 1
    return total


def picked(maker: Maker, node: TensorNode, op: Gather) -> str | None:
    """What an index picks from a computed value, as a value of the node's shape; None where that takes other rows' elements."""
    view = maker.table[op.arg].op
    base = view.arg if isinstance(view, Reshape) else op.arg
    read = reading(maker, maker.shape(base), maker.shape(op.arg), op.dim, op.index, maker.shape(base), divide=True)
    if read is None or op.where is not None:
        return None
    split = maker.reshape(base, read.pieces.extents)
    found = element(maker, node, split, dict(enumerate(read.at)), read.shape)
    return None if found is None else maker.reshape(maker.expand(found, read.shape), node.shape)


# ---- picks from what was picked ------------------------------------------------------------------------------------------------


def composed(maker: Maker, node: TensorNode, op: Gather) -> str | None:
    """A pick along the rows that another index picked, as one pick from the tensor itself; None where it is no such pick.

    x[i][r, c, j[r]] with r the reader's own row   ->   x[i[r], c, j[r]]
    """
    view = maker.table[op.arg].op
    inner = maker.table[view.arg if isinstance(view, Reshape) else op.arg]
    first = inner.op
    if not isinstance(first, Gather) or first.where is not None or op.where is not None:
        return None
    read = reading(maker, inner.shape, maker.shape(op.arg), op.dim, op.index, inner.shape)
    rows = range(first.dim, first.dim + len(maker.shape(first.index)))
    if read is None or not any(d in rows and isinstance(a, Named) for d, a in zip(read.pieces.first, read.at)):
        return None
    at: dict[int, Coordinate] = {}
    for d, extent, where in zip(read.pieces.first, read.pieces.extents, read.at):
        own = counted(maker, where, extent) if isinstance(where, Named) else where
        if d in at or own is None and d in rows or maker.shape(inner.name)[d] != extent:
            return None
        at[d] = where if own is None else own
    places = [at.get(d) for d in rows]
    if any(not isinstance(p, int) for p in places):
        return None
    index = Named(first.index, tuple(p for p in places if isinstance(p, int)))
    others = [at.get(d, 0) for d in range(len(inner.shape)) if d not in rows]
    found = _one_pick(maker, node, first.arg, [*others[: first.dim], index, *others[first.dim :]], read.shape)
    return None if found is None else maker.reshape(found, node.shape)


def _one_pick(maker: Maker, like: TensorNode, source: str, at: list[Coordinate], shape: Shape) -> str | None:
    """source[at[0], at[1], …] over the dims of a result: the dims from the first named to the last are picked from as one."""
    named = [d for d, a in enumerate(at) if isinstance(a, Named)]
    low, high = named[0], named[-1] + 1
    sizes = maker.shape(source)
    if any(not isinstance(n, int) for n in sizes[low + 1 : high]):
        return None
    total, stride = "", 1
    for d in reversed(range(low, high)):
        if sizes[d] != 1:
            term = positions(maker, like, at[d], shape, len(shape))
            term = term if stride == 1 else maker.map(like, "mul", (term, Lit(stride)), "i64")
            total = term if not total else maker.map(like, "add", (total, term), "i64")
        stride *= int(str(sizes[d])) if d > low else 1
    taken = [d for d, n in enumerate(maker.shape(total)) if n != 1]
    flat = maker.reshape(source, sizes[:low] + (_product(sizes[low:high]),) + sizes[high:])
    picked_ = maker.gather(like, flat, low, maker.reshape(total, tuple(maker.shape(total)[d] for d in taken)))
    outer = [(d, a) for d, a in enumerate(at) if not low <= d < high and sizes[d] != 1]
    before, after = ([a for d, a in outer if d < low], [a for d, a in outer if d >= high])
    dims = [a for a in [*before, *taken, *after] if isinstance(a, int)]
    if len(set(dims)) < len(dims):
        return None
    squeezed = maker.reshape(picked_, tuple(n for n in maker.shape(picked_) if n != 1))
    return maker.expand(maker.placed(squeezed, dims, len(shape)), shape)


def _product(sizes: Shape) -> Extent:
    total: Extent = 1
    for n in sizes:
        total = n if total == 1 else total * n
    return total
