"""Joins and slices that do not end where a view cuts their dim, block by block.

    join(a[448], b[64]) viewed as [4, 128]   ->   join(a[:384] as [3, 128], join(a[384:], b) as [1, 128])
    x[6, 6] viewed as [36] from 4 to 10      ->   join(x[0, 4:], x[1, :4])
"""
from __future__ import annotations

from dataclasses import replace
from math import prod

from ..ir.tensor import Join, Reshape, Shape, Slice, TensorGraph
from .make_nodes import Maker
from .push_reads import Pusher, Range
from .simplify_tensors import drop_dead, simplify_tensors

Run = tuple[str, int, int]
"""(part, first element, how many) along the joined dim."""


def nest_join(graph: TensorGraph, name: str, radix: tuple[int, ...]) -> TensorGraph:
    """The graph with one join made block by block of a dim that is cut into pieces of the sizes `radix`, outermost first."""
    nest = _Nest(graph, name)
    made = nest.blocks(nest.runs(), radix)
    if made is None:
        return graph
    node = graph.table[name]
    nest.table[name] = replace(node, op=Reshape(made))
    return simplify_tensors(drop_dead(nest.ordered(graph)))


def slice_blocks(graph: TensorGraph, name: str, radix: tuple[int, ...]) -> TensorGraph:
    """The graph with one slice as the join of what it takes of each block of a dim that is cut into pieces of these sizes."""
    maker, node = Maker(graph), graph.table[name]
    op = node.op
    assert isinstance(op, Slice) and isinstance(length := node.shape[op.dim], int)
    parts = _blocks_of(maker, op.arg, op.dim, radix, (op.start, length)) if op.step == 1 else []
    if len(parts) < 2:
        return graph
    maker.table[name] = replace(node, op=Join(tuple(parts), op.dim))
    return simplify_tensors(drop_dead(maker.ordered(graph)))


def _blocks_of(maker: Maker, value: str, dim: int, radix: tuple[int, ...], cut: tuple[int, int]) -> list[str]:
    """The values whose join is a range (start, length) of a dim that consists of pieces of these sizes."""
    (start, length), shape, size = cut, maker.shape(value), prod(radix[1:])
    if len(radix) == 1:
        return [maker.range(value, dim, start, length)]
    rows = maker.reshape(value, shape[:dim] + (radix[0], size) + shape[dim + 1:])
    parts: list[str] = []
    while length:
        block, first = divmod(start, size)
        whole = 0 if first else length // size
        taken = whole * size or min(length, size - first)
        if whole:
            flat = shape[:dim] + (taken,) + shape[dim + 1:]
            parts.append(maker.reshape(maker.range(rows, dim, block, whole), flat))
        else:
            parts += _blocks_of(maker, maker.element(rows, dim, block), dim, radix[1:], (first, taken))
        start, length = start + taken, length - taken
    return parts


class _Nest(Pusher):
    """Builds the blocks of one join."""

    def __init__(self, graph: TensorGraph, name: str) -> None:
        super().__init__(graph)
        self.node = graph.table[name]
        assert isinstance(self.node.op, Join)
        self.dim, self.parts = self.node.op.dim, self.node.op.parts

    def runs(self) -> list[Run]:
        """The parts, whole."""
        return [(p, 0, int(str(self.shape(p)[self.dim]))) for p in self.parts]

    def blocks(self, runs: list[Run], radix: tuple[int, ...]) -> str | None:
        """The runs side by side, their dim as dims of the sizes `radix`; None where a part cannot be taken apart."""
        if len(radix) == 1:
            return self._joined([self._run(r, radix) for r in runs])
        size, made, rest = prod(radix[1:]), list[str | None](), list(runs)
        while rest:
            (name, first, length), rest = rest[0], rest[1:]
            whole = length // size
            if whole:  # As many blocks as lie in one part.
                made.append(self._run((name, first, whole * size), (whole, *radix[1:])))
                rest = [(name, first + whole * size, length - whole * size), *rest] if length > whole * size else rest
                continue
            block, rest = _take([(name, first, length), *rest], size)
            inner = self.blocks(block, radix[1:])
            made.append(None if inner is None else self.reshape(inner, self._shape((1, *radix[1:]))))
        return self._joined(made)

    def _shape(self, sizes: tuple[int, ...]) -> Shape:
        return self.node.shape[:self.dim] + sizes + self.node.shape[self.dim + 1:]

    def _run(self, run: Run, sizes: tuple[int, ...]) -> str | None:
        """A run with its dim as dims of these sizes; of an innermost piece it may be a part only."""
        part = self.part(run[0], Range(self.dim, run[1], run[2]))
        return None if part is None else self.reshape(part, self._shape(sizes if len(sizes) > 1 else (run[2],)))

    def _joined(self, parts: list[str | None]) -> str | None:
        known = [p for p in parts if p is not None]
        if len(known) < len(parts):
            return None
        if len(known) == 1:
            return known[0]
        first = self.shape(known[0])
        total = sum(int(str(self.shape(p)[self.dim])) for p in known)
        return self.add(self.node, Join(tuple(known), self.dim), first[:self.dim] + (total,) + first[self.dim + 1:])


def _take(runs: list[Run], size: int) -> tuple[list[Run], list[Run]]:
    """(the first `size` elements of the runs, the others)"""
    taken: list[Run] = []
    while size:
        (name, first, length), runs = runs[0], runs[1:]
        now = min(size, length)
        taken.append((name, first, now))
        runs = [(name, first + now, length - now), *runs] if length > now else runs
        size -= now
    return taken, runs
