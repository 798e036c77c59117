"""Which regions beside the anchor are flat over threads: a local search over the cost of the whole block, exchanges and levels
included, and a lower bound of that cost, so that most layouts of the anchor need no search.

A node goes by its number in the graph here, an operand by its number among all operands: the search looks at each some thousand
times.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from ..ir.axis import Axis
from ..ir.dtype import BYTES, register
from ..ir.geometry import WARP_SIZE, thread_factors
from ..ir.graph import Node, Reduce, Ref, Store, refs
from ..ir.plan import Layout
from .price import FEW, HOLD, LEVEL, edge_cost, free_edge, issue_share, node_cost, read_registers
from .problem import Problem, aligned
from .regions import Group, flat_layout
from .strands import fits

Option = tuple[int, Layout]
"""A layout with its number: searches of a problem meet the same ones again and again."""
Options = tuple[Option | None, Option | None]
"""The projected and the flat layout of a node's domain, None where it cannot have it."""
Row = tuple[int, tuple[tuple[int, int, int], ...], bool, bool]
"""Of a node: the number of its group (-1: none, it is a projection); its operands as (number, number of the value's node, that
node's group); whether it is computed once per turn; whether it is a Store of the anchor's own."""
Edge = tuple[bool, float, int]
"""(free, cost, registers of what is read back) of an operand."""


@dataclass(slots=True)
class Outline:
    """What all searches of a problem share: its nodes, their groups, what does not depend on the anchor's layout."""

    problem: Problem
    groups: tuple[Group, ...]
    numbers: dict[str, int] = field(default_factory=dict)
    home: dict[str, int] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    operands: list[tuple[Node, Ref]] = field(default_factory=list)
    known: dict[Layout, int] = field(default_factory=dict)
    flats: dict[int, list[Option | None]] = field(default_factory=dict)
    costs: dict[tuple[int, int], tuple[float, bool]] = field(default_factory=dict)
    passed: dict[tuple[int, int, int, bool], Edge] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        nodes, walk = self.problem.graph.nodes, self.problem.walk
        self.home = {n: i for i, g in enumerate(self.groups) for n in g.nodes}
        self.numbers = {n.name: i for i, n in enumerate(nodes)}
        for node in nodes:
            first, mine = len(self.operands), tuple(refs(node.op))
            self.operands += [(node, r) for r in mine]
            needs = tuple((first + i, self.numbers[r.value], self.home.get(r.value, -1)) for i, r in enumerate(mine))
            home = self.home.get(node.name, -1)
            self.rows.append((home, needs, walk is not None and walk.within(node.name), isinstance(node.op, Store) and home < 0))

    def option(self, layout: Layout) -> Option:
        """A layout with its number."""
        return self.known.setdefault(layout, len(self.known)), layout

    def flat(self, threads: int) -> list[Option | None]:
        """The flat layout of every node."""
        if threads not in self.flats:
            whole = [flat_layout(self.problem, g, threads) for g in self.groups]
            found: list[Option | None] = []
            for node in self.problem.graph.nodes:
                mine = _names(self.problem.domain(node))
                layout = whole[self.home[node.name]].project(mine) if node.name in self.home else None
                found.append(self.option(layout) if layout is not None and fits(self.problem.orders, node, layout) else None)
            self.flats[threads] = found
        return self.flats[threads]

    def cost(self, number: int, option: Option) -> tuple[float, bool]:
        """(issue slots of a thread, whether it is a reduction across warps) of a node under a layout."""
        found = self.costs.get((number, option[0]))
        if found is None:
            node = self.problem.graph.nodes[number]
            found = node_cost(self.problem, node, option[1]), self.problem.crosses(node, option[1])
            self.costs[number, option[0]] = found
        return found

    def handed(self, number: int) -> int:
        """Bytes of the buffer in which a node's value is handed over."""
        if number not in self.sizes:
            self.sizes[number] = self.problem.handed(self.problem.graph.nodes[number])
        return self.sizes[number]

    def partials(self, number: int, layout: Layout) -> int:
        """Bytes of the buffer for what the warps and the blocks of a cluster have each of a reduction."""
        problem, node = self.problem, self.problem.graph.nodes[number]
        assert isinstance(node.op, Reduce)
        reduced = tuple(a.name for a in problem.grid.local(node.op.axes))
        warps = prod(f.extent for _, _, f in thread_factors(layout, reduced) if f.step >= WARP_SIZE)
        blocks = problem.grid.peers if problem.folds_blocks(node) else 1
        return aligned(blocks * warps * prod(problem.extents(node, True)) * BYTES[register(node.dtype)])

    def edge(self, operand: int, mine: Option, value: int, theirs: Option, apart: bool) -> Edge:
        """An operand under its reader's layout and that of its value's node; apart: both are flat, each on threads of its own."""
        key = (operand, mine[0], theirs[0], apart)
        if key not in self.passed:
            problem, (node, ref) = self.problem, self.operands[operand]
            held = theirs[1].project(_names(problem.table[ref.value].axes))
            free = not apart and (self.cost(value, theirs)[1] or free_edge(problem, node.name, ref, held, mine[1]))
            back = 0 if free or mine[1].count else read_registers(problem, ref, mine[1])
            self.passed[key] = free, 0.0 if free else edge_cost(problem, ref, held, mine[1]), back
        return self.passed[key]


