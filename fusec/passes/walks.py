"""After this pass it is known whether a block walks along an axis in turns, and which nodes belong to which walk.

A block that cannot hold the anchor's loads whole takes a part of one axis at a time: the streamed axis. Nodes then have phases:
the odd ones are walks (a node is computed once per turn, for the turn's part of the axis), the even ones are what lies before,
between and after them. What is reduced over the axis is there after the walk. Where the anchor's domain needs it, there is a second
walk, and what that needs of the first is read and computed again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..ir.graph import Graph, Index, Load, Node, Op, Reduce, Ref, Store, refs
from ..ir.overlap import apart
from ..ir.rewrite import map_refs

if TYPE_CHECKING:
    from .problem import Problem

MOST_PHASES = 9  # Five walks: a function that needs more is better split.


@dataclass(frozen=True, slots=True)
class Walk:
    """`axis` is walked along in `turns` turns of `part` elements; phases: of every node."""

    axis: str
    turns: int
    part: int
    phases: dict[str, int]

    def within(self, name: str) -> bool:
        """Whether a node is computed once per turn."""
        return self.phases[name] % 2 == 1

    def between(self, value: str, reader: str) -> bool:
        """Whether a value of one walk is read in another."""
        return self.within(value) and self.within(reader) and self.phases[value] != self.phases[reader]


def walks(problem: Problem, anchor: Node, held: int, most: int) -> Iterator[Problem]:
    """The problem with a walk along an axis of the anchor's domain, so that of `held` values a block has at most `most` at a time.

    For each axis the fewest turns, twice and four times as many (registers for a second block), with what feeds the walk made
    beforehand or in its turn.
    """
    domain = problem.spread(problem.domain(anchor))
    for axis in problem.domain(anchor):
        parts = _parts(axis.size, axis.size * most // max(held, 1))
        if axis.name in problem.held or not parts:
            continue
        tried: list[dict[str, int]] = []
        for early in (False, True):
            found = find_phases(problem, domain, axis.name, early)
            if found is not None and found[1] not in tried:
                tried.append(found[1])
                for part in parts:
                    yield replace(problem, graph=found[0], walk=Walk(axis.name, -(-axis.size // part), part, found[1]))


def like(problem: Problem, anchor: Node, walk: Walk, times: int) -> Iterator[Problem]:
    """The problem with the walk of another grid, of whose block this one's holds one part in `times`: as much in a turn, in fewer
    turns."""
    domain = problem.spread(problem.domain(anchor))
    part = min(walk.part * times, walk.part * walk.turns)
    tried: list[dict[str, int]] = []
    for early in (False, True):
        found = find_phases(problem, domain, walk.axis, early)
        if found is not None and found[1] not in tried and part < walk.part * walk.turns:
            tried.append(found[1])
            yield replace(problem, graph=found[0], walk=Walk(walk.axis, -(-walk.part * walk.turns // part), part, found[1]))


def _parts(size: int, most: int) -> list[int]:
    """Elements that a turn may take: at most `most`, half and a quarter as many. Powers of two, which threads share without a
    remainder.

    They divide the axis, unless that would take more than twice the turns: then the last turn is short.
    """
    if most < 1:
        return []
    part = 1 << (min(most, size - 1).bit_length() - 1)
    even = min(part, size & -size)
    whole = even if part <= 2 * even else part
    return [p for p in (whole, whole // 2, whole // 4) if p]


def find_phases(problem: Problem, anchor: frozenset[str], axis: str, early: bool) -> tuple[Graph, dict[str, int]] | None:
    """The graph, with nodes that a later walk needs anew, and the phase of every node; None where there is no order.

    anchor: the axes that threads share in the anchor's domain, of which `axis` is one. early: what carries the axis and feeds the
    anchor's nodes is made for all turns beforehand.
    """
    walk = _Walks(problem, anchor, axis, early)
    return (walk.graph, walk.phases) if walk.settle() else None


class _Walks:
    """Phases as far as they are settled; `least`: the earliest phase that a node may have."""

    def __init__(self, problem: Problem, anchor: frozenset[str], axis: str, early: bool) -> None:
        self.problem, self.anchor, self.axis, self.early = problem, anchor, axis, early
        self.graph, self.phases, self.least = problem.graph, dict[str, int](), dict[str, int]()

    def core(self, node: Node) -> bool:
        """Whether a node's domain is too large to be held."""
        return self.problem.spread(self.problem.domain(node)) >= self.anchor

    def settle(self) -> bool:
        """Phases for all nodes; False where they do not come to rest."""
        for _ in range(4 * len(self.graph.nodes)):
            self._assign()
            if max(self.phases.values()) > MOST_PHASES:
                return False
            if not self._late_stores() and not self._again():
                return True
        return False

    def _assign(self) -> None:
        table = self.graph.table
        early = self._made_before()
        self.phases = {}
        for node in self.graph.nodes:
            needs = [(table[r.value], _elsewhere(r.bind, self.axis)) for r in refs(node.op)]
            along = [self.phases[n.name] for n, whole in needs if _holds(n, self.axis) and not whole]
            done = [self.phases[n.name] for n, whole in needs if not _holds(n, self.axis) or whole]
            phase = max([*along, *(p + p % 2 for p in done), self.least.get(node.name, 0)], default=0)
            if self.core(node):
                phase += 1 - phase % 2
            elif _carries(node, self.axis) and node.name not in early and (not along or any(p % 2 for p in along)):
                phase = max(phase, 1)
            self.phases[node.name] = phase

    def _made_before(self) -> set[str]:
        """What is computed for the whole axis at once: what reductions over it that feed the anchor's nodes are made of."""
        core = {n.name for n in self.graph.nodes if self.core(n)}
        feeding = _ancestors(self.graph, core) - core
        reached = _descendants(self.graph, core)
        light = [n for n in self.graph.nodes if n.name in feeding and n.name not in reached]
        first = {n.name for n in light if self.early or _reduces(n, self.axis)}
        return (first | _ancestors(self.graph, first)) - core

    def _late_stores(self) -> bool:
        """A Store is in no earlier phase than an access that it must follow, and in a walk only if they meet in its own turn."""
        changed = False
        for number, node in enumerate(self.graph.nodes):
            if not isinstance(node.op, Store):
                continue
            for place, other in enumerate(self.graph.nodes):
                follows = isinstance(other.op, Load) or isinstance(other.op, Store) and place < number
                if not follows or apart(self.graph, other, node):
                    continue
                least = self.phases[other.name]
                if least % 2 and not (self.phases[node.name] % 2 and _same_turn(node, other, self.axis)):
                    least += 1
                if least > self.phases[node.name]:
                    self.least[node.name] = least
                    changed = True
        return changed

    def _again(self) -> bool:
        """One more node computed anew in a later walk than its first."""
        table = self.graph.table
        for node in self.graph.nodes:
            for ref in refs(node.op):
                value = table[ref.value]
                phase = self.phases[node.name]
                if self.core(value) and not isinstance(value.op, Reduce) and phase % 2 and self.phases[value.name] < phase:
                    self._clone(value, phase)
                    return True
        return False

    def _clone(self, value: Node, phase: int) -> None:
        name = _fresh(self.graph, f"{value.name.partition('_again')[0]}_again")
        self.least[name] = phase
        nodes: list[Node] = []
        for node in self.graph.nodes:
            late = self.phases[node.name] >= phase
            nodes.append(replace(node, op=_redirected(node.op, value.name, name)) if late else node)
            if node is value:
                nodes.append(replace(value, name=name))
        self.graph = self.graph.with_nodes(tuple(nodes))


