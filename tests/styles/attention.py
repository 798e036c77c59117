"""Attention over few keys, merges of parts, cache writes, in the styles of public test and model files.

STEPS: name -> (function, make(rows) of its arguments).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from .record import BF16, normal, record, slots

STEPS = {}
step = record(STEPS)


@step(lambda r: dict(q=normal(r, 6, 5), k=normal(r, 5, 2, 5, dtype=BF16)))
def mqa_scores(q, k):
    q = q.view(-1, 2, 3, 5)
    s = torch.einsum("bgmd,btgd->bgmt", q, k.float()) / math.sqrt(5)
    s = 30.0 * torch.tanh(s / 30.0)
    return F.softmax(s, dim=-1, dtype=torch.float32).to(BF16)


@step(lambda r: dict(o=normal(3, r, 4, 6, dtype=BF16), lse=normal(3, r, 4)))
def lse_stack_merge(o, lse):
    m = lse.max(dim=0).values
    w = (lse - m).exp()
    s = w.sum(0)
    out = (o.float() * w[..., None]).sum(0) / s[..., None]
    return out.to(o.dtype), m + torch.log(s)


@step(lambda r: dict(a=normal(r, 4, 6), la=normal(r, 4), b=normal(r, 4, 6), lb=normal(r, 4)))
def ring_merge(a, la, b, lb):
    out = a - torch.sigmoid(lb - la).unsqueeze(-1) * (a - b)
    lse = la - F.logsigmoid(la - lb)
    return out, lse


@step(lambda r: dict(o=normal(r, 5, 3, 8, dtype=BF16), lse=normal(r, 5, 3), n_=torch.randint(1, 6, (r,))))
def masked_softmax_merge(o, lse, n_):
    mask = torch.arange(5, device=o.device)[None, :] >= n_[:, None]
    lse = lse.masked_fill(mask[..., None], float("-inf"))
    w = torch.softmax(lse, dim=1)
    return torch.einsum("bsh,bshd->bhd", w, o.float()).to(o.dtype), torch.logsumexp(lse, 1)


@step(lambda r: dict(o=normal(r, 4, 3, 8), lse=normal(r, 4, 3)))
def online_loop_merge(o, lse):
    acc = torch.zeros_like(o[:, 0])
    m = torch.full_like(lse[:, 0], float("-inf"))
    l = torch.zeros_like(m)
    for s in range(o.shape[1]):
        mn = torch.maximum(m, lse[:, s])
        c, p = torch.exp(m - mn), torch.exp(lse[:, s] - mn)
        acc = acc * c[..., None] + o[:, s] * p[..., None]
        l = l * c + p
        m = mn
    return acc / l[..., None], m + torch.log(l)


@step(
    lambda r: dict(
        k=normal(r, 2, 8, dtype=BF16), v=normal(r, 2, 8, dtype=BF16), kv=normal(6, 2, 4, 2, 8, dtype=BF16), slot=slots(r, 20)
    )
)
def paged_kv_write(k, v, kv, slot):
    page, off = torch.div(slot, 4, rounding_mode="floor"), slot % 4
    kv[page, 0, off] = k
    kv[page, 1, off] = v


@step(lambda r: dict(c=normal(r, 16, dtype=BF16), pe=normal(r, 4, dtype=BF16), cache=normal(r + 6, 20, dtype=BF16), slot=slots(r)))
def mla_cache_write(c, pe, cache, slot):
    cache.index_copy_(0, slot, torch.cat([F.rms_norm(c, (16,), eps=1e-6), pe], -1))


@step(lambda r: dict(q=normal(r, 3, 8), kv=normal(7, 4, 8), table=torch.randint(7, (r, 2)), lens=torch.randint(1, 9, (r,))))
def paged_attn_tiny(q, kv, table, lens):
    keys = kv[table].flatten(1, 2)
    s = torch.einsum("rhd,rtd->rht", q, keys) * 8**-0.5
    s = s.masked_fill(torch.arange(8)[None, None] >= lens[:, None, None], -torch.inf)
    return torch.einsum("rht,rtd->rhd", s.softmax(-1), keys)


@step(lambda r: dict(x=normal(r, 16), lens=torch.randint(1, 9, (r,)), buf=normal(r, 9, 16)))
def window_attn(x, lens, buf):
    live = torch.arange(9)[None, :] < lens[:, None]
    s = (buf * x[:, None]).sum(-1) / 4.0
    s = torch.where(live, s, torch.finfo(s.dtype).min)
    p = torch.softmax(s, -1)
    return (p[..., None] * buf).sum(1)


@step(lambda r: dict(q=normal(r, 8), kc=normal(r, 6, 8), vc=normal(r, 6, 8), slopes=torch.rand(1), lens=torch.randint(1, 7, (r,))))
def alibi_window(q, kc, vc, slopes, lens, window=4):
    pos = torch.arange(6)
    live = (pos[None] < lens[:, None]) & (pos[None] >= lens[:, None] - window)
    s = torch.einsum("rd,rtd->rt", q, kc) * 8**-0.5 - slopes * (lens[:, None] - 1 - pos[None])
    s = s.masked_fill(~live, float("-inf"))
    return torch.einsum("rt,rtd->rd", s.softmax(-1), vc)


@step(
    lambda r: dict(
        q=normal(r, 2, 8), kc=normal(r + 3, 5, 2, 8), vc=normal(r + 3, 5, 2, 8), i=slots(r, 3), k=normal(r, 2, 8), v=normal(r, 2, 8)
    )
)
def append_then_attend(q, kc, vc, i, k, v):
    kc[i, 4] = k
    vc[i, 4] = v
    s = torch.einsum("rhd,rthd->rht", q, kc[i]) * 8**-0.5
    return torch.einsum("rht,rthd->rhd", s.softmax(-1), vc[i])


@step(lambda r: dict(indptr=torch.arange(0, 3 * r + 1, 3, dtype=torch.int32), indices=torch.randperm(3 * r).to(torch.int32),
                     last=torch.randint(1, 5, (r,), dtype=torch.int32), k=normal(r, 2, 48, dtype=BF16),
                     cache=normal(3 * r, 4, 2, 48, dtype=BF16)))
def append_at_offsets(indptr, indices, last, k, cache):
    page = indices[(indptr[1:] - 1).long()].long()
    cache[page, (last - 1).long()] = k
    return torch.diff(indptr) * 4 - 4 + last


@step(lambda r: dict(q=normal(r, 4, 288, dtype=BF16), kv=normal(64, 8, 288, dtype=BF16),
                     table=torch.randperm(64)[: r * 2].view(r, 2), lens=torch.randint(1, 17, (r,))))
def latent_pages(q, kv, table, lens):
    ctx = kv[table].flatten(1, 2).float()
    s = torch.matmul(q.float(), ctx.transpose(1, 2)) * 0.07
    s = torch.where(torch.arange(16)[None, None] < lens[:, None, None], s, float("-inf"))
    lse = torch.logsumexp(s, -1)
    return torch.matmul((s - lse[..., None]).exp(), ctx[..., :256]).to(q.dtype), lse


@step(
    lambda r: dict(
        q=normal(r, 4, 16, dtype=BF16), k=normal(r, 4, 16, dtype=BF16), v=normal(r, 4, 16, dtype=BF16),
        kc=normal(r + 2, 8, 4, 16, dtype=BF16), vc=normal(r + 2, 8, 4, 16, dtype=BF16), ids=slots(r, 2),
        pos=torch.randint(0, 40, (r,), dtype=torch.int32),
    )
)
def ring_window(q, k, v, kc, vc, ids, pos):
    window = kc.shape[1]
    at = (pos % window).long()
    kc[ids, at] = k
    vc[ids, at] = v
    keys, values = kc[ids].float(), vc[ids].float()
    age = (at[:, None] - torch.arange(window)) % window
    s = torch.einsum("bhd,bwhd->bhw", q.float(), keys) * 16**-0.5
    s = s.masked_fill(~(age <= pos[:, None])[:, None], float("-inf"))
    return torch.einsum("bhw,bwhd->bhd", s.softmax(-1), values).to(q.dtype)
