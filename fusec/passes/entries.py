"""Which index values are entries of a table by rows: live rows have distinct slots (C10), so entries of two rows never meet.

The same law as of the grid (choose_grid), on the tensor graph, before dims have names.
"""
from __future__ import annotations

from dataclasses import dataclass

from ..ir.tensor import Gather, Input, Reshape, Shape, Slice
from .atoms import Size as Extent
from .digits import core
from .make_nodes import Maker
from .picks import Named, counted, reading


@dataclass(frozen=True, slots=True)
class Entry:
    """table: what the entries are of, the same for whatever columns. row: the dim of the value that runs along the rows."""

    table: str
    row: int


def entry(maker: Maker, value: str, extent: Extent) -> Entry | None:
    """What an index into a dim of `extent` is an entry of, row by row; None where it is of no table, or of rows of it that are not
    the reader's."""
    found = core(maker, value, extent)
    own = _entry(maker, found.value, extent)
    if own is None:
        return None
    long = [d for d, n in enumerate(maker.shape(found.value)) if n != 1]
    return Entry(own.table, found.dims[long.index(own.row)]) if own.row in long else None


def _entry(maker: Maker, name: str, extent: Extent) -> Entry | None:
    """The same of a value that stands behind no casts and repeats."""
    node = maker.table[name]
    op = node.op
    if isinstance(op, Input):
        rows = [d for d, n in enumerate(node.shape) if str(n) == maker.graph.rows]
        return Entry(op.tensor, rows[0]) if len(rows) == 1 else None
    if isinstance(op, Slice):
        below = entry(maker, op.arg, extent)
        return below if below is not None and below.row != op.dim else None
    return _picked(maker, op, node.shape, extent) if isinstance(op, Gather) else None


def _picked(maker: Maker, op: Gather, shape: Shape, extent: Extent) -> Entry | None:
    """An entry at a column that an index names (table.gather(1, position)), or in the line that is the row's own slot."""
    view = maker.table[op.arg].op
    base = view.arg if isinstance(view, Reshape) else op.arg
    sizes = maker.shape(base)
    read = reading(maker, sizes, maker.shape(op.arg), op.dim, op.index, sizes)
    if read is None or read.pieces.extents != tuple(n for n in sizes if n != 1):
        return None
    at = dict(zip(read.pieces.first, read.at))
    rows = entry(maker, base, extent)
    if rows is not None:
        where = at.get(rows.row)
        place = counted(maker, where, sizes[rows.row]) if isinstance(where, Named) else where
        return None if place is None else _at(rows.table, place, read.shape, shape)
    below, line = maker.table[base].op, at.get(0)
    slots = entry(maker, line.value, sizes[0]) if isinstance(below, Input) and isinstance(line, Named) else None
    if slots is None or not isinstance(below, Input) or not isinstance(line, Named):
        return None
    return _at(f"{below.tensor} by {slots.table}", line.dims[slots.row], read.shape, shape)


def _at(table: str, place: int, read: Shape, shape: Shape) -> Entry | None:
    """The entry of a value of that shape, whose row is the dim at `place` of the same shape in pieces."""
    pieces, dims = ([d for d, n in enumerate(s) if n != 1] for s in (read, shape))
    same = [read[d] for d in pieces] == [shape[d] for d in dims]
    return Entry(table, dims[pieces.index(place)]) if same and place in pieces else None
