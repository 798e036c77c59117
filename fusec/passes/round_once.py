"""After this pass a value is not rounded in registers where all that is done with it is to store it in that very type.

    y[i] = round(x[i], bf16); out[i] <- y[i]      ->      y[i] = x[i]; out[i] <- y[i]

A store rounds to the type of its memory, once and to nearest even: the same bits, and neighbours are packed by one instruction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ..ir.dtype import NARROW
from ..ir.kernel import (
    Assign,
    Compute,
    Copy,
    Declare,
    Elem,
    Global,
    Guard,
    LaneReduce,
    Let,
    Repeat,
    Round,
    Shared,
    Statement,
    walk,
)
from .localize import elements_of


def round_once(body: tuple[Statement, ...], tensors: Mapping[str, str], buffers: Mapping[str, str]) -> tuple[Statement, ...]:
    """The body without roundings that stores repeat. tensors, buffers: the element type of each tensor and shared buffer."""
    stored: dict[str, set[str]] = {}
    kept = set[str]()
    for s in walk(body):
        if isinstance(s, Copy) and isinstance(s.source, Elem) and isinstance(s.target, (Global, Shared)):
            dtype = tensors[s.target.tensor] if isinstance(s.target, Global) else buffers[s.target.buffer]
            stored.setdefault(s.source.name, set()).add(dtype)
            kept |= {e.name for c in s.when for e in elements_of(c)}
        else:
            kept |= set(registers_read(s))
    for s in walk(body):
        if isinstance(s, Compute):
            for a in s.body:
                if not (isinstance(a.value, Round) and a.value.dtype in NARROW and stored.get(a.target.name) == {a.value.dtype}):
                    kept.add(a.target.name)
    gone = stored.keys() - kept
    return tuple(_without(s, gone) for s in body)


def registers_read(s: Statement) -> Iterator[str]:
    """Every register that a statement itself reads (not those inside it), or writes otherwise than by an assignment."""
    if isinstance(s, Compute):
        yield from (e.name for a in s.body for e in elements_of(a.value))
        yield from (e.name for c in s.when for e in elements_of(c))
    elif isinstance(s, Copy):
        yield from (p.name for p in (s.source, s.target) if isinstance(p, Elem))
        yield from (e.name for c in s.when for e in elements_of(c))
    elif isinstance(s, LaneReduce):
        yield from s.targets
    elif isinstance(s, Let):
        yield from (s.value.name,) if isinstance(s.value, Elem) else ()
    elif isinstance(s, Guard):
        yield from (e.name for c in s.when for e in elements_of(c))
    elif isinstance(s, Repeat):
        yield from s.carried
        yield from (e.name for e in elements_of(s.count))
    elif isinstance(s, Declare) and s.dtype in NARROW:
        yield s.name


def _without(s: Statement, gone: set[str]) -> Statement:
    if isinstance(s, Compute):
        return replace(s, body=tuple(_bare(a) if a.target.name in gone else a for a in s.body))
    if isinstance(s, (Guard, Repeat)):
        return replace(s, body=tuple(_without(inner, gone) for inner in s.body))
    return s


def _bare(a: Assign) -> Assign:
    return replace(a, value=a.value.value) if isinstance(a.value, Round) else a
