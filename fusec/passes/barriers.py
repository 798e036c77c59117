"""After this pass every hazard between threads is ordered by a barrier, in shared and in global memory, and each barrier says why.

Hazards: shared write then read; shared read or write, then a write to the same bytes under another name; global read or write,
then a write to the same elements, unless it is the same thread (its program order suffices).

In a cluster, what blocks do to each other's shared memory and to elements that several of them access takes a barrier of the
cluster, which is one of the block too. Nobody writes into the shared memory of a block before all of them run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from ..errors import InternalError
from ..ir.kernel import AtLeast, Barrier, Condition, Copy, Global, Guard, Less, Repeat, Statement, Term, walk
from ..ir.plan import SmemPlan
from .plan_smem import pushed, shared_accesses


@dataclass(frozen=True, slots=True)
class Access:
    """A global access: who makes it (the thread's terms of the offset and the conditions on threads), read or write."""

    tensor: str
    node: str
    write: bool
    who: tuple[frozenset[Term], frozenset[Condition]]


@dataclass(slots=True)
class _Pending:
    """What happened since the last barrier; `far`: since the last one of the cluster."""

    cluster: bool
    written: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    globals: list[Access] = field(default_factory=list)
    far: set[tuple[str, bool]] = field(default_factory=set)

    def clear(self, cluster: bool) -> None:
        """A barrier, `cluster`: of all its blocks: nothing is left to be ordered among those that met."""
        self.written.clear()
        self.read.clear()
        if cluster or not self.cluster:
            self.globals.clear()
            self.far.clear()


Apart = Callable[[str, str], bool]


def insert_barriers(body: tuple[Statement, ...], plan: SmemPlan, apart: Apart, cluster: bool = False) -> tuple[Statement, ...]:
    """The statements with barriers; `apart` tells whether two accesses to one tensor touch different elements, `cluster` whether
    blocks form clusters.

    Raises InternalError where a barrier would have to stand inside a guard.
    """
    found = _ordered(body, plan, _Pending(cluster), apart)
    return _running(found) if pushed(body) else found


def _running(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """The statements, with the two halves of a barrier before any block writes into the shared memory of another."""
    for number, statement in enumerate(body):
        if any(isinstance(s, Barrier) and s.scope == "cluster" for s in walk((statement,))) and not pushed((statement,)):
            return body
        if pushed((statement,)):
            reasons = ("all blocks of the cluster run",)
            return (Barrier((), "arrive"), *body[:number], Barrier(reasons, "wait"), *body[number:])
    return body


def _ordered(body: tuple[Statement, ...], plan: SmemPlan, pending: _Pending, apart: Apart) -> tuple[Statement, ...]:
    """The statements with barriers; `pending` is brought up to date."""
    out: list[Statement] = []
    for statement in body:
        if isinstance(statement, Barrier):
            pending.clear(statement.scope == "cluster")
        elif isinstance(statement, Repeat):
            # Twice: the second turn begins where the first one ended, and a barrier that it needs is one for every turn.
            for _ in range(2):
                statement = replace(statement, body=_ordered(statement.body, plan, pending, apart))
        else:
            near, far = _hazards(statement, plan, pending, apart), _far_hazards(statement, pending, apart)
            if near or far:
                out.append(Barrier(tuple(dict.fromkeys(far or near)), "cluster" if far else "block"))
                pending.clear(bool(far))
            _note(statement, pending)
        out.append(statement)
    return tuple(out)


def _hazards(statement: Statement, plan: SmemPlan, pending: _Pending, apart: Apart) -> list[str]:
    reasons: list[str] = []
    accesses = set(shared_accesses(statement))
    for name, write in sorted(accesses):
        if not write and name in pending.written:
            reasons.append(f"{name}: write → read")
        if not write and (name, True) in accesses:
            raise InternalError(f"{name} is written and read within one guard", str(statement))
        for other in sorted(pending.read | pending.written):
            if write and _overlap(plan, name, other) and (other != name or name in pending.read):
                reasons.append(f"{name}: reuses bytes of {other}")
    return list(dict.fromkeys([*reasons, *([] if pending.cluster else _overwritten(statement, pending, apart))]))


def _far_hazards(statement: Statement, pending: _Pending, apart: Apart) -> list[str]:
    """What takes a barrier of the cluster: a read of what other blocks wrote, a write where they may still read."""
    if not pending.cluster:
        return []
    peers = pushed((statement,))
    read = sorted({name for name, write in shared_accesses(statement) if not write})
    reasons = [f"{n}: write → read" for n in read if (n, True) in pending.far]
    reasons += [f"{n}: read → write" for n in sorted(peers) if (n, False) in pending.far]
    return list(dict.fromkeys([*reasons, *_overwritten(statement, pending, apart)]))


def _overwritten(statement: Statement, pending: _Pending, apart: Apart) -> list[str]:
    """Global memory that a statement writes and another thread accessed."""
    return [
        f"{access.tensor}: {'write' if past.write else 'read'} → overwrite"
        for access in global_accesses(statement)
        for past in pending.globals
        if access.write and past.tensor == access.tensor and past.who != access.who and not apart(past.node, access.node)
    ]


def _note(statement: Statement, pending: _Pending) -> None:
    for name, write in shared_accesses(statement):
        (pending.written if write else pending.read).add(name)
        if not write:
            pending.far.add((name, False))
    pending.far |= {(name, True) for name in pushed((statement,))}
    pending.globals.extend(global_accesses(statement))


def _overlap(plan: SmemPlan, a: str, b: str) -> bool:
    table = {buffer.name: buffer for buffer in plan.buffers}
    x, y = table[a], table[b]
    return x.offset < y.offset + y.bytes and y.offset < x.offset + x.bytes


def global_accesses(statement: Statement, when: tuple[Condition, ...] = ()) -> Iterator[Access]:
    """The accesses to tensors in a statement, nested ones included."""
    if isinstance(statement, (Guard, Repeat)):
        inner = when + (statement.when if isinstance(statement, Guard) else ())
        for s in statement.body:
            yield from global_accesses(s, inner)
    if isinstance(statement, Copy):
        own = {f.var for f in statement.loops}
        conditions = frozenset(c for c in when + statement.when if isinstance(c, (Less, AtLeast)) and not c.value.variables & own)
        for place, write in ((statement.source, False), (statement.target, True)):
            if isinstance(place, Global):
                yield Access(
                    place.tensor, statement.node, write, (frozenset(t for t in place.offset.terms if t.var not in own), conditions)
                )