@dataclass(slots=True)
class Search:
    """Which groups are flat, for one layout of the anchor. nodes, edges: what was asked for, by number and who is flat."""

    outline: Outline
    threads: int
    options: list[Options]
    nodes: list[tuple[float, bool] | None] = field(default_factory=list)
    edges: list[Edge | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.nodes, self.edges = [None] * (2 * len(self.outline.rows)), [None] * (4 * len(self.outline.operands))

    def projections(self) -> dict[str, Layout]:
        """The layouts of the nodes that are in no group."""
        nodes, rows = self.outline.problem.graph.nodes, self.outline.rows
        return {n.name: self._layout(i, 0) for i, n in enumerate(nodes) if rows[i][0] < 0}

    def layouts(self, choice: list[int]) -> dict[str, Layout]:
        """The layout of every node under a choice."""
        chosen = (*choice, 0)
        nodes = self.outline.problem.graph.nodes
        return {n.name: self._layout(i, chosen[self.outline.rows[i][0]]) for i, n in enumerate(nodes)}

    def spent(self, name: str) -> float:
        """Issue slots of a thread for a node that is flat."""
        return self._node(self.outline.numbers[name], 1)[0]

    def _option(self, number: int, flat: int) -> Option:
        found = self.options[number][flat]
        assert found is not None
        return found

    def _layout(self, number: int, flat: int) -> Layout:
        return self._option(number, flat)[1]

    def _node(self, number: int, flat: int) -> tuple[float, bool]:
        """(cost, whether it is a reduction across warps) of a node."""
        found = self.nodes[2 * number + flat]
        if found is None:
            option, problem = self._option(number, flat), self.outline.problem
            share = max(-(-(option[1].count or self.threads) // 32) * 32 / self.threads, FEW)
            cost, crossing = self.outline.cost(number, option)
            found = self.nodes[2 * number + flat] = cost * share * problem.turns(problem.graph.nodes[number].name), crossing
        return found

    def _edge(self, reader: int, operand: int, value: int, flat: int, other: int) -> Edge:
        rows, mine = self.outline.rows, self._option(reader, flat)
        apart = bool(other and flat) and rows[reader][0] != rows[value][0]
        free, spent, back = self.outline.edge(operand, mine, value, self._option(value, other), apart)
        if not free:
            share = -(-(mine[1].count or self.threads) // 32) * 32 / self.threads
            spent *= share * self.outline.problem.turns(self.outline.operands[operand][0].name)
        found = self.edges[4 * operand + 2 * flat + other] = free, spent, back
        return found

    def price(self, choice: list[int]) -> tuple[float, int]:
        """(cycles, registers of values read back) of the block under a choice for every group."""
        total, waits, held = self.parts(choice)
        return total * issue_share(self.threads) + waits, held

    def parts(self, choice: list[int]) -> tuple[float, float, int]:
        """(issue slots of a thread, cycles of the levels, registers of values read back) of the block under a choice for every
        group."""
        nodes, edges, chosen = self.nodes, self.edges, (*choice, 0)
        total, held, hold = 0.0, 0, 0
        ready, walked, seen = [0] * len(self.options), [0] * len(self.options), set[int]()
        for number, (home, needs, within, stored) in enumerate(self.outline.rows):
            flat = chosen[home]
            cost, crossing = nodes[2 * number + flat] or self._node(number, flat)
            total += cost
            level = turn = 0
            for operand, value, theirs in needs:
                other = chosen[theirs]
                free, spent, registers = (edges[4 * operand + 2 * flat + other]
                                          or self._edge(number, operand, value, flat, other))
                level = max(level, ready[value] + (not free))
                if within:
                    turn = max(turn, walked[value] + (not free))
                if not free and 2 * value + flat not in seen:
                    seen.add(2 * value + flat)
                    total, held = total + spent, held + registers
            ready[number], walked[number] = level + crossing, turn + crossing if within else 0
            if stored and level > hold:
                hold = level
        return total, self._waits(max(ready), max(walked), hold), held

    def _waits(self, top: int, walked: int, hold: int) -> float:
        """Cycles of the levels: of the last one, of those of a turn for all further turns, of those before the anchor's Stores."""
        walk = self.outline.problem.walk
        return LEVEL * (top + (walked * (walk.turns - 1) if walk is not None else 0)) + HOLD * hold

    def least(self) -> tuple[float, float]:
        """(issue slots of a thread, cycles of the levels) that no choice goes below: each node and each operand at its best."""
        kinds = [tuple(flat for flat in (0, 1) if o[flat] is not None) for o in self.options]
        total, hold = 0.0, 0
        ready, walked = [0] * len(kinds), [0] * len(kinds)
        for number, (home, needs, within, stored) in enumerate(self.outline.rows):
            found = [self._node(number, flat) for flat in kinds[number]]
            total += min(cost for cost, _ in found)
            level = turn = 0
            for operand, value, theirs in needs:
                apart = not any(self._edge(number, operand, value, a, b)[0]
                                for a in kinds[number] for b in kinds[value] if a == b or home != theirs)
                level = max(level, ready[value] + apart)
                if within:
                    turn = max(turn, walked[value] + apart)
            crossing = all(crossing for _, crossing in found)
            ready[number], walked[number] = level + crossing, turn + crossing if within else 0
            if stored and level > hold:
                hold = level
        return total, self._waits(max(ready), max(walked), hold)

    def buffers(self, choice: list[int]) -> list[int]:
        """Bytes of every shared buffer of the block under a choice."""
        chosen, found = (*choice, 0), dict[int, int]()
        for number, (home, needs, _, _) in enumerate(self.outline.rows):
            flat = chosen[home]
            if self._node(number, flat)[1]:
                found[-1 - number] = self.outline.partials(number, self._layout(number, flat))
            for operand, value, theirs in needs:
                if value not in found and not (self.edges[4 * operand + 2 * flat + chosen[theirs]]
                                               or self._edge(number, operand, value, flat, chosen[theirs]))[0]:
                    found[value] = self.outline.handed(value)
        return list(found.values())

    def _ranked(self, choice: list[int]) -> tuple[int, float, int]:
        """(bytes of shared memory above the limit, cycles, registers of values read back) under a choice."""
        problem = self.outline.problem
        return (problem.beyond(self.buffers(choice)) if problem.shared else 0, *self.price(choice))

    def best(self) -> tuple[list[int], int]:
        """A choice that no change of one group improves, and the registers of values read back."""
        groups = self.outline.groups
        firsts = [self.options[i] for i in self._firsts()]
        choice = [0 if o[0] is not None else 1 for o in firsts]
        *cost, held = self._ranked(choice)
        for _ in range(3):
            before = cost
            for i in range(len(groups)):
                if firsts[i][0] is None:
                    continue
                choice[i] ^= 1
                *found, registers = self._ranked(choice)
                if found < cost:
                    cost, held = found, registers
                else:
                    choice[i] ^= 1
            if cost == before:
                break
        return choice, held

    def _firsts(self) -> list[int]:
        """The first node of each group."""
        found: dict[int, int] = {}
        for number, row in enumerate(self.outline.rows):
            found.setdefault(row[0], number)
        return [found[i] for i in range(len(self.outline.groups))]


def make_search(outline: Outline, anchor: Layout, threads: int) -> Search | None:
    """The search for one layout of the anchor; None where an index value has an axis that the anchor lacks."""
    problem = outline.problem
    names, walk = {a for a, _ in anchor.axes}, problem.walk
    parts: dict[tuple[str, ...], Option] = {}
    options: list[Options] = []
    for node, flat in zip(problem.graph.nodes, outline.flat(threads), strict=True):
        mine = _names(problem.domain(node))
        projected: Option | None = None
        if names.issuperset(mine) and (walk is None or walk.within(node.name) or walk.axis not in mine):
            if mine not in parts:
                parts[mine] = outline.option(anchor.project(mine))
            projected = parts[mine] if fits(problem.orders, node, parts[mine][1]) else None
        if projected is None and flat is None:
            return None
        options.append((projected, flat))
    homes = [row[0] for row in outline.rows]
    partial = {home for home, o in zip(homes, options, strict=True) if o[0] is None} - {-1}
    return Search(outline, threads, [(None if h in partial else o[0], o[1]) for h, o in zip(homes, options, strict=True)])


def _names(axes: tuple[Axis, ...]) -> tuple[str, ...]:
    return tuple(a.name for a in axes)
