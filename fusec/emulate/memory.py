"""Global and shared memory as an emitted kernel sees them: bounds, alignment, poison, races, and counts of traffic.

Offsets are bytes from the start of the memory, int64, however large. A global tensor is found by its strides: an offset either
belongs to one of its elements or is out of bounds, so strides beyond 2^31 need no real memory between the elements.
"""
from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from .machine import Log, Machine, current
from .numeric import TYPES, UNSIGNED, Array, from_bits, size_of, to_bits
from .races import BlockOwners
from .traffic import count_access

SIGNED = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
POISON = 255
APART = 1 << 24
"""Between the shared memories of two blocks where their bytes are numbered together."""
SHORT = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.float8_e4m3fn: "f8e4m3",
         torch.float8_e5m2: "f8e5m2", torch.int64: "i64", torch.int32: "i32", torch.int16: "i16", torch.int8: "i8",
         torch.uint8: "u8", torch.bool: "bool"}


class Memory:
    """What loads and stores have in common. `first`: byte offsets [accesses, blocks, threads] of `width` elements each."""

    space = ""
    name = ""
    base = 0

    def _checked(self, m: Machine, first: Array, dtype: Any, width: int, extent: tuple[int, int] | None,
                 write: bool) -> tuple[Array, Array, Array]:
        """Element numbers [accesses * width, blocks, threads], which are inside, the active lanes; findings on the way."""
        size, active = size_of(dtype), m.active()
        first = np.broadcast_to(first, (first.shape[0], *m.shape))
        line = m.line()
        self._alignment(m, first, size * width, active, line, "store" if write else "load")
        if m.counting:
            count_access(m, self.space, line, write, self.base + first, size * width, active)
        every = first if width == 1 else (first[:, None] + (np.arange(width) * size).reshape(1, -1, 1, 1)).reshape(-1, *m.shape)
        at, valid = self._locate(every, size, extent)
        outside = active & ~valid
        if outside.any():
            which, block, thread = np.argwhere(outside)[0]
            what = f"{'store to' if write else 'load of'} byte {int(every[which, block, thread])} of {self.describe(extent)}"
            m.log.add("out-of-bounds", line, f"{what} by block {m.numbers[block]} thread {thread}", 0, int(outside.sum()))
        self._record(m, at, valid & active, line, write, size)
        return at, valid, active

    def _alignment(self, m: Machine, first: Array, nbytes: int, active: Array, line: int, what: str) -> None:
        if nbytes == 1:
            return
        bad = ((first + self.base) % nbytes != 0) & active
        if bad.any():
            which, block, thread = np.argwhere(bad)[0]
            at = f"byte {int(first[which, block, thread])} of {self.name} (base {self.base:#x})"
            m.log.add("misaligned", line, f"{what} of {nbytes} bytes at {at} by block {m.numbers[block]} thread {thread}", 0,
                      int(bad.sum()))

    def describe(self, extent: tuple[int, int] | None) -> str:
        raise NotImplementedError

    def _locate(self, every: Array, size: int, extent: tuple[int, int] | None) -> tuple[Array, Array]:
        raise NotImplementedError

    def _record(self, m: Machine, at: Array, chosen: Array, line: int, write: bool, size: int) -> None:
        raise NotImplementedError

    def load(self, first: Array, dtype: Any, width: int, extent: tuple[int, int] | None = None) -> Array:
        """Register values [accesses * width, blocks, threads]."""
        raise NotImplementedError

    def store(self, first: Array, v: Array, dtype: Any, width: int, extent: tuple[int, int] | None = None) -> None:
        """Write register values [accesses * width, blocks, threads] of the active lanes."""
        raise NotImplementedError


class Placed:
    """A tensor at strides (elements) and a base address of one's choosing; its values lie densely, whatever the strides say.

    shape: what the kernel is told, where that is more than the tensor has: the tensor is the part of it that starts at coordinates
    `origin`, and the rest of it cannot be touched.
    """

    def __init__(self, tensor: torch.Tensor, strides: tuple[int, ...], base: int | None = None,
                 shape: tuple[int, ...] | None = None, origin: tuple[int, ...] | None = None) -> None:
        self.tensor, self.strides, self.base = tensor, strides, base
        self.shape = tuple(tensor.shape) if shape is None else shape
        self.shift = sum(o * s for o, s in zip(origin or (), strides, strict=False))


