"""Clusters in lockstep: kernels whose blocks meet at the block's barrier and the cluster's only, all of them at the same statement.

What orders two accesses is then a matter of three moments. Threads of one block are ordered by a barrier of the block between the
accesses; those of any block of the cluster by an arrival after the earlier one whose wait comes before the later one. So accesses
are compared at barriers, and forgotten where a barrier orders them with all that follows: much quicker than strands.
"""
from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

import numpy as np

from .machine import Log, Machine
from .memory import APART
from .numeric import Array
from .races import Entry, Report, clashes, expanded, tell

NAMES = ("cluster_arrive", "cluster_arrive_relaxed", "cluster_wait", "map_dsmem_ptr")
"""Functions that a kernel of clusters may use here; with others that meet it is one of strands."""


def fits(kernel: ast.AST) -> bool:
    """Whether no cluster barrier of a kernel lies under a condition, where some threads could come to it and others elsewhere."""
    return not any(isinstance(n, ast.Attribute) and n.attr.startswith("cluster_") for branch in ast.walk(kernel)
                   if isinstance(branch, (ast.If, ast.While, ast.IfExp)) for n in ast.walk(branch))


@dataclass(slots=True)
class _Access:
    """Logged units and lanes, and when it was."""

    entry: Entry
    when: int

    def only(self, blocks: Array, threads: int) -> "_Access | None":
        """The part of it that lanes of the chosen blocks made."""
        first, lanes, line, write, size = self.entry
        here = blocks[lanes // threads]
        if here.all():
            return self
        return _Access((first[here], lanes[here], line, write, size), self.when) if here.any() else None


class ClusterLog:
    """The accesses to one memory that a barrier of their block, or of their cluster, does not order yet."""

    def __init__(self, team: "Clusters", units: int, private: bool, report: Report) -> None:
        self.team, self.units, self.private, self.report = team, units, private, report
        self.inner: list[_Access] = []
        self.outer: list[_Access] = []

    def add(self, first: Array, lanes: Array, line: int, write: bool, size: int = 1, home: Array | None = None) -> None:
        """One access. home: the block that each unit belongs to, where that is not the thread's."""
        if not first.size:
            return
        homes = lanes // self.team.threads if home is None else home
        access = _Access((first + homes * APART if self.private else first, lanes, line, write, size), self.team.tick())
        self.inner.append(access)
        self.outer.append(access)

    def order(self, blocks: Array, since: Array | None = None) -> None:
        """A barrier of the blocks marked: what their threads did is compared and forgotten; since: only what each block did before
        that moment, and what blocks of one cluster did is compared too."""
        self.inner = self._ordered(self.inner, blocks, since, False)
        if since is not None:
            self.outer = self._ordered(self.outer, blocks, since, True)

    def _ordered(self, log: list[_Access], blocks: Array, since: Array | None, clusters: bool) -> list[_Access]:
        threads, kept, here = self.team.threads, [], []
        for access in log:
            chosen, others = access.only(blocks, threads), access.only(~blocks, threads)
            kept += [others] if others is not None else []
            if chosen is not None:
                here.append(chosen)
                late = blocks & (access.when > since) if since is not None else None
                still = chosen.only(late, threads) if late is not None else None
                kept += [still] if still is not None else []
        if any(a.entry[3] for a in here):
            self._compare([a.entry for a in here], clusters)
        return sorted(kept, key=lambda a: a.when)

    def _compare(self, entries: list[Entry], clusters: bool) -> None:
        """Between blocks of one cluster, or between threads of one block."""
        units, lanes, sizes, writes = expanded(entries)
        grain, blocks = min(e[4] for e in entries), lanes // self.team.threads
        keys, total, who = units, self.units, blocks if clusters else lanes
        if self.private:
            home, byte = np.divmod(units, APART // grain)
            keys, total = home * (self.units // grain) + byte, self.units * self.team.blocks
        bad, other = clashes(keys, who, writes, total)
        if bad.size:  # Some may be of two clusters, or of two blocks, and hide others.
            among = self.team.cluster_of[blocks] if clusters else blocks
            bad, other = clashes(keys * self.team.blocks + among, who, writes, total * self.team.blocks)
        if bad.size:
            tell(entries, units, lanes, sizes, bad, other[bad], self._report)

    def _report(self, line: int, other: int, unit: int, lane: int, partner: int) -> None:
        self.report(line, other, unit % APART if self.private else unit, lane, partner)


class Clusters(Machine):
    """Whole clusters, `size` blocks each in the order of their ranks."""

    def __init__(self, log: Log, grid: tuple[int, int, int], block: tuple[int, int, int], numbers: Array, arch: str, counting: bool,
                 size: int) -> None:
        super().__init__(log, grid, block, numbers, arch, counting)
        self.size, self.now = size, 0
        self.cluster_of = np.arange(self.blocks) // size
        self.rank = (np.arange(self.blocks) % size).reshape(-1, 1)
        self.first = (self.cluster_of * size).reshape(-1, 1)
        self.owner = self.numbers[self.cluster_of * size]
        self.met = np.zeros(self.blocks, bool)
        self.arrived_at = np.full(self.blocks, -1, np.int64)
        self.arrived_line = np.zeros(self.blocks, np.int64)
        self.remote: list[tuple[int, int, int, int]] = []

    def tick(self) -> int:
        """The next moment."""
        self.now += 1
        return self.now

    def race_log(self, units: int, private: bool, report: Report) -> Any:
        log = ClusterLog(self, units, private, report)
        self.races.append(log)  # type: ignore[arg-type]
        return log

    def finish(self) -> None:
        every = np.ones(self.blocks, bool)
        for block in np.flatnonzero(self.arrived_line):
            self.log.add("divergent-barrier", int(self.arrived_line[block]), "a cluster_arrive without its cluster_wait")
        for races in self.races:
            races.order(every, np.full(self.blocks, self.now))  # type: ignore[call-arg]
        for _, block, line, unit in self.remote:
            self.log.add("cluster", line, f"byte {unit} of block {self.numbers[block]}, which may have ended: it passes no cluster "
                                          "barrier after this access")

    # ---- the cluster's barrier

    def _clusters_here(self) -> Array:
        """The blocks that come to the cluster barrier; a finding where only a part of a cluster does."""
        here = self.whole(self.threads, "divergent-barrier", "the cluster barrier reached")[:, 0]
        groups = here.reshape(-1, self.size)
        part = groups.any(1) & ~groups.all(1)
        if part.any():
            count = int(groups[part][0].sum()) * self.threads
            self.find("divergent-barrier", f"the cluster barrier was reached by {count} of {self.size * self.threads} threads")
        return here

    def cluster_arrive(self, relaxed: bool) -> None:
        """Arrive at the barrier of all threads of the cluster; relaxed: nothing that was written becomes known."""
        here = self._clusters_here()
        again = here & (self.arrived_line > 0)
        if again.any():
            line = int(self.arrived_line[again][0])
            self.find("divergent-barrier", "a second cluster_arrive before the wait of the first", 1, line)
            here &= ~again
        self.arrived_at[here] = -1 if relaxed else self.tick()
        self.arrived_line[here] = self.line()

    def cluster_wait(self) -> None:
        """Wait for all threads of the cluster to arrive."""
        here = self._clusters_here()
        early = here & (self.arrived_line == 0)
        if early.any():
            self.find("deadlock", "a cluster_wait without its cluster_arrive")
            here &= ~early
        for races in self.races:
            races.order(here, self.arrived_at)  # type: ignore[call-arg]
        self.remote = [r for r in self.remote if not (here[r[1]] and r[0] < self.arrived_at[r[1]])]
        self.arrived_line[here] = 0
        self.met |= here

    # ---- the shared memory of the others

    def touched(self, home: Array, lanes: Array, first: Array, line: int) -> None:
        """An access to bytes `first` of the blocks `home`: they must have begun, and must not end before."""
        mine = lanes // self.threads
        for block in np.unique(home[home != mine]):
            chosen = (home == block) & (mine != block)
            byte = int(first[chosen][0])
            if not self.met[mine[chosen]].all():
                what = f"byte {byte} of block {self.numbers[block]}, which may not have started"
                self.log.add("cluster", line, f"{what}: no cluster barrier before this access")
            self.remote.append((self.now, int(block), line, byte))
