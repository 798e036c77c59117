"""What a placement costs: issue slots of a thread per node and per exchange. Latencies appear only as the cost of a level."""

from __future__ import annotations

from math import prod

from ..ir.dtype import BYTES, NARROW
from ..ir.geometry import WARP_SIZE, elements, in_registers, registers, thread_factors, weight
from ..ir.graph import Load, Map, Node, Reduce, Ref, Store
from ..ir.plan import VEC, Layout
from ..ir.scalar import cost
from .problem import Problem

LEVEL = 400.0  # Cycles: write to shared memory, barrier, read back, and the skew of the warps.
HOLD = 200.0  # Cycles that a level more costs before the anchor's own stores: its registers and its memory traffic wait.
FEW = 0.4  # The least share of a block's time that a region on few threads costs: the others wait for its latencies.
SHUFFLE = 2.5
FAR = 300.0  # What a reduction across the blocks of a cluster waits for.
GAPS = 1.5  # An access whose neighbours in the warp are not its neighbours in memory: a vector of several accesses.
LARGE = 4096  # Elements of a block: memory traffic, not issue, is what such an access costs.
RATE = 20.0  # Bytes of memory per cycle and multiprocessor: about 17 on an H200, 29 by the data sheet of a B200.
BURST = 128  # Bytes next to each other below which memory is slower: with pieces of 64, by 4 to 14 % on an H200.
AGAIN = 0.5  # What a block reads a second time mostly comes from the second-level cache.


def free_edge(problem: Problem, reader: str, ref: Ref, producer: Layout, consumer: Layout) -> bool:
    """Whether the reader's thread holds what it reads."""
    binds = dict(ref.bind)
    node = problem.table[ref.value]
    if problem.walk is not None and problem.walk.between(ref.value, reader):
        return False
    if (producer.first, producer.count) != (0, 0) and (producer.first, producer.count) != (consumer.first, consumer.count):
        return False
    for axis in problem.axes(node):
        index = binds.get(axis.name)
        if index is None or (index.axis == axis.name and index.offset == 0):
            if not consumer.has(axis.name) or producer.factors(axis.name) != consumer.factors(axis.name):
                return False
        elif not (in_registers(producer, axis.name) and len(registers(producer, (axis.name,))) <= 1):
            if (
                index.axis is None
                or index.offset
                or not consumer.has(index.axis)
                or producer.factors(axis.name) != consumer.factors(index.axis)
            ):
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
        vec = max(vec, _run(problem, node, layout))
        width = min(vec, problem.vector_bytes(node) // BYTES[node.dtype])
        if not names:
            return 2.0
        apart = GAPS if vec > width else 1.0
        return 6 + count / width * 2 * _uncoalesced(problem, node, layout, width) * apart + (count if node.dtype in NARROW else 0)
    if isinstance(node.op, Map):
        return count * (cost(node.op.fn) + (2 if node.dtype in NARROW else 0))
    if isinstance(node.op, Reduce):
        return count + _across_threads(problem, node, layout)
    return 0.0


def issue_share(threads: int, blocks: int = 2) -> float:
    """Cycles of a block per issue slot of a thread. A multiprocessor has four schedulers; fewer than two warps for each leave slots
    empty while they wait, unless more than two blocks share it."""
    return max(threads / 128, 2.0 * 2 / max(blocks, 2))


def memory_cycles(problem: Problem, anchor: Node, layouts: dict[str, Layout]) -> float:
    """Cycles that memory takes for what one block accesses of the anchor's domain; pieces shorter than BURST cost as much as it."""
    total, domain, seen = 0.0, problem.spread(problem.domain(anchor)), list[Load]()
    for node in problem.graph.nodes:
        if isinstance(node.op, (Load, Store)) and problem.spread(problem.domain(node)) == domain:
            piece = _run(problem, node, layouts[node.name], lanes=True) * BYTES[node.dtype]
            spent = prod(a.size for a in problem.domain(node)) * BYTES[node.dtype] / RATE * max(1.0, BURST / piece)
            total += spent * (AGAIN if node.op in seen else 1.0)
            seen += [node.op] if isinstance(node.op, Load) else []
    return total


def _run(problem: Problem, node: Node, layout: Layout, lanes: bool = False) -> int:
    """Neighbours in memory that a thread holds side by side, where several axes make them up; with `lanes`, that a warp holds."""
    near = {name: step for step, name in problem.strides(node)}
    names = [a.name for a in problem.domain(node) if a.name in near]
    held = [(a, i, n) for a, i, n in registers(layout, names)]
    held += [(a, i, f.extent) for a, i, f in thread_factors(layout, names) if lanes and f.step < WARP_SIZE]
    run = 1
    for step, extent in sorted((near[a] * weight(layout.factors(a), i), n) for a, i, n in held):
        if step != run:
            break
        run *= extent
    return run if lanes else run & -run


def _across_threads(problem: Problem, node: Node, layout: Layout) -> float:
    assert isinstance(node.op, Reduce)
    kept = elements(layout, tuple(a.name for a in problem.axes(node)))
    digits = [f for _, _, f in thread_factors(layout, tuple(a.name for a in problem.grid.local(node.op.axes)))]
    steps = sum((f.extent - 1).bit_length() for f in digits if f.step < WARP_SIZE)
    warps = prod(f.extent for f in digits if f.step >= WARP_SIZE)
    blocks = problem.grid.peers if problem.folds_blocks(node) else 1
    far = FAR + kept * 2 * blocks if blocks > 1 else 0.0
    return kept * steps * SHUFFLE + (kept * (8 + 5 * warps * blocks) if warps * blocks > 1 else 0.0) + far


def _uncoalesced(problem: Problem, node: Node, layout: Layout, width: int) -> float:
    """How much more an access costs than a coalesced one: whole lines count for large ones, sectors a little for small ones."""
    run = width * BYTES[node.dtype]
    near = {name: step for step, name in problem.strides(node)}
    for axis in problem.domain(node):
        if near.get(axis.name) == 1:
            run *= prod(f.extent for _, _, f in thread_factors(layout, (axis.name,)) if f.step < WARP_SIZE)
    large = prod(a.size for a in problem.domain(node)) >= LARGE
    return max(1.0, 128 / run) if large else max(1.0, 32 / run) ** 0.5


def edge_cost(problem: Problem, ref: Ref, producer: Layout, consumer: Layout) -> float:
    """Issue slots of a thread for passing a value through shared memory, write and read."""
    names = tuple(a.name for a in problem.axes(problem.table[ref.value]))
    return elements(producer, names) * 0.5 + read_registers(problem, ref, consumer) / vector_of(ref, names, consumer) * 1.5 + 2


def vector_of(ref: Ref, names: tuple[str, ...], consumer: Layout) -> int:
    """Elements that one read back from shared memory may take."""
    read = [ref.index(n).axis for n in names]
    return min(
        max(
            (f.extent for a in read if a is not None and consumer.has(a) for f in consumer.factors(a) if f.place == VEC), default=1
        ),
        4,
    )


def read_registers(problem: Problem, ref: Ref, consumer: Layout) -> int:
    """Registers that a value read back takes."""
    names = tuple(a.name for a in problem.axes(problem.table[ref.value]))
    read = {ref.index(n).axis for n in names}
    return elements(consumer, tuple(sorted(a for a in read if a is not None and consumer.has(a))))