class GlobalMemory(Memory):
    """A tensor argument. Elements are numbered densely in the order of descending strides."""

    space = "global"

    def __init__(self, name: str, source: torch.Tensor | Placed, number: int) -> None:
        virtual = isinstance(source, Placed)
        tensor = source.tensor if isinstance(source, Placed) else source
        self.shift = source.shift if isinstance(source, Placed) else 0
        self.name, self.tensor = name, tensor
        self.dtype = TYPES[SHORT[tensor.dtype]]
        self.shape = tuple(source.shape)
        self.strides = source.strides if isinstance(source, Placed) else tuple(tensor.stride())
        size = tensor.element_size()
        self.base = (1 << 40) * (number + 1) + (0 if virtual else tensor.storage_offset() * size)
        if isinstance(source, Placed) and source.base is not None:
            self.base = source.base
        self.dims = _merged(tuple(tensor.shape), self.strides)
        self.count = math.prod(n for n, _ in self.dims) if tensor.numel() else 0
        self.owned = self._owned() if self.count and not self._nested() else None
        if self.owned is not None:
            self.count = len(self.owned)
        self.dense = virtual
        self.flat = _flat(tensor.permute(*_by_stride(self.strides)) if virtual else tensor, virtual)
        self.owners = BlockOwners(self.count)
        self.races: Any = None
        self.dependent = False

    def _nested(self) -> bool:
        """Whether an offset tells its coordinates: each stride is at least the span of those below it."""
        span = 1
        for extent, stride in reversed(self.dims):
            if stride < span:
                return False
            span += (extent - 1) * stride
        return True

    def _owned(self) -> Array:
        """All offsets of the elements, ascending (strides that overlap)."""
        at = np.zeros(1, np.int64)
        for extent, stride in self.dims:
            at = (at[:, None] + np.arange(extent) * stride).reshape(-1)
        return np.unique(at)

    def begin(self, m: Machine) -> None:
        """A new chunk of blocks."""
        def report(line: int, other: int, unit: int, lane: int, partner: int) -> None:
            block, second = m.numbers[lane // m.threads], m.numbers[partner // m.threads]
            if m.owner[lane // m.threads] == m.owner[partner // m.threads]:  # Others are compared at the end of the grid.
                who = f"threads {lane % m.threads} and {partner % m.threads} of block {block}"
                who = who if block == second else f"blocks {block} and {second} of one cluster"
                m.log.add("global-race", line, f"element {unit} of {self.name} by {who}", other)
        self.races = m.race_log(self.count, False, report)

    def describe(self, extent: tuple[int, int] | None) -> str:
        return f"{self.name} {self.shape} with strides {self.strides}"

    def _units(self, offset: Array) -> tuple[Array, Array]:
        """The number of each element by its offset in elements, and whether there is such an element."""
        if self.owned is not None:
            at = np.minimum(np.searchsorted(self.owned, offset), len(self.owned) - 1)
            return at, self.owned[at] == offset
        rest, unit, inside = offset, np.zeros_like(offset), offset >= 0
        for extent, stride in self.dims:
            if stride == 1:
                digit, rest = rest, np.zeros_like(rest)
            else:
                digit, rest = np.divmod(rest, stride)
            inside &= (digit >= 0) & (digit < extent)
            unit = unit * extent + digit
        return unit, inside & (rest == 0)

    def _locate(self, every: Array, size: int, extent: tuple[int, int] | None) -> tuple[Array, Array]:
        offset = every // size - self.shift
        if not self.count:
            return np.zeros_like(offset), np.zeros(offset.shape, bool)
        unit, inside = self._units(offset)
        return np.where(inside, np.stack([unit, unit if self.dense else offset]), 0), inside

    def _record(self, m: Machine, at: Array, chosen: Array, line: int, write: bool, size: int) -> None:
        lanes = np.broadcast_to(m.lane, chosen.shape)[chosen]
        units = at[0][chosen]
        if self.races is not None:
            self.races.add(units, lanes, line, write)
        if self.dependent:
            early = ~m.waited.reshape(-1)[lanes]
            if early.any():
                lane = int(lanes[early][0])
                who = f"block {m.numbers[lane // m.threads]} thread {lane % m.threads}"
                m.log.add("dependent", line, f"{self.name} is touched by {who} before its griddepcontrol_wait", 0, int(early.sum()))
        self.owners.add(units, m.owner[lanes // m.threads], line, write)

    def load(self, first: Array, dtype: Any, width: int, extent: tuple[int, int] | None = None) -> Array:
        m = current()
        at, valid, _ = self._checked(m, first, dtype, width, extent, False)
        bits = self.flat[at[1]] if self.count else np.zeros(valid.shape, self.flat.dtype)
        if not valid.all():
            bits = np.where(valid, bits, self.flat.dtype.type(np.iinfo(self.flat.dtype).max))
        return from_bits(bits, dtype)

    def store(self, first: Array, v: Array, dtype: Any, width: int, extent: tuple[int, int] | None = None) -> None:
        m = current()
        at, valid, active = self._checked(m, first, dtype, width, extent, True)
        chosen = valid & active
        self.flat[at[1][chosen]] = to_bits(np.broadcast_to(v, valid.shape)[chosen], dtype)

    def finish(self, log: Log) -> None:
        """The end of the grid: races between blocks."""
        def report(line: int, other: int, unit: int, block: int, partner: int) -> None:
            log.add("global-race", line, f"element {unit} of {self.name} by blocks {block} and {partner}", other)
        self.owners.compare(report)


def _merged(shape: tuple[int, ...], strides: tuple[int, ...]) -> list[tuple[int, int]]:
    """(extent, stride) by descending stride, dims that lie in each other without a gap joined; broadcast dims hold no elements."""
    found: list[tuple[int, int]] = []
    for d in sorted((d for d in range(len(shape)) if shape[d] > 1 and strides[d]), key=lambda d: -strides[d]):
        if found and found[-1][1] == shape[d] * strides[d]:
            found[-1] = (found[-1][0] * shape[d], strides[d])
        else:
            found.append((shape[d], strides[d]))
    return found


def _by_stride(strides: tuple[int, ...]) -> list[int]:
    return sorted(range(len(strides)), key=lambda d: (-strides[d], d))


def _flat(tensor: torch.Tensor, dense: bool) -> Array:
    """The bits of a tensor from its first element to the end of its storage (dense: of its elements alone), as a view."""
    size = tensor.element_size()
    if dense:
        if not tensor.is_contiguous():
            raise ValueError("a placed tensor lies densely, its dims in the order of its strides")
        found = tensor.detach().reshape(-1)
    else:
        left = tensor.untyped_storage().nbytes() // size - tensor.storage_offset() if tensor.numel() else 0
        found = tensor.detach().as_strided((left,), (1,))
    bits: Array = found.view(SIGNED[size]).numpy()
    return bits.view(UNSIGNED[size])


class SharedMemory(Memory):
    """The shared memory of the blocks of a chunk, every byte poisoned until it is written."""

    space = "shared"
    name = "shared memory"

    def __init__(self, m: Machine, nbytes: int) -> None:
        self.nbytes, self.row = nbytes, -(-max(nbytes, 1) // 16) * 16
        self.bytes = np.full((m.blocks, self.row), POISON, np.uint8)
        self.issuing = self.bulk = False
        self.written = np.zeros((m.blocks, self.row), np.uint8)

        def report(line: int, other: int, unit: int, lane: int, partner: int) -> None:
            copied = lane < 0 or partner < 0
            lane, partner = max(lane, ~lane), max(partner, ~partner)
            block, second = m.numbers[lane // m.threads], m.numbers[partner // m.threads]
            who = f"threads {lane % m.threads} and {partner % m.threads} of block {block}"
            if copied:
                m.log.add("async", line, f"byte {unit} of a bulk copy by {who}, no wait for its mbarrier between", other)
                return
            if block != second:
                who = f"thread {lane % m.threads} of block {block} and thread {partner % m.threads} of block {second}"
                m.log.add("cluster", line, f"byte {unit} by {who}, no cluster barrier between", other)
                return
            kind, what = ("async", "no wait and barrier") if other in self.arrivals else ("shared-race", "no barrier")
            m.log.add(kind, line, f"byte {unit} by {who}, {what} between", other)
        self.arrivals: set[int] = set()
        self.races = m.race_log(self.row, True, report)

    def grow(self, nbytes: int) -> None:
        """Room for more, poisoned."""
        self.nbytes = max(self.nbytes, nbytes)
        if nbytes > self.row:
            more = ((0, 0), (0, -(-nbytes // 16) * 16 - self.row))
            self.bytes, self.written = np.pad(self.bytes, more, constant_values=POISON), np.pad(self.written, more)
            self.row = self.races.units = self.bytes.shape[1]

    def describe(self, extent: tuple[int, int] | None) -> str:
        low, high = extent or (0, self.nbytes)
        return f"a shared buffer of bytes {low} to {high - 1}"

    def _locate(self, every: Array, size: int, extent: tuple[int, int] | None) -> tuple[Array, Array]:
        low, high = extent or (0, self.nbytes)
        inside = (every >= low) & (every + size <= min(high, self.nbytes))
        return np.where(inside, every // size, 0), inside

    def _record(self, m: Machine, at: Array, chosen: Array, line: int, write: bool, size: int) -> None:
        first, lanes = at[chosen] * size, np.broadcast_to(m.lane, chosen.shape)[chosen]
        if self.bulk:
            self.races.add(first, lanes, line, write, size, None, True)
        else:
            self.races.add(first, lanes, line, write, size)
        if m.copies and first.size:
            what = "is overwritten" if write else "is read"
            m.flight().touched(m, first + lanes // m.threads * APART, size, lanes, what, APART)
        if self.issuing:
            m.flight().issue(first + lanes // m.threads * APART, lanes, size, line)

    def copy(self, first: Array, v: Array, dtype: Any, width: int, extent: tuple[int, int] | None,
             bulk: bool = False) -> None:
        """A store that arrives at an unknown moment before its wait."""
        self.issuing, self.bulk = not bulk, bulk
        try:
            self.store(first, v, dtype, width, extent)
        finally:
            self.issuing = self.bulk = False

    def arrived(self, first: Array, lanes: Array, line: int, size: int) -> None:
        """Copies that a wait of their threads covers: for the others they arrive here."""
        self.arrivals.add(line)
        self.races.add(first % APART, lanes, line, True, size)

    def _index(self, m: Machine, at: Array, size: int) -> Array:
        return at + np.arange(m.blocks).reshape(-1, 1) * (self.row // size)

    def load(self, first: Array, dtype: Any, width: int, extent: tuple[int, int] | None = None) -> Array:
        m, size = current(), size_of(dtype)
        at, valid, active = self._checked(m, first, dtype, width, extent, False)
        kind, index = UNSIGNED[size], self._index(m, at, size)
        fresh = valid & active & (self.written.view(kind).reshape(-1)[index] != _whole(size))
        if fresh.any():
            which, block, thread = np.argwhere(fresh)[0]
            byte = int(at[which, block, thread]) * size
            m.find("uninitialised-shared", f"byte {byte} by block {m.numbers[block]} thread {thread}", int(fresh.sum()))
        return from_bits(self.bytes.view(kind).reshape(-1)[index], dtype)

    def store(self, first: Array, v: Array, dtype: Any, width: int, extent: tuple[int, int] | None = None) -> None:
        m, size = current(), size_of(dtype)
        at, valid, active = self._checked(m, first, dtype, width, extent, True)
        chosen = valid & active
        index = self._index(m, at, size)[chosen]
        self.bytes.view(UNSIGNED[size]).reshape(-1)[index] = to_bits(np.broadcast_to(v, at.shape)[chosen], dtype)
        self.written.view(UNSIGNED[size]).reshape(-1)[index] = _whole(size)


def _whole(size: int) -> np.unsignedinteger[Any]:
    """The mark of an element all of whose bytes were written."""
    return UNSIGNED[size](int.from_bytes(b"\1" * size, "little"))  # type: ignore[no-any-return]
