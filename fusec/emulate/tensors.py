"""Pointers, layouts, tensors, register fragments and vectors of the DSL: how elements are reached, read and written."""
from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from ..target import TARGETS
from .machine import Machine, current
from .memory import Memory
from .numeric import (
    SIGNED, Array, Boolean, EmulationError, Int32, Int64, Numeric, arithmetic, as_numeric, compare, either, size_of,
)

Coordinate = Any


class Registers(Memory):
    """The registers of a fragment: [elements, blocks, threads], and which were never written."""

    space = "register"
    name = "registers"

    def __init__(self, m: Machine, count: int, dtype: Any) -> None:
        self.count, self.dtype = count, dtype
        poison = np.nan if dtype.is_float else (False if dtype is Boolean else np.iinfo(dtype.held).max)
        self.v = np.full((count, *m.shape), poison, dtype.held)
        self.undef = np.ones((count, *m.shape), bool)
        self.whole = np.zeros(count, bool)

    def inside(self, at: Array) -> Array:
        """The element numbers, those that do not exist replaced by 0 with a finding."""
        bad = (at < 0) | (at >= self.count)
        if bad.any():
            current().find("out-of-bounds", f"register {int(at[bad][0])} of a fragment of {self.count}")
        return np.where(bad, 0, at)

    def take(self, at: Array) -> tuple[Array, Array | None]:
        """Values [len(at), blocks, threads] and the undefined lanes."""
        at = self.inside(at)
        return self.v[at], None if self.whole[at].all() else self.undef[at]

    def put(self, at: Array, v: Array, undef: Array | None) -> None:
        """Write values that broadcast to [len(at), blocks, threads] in the active lanes."""
        m, at = current(), self.inside(at)
        if m.mask is None:
            self.v[at] = v
            self.undef[at] = False if undef is None else undef
            self.whole[at] = undef is None
            return
        self.v[at] = np.where(m.mask, v, self.v[at])
        self.undef[at] = np.where(m.mask, False if undef is None else undef, self.undef[at])


class Pointer:
    """An address: a memory, a byte offset (int, or int64 over the lanes), an element type, the alignment that its type promises."""

    def __init__(self, memory: Memory, offset: Any, dtype: Any, align: int, extent: tuple[int, int] | None = None,
                 undef: Array | None = None) -> None:
        self.memory, self.offset, self.dtype, self.align, self.extent, self.undef = memory, offset, dtype, align, extent, undef

    def __add__(self, offset: Any) -> "Pointer":
        size = size_of(self.dtype)
        if isinstance(offset, Numeric):
            move = np.asarray(offset.v, np.int64) * size
            align = math.gcd(self.align, offset.divisor * size)
            return Pointer(self.memory, self.offset + move, self.dtype, align, self.extent, either(self.undef, offset.undef))
        move = offset * size
        return Pointer(self.memory, self.offset + move, self.dtype, math.gcd(self.align, move), self.extent, self.undef)

    @property
    def space(self) -> str:
        return self.memory.space

    def to_llvm_ptr(self, *, loc: Any = None, ip: Any = None) -> "Pointer":
        """Itself: operations of the compiler take it as it is."""
        return self

    def checked(self) -> Any:
        """The offset, after a report of lanes where it was never computed."""
        if self.undef is not None:
            current().defined(Int64.of(np.asarray(0), self.undef), "the address")
        return self.offset


