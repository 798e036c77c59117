"""W22, W24, W26, W27, W29, W37 for reductions over splits: empty parts, lengths at and beyond their edges, sinks, batch mates."""
from __future__ import annotations

import math

import pytest
import torch

from fusec.checker import compiled
from fusec.checker.storage import clone
from fusec.recipes import merge_states as merge
from fusec.recipes import split_kv_reduce as reduce
from fusec.recipes.deepseek_v4_decode import reduce_unrotate_quant
from fusec.recipes.kimi_k3_decode import mla_reduce

from .steps import right

INF, NAN, KEYS = float("inf"), float("nan"), reduce.KEYS


def run(fn, given, level, device):
    """The results of the compiled function, on the CPU."""
    found = compiled(fn, given, level)(**clone(given, device))
    return [t.cpu() for t in (found if isinstance(found, (list, tuple)) else [found])]


def bits(t):
    return t.contiguous().cpu().view(torch.uint8)


@pytest.mark.parametrize("splits", [5, *(pytest.param(n, marks=pytest.mark.recipes) for n in (1, 2))])
def test_w22_empty_states(splits, level, device):
    """Tokens: no part has weight; one has; all weigh exp2(-1e30); all 3e4. Parts without weight hold NaN."""
    torch.manual_seed(1)
    given = merge.merge_states.inputs(4, H=2, D=512, S=splits)
    v, s = given["v"], torch.full_like(given["s"], -INF)
    s[1, splits - 1], s[2], s[3] = 0.25, -1e30, 3e4
    v[0], v[1, :splits - 1] = NAN, NAN
    given["s"] = s
    out, lse = run(merge.merge_states, given, level, device)
    assert (out[0] == 0).all() and (lse[0] == -INF).all()
    assert torch.equal(bits(out[1]), bits(v[1, splits - 1])) and (lse[1] == 0.25).all()
    assert out.isfinite().all() and (lse[2] == -1e30).all() and (lse[3] - 3e4 - math.log2(splits)).abs().max() < 1e-2
    torch.testing.assert_close(out[2:].float(), v[2:].float().mean(1), rtol=1e-2, atol=1e-2)


def test_w24_no_keys_are_an_empty_part_of_a_merge(level, device):
    torch.manual_seed(1)
    given = reduce.reduce_natural.inputs(4, H=2, S=2, D=64)
    given["lengths"] = torch.tensor([0, 1, 64, 65], dtype=torch.int32)
    given["partial"][0], given["lse"][0] = NAN, NAN
    out, lse = run(reduce.reduce_natural, given, level, device)
    assert (out[0] == 0).all() and (lse[0] == -INF).all() and lse[1:].isfinite().all()
    other = dict(v_b=torch.randn_like(out), s_b=torch.randn_like(lse))
    merged, whole = run(merge.merge_state, dict(v_a=out, s_a=lse / math.log(2), **other), level, device)
    assert torch.equal(bits(merged[0]), bits(other["v_b"][0])) and torch.equal(whole[0], other["s_b"][0])
    assert merged.isfinite().all()


@pytest.mark.parametrize("splits", [3, pytest.param(1, marks=pytest.mark.recipes)])
def test_w26_lengths_beyond_what_was_picked(splits, level, device):
    """Of lengths up to 10 ** 6 and below zero the splits that are there count; what lies behind the parts is not read."""
    torch.manual_seed(1)
    given = reduce.reduce_grouped.inputs(7, H=2, S=splits, D=64)
    given["lengths"] = torch.full((7,), 10 ** 6, dtype=torch.int32)
    given["topk_lengths"] = torch.tensor([0, 1, 63, 64, 65, 10 ** 6, -1], dtype=torch.int32)
    right(reduce.reduce_grouped, given, level)
    out, lse = run(reduce.reduce_grouped, given, level, device)
    assert (out[[0, 6]].float() == 0).all() and (lse[[0, 6]] == -INF).all() and lse[1:6].isfinite().all()


@pytest.mark.parametrize("heads, keys", [(1, 257), *(pytest.param(h, k, marks=pytest.mark.recipes) for h, k in (
    (1, 200), (12, 200), (12, 257), (64, 200), (64, 257)))])
def test_w27_any_number_of_keys_and_heads(heads, keys, level, device):
    torch.manual_seed(1)
    given = mla_reduce.inputs(3, H=heads, S=-(-keys // KEYS), D=64)
    given["lengths"] = torch.tensor([keys, 1, 199], dtype=torch.int32)
    right(mla_reduce, given, level)


def test_w29_sinks(level, device):
    """Two keys of score 0 and value 1, each a split of its own; heads with sinks 0, -inf and inf. Then no keys at all."""
    given = reduce.reduce_max_sum.inputs(2, H=3, S=2, D=16)
    given |= dict(partial=torch.ones(2, 2, 3, 16), top=torch.zeros(2, 2, 3), total=torch.ones(2, 2, 3),
                  sink=torch.tensor([0.0, -INF, INF]), lengths=torch.tensor([2 * KEYS, 0], dtype=torch.int32))
    out, = run(reduce.reduce_max_sum, given, level, device)
    torch.testing.assert_close(out[0, :, 0].float(), torch.tensor([2 / 3, 1.0, 0.0]), rtol=4e-3, atol=0)
    assert (out[1] == 0).all()


CASES = [(reduce.reduce_max_sum, dict(H=2, S=5, D=64), ()), (mla_reduce, dict(H=2, S=5, D=64), pytest.mark.recipes),
         (reduce_unrotate_quant, dict(H=8, S=3, D=512), pytest.mark.recipes)]


@pytest.mark.parametrize("fn, sizes", [pytest.param(f, s, id=f.__name__, marks=m) for f, s, m in CASES])
def test_w37_a_token_alone_and_among_others(fn, sizes, level, device):
    torch.manual_seed(1)
    given = fn.inputs(9, **sizes)
    whole = {n for n, t in given.items() if t.shape[0] != 9}
    step = compiled(fn, given, level)
    groups = fn is reduce_unrotate_quant  # Its results have the rows in their second dim.

    def results(rows):
        found = step(**clone({n: t if n in whole else t[rows] for n, t in given.items()}, device))
        return [t.transpose(0, 1) if groups else t for t in (found if isinstance(found, (list, tuple)) else [found])]
    alone = results([3])
    for at in (0, 4, 8):
        order = [i for i in range(9) if i != 3]
        order.insert(at, 3)
        for a, b in zip(alone, results(order), strict=True):
            assert torch.equal(bits(a[0]), bits(b[at])), f"as row {at} of 9"
