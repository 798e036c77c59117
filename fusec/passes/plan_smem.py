"""After this pass every shared buffer has its bytes: buffers alive together are disjoint, and the total fits the target.

A buffer is alive from the top-level statement that first touches it to the last one, and for as long as the kernel runs where other
blocks of a cluster write it. Bytes are reused only where the buffers
would not fit side by side: reuse costs a barrier, which the barriers pass then adds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ..errors import Loc, ResourceError
from ..ir.dtype import BYTES
from ..ir.kernel import Copy, Guard, Repeat, Shared, Statement, walk
from ..ir.plan import Buffer, SmemPlan

ALIGN = 16  # Bytes: the widest access to shared memory.


def shared_accesses(statement: Statement) -> Iterator[tuple[str, bool]]:
    """(buffer, is a write) of every access to shared memory in a statement, nested ones included."""
    if isinstance(statement, Copy):
        if isinstance(statement.source, Shared):
            yield statement.source.buffer, False
        if isinstance(statement.target, Shared):
            yield statement.target.buffer, True
    if isinstance(statement, (Guard, Repeat)):
        for inner in statement.body:
            yield from shared_accesses(inner)


def plan_smem(body: tuple[Statement, ...], sizes: dict[str, tuple[str, int]], limit: int,
              origins: Mapping[str, Loc] | None = None) -> SmemPlan:
    """Offsets of the buffers in `sizes` (name -> dtype, elements). Raises ResourceError with the bytes needed, the limit, and the
    largest buffer, at its place in `origins`, where they do not fit."""
    live = _spans(body)
    for reuse in (False, True):
        plan = _pack(live, sizes, reuse)
        if plan.total <= limit:
            return plan
    worst = max(plan.buffers, key=lambda b: b.bytes)
    raise ResourceError(
        f"shared memory: {plan.total} bytes needed, at most {limit} per block; the largest buffer is {worst.name} with "
        f"{worst.bytes} bytes",
        (origins or {}).get(worst.name),
        "split the function in two, use smaller heads, or compile for an architecture whose blocks have more",
    )


def _spans(body: tuple[Statement, ...]) -> dict[str, tuple[int, int]]:
    """(first, last) top-level statement that touches each buffer."""
    live: dict[str, tuple[int, int]] = {}
    for number, statement in enumerate(body):
        for name, _ in shared_accesses(statement):
            live[name] = (live.get(name, (number, number))[0], number)
    return {name: (0, len(body)) if name in pushed(body) else span for name, span in live.items()}


def pushed(body: tuple[Statement, ...]) -> frozenset[str]:
    """Buffers that other blocks of a cluster write."""
    copies = (s for s in walk(body) if isinstance(s, Copy))
    return frozenset(s.target.buffer for s in copies if isinstance(s.target, Shared) and s.target.peer is not None)


def with_spans(plan: SmemPlan, body: tuple[Statement, ...]) -> SmemPlan:
    """The plan with its buffers' spans counted in the statements of `body`, which may have more than it was made for."""
    live = _spans(body)
    return SmemPlan(tuple(replace(b, first=live[b.name][0], last=live[b.name][1]) for b in plan.buffers), plan.total)


def _pack(live: dict[str, tuple[int, int]], sizes: dict[str, tuple[str, int]], reuse: bool) -> SmemPlan:
    """First fit in order of first use."""
    placed: list[Buffer] = []
    for name in sorted(live, key=lambda n: (live[n][0], n)):
        dtype, count = sizes[name]
        first, last = live[name]
        busy = sorted((b.offset, b.offset + b.bytes) for b in placed if not reuse or b.first <= last and first <= b.last)
        offset = 0
        for low, high in busy:
            if offset + count * BYTES[dtype] <= low:
                break
            offset = max(offset, -(-high // ALIGN) * ALIGN)
        placed.append(Buffer(name, dtype, count, offset, first, last))
    total = max((b.offset + b.bytes for b in placed), default=0)
    return SmemPlan(tuple(placed), -(-total // ALIGN) * ALIGN)
