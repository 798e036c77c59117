"""Shared memory where a target has less of it: placed within the limit, a walk or a level more where that takes it, or refused with
the reason. A function that fits into the 227 KB of sm_100a may not fit into the 99 KB of sm_120a."""
from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from fusec.capture import capture
from fusec.errors import ResourceError
from fusec.ir.graph import Graph
from fusec.ir.interpret_kernel import run_kernel
from fusec.ir.kernel import Barrier, KernelSpec, Repeat
from fusec.passes import back
from fusec.passes.back import to_kernel
from fusec.passes.front import to_graph
from fusec.target import TARGETS

from .test_walks import normal

LARGE, SMALL = TARGETS["sm_100a"], TARGETS["sm_120a"]
Given = dict[str, torch.Tensor]


def one_transposed(pool, x, slots):
    """pool [S, D, D] at slots [R], x [R, D]: every element is needed where another thread has it."""
    h = pool[slots] * torch.sigmoid(x).unsqueeze(-1)
    pool[slots] = h + h.transpose(-1, -2)
    return h.sum(-1)


def two_transposed(pool, other, x, slots):
    h = pool[slots] * torch.sigmoid(x).unsqueeze(-1)
    g = other[slots] * torch.tanh(x).unsqueeze(-1)
    pool[slots] = h + h.transpose(-1, -2)
    other[slots] = g + g.transpose(-1, -2)
    return h.sum(-1)


def shuffled(h):
    """h [R, n * n, V] with the keys of each n in the place of those n apart."""
    rows, keys, values = h.shape
    n = int(keys ** 0.5)
    return h.view(rows, n, n, values).transpose(1, 2).reshape(rows, keys, values)


def one_shuffled(pool, x, slots):
    h = pool[slots] * torch.sigmoid(x).unsqueeze(-1)
    pool[slots] = h + shuffled(h)
    return h.sum(-2)


def two_shuffled(pool, other, x, slots):
    h = pool[slots] * torch.sigmoid(x).unsqueeze(-1)
    g = other[slots] * torch.tanh(x).unsqueeze(-1)
    pool[slots] = h + shuffled(h)
    other[slots] = g + shuffled(g)
    return h.sum(-2) + g.sum(-2)


def given(fn: Callable[..., torch.Tensor], keys: int, values: int) -> Given:
    found = dict(pool=normal(3, keys, values), other=normal(3, keys, values), x=normal(2, keys), slots=torch.tensor([2, 0]))
    return found if fn in (two_transposed, two_shuffled) else {n: t for n, t in found.items() if n != "other"}


def captured(fn: Callable[..., torch.Tensor], inputs: Given) -> Graph:
    return to_graph(capture(fn, {n: t.clone() for n, t in inputs.items()}))


def runs_as(fn: Callable[..., torch.Tensor], inputs: Given, output: str, spec: KernelSpec) -> None:
    theirs, ours = ({n: t.clone() for n, t in inputs.items()} for _ in range(2))
    ours[output] = torch.full_like(expected := fn(**theirs), 77)
    run_kernel(spec, ours)
    torch.testing.assert_close(ours[output], expected, rtol=2e-5, atol=1e-4)
    for name in inputs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=2e-5, atol=1e-6)


def together(spec: KernelSpec) -> int:
    """Bytes of a kernel's buffers side by side."""
    return sum(b.bytes for b in spec.smem.buffers)


def barriers(spec: KernelSpec) -> int:
    return sum(isinstance(s, Barrier) for s in spec.body)


def test_values_that_do_not_fit_beside_each_other_are_handed_over_one_after_the_other() -> None:
    inputs = given(two_transposed, 132, 132)
    graph = captured(two_transposed, inputs)
    (_, roomy), (_, tight) = to_kernel(graph, LARGE.name), to_kernel(graph, SMALL.name)
    assert SMALL.smem_per_block < roomy.smem.total == together(roomy) <= LARGE.smem_per_block
    assert tight.smem.total <= SMALL.smem_per_block < together(tight), "both buffers have the same bytes"
    assert barriers(tight) > barriers(roomy)
    runs_as(two_transposed, inputs, graph.outputs[0], tight)


@pytest.mark.parametrize("keys, values, walks", [(529, 50, True), (576, 48, False)], ids=["walk", "cluster"])
def test_what_one_block_cannot_hand_over_takes_turns_or_several_blocks(keys: int, values: int, walks: bool) -> None:
    inputs = given(one_shuffled, keys, values)
    graph = captured(one_shuffled, inputs)
    (_, roomy), (_, tight) = to_kernel(graph, LARGE.name), to_kernel(graph, SMALL.name)
    assert SMALL.smem_per_block < roomy.smem.total and tight.smem.total <= SMALL.smem_per_block
    assert (any(isinstance(s, Repeat) for s in tight.body), tight.launch.cluster > 1) == (walks, not walks)
    runs_as(one_shuffled, inputs, graph.outputs[0], tight)


def test_buffers_of_one_turn_lie_side_by_side() -> None:
    graph = captured(two_shuffled, given(two_shuffled, 196, 128))
    _, spec = to_kernel(graph, SMALL.name)
    assert any(isinstance(s, Repeat) for s in spec.body) and together(spec) <= spec.smem.total <= SMALL.smem_per_block


def test_what_fits_nowhere_is_refused_at_once_with_the_reason() -> None:
    graph = captured(one_transposed, given(one_transposed, 160, 160))
    assert SMALL.smem_per_block < to_kernel(graph, LARGE.name)[1].smem.total <= LARGE.smem_per_block
    begin = time.process_time()
    with pytest.raises(ResourceError) as info:
        to_kernel(graph, SMALL.name)
    assert time.process_time() - begin < 1
    text = str(info.value)
    assert text.startswith("sm_120a: shared memory: ")
    need, limit, largest = map(int, re.findall(r"(\d+) bytes needed, at most (\d+) per block; .* with (\d+) bytes", text)[0])
    assert limit == SMALL.smem_per_block < largest == 4 * 160 * 160 <= need
    assert "h_shared" in text and "h = pool[slots] * torch.sigmoid(x)" in text and "hint: " in text


@pytest.mark.parametrize("fn, keys, values", [(one_transposed, 64, 64), (two_transposed, 48, 48), (one_shuffled, 64, 32),
                                              (two_shuffled, 64, 32)])
def test_whatever_the_limit(fn, keys: int, values: int, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = given(fn, keys, values)
    graph = captured(fn, inputs)
    need, found = to_kernel(graph, SMALL.name)[1].smem.total, 0
    for limit in (need - 16, need // 2, 64):
        monkeypatch.setitem(back.TARGETS, SMALL.name, replace(SMALL, smem_per_block=limit))
        try:
            _, spec = to_kernel(graph, SMALL.name)
        except ResourceError as refusal:
            assert re.search(rf"\d+ bytes needed, at most {limit} per block", refusal.message)
            continue
        assert spec.smem.total <= limit
        runs_as(fn, inputs, graph.outputs[0], spec)
        found += 1
    assert found > 0 or fn is one_transposed, "none of it needs all values at once"


@pytest.mark.parametrize("keys", [196, 256, 400])
def test_blocks_share_a_multiprocessor_as_far_as_its_shared_memory_goes(keys: int) -> None:
    graph = captured(one_shuffled, given(one_shuffled, keys, 64))
    for target in (LARGE, SMALL):
        _, spec = to_kernel(graph, target.name)
        assert spec.launch.min_blocks * (spec.smem.total + target.smem_reserved) <= target.smem_per_sm
    if keys == 256:
        assert spec.launch.min_blocks == 2, "less for each block, where two as on the larger one would not fit"
