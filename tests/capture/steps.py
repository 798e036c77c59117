"""Functions in the style of decode steps, for the tests of capture; `make(rows)` gives example arguments."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

BF16 = torch.bfloat16


def normal(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(dtype)


def slots(rows):
    return torch.randperm(rows + 3)[:rows]


def unit(x):
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def delta_rule(x, weight, conv_state, gate, beta, state, slot, out_gate, norm_weight):
    """Convolution over paged history, a gated delta rule on a paged [value, key] state, a gated norm."""
    rows, heads, dim = out_gate.shape
    full = torch.cat([conv_state.index_select(0, slot), x.unsqueeze(-1)], dim=-1)
    conv_state.index_copy_(0, slot, full[..., 1:])
    y = F.silu((full.float() * weight).sum(-1)).to(BF16)
    q, k, v = y.float().view(rows, 3, heads, dim).unbind(1)
    q, k = unit(q) * dim**-0.5, unit(k)
    h = state.index_select(0, slot) * torch.exp(-gate.float().abs())[..., None, :]
    delta = (v - torch.einsum("rhvk,rhk->rhv", h, k)) * beta.sigmoid()[..., None]
    h = h + delta[..., :, None] * k[..., None, :]
    state.index_copy_(0, slot, h)
    o = torch.einsum("rhvk,rhk->rhv", h, q).to(BF16).float()
    o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + 1e-5) * norm_weight
    return (o * torch.sigmoid(out_gate.float())).to(BF16).unsqueeze(0)


def delta_rule_example(rows, heads=2, dim=8):
    channels = 3 * heads * dim
    return dict(
        x=normal(rows, channels, dtype=BF16), weight=normal(channels, 4), gate=normal(rows, heads, dim, dtype=BF16),
        conv_state=normal(rows + 3, 3, channels, dtype=BF16).transpose(1, 2), beta=normal(rows, heads), slot=slots(rows),
        state=normal(rows + 3, heads, dim, dim), norm_weight=normal(dim),
        out_gate=normal(rows, heads, dim, dtype=BF16))  # fmt: skip


def linear_attention(q, k, v, g, pool, idx):
    """Paged by plain indexing, a state of unequal sides."""
    h = pool[idx] * g.exp().unsqueeze(-1) + k.unsqueeze(-1) * v.unsqueeze(-2)
    pool[idx] = h
    return (q.unsqueeze(-2) @ h).squeeze(-2)


def linear_attention_example(rows):
    return dict(q=normal(rows, 2, 6), k=normal(rows, 2, 6), v=normal(rows, 2, 10), g=-normal(rows, 2, 6).abs(),
                pool=normal(rows + 3, 2, 6, 10), idx=slots(rows) - rows - 3)  # fmt: skip


def window_conv(x, window, weight):
    """A window that shifts in place over itself."""
    full = torch.cat([window, x.unsqueeze(-1)], -1)
    window.copy_(full[:, :, 1:])
    return F.silu((full * weight).sum(-1))


def window_conv_example(rows):
    return dict(x=normal(rows, 20), window=normal(rows, 20, 3), weight=normal(20, 4))


def add_norm_quant(x, residual, weight):
    """Residual in place, two row reductions, an fp8 result."""
    residual += x
    h = residual.float()
    h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6) * weight
    scale = (h.abs().amax(-1, keepdim=True) / 448.0).clamp(min=1e-12)
    return (h / scale).to(torch.float8_e4m3fn), scale


def add_norm_quant_example(rows):
    return dict(x=normal(rows, 64, dtype=BF16), residual=normal(rows, 64, dtype=BF16), weight=normal(64))


def conv_call(x, history, weight, bias=None, activation="silu"):
    """By conv1d, with asserts and early branches on Python values."""
    assert activation in (None, "silu")
    squeeze = x.dim() == 2
    if squeeze:
        x = x.unsqueeze(-1)
    batch, dim, length = x.shape
    assert history.shape == (batch, dim, weight.shape[1] - 1), "history"
    full = torch.cat([history, x], dim=-1).to(weight.dtype)
    history.copy_(full[:, :, -history.shape[-1] :])
    out = F.conv1d(full, weight.unsqueeze(1), bias, padding=0, groups=dim)[:, :, -length:]
    out = out if activation is None else F.silu(out)
    return (out.squeeze(-1) if squeeze else out).to(x.dtype)


def conv_call_example(rows):
    return dict(x=normal(rows, 6, 2), history=normal(rows, 6, 3), weight=normal(6, 4), bias=normal(6))


def circular_conv(x, ring, weight, position):
    """History in a ring whose place differs by row: gather and scatter with an index per row."""
    batch, dim = x.shape
    taps = (torch.arange(-3, 0)[None] + position[:, None]) % ring.shape[-1]
    full = torch.cat([ring.gather(2, taps[:, None].expand(-1, dim, -1)), x[..., None]], -1)
    ring.scatter_(2, (position % ring.shape[-1])[:, None, None].expand(-1, dim, 1), x[..., None])
    return (full * weight).sum(-1)


def circular_conv_example(rows):
    return dict(x=normal(rows, 6), ring=normal(rows, 6, 5), weight=normal(6, 4), position=torch.randint(0, 9, (rows,)))


def state_space(state, x, dt, A, B, C, D=None, z=None, bias=None):
    """Groups of B and C, optional skip and gate, the state of the batch in place."""
    if bias is not None:
        dt = dt + bias
    dt = F.softplus(dt)
    heads, groups = x.shape[1], B.shape[1]
    B, C = (t.repeat_interleave(heads // groups, dim=1) for t in (B, C))
    state.copy_(state * torch.exp(dt[..., None] * A) + (dt[..., None] * B[:, :, None]) * x[..., None])
    out = torch.einsum("bhdn,bhn->bhd", state.to(C.dtype), C)
    if D is not None:
        out += x * D
    return out if z is None else out * F.silu(z)


def state_space_example(rows):
    return dict(state=normal(rows, 4, 6, 8), x=normal(rows, 4, 6), dt=normal(rows, 4, 6), A=-normal(4, 6, 8).abs(),
                B=normal(rows, 2, 8), C=normal(rows, 2, 8), D=normal(4, 6), z=normal(rows, 4, 6), bias=normal(4, 6))  # fmt: skip


def stabilised(q, k, v, i, f, C, n, m):
    """A running maximum and a normaliser beside the state, written in three spellings."""
    top = torch.maximum(F.logsigmoid(f) + m, i)
    forget, enter = torch.exp(F.logsigmoid(f) + m - top), torch.exp(i - top)
    k = k / math.sqrt(k.shape[-1])
    C[:] = forget[..., None, None] * C + enter[..., None, None] * (k[..., :, None] * v[..., None, :])
    n[...] = forget[..., None] * n + enter[..., None] * k
    m.copy_(top)
    return torch.einsum("bhk,bhkv->bhv", q, C) / torch.einsum("bhk,bhk->bh", q, n).abs().clamp(min=1.0)[..., None]


def stabilised_example(rows):
    return dict(q=normal(rows, 2, 6), k=normal(rows, 2, 6), v=normal(rows, 2, 6), i=normal(rows, 2), f=normal(rows, 2),
                C=normal(rows, 2, 6, 6), n=normal(rows, 2, 6), m=normal(rows, 2))  # fmt: skip


def tokens(q, k, v, beta, S):
    """Several tokens a row, results written into a slice each."""
    o, h = torch.empty_like(v), S.clone()
    for t in range(q.shape[1]):
        h = h + k[:, t, :, :, None] * (beta[:, t, :, None] * (v[:, t] - torch.einsum("bhkv,bhk->bhv", h, k[:, t])))[:, :, None]
        o[:, t] = torch.einsum("bhkv,bhk->bhv", h, q[:, t])
    S.copy_(h)
    return o


def tokens_example(rows):
    return dict(
        q=normal(rows, 3, 2, 6), k=normal(rows, 3, 2, 6), v=normal(rows, 3, 2, 6), beta=normal(rows, 3, 2), S=normal(rows, 2, 6, 6)
    )


def merge(o, lse):
    """Partial results and their log-sum-exps; nothing at all gives 0 and −inf."""
    top = lse.max(dim=1, keepdim=True).values
    top = torch.where(torch.isinf(top), torch.zeros_like(top), top)
    w = torch.exp(lse - top)
    total = w.sum(1)
    out = (torch.where(w[..., None] > 0, o, 0.0) * w[..., None]).sum(1) / total.clamp_min(1e-30)[..., None]
    return torch.where((total > 0)[..., None], out, 0.0), torch.where(total > 0, total.log() + top.squeeze(1), float("-inf"))


def merge_example(rows):
    lse = normal(rows, 5, 2)
    lse[0] = float("-inf")
    return dict(o=normal(rows, 5, 2, 6), lse=lse)


@dataclass(frozen=True)
class Config:
    heads: int = 2
    eps: float = 1e-5
    gate: str = "silu"


def gated_norm(x, z, w, *, config, scale=None):
    """Keyword-only configuration, None, a table of functions."""
    x = x.view(-1, config.heads, x.shape[-1] // config.heads)
    y = x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + config.eps).to(x.dtype)
    y = y * w.view(config.heads, -1) * {"silu": F.silu, "sigmoid": torch.sigmoid}[config.gate](z.view_as(x))
    return (y if scale is None else y * scale).flatten(1)


def gated_norm_example(rows):
    return dict(x=normal(rows, 16, dtype=BF16), z=normal(rows, 16, dtype=BF16), w=normal(16, dtype=BF16), config=Config())


def paged_attention(q, k, cos, sin, pos, cache, table):
    """Rotary tables by position, a cache through a block table of two dims, a softmax over keys."""
    c, s = cos[pos][:, None], sin[pos][:, None]

    def rotate(x):
        a, b = x.chunk(2, -1)
        return torch.cat([a * c - b * s, b * c + a * s], -1)

    keys = cache[table].flatten(1, 2).repeat_interleave(2, 2)
    scores = torch.einsum("rhd,rthd->rht", rotate(q), keys) * q.shape[-1] ** -0.5
    p = scores.masked_fill(torch.arange(keys.shape[1]) > (pos % 12)[:, None, None], float("-inf")).softmax(-1)
    return torch.einsum("rht,rthd->rhd", p, keys), rotate(k)


def paged_attention_example(rows):
    return dict(q=normal(rows, 4, 8), k=normal(rows, 2, 8), cos=normal(64, 4), sin=normal(64, 4), pos=torch.randint(0, 64, (rows,)),
                cache=normal(9, 4, 2, 8), table=torch.randint(0, 9, (rows, 3)))  # fmt: skip


def nested(x, states, params):
    """Tensors in tuples and dicts, and such a result."""
    a, b = states
    y = (x * params["w"][:, None] + params["b"]).sum(2)
    a.add_(y)
    b.lerp_(a, 0.3)
    return {"y": y, "s": (a + b, None)}


def nested_example(rows):
    return dict(
        x=normal(rows, 2, 3, 6), states=(normal(rows, 2, 6), normal(rows, 2, 6)), params={"w": normal(2, 6), "b": normal(6)}
    )


def masked_slots(k, v, pool, idx):
    """Rows that take no part, by clamping and torch.where; a slice of a paged tensor is written as well."""
    live = (idx >= 0)[:, None, None]
    h = pool[idx.clamp(min=0)] + k[..., None] @ v[..., None, :]
    pool[idx.clamp(min=0), 1:] = torch.where(live[..., None], h, pool[idx.clamp(min=0)])[:, 1:]
    return torch.where(live, F.layer_norm(h.sum(-1), (6,)), 0)


def masked_slots_example(rows):
    return dict(k=normal(rows, 2, 6), v=normal(rows, 2, 6), pool=normal(rows + 3, 2, 6, 6), idx=slots(rows))


def flat_rows(x, w, idx, pool):
    """Rows times heads in one dim."""
    h = pool[idx] * w + x.view(-1, 2, 6)
    pool[idx] = h
    return h.reshape(-1, 6)


def flat_rows_example(rows):
    return dict(x=normal(rows * 2, 6), w=normal(2, 6), idx=slots(rows), pool=normal(rows + 3, 2, 6))


def last_token(x, lens):
    """Two index tensors, one of them a range."""
    return x[torch.arange(x.shape[0]), lens - 1].sigmoid()


def last_token_example(rows):
    return dict(x=normal(rows, 6, 8), lens=torch.randint(1, 6, (rows,)))


def written_again(s, i, d):
    """Writes to a paged tensor one over the other, each to a part of what the one before wrote."""
    s[i] *= d
    s[i, 0] += 1
    s[i, :, 1:3, 0] = 0.0
    s.transpose(1, 2)[i] = s.transpose(1, 2)[i] * 2
    return s[i].sum((-1, -2))


def written_again_example(rows):
    return dict(s=normal(rows + 3, 2, 4, 4), i=slots(rows), d=normal(rows, 2, 1, 1))


def caches(k, v, cache, slot, other):
    """Keys and values in one tensor taken apart, written by flat slot and by block and offset; a window that rolls."""
    keys, values = cache.unbind(0)
    keys.view(-1, 2, 6)[slot] = k
    values[slot // 4, slot % 4] = v
    other.copy_(torch.roll(other, shifts=-1, dims=-1))
    other[:, :, -1] = k[:, 0]
    return (other * torch.arange(3)).sum(-1)


def caches_example(rows):
    return dict(k=normal(rows, 2, 6), v=normal(rows, 2, 6), cache=normal(2, 7, 4, 2, 6), slot=torch.randperm(28)[:rows],
                other=normal(rows, 6, 3))  # fmt: skip


FUNCTIONS = (
    delta_rule, linear_attention, window_conv, add_norm_quant, conv_call, circular_conv, state_space, stabilised, tokens, merge,
    gated_norm, paged_attention, nested, masked_slots, flat_rows, last_token, written_again,
    caches)  # fmt: skip
STEPS = {fn.__name__: (fn, globals()[f"{fn.__name__}_example"]) for fn in FUNCTIONS}
