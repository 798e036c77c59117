"""Dots with matrices of rank one are dots with vectors, where the vector stays small; products with the identity are none."""
from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fusec.capture import capture
from fusec.ir.graph import Reduce
from fusec.ir.interpret import run_graph
from fusec.passes.front import to_graph


def state_times_outer(S, k, b):
    k = F.normalize(k, dim=-1)
    return S * 0.5 + S @ ((-k)[..., :, None] @ (k * torch.sigmoid(b))[..., None, :])


def householder(S, k, b):
    k = F.normalize(k, dim=-1)
    beta = torch.sigmoid(b.sum(-1))[..., None, None]
    return (torch.eye(S.shape[-2]) - beta * k[..., :, None] @ k[..., None, :]) @ S


def sum_of_rank_one(S, k, b):
    return (torch.eye(S.shape[-2]) + b[..., :, None] * torch.tanh(k)[..., None, :]) @ S


def unbounded(S, k, b):
    return S @ (k[..., :, None] * b[..., None, :])


def dense(S, k, b):
    return (torch.eye(S.shape[-2]) - torch.sigmoid(k[..., :, None] + b[..., None, :])) @ S


def largest_dot(graph) -> int:
    """How many axes the dot with the most runs over, those it sums among them."""
    return max(len(n.domain) for n in graph.nodes if isinstance(n.op, Reduce) and n.op.monoid == "dot")


@pytest.mark.parametrize("step, axes", [(state_times_outer, 4), (householder, 4), (sum_of_rank_one, 4), (unbounded, 5), (dense, 5)])
def test_a_matrix_of_rank_one_leaves_the_dot(step, axes):
    given = dict(S=torch.randn(3, 2, 16, 16), k=torch.randn(3, 2, 16), b=torch.randn(3, 2, 16))
    tensors = capture(step, given)
    graph = to_graph(tensors)
    assert largest_dot(graph) == axes
    memory = {n: t.clone() for n, t in given.items()}
    run_graph(graph, memory)
    torch.testing.assert_close(memory[graph.outputs[0]], step(**given), rtol=1e-5, atol=1e-5)


def test_an_unbounded_vector_stays_where_it_is():
    given = dict(S=torch.full((3, 2, 8, 8), 1e25), k=torch.full((3, 2, 8), 1e25), b=torch.full((3, 2, 8), 1e-25))
    graph = to_graph(capture(unbounded, given))
    memory = {n: t.clone() for n, t in given.items()}
    run_graph(graph, memory)
    assert memory[graph.outputs[0]].isfinite().all()


def test_strict_numerics_keep_the_product():
    given = dict(S=torch.randn(3, 2, 16, 16), k=torch.randn(3, 2, 16), b=torch.randn(3, 2, 16))
    graph = to_graph(capture(state_times_outer, given), "strict")
    assert any(len(n.domain) == 5 for n in graph.nodes if isinstance(n.op, Reduce))
