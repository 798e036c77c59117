"""Whether two accesses to one tensor can touch the same element: interval arithmetic per dim over static axes."""

from __future__ import annotations

from .graph import DimIndex, Graph, Load, Node, Ref, Store


def interval(graph: Graph, dim: DimIndex) -> tuple[int, int] | None:
    """(least, greatest) coordinate along a dim; None where it depends on an index value or on an axis of dynamic extent."""
    low = high = 0
    for digit in dim:
        source = digit.source
        if isinstance(source, Ref):
            return None
        extent = 1 if source.axis is None else graph.axis(source.axis).extent
        if not isinstance(extent, int):
            return None
        low += source.offset * digit.step
        high += (source.offset + extent - 1) * digit.step
    return low, high


def apart(graph: Graph, first: Node, second: Node) -> bool:
    """Whether a Load or Store and another of the same tensor provably touch different elements."""
    assert isinstance(first.op, (Load, Store)) and isinstance(second.op, (Load, Store))
    if first.op.tensor != second.op.tensor:
        return True
    for a, b in zip(first.op.index, second.op.index, strict=True):
        x, y = interval(graph, a), interval(graph, b)
        if x is not None and y is not None and (x[1] < y[0] or y[1] < x[0]):
            return True
    return False
