"""After this pass a value made of coordinates and of what a block has once is computed wherever it is needed.

Before: live = lt(position, count); x = select(live, lse, -inf); y = load part where live      (x over splits, y over splits and D)
After:  … the same, and live_here = lt(position_here, count); y = load part where live_here

Comparing a coordinate costs less than handing the answer over through shared memory, and a load that waits for the answer would
begin a barrier later.
"""
from __future__ import annotations

from dataclasses import replace

from ..ir.graph import Graph, Iota, Map, Node, Ref, operands
from ..ir.rewrite import drop_dead, map_refs
from ..ir.scalar import cost
from .choose_grid import Grid
from .names import Names

MOST = 12.0
"""Issue slots per element up to which a value is computed again."""


def recompute(graph: Graph, grid: Grid) -> Graph:
    """The graph with a copy of such values for every other domain that reads them."""
    names = Names.of(graph)
    light = _light(graph, grid)
    copies: dict[str, list[Node]] = {}
    renamed: dict[tuple[str, frozenset[str]], str] = {}
    changed: dict[str, Node] = {}
    for reader in graph.nodes:
        if reader.name in light:
            continue
        there = _axes(grid, reader, domain=True)
        for ref in operands(reader.op):
            if ref.value in light and isinstance(graph.table[ref.value].op, Map) and there != _axes(grid, graph.table[ref.value]):
                if (ref.value, there) not in renamed:
                    _copy(graph, ref.value, there, light, names, copies, renamed)
                reader = changed[reader.name] = _redirected(reader, ref, renamed[ref.value, there])
    if not changed:
        return graph
    nodes = tuple(n for node in graph.nodes for n in (changed.get(node.name, node), *copies.get(node.name, ())))
    return drop_dead(graph.with_nodes(nodes))


def _light(graph: Graph, grid: Grid) -> frozenset[str]:
    """Values with axes of the block that are made of coordinates and of values without such axes alone, by little work."""
    spent: dict[str, float] = {}
    for node in graph.nodes:
        if not _axes(grid, node):
            continue
        if isinstance(node.op, Iota):
            spent[node.name] = 0.0
        elif isinstance(node.op, Map) and node.dtype in ("bool", "i32", "i64", "f32"):
            below = [r.value for r in operands(node.op) if _axes(grid, graph.table[r.value])]
            if below and all(v in spent for v in below):
                total = cost(node.op.fn) + sum(spent[v] for v in below)
                if total <= MOST:
                    spent[node.name] = total
    return frozenset(spent)


def _axes(grid: Grid, node: Node, domain: bool = False) -> frozenset[str]:
    return frozenset(a.name for a in grid.local(node.domain if domain else node.axes))


def _copy(graph: Graph, name: str, there: frozenset[str], light: frozenset[str], names: Names, copies: dict[str, list[Node]],
          renamed: dict[tuple[str, frozenset[str]], str]) -> None:
    """A copy of a light value, and of the light ones below it, right behind each of them."""
    node = graph.table[name]
    for ref in operands(node.op):
        if ref.value in light and (ref.value, there) not in renamed:
            _copy(graph, ref.value, there, light, names, copies, renamed)
    made = names.unused(f"{name}_here")
    renamed[name, there] = made
    op = map_refs(node.op, lambda r: Ref(renamed[r.value, there], r.bind) if (r.value, there) in renamed else r)
    copies.setdefault(name, []).append(replace(node, name=made, op=op))


def _redirected(reader: Node, ref: Ref, value: str) -> Node:
    return replace(reader, op=map_refs(reader.op, lambda r: Ref(value, r.bind) if r is ref else r))
