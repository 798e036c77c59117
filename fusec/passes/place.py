"""After this pass every value has a layout: the anchor first, all others as its projections or flat over threads.

The layout of a node is that of its domain; a reduction has one for its result as well. Every admissible layout of the anchor is
tried,
cheapest first by its own work, and the block that costs least is taken.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from math import gcd, prod

from ..errors import ResourceError
from ..ir.axis import Axis
from ..ir.dtype import BYTES
from ..ir.geometry import crosses_warps
from ..ir.graph import Load, Node, Reduce, Store
from ..ir.plan import REG, THREAD, VEC, Factor, Layout
from .choose_grid import strides
from .price import node_cost
from .problem import MAX_THREADS, OTHER_REGISTERS, VECTOR_BYTES, Placement, Problem
from .stream import streams
from .regions import Group, find_groups, live_registers, make_search, side_by_side, with_grid

MOST_CANDIDATES = 5000  # Layouts looked at: beyond, a domain of many axes would take minutes.
TRIED = 48  # Layouts of the anchor for which the regions beside it are searched.
# Measured on one H200: two blocks of 512 threads per multiprocessor beat one by a fifth on a 64 KB state (docs/falsification.md).
SINGLE_BLOCK = 1.2


def place(problem: Problem) -> tuple[Problem, Placement]:
    """The cheapest placement, and the problem with the walk that it takes.

    A block that cannot hold the anchor's loads walks along one of its axes. Where the order of a sum is fixed and no layout has it,
    the layout gives the order. Raises ResourceError where no layout of the anchor fits the registers of a block.
    """
    found = _placed(problem)
    if found is None and problem.orders:
        found = _placed(replace(problem, ordered=False))
    if found is None:
        raise _refusal(problem, find_anchor(problem))
    return found


def _placed(problem: Problem) -> tuple[Problem, Placement] | None:
    """The whole anchor in registers where it fits, else the cheapest walk."""
    anchor = find_anchor(problem)
    held, most = _held(problem, anchor), _most_held(problem)
    whole = _cheapest(problem, anchor) if held <= most else None
    if whole is not None:
        return problem, whole
    best: tuple[Problem, Placement] | None = None
    for walked in streams(problem, anchor, held, most):
        found = _cheapest(walked, anchor)
        if found is not None and (best is None or found.cost < best[1].cost):
            best = walked, found
    return best


def _cheapest(problem: Problem, anchor: Node) -> Placement | None:
    groups = find_groups(problem, problem.spread(problem.domain(anchor)))
    best: Placement | None = None
    for layout, threads in _ranked(problem, anchor):
        found = _complete(problem, anchor, groups, layout, threads)
        if found is not None and (best is None or found.cost < best.cost):
            best = found
    return best


def find_anchor(problem: Problem) -> Node:
    """The node whose domain holds most bytes of memory traffic, over all accesses of that domain."""
    weight: dict[frozenset[str], int] = {}
    for node in problem.graph.nodes:
        axes = problem.domain(node)
        bytes_ = prod(a.size for a in axes) * (BYTES[node.dtype] if isinstance(node.op, (Load, Store)) else 0)
        weight[problem.spread(axes)] = weight.get(problem.spread(axes), 0) + bytes_
    nodes = [n for n in problem.graph.nodes if isinstance(n.op, (Load, Store))]
    return max(
        nodes,
        key=lambda n: (weight[problem.spread(problem.domain(n))], len(problem.domain(n)), isinstance(n.op, Load), BYTES[n.dtype]),
    )


def _most_held(problem: Problem) -> int:
    """Values that a block can hold in registers beside what else it needs."""
    return max(t * (problem.target.registers(t) - OTHER_REGISTERS) for t in (128, 256, MAX_THREADS))


def _resident(problem: Problem, anchor: Node) -> list[Node]:
    """The Loads of the anchor's domain: a block holds them all."""
    domain = problem.spread(problem.domain(anchor))
    return [n for n in problem.graph.nodes if isinstance(n.op, Load) and problem.spread(problem.domain(n)) == domain]


def _held(problem: Problem, anchor: Node) -> int:
    return sum(prod(a.size for a in problem.domain(n)) for n in _resident(problem, anchor))


