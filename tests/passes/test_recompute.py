"""What coordinates and a block's scalars make is computed where it is read: no load waits for it behind a barrier."""
from __future__ import annotations

import torch

from fusec.capture import capture
from fusec.ir.graph import Iota, Load
from fusec.ir.interpret_kernel import run_kernel
from fusec.ir.kernel import Barrier, Copy, Global, walk
from fusec.passes.back import to_kernel
from fusec.passes.bind_loads import bind_loads, register_axes
from fusec.passes.choose_grid import choose_grid
from fusec.passes.front import to_graph
from fusec.passes.mask_loads import mask_loads
from fusec.passes.recompute import recompute


def mean_of_valid(part, score, count):
    """part [T, S, D], score [T, S], count [T] of the valid positions -> [T, D]."""
    live = torch.arange(score.shape[1], device=score.device) < count[:, None]
    weight = torch.softmax(torch.where(live, score, -1e30), -1)
    return (torch.where(live[..., None], part, 0.0) * weight[..., None]).sum(1)


def arguments():
    return dict(part=torch.randn(3, 16, 512), score=torch.randn(3, 16), count=torch.tensor([16, 1, 7]))


def prepared(fn, given):
    graph = mask_loads(bind_loads(to_graph(capture(fn, given))))
    return graph, choose_grid(graph, register_axes(graph))


def test_each_domain_has_its_own():
    graph, grid = prepared(mean_of_valid, arguments())
    after = recompute(graph, grid)
    load = next(n for n in after.nodes if isinstance(n.op, Load) and n.op.tensor == "part")
    assert isinstance(load.op, Load) and load.op.where is not None
    readers = [n.name for n in after.readers(load.op.where.value)]
    assert load.op.where.value not in graph.table and readers == [load.name]
    assert sum(isinstance(n.op, Iota) for n in after.nodes) == sum(isinstance(n.op, Iota) for n in graph.nodes) + 1


def test_values_that_are_loaded_or_rounded_stay_one():
    def loaded(part, mask):
        return (torch.where(mask[..., None] > 0, part, 0.0) * mask[..., None]).sum(1)

    def rounded(part, mask):
        angle = (torch.arange(16) * 0.3).bfloat16()
        return (part * angle[:, None]).sum(1) + (mask * angle).sum(-1, keepdim=True)

    def costly(part, mask):
        angle = torch.exp(torch.exp(torch.arange(16) * 0.1))
        return (part * angle[:, None]).sum(1) + (mask * angle).sum(-1, keepdim=True)
    for step in (loaded, rounded, costly):
        graph, grid = prepared(step, dict(part=torch.randn(3, 16, 512), mask=torch.randn(3, 16)))
        copies = {n.name for n in recompute(graph, grid).nodes} - {n.name for n in graph.nodes}
        assert not [c for c in copies if any(word in c for word in ("angle", "bf16", "exp", "gt", "lt"))], copies


def test_the_masked_load_waits_for_no_barrier_and_the_result_is_right():
    given = arguments()
    graph = to_graph(capture(mean_of_valid, given))
    _, spec = to_kernel(graph, "sm_90a")
    order = list(walk(spec.body))
    load = next(i for i, s in enumerate(order)
                if isinstance(s, Copy) and isinstance(s.source, Global) and s.source.tensor == "part")
    barriers = [i for i, s in enumerate(order) if isinstance(s, Barrier)]
    assert not barriers or load < barriers[0]
    expected = mean_of_valid(**given)
    out = torch.empty_like(expected)
    run_kernel(spec, {**given, graph.outputs[0]: out})
    torch.testing.assert_close(out, expected, rtol=2e-5, atol=1e-6)
