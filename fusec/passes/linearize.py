"""After this pass the kernel is a list of statements: per level the loads, what can be computed, exchanges, stores, then the
resident loads. These come last before the barrier: whoever waits for a small load must not queue behind them, and nothing between
them and the barrier may wait for them. A walk along an axis is one loop between what comes before and after it.

A unit is one piece of work of a node (a load, an elementwise op, the three steps of a reduction, a write to or a read from shared
memory, a store). Ready units are taken by kind, then so that neighbours share a region and a register loop.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

from ..errors import InternalError
from ..ir.graph import Graph, Iota, Join, Load, Map, Node, Reduce, Ref, Store, operands, refs
from ..ir.kernel import Compute, Condition, Copy, Declare, Elem, Guard, LaneReduce, Let, Repeat, Statement
from ..ir.plan import SERIAL, Layout
from ..ir.scalar import Lit
from .emit import Emitter
from .emit_context import Piece
from .hold_narrow import HELD
from .levels import Levels, before
from .localize import elements_of
from .plan_smem import shared_accesses
from .problem import Placement, Problem

INDEX, LOAD, READ, COMPUTE, LANES, WRITE, STORE, RESIDENT = range(8)


@dataclass(slots=True)
class Unit:
    """kind orders it among what is ready; `needs` are the units before it; `emit` gives its statements."""

    name: str
    kind: int
    level: int
    layout: Layout
    needs: set[str]
    emit: Callable[[], Piece]
    rank: int = 0
    phase: int = 0


@dataclass(slots=True)
class _Planner:
    problem: Problem
    placed: Placement
    levels: Levels
    emitter: Emitter
    units: dict[str, Unit] = field(default_factory=dict)

    @property
    def graph(self) -> Graph:
        return self.problem.graph

    def add(
        self, name: str, kind: int, level: int, layout: Layout, needs: set[str], emit: Callable[[], Piece], phase: int = 0
    ) -> None:
        self.units[name] = Unit(name, kind, level, layout, needs, emit, len(self.units), phase)

    def phase(self, name: str) -> int:
        """When a node is computed: before, in or after the block's walk."""
        return self.problem.walk.phases[name] if self.problem.walk is not None else 0

    def done(self, node: Node) -> int:
        """When the value of a node is there: of a reduction over all turns only after the walk."""
        return self.phase(node.name) + int(isinstance(node.op, Reduce) and self.emitter.over_turns(node))

    def plan(self) -> list[Unit]:
        indices = {r.value for n in self.graph.nodes for r in refs(n.op)} - {
            r.value for n in self.graph.nodes for r in operands(n.op)
        }
        for node in self.graph.nodes:
            self._node(node, node.name in indices)
        return list(self.units.values())

    def _node(self, node: Node, index_only: bool) -> None:
        layout, level, phase = self.placed.layouts[node.name], self.levels.start[node.name], self.phase(node.name)
        needs = {self._operand(node, ref) for ref in operands(node.op)}
        for ref in refs(node.op):
            if all(ref is not r for r in operands(node.op)):
                needs.add(self._index(ref.value) if self.emitter.is_free(node, ref) else self._operand(node, ref))
        if isinstance(node.op, Load):
            kind = INDEX if index_only or not self.problem.axes(node) and self._feeds_index(node.name) else self._load_kind(node)
            self.add(node.name, kind, level, layout, needs, lambda: self.emitter.load(node), phase)
        elif isinstance(node.op, Store):
            needs |= set(before(self.graph, node))
            if node.name in self.levels.late and self.problem.walk is not None and not phase % 2:
                last = max(self.problem.walk.phases.values())
                phase = last + last % 2
            self.add(node.name, STORE, level, layout, needs, lambda: self.emitter.store(node), phase)
        elif isinstance(node.op, Reduce):
            self._reduce(node, layout, level, needs)
        else:
            assert isinstance(node.op, (Map, Join, Iota))
            kind = INDEX if self._feeds_index(node.name) else COMPUTE
            self.add(node.name, kind, level, layout, needs, lambda: self.emitter.compute(node), phase)
        if node.name in self.levels.exchanged:
            self.add(
                f"{node.name}!write",
                WRITE,
                self.levels.ready[node.name],
                self.placed.result(node),
                {node.name},
                lambda: self.emitter.write(node),
                self.done(node),
            )

    def _load_kind(self, node: Node) -> int:
        """RESIDENT for a load of the anchor's domain while other regions still have work to hand over, else LOAD: also where it is
        masked, so that the small loads came before it, and folded ahead of the next barrier. In a walk only where the value is
        widened: what waits for it must not come ahead of the barrier of the turn."""
        anchor = self.problem.table[self.placed.anchor]
        same = self.problem.spread(self.problem.domain(node)) == self.problem.spread(self.problem.domain(anchor))
        late = self.problem.walk is None or node.dtype in HELD
        assert isinstance(node.op, Load)
        early = node.op.where is not None and self._folded_at_once(node)
        return RESIDENT if same and self.levels.exchanged and late and not early else LOAD

    def _folded_at_once(self, node: Node) -> bool:
        """Whether a reduction takes in a value on the level that it is made on, and the barrier has to wait for it."""
        now = [r for r in self.graph.readers(node.name) if self.levels.start[r.name] == self.levels.start[node.name]]
        return any(isinstance(r.op, Reduce) or isinstance(r.op, Map) and self._folded_at_once(r) for r in now)

    def _feeds_index(self, name: str) -> bool:
        for reader in self.graph.readers(name):
            if isinstance(reader.op, (Load, Store)) and all(r.value != name for r in operands(reader.op)):
                return True
            if isinstance(reader.op, Map) and not self.problem.domain(reader) and self._feeds_index(reader.name):
                return True
        return False

    def _index(self, value: str) -> str:
        if self.emitter.varies(self.problem.table[value]):
            return value
        name = f"{value}!index"
        if name not in self.units:
            node = self.problem.table[value]
            level, layout = self.levels.ready[value], self.placed.result(node)
            self.add(name, INDEX, level, layout, {value}, lambda: self.emitter.index(node), self.done(node))
        return name

    def _operand(self, node: Node, ref: Ref) -> str:
        """The unit after which the node's thread holds the operand."""
        if self.emitter.is_free(node, ref):
            return ref.value
        key = self.emitter.read_key(node, ref)
        name = f"{key.name}!read"
        turning = any(f.place == SERIAL for _, factors in key.layout.axes for f in factors)
        mine, theirs = self.phase(node.name), self.done(self.problem.table[ref.value])
        phase = mine if turning or mine == theirs else mine - mine % 2  # What all turns need is read once.
        if name not in self.units:
            level, layout = self.levels.ready[ref.value] + 1, self.placed.layouts[node.name]
            self.add(name, READ, level, layout, {f"{ref.value}!write"}, lambda: self.emitter.read(key), phase)
        self.units[name].phase = min(self.units[name].phase, phase)
        return name

    def _reduce(self, node: Node, layout: Layout, level: int, needs: set[str]) -> None:
        steps, phase, done = f"{node.name}!accumulate", self.phase(node.name), self.done(node)
        if phase != done:
            self.add(f"{node.name}!carry", COMPUTE, level, layout, set(), lambda: self.emitter.carry(node), phase - 1)
            needs = needs | {f"{node.name}!carry"}
        self.add(steps, COMPUTE, level, layout, needs, lambda: self.emitter.accumulate(node), phase)
        if self.emitter.lane_steps(node):
            self.add(f"{node.name}!lanes", LANES, level, layout, {steps}, lambda: self.emitter.lanes(node), done)
            steps = f"{node.name}!lanes"
        if node.name in self.levels.crossing:
            self.add(f"{node.name}!partial", WRITE, level, layout, {steps}, lambda: self.emitter.write_partial(node), done)
            self.add(
                f"{node.name}!parts",
                READ,
                level + 1,
                self.placed.results[node.name],
                {f"{node.name}!partial"},
                lambda: self.emitter.read_partials(node),
                done,
            )
            steps = f"{node.name}!parts"
        self.add(
            node.name,
            COMPUTE,
            self.levels.ready[node.name],
            self.placed.results[node.name],
            {steps},
            lambda: self.emitter.finish(node),
            done,
        )


