"""Executes a KernelSpec on CPU torch: every statement for all threads of many blocks at once, in the order and rounding of the
emitted code, over byte-accurate shared memory, with barriers, bounds, alignment and races checked, clusters of blocks too.

Blocks run in chunks, one chunk after the other; inside a chunk a statement reads everything before it writes anything. A register
element is a tensor that broadcasts over (blocks of the chunk, threads of a block); fragments are lists of them.
"""
from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Union

import torch
from torch import Tensor

from ..errors import InternalError
from .dtype import BYTES, FLOATS, NARROW, register
from .kernel import (
    Assign, AtLeast, Barrier, Compute, Condition, Coordinate, Copy, Declare, Digit, Elem, For, Global, Guard, KernelSpec,
    LaneReduce, Less, Let, Linear, Place, Repeat, Round, Shared, Statement, TensorSize, Value, walk)
from .memory_model import AccessLaw, GlobalTensor, SharedMemory
from .print_kernel import format_statement
from .reference import TORCH_DTYPE, apply, literal, round_to
from .scalar import Lit
from .sizes import solve

LANES_AT_ONCE = 1 << 18
WARP = 32
Integer = Union[int, Tensor]


def run_kernel(spec: KernelSpec, tensors: Mapping[str, Tensor], check_races: bool = True) -> None:
    """Run one kernel over its whole grid, in place in the caller's CPU tensors (one per Parameter, by name).

    Raises InternalError, naming the statement, where the spec breaks a law: an access out of bounds or misaligned, a race, a
    barrier or a lane reduction under a divergent condition, a register indexed at run time.
    """
    sizes = _bind(spec, tensors)
    grid = tuple(math.prod(f if isinstance(f, int) else sizes[f] for f in factors) for factors in spec.launch.grid)
    threads, blocks = spec.launch.threads, math.prod(grid)
    stored = {s.target.tensor for s in walk(spec.body) if isinstance(s, Copy) and isinstance(s.target, Global)}
    together = threads * spec.launch.cluster
    memory = {p.name: GlobalTensor(p.name, tensors[p.name], together, check_races and p.name in stored) for p in spec.parameters}
    step = max(1, LANES_AT_ONCE // threads // spec.launch.cluster) * spec.launch.cluster
    for start in range(0, blocks, step):
        Machine(spec, memory, grid, start, min(start + step, blocks), check_races).run(spec.body, None)


def _bind(spec: KernelSpec, tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """The sizes behind the symbols; InternalError where a tensor does not fit its Parameter."""
    for p in spec.parameters:
        t = tensors[p.name]
        fits = t.dtype == TORCH_DTYPE[p.dtype] and t.dim() == len(p.shape) and t.device.type == "cpu"
        for want, stride, n, step in zip(p.shape, p.strides, t.shape, t.stride(), strict=False):
            fits &= (isinstance(want, str) or want == n) and (n <= 1 or stride in (None, step))
        if not fits:
            raise InternalError(f"tensor {p.name} is {t.dtype} {tuple(t.shape)} strides {t.stride()}; the kernel takes {p}")
    try:
        return solve((want, n) for p in spec.parameters for want, n in zip(p.shape, tensors[p.name].shape, strict=True))
    except ValueError as error:
        raise InternalError(f"the sizes of the tensors of {spec.name} do not agree: {error}") from None


class Machine:
    """One chunk of blocks: its registers, its integer variables, its shared memory."""

    def __init__(self, spec: KernelSpec, memory: Mapping[str, GlobalTensor], grid: tuple[int, ...], first: int, last: int,
                 check_races: bool) -> None:
        self.spec, self.memory, self.threads, self.blocks = spec, memory, spec.launch.threads, last - first
        self.shared = SharedMemory(spec.smem, self.blocks, self.threads, check_races)
        block = torch.arange(first, last).unsqueeze(1)
        self.ints: dict[str, Integer] = {
            "thread": torch.arange(self.threads).unsqueeze(0), "block_x": block % grid[0],
            "block_y": block // grid[0] % grid[1], "block_z": block // (grid[0] * grid[1])}
        self.registers: dict[str, list[Tensor | None]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, str] = {}
        self.epoch, self.far = (torch.zeros(self.blocks, dtype=torch.int32) for _ in range(2))
        self.met = spec.launch.cluster == 1
        self.block_of = torch.arange(self.blocks).repeat_interleave(self.threads)
        self.who = (block * self.threads + self.ints["thread"]).flatten().to(torch.int32)

    def run(self, body: tuple[Statement, ...], mask: Tensor | None) -> None:
        """The statements in order, for the threads of the mask (None: all)."""
        for s in body:
            try:
                self._execute(s, mask)
            except AccessLaw as law:
                raise InternalError(str(law), f"kernel {self.spec.name}", "\n".join(format_statement(s))) from None

    def _execute(self, s: Statement, mask: Tensor | None) -> None:
        if isinstance(s, Let):
            self._let(s, mask)
        elif isinstance(s, Declare):
            self._declare(s)
        elif isinstance(s, Copy):
            self._copy(s, mask)
        elif isinstance(s, Compute):
            for _ in self._points(s.loops):
                self._assignments(s.body, self._narrow(mask, s.when))
        elif isinstance(s, LaneReduce):
            self._lane_reduce(s, mask)
        elif isinstance(s, Barrier):
            self._barrier(s, mask)
        elif isinstance(s, Guard):
            self._guard(s, mask)
        else:
            self._repeat(s, mask)

    def _barrier(self, s: Barrier, mask: Tensor | None) -> None:
        """Epochs count barriers: of a block for its shared memory, of a cluster for global memory and for what others write."""
        passed = self._whole(mask, self.threads, "barrier").squeeze(1).to(torch.int32)
        if s.scope != "block" and not passed.all():
            raise AccessLaw("a barrier of the cluster under a condition that differs inside it")
        self.epoch += passed if s.scope in ("block", "cluster") else 0
        self.far += passed if s.scope == "cluster" or self.spec.launch.cluster == 1 else 0
        self.met = self.met or s.scope in ("cluster", "wait")
        if s.scope == "cluster":
            self.shared.met()

    # ---- integers and conditions

    def linear(self, value: Linear) -> Integer:
        """An integer expression; a plain int where only loop variables occur."""
        total: Integer = value.const
        for t in value.terms:
            if t.var not in self.ints:
                raise AccessLaw(f"integer variable {t.var} is used before it is set")
            factor = t.coef * (self.memory[t.stride[0]].tensor.stride(t.stride[1]) if t.stride else 1)
            total = total + self.ints[t.var] * factor
        return total

    def condition(self, c: Condition) -> Tensor:
        """A bool tensor that broadcasts over (blocks, threads)."""
        if isinstance(c, (Less, AtLeast)):
            value = self.linear(c.value)
            wide = value if isinstance(value, Tensor) else torch.full((1, 1), value)
            return wide < c.bound if isinstance(c, Less) else wide >= c.bound
        return self.value(c)

    def _narrow(self, mask: Tensor | None, when: tuple[Condition, ...]) -> Tensor | None:
        for c in when:
            found = self.condition(c)
            mask = found if mask is None else mask & found
        return mask

    def _points(self, loops: tuple[For, ...]) -> Iterator[None]:
        for point in itertools.product(*(range(f.extent) for f in loops)):
            self.ints.update(zip((f.var for f in loops), point, strict=True))
            yield

    def _let(self, s: Let, mask: Tensor | None) -> None:
        new: Integer
        if isinstance(s.value, Digit):
            new = self.linear(Linear(())) + self.ints[s.value.source] // s.value.step
            new = new % s.value.extent if s.value.extent else new
        elif isinstance(s.value, Linear):
            new = self.linear(s.value)
        else:
            self.ints[s.name] = self.value(s.value).to(torch.int64)
            return
        wide = new if isinstance(new, Tensor) else torch.tensor([[new]])
        inside = (wide < 2**31) & (wide >= -2**31)
        if not (inside if mask is None else inside | ~mask).all():
            raise AccessLaw(f"{s.name} does not fit 32 bits")
        self.ints[s.name] = new

    # ---- registers and values

    def _declare(self, s: Declare) -> None:
        count = math.prod(s.shape)
        init = None if s.init is None else self._held(literal(Lit(s.init)).reshape(1, 1), s.dtype)
        self.registers[s.name], self.shapes[s.name], self.dtypes[s.name] = [init] * count, s.shape, s.dtype

    def _held(self, value: Tensor, dtype: str) -> Tensor:
        """A value as a register of that declared dtype holds it."""
        if dtype in FLOATS:
            return round_to(value.to(torch.float32), dtype) if dtype in NARROW else value.to(torch.float32)
        return value.to(TORCH_DTYPE[register(dtype)])

    def _slot(self, e: Elem, shift: int = 0) -> int:
        """The flat number of a register element; `shift` moves along the last dim."""
        if e.name not in self.registers:
            raise AccessLaw(f"register {e.name} is used before it is declared or assigned")
        shape, flat = self.shapes[e.name], 0
        if len(shape) != len(e.index):
            raise AccessLaw(f"register {e.name} has shape {shape}, the index has {len(e.index)} coordinates")
        for dim, (index, extent) in enumerate(zip(e.index, shape, strict=True)):
            at = self.linear(index)
            if isinstance(at, Tensor):
                raise AccessLaw(f"register {e.name} is indexed by a run-time value")
            at += shift if dim == len(shape) - 1 else 0
            if not 0 <= at < extent:
                raise AccessLaw(f"register {e.name} with shape {shape} is indexed at {at} in dim {dim}")
            flat = flat * extent + at
        return flat

    def _get(self, e: Elem, shift: int = 0) -> Tensor:
        held = self.registers[e.name][self._slot(e, shift)] if e.name in self.registers else None
        if held is None:
            self._slot(e, shift)
            raise AccessLaw(f"register {e.name} is read before it is written")
        return held

    def _set(self, e: Elem, new: Tensor, mask: Tensor | None, shift: int = 0) -> None:
        if e.name not in self.registers and not e.index:
            self.registers[e.name], self.shapes[e.name] = [None], ()
        if e.name in self.dtypes:
            new = self._held(new, self.dtypes[e.name])
        at = self._slot(e, shift)
        old = self.registers[e.name][at]
        if mask is not None:
            rest = torch.full((1, 1), math.nan if new.is_floating_point() else 0).to(new.dtype) if old is None else old
            new = torch.where(mask, new, rest)
        self.registers[e.name][at] = new

    def value(self, v: Value) -> Tensor:
        """A value in register form, at least two-dimensional."""
        if isinstance(v, Lit):
            return literal(v).reshape(1, 1)
        if isinstance(v, Elem):
            if not v.index and v.name in self.ints and v.name not in self.registers:
                return self._integer(self.ints[v.name], torch.int32)
            return self._get(v)
        if isinstance(v, Round):
            return round_to(self.value(v.value), v.dtype)
        if isinstance(v, Coordinate):
            return self._integer(self.linear(v.value), torch.int32)
        if isinstance(v, TensorSize):
            return self._integer(self.memory[v.tensor].tensor.shape[v.dim], torch.int64)
        return apply(v.fn, [a if isinstance(a, Lit) else self.value(a) for a in v.args])

    def _integer(self, value: Integer, dtype: torch.dtype) -> Tensor:
        return (value if isinstance(value, Tensor) else torch.tensor([[value]])).to(dtype)

    def _assignments(self, body: tuple[Assign, ...], mask: Tensor | None) -> None:
        for a in body:
            new = self.value(a.value)
            self._set(a.target, new.reshape(1, 1) if new.dim() < 2 else new, mask)

    # ---- memory

    def _copy(self, s: Copy, mask: Tensor | None) -> None:
        for number, _ in enumerate(self._points(s.loops)):
            active = self._narrow(mask, s.when)
            if number == 0 and s.vector > s.width:
                place = s.target if isinstance(s.source, Elem) else s.source
                assert isinstance(place, (Global, Shared))
                self._addresses(place, s.vector, active)
            if active is not None and not active.any():
                continue
            if isinstance(s.source, Elem):
                values = [self._get(s.source, w if s.source.index else 0) for w in range(s.width)]
                self._write(s.target, values, active)
                continue
            assert isinstance(s.target, Elem)
            for w, value in enumerate(self._read(s.source, s.width, active)):
                self._set(s.target, value, active, w if s.target.index else 0)

    def _addresses(self, place: Global | Shared, width: int, active: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Flat element offsets [width, accesses] of the active threads, and which threads those are (None: all)."""
        offset = self.linear(place.offset)
        wide = offset if isinstance(offset, Tensor) else torch.tensor([[offset]])
        at = wide.expand(self.blocks, self.threads).flatten()
        on = None if active is None or active.all() else active.expand(self.blocks, self.threads).flatten()
        if on is not None:
            at = at[on]
        self._aligned(place, at, width)
        return (at.unsqueeze(0) + torch.arange(width).unsqueeze(1) if width > 1 else at.unsqueeze(0)), on

    def _actors(self, place: Global | Shared, on: Tensor | None, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """(block of the chunk, number of the thread over the grid, its epoch) of every access, flat."""
        block, who = (self.block_of, self.who) if on is None else (self.block_of[on], self.who[on])
        epoch = self.far if isinstance(place, Global) else self.epoch
        return block.repeat(width), who.repeat(width), epoch[block].repeat(width)

    def _peer(self, place: Shared, block: Tensor, on: Tensor | None, width: int) -> Tensor:
        """The blocks of the chunk whose shared memory is written. Raises AccessLaw before all of them run."""
        assert place.peer is not None
        if not self.met:
            raise AccessLaw("another block's shared memory is written before all blocks of the cluster run")
        rank = self.linear(place.peer)
        wide = (rank if isinstance(rank, Tensor) else torch.tensor([[rank]])).expand(self.blocks, self.threads).flatten()
        found = (wide if on is None else wide[on]).repeat(width)
        if ((found < 0) | (found >= self.spec.launch.cluster)).any():
            raise AccessLaw(f"there is no block of rank {int(found.max())} in a cluster of {self.spec.launch.cluster}")
        return block // self.spec.launch.cluster * self.spec.launch.cluster + found

    def _aligned(self, place: Global | Shared, at: Tensor, width: int) -> None:
        if width > 1 and (at % width).any():
            raise AccessLaw(f"an access of {width} neighbours at element {int(at[at % width != 0][0])} is not aligned")
        if isinstance(place, Global):
            parameter = next(p for p in self.spec.parameters if p.name == place.tensor)
            base, size = parameter.align, BYTES[parameter.dtype]
        else:
            buffer = self.shared.buffers[place.buffer]
            base, size = buffer.offset, BYTES[buffer.dtype]
        if width > 1 and base % min(width * size, 16):
            raise AccessLaw(f"an access of {width * size} bytes to memory aligned to {base}")

    def _read(self, place: Place, width: int, active: Tensor | None) -> list[Tensor]:
        if isinstance(place, Elem):
            return [self._get(place, w if place.index else 0) for w in range(width)]
        at, on = self._addresses(place, width, active)
        block, who, epoch = self._actors(place, on, width)
        if isinstance(place, Global):
            found = self.memory[place.tensor].load(at.flatten(), who, epoch)
        else:
            found = self.shared.load(place.buffer, at.flatten(), block, who, epoch)
        if on is None:
            return list(found.view(width, self.blocks, self.threads).unbind())
        out = torch.zeros(width, on.numel(), dtype=found.dtype)
        out[:, on] = found.view(width, -1)
        return list(out.view(width, self.blocks, self.threads).unbind())

    def _write(self, place: Place, values: list[Tensor], active: Tensor | None) -> None:
        if isinstance(place, Elem):
            for w, value in enumerate(values):
                self._set(place, value, active, w if place.index else 0)
            return
        at, on = self._addresses(place, len(values), active)
        flat = [v.expand(self.blocks, self.threads).flatten() for v in values]
        new = torch.cat(flat if on is None else [v[on] for v in flat])
        block, who, epoch = self._actors(place, on, len(values))
        if isinstance(place, Global):
            self.memory[place.tensor].store(at.flatten(), new, who, epoch)
        elif place.peer is not None:
            home = self._peer(place, block, on, len(values))
            self.shared.push(place.buffer, at.flatten(), new, home, who, self.epoch[home])
        else:
            self.shared.store(place.buffer, at.flatten(), new, block, who, epoch)

    # ---- control, lanes, barriers

    def _whole(self, mask: Tensor | None, group: int, what: str) -> Tensor:
        """Which groups of neighbouring threads (a warp, the block) go here; all or none of each. [blocks, groups] bool."""
        full = torch.ones(self.blocks, self.threads, dtype=torch.bool) if mask is None else mask.expand(self.blocks, self.threads)
        if self.threads % group:
            raise AccessLaw(f"{self.threads} threads are not whole groups of {group}")
        groups = full.reshape(self.blocks, -1, group)
        if (groups.any(2) != groups.all(2)).any():
            raise AccessLaw(f"a {what} under a condition that differs inside a group of {group} threads")
        return groups.all(2)

    def _guard(self, s: Guard, mask: Tensor | None) -> None:
        inner = self._narrow(mask, s.when)
        if s.uniform:
            self._whole(inner, self.threads, "guard said to be uniform")
        if inner is None or inner.any():
            self.run(s.body, inner)

    def _repeat(self, s: Repeat, mask: Tensor | None) -> None:
        count = self.value(s.count)
        for turn in range(max(int(count.max()), 0)):
            here = count > turn
            self.ints[s.var] = torch.tensor([[turn]])
            inner = here if mask is None else mask & here
            if inner.any():
                self.run(s.body, inner)

    def _lane_reduce(self, s: LaneReduce, mask: Tensor | None) -> None:
        """Butterfly over neighbours first: offsets step, 2·step, … lanes·step / 2."""
        self._whole(mask, WARP, "lane reduction")
        if s.lanes & (s.lanes - 1) or s.step & (s.step - 1) or s.step * s.lanes > WARP:
            raise AccessLaw(f"{s.lanes} lanes, {s.step} apart, are not a power of two inside a warp")
        thread = torch.arange(self.threads)
        for name in s.targets:
            if self.shapes.get(name) != s.shape:
                raise AccessLaw(f"register {name} has shape {self.shapes.get(name)}, the reduction says {s.shape}")
            for point in itertools.product(*(range(n) for n in s.shape)):
                element = Elem(name, tuple(Linear((), i) for i in point))
                value, offset = self._get(element), s.step
                while offset < s.step * s.lanes:
                    value = value.expand(value.shape[0], self.threads)
                    value = apply(s.fn, [value, value[:, thread ^ offset]])
                    offset *= 2
                self._set(element, value, mask)

