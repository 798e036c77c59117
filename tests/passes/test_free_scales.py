"""A dot gives up a scale of its operand only where the operand without it stays small."""
from __future__ import annotations

import pytest
import torch

from fusec.capture import capture
from fusec.ir.graph import Reduce
from fusec.ir.interpret import run_graph
from fusec.passes.front import to_graph


def dot_with(normalised):
    def step(y, v):
        return (normalised(y)[:, :, None] * v).sum(1)
    return step


def squares(y):
    return y * torch.rsqrt(y.square().sum(-1, keepdim=True) + 1e-6) * 0.125


def softmax(y):
    e = torch.exp(y - y.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


def naive_softmax(y):
    e = torch.exp(y)
    return e / e.sum(-1, keepdim=True)


def by_maximum(y):
    return y / y.abs().amax(-1, keepdim=True)


def freed(graph) -> bool:
    """Whether a dot reads what no reduction was needed for: its operands' first reduction is that of the scale alone."""
    return any(n.name.endswith("_raw") and isinstance(n.op, Reduce) for n in graph.nodes)


@pytest.mark.parametrize("normalised, large, is_freed", [
    (squares, 1e3, True), (softmax, 80.0, True), (naive_softmax, 83.0, False), (by_maximum, 1e37, False)])
def test_the_dot_is_freed_where_nothing_overflows(normalised, large, is_freed):
    step = dot_with(normalised)
    given = dict(y=torch.rand(3, 64) * 0.01 * large + large, v=torch.randn(3, 64, 32) * 1e3)
    graph = to_graph(capture(step, given))
    assert freed(graph) == is_freed
    memory = {n: t.clone() for n, t in given.items()}
    run_graph(graph, memory)
    torch.testing.assert_close(memory[graph.outputs[0]], step(**given), rtol=1e-4, atol=1e-2)
