"""Bytes that a graph must move to and from global memory: each distinct element that is read once, each that is written once."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

from ..ir.axis import Axis
from ..ir.dtype import BYTES
from ..ir.graph import DimIndex, Digit, Graph, Index, Load, Node, Ref, Store

Coordinates = frozenset[tuple[str, int]]
"""Coordinates along one dim: (how they are picked, number); ("", i) is the plain coordinate i."""


def bytes_moved(graph: Graph, sizes: Mapping[str, int]) -> int:
    """Bytes read plus bytes written for given sizes of the symbols. An index is taken to pick distinct elements."""
    total = 0
    for kind in (Load, Store):
        boxes: dict[str, list[tuple[Coordinates, ...]]] = {}
        for node in graph.nodes:
            if isinstance(node.op, kind):
                boxes.setdefault(node.op.tensor, []).append(_box(graph, node, node.op.index, sizes))
        total += sum(BYTES[graph.tensors[tensor].dtype] * _union(found) for tensor, found in boxes.items())
    return total


def _union(boxes: list[tuple[Coordinates, ...]]) -> int:
    """Elements of the union of boxes. A coordinate has one bit per box it lies in; an element has the AND of its dims' bits."""
    masks = {(1 << len(boxes)) - 1: 1}
    for dim in range(len(boxes[0])):
        bits: dict[tuple[str, int], int] = {}
        for i, box in enumerate(boxes):
            for coordinate in box[dim]:
                bits[coordinate] = bits.get(coordinate, 0) | 1 << i
        counts: dict[int, int] = {}
        for mask in bits.values():
            counts[mask] = counts.get(mask, 0) + 1
        combined: dict[int, int] = {}
        for (a, n), (b, m) in product(masks.items(), counts.items()):
            if a & b:
                combined[a & b] = combined.get(a & b, 0) + n * m
        masks = combined
    return sum(masks.values())


def _box(graph: Graph, node: Node, index: tuple[DimIndex, ...], sizes: Mapping[str, int]) -> tuple[Coordinates, ...]:
    """The coordinates of each dim. An axis that two dims share (a diagonal) counts in the first of them only."""
    box, used = [], set[str]()
    for dim in index:
        box.append(_dim(graph, node, dim, sizes, used))
        used.update(name for digit in dim for name in _axes(graph, digit))
    return tuple(box)


def _dim(graph: Graph, node: Node, dim: DimIndex, sizes: Mapping[str, int], used: set[str]) -> Coordinates:
    table = {a.name: a for a in node.domain}
    found: set[tuple[str, int]] = {("", 0)}
    for digit in dim:
        extents = [_extent(table[n], sizes) if n in table and n not in used else 1 for n in _axes(graph, digit)]
        if isinstance(digit.source, Index):
            steps = [(digit.source.offset + i) * digit.step for i in range(extents[0] if extents else 1)]
            found = {(how, at + step) for how, at in found for step in steps}
        else:
            how, count = _picked(graph, digit.source), 1
            for extent in extents:
                count *= extent
            found = {(f"{before}{how}*{digit.step}", at * count + i) for before, at in found for i in range(count)}
    return frozenset(found)


def _axes(graph: Graph, digit: Digit) -> Iterator[str]:
    """The reader's axes that a digit varies with."""
    if isinstance(digit.source, Index):
        if digit.source.axis is not None:
            yield digit.source.axis
        return
    for axis in graph.table[digit.source.value].axes:
        bound = digit.source.index(axis.name).axis
        if bound is not None:
            yield bound


def _picked(graph: Graph, ref: Ref) -> str:
    """What picks: loads of the same elements pick the same."""
    op = graph.table[ref.value].op
    return f"{op if isinstance(op, Load) else ref.value}{ref.bind}"


def _extent(axis: Axis, sizes: Mapping[str, int]) -> int:
    return axis.extent if isinstance(axis.extent, int) else sizes[str(axis.extent)]
