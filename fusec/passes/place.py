"""After this pass every value has a layout: the anchor first, all others as its projections or flat over threads.

The layout of a node is that of its domain; a reduction has one for its result as well. Every admissible layout of the anchor is
tried, cheapest first by its own work, and the block that costs least is taken.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf, prod

from ..errors import ResourceError
from ..ir.dtype import BYTES
from ..ir.geometry import elements
from ..ir.graph import Join, Load, Map, Node, Reduce, Store
from ..ir.plan import Layout
from .candidates import ranked
from .clusters import clusters
from .price import issue_share, memory_cycles
from .problem import MAX_THREADS, Placement, Problem
from .regions import find_groups, live_registers, side_by_side
from .search import Outline, Search, make_search
from .walks import like, walks

SINGLE_BLOCK = 1.2  # Times the cost: two blocks of 512 threads on a multiprocessor beat one by a fifth (docs/falsification.md).
SPARE = 16  # Registers of a thread, beyond those counted, that a third block on a multiprocessor must leave.
MOST_BLOCKS = 4
WALK = 1.35  # Times the cost: 1.2 and 1.4 measured (docs/decisions/placement.md).
PEER = 500.0  # Cycles that a block waits for each block of its cluster: a fence, a barrier, skew, multiprocessors left over.
CLUSTER_WORTH = 1.12  # Times the work of one block that all blocks of a cluster may have,
SPILL_WORTH = 1.5  # and where it spills with two blocks on a multiprocessor.
CLUSTER_CLOSE = 0.97  # Of a block's cost: what a cluster along an axis further in must save; its pieces of memory are smaller.
DEAR = 1.2  # Times that: beyond, larger clusters along the axis are not looked at.
ROUNDED = 1 - 1e-9  # A lower bound, less what rounding may have added to it.
HIDDEN = 0.75  # Of the lesser of computing and moving memory: the share that takes no time where blocks overlap.


def place(problem: Problem) -> tuple[Problem, Placement]:
    """The cheapest placement, and the problem with the walk that it takes.

    A block that cannot hold the anchor's loads walks along one of its axes. Where the order of a sum is fixed and no layout has it,
    the layout gives the order. Raises ResourceError where no layout of the anchor fits the registers of a block.
    """
    found = _placed(problem)
    if found is None and problem.orders:
        found = _placed(replace(problem, ordered=False))
    found = _shared_out(problem, found)
    if found is None:
        raise _refusal(problem, find_anchor(problem))
    return found


def _shared_out(problem: Problem, found: tuple[Problem, Placement] | None) -> tuple[Problem, Placement] | None:
    """The blocks of a cluster in place of one block that walks, that is alone on its multiprocessor or whose layouts spill, where
    all of them together cost little more: then the cluster whose blocks take least time, since one block for so much leaves most of
    the device idle where there are few rows."""
    if found is not None and found[0].walk is None and found[1].min_blocks > 1 and not problem.avoid:
        return found
    anchor = find_anchor(problem)
    walk = found[0].walk if found is not None else None
    best, least = found, inf
    most = (CLUSTER_WORTH if walk is not None else SPILL_WORTH) * _spent(*found) if found is not None else inf
    dear: set[str] = set()
    for shared in clusters(problem, anchor):
        if shared.grid.cluster in dear:
            continue
        tried = [shared] if _held(shared, anchor) <= _most_held(shared) else []
        if walk is not None and shared.grid.cluster != walk.axis:
            tried += like(shared, anchor, walk, shared.grid.peers)
        for one in tried:
            placed = _cheapest(one, anchor)
            if placed is None or placed.alone:
                continue
            cost = _spent(one, placed)
            if cost * one.grid.peers > DEAR * most:
                dear.add(shared.grid.cluster)
            if cost * one.grid.peers <= most and cost < least * CLUSTER_CLOSE:
                best, least = (one, placed), cost
    return best


def _spent(problem: Problem, placed: Placement) -> float:
    """Cycles of a block as measured, not as priced: a walk's turns wait for their loads, the blocks of a cluster for each other."""
    cost = placed.cost * (WALK if problem.walk is not None else 1.0)
    return cost + (PEER * problem.grid.peers if problem.grid.cluster else 0.0)


