"""When things can happen: the level of a value is the number of block barriers before it is there.

A value that is exchanged through shared memory, or whose reduction crosses warps, is there one level later for its readers.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.graph import Graph, Load, Node, Store, refs
from ..ir.overlap import apart
from .clusters import meet
from .price import free_edge
from .problem import Placement, Problem


@dataclass(frozen=True, slots=True)
class Levels:
    """start: the level a node's domain is computed on. ready: the level its value is there for its own region.
    exchanged: values that go through shared memory. crossing: reductions that do. late: Stores that come last, after the block's
    walk, since other blocks of the cluster read what they overwrite."""

    start: dict[str, int]
    ready: dict[str, int]
    exchanged: frozenset[str]
    crossing: frozenset[str]
    late: frozenset[str] = frozenset()


def assign_levels(problem: Problem, placed: Placement) -> Levels:
    """Levels of every node. Where shared memory is short, values that do not fit beside each other are handed over one level after
    the other."""
    start: dict[str, int] = {}
    ready: dict[str, int] = {}
    free = {(n.name, r): free_edge(problem, n.name, r, placed.result(problem.table[r.value]), placed.layouts[n.name])
            for n in problem.graph.nodes for r in refs(n.op)}
    exchanged = frozenset(ref.value for (_, ref), held in free.items() if not held)
    crossing: set[str] = set()
    handed: dict[int, list[int]] = {}
    for node in problem.graph.nodes:
        level = max((ready[ref.value] + (not free[node.name, ref]) for ref in refs(node.op)), default=0)
        if isinstance(node.op, Store):
            level = max([level, *(start[n] for n in before(problem.graph, node) if n in start)])
        start[node.name] = level
        late = problem.crosses(node, placed.layouts[node.name])
        if late:
            crossing.add(node.name)
        ready[node.name] = level + (1 if late else 0)
        if problem.shared and node.name in exchanged:
            size = problem.handed(node)
            while handed.get(ready[node.name]) and sum(handed[ready[node.name]]) + size > problem.target.smem_per_block:
                ready[node.name] += 1
            handed.setdefault(ready[node.name], []).append(size)
    return Levels(start, ready, exchanged, frozenset(crossing), _after_clusters(problem, start))


def _after_clusters(problem: Problem, start: dict[str, int]) -> frozenset[str]:
    """The Stores of what other blocks of the cluster read, each put off until after a barrier of the cluster that is there anyway,
    else by one level."""
    graph, cluster, found = problem.graph, problem.grid.cluster, set[str]()
    if not cluster:
        return frozenset()
    folds = [start[n.name] for n in graph.nodes if problem.folds_blocks(n)]
    for node in graph.nodes:
        if isinstance(node.op, Store):
            others = [problem.table[name] for name in before(graph, node)]
            past = [start[o.name] for o in others if meet(graph, o, node, cluster)]
            if past:
                start[node.name] = max(start[node.name], *(level + 1 for level in past + folds))
                found.add(node.name)
    return frozenset(found)


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
