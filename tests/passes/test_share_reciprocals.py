"""Quotients by one value become products by its reciprocal, right from the smallest to the largest divisors."""
from __future__ import annotations

import pytest
import torch

from fusec.capture import capture
from fusec.ir.graph import Map
from fusec.ir.interpret import run_graph
from fusec.passes.front import to_graph

ULP = 2.0 ** -23


def graph_of(fn, given, numerics="default"):
    return to_graph(capture(fn, given), numerics)


def functions(graph):
    return [n.op.fn for n in graph.nodes if isinstance(n.op, Map)]


def by_row(x, s):
    return x / s[:, None]


def outputs(graph, given):
    memory = {n: t.clone() for n, t in given.items()}
    run_graph(graph, memory)
    return memory[graph.outputs[0]]


@pytest.mark.parametrize("size, shared", [(256, True), (32, True), (16, False)])
def test_one_reciprocal_for_many(size, shared):
    made = functions(graph_of(by_row, dict(x=torch.randn(3, size), s=torch.rand(3) + 1)))
    assert ("rcp" in made, "div" in made) == (shared, not shared)


def test_not_under_strict_numerics_and_not_where_divisors_differ():
    assert "rcp" not in functions(graph_of(by_row, dict(x=torch.randn(3, 64), s=torch.rand(3)), "strict"))
    assert "rcp" not in functions(graph_of(lambda x, s: x / s, dict(x=torch.randn(3, 64), s=torch.rand(3, 64))))


def test_every_size_of_divisor():
    """Against fp64: within 1.5 ulp where the result is a normal number, and what division gives for zero, infinity and NaN."""
    special = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), 2.0 ** -149, -(2.0 ** -140), 2.0 ** -126, 3.4e38,
               -3.4e38, 1e-30]
    s = torch.cat([torch.tensor(special), torch.randn(4000) * 10.0 ** (torch.rand(4000) * 70 - 35)])
    x = torch.randn(len(s), 64) * 10.0 ** (torch.rand(len(s), 64) * 70 - 35)
    x[:, 0], x[:, 1], x[:, 2], x[:, 3] = 0.0, float("inf"), float("nan"), -0.0
    given = dict(x=x, s=s)
    found, exact = outputs(graph_of(by_row, given), given), x.double() / s.double()[:, None]
    as_f32 = exact.float()
    assert torch.equal(found.isnan(), as_f32.isnan())
    normal = as_f32.isfinite() & (as_f32.abs() >= 2.0 ** -126)
    assert ((found.double() - exact).abs()[normal] <= 1.5 * ULP * exact.abs()[normal]).all()
    edge = as_f32.isinf() & (exact.abs() > 3.41e38)
    assert torch.equal(found[edge], as_f32[edge])
    small = as_f32.abs() < 2.0 ** -126
    assert (found[small].abs() <= 2.0 ** -126 * (1 + 2 * ULP)).all()
    zero = (x == 0) & ~as_f32.isnan()
    assert torch.equal(found[zero].signbit(), as_f32[zero].signbit()) and (found[zero] == 0).all()


@pytest.mark.parametrize("step", [
    lambda q: torch.log(1.0 - q), lambda q: (1.0 - q).sqrt(), lambda q: (q.abs() == 1.0).float(),
    lambda q: (q * 127).to(torch.int32),
    lambda q: torch.floor(q * 3.0), lambda q: torch.where(q >= 1.0, q, 0.0)])
def test_a_quotient_that_is_looked_at_closely_stays_one(step):
    """The largest element over the maximum is exactly 1."""
    def ratio(x):
        return step(x / x.abs().amax(-1, keepdim=True))
    given = dict(x=torch.rand(5, 64) + 0.1)
    graph = graph_of(ratio, given)
    assert "rcp" not in functions(graph)
    assert torch.equal(outputs(graph, given), ratio(**given))


def test_a_divisor_of_16_bits_and_a_quotient_that_is_rounded():
    def scaled(x, s):
        return (x / s[:, None]).to(torch.bfloat16)
    given = dict(x=torch.randn(5, 64), s=(torch.rand(5) + 0.1).bfloat16())
    graph = graph_of(scaled, given)
    assert "rcp" in functions(graph)
    torch.testing.assert_close(outputs(graph, given), scaled(**given), rtol=2 ** -8, atol=0)
