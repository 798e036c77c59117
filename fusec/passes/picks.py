"""Elements of a computed value at places that an index names: a comparison of positions, and the one element where it holds.

A dim that the index only counts along (the rows of an index per row) is the reader's own dim. Along any other dim the element is
found among all, so that the dim must be of constant size; that of the rows never is.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Union

from ..ir.tensor import Gather, Iota, Reshape, Shape, TensorNode
from .atoms import Size as Extent
from .digits import Pieces, core, digits, pieces, refined
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


def reading(maker: Maker, stored: Shape, shown: Shape, dim: int | None, index: str | None, cut: Shape) -> Reading | None:
    """How shown[..., index, ...] (all of `shown` without an index) reads a value of shape `stored` that is viewed as `shown`.

    cut: a shape of the same elements whose dims are pieces as well. None where the sizes or the strides of the index do not nest.
    """
    common = pieces(stored, shown)
    if common is None:
        return None
    common = refined(common, cut)
    own = [i for i, d in enumerate(common.second) if d == dim]
    named = digits(maker, index, tuple(common.extents[i] for i in own)) if index is not None and own else []
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
    read = reading(maker, maker.shape(base), maker.shape(op.arg), op.dim, op.index, maker.shape(base))
    if read is None or op.where is not None:
        return None
    split = maker.reshape(base, read.pieces.extents)
    found = element(maker, node, split, dict(enumerate(read.at)), read.shape)
    return None if found is None else maker.reshape(maker.expand(found, read.shape), node.shape)
