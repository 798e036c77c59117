"""W10: sides that are no powers of two; what lies behind an argument in memory is never read."""
import pytest
import torch

from fusec.checker import compiled
from fusec.checker.storage import clone
from fusec.checker.target import target

from .steps import delta_inputs, delta_rule, right


def exposed(t, tail):
    """The same tensor as the beginning of a larger buffer that goes on with `tail`."""
    buffer = torch.full((t.numel() + 512,), tail).to(t.dtype)
    buffer[:t.numel()] = t.flatten()
    return buffer[:t.numel()].view(t.shape)


@pytest.mark.parametrize("side", [60, *(pytest.param(n, marks=pytest.mark.slow) for n in (48, 100, 192))])
def test_lanes_beyond_a_side_take_no_part(side, level, device):
    dense = delta_inputs(1, 2, 1, side, side)
    goal = target(delta_rule, delta_inputs(3, 4, 1, side, side))
    right(goal, dense, "emulate" if level == "kernel" and side == 60 else level)
    step = compiled(goal, goal.example, level)
    results = []
    for tail in (float("nan"), 1e4):
        mine = {n: exposed(t, tail if t.is_floating_point() else 1 << 30) for n, t in dense.items()}
        mine = clone(mine, device)
        out = step(**mine)[0]
        assert torch.isfinite(out.float()).all() and torch.isfinite(mine["pool"]).all()
        results.append((out.cpu(), mine["pool"].cpu()))
    assert all(torch.equal(a, b) for a, b in zip(*results))


@pytest.mark.parametrize("K, V", [(48, 20), pytest.param(12, 100, marks=pytest.mark.slow)])
def test_unequal_sides(K, V, level):
    right(delta_rule, delta_inputs(2, 4, 1, K, V), level)
