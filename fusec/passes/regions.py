"""Regions beside the anchor: groups of nodes that share a domain, the layouts that are flat over threads, and the registers that
layouts take. Which groups are flat, rather than projections of the anchor's layout, is `search`'s to decide."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir.axis import Axis
from ..ir.geometry import WARP_SIZE, elements
from ..ir.graph import Load, Node, Reduce, Store, operands, refs
from ..ir.plan import GRID, REG, SERIAL, THREAD, VEC, Factor, Layout
from .hold_narrow import HELD
from .problem import Problem


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


# ---- registers ------------------------------------------------------------------------------------------------------------------


def live_registers(problem: Problem, layouts: dict[str, Layout], packed: bool = False) -> int:
    """Registers of a thread that hold loaded values at once: all that all threads load, of a walk what they load in a turn.

    layouts: of the nodes that count. packed: values of 16 bits that are only read share a register until they are used up.
    """
    held: dict[int, int] = {}
    for node in problem.graph.nodes:
        if isinstance(node.op, Load) and node.name in layouts and not layouts[node.name].count:
            phase = problem.walk.phases[node.name] if problem.walk is not None else 0
            phase *= phase % 2
            count = elements(layouts[node.name], tuple(a.name for a in problem.domain(node)))
            pairs = packed and node.dtype in HELD and node.op.tensor not in problem.mutated
            held[phase] = held.get(phase, 0) + (-(-count // 2) if pairs else count)
    return held.pop(0, 0) + max(held.values(), default=0)
