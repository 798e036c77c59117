"""Hardware facts per architecture: the only file with hardware numbers.

Sources: CUDA C++ Programming Guide, table of technical specifications per compute capability (registers, threads, shared memory);
measured bandwidth: an in-place stream of 64 KB per block with evict-first hints on one H200; multiprocessors and peaks: the
vendor's data sheets of the H200, the B200, the B300 and, of sm_120a, the GeForce RTX 5090. All take clusters of eight blocks.
"""
from __future__ import annotations

from dataclasses import dataclass

from .errors import TargetError

KB = 1024


@dataclass(frozen=True, slots=True)
class Target:
    """One architecture. Bytes; `peak_tb_s`, `stream_tb_s`: TB/s of the memory by its data sheet, and of an in-place stream as
    measured, None where none was."""

    name: str
    smem_per_block: int
    smem_per_sm: int
    registers_sm: int
    threads_sm: int
    multiprocessors: int
    peak_tb_s: float
    stream_tb_s: float | None = None
    vector_bytes: int = 16
    threads_block: int = 1024
    registers_thread: int = 255
    warp: int = 32
    smem_reserved: int = KB

    @property
    def bandwidth_tb_s(self) -> float:
        """The measured stream where there is one, else the peak."""
        return self.stream_tb_s or self.peak_tb_s

    def registers(self, threads: int, blocks: int = 1) -> int:
        """Registers that a thread may have, with `blocks` blocks of `threads` resident on a multiprocessor. Each of its four parts
        has a quarter of the registers, so warps count in fours: 14 of them leave no more room than 16."""
        warps = -(-threads * blocks // self.warp)
        return min(self.registers_thread, self.registers_sm // (-(-warps // 4) * 4 * self.warp) // 8 * 8)

    def blocks(self, smem: int) -> int:
        """Blocks of `smem` bytes of shared memory each that a multiprocessor can hold, at least one."""
        return max(self.smem_per_sm // (smem + self.smem_reserved), 1)

    def carveout(self, blocks: int, smem: int) -> int:
        """The percentage of a multiprocessor's unified memory that `blocks` blocks of `smem` bytes need as shared memory."""
        return min(100, -(-100 * blocks * (smem + self.smem_reserved) // self.smem_per_sm))


TARGETS = {t.name: t for t in (
    Target("sm_90a", 227 * KB, 228 * KB, 65536, 2048, 132, 4.8, 3.98),
    Target("sm_100a", 227 * KB, 228 * KB, 65536, 2048, 148, 8.0, vector_bytes=32),
    Target("sm_103a", 227 * KB, 228 * KB, 65536, 2048, 148, 8.0, vector_bytes=32),
    Target("sm_120a", 99 * KB, 100 * KB, 65536, 1536, 170, 1.79),
)}

DEFAULT = ("sm_100a", "sm_90a")
"""What the command line compiles for when not told."""


def parse(name: str) -> Target:
    """The target of that name; `sm_90`, `sm_100`, … mean their `a` variant. Raises TargetError that lists the known ones."""
    found = TARGETS.get(name) or TARGETS.get(f"{name}a")
    if found is None:
        raise TargetError(f"unknown architecture {name!r}; known: {', '.join(TARGETS)}", hint="give one of them with --arch")
    return found


def of_capability(major: int, minor: int, device: str = "") -> str:
    """The architecture of a device of that compute capability, by name; TargetError where fusec has none for it."""
    name = f"sm_{major}{minor}a"
    if name not in TARGETS:
        where = f" ({device})" if device else ""
        raise TargetError(f"no architecture for compute capability {major}.{minor}{where}; known: {', '.join(TARGETS)}")
    return name
