"""After this pass it is known whether the blocks that share out an axis of the anchor form a cluster.

Blocks own their parts of every store, so an axis that some store lacks (a window that several heads read and shift) or that a
reduction folds (a norm over all heads) is not on the grid. The blocks of one cluster can share it out all the same: each of them
computes what lacks the axis for itself, the first one stores it, once all have read what it overwrites, and reductions over the
axis fold what every block has pushed into the shared memory of the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..ir.axis import Axis
from ..ir.graph import Graph, Index, Join, Load, Node, Store, refs
from ..ir.overlap import apart
from .choose_grid import Grid, unnamed
from .problem import Problem

SIZES = (2, 4, 8)  # Blocks of a cluster; every target takes eight.


def clusters(problem: Problem, anchor: Node) -> Iterator[Problem]:
    """The problem with an axis of the anchor's domain shared out among the blocks of a cluster."""
    taken = {name for name, _, _ in problem.grid.axes} | problem.held | {a for axes in problem.orders.values() for a in axes}
    for axis in problem.domain(anchor):
        if axis.name not in taken and _local(problem.graph, axis) and _owned(problem.graph, axis):
            for size in SIZES:
                if axis.size % size == 0:
                    yield replace(problem, grid=Grid((*problem.grid.axes, (axis.name, size, axis.size // size)), axis.name))


def _local(graph: Graph, axis: Axis) -> bool:
    """Whether every block needs values with the axis at its own positions only."""
    table = graph.table
    for node in graph.nodes:
        if isinstance(node.op, Join) and node.op.axis == axis.name:
            return False
        for ref in refs(node.op):
            if any(a.name == axis.name for a in table[ref.value].axes) and ref.index(axis.name) != Index(axis.name):
                return False
    return True


def _owned(graph: Graph, axis: Axis) -> bool:
    """Whether what blocks apart along the axis do to one element can be ordered: they read it, and then one of them writes it."""
    for number, store in enumerate(graph.nodes):
        if not isinstance(store.op, Store):
            continue
        along = any(a.name == axis.name for a in store.domain)
        for place, other in enumerate(graph.nodes):
            if not isinstance(other.op, (Load, Store)) or not meet(graph, other, store, axis.name):
                continue
            both = not along and all(a.name != axis.name for a in other.domain)
            if isinstance(other.op, Store) and not both or isinstance(other.op, Load) and place > number:
                return False
    return True


def meet(graph: Graph, first: Node, second: Node, axis: str) -> bool:
    """Whether two accesses may touch the same element from blocks apart along an axis."""
    assert isinstance(first.op, (Load, Store)) and isinstance(second.op, (Load, Store))
    return not apart(graph, first, second) and axis in unnamed(graph, first.op, second.op, frozenset({axis}))