def _placed(problem: Problem) -> tuple[Problem, Placement] | None:
    """The whole anchor in registers where it fits and leaves room for a second block, else that or the cheapest walk."""
    anchor = find_anchor(problem)
    held, most = _held(problem, anchor), _most_held(problem)
    whole = _cheapest(problem, anchor) if held <= most else None
    best = (problem, whole) if whole is not None else None
    if whole is not None and whole.min_blocks > 1:
        return best
    for walked in walks(problem, anchor, held, min(most, held // 2)):
        found = _cheapest(walked, anchor, best[1].cost if best is not None else inf)
        if found is not None and (best is None or found.cost < best[1].cost):
            best = walked, found
    return best


def _cheapest(problem: Problem, anchor: Node, limit: float = inf) -> Placement | None:
    """The cheapest placement, of equals that of the first layout; None where there is none, or none that costs at most `limit`.

    Layouts are searched in the order of what they cost at least, as far as that is no more than what is found.
    """
    outline = Outline(problem, find_groups(problem, problem.spread(problem.domain(anchor))))
    searches = [make_search(outline, layout, threads) for layout, threads in ranked(problem, anchor)]
    bounds = [(_at_least(problem, anchor, s), i, s) for i, s in enumerate(searches) if s is not None]
    best, first = None, 0
    for least, number, search in sorted(bounds, key=lambda b: b[:2]):
        if least > limit:
            break
        found = _complete(problem, anchor, search)
        if found is not None and (best is None or (found.cost, number) < (best.cost, first)):
            best, first, limit = found, number, min(limit, found.cost)
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
    return max(t * (problem.target.registers(t) - problem.reserve) for t in (128, 256, MAX_THREADS))


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


# ---- the whole block -------------------------------------------------------------------------------------------------------------


def _at_least(problem: Problem, anchor: Node, search: Search) -> float:
    """Cycles that a block costs at least with the anchor's layout of a search, whichever groups are flat."""
    slots, waits = search.least()
    fixed = search.projections()
    alone = live_registers(problem, fixed) + problem.reserve > problem.target.registers(search.threads, 2)
    blocks = 1 if alone else MOST_BLOCKS
    return _overlapped(slots * issue_share(search.threads, blocks) + waits, memory_cycles(problem, anchor, fixed), blocks) * ROUNDED


def _complete(problem: Problem, anchor: Node, search: Search) -> Placement | None:
    threads = search.threads
    choice, read = search.best()
    buffers = search.buffers(choice)
    if problem.beyond(buffers):
        return None
    slots, waits, _ = search.parts(choice)
    layouts = search.layouts(choice)
    busy = [0.0] * (threads // 32)
    for i, group in enumerate(search.outline.groups):
        if choice[i]:
            spent = sum(search.spent(n) for n in group.nodes)
            whole = side_by_side(Layout(layouts[group.nodes[0]].axes, 0, layouts[group.nodes[0]].count), busy, spent)
            layouts.update({n: replace(layouts[n], first=whole.first, count=whole.count) for n in group.nodes})
    flat_need = _flat_registers(problem, layouts, threads)
    need = max(live_registers(problem, layouts) + read // 2, flat_need) + problem.reserve
    if need > problem.target.registers(threads):
        return None
    room = _resident_blocks(problem, layouts, threads, need, read, flat_need)
    blocks = min(room, problem.target.blocks(sum(buffers)))
    return Placement(
        anchor.name,
        threads,
        problem.grid,
        layouts,
        _results(problem, layouts),
        _overlapped(slots * issue_share(threads, blocks) + waits, memory_cycles(problem, anchor, layouts), blocks),
        blocks,
        room == 1,
    )


def _flat_registers(problem: Problem, layouts: dict[str, Layout], threads: int) -> int:
    """Registers of a thread for flat groups, where it has most of them: what they load and the largest value they make of it. The
    anchor's own loads come after these."""
    loaded, made = [0] * (threads // 32), [0] * (threads // 32)
    for node in problem.graph.nodes:
        layout = layouts[node.name]
        if layout.count:
            held = elements(layout, tuple(a.name for a in problem.domain(node)))
            for warp in range(layout.first // 32, -(-(layout.first + layout.count) // 32)):
                if isinstance(node.op, Load):
                    loaded[warp] += held
                elif isinstance(node.op, (Map, Join)):
                    made[warp] = max(made[warp], held)
    return max(a + b for a, b in zip(loaded, made, strict=True))


def _resident_blocks(problem: Problem, layouts: dict[str, Layout], threads: int, need: int, read: int, flat: int) -> int:
    """Blocks that a multiprocessor is to hold at once: two where they fit, more where there is room to spare."""
    target = problem.target
    if need > target.registers(threads, 2):
        return 1
    spare = max(live_registers(problem, layouts, packed=True) + read // 2, flat) + problem.reserve + SPARE
    most = min(MOST_BLOCKS, target.threads_sm // threads)
    return max(b for b in range(2, max(most, 2) + 1) if b == 2 or spare <= target.registers(threads, b))


def _overlapped(compute: float, memory: float, blocks: int) -> float:
    """Cycles of a block: alone on a multiprocessor it loads, computes and stores in turn, beside another one it does so meanwhile.

    Measured on one H200 (benchmarks/results): with 64 KB of state each, 410 µs with one block where two take 304.
    """
    return (compute + memory) * SINGLE_BLOCK if blocks == 1 else compute + memory - HIDDEN * min(compute, memory)


def _results(problem: Problem, layouts: dict[str, Layout]) -> dict[str, Layout]:
    """Where reductions leave their results: projected where a warp suffices, else as the first reader wants it."""
    found: dict[str, Layout] = {}
    for node in problem.graph.nodes:
        if not isinstance(node.op, Reduce):
            continue
        mine = layouts[node.name]
        kept = tuple(a.name for a in problem.axes(node))
        if not problem.crosses(node, mine):
            found[node.name] = mine.project(kept)
            continue
        readers = [
            layouts[r.name]
            for r in problem.graph.readers(node.name)
            if set(kept) == {a.name for a in problem.domain(r)} and _together(problem, node, r)
        ]
        found[node.name] = readers[0].project(kept) if readers and kept else Layout(mine.project(kept).axes)
    return found


def _together(problem: Problem, node: Node, reader: Node) -> bool:
    """Whether the result of a reduction is there for its reader in the same turn, or outside of any walk."""
    assert isinstance(node.op, Reduce)
    walk = problem.walk
    if walk is None or not walk.within(node.name) or any(a.name == walk.axis for a in node.op.axes):
        return True
    return walk.phases[node.name] == walk.phases[reader.name]
