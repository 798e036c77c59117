"""Asynchronous copies into shared memory: what is on its way, and until when. A copy's bytes may arrive at any moment between its
issue and the wait that covers it, so it counts as a write at both."""
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .machine import Machine, current
from .numeric import Array, EmulationError, Numeric

if TYPE_CHECKING:
    from .memory import SharedMemory


class CopyG2SOp:
    """cp.async: 4, 8 or 16 bytes a thread from global into shared memory."""

    def __init__(self, cache_mode: Any = "ALWAYS") -> None:
        self.cache_mode = cache_mode

    def check(self, bits: int, source: Any, target: Any) -> None:
        """What neither the DSL nor ptxas takes."""
        if bits not in (32, 64, 128) or self.cache_mode == "GLOBAL" and bits != 128:
            raise EmulationError(f"cp.async of {bits} bits: 32, 64 or 128, and 128 past L1")
        if source.pointer.space != "global" or target.pointer.space != "shared":
            spaces = f"{source.pointer.space} to {target.pointer.space}"
            raise EmulationError(f"cp.async copies from global to shared memory, not from {spaces} memory")


@dataclass(slots=True)
class _Copy:
    """Bytes on their way: `size` from each first one on (rows of the blocks one after the other), by lane and its group."""

    first: Array
    lanes: Array
    groups: Array
    size: int
    line: int


class InFlight:
    """The copies into the shared memory of a chunk that no wait covers yet."""

    def __init__(self, m: Machine) -> None:
        self.committed = np.zeros(m.blocks * m.threads, np.int64)
        self.copies: list[_Copy] = []

    def issue(self, first: Array, lanes: Array, size: int, line: int) -> None:
        """One access of a copy by each lane: its first byte, block * APART + byte."""
        if first.size:
            self.copies.append(_Copy(first, lanes, self.committed[lanes], size, line))

    def commit(self, m: Machine) -> None:
        """What the active lanes issued since their last commit becomes a group."""
        self.committed[m.lane[m.active()]] += 1

    def wait(self, m: Machine, pending: int, shared: "SharedMemory") -> None:
        """All groups of the active lanes but the last `pending` have arrived."""
        active = m.active().reshape(-1)
        left: list[_Copy] = []
        for c in self.copies:
            done = active[c.lanes] & (c.groups < self.committed[c.lanes] - pending)
            if done.any():
                shared.arrived(c.first[done], c.lanes[done], c.line, c.size)
                c = _Copy(c.first[~done], c.lanes[~done], c.groups[~done], c.size, c.line)
            if c.first.size:
                left.append(c)
        self.copies = left

    def touched(self, m: Machine, first: Array, size: int, lanes: Array, what: str, apart: int) -> None:
        """Report accesses to bytes that are on their way."""
        for c in self.copies:
            starts = np.sort(c.first)
            before = np.searchsorted(starts, first + size, side="left")  # Copies that start before the access ends
            bad = (before > 0) & (starts[np.maximum(before - 1, 0)] + c.size > first)
            if bad.any():
                at = int(np.flatnonzero(bad)[0])
                lane = int(lanes[at])
                who = f"block {m.numbers[lane // m.threads]} thread {lane % m.threads}"
                where = f"byte {int(first[at]) % apart} {what} by {who}"
                m.find("async", f"{where} before a wait covers the copy to it", int(bad.sum()), c.line)


def _flight() -> InFlight:
    m = current()
    return m.flight()


def cp_async_commit_group() -> None:
    """Close the thread's group of copies."""
    _flight().commit(current())


def cp_async_wait_group(n: Any) -> None:
    """Until at most the last n groups of the thread are on their way."""
    if isinstance(n, Numeric):
        raise EmulationError("std::bad_cast: the count of cp_async_wait_group is a Python int")
    m = current()
    m.count("waits")
    if m.shared is not None:
        m.flight().wait(m, int(n), m.shared)


# ---- dependent launch ------------------------------------------------------------------------------------------------------------

def griddepcontrol_wait() -> None:
    """Until the grid before this one is complete: only then may a thread touch what that one writes."""
    m = current()
    m.count("dependent_waits")
    m.waited |= m.active()


def griddepcontrol_launch_dependents() -> None:
    """A hint: the next grid may start."""
    current().count("launches_of_dependents")
