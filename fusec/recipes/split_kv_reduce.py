"""Split-KV reduction: partial results of one attention, each over some of the keys, become the result over all of them.

Every variant is the same mean of the parts, weighted by what their keys weigh: exp(lse). They differ in what engines hand over:
FlashInfer's base-2 logarithms with the splits outermost, TensorRT-LLM's unnormalised sums with (maximum, sum), rows of tokens by
heads. A split covers KEYS keys; how many of the splits a token has is read from its length on the device. The others are not read.
A token without keys gets 0 and a logarithm of -inf, and what stands in a part without weight, NaN included, does not matter.
"""
import torch

import fusec

KEYS = 128  # Of one split.
TOPK = 2048  # Keys that sparse attention picks at most.
SCALE = 192 ** -0.5  # Of the scores, before their softmax.
LOG2_E = 1.4426950408889634
FP8_MAX = 448.0  # The largest finite e4m3.
INF = float("inf")

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def used(lengths, splits):
    """lengths [T] of the keys -> [T, splits], whether the token has that split."""
    count = (lengths + KEYS - 1) // KEYS
    return torch.arange(splits, device=lengths.device) < count.unsqueeze(-1)


def weigh(lse, dim, exp=torch.exp):
    """Each part's weight beside the heaviest, what they sum to, and the heaviest one's logarithm. A part of -inf weighs nothing."""
    top = lse.amax(dim, keepdim=True)
    top = torch.where(top == -INF, 0.0, top)
    weight = exp(lse - top)
    return weight, weight.sum(dim), top.squeeze(dim)


def combine(part, weight, total, dim):
    """Σ weight · part / total over `dim`, fp32; 0 where nothing has weight."""
    part = torch.where(weight.unsqueeze(-1) > 0, part.float(), 0.0)
    out = (weight.unsqueeze(-1) * part).sum(dim)
    return out / torch.where(total > 0, total, 1.0).unsqueeze(-1)


def parts(rows, device, shape, dtype, S):
    """Partial results of `shape`, and lengths of `rows` tokens of which one has no keys."""
    lengths = torch.randint(1, S * KEYS + 1, (rows,), device=device, dtype=torch.int32)
    lengths[rows // 2] = 0
    return torch.randn(*shape, device=device).to(DTYPES[dtype]), lengths


def example_natural(rows, device, H=16, S=32, D=512, partial="bf16"):
    """`rows` tokens of H heads, S splits of D."""
    part, lengths = parts(rows, device, (rows, H, S, D), partial, S)
    return dict(partial=part, lse=torch.randn(rows, H, S, device=device), lengths=lengths)


@fusec.fuse(example=example_natural)
def reduce_natural(partial, lse, lengths):
    """partial [T, H, S, D] normalised, lse [T, H, S] natural, lengths [T] -> ([T, H, D] of partial's dtype, lse [T, H])."""
    live = used(lengths, lse.shape[-1]).unsqueeze(1)
    part = torch.where(live.unsqueeze(-1), partial, 0.0)
    weight, total, top = weigh(torch.where(live, lse, -INF), -1)
    return combine(part, weight, total, 2).to(partial.dtype), top + total.log()


def example_base2(rows, device, H=16, S=32, D=512, partial="bf16"):
    """`rows` tokens of H heads, S splits of D, splits outermost."""
    part, lengths = parts(rows, device, (S, rows, H, D), partial, S)
    return dict(partial=part, lse=torch.randn(S, rows, H, device=device), lengths=lengths)


@fusec.fuse(example=example_base2)
def reduce_base2(partial, lse, lengths):
    """partial [S, T, H, D] normalised, lse [S, T, H] base 2, lengths [T] -> ([T, H, D] fp16, lse [T, H] base 2)."""
    live = used(lengths, lse.shape[0]).t().unsqueeze(-1)
    part = torch.where(live.unsqueeze(-1), partial, 0.0)
    weight, total, top = weigh(torch.where(live, lse, -INF), 0, torch.exp2)
    return combine(part, weight, total, 0).half(), top + total.log2()


def example_max_sum(rows, device, H=16, S=16, D=512, partial="fp32"):
    """`rows` tokens of H heads, S splits of D: the largest raw score of each split and the sum of its exponentials."""
    part, lengths = parts(rows, device, (rows, S, H, D), partial, S)
    return dict(
        partial=30 * part,
        top=10 * torch.randn(rows, S, H, device=device),
        total=1 + 30 * torch.rand(rows, S, H, device=device),
        lengths=lengths * 2,  # Some beyond what sparse attention picks.
        sink=torch.randn(H, device=device),
    )


@fusec.fuse(example=example_max_sum)
def reduce_max_sum(partial, top, total, lengths, sink):
    """partial [T, S, H, D] unnormalised, top and total [T, S, H], lengths [T], sink [H], a logit of no key -> [T, H, D] bf16.

    Of a sequence at most TOPK keys were picked."""
    live = used(lengths.clamp(max=TOPK), top.shape[1]).unsqueeze(-1)
    part = torch.where(live.unsqueeze(-1), partial, 0.0)
    weight, _, highest = weigh(torch.where(live, top * (SCALE * LOG2_E), -INF), 1, torch.exp2)
    keys = torch.where(weight > 0, weight * total, 0.0).sum(1)
    return combine(part, weight, keys + torch.exp2(sink * LOG2_E - highest), 1).to(torch.bfloat16)


def example_grouped(rows, device, H=16, S=16, D=512, partial="bf16"):
    """`rows` tokens of H heads, each head of a token a row of its own."""
    part, lengths = parts(rows, device, (rows * H, S, D), partial, S)
    return dict(
        partial=part,
        lse=torch.randn(rows * H, S, device=device),
        lengths=lengths,
        topk_lengths=torch.randint(0, TOPK + KEYS, (rows,), device=device, dtype=torch.int32),
        sink=torch.randn(H, device=device),
        scale=torch.full((1,), 0.01, device=device),
    )


@fusec.fuse(example=example_grouped)
def reduce_grouped(partial, lse, lengths, topk_lengths, sink, scale):
    """partial [T·H, S, D], lse [T·H, S] natural, lengths and topk_lengths [T], sink [H], scale [1] of the result
    -> ([T, H·D] e4m3, lse [T, H] without the sink): each token picked its own number of keys."""
    tokens, heads, (_, splits, dim) = lengths.shape[0], sink.shape[0], partial.shape
    live = used(torch.minimum(lengths, topk_lengths), splits).unsqueeze(1)
    part = torch.where(live.unsqueeze(-1), partial.view(tokens, heads, splits, dim), 0.0)
    weight, total, top = weigh(torch.where(live, lse.view(tokens, heads, splits), -INF), -1)
    out = combine(part, weight, total + torch.exp(sink - top), 2) / scale
    return out.clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn).flatten(1), top + total.log()
