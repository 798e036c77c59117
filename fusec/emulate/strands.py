"""Kernels whose warps meet at more than the block's barrier: each warp is a strand, and what orders two of them is known.

The blocks of a cluster (a block alone is one) run together. A strand runs until it waits, then the next one does; what it may rely
on is kept as a vector clock: its epoch counts what it has released, `known[a, b]` the last epoch of b that a knows to be complete.
Two accesses are ordered where the later one's strand knows the earlier one's epoch, or where one thread made both.
"""
from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .machine import WARP, Machine, current, executing
from .memory import APART
from .numeric import Array, EmulationError, Int32, Numeric
from .races import Entry, Report, clashes, expanded

NAMES = ("barrier", "barrier_arrive", "cluster_arrive", "cluster_arrive_relaxed", "cluster_wait", "map_dsmem_ptr",
         "mbarrier_init", "mbarrier_arrive", "mbarrier_arrive_and_expect_tx", "mbarrier_expect_tx", "mbarrier_wait")
"""Functions whose use makes a kernel one of strands."""
BARRIERS = 16


class _Stopped(BaseException):
    """Unwinds a strand that goes no further."""


class OrderLog:
    """The accesses to one memory that not every strand knows to be complete, compared as they come; used as a RaceLog is."""

    def __init__(self, team: "Team", units: int, private: bool, report: Report) -> None:
        self.team, self.units, self.private, self.report = team, units, private, report
        self.reads: list[tuple[Entry, int, int, int, int]] = []
        self.writes: list[tuple[Entry, int, int, int, int]] = []

    def add(self, first: Array, lanes: Array, line: int, write: bool, size: int = 1, home: Array | None = None,
            proxy: bool = False) -> None:
        """One access. home: the block that each unit belongs to, where that is not the thread's. proxy: what is written arrives
        later, and is no thread's."""
        if not first.size:
            return
        if self.private:
            first = first + (lanes // self.team.threads if home is None else home) * APART
        strand: Strand = current()  # type: ignore[assignment]
        mine, low, high = (first, lanes, line, write, size), int(first.min()), int(first.max()) + size
        known = self.team.known[strand.number]
        for entry, who, epoch, start, end in self.writes + (self.reads if write else []):
            if epoch > known[who] and start < high and low < end:
                self._compare(entry, mine)
        if write:
            self._compare(mine)
        who, epoch = strand.number, int(self.team.epoch[strand.number])
        if proxy:
            who, epoch, mine = strand.proxy, strand.team.copies_begun[strand.home], (first, ~lanes, line, write, size)
        (self.writes if write else self.reads).append((mine, who, epoch, low, high))

    def _compare(self, *entries: Entry) -> None:
        units, lanes, sizes, writes = expanded(list(entries))
        bad, other = clashes(units, lanes, writes, int(units.max()) + 1)
        grain = min(e[4] for e in entries)
        which = np.searchsorted(np.cumsum(sizes), np.stack([bad, other[bad]]), side="right")
        chosen = np.flatnonzero(which[0] != which[1]) if len(entries) > 1 else np.arange(bad.size)
        if chosen.size:
            pair = sorted((int(bad[chosen[0]]), int(other[bad[chosen[0]]])))
            early, late = (entries[int(np.searchsorted(np.cumsum(sizes), p, side="right"))] for p in pair)
            unit = int(units[pair[1]]) * grain
            self.report(late[2], early[2], unit % APART if self.private else unit, int(lanes[pair[1]]), int(lanes[pair[0]]))

    def forget(self, floor: Array) -> None:
        """Drop what all strands know to be complete."""
        self.reads, self.writes = ([e for e in log if e[2] > floor[e[1]]] for log in (self.reads, self.writes))

    def order(self, blocks: Array) -> None:
        """Nothing is left to compare."""


@dataclass(slots=True)
class _Barrier:
    """A named barrier of a block: who came in this phase, and what each finished phase made known."""

    warps: int = 0
    arrived: list[tuple[int, int]] = field(default_factory=list)
    join: Any = None
    phase: int = 0
    done: dict[int, Array] = field(default_factory=dict)


class Team(Machine):
    """The blocks of one cluster, their strands and their barriers."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.warps = -(-self.threads // WARP)
        count = self.blocks * self.warps
        self.epoch = np.zeros(count, np.int64)
        self.known = np.full((count, count + self.blocks), -1, np.int64)  # The last columns: the bulk copies of each block.
        self.copies_begun = [0] * self.blocks
        self.mbarriers: dict[tuple[int, int], Any] = {}
        self.named: dict[tuple[int, int], _Barrier] = {}
        self.cluster = _Barrier()
        self.remote: dict[tuple[int, int, int, int], int] = {}
        self.turn = threading.Semaphore(0)
        self.stopped = self.stuck = False
        self.errors: list[BaseException] = []
        self.strands: list[Strand] = []
        self.rank, self.owner = np.arange(self.blocks).reshape(-1, 1), np.full(self.blocks, self.numbers[0])

    def race_log(self, units: int, private: bool, report: Report) -> Any:
        log = OrderLog(self, units, private, report)
        self.races.append(log)  # type: ignore[arg-type]
        return log

    def run(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """All strands to their end. Raises what one of them raises."""
        self.strands = [Strand(self, number) for number in range(len(self.epoch))]
        for s in self.strands:
            threading.Thread(target=s.go, args=(fn, args), daemon=True).start()
        while left := [s for s in self.strands if not s.finished]:
            ready = [s for s in left if self.stopped or s.ready()]
            if not ready:
                self.stopped = self.stuck = True
            for s in ready:
                if not s.finished and (self.stopped or s.ready()):
                    s.turn.release()
                    self.turn.acquire()
                self.stopped |= bool(self.errors)
        if self.errors:
            raise self.errors[0]
        self._leftovers()

    def _leftovers(self) -> None:
        """What no strand can be told any more."""
        if not self.stuck:
            for (block, number), b in self.named.items():
                if b.arrived:
                    what = f"{len(b.arrived) * WARP} of {b.warps * WARP} threads of block {self.numbers[block]}"
                    self.log.add("divergent-barrier", b.arrived[0][1], f"barrier {number} was reached by {what}, and nobody waits")
        for (who, epoch, block, line), unit in self.remote.items():
            owners = range(block * self.warps, (block + 1) * self.warps)
            if not any(self.known[o, who] >= epoch for o in owners) and not self.stuck:
                self.log.add("cluster", line, f"byte {unit} of block {self.numbers[block]}, which may have ended: it passes no "
                                              "cluster barrier after this access")

    def forget(self) -> None:
        """After a barrier: accesses that all who still run know of need no comparison."""
        running = [s.number for s in self.strands if not s.finished]
        if running:
            floor = self.known[running].min(0)
            for log in self.races:
                log.forget(floor)  # type: ignore[attr-defined]

    def meet(self) -> None:
        """The cluster barrier completes when every strand that has not ended has arrived."""
        b, came = self.cluster, {who for who, _ in self.cluster.arrived}
        if not came or any(s.number not in came and not s.finished for s in self.strands):
            return
        if len(came) < len(self.strands):
            what = f"{len(came) * WARP} of {len(self.strands) * WARP} threads"
            self.log.add("divergent-barrier", b.arrived[0][1], f"the cluster barrier was reached by {what}, the others have ended")
        _complete(b)


def _complete(b: _Barrier) -> None:
    b.done[b.phase] = b.join
    b.phase, b.arrived, b.join = b.phase + 1, [], None


class Strand(Machine):
    """One warp of one block: a machine in which no other lane is active."""

    def __init__(self, team: Team, number: int) -> None:
        self.__dict__.update(team.__dict__)
        self.team, self.number = team, number
        self.home, self.warp = divmod(number, team.warps)
        self.proxy = len(team.epoch) + self.home
        own = np.zeros(team.shape, bool)
        own[self.home, self.warp * WARP:(self.warp + 1) * WARP] = True
        self.own = self.mask = own
        self.turn = threading.Semaphore(0)
        self.ready: Callable[[], bool] = lambda: True
        self.finished = False
        self.arrived: tuple[int, int] | None = None
        self.met = 0

    def race_log(self, units: int, private: bool, report: Report) -> Any:
        return self.team.race_log(units, private, report)

    def allocate_shared(self, nbytes: int) -> None:
        self.shared = self.team.shared
        super().allocate_shared(nbytes)
        self.team.shared = self.shared

    # ---- taking turns

    def go(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """The whole kernel, in a thread of its own that runs when it is its turn."""
        self.turn.acquire()
        try:
            if not self.team.stopped:
                with executing(self), np.errstate(all="ignore"):
                    fn(*args)
        except _Stopped:
            pass
        except BaseException as error:
            self.team.errors.append(error)
        finally:
            self.finished = True
            if not self.team.stopped:
                if self.arrived is not None:
                    self.log.add("divergent-barrier", self.arrived[1], "a cluster_arrive without its cluster_wait")
                self.team.meet()
            self.team.turn.release()

    def wait(self, ready: Callable[[], bool], kind: str, what: Callable[[], str]) -> None:
        """Let the others run until something holds; a finding where it never will."""
        if ready():
            return
        self.ready = ready
        self.team.turn.release()
        self.turn.acquire()
        if self.team.stopped:
            if self.team.stuck:
                self.find(kind, f"warp {self.warp} of block {self.numbers[self.home]} waits {what()}")
            raise _Stopped

    # ---- order

    def release(self) -> Array:
        """What others know once they wait for this moment."""
        found = self.team.known[self.number].copy()
        found[self.number] = self.team.epoch[self.number]
        self.team.epoch[self.number] += 1
        return found

    def proxied(self) -> Array:
        """What others know once they wait for the bulk copy begun just now."""
        found = np.full(self.team.known.shape[1], -1, np.int64)
        found[self.proxy] = self.team.copies_begun[self.home]
        self.team.copies_begun[self.home] += 1
        return found

    def acquire(self, made_known: Array | None) -> None:
        """What a finished wait makes known."""
        if made_known is not None:
            np.maximum(self.team.known[self.number], made_known, out=self.team.known[self.number])
        self.team.forget()

    def complete(self, what: str) -> None:
        """A finding where only a part of the warp comes to a barrier."""
        here = int(self.active().sum())
        if here != int(self.own.sum()):
            who = f"{here} of {int(self.own.sum())} threads of warp {self.warp} of block {self.numbers[self.home]}"
            self.find("divergent-barrier", f"{what} reached by {who}")

    # ---- barriers of the block

    def sync_threads(self) -> None:
        self.barrier(0, None, True)

    def barrier(self, number: int, threads: int | None, wait: bool) -> None:
        """Arrive at a named barrier that `threads` threads come to (None: the block), and wait for them or not."""
        self.complete(f"barrier {number}")
        team, b = self.team, self.team.named.setdefault((self.home, number), _Barrier())
        warps = team.warps if threads is None else threads // WARP
        if b.arrived and b.warps != warps:
            self.find("divergent-barrier", f"barrier {number} is of {warps * WARP} threads here, of {b.warps * WARP} there", 1,
                      b.arrived[0][1])
        phase, made = b.phase, self.release()
        b.warps, b.join = warps, made if b.join is None else np.maximum(b.join, made)
        b.arrived.append((self.number, self.line()))
        if len(b.arrived) >= warps:
            self.log.counts["barriers"] += 1
            _complete(b)
        if wait:
            self.wait(lambda: b.phase > phase, "divergent-barrier" if threads is None else "deadlock",
                      lambda: f"at barrier {number}, which {len(b.arrived) * WARP} of {b.warps * WARP} threads reach")
            self.acquire(b.done[phase])

    # ---- the cluster's barrier

    def cluster_arrive(self, relaxed: bool) -> None:
        """Arrive at the barrier of all threads of the cluster; relaxed: nothing that was written becomes known."""
        self.complete("the cluster barrier")
        if self.arrived is not None:
            self.find("divergent-barrier", "a second cluster_arrive before the wait of the first", 1, self.arrived[1])
            return
        b = self.team.cluster
        self.arrived = (b.phase, self.line())
        if not relaxed:
            made = self.release()
            b.join = made if b.join is None else np.maximum(b.join, made)
        b.arrived.append((self.number, self.line()))
        self.team.meet()

    def cluster_wait(self) -> None:
        """Wait for all threads of the cluster to arrive."""
        self.complete("the cluster barrier")
        if self.arrived is None:
            self.find("deadlock", "a cluster_wait without its cluster_arrive")
            return
        b, (phase, _) = self.team.cluster, self.arrived
        self.wait(lambda: b.phase > phase, "deadlock",
                  lambda: f"for the cluster, of which {len(b.arrived) * WARP} of {len(self.team.strands) * WARP} threads arrive")
        self.arrived = None
        self.met += 1
        self.acquire(b.done[phase])


    def touched(self, home: Array, lanes: Array, first: Array, line: int) -> None:
        """An access to bytes `first` of the blocks `home`: they must have begun, and must not end before."""
        for block in np.unique(home[home != self.home]):
            byte = int(first[home == block][0])
            if not self.met:
                what = f"byte {byte} of block {self.numbers[block]}, which may not have started"
                self.log.add("cluster", line, f"{what}: no cluster barrier before this access")
            self.team.remote[self.number, int(self.team.epoch[self.number]), int(block), line] = byte


# ---- what kernels call -----------------------------------------------------------------------------------------------------------

def _strand() -> Strand:
    found = current()
    if not isinstance(found, Strand):
        raise EmulationError("a barrier of strands in a kernel that was not run in strands")
    return found


def constant(x: Any, what: str) -> int:
    """A number that all active threads share."""
    if not isinstance(x, (Numeric, np.ndarray)):
        return int(x)
    m = current()
    if isinstance(x, Numeric):
        m.defined(x, what)
        x = np.asarray(x.v)
    found = np.unique(m.full(x)[m.active()])
    if found.size != 1:
        m.find("divergent-barrier", f"{what} differs between the threads of a warp")
    return int(found[0])


def _named(barrier_id: Any, number_of_threads: Any) -> tuple[int, int | None]:
    number = 0 if barrier_id is None else constant(barrier_id, "the number of a barrier")
    if not 0 <= number < BARRIERS:
        raise EmulationError(f"Barrier number '{number}' out of range, expected to be in range [0..15]")
    threads = None if number_of_threads is None else constant(number_of_threads, "the count of a barrier")
    if threads is not None and (threads <= 0 or threads % WARP):
        raise EmulationError("Number of threads participating in barrier must be in multiple of warp size")
    return number, threads


def barrier(*, barrier_id: Any = None, number_of_threads: Any = None) -> None:
    """Arrive and wait; without a count for the whole block."""
    _strand().barrier(*_named(barrier_id, number_of_threads), True)


def barrier_arrive(*, barrier_id: Any = None, number_of_threads: Any = None, aligned: bool = True) -> None:
    """Arrive and go on."""
    if number_of_threads is None:
        raise EmulationError("barrier_arrive needs pass number_of_threads to arrive the barrier")
    _strand().barrier(*_named(barrier_id, number_of_threads), False)


def make_warp_uniform(value: Any) -> Any:
    """The value of the warp's first lane. It holds a full-mask shuffle: the whole warp must come here."""
    m = current()
    value = value if isinstance(value, Numeric) else Int32(value)
    return Int32(m.shuffle(value, np.zeros((1, 1), np.int64), "make_warp_uniform()"))
