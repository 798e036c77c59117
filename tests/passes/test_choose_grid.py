"""Which axes blocks share out: not those along which each block would need the same values."""
from __future__ import annotations

import torch

from fusec.capture import capture
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
