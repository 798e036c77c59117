"""After this pass a value that is used only where it is made is a local of its loop, and a small one that is used once is inlined.

    Declare x[4]; for i: x[i] = a[i] * b; y[i] = x[i] + c      ->      for i: y[i] = a[i] * b + c

Nothing is computed in another order, so no value changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ..ir.kernel import (
    Apply,
    Assign,
    Compute,
    Condition,
    Copy,
    Declare,
    Elem,
    Guard,
    LaneReduce,
    Let,
    Linear,
    Repeat,
    Round,
    Statement,
    Value,
    walk,
)

INLINE_SIZE = 7  # Nodes of an expression beyond which a value keeps its name.


def elements_of(value: Value | Condition) -> list[Elem]:
    """Every register element an expression reads."""
    if isinstance(value, Elem):
        return [value]
    if isinstance(value, Apply):
        return [e for a in value.args for e in elements_of(a)]
    if isinstance(value, Round):
        return elements_of(value.value)
    return []


def condition_variables(condition: Condition) -> frozenset[str]:
    """The integer variables a condition depends on."""
    if isinstance(condition, (Elem, Apply)):
        return frozenset(v for e in elements_of(condition) for i in e.index for v in i.variables)
    return condition.value.variables


def rewrite(value: Value, f: Callable[[Elem], Value]) -> Value:
    """The expression with every register element replaced."""
    if isinstance(value, Elem):
        return f(value)
    if isinstance(value, Apply):
        return Apply(value.fn, tuple(rewrite(a, f) for a in value.args))
    if isinstance(value, Round):
        return Round(rewrite(value.value, f), value.dtype)
    return value


def size(value: Value) -> int:
    if isinstance(value, Apply):
        return 1 + sum(size(a) for a in value.args)
    return 1 + size(value.value) if isinstance(value, Round) else 1


def localize(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """The statements with local values as locals."""
    local = _locals(body)
    return tuple(_statements(body, local))


def _uses(statement: Statement) -> Iterator[tuple[str, bool, tuple[Linear, ...]]]:
    """(name, is a write, index) of every register access of one statement, nested bodies left out."""
    if isinstance(statement, Compute):
        for assign in statement.body:
            yield from ((e.name, False, e.index) for e in elements_of(assign.value))
            yield assign.target.name, True, assign.target.index
        yield from ((e.name, False, e.index) for c in statement.when if isinstance(c, (Elem, Apply)) for e in elements_of(c))
    elif isinstance(statement, Copy):
        for place, write in ((statement.source, False), (statement.target, True)):
            if isinstance(place, Elem):
                yield place.name, write, place.index
        yield from ((e.name, False, e.index) for c in statement.when if isinstance(c, (Elem, Apply)) for e in elements_of(c))
    elif isinstance(statement, LaneReduce):
        yield from ((t, True, ()) for t in statement.targets)
    elif isinstance(statement, Let) and isinstance(statement.value, Elem):
        yield statement.value.name, False, statement.value.index
    elif isinstance(statement, Guard):
        yield from ((e.name, False, e.index) for c in statement.when if isinstance(c, (Elem, Apply)) for e in elements_of(c))
    elif isinstance(statement, Repeat):
        yield from ((e.name, False, e.index) for e in elements_of(statement.count))


def _locals(body: tuple[Statement, ...]) -> frozenset[str]:
    """Names written by one assignment of one Compute and read only in that Compute, at the same point."""
    homes: dict[str, set[int]] = {}
    writes: dict[str, int] = {}
    points: dict[str, set[tuple[Linear, ...]]] = {}
    bad: set[str] = set()
    for number, statement in enumerate(walk(body)):
        for name, write, index in _uses(statement):
            homes.setdefault(name, set()).add(number)
            points.setdefault(name, set()).add(index)
            if write and isinstance(statement, Compute):
                writes[name] = writes.get(name, 0) + 1
            elif write or not isinstance(statement, Compute):
                bad.add(name)
        if isinstance(statement, Compute):
            bad |= {a.target.name for a in statement.body if any(e.name == a.target.name for e in elements_of(a.value))}
    return frozenset(n for n in writes if n not in bad and writes[n] == 1 and len(homes[n]) == 1 and len(points[n]) == 1)


def _statements(body: tuple[Statement, ...], local: frozenset[str]) -> Iterator[Statement]:
    for statement in body:
        if isinstance(statement, Declare) and statement.name in local:
            continue
        if isinstance(statement, Compute):
            yield replace(statement, body=_inline(statement.body, local))
        elif isinstance(statement, (Guard, Repeat)):
            yield replace(statement, body=tuple(_statements(statement.body, local)))
        else:
            yield statement


def _inline(body: tuple[Assign, ...], local: frozenset[str]) -> tuple[Assign, ...]:
    counts: dict[str, int] = {}
    for assign in body:
        for elem in elements_of(assign.value):
            counts[elem.name] = counts.get(elem.name, 0) + 1
    held: dict[str, Value] = {}
    out: list[Assign] = []

    def put(elem: Elem) -> Value:
        if elem.name in held:
            return held[elem.name]
        return Elem(elem.name) if elem.name in local else elem

    for assign in body:
        value = rewrite(assign.value, put)
        name = assign.target.name
        if name in local and counts.get(name) == 1 and size(value) <= INLINE_SIZE:
            held[name] = value
            continue
        out.append(replace(assign, value=value, target=Elem(name) if name in local else assign.target))
    return tuple(out)
