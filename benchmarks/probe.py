"""What memory can do: kernels that move a step's bytes and compute nothing. Importing this module needs Triton.

`slots`: the state of a paged step, read and written in place: 4,096 elements per block of 128 threads, no cache hints.
`parts`: of the partial results of a split-KV reduction those in use are read, 16 KB per block, and one result per head is written.
`copies`: as many bytes as a step moves, half of them read and half written, 16 KB per block.
`empty`: no bytes at all. All are floors in practice, not in theory: a kernel that orders its accesses better can be faster.
"""
from __future__ import annotations

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
def _parts_kernel(partial, counts, target, heads, blocks, by_token, by_head, by_split, SPLITS: tl.constexpr, D: tl.constexpr):
    cell = tl.program_id(0) // blocks
    first = tl.program_id(0) % blocks * SPLITS
    token = cell // heads
    count = tl.load(counts + token)
    if first < count:
        split = first + tl.arange(0, SPLITS)
        inside = tl.arange(0, D)
        start = partial + token.to(tl.int64) * by_token + (cell % heads).to(tl.int64) * by_head
        at = start + split.to(tl.int64)[:, None] * by_split + inside[None, :]
        value = tl.sum(tl.load(at, mask=(split < count)[:, None], other=0.0).to(tl.float32), 0)
        # The first block of a head writes; the others would for a sum that no data has, so that their reads are not in vain.
        mask = (first == 0) | (value == 12345.678)
        tl.store(target + cell.to(tl.int64) * D + inside, value.to(target.dtype.element_ty), mask=mask)


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
    each = max(1, BLOCK_BYTES // (dim * partial.element_size()))
    blocks = triton.cdiv(splits, each)
    target = torch.empty(tokens * heads, dim, dtype=WRITTEN[written], device=partial.device)
    strides = partial.stride()[:3]
    return lambda: _parts_kernel[(tokens * heads * blocks,)](partial, counts, target, heads, blocks, *strides, SPLITS=each, D=dim,
                                                             num_warps=4)


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
