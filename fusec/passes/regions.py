"""Regions beside the anchor: groups of nodes that share a domain, and which of them are flat over threads rather than projections.

Whether a group is flat is decided by local search over the cost of the whole block, exchanges and levels included.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..ir.axis import Axis
from ..ir.geometry import WARP_SIZE, elements
from ..ir.graph import Load, Node, Reduce, Ref, Store, operands, refs
from ..ir.plan import GRID, REG, SERIAL, THREAD, VEC, Factor, Layout
from .hold_narrow import HELD
from .price import FEW, HOLD, LEVEL, edge_cost, free_edge, issue_share, node_cost, read_registers
from .problem import Problem
from .strands import fits


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that are placed together; `axes` are all their local axes."""

    axes: tuple[Axis, ...]
    nodes: tuple[str, ...]


def find_groups(problem: Problem, anchor: frozenset[str]) -> tuple[Group, ...]:
    """Connected nodes of equal domain, in order of first use, without the anchor's own domain and without index values.

    Values that depend on the anchor's region and values that do not are never in one group: the latter can be made beside it.
    """
    domains = {n.name: problem.spread(problem.domain(n)) for n in problem.graph.nodes}
    after, pinned = _after(problem, anchor), index_values(problem)
    parent = {n.name: n.name for n in problem.graph.nodes}
    orders = {n.name: problem.orders.get(n.name, {}) for n in problem.graph.nodes}

    def root(x: str) -> str:
        while parent[x] != x:
            x = parent[x]
        return x

    for node in problem.graph.nodes:
        for ref in refs(node.op):
            value = problem.spread(problem.axes(problem.table[ref.value]))
            same = domains[node.name] == domains[ref.value] and (node.name in after) == (ref.value in after)
            if problem.walk is not None:
                same = same and problem.walk.phases[node.name] == problem.walk.phases[ref.value]
            mine, theirs = orders[root(node.name)], orders[root(ref.value)]
            same = same and all(theirs.get(a, k) == k for a, k in mine.items())
            if same and not any(a in value for a, _ in ref.bind):
                parent[root(node.name)] = root(ref.value)
                orders[root(ref.value)] = {**mine, **theirs}
    found: dict[str, list[Node]] = {}
    for node in problem.graph.nodes:
        if node.name not in pinned and domains[node.name] != anchor:
            found.setdefault(root(node.name), []).append(node)
    return tuple(
        Group(tuple({a.name: a for n in nodes for a in problem.domain(n)}.values()), tuple(n.name for n in nodes))
        for nodes in found.values()
    )


def index_values(problem: Problem) -> frozenset[str]:
    """Values of a block that say where memory is accessed, and what they are made of: every thread makes them for itself, unless
    they are made of what threads share."""
    found: set[str] = set()
    for node in reversed(problem.graph.nodes):
        direct = {id(r) for r in operands(node.op)}
        found |= {r.value for r in refs(node.op) if node.name in found or id(r) not in direct}
    shared: set[str] = set()
    for node in problem.graph.nodes:
        if problem.spread(problem.domain(node)) or any(r.value in shared for r in refs(node.op)):
            shared.add(node.name)
    return frozenset(found - shared)


def _after(problem: Problem, anchor: frozenset[str]) -> frozenset[str]:
    found: set[str] = set()
    for node in problem.graph.nodes:
        if problem.spread(problem.domain(node)) == anchor or any(r.value in found for r in operands(node.op)):
            found.add(node.name)
    return frozenset(found)


# ---- flat layouts ----------------------------------------------------------------------------------------------------------------


