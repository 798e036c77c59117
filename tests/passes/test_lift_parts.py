"""Single elements that are changed in place become a selection over their axis; other joins stay."""
from __future__ import annotations

import pytest
import torch

from fusec.capture import capture
from fusec.ir.graph import Iota, Join, Map, Ref
from fusec.ir.interpret import run_graph
from fusec.ir.interpret_kernel import run_kernel
from fusec.passes.back import to_kernel
from fusec.passes.front import to_graph

ROWS = 3


def turned(x, cos, sin):
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((even * cos + odd * sin, odd * cos - even * sin), -1).flatten(-2)


def scaled(y):
    """By its largest number: a use of all of y."""
    return y / y.abs().flatten(1).amax(-1).view(-1, *(1,) * (y.dim() - 1))


def last_half_turned(x, w, cos, sin):
    y = (x * w).sum(1).unflatten(-1, (4, 2, 16)).clone()
    y[..., -1, -1, :] = turned(y[..., -1, -1, :], cos, sin)
    return scaled(y)


def first_scaled(x, w, cos, sin):
    y = (x * w).sum(1).unflatten(-1, (-1, 8))
    return scaled(torch.cat([y[:, :1] * cos.sum(), y[:, 1:]], 1))


def one_overwritten(x, w, cos, sin):
    y = (x * w).sum(1).unflatten(-1, (-1, 8)).clone()
    y[:, 3] = cos
    return scaled(y)


def two_changed(x, w, cos, sin):
    y = (x * w).sum(1).unflatten(-1, (8, 16)).clone()
    y[:, 2] = y[:, 2].exp()
    y[:, 5] = -y[:, 5]
    return scaled(y)


def another_in_place(x, w, cos, sin):
    y = (x * w).sum(1).unflatten(-1, (-1, 8)).clone()
    y[:, 3] = y[:, 0] * 2
    return scaled(y)


def normalised_in_place(x, w, cos, sin):
    y = (x * w).sum(1).unflatten(-1, (-1, 8)).clone()
    y[:, 3] = y[:, 3] / y[:, 3].sum(-1, keepdim=True)
    return scaled(y)


def arguments():
    torch.manual_seed(3)
    return dict(x=torch.randn(ROWS, 5, 128), w=torch.rand(ROWS, 5, 1), cos=torch.randn(8), sin=torch.randn(8))


def selected(graph):
    """Whether positions are told apart by a comparison."""
    compared = [n.op.args[0] for n in graph.nodes if isinstance(n.op, Map) and n.op.fn == "lt"]
    return any(isinstance(a, Ref) and isinstance(graph.table[a.value].op, Iota) for a in compared)


def joined_unevenly(graph):
    return any(isinstance(n.op, Join) and len({length for _, length, _ in n.op.parts}) > 1 for n in graph.nodes)


def outcomes(fn):
    """(the function's result, that of the graph, that of the kernel, the graph)"""
    given = arguments()
    graph = to_graph(capture(fn, given))
    _, spec = to_kernel(graph, "sm_90a")
    memories = []
    for run, form in ((run_graph, graph), (run_kernel, spec)):
        expected = fn(**{n: t.clone() for n, t in given.items()})
        memory = {n: t.clone() for n, t in given.items()} | {graph.outputs[0]: torch.full_like(expected, 777.0)}
        run(form, memory)
        memories.append(memory[graph.outputs[0]])
    return expected, *memories, graph


@pytest.mark.parametrize("fn", [last_half_turned, first_scaled, one_overwritten, two_changed])
def test_changed_elements_are_selected(fn):
    expected, of_graph, of_kernel, graph = outcomes(fn)
    assert selected(graph) and not joined_unevenly(graph)
    torch.testing.assert_close(of_graph, expected, rtol=2e-6, atol=1e-6)
    torch.testing.assert_close(of_kernel, expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("fn", [another_in_place, normalised_in_place])
def test_what_needs_other_elements_stays_apart(fn):
    expected, of_graph, of_kernel, graph = outcomes(fn)
    assert joined_unevenly(graph) and not selected(graph)
    torch.testing.assert_close(of_graph, expected, rtol=2e-6, atol=1e-6)
    torch.testing.assert_close(of_kernel, expected, rtol=2e-6, atol=1e-6)


def test_an_axis_that_is_no_longer_told_apart_is_one():
    graph = outcomes(last_half_turned)[3]
    assert [a.size for a in graph.axes if a.name != graph.rows].count(4) == 1
