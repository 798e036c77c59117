"""Axes that lie next to each other in memory are read and written as one run, as wide as alignment allows."""
from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fusec.capture import capture
from fusec.ir.interpret_kernel import run_kernel
from fusec.ir.kernel import Copy, Global, walk
from fusec.passes.back import to_kernel
from fusec.passes.front import to_graph


def moved_window(x, window, weight):
    full = torch.cat([window, x[..., None]], -1)
    window.copy_(full[..., 1:])
    return F.silu((full * weight).sum(-1))


def arguments(rows, channels, taps):
    return dict(x=torch.randn(rows, channels), window=torch.randn(rows, channels, taps), weight=torch.randn(channels, taps + 1))


@pytest.mark.parametrize("channels, taps", [(200, 3), (64, 2), (36, 7), (37, 3), (4608, 3)])
@pytest.mark.parametrize("alignment", [16, 4])
def test_channels_and_taps_are_one_run(channels, taps, alignment):
    given = arguments(3, channels, taps)
    graph = to_graph(capture(moved_window, given))
    _, spec = to_kernel(graph, "sm_90a", {"window": alignment})
    copies = [s for s in walk(spec.body) if isinstance(s, Copy) and any(
        isinstance(p, Global) and p.tensor == "window" for p in (s.source, s.target))]
    wide = alignment == 16 and channels % 4 == 0
    assert len(copies) == 2 and all((s.vector > 1) == wide for s in copies)
    theirs = {n: t.clone() for n, t in given.items()}
    expected = moved_window(**theirs)
    ours = {n: t.clone() for n, t in given.items()} | {graph.outputs[0]: torch.empty_like(expected)}
    run_kernel(spec, ours)
    torch.testing.assert_close(ours[graph.outputs[0]], expected, rtol=2e-5, atol=1e-6)
    assert torch.equal(ours["window"], theirs["window"])


def test_pairs_that_a_thread_holds_are_read_side_by_side():
    from fusec.recipes.deepseek_v4_decode import reduce_unrotate_quant as fused
    example, dynamic = fused.capture_inputs(4)
    _, spec = to_kernel(to_graph(capture(fused.reference, example, dynamic)), "sm_90a")
    moved = {p.tensor: s for s in walk(spec.body) if isinstance(s, Copy) for p in (s.source, s.target) if isinstance(p, Global)}
    assert moved["partial"].vector == 8 and moved["out0"].vector == 2