def linearize(problem: Problem, placed: Placement, levels: Levels, emitter: Emitter) -> tuple[Statement, ...]:
    """The statements of the kernel, without barriers, definitions before uses."""
    units = _Planner(problem, placed, levels, emitter).plan()
    done: set[str] = set()
    body: tuple[Statement, ...] = ()
    for phase in sorted({u.phase for u in units}):
        mine = [u for u in units if u.phase == phase]
        pieces: list[Piece] = []
        for level in sorted({u.level for u in mine}):
            for unit in _order([u for u in mine if u.level == level], done):
                pieces.append(unit.emit())
        found = assemble(pieces)
        if phase % 2 and problem.walk is not None:
            folded = [u.name.removesuffix("!accumulate") for u in mine if u.name.endswith("!accumulate")]
            names = tuple(emitter.partials.get(n, n) for n in folded if f"{n}!carry" in done)
            found = (Repeat(emitter.coords.turn, Lit(problem.walk.turns), found, names),)
        body += found
    return body


def _order(units: list[Unit], done: set[str]) -> list[Unit]:
    """List scheduling within a level; `done` grows by every unit taken."""
    out: list[Unit] = []
    left = list(units)
    while left:
        ready = [u for u in left if u.needs <= done]
        if not ready:
            raise InternalError("units wait for each other", str([(u.name, sorted(u.needs - done)) for u in left]))
        unit = min(ready, key=functools.partial(_preference, out[-1] if out else None))
        left.remove(unit)
        done.add(unit.name)
        out.append(unit)
    return out