def _refusal(problem: Problem, anchor: Node) -> ResourceError:
    loads = [n.op.tensor for n in _resident(problem, anchor) if isinstance(n.op, Load)]
    what = " and ".join(dict.fromkeys(loads)) or anchor.name
    shape = " x ".join(f"{a.name}={a.size}" for a in problem.domain(anchor))
    need, limit = 4 * _held(problem, anchor), 4 * _most_held(problem)
    if need <= limit:
        return ResourceError(
            f"no layout of {what} ({shape}, {need} bytes) leaves the threads of a block registers for what they need beside it",
            anchor.loc,
            "split the function in two, or use smaller heads",
        )
    return ResourceError(
        f"a block must hold {need} bytes of {what} ({shape}) in registers, and at most {limit} fit",
        anchor.loc,
        "a result that has one of these axes lets the grid split it; or use smaller heads",
    )


# ---- candidates for the anchor ---------------------------------------------------------------------------------------------------


def _ranked(problem: Problem, anchor: Node) -> list[tuple[Layout, int]]:
    """Candidates that fit, the cheapest for the anchor's own domain first."""
    domain = problem.spread(problem.domain(anchor))
    mine = [n for n in problem.graph.nodes if problem.spread(problem.domain(n)) == domain]
    orders = {a: k for n in mine for a, k in problem.orders.get(n.name, {}).items()}
    held, none = {n.name for n in mine if isinstance(n.op, Load)}, Layout((), 0, 1)
    found: list[tuple[float, int, Layout, int]] = []
    for number, (layout, threads) in enumerate(itertools.islice(_candidates(problem, anchor, orders), MOST_CANDIDATES)):
        need = live_registers(problem, {n.name: layout if n.name in held else none for n in problem.graph.nodes})
        if need + OTHER_REGISTERS <= problem.target.registers(threads):
            spent = sum(node_cost(problem, n, layout) for n in mine) * max(threads / 128, 2.0)
            found.append((spent, number, layout, threads))
    return [(layout, threads) for _, _, layout, threads in sorted(found, key=lambda f: f[:2])[:TRIED]]


def _runs(problem: Problem, anchor: Node) -> tuple[str | None, frozenset[str]]:
    """The axis next to which held axes lie in the anchor's memory, and these: position by position they are one run of neighbours.

    A window [channels, taps] of strides (taps, 1) that a thread holds all taps of.
    """
    run, inner = 1, set[str]()
    for step, name in sorted(strides(problem.graph, anchor)):
        if step != run or name not in problem.held:
            return (name, frozenset(inner)) if step == run and inner else (None, frozenset())
        inner.add(name)
        run *= problem.graph.axis(name).size
    return None, frozenset()


