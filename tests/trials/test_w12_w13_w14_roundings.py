"""W12, W13, W14: roundings that a compiler invents, narrows or drops. The function decides; each one equals its own eager run."""
import math

import pytest
import torch

from fusec.checker import compiled
from fusec.checker.entry import target
from fusec.checker.storage import clone

from .steps import both, right

BF16 = torch.bfloat16


def gated(beta, k, v, pool, slots):
    """beta [R], k [R, K], v [R, V], pool [S, V, K]: h + (v − h k) sigmoid(beta) kᵀ."""
    b = torch.sigmoid(beta.float())
    h = pool[slots]
    delta = (v.float() - (h * k.float().unsqueeze(-2)).sum(-1)) * b.unsqueeze(-1)
    pool[slots] = h + delta.unsqueeze(-1) * k.float().unsqueeze(-2)
    return b


def gated_rounded(beta, k, v, pool, slots):
    """The same with sigmoid(beta) rounded through bf16."""
    b = torch.sigmoid(beta.float()).to(BF16).float()
    h = pool[slots]
    delta = (v.float() - (h * k.float().unsqueeze(-2)).sum(-1)) * b.unsqueeze(-1)
    pool[slots] = h + delta.unsqueeze(-1) * k.float().unsqueeze(-2)
    return b


def gated_inputs(rows=2, K=8, V=8):
    return dict(beta=torch.randn(rows).to(BF16), k=(torch.randn(rows, K) / K).to(BF16), v=torch.randn(rows, V).to(BF16),
                pool=torch.randn(rows + 2, V, K), slots=torch.randperm(rows + 2)[:rows])


def test_w12_a_rounding_is_kept_or_left_out_as_written(level, device):
    given = gated_inputs()
    ends = []
    for fn in (gated, gated_rounded):
        right(fn, given, level)
        mine, eager, step = clone(given, device), clone(given, device), compiled(fn, given, level)
        torch.manual_seed(3)
        for _ in range(512 if level == "gpu" else 48):
            fresh = {n: t.to(device) for n, t in gated_inputs().items() if n in ("beta", "k", "v")}
            gate = step(**{**mine, **fresh})[0]
            assert torch.allclose(gate, fn(**{**eager, **fresh}), rtol=2e-6, atol=0)
        assert torch.allclose(mine["pool"], eager["pool"], rtol=2e-4, atol=1e-5)
        ends.append(mine["pool"])
    assert (ends[0] - ends[1]).abs().max() > 1e-3, "the two functions differ, so must their states"


def test_w12_the_two_have_keys_of_their_own():
    from fusec.runtime.identity import graph_key
    keys = {graph_key(target(fn, gated_inputs()).stages.graph, "sm_90a", "default", None) for fn in (gated, gated_rounded)}
    assert len(keys) == 2


def forget(g, pool, slots):
    """g [R, K] bf16: the decay, computed in fp32, of a state [S, V, K]."""
    h = pool[slots] * torch.exp(g.float()).unsqueeze(-2)
    pool[slots] = h
    return h.sum(-1)


@pytest.mark.parametrize("rate", [2.0 ** -12, 2.0 ** -10])
def test_w13_decays_next_to_one_still_forget(rate, level, device):
    """exp(−2^-12) is 1 in bf16: a compiler that narrows the decay never forgets."""
    steps = 4096 if level == "gpu" else 300
    given = dict(g=torch.full((2, 8), -rate).to(BF16), pool=torch.ones(3, 4, 8), slots=torch.tensor([2, 0]))
    mine, step = clone(given, device), compiled(forget, given, level)
    for _ in range(steps):
        step(**mine)
    wanted = math.exp(-rate * steps)
    assert torch.allclose(mine["pool"][[2, 0]].cpu(), torch.tensor(wanted), rtol=1e-3) and (mine["pool"][1] == 1.0).all()


NARROW = [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2]
BITS = {torch.bfloat16: 7, torch.float16: 10, torch.float8_e4m3fn: 3, torch.float8_e5m2: 2}


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_w14_a_rounding_before_an_fp32_addition_is_kept(dtype, level, device):
    def step(x, w, b):
        return (x * w).to(dtype).float() + b

    tiny = 2.0 ** -(BITS[dtype] + 2)  # A quarter of the distance to the next number.
    x = torch.ones(3, 16)
    given = dict(x=x, w=torch.full((16,), 1 + tiny), b=torch.zeros(16))
    found = both(step, given, level, device)[1][0][0]
    assert found.dtype == torch.float32 and (found == 1.0).all(), "1 + a quarter of an ulp is 1 once it is rounded"
    right(step, dict(given, x=torch.randn(3, 16), w=torch.randn(16), b=torch.randn(16)), level)


def test_w14_roundings_in_a_row_are_all_kept(level, device):
    def step(x, w):
        return (x * w).to(torch.float16).to(BF16).float() * 3.0

    # To fp16 first it becomes a midpoint of bf16, which goes to even; to bf16 at once it goes up.
    near = 1 + 2.0 ** -8 + 2.0 ** -13
    given = dict(x=torch.ones(2, 8), w=torch.full((8,), near))
    eager, mine = both(step, given, level, device)
    assert torch.equal(mine[0][0].cpu(), eager[0][0].cpu()) and (mine[0][0] == 3.0).all()


def test_w14_a_value_read_back_from_a_bf16_state_is_the_rounded_one(level, device):
    def step(x, state):
        state.copy_(state.float() + x)
        return state.float() * 2.0

    given = dict(x=torch.full((3, 8), 2.0 ** -9), state=torch.ones(3, 8).to(BF16))
    eager, mine = both(step, given, level, device)
    assert torch.equal(mine[0][0].cpu(), eager[0][0].cpu()) and (mine[0][0] == 2.0).all()


def test_w14_a_value_that_was_not_rounded_is_used_as_it_is(level, device):
    def step(x, state):
        h = state.float() + x
        state.copy_(h)
        return h * 2.0

    given = dict(x=torch.full((3, 8), 2.0 ** -9), state=torch.ones(3, 8).to(BF16))
    found = both(step, given, level, device)[1]
    assert (found[0][0] == 2.0 + 2.0 ** -8).all() and (found[1]["state"] == 1.0).all()
