"""What memory can do: kernels that move a step's bytes and compute nothing. Importing this module needs Triton.

`slots`: the state of a paged step, read and written in place: 4,096 elements per block of 128 threads, no cache hints.
`copy`: as many bytes as a step moves, half of them read and half written, 16 KB per block.
Both are floors in practice, not in theory: a kernel that orders its accesses better can be faster than they are.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import triton
import triton.language as tl

ELEMENTS = 4096


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


def slots(state: torch.Tensor, index: torch.Tensor) -> Callable[[], None]:
    """A call that multiplies the slots [index] of state [slots, …] by a number next to 1; a slot's elements must be dense."""
    elements = state[0].numel()
    grid = (triton.cdiv(elements, ELEMENTS), index.numel())
    return lambda: _slots_kernel[grid](state, index, elements, state.stride(0), SIZE=ELEMENTS, num_warps=4)


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
