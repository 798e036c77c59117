"""Norms, rotary embeddings, activations and quantisation, in the styles of public test and model files.

STEPS: name -> (function, make(rows) of its arguments).
"""

from __future__ import annotations

import dataclasses
import math

import torch
import torch.nn.functional as F

from .record import BF16, normal, record, slots

STEPS = {}
step = record(STEPS)


@step(lambda r: dict(x=normal(r, 24, dtype=BF16), z=normal(r, 24, dtype=BF16), weight=normal(24), bias=normal(24)))
def rmsnorm_gated_ref(x, z, weight, bias, eps=1e-6, group_size=8, norm_before_gate=False, upcast=True):
    dtype = x.dtype
    weight = weight.float()
    bias = bias.float() if bias is not None else None
    if upcast:
        x = x.float()
        z = z.float() if z is not None else z
    if z is not None and not norm_before_gate:
        x = x * F.silu(z)
    xg = x.reshape(*x.shape[:-1], x.shape[-1] // group_size, group_size)
    rstd = 1 / torch.sqrt((xg.square()).mean(dim=-1, keepdim=True) + eps)
    out = (xg * rstd).reshape(x.shape) * weight
    if bias is not None:
        out = out + bias
    if z is not None and norm_before_gate:
        out *= F.silu(z)
    return out.to(dtype)


def rotate_half(x):
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


@step(
    lambda r: dict(
        q=normal(r, 4, 8, dtype=BF16), k=normal(r, 2, 8, dtype=BF16), inv_freq=torch.rand(4), position_ids=torch.randint(100, (r,))
    )
)
def hf_rope(q, k, inv_freq, position_ids):
    freqs = position_ids[:, None].float() * inv_freq[None, :]
    emb = torch.cat((freqs, freqs), dim=-1)
    cos, sin = emb.cos().to(q.dtype).unsqueeze(1), emb.sin().to(q.dtype).unsqueeze(1)
    return (q * cos) + (rotate_half(q) * sin), (k * cos) + (rotate_half(k) * sin)


@step(lambda r: dict(q=normal(r, 4 * 12, dtype=BF16), cos_sin=normal(64, 8), pos=torch.randint(64, (r,))))
def partial_rope(q, cos_sin, pos, rotary_dim=8, neox=False):
    q = q.view(q.shape[0], -1, 12)
    rot, rest = q[..., :rotary_dim], q[..., rotary_dim:]
    cos, sin = cos_sin.index_select(0, pos).chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(-2).to(q.dtype), sin.unsqueeze(-2).to(q.dtype)
    x1, x2 = rot[..., ::2], rot[..., 1::2]
    o = torch.stack((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1).flatten(-2)
    return torch.cat((o, rest), dim=-1).flatten(1)


@step(lambda r: dict(q=normal(r, 4, 8), table=normal(50, 8), pos=torch.randint(50, (r,))))
def rope_interleaved_repeat(q, table, pos):
    cos, sin = table[pos][:, None, :].chunk(2, -1)
    cos, sin = cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)
    rot = torch.stack([-q[..., 1::2], q[..., ::2]], -1).reshape(q.shape)
    return q * cos + rot * sin


@step(lambda r: dict(x=normal(r, 2, 8), t_=torch.randint(0, 100, (r,))))
def sinusoid(x, t_):
    inv = 1.0 / (10000 ** (torch.arange(0, 8, 2) / 8.0))
    th = t_[:, None] * inv
    c, s = th.cos()[:, None], th.sin()[:, None]
    a, b = x[..., ::2], x[..., 1::2]
    out = torch.empty_like(x)
    out[..., ::2] = a * c - b * s
    out[..., 1::2] = a * s + b * c
    return out


@step(lambda r: dict(x=normal(r, 32, dtype=BF16)))
def group_quant(x, group_size=8, eps=1e-10):
    finfo = torch.finfo(torch.float8_e4m3fn)
    fp8_min, fp8_max = finfo.min, finfo.max
    x_ = x.reshape(x.numel() // group_size, group_size)
    amax = x_.abs().max(dim=-1, keepdim=True)[0].clamp(min=eps).to(torch.float32)
    x_s = amax / fp8_max
    x_q = (x_ / x_s).clamp(min=fp8_min, max=fp8_max).to(torch.float8_e4m3fn).reshape(x.shape)
    return x_q, x_s.reshape(x.shape[:-1] + (x.shape[-1] // group_size,))


@step(lambda r: dict(x=normal(r, 32, dtype=BF16)))
def group_quant_ue8m0(x):
    xv = x.view(x.shape[0], -1, 8)
    amax = xv.abs().float().amax(dim=2).clamp(1e-4)
    sf = torch.pow(2.0, torch.ceil(torch.log2(amax / 448.0)))
    return (xv * (1.0 / sf.unsqueeze(2))).to(torch.float8_e4m3fn).view(x.shape), sf


@step(lambda r: dict(x=normal(r, 32, dtype=BF16), w=normal(32, dtype=BF16)))
def norm_int8(x, w):
    h = F.rms_norm(x, (32,), w, 1e-6)
    s = h.float().abs().max(-1, keepdim=True).values / 127
    return torch.round(h.float() / s).clamp(-128, 127).to(torch.int8), s


@step(lambda r: dict(x=normal(r, 33), res=normal(r, 33), w=normal(33), b=normal(33)))
def add_layernorm(x, res, w, b):
    res += x
    m = res.mean(-1, keepdim=True)
    v = ((res - m) ** 2).mean(-1, keepdim=True)
    return (res - m) / (v + 1e-5).sqrt() * w + b, res


@step(lambda r: dict(x=normal(r, 2, 16, dtype=BF16), w=normal(16)))
def gemma_norm(x, w):
    out = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)
    return (out * (1.0 + w.float())).type_as(x)


@step(lambda r: dict(hidden=normal(r, 32, dtype=BF16), res=normal(r, 32, dtype=BF16), w=normal(32, dtype=BF16)))
def vllm_fused_add_norm(hidden, res, w):
    x = hidden.to(torch.float32) + res.to(torch.float32)
    res.copy_(x.to(BF16))
    x = x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-6)
    return x.to(BF16) * w


@step(lambda r: dict(x=normal(r, 48, dtype=BF16)))
def swiglu_oai(x, alpha=1.702, limit=7.0):
    x_glu, x_lin = x[..., ::2], x[..., 1::2]
    x_glu = x_glu.clamp(min=None, max=limit)
    x_lin = x_lin.clamp(min=-limit, max=limit)
    return x_glu * torch.sigmoid(alpha * x_glu) * (x_lin + 1)


@dataclasses.dataclass
class Cfg:
    heads: int = 2
    dim: int = 6
    eps: float = 1e-6
    act: str = "silu"
    scale: float | None = None


@step(lambda r: dict(x=normal(r, 12), z=normal(r, 12), w=normal(6), cfg=Cfg()))
def with_config(x, z, w, cfg):
    x = x.view(-1, cfg.heads, cfg.dim)
    s = cfg.scale or cfg.dim**-0.5
    var = x.pow(2).mean(-1, keepdim=True)
    x = x * torch.rsqrt(var + cfg.eps) * w * s
    act = {"silu": F.silu, "sigmoid": torch.sigmoid}[cfg.act]
    return x.flatten(1) * act(z)


@step(lambda r: dict(x=normal(r, 64, dtype=BF16), s=torch.full((1,), 0.5)))
def quant_packed_int4(x, s):
    q = torch.round(x.float() / s).clamp(-8, 7).to(torch.int32) + 8
    lo, hi = q[:, 0::2], q[:, 1::2]
    return (lo | (hi << 4)).to(torch.uint8)


@step(lambda r: dict(p=torch.randint(0, 255, (r, 16), dtype=torch.uint8), s=torch.rand(r, 2)))
def dequant_int4(p, s):
    lo, hi = (p & 15).to(torch.int8) - 8, (p >> 4).to(torch.int8) - 8
    w = torch.stack([lo, hi], -1).flatten(1).float()
    return (w.view(-1, 2, 16) * s[..., None]).flatten(1).to(BF16)


@step(lambda r: dict(x=normal(r, 4, 16), g=normal(r, 4), w=normal(4, 16)))
def mixer(x, g, w):
    p = F.softmax(g, -1)
    y = torch.bmm(p.unsqueeze(1), x).squeeze(1)
    y = F.layer_norm(y, (16,))
    return y[:, None] * w + x


@step(lambda r: dict(logits=normal(r, 33), bias=normal(33), temp=torch.rand(r) + 0.5))
def scaled_softmax(logits, bias, temp):
    z = (logits + bias) / temp.unsqueeze(1)
    z = z - z.max(dim=-1, keepdim=True)[0]
    return (z.exp() / z.exp().sum(-1, keepdim=True)), torch.logsumexp(z, -1), F.log_softmax(z, -1)


@step(lambda r: dict(x=normal(r, 3, 16), sc=normal(r, 3)))
def weighted_sum_norms(x, sc):
    y = (x * sc.softmax(-1)[..., None]).sum(1)
    return y / y.norm(dim=-1, keepdim=True).clamp_min(1e-12), y.pow(3).mean(-1)


@step(lambda r: dict(x=normal(r, 2, 2, 8), f=normal(r, 2, 8)))
def complex_by_hand(x, f):
    re, im = x[:, :, 0], x[:, :, 1]
    c, s = torch.cos(f), torch.sin(f)
    return torch.stack([re * c - im * s, re * s + im * c], 2)


@step(lambda r: dict(x=normal(r, 3, 8), y=normal(r, 3, 8)))
def kron_like(x, y):
    o = x.new_zeros(x.shape[0], 3, 2, 8)
    o[:, :, 0] = x
    o[:, :, 1] = y
    return o.flatten(2).contiguous()


@step(lambda r: dict(x=normal(r, 3, 4, 8), w=normal(4, 8)))
def ellipsis_einsum(x, w):
    return torch.einsum("...hd,hd->...h", x, w)


@step(lambda r: dict(x=normal(r, 16), w=normal(16, 12), b=normal(12)))
def small_linear(x, w, b):
    return F.relu(x @ w + b)


@step(lambda r: dict(x=normal(r, 16), w1=normal(4, 16), u=normal(r, 4, 16)))
def lora_gate(x, w1, u):
    return torch.tanh(F.linear(x, w1)).unsqueeze(-1) * u


@step(lambda r: dict(x=normal(r, 8), a=normal(r, 8), b=normal(r, 8)))
def nested_where(x, a, b):
    return torch.where(
        (a > 0) & (b < 0) | (x.abs() > 1), torch.maximum(a, b), torch.where(x > 0, a.clamp(-1, 1), b.sign() * x.exp().clamp_max(3))
    )


@step(lambda r: dict(x=normal(r, 12)))
def lots_of_unary(x):
    p = x.abs() + 0.1
    return (
        torch.log1p(p)
        + torch.expm1(-p)
        + p.log2()
        + torch.exp2(x)
        + p.rsqrt()
        + p.reciprocal()
        + x.floor()
        + F.softplus(x, beta=2.0, threshold=5.0)
        + F.logsigmoid(x)
        + F.relu(x) ** 2
        + F.hardtanh(x)
        + torch.erf(x)
        + F.mish(x)
        + F.elu(x)
        + F.leaky_relu(x, 0.1)
        + x.square().sqrt()
        + F.softsign(x)
        + F.tanhshrink(x)
    )


@step(lambda r: dict(x=normal(r, 12), y=normal(r, 12)))
def lots_of_reduce(x, y):
    return (
        x.norm(dim=-1),
        x.var(-1),
        x.std(-1, unbiased=False),
        x.amin(-1),
        x.prod(-1),
        (x > 0).any(-1),
        (x > y).all(-1),
        (x * y).cumsum(-1),
        F.cosine_similarity(x, y, dim=-1),
        x.max(-1)[0],
    )


@step(lambda r: dict(x=normal(r, 2, 3, 8), mask=torch.rand(r, 3) > 0.3))
def masked_mean(x, mask):
    m = mask[:, None, :, None].to(x.dtype)
    return (x * m).sum(2) / m.sum(2).clamp(min=1)


@step(lambda r: dict(q=normal(r, 8, 48), cos=normal(r, 16), sin=normal(r, 16)))
def rope_then_halves(q, cos, sin):
    rot, rest = q[..., :32], q[..., 32:]
    c, s = cos[:, None], sin[:, None]
    a, b = rot[..., ::2], rot[..., 1::2]
    rot = torch.stack([a * c - b * s, a * s + b * c], -1).flatten(-2)
    q = torch.cat([rot, rest], -1)
    return q[..., :24] * 2, q[..., 24:] + 1


@step(lambda n: dict(x=normal(n, 4, 128, dtype=BF16), cos=normal(n, 64), sin=normal(n, 64)))
def rope_written_by_steps(x, cos, sin):
    out = torch.empty_like(x)
    a, b = x[..., ::2].float(), x[..., 1::2].float()
    out[..., ::2] = a * cos[:, None] - b * sin[:, None]
    out[..., 1::2] = a * sin[:, None] + b * cos[:, None]
    return out


@step(lambda n: dict(x=normal(n, 96), y=normal(n, 101)))
def steps_across_groups(x, y):
    a, b, c = x[:, 0::3], x[:, 1::3], x[:, 2::3]
    mixed = torch.stack((a * b, b * c, c * a), -1).flatten(1)
    return mixed[:, ::2] + mixed[:, 1::2], (y / y.norm(dim=-1, keepdim=True))[:, 1::4]


def rotated(x, freqs_cis):
    pairs = torch.view_as_complex(x.float().view(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * freqs_cis.view(x.size(0), 1, pairs.size(-1))).flatten(2).to(x.dtype)


@step(lambda n: dict(q=normal(n, 4, 48, dtype=BF16), pe=normal(n, 1, 16, dtype=BF16),
                     freqs_cis=torch.polar(torch.ones(64, 8), normal(64, 8)), pos=slots(n)))
def rope_complex_argument(q, pe, freqs_cis, pos):
    nope, rope = q.split([32, 16], dim=-1)
    return torch.cat([nope, rotated(rope, freqs_cis[pos])], -1), rotated(pe, freqs_cis[pos])


@step(lambda n: dict(x=normal(n, 32), angle=normal(n, 16), state=torch.complex(normal(n, 16), normal(n, 16))))
def complex_state(x, angle, state):
    state.copy_(state * torch.exp(1j * angle) * 0.9 + torch.complex(x[:, :16], x[:, 16:]))
    return (state * state.conj()).real.sum(-1), state.imag / 2


@step(lambda n: dict(q=normal(n, 2, 32, dtype=BF16), positions=torch.randint(64, (3, n)), table=normal(64, 32)))
def rope_of_three_positions(q, positions, table, sections=(4, 6, 6)):
    cos, sin = table[positions].chunk(2, dim=-1)
    cos = torch.cat([m[i] for i, m in enumerate(cos.split(list(sections), dim=-1))], dim=-1).unsqueeze(1)
    sin = torch.cat([m[i] for i, m in enumerate(sin.split(list(sections), dim=-1))], dim=-1).unsqueeze(1)
    a, b = q.float().chunk(2, dim=-1)
    q.copy_(torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1))
    return (q.float() ** 2).sum(-1)


@step(
    lambda n: dict(
        hidden=normal(n, 24, dtype=BF16), positions=torch.randint(30, (n + 5,)), table=normal(30, 12),
        out=normal(n + 5, 24, dtype=BF16), slot=torch.cat([slots(n), torch.zeros(5, dtype=torch.int64)]),
        cache=normal(n + 4, 24, dtype=BF16),
    )
)
def buffers_longer_than_the_batch(hidden, positions, table, out, slot, cache):
    n = hidden.size(0)
    cos, sin = table[positions[:n]].chunk(2, -1)
    a, b = hidden.view(n, 2, 12).float().chunk(2, -1)
    y = torch.cat([a * cos[:, None] - b * sin[:, None], b * cos[:, None] + a * sin[:, None]], -1).flatten(1).to(hidden.dtype)
    cache[slot[:n]] = y
    out[:n] = y
    return y.float().norm(dim=-1)


@step(lambda n: dict(x=normal(n, 48), mode=torch.randint(0, 3, (n,))))
def activation_by_row(x, mode):
    choices = torch.stack([F.relu(x), F.silu(x), torch.tanh(x)], 0)
    return choices.gather(0, mode.view(1, -1, 1).expand(1, -1, 48)).squeeze(0)


@step(lambda n: dict(x=normal(n, 96, dtype=BF16), res=normal(n, 48, dtype=BF16)))
def gelu_new_gate(x, res):
    gate, up = x.chunk(2, -1)
    gate = 0.5 * gate * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (gate + 0.044715 * torch.pow(gate, 3.0))))
    return res + gate * up
