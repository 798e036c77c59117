"""After this pass what is loaded ahead of a barrier and first read behind it stays in registers as memory has it, and so does what
is loaded under a condition that is computed.

    Declare x[8] f32; x <- memory bf16; barrier; … x[i] …      ->      Declare x[8] bf16; …; barrier; … x[i], widened there …

Widening waits for the load. Ahead of the barrier it would make every thread of the block wait there, and what other threads hand
over could not be worked on while the load is under way. Under its condition it would stand in the branch of the load, and the next
load behind it. Two such values also share a register meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ..ir.kernel import Apply, Barrier, Compute, Condition, Copy, Declare, Elem, Global, Guard, LaneReduce, Repeat, Statement, walk
from .round_once import registers_read

HELD = frozenset({"bf16", "f16"})
"""Element types that widen one by one; fp8 converts in vectors only."""


def hold_narrow(body: tuple[Statement, ...], tensors: Mapping[str, str]) -> tuple[Statement, ...]:
    """The body with such fragments declared in the type of their memory. tensors: the element type of each."""
    loaded: dict[str, set[str]] = {}
    behind, guarded, other = set[str](), set[str](), set[str]()
    for s in walk(body):
        if isinstance(s, Barrier):
            behind |= loaded.keys()
        elif isinstance(s, Copy) and isinstance(s.source, Global) and isinstance(s.target, Elem):
            loaded.setdefault(s.target.name, set()).add(tensors[s.source.tensor])
            other |= {s.target.name} & (behind - guarded)
            if _computed(s.when):
                guarded.add(s.target.name)
                behind.add(s.target.name)
        else:
            other |= set(registers_read(s)) - behind
            other |= set(_written(s))
    found = {name: min(dtypes) for name, dtypes in loaded.items() if name in behind - other and len(dtypes) == 1 and dtypes <= HELD}
    return tuple(_declared(s, found) for s in body)


def _computed(when: tuple[Condition, ...]) -> bool:
    """Whether a condition is about a value, not about coordinates alone."""
    return any(isinstance(c, (Elem, Apply)) for c in when)


def _written(s: Statement) -> Iterator[str]:
    """Every register that a statement writes otherwise than by loading it from global memory."""
    if isinstance(s, Compute):
        yield from (a.target.name for a in s.body)
    elif isinstance(s, LaneReduce):
        yield from s.targets
    elif isinstance(s, Copy) and isinstance(s.target, Elem):
        yield s.target.name


def _declared(s: Statement, found: Mapping[str, str]) -> Statement:
    if isinstance(s, Declare) and s.shape and s.name in found:
        return replace(s, dtype=found[s.name])
    if isinstance(s, (Guard, Repeat)):
        return replace(s, body=tuple(_declared(inner, found) for inner in s.body))
    return s