def _run_widths(problem: Problem, anchor: Node, axis: Axis) -> tuple[int, ...]:
    """Positions of an axis that make a whole access, or half of one, together with the held axes next to it: of every access beside
    the anchor."""
    spread = problem.spread(problem.domain(anchor))
    found = set[int]()
    for node in problem.graph.nodes:
        if isinstance(node.op, (Load, Store)) and problem.spread(problem.domain(node)) == spread:
            name, inner = _runs(problem, node)
            run = prod(problem.graph.axis(a).size for a in inner) if name == axis.name else 1
            whole = VECTOR_BYTES // BYTES[node.dtype]
            found |= {whole // gcd(whole, run), whole // gcd(whole, run) // 2} - {0, 1}
    return tuple(sorted(n for n in found if axis.size % n == 0)) or (1,)


def _contiguous(problem: Problem, anchor: Node, axes: list[Axis]) -> tuple[str | None, tuple[int, ...]]:
    """The axis along which the anchor's memory is contiguous, and the widths in elements that accesses of its domain may have."""
    name = next((name for step, name in sorted(strides(problem.graph, anchor)) if step == 1 and name not in problem.held), None)
    local = next((a for a in axes if a.name == name), None)
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


def _candidates(problem: Problem, anchor: Node, orders: dict[str, int]) -> Iterator[tuple[Layout, int]]:
    walk = problem.stream
    axes = [
        Axis(a.name, walk.part) if walk is not None and walk.axis == a.name else a
        for a in problem.domain(anchor)
        if a.name not in problem.held
    ]
    if any(walk is not None and a.name == walk.axis and walk.part % orders.get(a.name, 1) for a in axes):
        return
    vector, inner = _runs(problem, anchor)
    if vector is None:
        vector, widths = _contiguous(problem, anchor, axes)
    else:
        widths = _run_widths(problem, anchor, next(a for a in axes if a.name == vector))
    fixed = [orders.get(a.name) for a in axes]
    for width in widths if vector not in orders else (1,):
        sizes = [-(-a.size // width) if a.name == vector else a.size for a in axes]
        for lanes in _lane_splits([max(s, k or 1) for s, k in zip(sizes, fixed, strict=True)], 32):
            rest = [1 if k else -(-s // n) for s, n, k in zip(sizes, lanes, fixed, strict=True)]
            if any(k and n != k for n, k in zip(lanes, fixed, strict=True)):
                continue
            for warps in _warp_splits(rest):
                if 32 * prod(warps) <= MAX_THREADS:
                    yield _layout(problem, axes, vector, width, lanes, warps, inner), 32 * prod(warps)


def _lane_splits(sizes: list[int], total: int) -> Iterator[list[int]]:
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
    """Ways to give warps to axes: divisors of what is left of an axis."""

    def go(i: int, left: int) -> Iterator[list[int]]:
        if i == len(sizes):
            yield []
            return
        for n in range(1, min(left, sizes[i]) + 1):
            if sizes[i] % n == 0:
                for tail in go(i + 1, left // n):
                    yield [n, *tail]

    yield from go(0, MAX_THREADS // 32)


def _layout(
    problem: Problem,
    axes: list[Axis],
    vector: str | None,
    width: int,
    lanes: list[int],
    warps: list[int],
    inner: frozenset[str],
) -> Layout:
    """Per axis, from the outermost digit: registers, warps, lanes, vector; the contiguous axis takes the lowest lanes.

    Where held axes lie next to it in memory, they are the vector, and it has registers in its place.
    """
    out: list[tuple[str, tuple[Factor, ...]]] = []
    lane_step, warp_step = 1, 32
    steps: dict[str, tuple[int, int]] = {}
    for i in sorted(range(len(axes)), key=lambda i: axes[i].name != vector):
        steps[axes[i].name] = (lane_step, warp_step)
        lane_step, warp_step = lane_step * lanes[i], warp_step * warps[i]
    for axis, lane, warp in zip(axes, lanes, warps, strict=True):
        vec = width if axis.name == vector else 1
        reg = -(-axis.size // (vec * lane * warp))
        factors = [
            Factor(REG, reg),
            Factor(THREAD, warp, steps[axis.name][1]),
            Factor(THREAD, lane, steps[axis.name][0]),
            Factor(REG if inner else VEC, vec),
        ]
        out.append((axis.name, with_grid(problem, axis.name, [f for f in factors if f.extent > 1], True)))
    beside = inner | _innermost(problem) if inner else inner
    held = tuple(
        (a.name, (Factor(VEC if a.name in beside else REG, a.size),)) for a in problem.graph.axes if a.name in problem.held
    )
    return Layout(tuple(out) + held)


def _innermost(problem: Problem) -> frozenset[str]:
    """Held axes along which some memory is contiguous."""
    accesses = [n for n in problem.graph.nodes if isinstance(n.op, (Load, Store))]
    return frozenset(name for n in accesses for step, name in strides(problem.graph, n) if step == 1) & problem.held


# ---- the whole block -------------------------------------------------------------------------------------------------------------


def _complete(problem: Problem, anchor: Node, groups: tuple[Group, ...], layout: Layout, threads: int) -> Placement | None:
    search = make_search(problem, layout, groups, threads)
    if search is None:
        return None
    choice, cost, read = search.best()
    flat = {n: choice[i] for n, i in search.home.items()}
    layouts = {n.name: search.layout(n.name, flat.get(n.name, 0)) for n in problem.graph.nodes}
    busy = [0.0] * (threads // 32)
    for i, group in enumerate(groups):
        if choice[i]:
            spent = sum(search.node(n, 1)[0] for n in group.nodes)
            whole = side_by_side(Layout(layouts[group.nodes[0]].axes, 0, layouts[group.nodes[0]].count), busy, spent)
            layouts.update({n: replace(layouts[n], first=whole.first, count=whole.count) for n in group.nodes})
    need = live_registers(problem, layouts) + read // 2 + OTHER_REGISTERS
    if need > problem.target.registers(threads):
        return None
    blocks = 2 if need <= problem.target.registers(threads, 2) else 1
    return Placement(
        anchor.name,
        threads,
        problem.grid,
        layouts,
        _results(problem, layouts),
        cost * (SINGLE_BLOCK if blocks == 1 else 1.0),
        blocks,
        problem.stream,
    )


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
        readers = [layouts[r.name] for r in problem.graph.readers(node.name) if set(kept) == {a.name for a in problem.domain(r)}]
        found[node.name] = readers[0].project(kept) if readers and kept else Layout(mine.project(kept).axes)
    return found
