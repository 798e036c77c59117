"""Which axes blocks share out: not those along which each block would need the same values."""
from __future__ import annotations

import pytest
import torch

from fusec.capture import capture
from fusec.errors import FusionError
from fusec.passes.back import to_kernel
from fusec.passes.front import to_graph


def grouped_scores(q, keys, values):
    """q [R, G, N, K] against one set of keys [R, G, T, K] and values [R, G, T, V] for the N queries of a group."""
    p = torch.einsum("rgnk,rgtk->rgnt", q, keys).softmax(-1)
    return torch.einsum("rgnt,rgtv->rgnv", p, values)


def test_a_block_keeps_what_would_be_read_again() -> None:
    inputs = dict(q=torch.randn(3, 2, 4, 64), keys=torch.randn(3, 2, 32, 64), values=torch.randn(3, 2, 32, 48))
    graph = to_graph(capture(grouped_scores, inputs))
    schedule, _ = to_kernel(graph, "sm_90a")
    assert [blocks for _, blocks, part in schedule.grid if part == 1] == ["rows", 2]


def test_blocks_share_out_what_nothing_binds_together() -> None:
    graph = to_graph(capture(lambda x, y: x * y, dict(x=torch.randn(3, 5, 4096), y=torch.randn(3, 5, 4096))))
    schedule, _ = to_kernel(graph, "sm_90a")
    assert [blocks for _, blocks, _ in schedule.grid] == ["rows", 5]


def halved(x, pool, index):
    old = pool[index // 2]
    pool[index] = old + x
    return old


def next_slot(x, pool, index):
    old = pool[(index + 1) % 9]
    pool[index] = old + x
    return old


def wrapped_too_early(x, pool, index):
    old = pool[torch.where(index < 0, index + 7, index)]
    pool[index] = old + x
    return old


def turned(x, pool, table):
    """Entries of a table by rows and by columns: what is one row's slot is another's too."""
    old = pool[table[:, 0]]
    pool[table[0]] = old + x
    return old


@pytest.mark.parametrize("fn", [halved, next_slot, wrapped_too_early, turned])
def test_a_slot_that_may_be_another_rows_is_refused(fn) -> None:
    given = dict(x=torch.randn(3, 4), pool=torch.randn(9, 4))
    given["table" if fn is turned else "index"] = torch.randperm(9).view(3, 3) if fn is turned else torch.tensor([4, 0, 2])
    with pytest.raises(FusionError, match="read through another index"):
        to_kernel(to_graph(capture(fn, given, {"x": {0: "rows"}} if fn is turned else None)), "sm_90a")
