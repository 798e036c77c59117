"""When things can happen: the level of a value is the number of block barriers before it is there.

A value that is exchanged through shared memory, or whose reduction crosses warps, is there one level later for its readers.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.geometry import crosses_warps
from ..ir.graph import Graph, Load, Node, Reduce, Store, refs
from ..ir.overlap import apart
from .price import free_edge
from .problem import Placement, Problem


@dataclass(frozen=True, slots=True)
class Levels:
    """start: the level a node's domain is computed on. ready: the level its value is there for its own region.
    exchanged: values that go through shared memory. crossing: reductions that do."""

    start: dict[str, int]
    ready: dict[str, int]
    exchanged: frozenset[str]
    crossing: frozenset[str]


def assign_levels(problem: Problem, placed: Placement) -> Levels:
    """Levels of every node."""
    start: dict[str, int] = {}
    ready: dict[str, int] = {}
    exchanged: set[str] = set()
    crossing: set[str] = set()
    for node in problem.graph.nodes:
        level = 0
        for ref in refs(node.op):
            producer = problem.table[ref.value]
            free = free_edge(problem, node.name, ref, placed.result(producer), placed.layouts[node.name])
            if not free:
                exchanged.add(ref.value)
            level = max(level, ready[ref.value] + (0 if free else 1))
        if isinstance(node.op, Store):
            level = max([level, *(start[n] for n in before(problem.graph, node) if n in start)])
        start[node.name] = level
        late = is_crossing(problem, placed, node)
        if late:
            crossing.add(node.name)
        ready[node.name] = level + (1 if late else 0)
    return Levels(start, ready, frozenset(exchanged), frozenset(crossing))


def before(graph: Graph, store: Node) -> tuple[str, ...]:
    """The accesses that a Store must come after: reads of the bytes it overwrites, and earlier writes to them."""
    found: list[str] = []
    written = False
    for node in graph.nodes:
        written |= node is store
        if isinstance(node.op, Load) or isinstance(node.op, Store) and not written:
            if not apart(graph, node, store):
                found.append(node.name)
    return tuple(found)


def is_crossing(problem: Problem, placed: Placement, node: Node) -> bool:
    """Whether a node is a reduction over axes that several warps hold."""
    return isinstance(node.op, Reduce) and crosses_warps(
        placed.layouts[node.name], tuple(a.name for a in problem.grid.local(node.op.axes))
    )