class Layout:
    """A flat layout: shape and strides, ints or run-time values, an int where it has one mode without parentheses."""

    def __init__(self, shape: Any, stride: Any = None) -> None:
        self.shape = shape
        self.modes = shape if isinstance(shape, tuple) else (shape,)
        if any(isinstance(n, tuple) for n in self.modes):
            raise EmulationError("nested layouts are outside of the subset")
        if stride is None:
            steps = list(itertools.accumulate(self.modes[:-1], lambda a, b: a * b, initial=1))
            stride = tuple(steps) if isinstance(shape, tuple) else steps[0]
        self.stride = stride
        self.steps = stride if isinstance(stride, tuple) else (stride,)
        if len(self.steps) != len(self.modes):
            raise EmulationError(f"layout {shape} with strides {stride}")

    @property
    def static(self) -> bool:
        return not any(isinstance(n, Numeric) for n in (*self.modes, *self.steps))

    @property
    def size(self) -> Any:
        return math.prod(self.modes) if self.modes else 1

    @property
    def cosize(self) -> int:
        """Elements from the first to the last."""
        return int(1 + sum((n - 1) * s for n, s in zip(self.modes, self.steps, strict=True)))

    def elements(self) -> Array:
        """Offsets of all elements, the first mode fastest."""
        if not self.static:
            raise EmulationError("a layout of run-time sizes where a static one is needed")
        at = np.zeros(1, np.int64)
        for n, s in zip(self.modes, self.steps, strict=True):
            at = (np.arange(n)[:, None] * s + at).reshape(-1)
        return at

    def vector(self, size: int, align: int, limit: int) -> int:
        """Elements of the widest access: a power of two of neighbours, as wide as alignment and the limit (bytes) allow."""
        run = 1
        rest: list[Any] = []
        for n, s in zip(self.modes, self.steps, strict=True):
            if isinstance(s, int) and s == run and not rest:
                run *= n
            elif not (isinstance(n, int) and n == 1):
                rest.append(s)
        width = 1
        while (run % (2 * width) == 0 and 2 * width * size <= min(limit, align)
               and all(isinstance(s, int) and s % (2 * width) == 0 for s in rest)):
            width *= 2
        return width


