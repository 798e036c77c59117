"""What placement works on, and what it gives: the graph with the extents a block sees, and a layout for every value."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod

from ..ir.axis import Axis
from ..ir.dtype import BYTES
from ..ir.geometry import crosses_warps
from ..ir.graph import Graph, Load, Node, Reduce, Store
from ..ir.plan import Factor, Layout
from ..target import Target
from .choose_grid import Grid, strides
from .plan_smem import ALIGN
from .strands import strands
from .walks import Walk

MAX_THREADS = 512  # Of a block: a choice, not the limit; more warps only repeat what every thread computes.
OTHER_REGISTERS = 20  # Addresses, loop state and what the epilogue keeps.
MORE_REGISTERS = 24  # What is left beyond that after each layout that turned out to need more registers than there are.
VECTOR_BYTES = 16  # Of one access: what every target has.
SHARED = ("", "largest", "all")
"""How placement counts shared memory: not at all, the largest buffer where others can use its bytes before and after it, or all
buffers side by side."""
LARGE_ACCESS = 4096  # Elements of a block from which on an access is what the block waits for.


def aligned(size: int) -> int:
    """Bytes that a shared buffer of `size` bytes takes."""
    return -(-size // ALIGN) * ALIGN


@dataclass(frozen=True, slots=True)
class Share:
    """A register digit of an axis that lanes share: the position among the axis' factors, and the lanes' own digit."""

    axis: str
    position: int
    factor: Factor


@dataclass(frozen=True, slots=True)
class Placement:
    """layouts: of every node's domain. results: of every reduction's result. cost: in cycles of a multiprocessor, roughly. alone:
    whether registers leave no room for a second block on a multiprocessor. dealt: reductions whose lanes each keep a part of the
    result."""

    anchor: str
    threads: int
    grid: Grid
    layouts: dict[str, Layout]
    results: dict[str, Layout]
    cost: float = 0.0
    min_blocks: int = 1
    alone: bool = False
    dealt: dict[str, Share] = field(default_factory=dict)

    def result(self, node: Node) -> Layout:
        """Where the value of a node lies."""
        return self.results.get(node.name) or self.layouts[node.name].project(tuple(a.name for a in node.axes))


@dataclass(slots=True)
class Problem:
    """A graph, its grid, the axes that every thread holds whole, the hardware it is placed on, and the walk of a block, if any.

    orders: strands of bounded axes, where `ordered`. avoid: layouts of the anchor that turned out to need more registers than there
    are. shared: how the shared memory of a block is counted, one of SHARED.
    """

    graph: Graph
    grid: Grid
    held: frozenset[str]
    target: Target
    walk: Walk | None = None
    table: dict[str, Node] = field(default_factory=dict)
    orders: dict[str, dict[str, int]] = field(default_factory=dict)
    ordered: bool = True
    avoid: tuple[Layout, ...] = ()
    shared: str = ""
    mutated: frozenset[str] = frozenset()
    domains: dict[str, tuple[Axis, ...]] = field(default_factory=dict)
    values: dict[str, tuple[Axis, ...]] = field(default_factory=dict)
    steps: dict[str, list[tuple[int, str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.table, self.mutated = self.graph.table, frozenset(self.graph.mutated)
        self.domains, self.values, self.steps = {}, {}, {}
        self.orders = strands(self.graph) if self.ordered else {}

    @property
    def reserve(self) -> int:
        """Registers of a thread that placement leaves for what is not loaded: more where that was too few before."""
        return OTHER_REGISTERS + MORE_REGISTERS * len(self.avoid)

    def beyond(self, buffers: Iterable[int]) -> int:
        """Bytes of shared memory above the target's limit that buffers of so many bytes need, as `shared` counts them."""
        if not self.shared:
            return 0
        return max((max(buffers, default=0) if self.shared == "largest" else sum(buffers)) - self.target.smem_per_block, 0)

    def in_turn(self, node: Node) -> bool:
        """Whether a value is handed over within a turn of the block's walk: it is made there and nobody needs it later."""
        walk = self.walk
        if walk is None or not walk.within(node.name):
            return False
        return all(walk.phases[r.name] == walk.phases[node.name] for r in self.graph.readers(node.name))

    def extents(self, node: Node, within: bool) -> tuple[int, ...]:
        """The extents of a node's value in a block, or `within` a turn of its walk."""
        part = {self.walk.axis: self.walk.part} if within and self.walk is not None else {}
        return tuple(part.get(a.name, a.size) for a in self.axes(node))

    def handed(self, node: Node) -> int:
        """Bytes of the shared buffer in which a node's value is handed over."""
        return aligned(prod(self.extents(node, self.in_turn(node))) * BYTES[node.dtype])

    def domain(self, node: Node) -> tuple[Axis, ...]:
        """The local axes of a node's iteration space."""
        if node.name not in self.domains:
            self.domains[node.name] = self.grid.local(node.domain)
        return self.domains[node.name]

    def axes(self, node: Node) -> tuple[Axis, ...]:
        """The local axes of a node's value."""
        if node.name not in self.values:
            self.values[node.name] = self.grid.local(node.axes)
        return self.values[node.name]

    def strides(self, node: Node) -> list[tuple[int, str]]:
        """(elements between neighbours, axis) of a Load or Store, as `choose_grid.strides` has them."""
        if node.name not in self.steps:
            self.steps[node.name] = strides(self.graph, node)
        return self.steps[node.name]

    def folds_blocks(self, node: Node) -> bool:
        """Whether a reduction needs values of other blocks of a cluster."""
        return isinstance(node.op, Reduce) and any(a.name == self.grid.cluster for a in node.op.axes)

    def crosses(self, node: Node, layout: Layout) -> bool:
        """Whether a node is a reduction that needs values of other warps or blocks."""
        if not isinstance(node.op, Reduce):
            return False
        return self.folds_blocks(node) or crosses_warps(layout, tuple(a.name for a in self.grid.local(node.op.axes)))

    def passes_once(self, node: Node) -> bool:
        """Whether an access is a large one of memory updated in place: read once and written once."""
        mine = isinstance(node.op, (Load, Store)) and node.op.tensor in self.mutated
        return mine and prod(a.size for a in self.domain(node)) >= LARGE_ACCESS

    def vector_bytes(self, node: Node) -> int:
        """Bytes of the widest access that a Load or Store should be made of.

        The target's widest asks more of the caller's alignment: it is worth it only where much memory moves.
        """
        return self.target.vector_bytes if self.passes_once(node) else VECTOR_BYTES

    def turns(self, node: str) -> int:
        """How often a block computes a node."""
        return self.walk.turns if self.walk is not None and self.walk.within(node) else 1

    def spread(self, axes: tuple[Axis, ...]) -> frozenset[str]:
        """The axes that threads may share among them: all but the held ones."""
        return frozenset(a.name for a in axes) - self.held