def _preference(last: Unit | None, unit: Unit) -> tuple[int | bool, ...]:
    """What to take first: more lane reductions after one and more resident loads after one, then by kind, then what shares the last
    one's region, then its layout."""
    more = last is not None and last.kind == unit.kind and unit.kind in (LANES, RESIDENT)
    near = last is not None and (unit.layout.first, unit.layout.count) == (last.layout.first, last.layout.count)
    same = last is not None and near and unit.layout == last.layout
    return not more, unit.kind, not near, not same, unit.rank


# ---- assembly --------------------------------------------------------------------------------------------------------------------


def assemble(pieces: list[Piece]) -> tuple[Statement, ...]:
    """Neighbouring pieces of one region share a guard; neighbouring register loops and lane reductions become one."""
    body: list[Statement] = []
    inner: list[Statement] = []
    when: tuple[Condition, ...] = ()

    def close() -> None:
        nonlocal inner
        if inner and when:
            body.append(Guard(when, tuple(_fuse(inner))))
        else:
            body.extend(_fuse(inner))
        inner = []

    for piece in pieces:
        reads = {name for s in piece.body for name, write in shared_accesses(s) if not write}
        waits = bool(when) and any(write and name in reads for s in inner for name, write in shared_accesses(s))
        if piece.when != when or waits:  # A barrier stands outside of guards.
            close()
            when = piece.when
        outer = [s for s in piece.body if _early(s)] if when else []
        at = len(body)
        body[at:at] = outer
        inner.extend(s for s in piece.body if s not in outer)
    close()
    return tuple(body)


def _early(statement: Statement) -> bool:
    """Whether a statement may stand before the guard of its piece: it depends on no value that is made under it."""
    return isinstance(statement, Declare) or isinstance(statement, Let) and not isinstance(statement.value, Elem)


def _fuse(statements: list[Statement]) -> list[Statement]:
    """Declares go before the statement they interrupt; adjacent Computes and LaneReduces of one shape become one."""
    out: list[Statement] = []
    for statement in statements:
        at = len(out)
        while isinstance(statement, Declare) and at and isinstance(out[at - 1], (Compute, Copy, LaneReduce)):
            at -= 1
        previous = out[-1] if out else None
        if isinstance(statement, Compute) and isinstance(previous, Compute) and _can_join(previous, statement):
            out[-1] = Compute(previous.loops, previous.body + statement.body, previous.when)
        elif isinstance(statement, LaneReduce) and isinstance(previous, LaneReduce) and _same_lanes(previous, statement):
            out[-1] = LaneReduce(
                previous.targets + statement.targets, previous.fn, previous.step, previous.lanes, previous.shape, previous.origin
            )
        else:
            out.insert(at, statement)
    return out


def _same_lanes(a: LaneReduce, b: LaneReduce) -> bool:
    return (a.fn, a.step, a.lanes, a.shape) == (b.fn, b.step, b.lanes, b.shape)


def _can_join(first: Compute, second: Compute) -> bool:
    """Whether the second body may run at each point right after the first: it reads what the first writes only at that point."""
    if first.loops != second.loops or first.when != second.when:
        return False
    written = {a.target.name: a.target.index for a in first.body}
    own = {f.var for f in first.loops}
    for assign in second.body:
        for elem in elements_of(assign.value):
            if elem.name in written:
                point = frozenset(v for i in written[elem.name] for v in i.variables)
                if elem.index != written[elem.name] or point != own:
                    return False
    return True
