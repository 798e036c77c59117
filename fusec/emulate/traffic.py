"""Counts of memory traffic: 32-byte sectors of global accesses, bank conflicts of shared ones. Per warp and per instruction."""
from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .numeric import Array

if TYPE_CHECKING:
    from .machine import Machine

WARP, SECTOR, BANKS, WORD = 32, 32, 32, 4
ABSENT = np.iinfo(np.int64).max


def _distinct(rows: Array) -> Array:
    """How many different numbers each row holds, ABSENT aside. rows: [n, k] sorted along k."""
    first = np.ones(rows.shape, bool)
    first[:, 1:] = rows[:, 1:] != rows[:, :-1]
    return np.asarray((first & (rows != ABSENT)).sum(1))


def _by_warp(addresses: Array, active: Array, threads: int) -> Array:
    """[accesses × warps, 32] addresses, ABSENT for idle lanes."""
    found = np.where(active, addresses, ABSENT)
    spare = -threads % WARP
    if spare:
        found = np.pad(found, ((0, 0), (0, 0), (0, spare)), constant_values=ABSENT)
    rows = found.reshape(-1, WARP)
    return np.asarray(rows[(rows != ABSENT).any(1)])


def _conflicts(rows: Array, nbytes: int) -> int:
    """Extra cycles of shared accesses: lanes go in groups of 128 bytes, different words of one bank one after the other."""
    lanes = max(WARP * WORD // max(nbytes, WORD), 1)
    groups = rows.reshape(-1, lanes)
    words = np.where(groups == ABSENT, ABSENT, groups // WORD)[:, :, None]
    if nbytes > WORD:
        more = words + np.arange(nbytes // WORD)
        words = np.where(words == ABSENT, ABSENT, more)
    flat = np.sort(words.reshape(len(groups), -1), 1)
    first = np.ones(flat.shape, bool)
    first[:, 1:] = flat[:, 1:] != flat[:, :-1]
    row, column = np.nonzero(first & (flat != ABSENT))
    if not row.size:
        return 0
    counts = np.bincount(row * BANKS + flat[row, column] % BANKS, minlength=len(groups) * BANKS).reshape(-1, BANKS)
    return int(np.maximum(counts.max(1) - 1, 0).sum())


def count_access(m: "Machine", space: str, line: int, write: bool, addresses: Array, nbytes: int, active: Array) -> None:
    """Add an access of `nbytes` a lane at [accesses, blocks, threads] addresses to the run's counts."""
    rows = _by_warp(addresses, active, m.threads)
    entry = m.log.traffic.setdefault((line, space, write, nbytes), [0, 0, 0, 0])
    entry[0] += len(rows)
    if space != "global":
        entry[3] += _conflicts(rows, nbytes) if space == "shared" else 0
        return
    ordered = np.sort(rows, 1)
    sectors = np.where(ordered == ABSENT, ABSENT, ordered // SECTOR)
    entry[1] += int(_distinct(sectors).sum())
    entry[2] += int((-(-_distinct(ordered) * nbytes // SECTOR)).sum())
