"""Convolutions over a window of past inputs, in the styles of public test and model files.

STEPS: name -> (function, make(rows) of its arguments).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .record import BF16, normal, record, slots

STEPS = {}
step = record(STEPS)


@step(lambda r: dict(x=normal(r, 12, dtype=BF16), conv_state=normal(r, 12, 5, dtype=BF16), weight=normal(12, 4), bias=normal(12)))
def conv_long_state(x, conv_state, weight, bias, activation="silu"):
    dtype_in = x.dtype
    batch, dim = x.shape
    width = weight.shape[1]
    conv_state.copy_(torch.roll(conv_state, shifts=-1, dims=-1))
    conv_state[:, :, -1] = x
    out = torch.sum(conv_state[:, :, -width:] * weight, dim=-1)
    if bias is not None:
        out = out + bias
    return (out if activation is None else F.silu(out)).to(dtype=dtype_in)


@step(
    lambda r: dict(x=normal(r, 12, 2, dtype=BF16), conv_state=normal(r, 12, 3, dtype=BF16), weight=normal(12, 4), bias=normal(12))
)
def conv_update_seqlen(x, conv_state, weight, bias):
    dtype_in = x.dtype
    batch, dim, seqlen = x.shape
    _width, state_len = weight.shape[1], conv_state.shape[-1]
    x_new = torch.cat([conv_state, x], dim=-1).to(weight.dtype)
    conv_state.copy_(x_new[:, :, -state_len:])
    out = F.conv1d(x_new, weight.unsqueeze(1), bias, padding=0, groups=dim)[:, :, -seqlen:]
    return F.silu(out).to(dtype_in)


@step(lambda r: dict(x=normal(r, 1, 24), cache=normal(r + 4, 24, 4), weight=normal(24, 1, 4), bias=normal(24), ids=slots(r)))
def conv_short_cache(x, cache, weight, bias, ids):
    xs = x.transpose(1, 2)
    cache.shape[-1]
    st = cache[ids]
    st = torch.cat([st[..., 1:], xs], -1)
    cache[ids] = st
    y = F.conv1d(F.pad(st, (0, 0)), weight, bias, groups=24)
    return F.silu(y[..., -1:]).transpose(1, 2)


@step(lambda r: dict(x=normal(r, 3, 8), hist=normal(r, 3, 8, 3), w=normal(3, 8, 4)))
def conv_per_head_loop(x, hist, w):
    acc = torch.zeros_like(x)
    for j in range(3):
        acc = acc + hist[..., j] * w[..., j]
    acc += x * w[..., 3]
    new = torch.empty_like(hist)
    new[..., :-1] = hist[..., 1:]
    new[..., -1] = x
    hist.copy_(new)
    return acc * torch.sigmoid(acc)


@step(
    lambda r: dict(
        x=normal(r, 6, 1, dtype=BF16),
        conv_state=normal(r, 6, 5, dtype=BF16),
        weight=normal(6, 4),
        bias=normal(6),
        cache_seqlens=torch.randint(0, 20, (r,), dtype=torch.int32),
    )
)
def conv_circular(x, conv_state, weight, bias, cache_seqlens):
    dtype_in = x.dtype
    batch, dim, seqlen = x.shape
    width = weight.shape[1]
    state_len = conv_state.shape[-1]
    width_idx = torch.arange(-(width - 1), 0, dtype=torch.long).unsqueeze(0) + cache_seqlens.unsqueeze(1)
    width_idx = torch.remainder(width_idx, state_len).unsqueeze(1).expand(-1, dim, -1)
    x_new = torch.cat([conv_state.gather(2, width_idx), x], dim=-1).to(weight.dtype)
    copy_idx = torch.arange(seqlen, dtype=torch.long).unsqueeze(0) + cache_seqlens.unsqueeze(1)
    copy_idx = torch.remainder(copy_idx, state_len).unsqueeze(1).expand(-1, dim, -1)
    conv_state.scatter_(2, copy_idx, x)
    out = F.conv1d(x_new, weight.unsqueeze(1), bias, padding=0, groups=dim)[:, :, -seqlen:]
    return F.silu(out).to(dtype=dtype_in)


@step(lambda r: dict(x=normal(r, 8), states=[normal(r, 8, 3), normal(r, 8, 3)], ws=[normal(8, 4), normal(8, 4)]))
def list_of_states(x, states, ws):
    for s, w in zip(states, ws):
        full = torch.cat([s, x[..., None]], -1)
        s.copy_(full[..., 1:])
        x = x + F.silu((full * w).sum(-1))
    return x


@step(lambda r: dict(x=normal(r, 8), m=normal(r, 3, 8), mask=torch.rand(r) > 0.5))
def conditional_rows(x, m, mask):
    new = torch.cat([m[:, 1:], x[:, None]], 1)
    m.copy_(torch.where(mask[:, None, None], new, m))
    return torch.where(mask[:, None], m.mean(1), x)


@step(lambda r: dict(x=normal(r, 16), xp=normal(r, 16), mu=normal(5, 16)))
def token_shift(x, xp, mu):
    d = xp - x
    r_, w, k, v, g = (x + d * m for m in mu)
    xp.copy_(x)
    return r_, w.tanh(), k * v, torch.sigmoid(g)


@step(
    lambda r: dict(
        x=normal(r, 2, 12, dtype=BF16),
        state=normal(r + 3, 4, 12, dtype=BF16),
        w=normal(4, 12, dtype=BF16),
        b=normal(12, dtype=BF16),
        idx=slots(r, 3, torch.int32),
        accepted=torch.randint(1, 3, (r,), dtype=torch.int32),
    )
)
def conv_after_accepted_tokens(x, state, w, b, idx, accepted):
    width, slot = w.shape[0], idx.long()
    place = (accepted.long() - 1)[:, None] + torch.arange(width - 1)
    old = torch.gather(state[slot], 1, place[..., None].expand(-1, -1, x.size(-1)))
    seq = torch.cat([old, x], 1)
    outs = []
    for t in range(x.shape[1]):
        acc = b.float()
        for j in range(width):
            acc = acc + seq[:, t + j].float() * w[j].float()
        outs.append(acc * torch.sigmoid(acc))
    state[slot] = seq[:, 1:]
    return torch.stack(outs, 1).to(x.dtype)
