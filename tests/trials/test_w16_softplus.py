"""W16: softplus of a large argument is the argument, and the decay that comes of it forgets as much as it should."""
import math

import pytest
import torch
import torch.nn.functional as F

from fusec.checker import compiled
from fusec.checker.storage import clone

from .steps import right

VALUES = [-100.0, 0.0, 19.9, 20.1, 88.0, 89.0, 100.0, 1e4]


def forget(a, dt_bias, A_log, pool, slots):
    """a [R, H], dt_bias and A_log [H], pool [S, H, D]: S exp(−exp(A_log) softplus(a + dt_bias)) -> the decay's logarithm."""
    g = -A_log.exp() * F.softplus(a.float() + dt_bias)
    pool[slots] = pool[slots] * g.exp().unsqueeze(-1)
    return g


def as_written(a, dt_bias, A_log, pool, slots):
    """The form that overflows, written out by the author: kept as it is."""
    g = -A_log.exp() * torch.log(1 + torch.exp(a.float() + dt_bias))
    pool[slots] = pool[slots] * g.exp().unsqueeze(-1)
    return g


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)], ids=["fp32", "bf16"])
def test_a_decay_is_finite_and_right(dtype, level, device):
    rows, heads = len(VALUES), 2
    a = torch.tensor(VALUES).unsqueeze(-1).expand(rows, heads).to(dtype).contiguous()
    given = dict(a=a, dt_bias=torch.zeros(heads), A_log=torch.full((heads,), math.log(1e-3)), pool=torch.ones(rows + 1, heads, 8),
                 slots=torch.arange(rows))
    right(forget, given, level)
    mine = clone(given, device)
    g = compiled(forget, given, level)(**mine)[0].cpu()
    wanted = torch.tensor([-1e-3 * (float(x) + math.log1p(math.exp(-float(x))) if x > 0 else math.log1p(math.exp(float(x))))
                           for x in a[:, 0].tolist()])
    torch.testing.assert_close(g[:, 0], wanted, rtol=1e-5, atol=1e-9)
    state = mine["pool"].cpu()[:rows, 0, 0]
    torch.testing.assert_close(state, wanted.exp(), rtol=1e-5, atol=1e-9)
    assert state[0] == 1 and abs(state[VALUES.index(100.0)] - 0.90484) < 1e-4 and not state.isnan().any()


def test_what_overflows_as_written_overflows(level, device):
    given = dict(a=torch.tensor([[0.0], [50.0], [100.0]]), dt_bias=torch.zeros(1), A_log=torch.full((1,), math.log(1e-3)),
                 pool=torch.ones(4, 1, 8), slots=torch.tensor([2, 0, 1]))
    mine, eager = clone(given, device), clone(given)
    g, wanted = compiled(as_written, given, level)(**mine)[0].cpu(), as_written(**eager)
    torch.testing.assert_close(g, wanted, rtol=1e-5, atol=1e-6)
    assert g[2] == -math.inf and (mine["pool"][1] == 0).all()
