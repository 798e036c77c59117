"""The split-KV reductions and merges are attention over all keys, never NaN, and read nothing of a split that a token has not."""
import math

import pytest
import torch

from fusec.checker import compiled
from fusec.recipes import merge_states as merge
from fusec.recipes import split_kv_reduce as reduce
from fusec.recipes.deepseek_v4_decode import reduce_unrotate_quant
from fusec.recipes.kimi_k3_decode import mla_reduce

INF = float("inf")
T, H, S, D, KEYS = 4, 2, 3, 16, reduce.KEYS
LENGTHS = torch.tensor([0, 1, KEYS, 2 * KEYS + 1], dtype=torch.int32)


def attention(lengths=LENGTHS, seed=0):
    """Scores [T, H, keys] with -inf beyond each length, values [keys, D], and the parts of both: per split the normalised result
    [T, H, S, D], the natural log-sum-exp [T, H, S], the maximum and the sum; splits without keys hold NaN."""
    torch.manual_seed(seed)
    scores, values = 3 * torch.randn(T, H, S * KEYS), torch.randn(S * KEYS, D)
    scores = scores.masked_fill(torch.arange(S * KEYS) >= lengths[:, None, None], -INF)
    part = scores.view(T, H, S, KEYS)
    top = part.amax(-1)
    weight = torch.exp(part - top[..., None])
    total = weight.sum(-1)
    out = torch.einsum("thsk,skd->thsd", weight, values.view(S, KEYS, D))
    return scores, values, out, top, total


def full(scores, values, sink=None):
    """Softmax attention over all keys in fp64, with a sink in the denominator only; 0 where there are no keys."""
    weight = torch.exp(scores.double())
    total = weight.sum(-1, keepdim=True) + (0.0 if sink is None else torch.exp(sink.double())[:, None])
    return torch.where(total > 0, weight @ values.double() / total, 0.0), torch.logsumexp(scores.double(), -1)


def close(out, lse, wanted, tolerance=2e-2):
    torch.testing.assert_close(out.double(), wanted[0], rtol=tolerance, atol=tolerance / 4)
    if lse is not None:
        torch.testing.assert_close(lse.double(), wanted[1], rtol=1e-5, atol=1e-5)


def test_normalised_parts_make_attention_over_all_keys():
    scores, values, out, top, total = attention()
    partial, lse = out / total[..., None], top + total.log()
    close(*mla_reduce.reference(partial, lse, LENGTHS), full(scores, values))
    close(*reduce.reduce_natural.reference(partial, lse, LENGTHS), full(scores, values), 1e-5)
    found, base2 = reduce.reduce_base2.reference(partial.permute(2, 0, 1, 3), lse.permute(2, 0, 1) / math.log(2), LENGTHS)
    close(found, base2 * math.log(2), full(scores, values), 2e-3)


def test_parts_with_maximum_and_sum_and_a_sink():
    scores, values, out, top, total = attention()
    sink = torch.tensor([1.0, -INF])
    raw = top / reduce.SCALE
    found = reduce.reduce_max_sum.reference(out.transpose(1, 2), raw.transpose(1, 2), total.transpose(1, 2), LENGTHS, sink)
    close(found, None, full(scores, values, sink))


def test_each_token_has_its_own_number_of_keys():
    picked = torch.tensor([0, 1, 10**6, KEYS], dtype=torch.int32)
    scores, values, out, top, total = attention(torch.minimum(LENGTHS, picked))
    partial, lse, sink = (out / total[..., None]).view(T * H, S, D), (top + total.log()).view(T * H, S), torch.tensor([0.0, 2.0])
    found, whole = reduce.reduce_grouped.reference(partial, lse, LENGTHS, picked, sink, torch.tensor([0.01]))
    wanted = full(scores, values, sink)
    close(found.view(T, H, D).float() * 0.01, whole, wanted, 0.07)


@pytest.mark.parametrize("logarithm", [-1e30, 0.0, 3e4])
def test_one_finite_part_comes_through_bit_by_bit(logarithm):
    partial, lse = torch.full((2, H, S, D), float("nan")), torch.full((2, H, S), -INF)
    partial[:, :, 1], lse[:, :, 1] = torch.randn(2, H, D), logarithm
    out, whole = reduce.reduce_natural.reference(partial, lse, torch.tensor([S * KEYS, KEYS], dtype=torch.int32))
    assert torch.equal(out[0], partial[0, :, 1]) and (whole[0] == logarithm).all()
    assert (out[1] == 0).all() and (whole[1] == -INF).all()


@pytest.mark.parametrize("sink", [0.0, INF, -INF])
def test_a_sink_alone_gives_nothing(sink):
    partial, nothing = torch.full((1, S, H, D), INF), torch.zeros(1, dtype=torch.int32)
    lse = torch.full((1, S, H), float("nan"))
    out = reduce.reduce_max_sum.reference(partial, lse, lse, nothing, torch.full((H,), sink))
    assert (out == 0).all()