class Tensor:
    """A pointer and a layout."""

    def __init__(self, pointer: Pointer, layout: Layout) -> None:
        self.pointer, self.layout = pointer, layout

    @property
    def iterator(self) -> Pointer:
        return self.pointer

    @property
    def element_type(self) -> Any:
        """The type of what is read: only tensors in registers know of integers that they have no sign."""
        dtype = self.pointer.dtype
        return dtype if isinstance(self.pointer.memory, Registers) else SIGNED.get(dtype, dtype)

    @property
    def shape(self) -> Any:
        return self.layout.shape

    @property
    def stride(self) -> Any:
        return self.layout.stride

    def _moved(self, coordinate: Coordinate) -> tuple[Pointer, list[int]]:
        """The pointer at a coordinate, and the modes that it leaves open (None)."""
        given = coordinate if isinstance(coordinate, tuple) else (coordinate,)
        if len(given) == 1 and len(self.layout.modes) > 1 and isinstance(given[0], int):
            given = _unravel(given[0], self.layout.modes)
        if len(given) != len(self.layout.modes):
            raise EmulationError(f"coordinate of {len(given)} for a tensor of {len(self.layout.modes)} modes")
        total: Any = 0
        for c, n, s in zip(given, self.layout.modes, self.layout.steps, strict=True):
            if c is None:
                continue
            _check_coordinate(c, n)
            total = total + (c * s if not (isinstance(s, int) and s == 1) else c)
        return self.pointer + total, [i for i, c in enumerate(given) if c is None]

    def __getitem__(self, coordinate: Coordinate) -> Any:
        pointer, left = self._moved(coordinate)
        if left:
            kept = Layout(tuple(self.layout.modes[i] for i in left), tuple(self.layout.steps[i] for i in left))
            return Tensor(pointer, kept)
        if isinstance(pointer.memory, Registers):
            v, undef = pointer.memory.take(_registers(pointer, np.zeros(1, np.int64)))
            return self.element_type.of(v[0], None if undef is None else undef[0])
        first = np.asarray(pointer.checked()).reshape(1, *_pair(pointer.offset))
        return self.element_type.of(pointer.memory.load(first, self.element_type, 1, pointer.extent)[0])

    def __setitem__(self, coordinate: Coordinate, value: Any) -> None:
        pointer, left = self._moved(coordinate)
        if left:
            raise EmulationError("assignment to a slice: store a vector")
        value = self._accepted(value)
        if isinstance(pointer.memory, Registers):
            pointer.memory.put(_registers(pointer, np.zeros(1, np.int64)), value.v, value.undef)
            return
        m = current()
        m.defined(value, "the stored value")
        first = np.asarray(pointer.checked()).reshape(1, *_pair(pointer.offset))
        pointer.memory.store(first, np.broadcast_to(value.v, m.shape)[None], self.element_type, 1, pointer.extent)

    def _accepted(self, value: Any) -> Any:
        """A value of the element type; the DSL converts Python numbers and refuses other types."""
        if not isinstance(value, Numeric):
            value = as_numeric(value)
            if type(value) is not self.element_type:
                value = value.to(self.element_type) if _mild(value, self.element_type) else value
        if not same_type(type(value), self.element_type):
            raise EmulationError(f"type mismatch, store {type(value).__name__} to {self.element_type.__name__}")
        return value if type(value) is self.element_type else value.to(self.element_type)

    def _first(self, width: int) -> Array:
        """Byte offsets [accesses, 1 or blocks, 1 or threads] of all elements, in accesses of `width`."""
        starts = self.layout.elements()[::width] * size_of(self.element_type)
        return np.asarray(self.pointer.checked() + starts.reshape(-1, 1, 1))

    def width(self, limit: int) -> int:
        """Elements of the widest access to this tensor."""
        return self.layout.vector(size_of(self.element_type), self.pointer.align, limit)

    def read(self, width: int) -> tuple[Array, Array | None]:
        """All elements, [count, blocks, threads], in accesses of `width`, and the undefined lanes."""
        memory = self.pointer.memory
        if isinstance(memory, Registers):
            return memory.take(_registers(self.pointer, self.layout.elements()))
        return memory.load(self._first(width), self.element_type, width, self.pointer.extent), None

    def write(self, v: Array, undef: Array | None, width: int) -> None:
        """All elements, in accesses of `width`."""
        memory = self.pointer.memory
        if isinstance(memory, Registers):
            memory.put(_registers(self.pointer, self.layout.elements()), v, undef)
            return
        m = current()
        if undef is not None:
            m.defined(Int32.of(np.asarray(0), undef.any(0)), "the stored value")
        wide = np.broadcast_to(v, (self.layout.size, *m.shape))
        memory.store(self._first(width), wide, self.element_type, width, self.pointer.extent)

    def copy_in(self, v: Array, width: int, bulk: bool = False) -> None:
        """All elements of a tensor in shared memory by asynchronous accesses of `width`."""
        memory: Any = self.pointer.memory
        wide = np.broadcast_to(v, (self.layout.size, *current().shape))
        memory.copy(self._first(width), wide, self.element_type, width, self.pointer.extent, bulk)

    def load(self) -> "Vector":
        """All elements as a vector."""
        v, undef = self.read(self.width(widest()))
        return Vector(self.element_type.of(v, undef), self.shape)

    def store(self, vector: "Vector") -> None:
        """All elements from a vector of the same type and size."""
        if not same_type(vector.dtype, self.element_type):
            raise EmulationError(f"Type mismatch, store {vector.dtype} to Tensor with element type {self.element_type}")
        vector = vector.to(self.element_type)
        if math.prod(_modes(vector.shape)) != self.layout.size:
            raise EmulationError(f"store of {vector.shape} to {self.shape}")
        self.write(vector.value.v, vector.value.undef, self.width(widest()))

    def fill(self, value: Any) -> None:
        """Every element one value (converted: a fill takes Python numbers and values of any type)."""
        value = self.element_type.of(as_numeric(value).v if type(value) is self.element_type else _filled(value, self.element_type))
        self.write(np.broadcast_to(value.v, (self.layout.size, *current().shape)), None, self.width(widest()))


def _filled(value: Any, dtype: Any) -> Array:
    from .numeric import constant, convert
    return convert(value.v, type(value), dtype) if isinstance(value, Numeric) else constant(value, dtype)


