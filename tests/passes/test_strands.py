"""The order of a sum over a bounded axis: which axes are bounded, and which layouts realise it."""
from __future__ import annotations

import torch

from fusec.capture import capture
from fusec.ir.plan import REG, THREAD, VEC, Factor, Layout
from fusec.passes.front import to_graph
from fusec.passes.strands import FEW, realises, strands


def masked_mean(x, weight, length):
    live = torch.arange(x.shape[1]) < length[:, None]
    weight = torch.where(live, weight, 0.0)
    return (weight[..., None] * x).sum(1) / weight.sum(1, keepdim=True)


def windowed_mean(x, weight, length):
    live = torch.arange(x.shape[1]) < 5
    weight = torch.where(live, weight, 0.0)
    return (weight[..., None] * x).sum(1) / (weight.sum(1, keepdim=True) + length[:, None])


def test_an_axis_is_bounded_by_what_is_read_not_by_a_constant() -> None:
    given = dict(x=torch.randn(3, 9, 16), weight=torch.rand(3, 9), length=torch.tensor([1, 4, 9]))
    counts = [tuple(axes.values()) for axes in strands(to_graph(capture(masked_mean, given))).values()]
    assert counts == [(FEW,), (FEW,)], "the small sum has the order of the large one"
    assert not strands(to_graph(capture(windowed_mean, given)))


def test_strands_are_the_innermost_lanes() -> None:
    def layout(*factors: Factor) -> Layout:
        return Layout((("s", factors),))

    assert realises(layout(Factor(REG, 16), Factor(THREAD, 4, 8)), "s", 4)
    assert not realises(layout(Factor(REG, 8), Factor(THREAD, 8, 4)), "s", 4)
    assert not realises(layout(Factor(THREAD, 4, 8), Factor(VEC, 2)), "s", 4)
    assert not realises(layout(Factor(REG, 4), Factor(THREAD, 4, 32)), "s", 4), "warps fold after lanes"
    assert realises(layout(Factor(REG, 16)), "s", 1) and not realises(layout(Factor(THREAD, 4, 1)), "s", 1)
