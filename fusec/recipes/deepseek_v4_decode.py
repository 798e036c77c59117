"""The end of DeepSeek V4's decode attention: split-KV reduction, inverse rotary and quantisation for the grouped output projection.

Each token picked its own number of keys (its sliding window counted in); the parts are combined with a sink per head, the rotation
of the last 64 dims is undone, and blocks of 128 are quantised to e4m3 under powers of two (UE8M0: the exponent's byte alone), laid
out as the grouped projection reads them: groups of 8 heads outermost, the four exponents of a head in one int32.
"""
import torch

import fusec

from .split_kv_reduce import INF, combine, parts, used, weigh

GROUP = 8  # Heads that one product of the output projection takes.
ROTARY = 64  # The last dims, rotated in pairs.
BLOCK = 128
FP8_MAX = 448.0  # The largest finite e4m3.


def example(rows, device, H=64, S=16, D=512, Q=2, partial="bf16"):
    """`rows` requests of Q tokens each, H heads of D, S splits of 128 keys."""
    part, topk_lengths = parts(rows * Q, device, (rows, Q, H, S, D), partial, S)
    angle = torch.arange(8192, device=device)[:, None] * 10000.0 ** (-torch.arange(0, ROTARY, 2, device=device) / ROTARY)
    return dict(
        partial=part,
        lse=torch.randn(rows, Q, H, S, device=device),
        sink=torch.randn(H, device=device),
        topk_lengths=topk_lengths.view(rows, Q),
        lengths=torch.randint(Q, 8192, (rows,), device=device, dtype=torch.int32),
        cos=angle.cos(),
        sin=angle.sin(),
    )


def unrotate(x, cos, sin):
    """x [..., 64] in pairs (even, odd), turned back by the angles."""
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((even * cos + odd * sin, odd * cos - even * sin), -1).flatten(-2)


def quantise(x):
    """x [..., 128] -> (e4m3 codes, the biased exponent of their power of two [...]): the next one at or above amax / 448."""
    bits = (x.abs().amax(-1).clamp(min=1e-10) / FP8_MAX).view(torch.int32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).int()
    inverse = ((254 - exponent) << 23).view(torch.float32)
    return (x * inverse.unsqueeze(-1)).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn), exponent


@fusec.fuse(example=example)
def reduce_unrotate_quant(partial, lse, sink, topk_lengths, lengths, cos, sin):
    """partial [R, Q, H, S, D] normalised, lse [R, Q, H, S] natural, sink [H], topk_lengths [R, Q], lengths [R], cos and sin
    [positions, 32] -> (codes [H / 8, R, Q, 8 · D] e4m3, exponents [H / 8, R, Q, 8] int32, four bytes of a head each)."""
    rows, tokens, heads, splits, dim = partial.shape
    live = used(topk_lengths, splits).unsqueeze(2)
    part = torch.where(live.unsqueeze(-1), partial, 0.0)
    weight, total, top = weigh(torch.where(live, lse, -INF), -1)
    out = combine(part, weight, total + torch.exp(sink - top), 3)

    # The last half of the last block turns back by its token's position.
    position = lengths.unsqueeze(-1) - tokens + torch.arange(tokens, device=lengths.device)
    out = out.unflatten(-1, (-1, BLOCK // ROTARY, ROTARY))
    out[..., -1, -1, :] = unrotate(out[..., -1, -1, :], cos[position].unsqueeze(2), sin[position].unsqueeze(2))

    codes, exponent = quantise(out.flatten(-2))
    packed = exponent[..., 0] | exponent[..., 1] << 8 | exponent[..., 2] << 16 | exponent[..., 3] << 24
    codes = codes.view(rows, tokens, heads // GROUP, GROUP * dim).movedim(2, 0).contiguous()
    return codes, packed.view(rows, tokens, heads // GROUP, GROUP).movedim(2, 0).contiguous()
