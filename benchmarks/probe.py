"""What memory can do: kernels that move a step's bytes and compute nothing. Importing this module needs Triton.

`slots`: the state of a paged step, read and written in place: 4,096 elements per block of 128 threads, no cache hints.
`parts`: of the partial results of a split-KV reduction those in use are read as one stream, from a list of them made beforehand,
    16 KB per block of 128 threads and 16 bytes at a time; as many numbers are written as there are results.
`copies`: as many bytes as a step moves, half of them read and half written, 16 KB per block.
`empty`: no bytes at all. All are floors in practice, not in theory: a kernel that orders its accesses better can be faster.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import triton
import triton.language as tl

ELEMENTS = 4096
BLOCK_BYTES = 16384
WRITTEN = {1: torch.int8, 2: torch.bfloat16, 4: torch.float32}
"""What the probe of a reduction writes in place of results of so many bytes."""


@triton.jit
def _slots_kernel(state, index, slot_elements, stride, SIZE: tl.constexpr):
    slot = tl.load(index + tl.program_id(1)).to(tl.int64)
    inside = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    at = state + slot * stride + inside
    mask = inside < slot_elements
    tl.store(at, tl.load(at, mask=mask) * 1.0001, mask=mask)


@triton.jit
def _copy_kernel(source, target, count, SIZE: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    mask = at < count
    tl.store(target + at, tl.load(source + at, mask=mask), mask=mask)


@triton.jit
def _parts_kernel(partial, starts, target, count, rows, UNIT: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr,
                  D: tl.constexpr):
    number = tl.program_id(0) * PARTS + tl.arange(0, PARTS)
    inside = tl.arange(0, D)
    start = tl.load(starts + number, mask=number < count, other=0) * UNIT
    at = partial + start[:, None] + inside[None, :]
    value = tl.sum(tl.load(at, mask=(number < count)[:, None], other=0.0).to(tl.float32), 0)
    for i in range(ROWS):
        row = tl.program_id(0) * ROWS + i
        tl.store(target + row.to(tl.int64) * D + inside, value.to(target.dtype.element_ty), mask=(row < rows) & (inside < D))
    # Where all rows are written by others: a store for a sum that no data has, so that the reads are not in vain.
    tl.store(target + inside, value.to(target.dtype.element_ty), mask=value == 12345.678)


@triton.jit
def _empty_kernel(tensor):
    pass


def slots(state: torch.Tensor, index: torch.Tensor) -> Callable[[], None]:
    """A call that multiplies the slots [index] of state [slots, …] by a number next to 1; a slot's elements must be dense. A row
    whose index is negative takes no part."""
    live = index[index >= 0]
    elements = state[0].numel()
    grid = (triton.cdiv(elements, ELEMENTS), live.numel())
    return lambda: _slots_kernel[grid](state, live, elements, state.stride(0), SIZE=ELEMENTS, num_warps=4)


def parts(partial: torch.Tensor, counts: torch.Tensor, written: int) -> Callable[[], None]:
    """A call that reads of partial [tokens, heads, splits, D] the first counts [tokens] int32 splits and writes [tokens, heads, D]
    numbers of `written` bytes. D is a power of two whose elements are dense."""
    tokens, heads, splits, dim = partial.shape
    token, head, split = (torch.arange(n, device=partial.device) for n in (tokens, heads, splits))
    by_token, by_head, by_split = partial.stride()[:3]
    start = token[:, None, None] * by_token + head[:, None] * by_head + split * by_split
    start = start[(split < counts.to(partial.device)[:, None, None]).expand_as(start)]
    unit = math.gcd(16, by_token, by_head, by_split)
    each = max(1, BLOCK_BYTES // (dim * partial.element_size()))
    blocks, rows = max(1, triton.cdiv(start.numel(), each)), tokens * heads
    target = torch.empty(rows, dim, dtype=WRITTEN[written], device=partial.device)
    share, count, start = triton.cdiv(rows, blocks), start.numel(), start // unit
    return lambda: _parts_kernel[(blocks,)](partial, start, target, count, rows, UNIT=unit, PARTS=each, ROWS=share,
                                            D=dim, num_warps=4)


def copies(bytes_moved: int, sets: int, device: str = "cuda") -> Sequence[Callable[[], None]]:
    """A call per set that reads half of `bytes_moved` and writes it elsewhere; no two sets share memory."""
    count = max(1, bytes_moved // 8)
    room = -(-count // 128) * 128
    source = torch.ones(sets, room, dtype=torch.int32, device=device)
    target = torch.empty_like(source)
    grid = (triton.cdiv(count, ELEMENTS),)

    def call(i: int) -> Callable[[], None]:
        return lambda: _copy_kernel[grid](source[i], target[i], count, SIZE=ELEMENTS, num_warps=4)

    return [call(i) for i in range(sets)]


def empty(tensor: torch.Tensor) -> Callable[[], None]:
    """A call of a kernel of one block that does nothing."""
    return lambda: _empty_kernel[(1,)](tensor, num_warps=4)
