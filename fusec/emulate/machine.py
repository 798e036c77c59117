"""One chunk of blocks in execution: which lanes are active, what was found, barriers and shuffles. All threads go in lockstep.

Lockstep is one of the orders the hardware may take. What another order could change is a race; races are found whatever the order.
"""
from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import numpy as np

from ..target import TARGETS
from .numeric import Array, Boolean, EmulationError, Int32, Numeric, either, same_type, select
from .races import RaceLog
from .races import Report as RaceReport
from .report import Finding, Traffic, reference_of

WARP = 32
FILE = "<emitted>"
"""File name that rewritten sources are compiled under: how a frame is known to be emitted code."""


class Log:
    """Findings and counts of a whole run, over all chunks."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.found: dict[tuple[str, int, int], list[Any]] = {}
        self.counts: dict[str, int] = {"barriers": 0, "shuffles": 0}
        self.traffic: dict[tuple[int, str, bool, int], list[int]] = {}

    def add(self, kind: str, line: int, detail: str, other: int = 0, count: int = 1) -> None:
        """Record a finding; the first detail of each (kind, line, other line) is kept."""
        entry = self.found.setdefault((kind, line, other), [detail, 0])
        entry[1] += count

    def findings(self) -> tuple[Finding, ...]:
        """All findings in the order in which they were met."""
        return tuple(Finding(kind, line, reference_of(self.lines, line), detail, other, count)
                     for (kind, line, other), (detail, count) in self.found.items())

    def accesses(self) -> tuple[Traffic, ...]:
        """Traffic by emitted line."""
        return tuple(Traffic(*key, *value) for key, value in sorted(self.traffic.items()))


class Machine:
    """Some blocks of a grid by their numbers (x fastest); masks are bool arrays [blocks, threads], None for all lanes."""

    def __init__(self, log: Log, grid: tuple[int, int, int], block: tuple[int, int, int], numbers: Array, arch: str,
                 counting: bool = True) -> None:
        self.log, self.grid, self.block, self.arch, self.counting = log, grid, block, arch, counting
        self.blocks, self.threads = len(numbers), block[0] * block[1] * block[2]
        self.shape = (self.blocks, self.threads)
        self.mask: Array | None = None
        self.numbers = numbers.astype(np.int64)
        self.block_number = self.numbers.reshape(-1, 1)
        self.thread_number = np.arange(self.threads).reshape(1, -1)
        self.lane = np.arange(self.blocks * self.threads, dtype=np.int64).reshape(self.shape)
        self.races: list[RaceLog] = []
        self.shared: Any = None
        self.launch_smem: int | None = None
        self.cluster_shape = (1, 1, 1)
        self.rank, self.owner = np.zeros((self.blocks, 1), np.int64), self.numbers
        self.first = np.zeros((self.blocks, 1), np.int64)
        self.waited = np.zeros(self.shape, bool)
        self.copies: list[Any] = []

    # ---- where we are

    def line(self) -> int:
        """The emitted line of the kernel function that is executing (helpers count as their call)."""
        frame: FrameType | None = sys._getframe(1)
        found = 0
        while frame is not None:
            if frame.f_code.co_filename == FILE:
                found = frame.f_lineno
            elif found and frame.f_code.co_name == "run_blocks":
                break
            frame = frame.f_back
        return found

    def find(self, kind: str, detail: str, count: int = 1, other: int = 0) -> None:
        """Record a finding at the line that is executing."""
        self.log.add(kind, self.line(), detail, other, count)

    def where(self, lanes: Array) -> str:
        """`block 3 thread 17` of the first lane of a bool array [blocks, threads]."""
        block, thread = np.argwhere(np.broadcast_to(lanes, self.shape))[0]
        return f"block {self.numbers[block]} thread {thread}"

    def active(self) -> Array:
        """The active lanes as a full array."""
        return np.ones(self.shape, bool) if self.mask is None else np.broadcast_to(self.mask, self.shape)

    def full(self, v: Array) -> Array:
        """An array over all lanes."""
        return np.broadcast_to(v, self.shape)

    def defined(self, value: Numeric, use: str) -> None:
        """Report active lanes whose value was never written, where it is about to have an effect."""
        if value.undef is None:
            return
        bad = np.broadcast_to(value.undef, self.shape) & self.active()
        if bad.any():
            self.find("uninitialised-register", f"{use} of {self.where(bad)} was never written", int(bad.sum()))

    def allocate_shared(self, nbytes: int) -> None:
        """Shared memory up to byte `nbytes` is used; a finding beyond what the launch asks for or the architecture has."""
        from .memory import SharedMemory
        limit = TARGETS[self.arch].smem_per_block
        if self.launch_smem is not None and nbytes > self.launch_smem:
            self.find("shared-plan", f"{nbytes} bytes are used, the launch asks for {self.launch_smem}")
        if nbytes > limit:
            self.find("shared-plan", f"{nbytes} bytes are used, a block of {self.arch} has {limit}")
        if self.shared is None:
            self.shared = SharedMemory(self, nbytes)
        self.shared.grow(nbytes)

    def count(self, what: str) -> None:
        """One more of something that only some kernels do."""
        self.log.counts[what] = self.log.counts.get(what, 0) + 1

    def flight(self) -> Any:
        """The asynchronous copies of this chunk."""
        if not self.copies:
            from .asynchronous import InFlight
            self.copies.append(InFlight(self))
        return self.copies[0]

    def race_log(self, units: int, private: bool, report: RaceReport) -> Any:
        """Where the accesses to a memory are logged, to be compared at this machine's barriers."""
        log = RaceLog(units, self.threads, self.blocks, private, report)
        self.races.append(log)
        return log

    # ---- participation

    def whole(self, group: int, kind: str, what: str) -> Array:
        """Which groups of neighbouring threads take part, [blocks, groups]; a finding where only a part of a group does."""
        spare = -self.threads % group
        active = np.pad(self.active(), ((0, 0), (0, spare)), mode="edge") if spare else self.active()
        groups = active.reshape(self.blocks, -1, group)
        some, every = np.asarray(groups.any(2)), np.asarray(groups.all(2))
        if (some != every).any():
            block, index = np.argwhere(some != every)[0]
            self.find(kind, f"{what} by {int(groups[block, index].sum())} of {group} threads of block {self.numbers[block]}, "
                            f"threads {index * group} to {index * group + group - 1}", int((some != every).sum()))
        return some

    def sync_threads(self) -> None:
        """Barrier of the block."""
        here = self.whole(self.threads, "divergent-barrier", "a barrier reached")[:, 0]
        self.log.counts["barriers"] += int(here.sum())
        for races in self.races:
            races.order(here)

    def finish(self) -> None:
        """The end of the blocks: what is left to compare is compared."""
        for races in self.races:
            races.order(np.ones(self.blocks, bool))

    def shuffle(self, value: Any, source: Array, what: str) -> Any:
        """Each lane gets the value of lane `source` (an array over [blocks, threads], numbers in the warp) of its warp."""
        if not isinstance(value, Numeric):
            raise EmulationError("a shuffle of what is no run-time value")
        self.whole(min(WARP, self.threads), "divergent-shuffle", f"{what} reached")
        self.log.counts["shuffles"] += int(np.ceil(self.active().sum() / WARP))
        thread = self.thread_number // WARP * WARP + source
        absent = (thread >= self.threads) | (thread < 0)
        at = np.broadcast_to(np.where(absent, self.thread_number, thread), self.shape)
        got = np.take_along_axis(self.full(value.v), at, 1)
        undef = None if value.undef is None else np.take_along_axis(self.full(value.undef), at, 1)
        if self.mask is not None:
            asleep = ~np.take_along_axis(self.active(), at, 1)
            undef = either(undef, asleep if asleep.any() else None)
        return type(value).of(got, either(undef, absent if absent.any() else None))

    # ---- control

    def condition(self, value: Any) -> Array | bool:
        """A branch condition as a mask; Python values stay."""
        if not isinstance(value, Numeric):
            return bool(value)
        self.defined(value, "the condition")
        return np.asarray(value.v if isinstance(value, Boolean) else np.not_equal(value.v, 0))

    def narrowed(self, inner: Array | bool) -> Array | None:
        """The current mask and a condition."""
        if inner is True:
            return self.mask
        if inner is False:
            return np.zeros(self.shape, bool)
        wide = np.broadcast_to(inner, self.shape)
        return wide if self.mask is None else self.mask & wide

    def merge(self, new: Any, old: Any) -> Any:
        """What a name holds after an assignment under the current mask."""
        if self.mask is None or new is old:
            return new
        if isinstance(new, tuple | list) and isinstance(old, tuple | list) and len(new) == len(old):
            return type(new)(self.merge(n, o) for n, o in zip(new, old, strict=True))
        if isinstance(new, (Numeric, bool, int, float)) and isinstance(old, (Numeric, bool, int, float)):
            if not isinstance(new, Numeric) and not isinstance(old, Numeric) and type(new) is type(old) and new == old:
                return new
            new, old = same_type(new, old)
            return select(Boolean.of(self.mask), new, old)
        raise EmulationError(f"a {type(old).__name__} becomes a {type(new).__name__} under a run-time condition")


_STATE = threading.local()


def current() -> Machine:
    """The machine that executes; EmulationError outside of a kernel."""
    found = getattr(_STATE, "machine", None)
    if found is None:
        raise EmulationError("a device function is called outside of a kernel")
    return found  # type: ignore[no-any-return]


def executes() -> bool:
    """Whether a kernel is being executed."""
    return getattr(_STATE, "machine", None) is not None


@contextlib.contextmanager
def executing(machine: Machine) -> Iterator[None]:
    """Make a machine the current one."""
    before = getattr(_STATE, "machine", None)
    _STATE.machine = machine
    try:
        yield
    finally:
        _STATE.machine = before


def thread_index() -> tuple[Any, Any, Any]:
    """thread_idx(): x runs fastest."""
    m = current()
    x, y = m.block[0], m.block[1]
    n = m.thread_number
    return tuple(Int32.of(v.astype(np.int32)) for v in (n % x, n // x % y, n // (x * y)))


def block_index() -> tuple[Any, Any, Any]:
    """block_idx(): x runs fastest."""
    m = current()
    x, y = m.grid[0], m.grid[1]
    n = m.block_number
    return tuple(Int32.of(v.astype(np.int32)) for v in (n % x, n // x % y, n // (x * y)))
