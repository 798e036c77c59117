"""W20: gate and order of a gated norm are the function's: silu or sigmoid, after the norm or before it; z in any strides."""
import pytest
import torch
import torch.nn.functional as F

from fusec.checker import compiled
from fusec.checker.target import target

from .steps import right

EPS = 1e-30


def norm(x):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)


def norm_silu(x, weight, z):
    return norm(x.float()) * weight * F.silu(z.float())


def norm_sigmoid(x, weight, z):
    return norm(x.float()) * weight * torch.sigmoid(z.float())


def gated_first(x, weight, z):
    return norm(x.float() * F.silu(z.float())) * weight


@pytest.mark.parametrize("fn, wanted, D", [
    pytest.param(norm_silu, 1.7616, 128, marks=pytest.mark.slow), (norm_silu, 1.7616, 192), (norm_sigmoid, 0.8808, 192),
    (gated_first, 1.0, 128)])
def test_each_form_gives_its_own_number(fn, wanted, D, level, device):
    goal = target(fn, dict(x=torch.randn(4, 2, D).bfloat16(), weight=torch.randn(D), z=torch.randn(4, 2, D).bfloat16()))
    twos = torch.full((3, 2, D), 2.0).bfloat16()
    given = dict(x=twos, weight=torch.ones(D), z=twos.clone())
    out = compiled(goal, goal.example, level)(**{n: t.to(device) for n, t in given.items()})[0]
    assert (out.cpu() - wanted).abs().max() < 1e-4
    wide = torch.randn(3, 2, 3 * D).bfloat16()
    right(goal, dict(x=torch.randn(3, 2, D).bfloat16(), weight=torch.randn(D), z=wide[..., D:2 * D]), level)
