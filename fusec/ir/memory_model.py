"""Memory as the kernel interpreter sees it: flat, bounds-checked, with the accesses of every thread recorded so that races show.

Two accesses to one unit by different threads, one of them a write, are a race unless a barrier of their block lies between; threads
of different blocks have no barrier at all. Units are elements of a global tensor, or bytes of shared memory.
"""
from __future__ import annotations

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
    """Who wrote and read each unit last. `who` is a thread's number over the whole grid, `epoch` counts its block's barriers."""

    def __init__(self, units: int, threads: int) -> None:
        self.threads = threads
        self.writer, self.first, self.second = (torch.full((units,), -1) for _ in range(3))
        self.write_epoch, self.read_epoch = torch.full((units,), -1), torch.full((units,), -1)

    def _clash(self, other: Tensor, then: Tensor, who: Tensor, epoch: Tensor) -> Tensor:
        """Where `other` (−1: nobody) is another thread, unordered with `who`."""
        foreign = (other // self.threads) != (who // self.threads)
        return (other >= 0) & (other != who) & (foreign | (then == epoch))

    def read(self, at: Tensor, who: Tensor, epoch: Tensor) -> Tensor:
        """Record reads (all flat, one entry per access); True where one races with an earlier write."""
        clash = self._clash(self.writer[at], self.write_epoch[at], who, epoch)
        known = self.first[at]
        stale = (known < 0) | (((known // self.threads) == (who // self.threads)) & (self.read_epoch[at] != epoch))
        self.first[at[stale]], self.second[at[stale]], self.read_epoch[at[stale]] = who[stale], -1, epoch[stale]
        another = self.first[at] != who
        self.second[at[another]] = who[another]
        return clash

    def write(self, at: Tensor, who: Tensor, epoch: Tensor) -> Tensor:
        """Record writes; True where one races with an earlier access or with another write of the same statement."""
        clash = self._clash(self.writer[at], self.write_epoch[at], who, epoch)
        for reader in (self.first, self.second):
            clash |= self._clash(reader[at], self.read_epoch[at], who, epoch)
        self.writer[at], self.write_epoch[at] = who, epoch
        return clash | (self.writer[at] != who)


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
        self.accesses = Accesses(left, threads) if watched else None

    def check(self, at: Tensor) -> None:
        """Raises AccessLaw for an element outside of the tensor."""
        outside = (at < 0) | (at >= self.flat.numel())
        if not outside.any() and self.own is not None:
            outside = ~self.own[at]
        if outside.any():
            raise AccessLaw(f"element {int(at[outside][0])} is not one of tensor {self.name} {tuple(self.tensor.shape)}")

    def load(self, at: Tensor, who: Tensor, epoch: Tensor) -> Tensor:
        """Elements at flat offsets, in register form."""
        self.check(at)
        if self.accesses is not None and self.accesses.read(at, who, epoch).any():
            raise AccessLaw(f"race: tensor {self.name} is read while another thread writes it")
        return to_register(self.flat[at].view(self.dtype))

    def store(self, at: Tensor, value: Tensor, who: Tensor, epoch: Tensor) -> None:
        """Register values to flat offsets, rounded to the element type."""
        self.check(at)
        if self.accesses is not None and self.accesses.write(at, who, epoch).any():
            raise AccessLaw(f"race: tensor {self.name} is written while another thread reads or writes it")
        short = next(k for k, v in TORCH_DTYPE.items() if v == self.dtype)
        self.flat[at] = from_register(value, short).view(self.flat.dtype)


class SharedMemory:
    """The shared memory of a chunk of blocks, byte-accurate by the plan, poisoned."""

    def __init__(self, plan: SmemPlan, blocks: int, threads: int, watched: bool) -> None:
        self.row = -(-max(plan.total, 1) // 16) * 16
        self.bytes = torch.full((blocks * self.row,), POISON, dtype=torch.uint8)
        self.buffers = {b.name: b for b in plan.buffers}
        self.accesses = Accesses(blocks * self.row, threads) if watched and plan.buffers else None

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
        size = BYTES[self.buffers[buffer].dtype]
        units = (first.unsqueeze(-1) + torch.arange(size)).flatten()
        record = self.accesses.write if write else self.accesses.read
        if record(units, who.repeat_interleave(size), epoch.repeat_interleave(size)).any():
            how = "written while another thread reads or writes it" if write else "read while another thread writes it"
            raise AccessLaw(f"race: shared buffer {buffer} is {how}, and no barrier lies between")

    def load(self, buffer: str, at: Tensor, block: Tensor, who: Tensor, epoch: Tensor) -> Tensor:
        """Elements of a buffer, in register form. block: the row of the chunk."""
        first, dtype = self._units(buffer, at, block), self.buffers[buffer].dtype
        self._touch(buffer, first, who, epoch, write=False)
        carrier = self.bytes.view(CARRIER[BYTES[dtype]])
        return to_register(carrier[first // BYTES[dtype]].view(TORCH_DTYPE[dtype]))

    def store(self, buffer: str, at: Tensor, value: Tensor, block: Tensor, who: Tensor, epoch: Tensor) -> None:
        """Register values into a buffer, rounded to its element type."""
        first, dtype = self._units(buffer, at, block), self.buffers[buffer].dtype
        self._touch(buffer, first, who, epoch, write=True)
        carrier = self.bytes.view(CARRIER[BYTES[dtype]])
        carrier[first // BYTES[dtype]] = from_register(value, dtype).view(carrier.dtype)
