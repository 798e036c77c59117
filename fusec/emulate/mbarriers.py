"""Barriers in shared memory and the bulk copies that complete on them. A copy's write belongs to no thread: a strand knows of it
once it has waited for the phase that the copy completes."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .machine import current
from .numeric import Array, EmulationError, size_of
from .strands import Strand, constant
from .tensors import Pointer, Tensor

BULK = 16
"""Bytes that addresses and sizes of bulk copies are multiples of."""


@dataclass(slots=True)
class MBarrier:
    """count: arrivals of a phase; left, bytes: arrivals and bytes that this phase still lacks; join: what it makes known so far."""

    count: int
    left: int
    bytes: int = 0
    phase: int = 0
    join: Array | None = None
    done: Array | None = None

    def learn(self, made: Array) -> None:
        self.join = made if self.join is None else np.maximum(self.join, made)

    def settle(self) -> None:
        """The next phase, where nothing is left of this one."""
        if self.left <= 0 and self.bytes == 0:
            self.left, self.phase, self.done, self.join = self.count, self.phase + 1, self.join, None


def _place(pointer: Pointer, write: bool) -> tuple[Strand, int]:
    """The strand, and the byte that all its active threads name; the access is one that may race with the initialisation."""
    s = current()
    if not isinstance(s, Strand) or pointer.space != "shared":
        raise EmulationError("an mbarrier lies in the block's own shared memory")
    byte = constant(pointer.checked(), "the place of an mbarrier")
    if byte % 8:
        s.find("misaligned", f"an mbarrier at byte {byte}: a multiple of 8")
    lanes = s.lane[s.active()]
    pointer.memory.races.add(np.full(lanes.size, byte), lanes, s.line(), write, 8)  # type: ignore[attr-defined]
    return s, byte


def _found(pointer: Pointer) -> tuple[Strand, MBarrier, int]:
    s, byte = _place(pointer, False)
    b = s.team.mbarriers.get((s.home, byte))
    if b is None:
        s.find("uninitialised-shared", f"an mbarrier at byte {byte} of block {s.numbers[s.home]} that was not initialised")
        b = s.team.mbarriers[s.home, byte] = MBarrier(1 << 30, 1 << 30)
    return s, b, byte


def mbarrier_init(mbar_ptr: Pointer, cnt: Any) -> None:
    """A barrier whose phases take `cnt` arrivals. One thread does it."""
    s, byte = _place(mbar_ptr, True)
    count = constant(cnt, "the count of an mbarrier")
    s.team.mbarriers[s.home, byte] = MBarrier(count, count)


def mbarrier_init_fence() -> None:
    """For the copies' hardware; what threads see is ordered by their barriers."""
    current()


def mbarrier_expect_tx(mbar_ptr: Pointer, bytes: Any) -> None:
    """This phase takes more bytes, of each active thread."""
    s, b, _ = _found(mbar_ptr)
    b.bytes += constant(bytes, "the bytes of an mbarrier") * int(s.active().sum())


def mbarrier_arrive(mbar_ptr: Pointer, peer_cta_rank_in_cluster: Any = None, arrive_count: Any = 1, *,
                    relaxed: bool = False) -> None:
    """Arrive, each active thread `arrive_count` times."""
    if peer_cta_rank_in_cluster is not None:
        raise EmulationError("an mbarrier of another block is outside of the subset")
    s, b, _ = _found(mbar_ptr)
    if not relaxed:
        b.learn(s.release())
    b.left -= constant(arrive_count, "the arrivals at an mbarrier") * int(s.active().sum())
    if b.left < 0:
        s.find("divergent-barrier", f"{-b.left} more arrivals at an mbarrier than the {b.count} of a phase")
    b.settle()


def mbarrier_arrive_and_expect_tx(mbar_ptr: Pointer, bytes: Any) -> None:
    """Expect bytes, then arrive."""
    mbarrier_expect_tx(mbar_ptr, bytes)
    mbarrier_arrive(mbar_ptr)


def mbarrier_wait(mbar_ptr: Pointer, phase: Any) -> None:
    """Until the phase of that parity is complete."""
    s, b, byte = _found(mbar_ptr)
    s.log.counts["waits"] = s.log.counts.get("waits", 0) + 1
    parity = constant(phase, "the phase of an mbarrier")
    s.wait(lambda: b.phase % 2 != parity, "deadlock",
           lambda: f"at the mbarrier at byte {byte}, which lacks {b.left} of {b.count} arrivals and {b.bytes} bytes")
    s.acquire(b.done)


class CopyBulkG2SOp:
    """cp.async.bulk from global into shared memory: every active thread issues one, for all of the tensor."""


def bulk_copy(source: Tensor, target: Tensor, mbar_ptr: Pointer | None) -> None:
    """Read now, there once the barrier's phase is complete."""
    if mbar_ptr is None:
        raise EmulationError("expects a pointer to an mbarrier to be provided via the mbar_ptr kw argument")
    if source.pointer.space != "global" or target.pointer.space != "shared":
        raise EmulationError(f"a bulk copy from {source.pointer.space} to {target.pointer.space} memory is outside of the subset")
    size = size_of(source.element_type)
    total = source.layout.size * size
    for side in (source, target):
        if side.layout.vector(size, total & -total, total) * size % BULK or total % BULK:
            raise EmulationError("'cute.copy' op bulk copy expected at least 128-bits")
    s, b, _ = _found(mbar_ptr)
    v, _ = source.read(BULK // size)
    target.copy_in(v, BULK // size, True)
    b.learn(s.proxied())
    b.bytes -= total * int(s.active().sum())
    b.settle()
