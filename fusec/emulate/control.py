"""What rewritten control flow calls: run-time branches and loops narrow the mask, assignments under them become selects."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .machine import current, executes
from .numeric import Array, Boolean, EmulationError, Int32, Numeric, as_numeric, either, select, size_of
from .tensors import Registers, Tensor, Vector


class Undefined:
    """What a name holds after the branch or loop that it was first assigned in."""

    def __init__(self, name: str) -> None:
        object.__setattr__(self, "_name", name)

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        name = object.__getattribute__(self, "_name")
        raise EmulationError(f"name '{name}' is not defined: it was first assigned under a run-time condition or loop")

    def __getattribute__(self, name: str) -> Any:
        return self._refuse() if name not in ("_refuse", "_name") else object.__getattribute__(self, name)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __getitem__ = __setitem__ = __call__ = __bool__ = _refuse
    __lt__ = __gt__ = __le__ = __ge__ = __truediv__ = __rtruediv__ = __neg__ = __index__ = _refuse
    __eq__ = __ne__ = _refuse
    __hash__ = None  # type: ignore[assignment]


class Branch:
    """One run-time `if`: `enter` for its body, `otherwise` for its other arm, `leave` after both."""

    def __init__(self, value: Any) -> None:
        self.machine = current()
        self.before = self.machine.mask
        self.inner = self.machine.condition(value)

    def _go(self, inner: Any) -> bool:
        self.machine.mask = self.before
        self.machine.mask = mask = self.machine.narrowed(inner)
        return mask is None or bool(mask.any())

    def enter(self) -> bool:
        return self._go(self.inner)

    def otherwise(self) -> bool:
        return self._go(not self.inner if isinstance(self.inner, bool) else ~self.inner)

    def leave(self) -> None:
        self.machine.mask = self.before


class HostBranch:
    """A branch outside of a kernel."""

    def __init__(self, taken: bool) -> None:
        self.taken = taken

    def enter(self) -> bool:
        return self.taken

    def otherwise(self) -> bool:
        return not self.taken

    def leave(self) -> None:
        """Nothing to restore."""


def branch(value: Any) -> Branch | HostBranch:
    """A run-time `if`: of the threads in a kernel, of Python in the function that launches."""
    return Branch(value) if executes() else HostBranch(bool(value.value if isinstance(value, Numeric) else value))


def loop(*bounds: Any, unroll: int = 1, **options: Any) -> Iterator[Any]:
    """A run-time loop: the counter, as Int32 unless a bound is wider, with the lanes that still go round active."""
    m = current()
    start, stop, step = _bounds(bounds)
    for value in (start, stop, step):
        m.defined(value, "a loop bound")
    counter, before = start, m.mask
    kind = type(counter)
    try:
        while True:
            m.mask = before
            going = np.where(step.v > 0, counter.v < stop.v, counter.v > stop.v)
            mask = m.narrowed(np.asarray(going))
            if mask is None or not mask.any():
                return
            m.mask = None if before is None and mask.all() else mask
            yield kind.of(np.asarray(counter.v))
            counter = counter + step
    finally:
        m.mask = before


def _bounds(bounds: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    values = [as_numeric(b) for b in bounds]
    start, stop, step = (Int32(0), values[0], Int32(1)) if len(values) == 1 else (*values, Int32(1)) if len(values) == 2 else values
    wide = next((type(v) for v in (start, stop, step) if v.width > 32), Int32)
    return wide(start), wide(stop), wide(step)


class While:
    """A run-time `while`: lanes whose condition fails leave."""

    def __init__(self) -> None:
        self.machine = current()
        self.before = self.machine.mask

    def test(self, value: Any) -> bool:
        """Whether any lane goes round once more."""
        mask = self.machine.narrowed(self.machine.condition(value))
        self.machine.mask = mask
        if mask is None or mask.any():
            return True
        self.machine.mask = self.before
        return False


def assign(new: Any, old: Any) -> Any:
    """What a name holds that had a value before the branch or loop."""
    if isinstance(old, Undefined) or not executes():
        return new
    return current().merge(new, old)


def choose(condition: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
    """`a if c else b`: each arm is evaluated by the lanes that take it."""
    if not isinstance(condition, Numeric):
        return yes() if condition else no()
    branch = Branch(condition)
    branch.enter()
    first = yes()
    branch.otherwise()
    second = no()
    branch.leave()
    if isinstance(first, Vector) and isinstance(second, Vector):
        return Vector(select(condition, first.value, second.value), first.shape)
    if isinstance(first, tuple) and isinstance(second, tuple):
        return tuple(select(condition, a, b) for a, b in zip(first, second, strict=True))
    return select(condition, first, second)


def _truth(x: Any) -> tuple[Array, Array | None]:
    return (np.asarray(x.v, bool) if isinstance(x, Boolean) else np.not_equal(x.v, 0)), x.undef


def _join(first: Any, second: Callable[[], Any], conjunction: bool) -> Any:
    if not isinstance(first, Numeric):
        if bool(first) != conjunction:
            return first
        return second()
    other = second()
    if not isinstance(other, Numeric):
        other = Boolean(bool(other))
    (a, u), (b, w) = _truth(first), _truth(other)
    return Boolean.of(a & b if conjunction else a | b, either(u, w))


def taint(x: Any) -> Any:
    """For proofs about mutants: what a register holds becomes undefined in the active lanes."""
    m = current()
    if isinstance(x, Numeric):
        return type(x).of(x.v, either(x.undef, m.active()))
    if isinstance(x, Tensor) and isinstance(x.pointer.memory, Registers):
        at = x.pointer.memory.inside(x.layout.elements() + x.pointer.offset // size_of(x.element_type))
        x.pointer.memory.undef[at] |= m.active()
        x.pointer.memory.whole[at] = False
    return x


def both(first: Any, second: Callable[[], Any]) -> Any:
    """`a and b`: no short cut between run-time values."""
    return _join(first, second, True)


def any_of(first: Any, second: Callable[[], Any]) -> Any:
    """`a or b`: no short cut between run-time values."""
    return _join(first, second, False)


def negate(x: Any) -> Any:
    """`not a`."""
    if not isinstance(x, Numeric):
        return not x
    v, undef = _truth(x)
    return Boolean.of(~v, undef)


def const_expr(x: Any) -> Any:
    """cutlass.const_expr: known while tracing."""
    if isinstance(x, Numeric):
        raise EmulationError("PHASE_REQUIRES_CONSTANT: const_expr of a run-time value")
    return x


def range_constexpr(*bounds: Any) -> range:
    """cutlass.range_constexpr: unrolled while tracing."""
    if any(isinstance(b, Numeric) for b in bounds):
        raise EmulationError("ARG_NON_CONSTANT: range_constexpr of a run-time value")
    return range(*bounds)
