"""What is made of a sum that all lanes have is shared out among them, where that is more than a few operations."""
from __future__ import annotations

import torch

from fusec.capture import capture
from fusec.ir.interpret_kernel import run_kernel
from fusec.ir.kernel import Copy, Global, Less, Shared, walk
from fusec.passes.back import to_kernel
from fusec.passes.front import to_graph

ROWS, SPLITS, D = 3, 16, 256


def weighted(part, lse, lengths):
    """Σ exp(lse) · part over the splits that a row has, in pairs."""
    live = torch.arange(SPLITS) < lengths[:, None]
    weight = torch.where(live, lse.exp(), 0.0)
    return (torch.where(live[..., None], part, 0.0).float() * weight[..., None]).sum(1).unflatten(-1, (2, 2, 32, 2))


def dear(part, lse, lengths, cos, sin):
    """In turned pairs, as codes beside the scale of a half."""
    even, odd = weighted(part, lse, lengths).unbind(-1)
    y = torch.stack((even * cos + odd * sin, odd * cos - even * sin), -1)
    scale = y.abs().amax((-3, -2, -1), keepdim=True).clamp(min=1e-6) / 448.0
    return (y / scale).to(torch.float8_e4m3fn), scale.flatten(1)


def from_the_first(part, lse, lengths, cos, sin):
    """What every lane reads of one comes through shared memory."""
    y = weighted(part, lse, lengths).flatten(2)
    return ((y - y[..., :1]).exp() * cos.sum()).tanh(), lse.sum(1)


def kernel(fn):
    torch.manual_seed(5)
    given = dict(part=torch.randn(ROWS, SPLITS, D).bfloat16(), lse=torch.randn(ROWS, SPLITS),
                 lengths=torch.tensor([16, 0, 5], dtype=torch.int32), cos=torch.randn(32), sin=torch.randn(32))
    graph = to_graph(capture(fn, given))
    _, spec = to_kernel(graph, "sm_90a")
    return given, graph, spec


def single_lanes(spec, tensor):
    """Whether a tensor is written by one of the lanes that have its values."""
    stores = [s for s in walk(spec.body) if isinstance(s, Copy) and isinstance(s.target, Global) and s.target.tensor == tensor]
    return [any(isinstance(c, Less) and c.bound == 1 for c in s.when) for s in stores]


def test_lanes_share_a_dear_end():
    given, graph, spec = kernel(dear)
    assert single_lanes(spec, graph.outputs[0]) == [False]
    expected = dear(**given)
    memory = dict(given) | {n: torch.zeros_like(t) for n, t in zip(graph.outputs, expected)}
    run_kernel(spec, memory)
    codes, scale = (memory[n] for n in graph.outputs)
    torch.testing.assert_close(scale, expected[1], rtol=1e-5, atol=1e-6)
    assert (codes.float() != expected[0].float()).float().mean() < 0.01
    torch.testing.assert_close(codes.float(), expected[0].float(), rtol=0.13, atol=0.01)


def test_values_of_other_lanes_come_through_shared_memory():
    given, graph, spec = kernel(from_the_first)
    expected = from_the_first(**given)
    memory = dict(given) | {n: torch.zeros_like(t) for n, t in zip(graph.outputs, expected)}
    run_kernel(spec, memory)
    torch.testing.assert_close(memory[graph.outputs[0]], expected[0], rtol=1e-4, atol=1e-5)
    assert any(isinstance(p, Shared) for s in walk(spec.body) if isinstance(s, Copy) for p in (s.source, s.target))