def test_merging_two_results_is_attention_over_both():
    scores, values, out, top, total = attention()
    partial, lse = out / total[..., None], top + total.log()
    wanted = full(scores[..., :2 * KEYS], values[:2 * KEYS])
    lse = lse.nan_to_num(-INF)
    two = [(partial[:, :, i], lse[:, :, i]) for i in (0, 1)]
    base2 = [t for v, s in two for t in (v.clone(), s / math.log(2))]
    found, whole = merge.merge_state.reference(*base2)
    close(found, whole * math.log(2), wanted, 1e-5)
    found, whole = merge.merge_states.reference(partial[:, :, :2].transpose(1, 2), lse[:, :, :2].transpose(1, 2) / math.log(2))
    close(found, whole * math.log(2), wanted, 1e-5)
    found, whole = merge.merge_attn_states.reference(*(t for v, s in two for t in (v, torch.where(s == -INF, INF, s).t())))
    close(found, whole.t(), wanted, 1e-5)
    before = base2[0].clone(), base2[1].clone()
    merge.merge_state_in_place.reference(*base2, torch.tensor([False, True, True, True]))
    close(base2[0][1:], base2[1][1:] * math.log(2), (wanted[0][1:], wanted[1][1:]), 1e-5)
    assert torch.equal(base2[0][0].nan_to_num(9), before[0][0].nan_to_num(9)) and torch.equal(base2[1][0], before[1][0])


def test_deepseek_v4_epilogue():
    """The rotation undone in fp64, codes times their power of two, the exponent the least that keeps the block in range."""
    given = reduce_unrotate_quant.inputs(3, H=8, S=S, D=512, Q=2, partial="fp32")
    codes, packed = reduce_unrotate_quant.reference(**given)
    assert codes.shape == (1, 3, 2, 8 * 512) and packed.shape == (1, 3, 2, 8) and packed.dtype == torch.int32
    partial, lse, lengths = given["partial"].view(6, 8, S, 512), given["lse"].view(6, 8, S), given["topk_lengths"].view(6)
    plain, _ = reduce.reduce_natural.reference(partial, lse, lengths)
    weight = torch.exp(lse.double()) * (torch.arange(S) < (lengths.view(6, 1, 1) + KEYS - 1) // KEYS)
    want = plain.double() * (weight.sum(-1) / (weight.sum(-1) + torch.exp(given["sink"].double())))[..., None]
    position = (given["lengths"][:, None] - 2 + torch.arange(2)).view(6)
    turn = torch.complex(given["cos"].double(), given["sin"].double())[position].conj()[:, None]
    want[..., 448:] = torch.view_as_real(torch.view_as_complex(want[..., 448:].unflatten(-1, (32, 2))) * turn).flatten(-2)
    exponent = torch.stack([(packed.view(6, 8) >> shift) & 255 for shift in (0, 8, 16, 24)], -1) - 127
    amax = want.view(6, 8, 4, 128).abs().amax(-1).clamp(min=1e-10)
    assert torch.equal(exponent.double(), torch.ceil(torch.log2(amax / 448)))
    found = codes.view(6, 8, 4, 128).double() * torch.exp2(exponent.double())[..., None]
    torch.testing.assert_close(found.view(6, 8, 512), want, rtol=0.07, atol=1e-3)


@pytest.mark.parametrize("fused, sizes", [
    (mla_reduce, dict(H=H, S=S, D=D)),
    pytest.param(reduce.reduce_natural, dict(H=H, S=S, D=D, partial="fp32"), marks=pytest.mark.recipes),
])
def test_kernels_never_see_what_stands_beyond_the_splits_of_a_token(fused, sizes):
    given = fused.inputs(4, **sizes)
    given["lengths"] = LENGTHS.clone()
    wanted = fused.reference(**given)
    for row, length in enumerate(LENGTHS.tolist()):
        given["partial"][row, :, -(-length // KEYS):] = float("nan")
        given["lse"][row, :, -(-length // KEYS):] = float("nan")
    call = compiled(fused, given, "kernel")
    for found, want in zip(call(**given), wanted):
        torch.testing.assert_close(found, want, rtol=1e-2 if found.dtype == torch.bfloat16 else 1e-5, atol=1e-6)
    empty, _ = call(**(given | dict(lengths=torch.zeros(4, dtype=torch.int32))))
    assert (empty == 0).all()


@pytest.mark.parametrize("dims", [64, 100])
def test_a_token_has_the_same_bits_however_many_splits_were_launched(dims):
    torch.manual_seed(1)
    given = reduce.reduce_natural.inputs(4, H=2, S=64, D=dims, partial="fp32")
    given["lengths"] = torch.tensor([2 * KEYS, 2 * KEYS, 5, 0], dtype=torch.int32)
    found = []
    for splits in (2, 7, 64):
        mine = given | {n: given[n][:, :, :splits].contiguous() for n in ("partial", "lse")}
        found.append(compiled(reduce.reduce_natural, mine, "kernel")(**{n: t.clone() for n, t in mine.items()}))
    for other in found[:-1]:
        assert all(torch.equal(a, b) for a, b in zip(other, found[-1], strict=True))
