"""Joins and slices at places that do not nest with views of the same dim, and what is reduced over unequal parts."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fusec.capture import capture
from fusec.ir.graph import Join
from fusec.ir.interpret_kernel import run_kernel
from fusec.passes.back import to_kernel
from fusec.passes.front import to_graph

from .test_steps_as_kernels import close, tensors_of

n = torch.randn


def blocks_across_a_join(x, weight):
    rest, last = x.split([18, 6], -1)
    y = torch.cat([rest.exp(), last * weight], -1).unflatten(-1, (3, 8))
    return y / y.abs().amax(-1, keepdim=True), y.sum(-1)


def unequal_blocks(x, y):
    return torch.cat([x.tanh(), y], -1).view(-1, 2, 10).amax(-1)


def key_of_two_parts(query, key, rotated):
    whole = torch.cat([key, rotated * 2], -1)
    return (query * whole).sum(-1), whole.square().mean(-1), whole + 1


def softmax_over_a_join(query, keys, values, key, value):
    score = torch.einsum("rd,rptd->rpt", query, keys).flatten(1)
    score = torch.cat([score, (query * key).sum(-1, keepdim=True)], -1).softmax(-1)
    return torch.einsum("rs,rsd->rd", score[:, :-1], values.flatten(1, 2)) + score[:, -1:] * value


def slice_across_rows(x):
    return x.exp().view(-1, 36)[:, 4:21] * 2, x[:, ::2].contiguous().view(-1, 18)[:, 4:10]


STEPS: dict[str, tuple[Callable[..., Any], dict[str, tuple[int, ...]]]] = {
    "blocks_across_a_join": (blocks_across_a_join, dict(x=(3, 24), weight=(6,))),
    "unequal_blocks": (unequal_blocks, dict(x=(3, 12), y=(3, 8))),
    "key_of_two_parts": (key_of_two_parts, dict(query=(3, 2, 20), key=(3, 2, 12), rotated=(3, 2, 8))),
    "softmax_over_a_join": (softmax_over_a_join, dict(query=(3, 4), keys=(3, 2, 4, 4), values=(3, 2, 4, 4), key=(3, 4),
                                                      value=(3, 4))),
    "slice_across_rows": (slice_across_rows, dict(x=(3, 6, 6))),
}


@pytest.mark.parametrize("name", STEPS)
def test_step_as_a_kernel(name: str) -> None:
    fn, shapes = STEPS[name]
    torch.manual_seed(3)
    ours = {k: n(s) for k, s in shapes.items()}
    want = list(tensors_of(fn(**ours)))
    graph = to_graph(capture(fn, ours))
    for node in graph.nodes:
        assert not isinstance(node.op, Join) or graph.axis(node.op.axis).size <= 8 or node.name in stored(graph)
    _, spec = to_kernel(graph, "sm_90a")
    ours.update({f.name: torch.full(w.shape, 77.0) for f, w in zip(graph.fresh, want, strict=True)})
    run_kernel(spec, ours)
    for f, w in zip(graph.fresh, want):
        close(ours[f.name], w)


def stored(graph):
    return {r.name for n in graph.nodes if type(n.op).__name__ == "Store" for r in [graph.table[n.op.arg.value]]}
