"""Layouts that the anchor may have: digits of its axes over registers, warps, lanes and vectors, the cheapest by itself first."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from math import gcd, prod

from ..ir.axis import Axis
from ..ir.dtype import BYTES
from ..ir.graph import Load, Node, Store
from ..ir.plan import REG, THREAD, VEC, Factor, Layout
from .price import issue_share, node_cost
from .problem import MAX_THREADS, VECTOR_BYTES, Problem
from .regions import live_registers, with_grid

MOST_CANDIDATES = 5000  # Layouts looked at: beyond, a domain of many axes would take minutes.
TRIED = 48  # Layouts of the anchor for which the regions beside it are searched.


def ranked(problem: Problem, anchor: Node) -> list[tuple[Layout, int]]:
    """Candidates that fit, the cheapest for the anchor's own domain first."""
    domain = problem.spread(problem.domain(anchor))
    mine = [n for n in problem.graph.nodes if problem.spread(problem.domain(n)) == domain]
    orders = {a: k for n in mine for a, k in problem.orders.get(n.name, {}).items()}
    held = [n.name for n in mine if isinstance(n.op, Load)]
    found: list[tuple[float, int, Layout, int]] = []
    for number, (layout, threads) in enumerate(itertools.islice(_candidates(problem, anchor, orders), MOST_CANDIDATES)):
        need = live_registers(problem, dict.fromkeys(held, layout))
        if need + problem.reserve <= problem.target.registers(threads) and layout not in problem.avoid:
            spent = sum(node_cost(problem, n, layout) for n in mine) * issue_share(threads)
            found.append((spent, number, layout, threads))
    return [(layout, threads) for _, _, layout, threads in sorted(found, key=lambda f: f[:2])[:TRIED]]


def _runs(problem: Problem, anchor: Node) -> tuple[str | None, frozenset[str]]:
    """The axis next to which held axes lie in the anchor's memory, and these: position by position they are one run of neighbours.

    A window [channels, taps] of strides (taps, 1) that a thread holds all taps of.
    """
    run, inner = 1, set[str]()
    for step, name in sorted(problem.strides(anchor)):
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
    name = next((name for step, name in sorted(problem.strides(anchor)) if step == 1 and name not in problem.held), None)
    local = next((a for a in axes if a.name == name), None)
    if local is None:
        return None, (1,)
    domain = {a.name for a in problem.domain(anchor)}
    near = [n for n in problem.graph.nodes if isinstance(n.op, (Load, Store)) and {a.name for a in problem.domain(n)} == domain]
    found = set()
    for node in near:
        for bytes_ in {VECTOR_BYTES, problem.vector_bytes(node)}:
            width = bytes_ // BYTES[node.dtype]
            while width > 1 and local.size % width:
                width //= 2
            found.add(width)
    return name, tuple(sorted(found))


def _candidates(problem: Problem, anchor: Node, orders: dict[str, int]) -> Iterator[tuple[Layout, int]]:
    walk = problem.walk
    axes = [
        Axis(a.name, walk.part) if walk is not None and walk.axis == a.name else a
        for a in problem.domain(anchor)
        if a.name not in problem.held
    ]
    if any(walk is not None and a.name == walk.axis and walk.part % orders.get(a.name, 1) for a in axes):
        return
    vector, inner = _runs(problem, anchor)
    beside = next((a for a in axes if a.name == vector), None)
    if beside is not None:
        widths = _run_widths(problem, anchor, beside)
    else:
        inner = frozenset()
        vector, widths = _contiguous(problem, anchor, axes)
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
    return frozenset(name for n in accesses for step, name in problem.strides(n) if step == 1) & problem.held