def flat_layout(problem: Problem, group: Group, threads: int) -> Layout:
    """One element of the domain per thread as far as threads go, two neighbours where that takes half the accesses; reduced axes
    within a warp; a domain of one element on one thread."""
    nodes = [problem.table[n] for n in group.nodes]
    free = [a for a in group.axes if a.name not in problem.held]
    reduced = {a.name for n in nodes if isinstance(n.op, Reduce) for a in problem.grid.local(n.op.axes)}
    out: dict[str, list[Factor]] = {a.name: [Factor(REG, a.size)] for a in group.axes if a.name in problem.held}
    step, orders = 1, {a: k for n in group.nodes for a, k in problem.orders.get(n, {}).items()}
    walk = problem.walk if problem.walk is not None and problem.walk.within(group.nodes[0]) else None
    pairs = _pairs(problem, nodes, free, reduced | orders.keys()) if walk is None else None
    for axis in sorted(_memory_order(problem, nodes, free), key=lambda a: (a.name not in orders, a.name not in reduced)):
        if walk is not None and walk.axis == axis.name:
            axis = Axis(axis.name, walk.part)
        vector = 2 if axis.name == pairs else 1
        part = Axis(axis.name, axis.size // vector)
        count = _lanes(part, step) if axis.name in reduced else _threads(part, threads // step)
        count = orders.get(axis.name, count)
        factors = [Factor(REG, -(-part.size // count)), Factor(THREAD, count, step), Factor(VEC, vector)]
        out[axis.name] = [f for f in factors if f.extent > 1]
        step *= count
    return Layout(
        tuple((a.name, with_grid(problem, a.name, _cut_at_warp(out[a.name]), walk is not None)) for a in group.axes), 0, step
    )


def _pairs(problem: Problem, nodes: list[Node], axes: list[Axis], fixed: set[str]) -> str | None:
    """The axis of which a thread takes two neighbours: every access that has it is contiguous along it, and a warp is full all the
    same."""
    accesses = [{name: step for step, name in problem.strides(n)} for n in nodes if isinstance(n.op, (Load, Store))]
    for axis in axes:
        steps = {a[axis.name] for a in accesses if axis.name in a}
        if steps == {1} and axis.name not in fixed and axis.size % (2 * WARP_SIZE) == 0:
            return axis.name
    return None


def _lanes(axis: Axis, step: int) -> int:
    return min(1 << (axis.size - 1).bit_length(), max(32 // step, 1))


def _threads(axis: Axis, left: int) -> int:
    return axis.size if axis.size <= left else max((d for d in range(1, left + 1) if axis.size % d == 0), default=1)


def with_grid(problem: Problem, axis: str, factors: list[Factor], within: bool) -> tuple[Factor, ...]:
    """The factors with the grid's digit in front, where the grid splits the axis, and the turn's, `within` the block's walk."""
    if within and problem.walk is not None and problem.walk.axis == axis:
        factors = [Factor(SERIAL, problem.walk.turns), *factors]
    for name, blocks, part in problem.grid.axes:
        if name == axis and part != 1 and isinstance(blocks, int):
            return (Factor(GRID, blocks), *factors)
    return tuple(factors)


def _cut_at_warp(factors: list[Factor]) -> list[Factor]:
    """A thread factor that begins below a warp and ends above it, cut at the warp where it can be."""
    out: list[Factor] = []
    for f in factors:
        if f.place == THREAD and f.step < 32 < f.step * f.extent and 32 % f.step == 0 and f.extent % (32 // f.step) == 0:
            low = 32 // f.step
            out += [Factor(THREAD, f.extent // low, 32), Factor(THREAD, low, f.step)]
        else:
            out.append(f)
    return out


def _memory_order(problem: Problem, nodes: list[Node], axes: list[Axis]) -> list[Axis]:
    """The axes from the most contiguous in the group's memory accesses to the least."""
    order: list[str] = []
    for node in nodes:
        if isinstance(node.op, (Load, Store)):
            order += [name for _, name in sorted(problem.strides(node)) if name not in order]
    rank = {name: i for i, name in enumerate(order)}
    return sorted(reversed(axes), key=lambda a: rank.get(a.name, len(rank)))


def side_by_side(flat: Layout, busy: list[float], spent: float) -> Layout:
    """The flat layout on the warps that have least to do, so that regions run beside each other; `busy` is brought up to date."""
    need = -(-flat.count // 32)
    first = min(range(len(busy) - need + 1), key=lambda w: (max(busy[w : w + need]), w))
    for warp in range(first, first + need):
        busy[warp] += spent
    return Layout(flat.axes, 32 * first, 0 if flat.count == 32 * len(busy) else flat.count)


# ---- the choice ------------------------------------------------------------------------------------------------------------------


ALONE = -1
"""The group of what is in none: the last of a list of choices."""
Need = tuple[int, Ref, int, int, list[Any]]
"""An operand: its number, itself, the place of what it reads and the group of that, and its edge by 2 * (the reader is flat) +
(what it reads is), None where it was not asked for."""


@dataclass(slots=True)
class _Step:
    """A node as the search sees it, in the graph's order. resident: a store that is in no group."""

    name: str
    home: int
    needs: list[Need]
    within: bool
    resident: bool
    costs: list[tuple[float, bool] | None] = field(default_factory=lambda: [None, None])


@dataclass(slots=True)
class Search:
    """Which groups are flat, for one layout of the anchor. options: per node, its projected and its flat layout (None: none)."""

    problem: Problem
    threads: int
    groups: tuple[Group, ...]
    options: dict[str, tuple[Layout | None, Layout | None]]
    home: dict[str, int]
    steps: list[_Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        walk, place = self.problem.walk, {n.name: i for i, n in enumerate(self.problem.graph.nodes)}
        for node in self.problem.graph.nodes:
            needs = [(number, ref, place[ref.value], self.home.get(ref.value, ALONE), [None] * 4)
                     for number, ref in enumerate(refs(node.op))]
            home = self.home.get(node.name, ALONE)
            within = walk is not None and walk.within(node.name) and bool(needs)
            self.steps.append(_Step(node.name, home, needs, within, isinstance(node.op, Store) and home == ALONE))

    def layout(self, name: str, flat: int) -> Layout:
        found = self.options[name][flat]
        assert found is not None
        return found

    def node(self, step: _Step, flat: int) -> tuple[float, bool]:
        """(cost, whether it is a reduction across warps) of a node."""
        found = step.costs[flat]
        if found is None:
            layout = self.layout(step.name, flat)
            key = (step.name, layout)
            if key not in self.problem.priced:
                node = self.problem.table[step.name]
                self.problem.priced[key] = node_cost(self.problem, node, layout), self.problem.crosses(node, layout)
            spent, crossing = self.problem.priced[key]
            share = max(-(-(layout.count or self.threads) // 32) * 32 / self.threads, FEW)
            found = step.costs[flat] = (spent * share * self.problem.turns(step.name), crossing)
        return found

    def edge(self, step: _Step, need: Need, flat: int, other: int) -> tuple[bool, float, int]:
        """(free, cost, registers of what is read back) of an operand."""
        _, ref, position, home, found = need
        producer, theirs_at = self.problem.table[ref.value], self.steps[position]
        mine = self.layout(step.name, flat)
        theirs = self.layout(ref.value, other).project(tuple(a.name for a in producer.axes))
        apart = other and flat and step.home != home
        free = not apart and (self.node(theirs_at, other)[1] or free_edge(self.problem, step.name, ref, theirs, mine))
        share = -(-(mine.count or self.threads) // 32) * 32 / self.threads
        share *= self.problem.turns(step.name)
        spent = 0.0 if free else edge_cost(self.problem, ref, theirs, mine) * share
        made = (bool(free), spent, 0 if free or mine.count else read_registers(self.problem, ref, mine))
        found[2 * flat + other] = made
        return made

    def price(self, choice: list[int]) -> tuple[float, int]:
        """(cycles, registers of values read back) of the block under a choice for every group."""
        total, waits, held = self.parts(choice)
        return total * issue_share(self.threads) + waits, held

    def parts(self, choice: list[int]) -> tuple[float, float, int]:
        """(issue slots of a thread, cycles of the levels, registers of values read back) of the block under a choice for every
        group."""
        total, held, top, hold = 0.0, 0, 0, 0
        ready, walked = [0] * len(self.steps), [0] * len(self.steps)
        choice = [*choice, 0]  # Whatever is in no group is not flat.
        seen = set[int]()
        for place, step in enumerate(self.steps):
            flat = choice[step.home]
            cost, crossing = step.costs[flat] or self.node(step, flat)
            total, level, within = total + cost, 0, step.within
            for need in step.needs:
                _, _, position, home, found = need
                other = choice[home]
                free, spent, registers = found[2 * flat + other] or self.edge(step, need, flat, other)
                away = ready[position] if free else ready[position] + 1
                level = away if away > level else level
                if within:
                    walked[place] = max(walked[place], walked[position] + (0 if free else 1))
                if not free and 2 * position + flat not in seen:
                    seen.add(2 * position + flat)
                    total, held = total + spent, held + registers
            ready[place] = level + 1 if crossing else level
            if within and crossing:
                walked[place] += 1
            top = ready[place] if ready[place] > top else top
            if step.resident:
                hold = max(hold, level)
        walk = self.problem.walk
        top += max(walked, default=0) * (walk.turns - 1) if walk is not None else 0
        return total, LEVEL * top + HOLD * hold, held

    def best(self) -> tuple[list[int], float, int]:
        """A choice that no change of one group improves."""
        choice = [0 if self.options[g.nodes[0]][0] is not None else 1 for g in self.groups]
        cost, held = self.price(choice)
        for _ in range(3):
            before = cost
            for i, group in enumerate(self.groups):
                if self.options[group.nodes[0]][0] is None:
                    continue
                choice[i] ^= 1
                found, registers = self.price(choice)
                if found < cost:
                    cost, held = found, registers
                else:
                    choice[i] ^= 1
            if cost == before:
                break
        return choice, cost, held


def make_search(problem: Problem, anchor: Layout, groups: tuple[Group, ...], threads: int) -> Search | None:
    """The search for one layout of the anchor; None where an index value has an axis that the anchor lacks."""
    names, walk = {a for a, _ in anchor.axes}, problem.walk
    home = {n: i for i, g in enumerate(groups) for n in g.nodes}
    for g in groups:
        if (g.nodes, threads) not in problem.flats:
            problem.flats[g.nodes, threads] = flat_layout(problem, g, threads)
    flats = [problem.flats[g.nodes, threads] for g in groups]
    options: dict[str, tuple[Layout | None, Layout | None]] = {}
    for node in problem.graph.nodes:
        mine = tuple(a.name for a in problem.domain(node))
        walked = walk is None or walk.within(node.name) or walk.axis not in mine
        projected = anchor.project(mine) if set(mine) <= names and walked else None
        flat = flats[home[node.name]].project(mine) if node.name in home else None
        projected = projected if projected is not None and fits(problem.orders, node, projected) else None
        flat = flat if flat is not None and fits(problem.orders, node, flat) else None
        if projected is None and flat is None:
            return None
        options[node.name] = (projected, flat)
    whole = [all(options[n][0] is not None for n in g.nodes) for g in groups]
    options = {n: (o[0] if n not in home or whole[home[n]] else None, o[1]) for n, o in options.items()}
    return Search(problem, threads, groups, options, home)


def live_registers(problem: Problem, layouts: dict[str, Layout], packed: bool = False) -> int:
    """Registers of a thread that hold loaded values at once: all that all threads load, of a walk what they load in a turn.

    packed: values of 16 bits that are only read share a register until they are used up.
    """
    held: dict[int, int] = {}
    for node in problem.graph.nodes:
        if isinstance(node.op, Load) and not layouts[node.name].count:
            phase = problem.walk.phases[node.name] if problem.walk is not None else 0
            phase *= phase % 2
            count = elements(layouts[node.name], tuple(a.name for a in problem.domain(node)))
            pairs = packed and node.dtype in HELD and node.op.tensor not in problem.mutated
            held[phase] = held.get(phase, 0) + (-(-count // 2) if pairs else count)
    return held.pop(0, 0) + max(held.values(), default=0)
