"""After this pass every hazard between threads is ordered by a barrier, in shared and in global memory, and each barrier says why.

Hazards: shared write then read; shared read or write, then a write to the same bytes under another name; global read or write,
then a write to the same elements, unless it is the same thread (its program order suffices).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from ..errors import InternalError
from ..ir.kernel import AtLeast, Barrier, Condition, Copy, Global, Guard, Less, Repeat, Statement, Term
from ..ir.plan import SmemPlan
from .plan_smem import shared_accesses


@dataclass(frozen=True, slots=True)
class Access:
    """A global access: who makes it (the thread's terms of the offset and the conditions on threads), read or write."""

    tensor: str
    node: str
    write: bool
    who: tuple[frozenset[Term], frozenset[Condition]]


@dataclass(slots=True)
class _Pending:
    """What happened since the last barrier."""

    written: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    globals: list[Access] = field(default_factory=list)

    def clear(self) -> None:
        """A barrier: nothing is left to be ordered."""
        self.written.clear()
        self.read.clear()
        self.globals.clear()


Apart = Callable[[str, str], bool]


def insert_barriers(body: tuple[Statement, ...], plan: SmemPlan, apart: Apart) -> tuple[Statement, ...]:
    """The statements with barriers; `apart` tells whether two accesses to one tensor touch different elements.

    Raises InternalError where a barrier would have to stand inside a guard.
    """
    return _ordered(body, plan, _Pending(), apart)


def _ordered(body: tuple[Statement, ...], plan: SmemPlan, pending: _Pending, apart: Apart) -> tuple[Statement, ...]:
    """The statements with barriers; `pending` is brought up to date."""
    out: list[Statement] = []
    for statement in body:
        if isinstance(statement, Barrier):
            pending.clear()
        elif isinstance(statement, Repeat):
            # Twice: the second turn begins where the first one ended, and a barrier that it needs is one for every turn.
            for _ in range(2):
                statement = replace(statement, body=_ordered(statement.body, plan, pending, apart))
        else:
            reasons = _hazards(statement, plan, pending, apart)
            if reasons:
                out.append(Barrier(tuple(reasons)))
                pending.clear()
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
    for access in global_accesses(statement):
        for past in pending.globals:
            if access.write and past.tensor == access.tensor and past.who != access.who and not apart(past.node, access.node):
                reasons.append(f"{access.tensor}: {'write' if past.write else 'read'} → overwrite")
    return list(dict.fromkeys(reasons))


def _note(statement: Statement, pending: _Pending) -> None:
    for name, write in shared_accesses(statement):
        (pending.written if write else pending.read).add(name)
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
