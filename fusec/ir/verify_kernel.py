"""The laws of a kernel's statements, checked when it is made. A broken law is a bug of ours."""
from __future__ import annotations

from collections.abc import Iterator

from ..errors import InternalError
from .kernel import (
    Apply, Compute, Condition, Copy, Declare, Elem, Guard, KernelSpec, LaneReduce, Let, Repeat, Round, Statement, Value)


def verify_kernel(spec: KernelSpec) -> KernelSpec:
    """The kernel itself if every register is used where it is declared, or further in. Raises InternalError with its name."""
    _check(spec, spec.body, frozenset())
    return spec


def _check(spec: KernelSpec, body: tuple[Statement, ...], known: frozenset[str]) -> frozenset[str]:
    """The registers known after the body: those of a loop are not, one turn's values are not the next one's."""
    for s in body:
        if isinstance(s, Declare):
            known |= {s.name}
        made = {a.target.name for a in s.body if not a.target.index} if isinstance(s, Compute) else set[str]()
        for name in _used(s):
            if name not in known and name not in made:
                raise InternalError(f"kernel {spec.name}: register {name} is used where it is not declared", str(s))
        if isinstance(s, Guard):
            known = _check(spec, s.body, known)
        elif isinstance(s, Repeat):
            _check(spec, s.body, known)
    return known


def _used(s: Statement) -> Iterator[str]:
    """The registers that a statement itself names, locals of its loops among them."""
    if isinstance(s, Compute):
        for a in s.body:
            yield from (e.name for e in _elements(a.value))
            if a.target.index:
                yield a.target.name
    elif isinstance(s, Copy):
        yield from (p.name for p in (s.source, s.target) if isinstance(p, Elem))
    elif isinstance(s, LaneReduce):
        yield from s.targets
    elif isinstance(s, Let) and isinstance(s.value, Elem):
        yield s.value.name
    elif isinstance(s, Repeat):
        yield from (e.name for e in _elements(s.count))
    if isinstance(s, (Compute, Copy, Guard)):
        for condition in s.when:
            yield from (e.name for e in _elements(condition))


def _elements(value: Value | Condition) -> Iterator[Elem]:
    if isinstance(value, Elem):
        yield value
    elif isinstance(value, Apply):
        for a in value.args:
            yield from _elements(a)
    elif isinstance(value, Round):
        yield from _elements(value.value)
