"""Memory as the kernel interpreter sees it: flat, bounds-checked, with the accesses of every thread recorded so that races show.

Two accesses to one unit by different threads, one of them a write, are a race unless a barrier of their block lies between; threads
of different blocks have no barrier at all, unless they are of one cluster: then it takes a barrier of the cluster.
Units are elements of a global tensor, or the smallest elements of shared memory.
"""
from __future__ import annotations

import math

import torch
from torch import Tensor

from .dtype import BYTES
from .plan import SmemPlan
from .reference import TORCH_DTYPE, from_register, to_register

CARRIER = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
POISON = 255
"""Every byte of shared memory before its first write: NaN in every float type, -1 in integers."""


class AccessLaw(Exception):
    """An access that breaks a law of memory; the interpreter adds the statement."""


class Accesses:
    """Who wrote and read each unit last. `who` is a thread's number over the whole grid, `epoch` counts its block's barriers.

    `local`: units that only one block can reach. All arguments are flat, one entry per access; int32 but for the addresses.
    """

    def __init__(self, units: int, threads: int, local: bool) -> None:
        self.threads, self.local = threads, local
        self.writer, self.reader, self.wrote, self.read_at = (torch.full((units,), -1, dtype=torch.int32) for _ in range(4))
        self.many, self.foreign = (torch.zeros(units, dtype=torch.bool) for _ in range(2))

    def _unordered(self, other: Tensor, then: Tensor, at: Tensor, who: Tensor, epoch: Tensor) -> bool:
        """Whether one of `other` (−1: nobody), acting at `then[at]`, is another thread without a barrier in between."""
        apart = (other != who) & (other >= 0)
        if not apart.any():
            return False
        if self.local:
            return bool(((then[at] == epoch) & apart).any())
        blocks = (other[apart] // self.threads) != (who[apart] // self.threads)
        return bool((blocks | (then[at[apart]] == epoch[apart])).any())

    def read(self, at: Tensor, who: Tensor, epoch: Tensor) -> bool:
        """Record reads; whether one races with an earlier write."""
        clash = self._unordered(self.writer[at], self.wrote, at, who, epoch)
        known = self.reader[at]
        fresh = (known < 0) | (self.read_at[at] != epoch)
        if not self.local:
            apart = (known != who) & (known >= 0)
            if apart.any():
                units = at[apart]
                self.foreign[units] |= (known[apart] // self.threads) != (who[apart] // self.threads)
        if fresh.all():
            self.many[at] = False
        else:
            self.many[at[fresh]] = False
            self.many[at[(known != who) & ~fresh]] = True
        self.reader[at], self.read_at[at] = who, epoch
        shared = self.reader[at] != who
        if shared.any():
            self.many[at[shared]] = True
        return clash

    def write(self, at: Tensor, who: Tensor, epoch: Tensor) -> bool:
        """Record writes; whether one races with an earlier access or with another write of the same statement."""
        clash = self._unordered(self.writer[at], self.wrote, at, who, epoch)
        clash = clash or self._unordered(self.reader[at], self.read_at, at, who, epoch)
        clash = clash or bool((self.many[at] & (self.read_at[at] == epoch)).any()) or bool(self.foreign[at].any())
        self.writer[at], self.wrote[at] = who, epoch
        return clash or bool((self.writer[at] != who).any())


class GlobalTensor:
    """One argument: elements from its data pointer to the end of its storage, of which only the tensor's own may be touched."""

    def __init__(self, name: str, tensor: Tensor, threads: int, watched: bool) -> None:
        size = tensor.element_size()
        left = tensor.untyped_storage().nbytes() // size - tensor.storage_offset() if tensor.numel() else 0
        self.name, self.dtype, self.tensor = name, tensor.dtype, tensor
        self.flat = tensor.detach().as_strided((left,), (1,)).view(CARRIER[size])
        self.own: Tensor | None = None
        if tensor.numel() != left or not tensor.is_contiguous():
            self.own = torch.zeros(left, dtype=torch.bool)
            self.own.as_strided(tensor.shape, tensor.stride()).fill_(True)
        self.accesses = Accesses(left, threads, local=False) if watched else None

    def check(self, at: Tensor) -> None:
        """Raises AccessLaw for an element outside of the tensor."""
        if not at.numel():
            return
        outside = at < 0
        if int(at.min()) < 0 or int(at.max()) >= self.flat.numel():
            outside = outside | (at >= self.flat.numel())
        elif self.own is not None:
            outside = ~self.own[at]
        if outside.any():
            raise AccessLaw(f"element {int(at[outside][0])} is not one of tensor {self.name} {tuple(self.tensor.shape)}")

    def load(self, at: Tensor, who: Tensor, epoch: Tensor) -> Tensor:
        """Elements at flat offsets, in register form."""
        self.check(at)
        if self.accesses is not None and self.accesses.read(at, who, epoch):
            raise AccessLaw(f"race: tensor {self.name} is read while another thread writes it")
        return to_register(self.flat[at].view(self.dtype))

    def store(self, at: Tensor, value: Tensor, who: Tensor, epoch: Tensor) -> None:
        """Register values to flat offsets, rounded to the element type."""
        self.check(at)
        if self.accesses is not None and self.accesses.write(at, who, epoch):
            raise AccessLaw(f"race: tensor {self.name} is written while another thread reads or writes it")
        short = next(k for k, v in TORCH_DTYPE.items() if v == self.dtype)
        self.flat[at] = from_register(value, short).view(self.flat.dtype)


class SharedMemory:
    """The shared memory of a chunk of blocks, byte-accurate by the plan, poisoned."""

    def __init__(self, plan: SmemPlan, blocks: int, threads: int, watched: bool) -> None:
        self.row = -(-max(plan.total, 1) // 16) * 16
        self.unit = min((math.gcd(BYTES[b.dtype], b.offset, 8) for b in plan.buffers), default=1)
        self.bytes = torch.full((blocks * self.row,), POISON, dtype=torch.uint8)
        self.buffers = {b.name: b for b in plan.buffers}
        self.accesses = Accesses(blocks * self.row // self.unit, threads, local=True) if watched and plan.buffers else None
        self.pushed = torch.zeros(blocks * self.row // self.unit, dtype=torch.bool)
        self.taken = torch.zeros_like(self.pushed)

    def _units(self, buffer: str, at: Tensor, block: Tensor) -> Tensor:
        """First byte of each element; raises AccessLaw beyond the buffer."""
        b = self.buffers[buffer]
        outside = (at < 0) | (at >= b.count)
        if outside.any():
            raise AccessLaw(f"element {int(at[outside][0])} of shared buffer {buffer} with {b.count}")
        return block * self.row + b.offset + at * BYTES[b.dtype]

    def _touch(self, buffer: str, first: Tensor, who: Tensor, epoch: Tensor, write: bool) -> None:
        if self.accesses is None:
            return
        count = BYTES[self.buffers[buffer].dtype] // self.unit
        units = first // self.unit
        if count > 1:
            units = (units.unsqueeze(-1) + torch.arange(count)).flatten()
            who, epoch = who.repeat_interleave(count), epoch.repeat_interleave(count)
        if self.pushed[units].any():
            raise AccessLaw(f"race: shared buffer {buffer} is used, and no barrier of the cluster lies after another block's write")
        self.taken[units] = True
        record = self.accesses.write if write else self.accesses.read
        if record(units, who, epoch):
            how = "written while another thread reads or writes it" if write else "read while another thread writes it"
            raise AccessLaw(f"race: shared buffer {buffer} is {how}, and no barrier lies between")

    def load(self, buffer: str, at: Tensor, block: Tensor, who: Tensor, epoch: Tensor) -> Tensor:
        """Elements of a buffer, in register form. block: the row of the chunk."""
        first, dtype = self._units(buffer, at, block), self.buffers[buffer].dtype
        self._touch(buffer, first, who, epoch, write=False)
        carrier = self.bytes.view(CARRIER[BYTES[dtype]])
        return to_register(carrier[first // BYTES[dtype]].view(TORCH_DTYPE[dtype]))

    def met(self) -> None:
        """A barrier of the clusters."""
        self.pushed[:] = False
        self.taken[:] = False

    def push(self, buffer: str, at: Tensor, value: Tensor, block: Tensor, who: Tensor, epoch: Tensor) -> None:
        """Register values into a buffer of other blocks. block: theirs, row of the chunk."""
        units = self._units(buffer, at, block) // self.unit
        count = BYTES[self.buffers[buffer].dtype] // self.unit
        units = (units.unsqueeze(-1) + torch.arange(count)).flatten()
        if self.accesses is not None and (self.taken[units].any() or self.pushed[units].any()):
            raise AccessLaw(f"race: shared buffer {buffer} is written by another block, and no barrier of the cluster lies before")
        self.pushed[units] = False
        self.store(buffer, at, value, block, who, epoch)
        self.pushed[units], self.taken[units] = True, False

    def store(self, buffer: str, at: Tensor, value: Tensor, block: Tensor, who: Tensor, epoch: Tensor) -> None:
        """Register values into a buffer, rounded to its element type."""
        first, dtype = self._units(buffer, at, block), self.buffers[buffer].dtype
        self._touch(buffer, first, who, epoch, write=True)
        carrier = self.bytes.view(CARRIER[BYTES[dtype]])
        carrier[first // BYTES[dtype]] = from_register(value, dtype).view(carrier.dtype)
