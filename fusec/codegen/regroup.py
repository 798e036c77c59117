"""Statements as a reader expects them: neighbours under one condition stand under one `if`, its loads side by side.

    copy a where c; declare b; copy b where c   →   declare b; if c: copy a; copy b

A declaration may move up, since it reads nothing; nothing else changes places.
"""
from __future__ import annotations

from dataclasses import replace

from ..ir.kernel import (
    Apply, AtLeast, Compute, Condition, Coordinate, Copy, Declare, Elem, Guard, LaneReduce, Less, Let, Repeat, Round,
    Statement, Value, walk)


def variables(c: Condition | Value) -> frozenset[str]:
    """The integer variables and registers that a condition or value reads."""
    if isinstance(c, (Less, AtLeast, Coordinate)):
        return c.value.variables
    if isinstance(c, Elem):
        return frozenset({c.name}).union(*(i.variables for i in c.index)) if c.index else frozenset({c.name})
    if isinstance(c, Round):
        return variables(c.value)
    if isinstance(c, Apply):
        return frozenset().union(*(variables(a) for a in c.args)) if c.args else frozenset()
    return frozenset()


def assigned(body: tuple[Statement, ...]) -> frozenset[str]:
    """The registers and integer variables that statements change."""
    names: set[str] = set()
    for s in walk(body):
        if isinstance(s, (Let, Declare)):
            names.add(s.name)
        elif isinstance(s, Compute):
            names |= {a.target.name for a in s.body}
        elif isinstance(s, Copy) and isinstance(s.target, Elem):
            names.add(s.target.name)
        elif isinstance(s, LaneReduce):
            names |= set(s.targets)
    return frozenset(names)


def _lifted(s: Statement) -> Statement:
    """A condition that does not change with the loops of its statement, as a guard around it."""
    if isinstance(s, (Copy, Compute)) and s.when:
        loops = {f.var for f in s.loops}
        free = tuple(c for c in s.when if not variables(c) & loops)
        if free and not (isinstance(s, Compute) and frozenset().union(*map(variables, free)) & assigned((s,))):
            return Guard(free, (replace(s, when=tuple(c for c in s.when if c not in free)),))
    return s


def regroup(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """The same statements with neighbouring guards of one condition merged, inside guards and loops too."""
    out: list[Statement] = []
    for s in map(_lifted, body):
        if isinstance(s, (Guard, Repeat)):
            s = replace(s, body=regroup(s.body))
        at = len(out)
        while at and isinstance(out[at - 1], Declare):
            at -= 1
        before = out[at - 1] if at else None
        if isinstance(s, Guard) and isinstance(before, Guard) and _same(before, s):
            merged = replace(before, body=regroup(before.body + s.body), uniform=before.uniform and s.uniform)
            out[at - 1:] = [*out[at:], merged]
        else:
            out.append(s)
    return tuple(out)


def _same(first: Guard, second: Guard) -> bool:
    """Equal conditions, and the first body leaves them as they are."""
    read = frozenset().union(*map(variables, second.when))
    return first.when == second.when and not read & assigned(first.body)
