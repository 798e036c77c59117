"""W31, W32: more rows than a grid's second dimension takes, and none at all."""
import pytest
import torch

from fusec.checker import compiled
from fusec.checker.storage import clone

from .steps import both, delta_inputs, delta_rule, right, rmsnorm

MANY = [65535, 65536, 70000]


@pytest.mark.parametrize("rows", [pytest.param(r, marks=pytest.mark.gpu) for r in MANY[:2]] + [70000])
def test_w31_more_rows_than_65535(rows, level, device):
    width = 256 if level == "gpu" else 8
    example = dict(x=torch.randn(3, width).bfloat16(), weight=torch.randn(width))
    given = dict(x=torch.randn(rows, width).bfloat16(), weight=torch.randn(width))
    (eager, _), (mine, _) = both(rmsnorm, given, level, device, example)
    assert torch.allclose(mine[0].float(), eager[0].float(), rtol=1e-2) and mine[0].shape == (rows, width)


@pytest.mark.parametrize("rows", [pytest.param(r, marks=pytest.mark.gpu) for r in MANY[:2]] + [70000])
def test_w31_more_rows_than_65535_in_place(rows, level, device):
    side = 16 if level == "gpu" else 2
    example = delta_inputs(3, 5, 1, side, side)
    given = delta_inputs(rows, rows + 3, 1, side, side)
    (eager, after), (mine, changed) = both(delta_rule, given, level, device, example)
    assert torch.allclose(mine[0].float(), eager[0].float(), rtol=2e-2, atol=2e-2)
    assert torch.allclose(changed["pool"], after["pool"], rtol=1e-4, atol=1e-5)


def test_w32_no_rows(level, device):
    given = delta_inputs(0, 4)
    report = right(delta_rule, given, level, delta_inputs(3, 4))
    assert report.notes == ("no rows: nothing is launched",)
    report = right(rmsnorm, dict(x=torch.zeros(0, 3, 128).bfloat16(), weight=torch.randn(128)), level,
                   dict(x=torch.randn(4, 3, 128).bfloat16(), weight=torch.randn(128)))
    assert {c.rule for c in report.compared} == {"shape and dtype as in eager mode"}


@pytest.mark.gpu
def test_w32_no_rows_leave_no_error_behind():
    mine = clone(delta_inputs(0, 4), "cuda")
    before = mine["pool"].clone()
    out = compiled(delta_rule, delta_inputs(3, 4), "gpu")(**mine)[0]
    assert out.shape == (0, 2, 16) and out.dtype == torch.bfloat16 and torch.equal(before, mine["pool"])
    assert (torch.ones(5, device="cuda") + 1).sum().item() == 10
    torch.cuda.synchronize()


def test_one_row(level):
    right(delta_rule, delta_inputs(1, 4), level, delta_inputs(3, 4))


def test_a_plain_dimension_of_size_zero_is_refused_or_right(level):
    from fusec import FusecError
    try:
        right(rmsnorm, dict(x=torch.zeros(4, 0).bfloat16(), weight=torch.randn(0)), level)
    except FusecError as refusal:
        assert str(refusal)