def _redirected(op: Op, old: str, new: str) -> Op:
    return map_refs(op, lambda r: Ref(new, r.bind) if r.value == old else r)


def _fresh(graph: Graph, name: str) -> str:
    taken = set(graph.table) | set(graph.tensors)
    base, count = name, 1
    while name in taken:
        count += 1
        name = f"{base}_{count}"
    return name


def _same_turn(first: Node, second: Node, axis: str) -> bool:
    """Whether two accesses to one tensor can meet in one turn only: along some dim both go with the axis."""
    assert isinstance(first.op, (Load, Store)) and isinstance(second.op, (Load, Store))
    return any(a == b and any(d.source == Index(axis) for d in a) for a, b in zip(first.op.index, second.op.index, strict=True))


def _carries(node: Node, axis: str) -> bool:
    return any(a.name == axis for a in node.domain)


def _holds(node: Node, axis: str) -> bool:
    return any(a.name == axis for a in node.axes)


def _reduces(node: Node, axis: str) -> bool:
    return isinstance(node.op, Reduce) and any(a.name == axis for a in node.op.axes)


def _elsewhere(bind: tuple[tuple[str, Index], ...], axis: str) -> bool:
    """Whether a reader takes a value at another place of the axis than its own."""
    return any(index != Index(axis) if name == axis else index.axis == axis for name, index in bind)


def _ancestors(graph: Graph, names: set[str]) -> set[str]:
    """What these nodes need."""
    wanted, found = set(names), set[str]()
    for node in reversed(graph.nodes):
        if node.name in wanted:
            found |= {r.value for r in refs(node.op)}
            wanted |= found
    return found


def _descendants(graph: Graph, names: set[str]) -> set[str]:
    """What needs these nodes."""
    found = set[str]()
    for node in graph.nodes:
        if any(r.value in names or r.value in found for r in refs(node.op)):
            found.add(node.name)
    return found
