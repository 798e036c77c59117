"""Clusters: where a block is in its own, and the shared memory of the others, which DSL tensors refuse and `llvm` accesses take."""
from __future__ import annotations

from typing import Any

import numpy as np

from .lockstep import Clusters
from .machine import Machine, block_index, current
from .memory import APART, SharedMemory
from .numeric import Array, EmulationError, Int32, Numeric
from .strands import Strand
from .tensors import Pointer

LARGEST = 8
"""Blocks of a cluster that every device takes."""


def grouped(numbers: Array, grid: tuple[int, int, int], cluster: tuple[int, ...]) -> Array:
    """The blocks to run, cluster after cluster, each by the rank of its blocks."""
    if len(cluster) != 3:
        raise EmulationError("Launch cluster must have exactly 3 dimensions")
    count = int(np.prod(cluster))
    if not 0 < count <= LARGEST or any(g % c for g, c in zip(grid, cluster, strict=True)):
        raise EmulationError(f"clusters of {cluster} in a grid of {grid}: at most {LARGEST} blocks, sizes that divide the grid's")
    at = (numbers % grid[0], numbers // grid[0] % grid[1], numbers // (grid[0] * grid[1]))
    own, rank = np.zeros_like(numbers), np.zeros_like(numbers)
    for d in (2, 1, 0):
        own, rank = own * (grid[d] // cluster[d]) + at[d] // cluster[d], rank * cluster[d] + at[d] % cluster[d]
    if (np.unique(own, return_counts=True)[1] != count).any():
        raise EmulationError("a cluster runs as a whole: choose all of its blocks or none")
    return numbers[np.lexsort((rank, own))]


# ---- where a block is ------------------------------------------------------------------------------------------------------------

def _int(v: Array) -> Any:
    return Int32.of(np.asarray(v, np.int32))


def block_idx_in_cluster() -> Any:
    """The rank of the block, x fastest."""
    return _int(current().rank)


def block_in_cluster_idx() -> tuple[Any, Any, Any]:
    """(x, y, z) of the block in its cluster."""
    m = current()
    x, y, _ = m.cluster_shape
    return _int(m.rank % x), _int(m.rank // x % y), _int(m.rank // (x * y))


def block_in_cluster_dim() -> tuple[Any, Any, Any]:
    """Blocks of a cluster along x, y and z."""
    x, y, z = current().cluster_shape
    return Int32(x), Int32(y), Int32(z)


def cluster_size() -> Any:
    """Blocks of a cluster."""
    return Int32(int(np.prod(current().cluster_shape)))


def cluster_idx() -> tuple[Any, Any, Any]:
    """(x, y, z) of the cluster in the grid."""
    return tuple(_int(b.v // c) for b, c in zip(block_index(), current().cluster_shape, strict=True))  # type: ignore[return-value]


def cluster_dim() -> tuple[Any, Any, Any]:
    """Clusters of the grid along x, y and z."""
    m = current()
    return tuple(Int32(g // c) for g, c in zip(m.grid, m.cluster_shape, strict=True))  # type: ignore[return-value]


# ---- its barrier -----------------------------------------------------------------------------------------------------------------

def _meeting() -> Strand | Clusters:
    found = current()
    if not isinstance(found, (Strand, Clusters)):
        raise EmulationError("a cluster barrier in a kernel that was not run as clusters")
    return found


def cluster_arrive(*, aligned: bool | None = None) -> None:
    """Arrive: what the thread did before is known to who waits."""
    _meeting().cluster_arrive(False)


def cluster_arrive_relaxed(*, aligned: bool | None = None) -> None:
    """Arrive: that the thread runs is known to who waits, and nothing else."""
    _meeting().cluster_arrive(True)


def cluster_wait() -> None:
    """Wait for all threads of the cluster."""
    _meeting().cluster_wait()


# ---- the shared memory of the others ---------------------------------------------------------------------------------------------

class Peer(SharedMemory):
    """The shared memory of blocks of the chunk by their numbers in it, which may differ from thread to thread."""

    space = "dsmem"
    name = "a block's shared memory"

    def __init__(self, shared: SharedMemory, blocks: Array) -> None:
        self.of, self.at = shared, blocks

    def __getattr__(self, name: str) -> Any:
        return getattr(self.of, name)

    def _index(self, m: Machine, at: Array, size: int) -> Array:
        return at + self.at * (self.of.row // size)

    def _record(self, m: Machine, at: Array, chosen: Array, line: int, write: bool, size: int) -> None:
        first, lanes = at[chosen] * size, np.broadcast_to(m.lane, chosen.shape)[chosen]
        if not first.size:
            return
        home = np.broadcast_to(self.at, chosen.shape)[chosen]
        self.of.races.add(first, lanes, line, write, size, home)
        if m.copies:
            m.flight().touched(m, first + home * APART, size, lanes, "is overwritten" if write else "is read", APART)
        _meeting().touched(home, lanes, first, line)


def map_dsmem_ptr(smem_ptr: Pointer, cta_rank_in_cluster: Any) -> Pointer:
    """The same place in the shared memory of the block of that rank."""
    m = current()
    if not isinstance(smem_ptr, Pointer) or smem_ptr.space != "shared":
        raise EmulationError("map_dsmem_ptr expects smem_ptr to be an SMEM pointer")
    rank = cta_rank_in_cluster if isinstance(cta_rank_in_cluster, Numeric) else Int32(cta_rank_in_cluster)
    m.defined(rank, "the rank of a block")
    wide, size = np.asarray(m.full(np.asarray(rank.v, np.int64))), int(np.prod(m.cluster_shape))
    bad = ((wide < 0) | (wide >= size)) & m.active()
    if bad.any():
        m.find("out-of-bounds", f"rank {int(wide[bad][0])} of a cluster of {size} at {m.where(bad)}", int(bad.sum()))
    peer = Peer(smem_ptr.memory, np.clip(wide, 0, size - 1) + m.first)  # type: ignore[arg-type]
    return Pointer(peer, smem_ptr.offset, smem_ptr.dtype, smem_ptr.align, smem_ptr.extent, smem_ptr.undef)


def _first(pointer: Pointer) -> Array:
    shape = np.shape(pointer.offset)
    return np.asarray(pointer.checked()).reshape(1, *((1,) * (2 - len(shape))), *shape)


def llvm_load(dtype: Any, pointer: Pointer, *, loc: Any = None, ip: Any = None) -> Any:
    """One element from any memory."""
    return dtype.of(pointer.memory.load(_first(pointer), dtype, 1, pointer.extent)[0])


def llvm_store(value: Any, pointer: Pointer, *, loc: Any = None, ip: Any = None) -> None:
    """One element to any memory."""
    m = current()
    m.defined(value, "the stored value")
    pointer.memory.store(_first(pointer), np.broadcast_to(value.v, m.shape)[None], type(value), 1, pointer.extent)
