"""What an emulated run found: findings with the emitted and the reference line, and counts of memory traffic."""
from __future__ import annotations

import re
from dataclasses import dataclass, field

KINDS = {
    "out-of-bounds": "an access outside of the tensor, the buffer or the registers it names",
    "misaligned": "an access that is not a multiple of its own size, or an alignment promised and not kept",
    "uninitialised-shared": "a read of shared memory that nobody wrote",
    "uninitialised-register": "a store, branch, address or shuffle that depends on a register that was not written",
    "shared-race": "two threads, one byte of shared memory, no barrier between, one of them writes",
    "global-race": "two threads, one element of global memory, no order between, one of them writes",
    "divergent-barrier": "a barrier that only a part of its threads reaches",
    "deadlock": "threads that wait at a barrier for others that never come",
    "cluster": "another block's shared memory accessed where no cluster barrier protects it",
    "divergent-shuffle": "a shuffle that only a part of its lanes reaches",
    "shared-plan": "shared memory used against what the launch asks for or the architecture has",
    "contraction": "a product and a sum that the kernel compiler may join into one fma, with another result",
    "async": "an asynchronous copy read or overwritten before its wait",
    "dependent": "a tensor of the kernel before this one touched before the wait for that kernel",
    "overflow": "a 32-bit integer that leaves its range on the way to an address",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken law. `line`: in the emitted kernel; `reference`: the reference lines its comments name; `count`: how often."""

    kind: str
    line: int
    reference: str
    detail: str
    other_line: int = 0
    count: int = 1

    def __str__(self) -> str:
        where = f"line {self.line}" + (f" and line {self.other_line}" if self.other_line else "")
        origin = f" ({self.reference})" if self.reference else ""
        return f"{self.kind} at {where}{origin}: {self.detail}" + (f" [{self.count} times]" if self.count > 1 else "")


@dataclass(frozen=True, slots=True)
class Traffic:
    """Accesses of one emitted line. sectors: of 32 bytes; ideal: as few as the bytes need; conflicts: extra shared cycles."""

    line: int
    space: str
    write: bool
    width: int
    requests: int
    sectors: int
    ideal: int
    conflicts: int


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of a run. counts: barriers, shuffles, requests, sectors, ideal_sectors, bank_conflicts, blocks, smem_bytes; where
    a kernel has them: waits (of asynchronous copies), dependent_waits, launches_of_dependents."""

    ok: bool
    findings: tuple[Finding, ...]
    counts: dict[str, int] = field(default_factory=dict)
    traffic: tuple[Traffic, ...] = ()

    def __str__(self) -> str:
        if self.ok:
            return "ok: " + ", ".join(f"{k} {v}" for k, v in self.counts.items())
        return "\n".join(map(str, self.findings))


_PLACE = re.compile(r"[A-Za-z_][\w.<>]*\+\d+")


def reference_of(lines: list[str], line: int, reach: int = 40) -> str:
    """The reference lines (`step+7`) that the nearest comment at or above an emitted line names; '' where there is none."""
    for at in range(line, max(line - reach, 0), -1):
        text = lines[at - 1] if at <= len(lines) else ""
        _, mark, remark = text.partition("#")
        found = _PLACE.findall(remark) if mark else []
        if found:
            return ", ".join(found)
        if text.startswith(("def ", "@")):
            break
    return ""
