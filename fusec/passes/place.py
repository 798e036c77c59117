"""After this pass every value has a layout: the anchor first, all others as its projections or flat over threads.

The layout of a node is that of its domain; a reduction has one for its result as well. Which is taken is decided by counting what
a block must issue, for every admissible layout of the anchor.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import prod

from ..errors import ResourceError
from ..ir.axis import Axis
from ..ir.dtype import BYTES, NARROW
from ..ir.geometry import crosses_warps, elements, in_registers, registers, thread_factors
from ..ir.graph import Graph, Load, Map, Node, Reduce, Ref, Store, operands, refs
from ..ir.plan import GRID, REG, THREAD, VEC, Factor, Layout
from ..ir.scalar import cost
from .choose_grid import Grid, strides

MAX_THREADS = 512
REGISTERS = 65536  # Of a multiprocessor, 32-bit each: cuda C++ programming guide, table of compute capabilities.
OTHER_REGISTERS = 30  # Addresses, loop state and what the epilogue keeps.
BARRIER = 60  # Issue slots a barrier is worth.
VECTOR_BYTES = 16


@dataclass(frozen=True, slots=True)
class Placement:
    """layouts: of every node's domain. results: of every reduction's result. `cost`: issue slots of a block over four schedulers."""

    anchor: str
    threads: int
    grid: Grid
    layouts: dict[str, Layout]
    results: dict[str, Layout]
    cost: float = 0.0
    min_blocks: int = 1

    def result(self, node: Node) -> Layout:
        """Where the value of a node lies."""
        return self.results.get(node.name) or self.layouts[node.name].project(tuple(a.name for a in node.axes))


@dataclass(slots=True)
class Problem:
    """What placement works on: the graph with local extents."""

    graph: Graph
    grid: Grid
    held: frozenset[str]
    table: dict[str, Node] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.table = self.graph.table

    def domain(self, node: Node) -> tuple[Axis, ...]:
        return self.grid.local(node.domain)

    def axes(self, node: Node) -> tuple[Axis, ...]:
        return self.grid.local(node.axes)

    def spread(self, axes: tuple[Axis, ...]) -> frozenset[str]:
        """The axes that threads may share among them: all but the held ones."""
        return frozenset(a.name for a in axes) - self.held


def place(graph: Graph, grid: Grid, held: frozenset[str]) -> Placement:
    """The cheapest placement. Raises ResourceError where no layout of the anchor fits the registers of a block."""
    problem = Problem(graph, grid, held)
    anchor = _anchor(problem)
    best: Placement | None = None
    for layout, threads in _candidates(problem, anchor):
        found = _complete(problem, anchor, layout, threads)
        if found is not None and (best is None or found.cost < best.cost):
            best = found
    if best is None:
        _refuse(problem, anchor)
    assert best is not None
    return best


def _anchor(problem: Problem) -> Node:
    """The node whose domain holds most bytes of memory traffic, over all accesses of that domain."""
    weight: dict[frozenset[str], int] = {}
    for node in problem.graph.nodes:
        axes = problem.domain(node)
        key = problem.spread(axes)
        bytes_ = prod(a.size for a in axes) * (BYTES[node.dtype] if isinstance(node.op, (Load, Store)) else 0)
        weight[key] = weight.get(key, 0) + bytes_
    nodes = [n for n in problem.graph.nodes if isinstance(n.op, (Load, Store))]
    return max(nodes, key=lambda n: (weight[problem.spread(problem.domain(n))], len(problem.domain(n)),
                                     isinstance(n.op, Load), BYTES[n.dtype]))


def _refuse(problem: Problem, anchor: Node) -> None:
    axes = problem.domain(anchor)
    need = 4 * prod(a.size for a in axes)
    tensor = anchor.op.tensor if isinstance(anchor.op, (Load, Store)) else anchor.name
    limit = max(4 * threads * (min(REGISTERS // threads, 255) - OTHER_REGISTERS) for threads in (128, 256, MAX_THREADS))
    shape = " x ".join(f"{a.name}={a.size}" for a in axes)
    raise ResourceError(f"a block must hold {need} bytes of {tensor} ({shape}) in registers, and at most {limit} fit",
                        anchor.loc, "a result that has one of these axes lets the grid split it; or use smaller heads")


# ---- candidates for the anchor ---------------------------------------------------------------------------------------------------

def _contiguous(problem: Problem, anchor: Node) -> tuple[str | None, tuple[int, ...]]:
    """The axis along which the anchor's memory is contiguous, and the widths in elements that accesses of its domain may have."""
    name = next((name for step, name in sorted(strides(problem.graph, anchor)) if step == 1 and name not in problem.held), None)
    local = next((a for a in problem.domain(anchor) if a.name == name), None)
    if local is None:
        return None, (1,)
    domain = {a.name for a in problem.domain(anchor)}
    near = [n for n in problem.graph.nodes if isinstance(n.op, (Load, Store)) and {a.name for a in problem.domain(n)} == domain]
    found = set()
    for node in near:
        width = VECTOR_BYTES // BYTES[node.dtype]
        while width > 1 and local.size % width:
            width //= 2
        found.add(width)
    return name, tuple(sorted(found))


