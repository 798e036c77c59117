"""Races: two threads, one unit of memory, no order between them, one of them writes.

Accesses are logged and compared when a barrier orders them. Inside one stretch between barriers every pair of threads of a block is
unordered; threads of different blocks are never ordered. Exact: a unit with two writers shows at one of them, one with a writer and
another reader at the reader.
"""
from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .numeric import Array

Report = Callable[[int, int, int, int, int], None]
"""(line, line of the earlier access, unit, lane, lane of the earlier one) of a race."""
Entry = tuple[Array, Array, int, bool, int]
"""First units, lanes (flat, of one length), line, whether it writes, units from each first one on."""


def expanded(entries: list[Entry]) -> tuple[Array, Array, list[int], Array]:
    """Units, lanes, the entry of each unit's start, and which are writes; in units as coarse as all accesses allow."""
    grain = min(e[4] for e in entries)
    units, lanes, sizes = [], [], []
    for first, who, _, _, size in entries:
        parts = size // grain
        units.append((first // grain)[:, None] + np.arange(parts) if parts > 1 else first // grain)
        lanes.append(np.repeat(who, parts) if parts > 1 else who)
        sizes.append(who.size * parts)
    writes = np.repeat(np.array([e[3] for e in entries]), sizes)
    return np.concatenate([u.reshape(-1) for u in units]), np.concatenate(lanes), sizes, writes


def clashes(units: Array, lanes: Array, writes: Array, total: int) -> tuple[Array, Array]:
    """Positions that race, and for every position the write it was compared with."""
    if total > max(1 << 16, 16 * units.size):
        _, units = np.unique(units, return_inverse=True)
        total = int(units.max()) + 1
    owner = np.full(total, -1, np.int64)
    owner[units[writes]] = np.flatnonzero(writes)
    other = owner[units]
    return np.flatnonzero((other >= 0) & (lanes[np.maximum(other, 0)] != lanes)), other


def tell(entries: list[Entry], units: Array, lanes: Array, sizes: list[int], bad: Array, partner: Array, report: Report) -> None:
    """Report the clash of each position with its partner, once for each two accesses."""
    ends, grain = np.cumsum(sizes), min(e[4] for e in entries)
    later, earlier = np.maximum(bad, partner), np.minimum(bad, partner)
    mine, theirs = np.searchsorted(ends, later, side="right"), np.searchsorted(ends, earlier, side="right")
    _, firsts = np.unique(mine * len(sizes) + theirs, return_index=True)
    for at in np.sort(firsts):
        report(entries[mine[at]][2], entries[theirs[at]][2], int(units[bad[at]]) * grain, int(lanes[later[at]]),
               int(lanes[earlier[at]]))


class RaceLog:
    """The accesses to one memory since the last barrier of each block.

    units: how many there are in all (per block where `private`). Lanes are numbered over the chunk: block * threads + thread.
    """

    def __init__(self, units: int, threads: int, blocks: int, private: bool, report: Report) -> None:
        self.units, self.threads, self.blocks, self.private, self.report = units, threads, blocks, private, report
        self.entries: list[Entry] = []

    def add(self, first: Array, lanes: Array, line: int, write: bool, size: int = 1) -> None:
        """One access: the first of `size` units (a multiple of it) and the lane, for each lane that takes part."""
        if first.size:
            self.entries.append((first, lanes, line, write, size))

    def order(self, blocks: Array) -> None:
        """A barrier of the blocks marked: compare what they did since the last one, and forget it."""
        if not self.entries:
            return
        kept: list[Entry] = []
        if not blocks.all():
            kept, self.entries = self._split(blocks)
        if any(e[3] for e in self.entries):
            self._compare()
        self.entries = kept

    def _split(self, blocks: Array) -> tuple[list[Entry], list[Entry]]:
        stay: list[Entry] = []
        go: list[Entry] = []
        for first, lanes, line, write, size in self.entries:
            here = blocks[lanes // self.threads]
            for chosen, target in ((~here, stay), (here, go)):
                if chosen.any():
                    target.append((first[chosen], lanes[chosen], line, write, size))
        return stay, go

    def _compare(self) -> None:
        units, lanes, sizes, writes = expanded(self.entries)
        total = self.units
        keys = units
        if self.private:
            keys, total = units + lanes // self.threads * self.units, self.units * self.blocks
        bad, other = clashes(keys, lanes, writes, total)
        if not bad.size:
            return
        tell(self.entries, units, lanes, sizes, bad, other[bad], self.report)


class BlockOwners:
    """Which blocks touched each unit of a global memory, over the whole grid: blocks are never ordered.

    Of the reads of a unit, and of its writes, two by different blocks are all that a later comparison needs; no more are kept.
    """

    def __init__(self, units: int, limit: int = 1 << 21) -> None:
        self.units, self.limit, self.size = units, limit, 0
        self.log: list[tuple[Array, Array, Array, Array]] = []

    def add(self, units: Array, blocks: Array, line: int, write: bool) -> None:
        """One access: unit and block number for each of its parts."""
        if units.size:
            self.log.append((units, blocks, np.full(units.size, line, np.int32), np.full(units.size, write)))
            self.size += units.size
            if self.size > self.limit:
                self.log = [self._thinned()]
                self.size = self.log[0][0].size
                self.limit = max(self.limit, 2 * self.size)

    def _all(self) -> tuple[Array, Array, Array, Array]:
        return tuple(np.concatenate([e[i] for e in self.log]) for i in range(4))  # type: ignore[return-value]

    def _thinned(self) -> tuple[Array, Array, Array, Array]:
        """The first and the last block of each unit's reads, and of its writes."""
        units, blocks, lines, writes = self._all()
        kinds = units * 2 + writes
        order = np.lexsort((blocks, kinds))
        ordered = kinds[order]
        edge = np.ones(order.size + 1, bool)
        edge[1:-1] = ordered[1:] != ordered[:-1]
        keep = np.sort(order[edge[:-1] | edge[1:]])
        return units[keep], blocks[keep], lines[keep], writes[keep]

    def compare(self, report: Report) -> None:
        """Report the races between blocks (as lanes)."""
        if not any(e[3].any() for e in self.log):
            return
        units, blocks, lines, writes = self._all()
        bad, other = clashes(units, blocks, writes, self.units)
        later, earlier = np.maximum(bad, other[bad]), np.minimum(bad, other[bad])
        _, firsts = np.unique(lines[later].astype(np.int64) * (1 << 20) + lines[earlier], return_index=True)
        for at in np.sort(firsts):
            late, early = later[at], earlier[at]
            report(int(lines[late]), int(lines[early]), int(units[late]), int(blocks[late]), int(blocks[early]))
