"""A row's bits are the same alone, among any mates and at any position (C12): told by running parts of a batch."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ..errors import Loc
from ..ir.graph import Graph
from .cases import rows_at, taken
from .compare import Subject, exactly
from .facts import facts, row_dim_of, rows_in
from .masks import UNTOUCHED, touched
from .report import Compared, Report
from .storage import clone

Run = Callable[[dict[str, Tensor]], dict[str, Tensor]]


def compare_mates(name: str, graph: Graph, run: Run, tensors: Mapping[str, Tensor], level: str) -> Report:
    """Rows of a batch alone, in reverse and in part, bit for bit against the same rows in the whole; `run` as in method.py."""
    known = facts(graph)
    rows = known.count(tensors)
    whole = _after(run, tensors)
    batches = [[i] for i in sorted({0, rows // 2, rows - 1})] + [list(range(rows))[::-1]]
    if rows > 3:
        batches.append([rows - 1, 1, 2])
    if known.offsets:
        batches = [b for b in batches if b == list(range(b[0], b[-1] + 1))]
    compared: list[Compared] = []
    for batch in batches:
        part = rows_at(known, tensors, batch)
        mine = _after(run, part)
        where = f"rows {batch} of {rows}" if len(batch) > 1 else f"row {batch[0]} of {rows} alone"
        owned = touched(graph, clone(part)).masks
        for tensor in owned:
            compared.append(_same(graph, tensor, mine, whole, owned[tensor] != UNTOUCHED, batch, where))
    return Report(name, level, tuple(compared), (), "batch mates")


def _after(run: Run, tensors: Mapping[str, Any]) -> dict[str, Tensor]:
    mine = clone({n: t for n, t in tensors.items() if isinstance(t, Tensor)})
    return {**mine, **run(mine)}


def _same(graph: Graph, tensor: str, mine: Mapping[str, Tensor], whole: Mapping[str, Tensor], owned: Tensor,
          batch: list[int], where: str) -> Compared:
    argument = graph.tensors[tensor]
    dim = row_dim_of(argument.shape, graph.rows)
    other = whole[tensor]
    if dim is not None:
        each = rows_in(argument.shape[dim], graph.rows)
        other = taken(other, dim, [r * each + i for r in batch for i in range(each)])
    dims = tuple(f"dim{d}" for d in range(other.dim()))
    return exactly(Subject(tensor, Loc(), dims, where, dim), mine[tensor], other, owned)