def _candidates(problem: Problem, anchor: Node) -> Iterator[tuple[Layout, int]]:
    axes = [a for a in problem.domain(anchor) if a.name not in problem.held]
    vector, widths = _contiguous(problem, anchor)
    for width in widths:
        sizes = [-(-a.size // width) if a.name == vector else a.size for a in axes]
        for lanes in _splits(sizes, 32):
            rest = [-(-s // n) for s, n in zip(sizes, lanes, strict=True)]
            for warps in _warp_splits(rest):
                if 32 * prod(warps) <= MAX_THREADS:
                    yield _layout(problem, axes, vector, width, lanes, warps), 32 * prod(warps)


def _splits(sizes: list[int], total: int) -> Iterator[list[int]]:
    """Ways to give `total` lanes (a power of two) to axes, none more than its size rounded up; fewer only if all axes are full."""
    full = [1 << (s - 1).bit_length() for s in sizes]
    want = min(total, prod(full))

    def go(i: int, left: int) -> Iterator[list[int]]:
        if i == len(sizes):
            if left == 1:
                yield []
            return
        n = 1
        while n <= min(left, full[i]):
            for tail in go(i + 1, left // n):
                yield [n, *tail]
            n *= 2
    yield from go(0, want)


def _warp_splits(sizes: list[int]) -> Iterator[list[int]]:
    """Ways to give warps to axes: divisors of what is left of an axis, and powers of two; at most 16 in all."""
    def go(i: int, left: int) -> Iterator[list[int]]:
        if i == len(sizes):
            yield []
            return
        for n in range(1, min(left, sizes[i]) + 1):
            if sizes[i] % n == 0 or n == sizes[i]:
                for tail in go(i + 1, left // n):
                    yield [n, *tail]
    yield from go(0, MAX_THREADS // 32)


def _layout(problem: Problem, axes: list[Axis], vector: str | None, width: int, lanes: list[int], warps: list[int]) -> Layout:
    out: list[tuple[str, tuple[Factor, ...]]] = []
    lane_step, warp_step = 1, 32
    steps: dict[str, tuple[int, int]] = {}
    order = sorted(range(len(axes)), key=lambda i: axes[i].name != vector)
    for i in order:  # The contiguous axis takes the lowest lanes.
        steps[axes[i].name] = (lane_step, warp_step)
        lane_step, warp_step = lane_step * lanes[i], warp_step * warps[i]
    for axis, lane, warp in zip(axes, lanes, warps, strict=True):
        vec = width if axis.name == vector else 1
        reg = -(-axis.size // (vec * lane * warp))
        factors = [Factor(REG, reg), Factor(THREAD, warp, steps[axis.name][1]), Factor(THREAD, lane, steps[axis.name][0]), Factor(VEC, vec)]
        out.append((axis.name, _whole(problem, axis.name, [f for f in factors if f.extent > 1])))
    return Layout(tuple(out) + _held(problem))


def _held(problem: Problem) -> tuple[tuple[str, tuple[Factor, ...]], ...]:
    """Held axes lie in registers under every layout."""
    return tuple((a.name, (Factor(REG, a.size),)) for a in problem.graph.axes if a.name in problem.held)


def _whole(problem: Problem, axis: str, factors: list[Factor]) -> tuple[Factor, ...]:
    """The factors with the grid's digit in front, where the grid splits the axis."""
    for name, blocks, part in problem.grid.axes:
        if name == axis and part != 1 and isinstance(blocks, int):
            return (Factor(GRID, blocks), *factors)
    return tuple(factors)


# ---- everything else -------------------------------------------------------------------------------------------------------------

def _groups(problem: Problem, layout: Layout) -> list[tuple[tuple[Axis, ...], list[Node]]]:
    """Connected nodes of equal local domain, the anchor's own left out, in order of first use; reductions go with their domain."""
    parent: dict[str, str] = {}

    def root(x: str) -> str:
        while parent[x] != x:
            x = parent[x]
        return x

    domains = {n.name: problem.spread(problem.domain(n)) for n in problem.graph.nodes}
    after = _after(problem, frozenset(a for a, _ in layout.axes) - problem.held)
    for node in problem.graph.nodes:
        parent[node.name] = node.name
        for ref in operands(node.op):
            other = problem.table[ref.value]
            value = problem.spread(problem.axes(other))
            if not any(a in value for a, _ in ref.bind) and domains[node.name] == domains[other.name] \
                    and (node.name in after) == (other.name in after):
                parent[root(node.name)] = root(other.name)
    groups: dict[str, list[Node]] = {}
    pinned = _indices(problem)
    for node in problem.graph.nodes:
        if node.name not in pinned:
            groups.setdefault(root(node.name), []).append(node)
    anchor = frozenset(a for a, _ in layout.axes) - problem.held
    return [(_domain(problem, nodes), nodes) for nodes in groups.values() if domains[nodes[0].name] != anchor]


def _indices(problem: Problem) -> frozenset[str]:
    """Values that say where memory is accessed, and what they are made of: every thread makes them for itself."""
    found: set[str] = set()
    for node in reversed(problem.graph.nodes):
        direct = {id(r) for r in operands(node.op)}
        found |= {r.value for r in refs(node.op) if node.name in found or id(r) not in direct}
    return frozenset(found)


def _after(problem: Problem, anchor: frozenset[str]) -> frozenset[str]:
    """Values that depend on the anchor's region: they can only be made when it is done, the others before or beside it."""
    found: set[str] = set()
    for node in problem.graph.nodes:
        if problem.spread(problem.domain(node)) == anchor or any(r.value in found for r in operands(node.op)):
            found.add(node.name)
    return frozenset(found)


def _domain(problem: Problem, nodes: list[Node]) -> tuple[Axis, ...]:
    """The axes of a group: those its nodes share, and every held axis of any of them."""
    seen = {a.name: a for n in nodes for a in problem.domain(n)}
    return tuple(seen.values())


def _complete(problem: Problem, anchor: Node, layout: Layout, threads: int) -> Placement | None:
    names = {a for a, _ in layout.axes}
    layouts: dict[str, Layout] = {}
    for node in problem.graph.nodes:
        mine = tuple(a.name for a in problem.domain(node))
        if set(mine) <= names:
            layouts[node.name] = layout.project(mine)
    busy = [0.0] * (threads // 32)
    for axes, nodes in _groups(problem, layout):
        flat = _flat(problem, axes, nodes, threads)
        projected = layouts.get(nodes[0].name)
        if projected is not None and _group_cost(problem, nodes, projected, layout, threads) <= _group_cost(problem, nodes, flat, layout, threads):
            continue
        flat = _shift(flat, busy, sum(node_cost(problem, n, flat) for n in nodes))
        layouts.update({n.name: flat.project(tuple(a.name for a in problem.domain(n))) for n in nodes})
    need = _live(problem, layouts) + OTHER_REGISTERS
    if need > min(REGISTERS // threads, 255):
        return None
    blocks = 2 if need <= REGISTERS // (2 * threads) else 1
    placed = Placement(anchor.name, threads, problem.grid, layouts, _results(problem, layouts), 0.0, blocks)
    return replace(placed, cost=block_cost(problem, placed))


def _live(problem: Problem, layouts: dict[str, Layout]) -> int:
    """Registers of a thread that hold loaded values at once: all loads of all threads are in flight together."""
    return sum(elements(layouts[n.name], tuple(a.name for a in problem.domain(n)))
               for n in problem.graph.nodes if isinstance(n.op, Load) and not layouts[n.name].count)


def _shift(flat: Layout, busy: list[float], spent: float) -> Layout:
    """The flat layout on the warps that have least to do, so that regions run side by side; `busy` is brought up to date."""
    need = -(-flat.count // 32)
    first = min(range(len(busy) - need + 1), key=lambda w: (max(busy[w:w + need]), w))
    for warp in range(first, first + need):
        busy[warp] += spent
    return Layout(flat.axes, 32 * first, 0 if flat.count == 32 * len(busy) else flat.count)


def _flat(problem: Problem, axes: tuple[Axis, ...], nodes: list[Node], threads: int) -> Layout:
    """One element of the domain per thread as far as threads go; reduced axes within a warp; a domain of one element on one thread."""
    free = [a for a in axes if a.name not in problem.held]
    reduced = {a.name for n in nodes if isinstance(n.op, Reduce) for a in problem.grid.local(n.op.axes)}
    order = _memory_order(problem, nodes, free)
    out: dict[str, list[Factor]] = {a.name: [Factor(REG, a.size)] for a in axes if a.name in problem.held}
    step = 1
    for axis in sorted(order, key=lambda a: a.name not in reduced):
        limit = 32 // step if axis.name in reduced and step < 32 else (1 if axis.name in reduced else threads // step)
        count = min(axis.size, limit) if axis.name not in reduced else min(1 << (axis.size - 1).bit_length(), max(limit, 1))
        if axis.name not in reduced and count < axis.size:
            count = max((d for d in range(1, count + 1) if axis.size % d == 0), default=1)
        factors = [Factor(REG, -(-axis.size // max(count, 1))), Factor(THREAD, count, step)]
        out[axis.name] = [f for f in factors if f.extent > 1]
        step *= max(count, 1)
    split = tuple((a.name, _whole(problem, a.name, _warp_aligned(out[a.name]))) for a in axes)
    return Layout(split, 0, step)


def _warp_aligned(factors: list[Factor]) -> list[Factor]:
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
            order += [name for _, name in sorted(strides(problem.graph, node)) if name not in order]
    rank = {name: i for i, name in enumerate(order)}
    return sorted(reversed(axes), key=lambda a: rank.get(a.name, len(rank)))


def _results(problem: Problem, layouts: dict[str, Layout]) -> dict[str, Layout]:
    """Where reductions leave their results: projected where a warp suffices, else as the first reader wants it."""
    found: dict[str, Layout] = {}
    for node in problem.graph.nodes:
        if not isinstance(node.op, Reduce):
            continue
        mine = layouts[node.name]
        kept = tuple(a.name for a in problem.axes(node))
        if not crosses_warps(mine, tuple(a.name for a in problem.grid.local(node.op.axes))):
            found[node.name] = mine.project(kept)
            continue
        if not kept:
            found[node.name] = Layout(())
            continue
        readers = [layouts[r.name] for r in problem.graph.readers(node.name)
                   if set(kept) == {a.name for a in problem.domain(r)} and all(layouts[r.name].has(a) for a in kept)]
        found[node.name] = readers[0].project(kept) if readers else _everywhere(mine.project(kept))
    return found


def _everywhere(layout: Layout) -> Layout:
    """The same map, on all threads: what every thread reads back from shared memory."""
    return Layout(layout.axes)


# ---- counting --------------------------------------------------------------------------------------------------------------------

def free_edge(problem: Problem, ref: Ref, producer: Layout, consumer: Layout) -> bool:
    """Whether the reader's thread holds what it reads."""
    binds = dict(ref.bind)
    node = problem.table[ref.value]
    if (producer.first, producer.count) != (0, 0) and (producer.first, producer.count) != (consumer.first, consumer.count):
        return False
    for axis in problem.axes(node):
        index = binds.get(axis.name)
        if index is None or (index.axis == axis.name and index.offset == 0):
            if not consumer.has(axis.name) or producer.factors(axis.name) != consumer.factors(axis.name):
                return False
        elif not in_registers(producer, axis.name):
            if index.axis is None or index.offset or not consumer.has(index.axis) or producer.factors(axis.name) != consumer.factors(index.axis):
                return False
        elif index.axis is not None and not (consumer.has(index.axis) and in_registers(consumer, index.axis)):
            return False
    return True


def node_cost(problem: Problem, node: Node, layout: Layout) -> float:
    """Issue slots of a thread for one node under a layout, its edges not counted."""
    names = tuple(a.name for a in problem.domain(node))
    count = elements(layout, names)
    if isinstance(node.op, (Load, Store)):
        vec = max((f.extent for a in names for f in layout.factors(a) if f.place == VEC), default=1)
        width = min(vec, VECTOR_BYTES // BYTES[node.dtype])
        return 6 + count / width * 2 * _uncoalesced(problem, node, layout, width) + (count if node.dtype in NARROW else 0)
    if isinstance(node.op, Map):
        return count * (cost(node.op.fn) + (2 if node.dtype in NARROW else 0))
    if isinstance(node.op, Reduce):
        kept = elements(layout, tuple(a.name for a in problem.axes(node)))
        steps = sum((f.extent - 1).bit_length() for _, _, f in thread_factors(layout, tuple(a.name for a in problem.grid.local(node.op.axes)))
                    if f.step < 32)
        warps = prod(f.extent for _, _, f in thread_factors(layout, tuple(a.name for a in problem.grid.local(node.op.axes))) if f.step >= 32)
        return count + kept * steps * 2.5 + (BARRIER + kept * (2 + warps) if warps > 1 else 0)
    return 0.0


def _uncoalesced(problem: Problem, node: Node, layout: Layout, width: int) -> float:
    """How many times more sectors an access touches than it needs."""
    run = width * BYTES[node.dtype]
    near = {name: step for step, name in strides(problem.graph, node)}
    for axis in problem.domain(node):
        if near.get(axis.name) == 1:
            run *= prod(f.extent for _, _, f in thread_factors(layout, (axis.name,)) if f.step < 32)
    return max(1.0, 64 / run) if layout.axes else 1.0


def _edge_cost(problem: Problem, ref: Ref, producer: Layout, consumer: Layout) -> float:
    if free_edge(problem, ref, producer, consumer):
        return 0.0
    names = tuple(a.name for a in problem.axes(problem.table[ref.value]))
    binds = dict(ref.bind)
    read = tuple(a for a in (binds[n].axis if n in binds else n for n in names) if a is not None and consumer.has(a))
    vec = max((f.extent for a in read for f in consumer.factors(a) if f.place == VEC), default=1)
    return elements(producer, names) * 1.5 + elements(consumer, read) / min(vec, 4) * 1.5


def _group_cost(problem: Problem, nodes: list[Node], mine: Layout, anchor: Layout, threads: int) -> float:
    """What a group costs the warps of a block under a layout, other groups being projections of the anchor.

    An exchange that waits for other computed values is a barrier of its own; one that only waits for loads shares the first.
    """
    inside = {n.name for n in nodes}
    share = -(-(mine.count or threads) // 32) * 32 / threads
    total, barrier = sum(node_cost(problem, n, mine) for n in nodes) * share, 0.0
    waits = any(r.value not in inside and not isinstance(problem.table[r.value].op, Load) for n in nodes for r in operands(n.op))
    for node in nodes:
        value = mine.project(tuple(a.name for a in problem.axes(node)))
        for ref in operands(node.op):
            names = tuple(a.name for a in problem.axes(problem.table[ref.value]))
            if ref.value not in inside and all(anchor.has(a) for a in names):
                spent = _edge_cost(problem, ref, anchor.project(names), mine) * share
                total, barrier = total + spent, max(barrier, BARRIER if spent else 0.0)
        for reader in problem.graph.readers(node.name):
            wanted = tuple(a.name for a in problem.domain(reader))
            for ref in operands(reader.op) if reader.name not in inside and all(anchor.has(a) for a in wanted) else ():
                spent = _edge_cost(problem, ref, value, anchor.project(wanted)) if ref.value == node.name else 0.0
                total, barrier = total + spent, max(barrier, (BARRIER if waits else BARRIER / 8) if spent else 0.0)
    return total + barrier


# Measured on one H200: two blocks of 512 threads per multiprocessor beat one by a fifth on a 64 KB state (docs/falsification.md).
SINGLE_BLOCK = 1.2


def block_cost(problem: Problem, placed: Placement) -> float:
    """Issue slots of the longest warp or of a scheduler's share of all warps, whichever is more; latencies only through BARRIER."""
    total = 0.0
    for node in problem.graph.nodes:
        mine = placed.layouts[node.name]
        share = -(-(mine.count or placed.threads) // 32) * 32 / placed.threads
        total += node_cost(problem, node, mine) * share
        for ref in operands(node.op):
            total += _edge_cost(problem, ref, placed.result(problem.table[ref.value]), mine) * share
    warps = placed.threads / 32
    return total * max(warps / 4, 2.0) * (SINGLE_BLOCK if placed.min_blocks == 1 else 1.0)
