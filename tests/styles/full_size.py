"""Whole decode steps at the sizes of published models: states that no block holds, norms over all heads, rows of a vocabulary.

STEPS: name -> (function, make(rows) of its arguments).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from .record import BF16, normal, record, slots

STEPS = {}
step = record(STEPS)


def push(window, x):
    """The window [R, C, W], moved on by one position in place: its last W inputs with x [R, C] the newest."""
    window.copy_(torch.cat([window[..., 1:], x[..., None]], -1))
    return window


# A selective state update as Mamba-2 2.7B has it: 80 heads of 64, state of 128, one group, and a norm over all heads.
@step(
    lambda r: dict(
        row=normal(r, 5120 + 5376 + 80, dtype=BF16),
        window=normal(r, 5376, 4, dtype=BF16),
        state=normal(r, 80, 64, 128),
        taps=normal(5376, 4, dtype=BF16),
        bias=normal(5376, dtype=BF16),
        log_rate=normal(80),
        skip=normal(80),
        step_bias=normal(80),
        scale=normal(5120, dtype=BF16),
    )
)
def one_group_of_80_heads(row, window, state, taps, bias, log_rate, skip, step_bias, scale):
    gate, mixed, size = row.split([5120, 5376, 80], -1)
    mixed = F.silu((push(window, mixed) * taps).sum(-1) + bias)
    x, key, query = mixed.split([5120, 128, 128], -1)
    x = x.unflatten(-1, (80, 64))
    size = F.softplus(size + step_bias.bfloat16())
    decay = (-size * log_rate.exp()).exp()
    state *= decay[:, :, None, None]
    state += torch.einsum("rh,rn,rhp->rhpn", size, key, x)
    out = torch.einsum("rhpn,rn->rhp", state.bfloat16(), query) + skip.bfloat16()[:, None] * x
    out = (out.flatten(1) * F.silu(gate)).float()
    return (out * (out.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * scale.float()).to(BF16)


# A selective state update as Mamba-1 2.8B has it: 5,120 channels with 16 states each.
@step(
    lambda r: dict(
        x=normal(r, 5120, dtype=BF16),
        gate=normal(r, 5120, dtype=BF16),
        size=normal(r, 5120, dtype=BF16),
        key=normal(r, 16, dtype=BF16),
        query=normal(r, 16, dtype=BF16),
        log_rate=normal(5120, 16),
        skip=normal(5120),
        step_bias=normal(5120),
        window=normal(r, 5120, 4, dtype=BF16),
        taps=normal(5120, 4, dtype=BF16),
        bias=normal(5120, dtype=BF16),
        state=normal(r, 5120, 16),
    )
)
def channels_with_16_states(x, gate, size, key, query, log_rate, skip, step_bias, window, taps, bias, state):
    x = F.silu((push(window, x) * taps).sum(-1) + bias)
    size = F.softplus(size + step_bias.bfloat16())
    decay = torch.exp(size[..., None] * -log_rate.exp())
    state.copy_(state * decay + x[..., None] * (size[..., None] * key[:, None, :]))
    out = (state.bfloat16() @ query[..., None]).squeeze(-1) + skip.bfloat16() * x
    return out * F.silu(gate)


# RWKV-7 2.9B: 40 heads of 64, full time mixing after projections with group norm
@step(
    lambda r: dict(
        r_=normal(r, 2560, dtype=BF16),
        w=normal(r, 2560),
        k=normal(r, 2560, dtype=BF16),
        v=normal(r, 2560, dtype=BF16),
        a=normal(r, 2560, dtype=BF16),
        g=normal(r, 2560, dtype=BF16),
        state=normal(r, 40, 64, 64),
        kk=normal(2560),
        ka=normal(2560),
        rk=normal(40, 64),
        lw=normal(2560),
        lb=normal(2560),
    )
)
def rwkv7_mix(r_, w, k, v, a, g, state, kk, ka, rk, lw, lb):
    R = r_.shape[0]
    w = torch.exp(-math.exp(-0.5) * torch.sigmoid(w))
    a = torch.sigmoid(a.float())
    key = k.float()
    kkn = F.normalize((key * kk).view(R, 40, 64), dim=-1, p=2.0)
    key = key * (1 + (a - 1) * ka)
    rr, kk2, vv = r_.float().view(R, 40, 64), key.view(R, 40, 64), v.float().view(R, 40, 64)
    vk = vv.view(R, 40, 64, 1) @ kk2.view(R, 40, 1, 64)
    ab = (-kkn).view(R, 40, 64, 1) @ (kkn * a.view(R, 40, 64)).view(R, 40, 1, 64)
    state.copy_(state * w.view(R, 40, 1, 64) + state @ ab + vk)
    out = (state @ rr.view(R, 40, 64, 1)).view(R, 2560)
    out = F.group_norm(out, num_groups=40, weight=lw, bias=lb, eps=64e-5)
    out = out + ((rr * kk2 * rk).sum(-1, keepdim=True) * vv).view(R, 2560)
    return (out * g.float()).to(BF16)


# MiniMax lightning attention decode: 64 heads x 96? 128, norm over hidden
@step(
    lambda r: dict(
        qkv=normal(r, 3 * 64 * 128, dtype=BF16),
        kv=normal(r + 3, 64, 128, 128),
        slope=torch.rand(64, 1, 1),
        gate=normal(r, 8192, dtype=BF16),
        w=normal(8192, dtype=BF16),
        slot=slots(r, 3),
    )
)
def minimax(qkv, kv, slope, gate, w, slot):
    q, k, v = F.silu(qkv.float()).view(-1, 64, 3 * 128).split(128, dim=-1)
    ratio = torch.exp(-slope)
    kv_old = kv[slot]
    kv_new = ratio * kv_old + k.unsqueeze(-1) * v.unsqueeze(-2)
    kv[slot] = kv_new
    out = torch.einsum("bhd,bhde->bhe", q, kv_new).reshape(-1, 8192)
    out = out * torch.rsqrt(out.pow(2).mean(-1, keepdim=True) + 1e-6) * w.float()
    return (torch.sigmoid(gate.float()) * out).to(BF16)


# Qwen3-Next GDN full: conv + l2norm + gate + gated norm, 16 k heads 32 v heads
@step(
    lambda r: dict(
        mixed=normal(r, 8192, dtype=BF16),
        z=normal(r, 32, 128, dtype=BF16),
        b=normal(r, 32, dtype=BF16),
        a=normal(r, 32, dtype=BF16),
        conv_state=normal(r + 3, 8192, 3, dtype=BF16),
        cw=normal(8192, 4, dtype=BF16),
        A_log=normal(32),
        dt_bias=normal(32),
        state=normal(r + 3, 32, 128, 128),
        w=normal(128, dtype=BF16),
        idx=slots(r, 3),
    )
)
def qwen_gdn(mixed, z, b, a, conv_state, cw, A_log, dt_bias, state, w, idx):
    full = torch.cat([conv_state[idx], mixed.unsqueeze(-1)], -1)
    conv_state[idx] = full[..., 1:]
    mixed = F.silu((full * cw).sum(-1))
    q, k, v = torch.split(mixed, [2048, 2048, 4096], -1)
    q, k, v = q.view(-1, 16, 128), k.view(-1, 16, 128), v.view(-1, 32, 128)
    beta = b.sigmoid()
    g = -A_log.float().exp() * F.softplus(a.float() + dt_bias)
    q, k = q.repeat_interleave(2, dim=1), k.repeat_interleave(2, dim=1)
    q = q * torch.rsqrt((q * q).sum(-1, keepdim=True) + 1e-6)
    k = k * torch.rsqrt((k * k).sum(-1, keepdim=True) + 1e-6)
    q, k, v, beta, g = [x.float() for x in (q, k, v, beta, g)]
    q = q * 128**-0.5
    S = state[idx] * g.exp()[..., None, None]
    kv = (S * k.unsqueeze(-1)).sum(-2)
    delta = (v - kv) * beta.unsqueeze(-1)
    S = S + k.unsqueeze(-1) * delta.unsqueeze(-2)
    state[idx] = S
    o = (S * q.unsqueeze(-1)).sum(-2).to(BF16)
    h = o.float()
    h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
    h = w * h.to(BF16)
    return (h * F.silu(z.float())).to(BF16)


# xLSTM 7B mlstm step: 8 heads, qk 256, v 512
@step(
    lambda r: dict(
        q=normal(r, 8, 256, dtype=BF16),
        k=normal(r, 8, 256, dtype=BF16),
        v=normal(r, 8, 512, dtype=BF16),
        i=normal(r, 8, 1),
        f=normal(r, 8, 1),
        C=normal(r, 8, 256, 512),
        nn=normal(r, 8, 256),
        m=normal(r, 8, 1),
        w=normal(4096),
    )
)
def mlstm(q, k, v, i, f, C, nn, m, w):
    f_log = F.logsigmoid(f)
    m_new = torch.max(f_log + m, i)
    f_act = torch.exp(f_log + m - m_new)
    i_act = torch.exp(i - m_new)
    qs = q.float() * 256**-0.5
    C_new = f_act[..., None] * C + i_act[..., None] * (k.float()[..., :, None] @ v.float()[..., None, :])
    n_new = f_act * nn + i_act * k.float()
    num = (qs[..., None, :] @ C_new).squeeze(-2)
    qn = (qs * n_new).sum(-1, keepdim=True)
    den = torch.max(qn.abs(), torch.exp(-m_new)) + 1e-6
    h = num / den
    C.copy_(C_new)
    nn.copy_(n_new)
    m.copy_(m_new)
    mu = h.mean(-1, keepdim=True)
    var = h.var(-1, keepdim=True, unbiased=False)
    h = (h - mu) * torch.rsqrt(var + 1e-6)
    return (h.reshape(-1, 4096) * w).to(BF16)


# sampling-ish: logits softcap + softmax over a vocabulary
@step(lambda r: dict(logits=normal(r, 129280, dtype=BF16), temp=torch.rand(r) + 0.5))
def probs(logits, temp):
    x = logits.float()
    x = 30 * torch.tanh(x / 30) / temp[:, None]
    return x.softmax(-1)


# DeepSeek style attention decode over a small paged window
@step(
    lambda r: dict(
        q=normal(r, 16, 128, dtype=BF16),
        kc=normal(64, 16, 2, 128, dtype=BF16),
        vc=normal(64, 16, 2, 128, dtype=BF16),
        table=torch.randperm(64)[: r * 8].view(r, 8),
        lens=torch.randint(1, 129, (r,)),
    )
)
def paged_window(q, kc, vc, table, lens):
    k = kc[table].flatten(1, 2).repeat_interleave(8, 2).float()
    v = vc[table].flatten(1, 2).repeat_interleave(8, 2).float()
    s = torch.einsum("rhd,rthd->rht", q.float(), k) * 128**-0.5
    live = torch.arange(128)[None] < lens[:, None]
    s = s.masked_fill(~live[:, None], float("-inf"))
    p = s.softmax(-1)
    return torch.einsum("rht,rthd->rhd", p, v).to(BF16)