def same_type(a: Any, b: Any) -> bool:
    """Whether two element types are one in memory, but for the sign of integers."""
    return SIGNED.get(a, a) is SIGNED.get(b, b)


def _mild(value: Numeric, dtype: Any) -> bool:
    """Whether a Python number may be stored as that type."""
    return (value.is_float and dtype.is_float and dtype.width >= 16) or (not value.is_float and not dtype.is_float)


def _modes(shape: Any) -> tuple[Any, ...]:
    return shape if isinstance(shape, tuple) else (shape,)


def _pair(offset: Any) -> tuple[int, int]:
    """The shape of a byte offset as [blocks, threads]."""
    shape = np.shape(offset)
    return (1, 1) if not shape else (1, shape[0]) if len(shape) == 1 else shape


def _unravel(index: int, modes: tuple[Any, ...]) -> tuple[int, ...]:
    out = []
    for n in modes:
        out.append(index % n)
        index //= n
    return tuple(out)


def _registers(pointer: Pointer, elements: Array) -> Array:
    if isinstance(pointer.offset, np.ndarray) and pointer.offset.ndim:
        raise EmulationError("a fragment indexed by a run-time value lies in local memory")
    return elements + int(pointer.offset) // size_of(pointer.dtype)


def _check_coordinate(c: Any, n: Any) -> None:
    """A coordinate outside of its mode is a finding, even where the memory goes on."""
    if isinstance(n, Numeric) or n >= 2**31:
        return
    if isinstance(c, Numeric):
        bad = np.broadcast_to((c.v < 0) | (c.v >= n), current().shape) & current().active()
        if bad.any():
            current().find("out-of-bounds", f"coordinate beyond a mode of {n} at {current().where(bad)}", int(bad.sum()))
    elif not 0 <= c < n:
        current().find("out-of-bounds", f"coordinate {c} of a mode of {n}")


def widest() -> int:
    """Bytes of the widest access of the architecture."""
    return TARGETS[current().arch].vector_bytes


class Vector:
    """What tensor.load() gives: numbers of one type with a shape; `value` has them along its first dimension."""

    def __init__(self, value: Any, shape: Any) -> None:
        self.value, self.shape = value, shape

    @property
    def dtype(self) -> Any:
        return type(self.value)

    element_type = dtype

    def to(self, dtype: Any) -> "Vector":
        """Converted element by element, each rounded once."""
        from .numeric import convert
        return Vector(dtype.of(convert(self.value.v, self.dtype, dtype), self.value.undef), self.shape)

    def __getitem__(self, index: Any) -> Any:
        at = index if isinstance(index, int) else sum(i * math.prod(_modes(self.shape)[:d]) for d, i in enumerate(index))
        return self.dtype.of(self.value.v[at], None if self.value.undef is None else self.value.undef[at])

    def _combine(self, rule: Any, name: str, other: Any, swap: bool = False) -> "Vector":
        right = other.value if isinstance(other, Vector) else as_numeric(other)
        pair = (right, self.value) if swap else (self.value, right)
        return Vector(rule(name, *pair), self.shape)

    def __add__(self, o: Any) -> "Vector": return self._combine(arithmetic, "add", o)
    def __radd__(self, o: Any) -> "Vector": return self._combine(arithmetic, "add", o, True)
    def __sub__(self, o: Any) -> "Vector": return self._combine(arithmetic, "sub", o)
    def __rsub__(self, o: Any) -> "Vector": return self._combine(arithmetic, "sub", o, True)
    def __mul__(self, o: Any) -> "Vector": return self._combine(arithmetic, "mul", o)
    def __rmul__(self, o: Any) -> "Vector": return self._combine(arithmetic, "mul", o, True)
    def __truediv__(self, o: Any) -> "Vector": return self._combine(arithmetic, "truediv", o)
    def __neg__(self) -> "Vector": return Vector(-self.value, self.shape)
    def __lt__(self, o: Any) -> "Vector": return self._combine(compare, "lt", o)
    def __gt__(self, o: Any) -> "Vector": return self._combine(compare, "gt", o)
