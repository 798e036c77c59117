"""Decode steps in many styles, as users write them, with example inputs: what the front passes must keep the meaning of.

Each entry of STEPS is (function, make) where make(rows) gives the arguments; rows are dim 0 of the arguments in ROWED unless said
otherwise. Sizes are small and odd so that no two dims are alike by chance.
"""
from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

BF16 = torch.bfloat16
STEPS: dict[str, tuple[Callable[..., object], Callable[[int], dict[str, torch.Tensor]]]] = {}


def step(make: Callable[[int], dict[str, torch.Tensor]]) -> Callable[[Callable[..., object]], Callable[..., object]]:
    def record(fn: Callable[..., object]) -> Callable[..., object]:
        STEPS[fn.__name__] = (fn, make)
        return fn
    return record


def n(*shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> torch.Tensor:
    return (scale * torch.randn(*shape)).to(dtype)


def slots(rows: int, of: int = 0) -> torch.Tensor:
    return torch.randperm(of or rows + 4)[:rows]


# ---- one convolved row cut into query, key, value, in every way ----------------------------------------------------------------

def _conv(x, window, weight):
    full = torch.cat([window, x.unsqueeze(-1)], -1)
    window.copy_(full[..., 1:])
    return F.silu((full * weight).sum(-1))


def _delta(q, k, v, beta, state, idx):
    q = F.normalize(q, dim=-1)
    k = k / (k.norm(dim=-1, keepdim=True) + 1e-6)
    h = state[idx]
    u = (v - (h * k.unsqueeze(-2)).sum(-1)) * beta.unsqueeze(-1)
    h = h + u.unsqueeze(-1) * k.unsqueeze(-2)
    state[idx] = h
    return (h @ q.unsqueeze(-1)).squeeze(-1)


def _cut(h: int, d: int) -> Callable[[int], dict[str, torch.Tensor]]:
    return lambda r: dict(x=n(r, 3 * h * d), window=n(r, 3 * h * d, 3), weight=n(3 * h * d, 4), beta=torch.rand(r, h),
                          state=n(r + 4, h, d, d), idx=slots(r))


@step(_cut(2, 8))
def cut_by_slices(x, window, weight, beta, state, idx):
    heads, dim = state.shape[1:3]
    y = _conv(x, window, weight)
    hd = heads * dim
    q, k, v = (y[:, i * hd:(i + 1) * hd].reshape(-1, heads, dim) for i in range(3))
    return _delta(q, k, v, beta, state, idx)


@step(_cut(2, 8))
def cut_by_chunk(x, window, weight, beta, state, idx):
    q, k, v = (t.unflatten(-1, state.shape[1:3]) for t in _conv(x, window, weight).chunk(3, -1))
    return _delta(q, k, v, beta, state, idx)


@step(_cut(2, 8))
def cut_by_view(x, window, weight, beta, state, idx):
    y = _conv(x, window, weight).view(x.shape[0], 3, *state.shape[1:3])
    return _delta(y[:, 0], y[:, 1], y[:, 2], beta, state, idx)


@step(lambda r: dict(x=n(r, 64), window=n(r, 64, 3), weight=n(64, 4), beta=torch.rand(r, 4), state=n(r + 4, 4, 8, 8), idx=slots(r)))
def cut_unevenly(x, window, weight, beta, state, idx):
    """Two key heads, four value heads: the parts are 16, 16 and 32 wide."""
    y = _conv(x, window, weight)
    q, k, v = y.split([16, 16, 32], -1)
    q = q.view(-1, 2, 8).repeat_interleave(2, dim=1)
    k = k.view(-1, 2, 8).repeat_interleave(2, dim=1)
    return _delta(q, k, v.view(-1, 4, 8), beta, state, idx)


@step(lambda r: dict(x=n(r, 3, 2, 8), past=n(r, 3, 3, 2, 8), weight=n(3, 2, 8, 4)))
def conv_axes_apart(x, past, weight):
    """Taps as the second dim; the past moves on by a cat that is written back."""
    full = torch.cat((past, x[:, None]), 1)
    past[:] = full[:, 1:]
    return torch.einsum("rtphd,phdt->rphd", full, weight)


@step(lambda r: dict(x=n(r, 10), past=n(r + 4, 10, 3), weight=n(10, 4), idx=slots(r)))
def window_by_index_copy(x, past, weight, idx):
    old = past.index_select(0, idx)
    y = old[..., 0] * weight[:, 0] + old[..., 1] * weight[:, 1] + old[..., 2] * weight[:, 2] + x * weight[:, 3]
    past.index_copy_(0, idx, torch.cat([old[..., 1:], x.unsqueeze(-1)], -1))
    return F.silu(y)


@step(lambda r: dict(x=n(r, 10), past=n(r, 10, 3), weight=n(10, 4)))
def window_in_place_pieces(x, past, weight):
    """The window moves by two writes into slices of itself."""
    y = (past * weight[:, :3]).sum(-1) + x * weight[:, 3]
    past[:, :, :-1] = past[:, :, 1:].clone()
    past[:, :, -1] = x
    return y


# ---- recurrences ---------------------------------------------------------------------------------------------------------------

@step(lambda r: dict(q=n(r, 2, 6), k=n(r, 2, 6), v=n(r, 2, 10), g=-n(r, 2, 6).abs(), pool=n(r + 4, 2, 6, 10), idx=slots(r)))
def key_value_state(q, k, v, g, pool, idx):
    h = pool[idx] * g.exp()[..., None] + k[..., :, None] * v[..., None, :]
    pool[idx] = h
    return (q.unsqueeze(-2) @ h).squeeze(-2)


@step(lambda r: dict(q=n(r, 2, 6), k=n(r, 2, 6), v=n(r, 6, 10), pool=n(r, 6, 6, 10)))
def grouped_by_expand(q, k, v, pool):
    rows = q.shape[0]
    q = q[:, :, None].expand(rows, 2, 3, 6).reshape(rows, 6, 6)
    k = k.unsqueeze(2).expand(-1, -1, 3, -1).flatten(1, 2)
    pool.mul_(0.9).add_(torch.einsum("rhk,rhv->rhkv", k, v))
    return torch.matmul(q.unsqueeze(2), pool).squeeze(2)


@step(lambda r: dict(q=n(r, 3, 6), k=n(r, 3, 6), v=n(r, 3, 10), i=n(r, 3), f=n(r, 3), c=n(r, 3, 6, 10), norm=n(r, 3, 6), m=n(r, 3)))
def exponential_gates(q, k, v, i, f, c, norm, m):
    """Three states of different ranks, all in place, with a running maximum."""
    logf = F.logsigmoid(f)
    top = torch.maximum(logf + m, i)
    keep, add = torch.exp(logf + m - top), torch.exp(i - top)
    c.copy_(keep[..., None, None] * c + add[..., None, None] * (k[..., None] * v[..., None, :]))
    norm.copy_(keep[..., None] * norm + add[..., None] * k)
    m.copy_(top)
    num = torch.einsum("rhkv,rhk->rhv", c, q)
    den = torch.maximum((norm * q).sum(-1).abs(), torch.exp(-top))
    return num / den[..., None]


@step(lambda r: dict(k=n(r, 2, 2, 8), v=n(r, 2, 2, 8), beta=torch.rand(r, 2, 2), q=n(r, 2, 8), state=n(r, 2, 8, 8)))
def two_householder_steps(k, v, beta, q, state):
    h = state
    for j in range(2):
        kj, vj = k[:, j], v[:, j]
        err = vj - torch.einsum("rhvk,rhk->rhv", h, kj)
        h = h + (beta[:, j, :, None] * err)[..., None] * kj[..., None, :]
    state.copy_(h)
    return torch.einsum("rhvk,rhk->rhv", h, q)


@step(lambda r: dict(k=n(r, 3, 8), v=n(r, 3, 8), w=n(r, 3, 8, 8), s=n(r, 3, 8, 8), lr=torch.rand(r, 3)))
def momentum(k, v, w, s, lr):
    grad = torch.einsum("rhi,rhj->rhij", torch.einsum("rhij,rhj->rhi", w, k) - v, k)
    s.mul_(0.9).sub_(lr[..., None, None] * grad)
    w += s
    return torch.einsum("rhij,rhj->rhi", w, k)


@step(lambda r: dict(x=n(r, 8), state=n(r, 8, 8)))
def outer_product_of_itself(x, state):
    """The same value along two axes of one state, and the state beside its transpose."""
    state += x[:, :, None] * x[:, None, :]
    return (state + state.mT).sum(-1)


@step(lambda r: dict(x=n(r, 16, 16, 512), p=n(r, 16)))
def a_norm_along_two_axes_of_the_grid(x, p):
    """A value that threads hand over, read along an axis of which each block has one position."""
    y = p * torch.rsqrt(p.square().mean(-1, keepdim=True) + 1e-6)
    return x * y[:, :, None, None] * y[:, None, :, None]


@step(lambda r: dict(x=n(r, 256), state=n(r, 256, 256)))
def a_norm_along_an_axis_in_parts(x, state):
    """The same, along an axis of which each block has a part."""
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    h = state * 0.5 + y[:, :, None] * y[:, None, :]
    state.copy_(h)
    return (h * y[:, :, None]).sum(1)


@step(lambda r: dict(x=n(r, 6, 4), a=n(6, 4), dt=n(r, 6), b=n(r, 5), c=n(r, 5), d=n(6), state=n(r, 6, 4, 5)))
def state_space(x, a, dt, b, c, d, state):
    dt = F.softplus(dt)
    decay = torch.exp(dt[..., None] * -torch.exp(a))
    new = state * decay[..., None] + (dt[..., None] * x)[..., None] * b[:, None, None]
    state.copy_(new)
    return torch.sum(new * c[:, None, None, :], dim=-1) + d[:, None] * x


@step(lambda r: dict(q=n(r, 4, 2, 6, dtype=BF16), k=n(r, 4, 2, 6, dtype=BF16), v=n(r, 4, 2, 10, dtype=BF16),
                     pool=n(r + 4, 2, 6, 10, dtype=BF16), idx=slots(r)))
def several_tokens(q, k, v, pool, idx):
    h = pool[idx].float()
    o = torch.zeros(q.shape[0], 4, 2, 10)
    for t in range(4):
        h = 0.9 * h + k[:, t].float().unsqueeze(-1) * v[:, t].float().unsqueeze(-2)
        o[:, t] = torch.einsum("rhk,rhkv->rhv", q[:, t].float(), h)
    pool[idx] = h.to(BF16)
    return o.to(BF16)


# ---- norms, rotations, merges --------------------------------------------------------------------------------------------------

@step(lambda r: dict(x=n(r, 34, dtype=BF16), residual=n(r, 34, dtype=BF16), weight=n(34)))
def add_norm_quant(x, residual, weight):
    residual += x
    h = residual.float()
    h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6) * weight
    scale = (h.abs().amax(-1, keepdim=True) / 448.0).clamp(min=1e-12)
    return (h / scale).to(torch.float8_e4m3fn), scale


@step(lambda r: dict(q=n(r, 4, 8), k=n(r, 2, 8), table=n(50, 8), positions=torch.randint(50, (r,)), w=n(8)))
def rope_by_halves(q, k, table, positions, w):
    cos, sin = table[positions].chunk(2, -1)

    def turn(t):
        a, b = t.chunk(2, dim=-1)
        c, s = cos[:, None], sin[:, None]
        return torch.cat([a * c - b * s, b * c + a * s], -1)

    def norm(t):
        return t * torch.rsqrt(t.pow(2).mean(-1, keepdim=True) + 1e-6) * w
    return turn(norm(q)), turn(norm(k))


@step(lambda r: dict(q=n(r, 4, 8), cos=n(50, 4), sin=n(50, 4), positions=torch.randint(50, (r,))))
def rope_by_pairs(q, cos, sin, positions):
    a, b = q[..., 0::2], q[..., 1::2]
    c, s = cos[positions].unsqueeze(1), sin[positions].unsqueeze(1)
    return torch.stack((a * c - b * s, a * s + b * c), dim=-1).flatten(-2)


@step(lambda r: dict(o=n(r, 3, 5, 7), lse=n(r, 3, 5)))
def merge_parts(o, lse):
    top = lse.amax(1, keepdim=True)
    w = torch.exp(lse - top)
    total = w.sum(1)
    return (w.unsqueeze(-1) * o).sum(1) / total.unsqueeze(-1), total.log() + top.squeeze(1)


@step(lambda r: dict(x=n(r, 6, 9), w=n(9), g=n(r, 54)))
def gated_norm(x, w, g):
    y = F.rms_norm(x.float(), (9,), w, 1e-5).flatten(-2)
    return y * torch.sigmoid(g)


@step(lambda r: dict(q=n(r, 7), snaps=n(r, 3, 7)))
def softmax_over_few(q, snaps):
    p = torch.softmax((snaps * q[:, None]).sum(-1), -1)
    return torch.bmm(p[:, None], snaps)[:, 0]


@step(lambda r: dict(x=n(r, 12), cache=n(2, r + 4, 12), idx=slots(r)))
def one_layer_of_a_cache(x, cache, idx):
    """An update through an index inside one layer of a tensor with several."""
    cache[1, idx] = x * 2
    layer = cache[0]
    layer[idx] = layer[idx] + x
    return x


@step(lambda r: dict(x=n(r, 12), pages=n(5, 4, 12), idx=slots(r, 20)))
def paged_rows(x, pages, idx):
    """Flat slots of pages: the index is divided, in the function and by the view."""
    old = pages[idx // 4, idx % 4]
    pages.view(-1, 12)[idx] = old + x
    return old


@step(lambda r: dict(x=n(r, 12)))
def iota_mask(x):
    i = torch.arange(12)
    return torch.where(i[:, None] >= i, x[:, None, :], 0.0).sum(-1)


@step(lambda r: dict(xbc=n(r, 24), dt=n(r, 4), conv_state=n(r + 4, 24, 3), w=n(24, 4), bias=n(24), a_log=n(4), d=n(4),
                     ssm=n(r + 4, 4, 4, 4), idx=slots(r)))
def scan_with_conv(xbc, dt, conv_state, w, bias, a_log, d, ssm, idx):
    """Inputs of 4 heads by 4, and one group of 4 + 4 gates, from one convolution; state [head, dim, gate]."""
    old = conv_state[idx]
    window = torch.cat([old, xbc[..., None]], dim=2)
    conv_state[idx] = window[:, :, 1:]
    y = F.silu(torch.einsum("rct,ct->rc", window, w) + bias)
    x, b, c = torch.split(y, [16, 4, 4], dim=-1)
    x = x.reshape(-1, 4, 4)
    step = F.softplus(dt)
    decay = torch.exp(-step * a_log.exp())
    new = ssm[idx] * decay[..., None, None] + (x * step[..., None])[..., None] * b[:, None, None, :]
    ssm[idx] = new
    return ((new * c[:, None, None]).sum(-1) + d[:, None] * x).flatten(1)


@step(lambda r: dict(q=n(r, 4, 8), freqs=n(50, 4), positions=torch.randint(50, (r,))))
def rope_from_computed_table(q, freqs, positions):
    """The table is computed from its argument, then indexed."""
    table = torch.cat([freqs.cos(), freqs.sin()], -1).to(BF16)
    cos, sin = table[positions].float().split(4, -1)
    a, b = q.float().chunk(2, -1)
    return torch.cat([a * cos[:, None] - b * sin[:, None], a * sin[:, None] + b * cos[:, None]], -1)


@step(lambda r: dict(x=n(r, 3, 8, dtype=BF16), pool=n(r + 4, 3, 8, dtype=BF16), idx=slots(r).to(torch.int32)))
def pool_cast_whole(x, pool, idx):
    """The pool is cast before it is indexed, and written by a slice of a list of assignments."""
    old = pool.float()[idx.long()]
    new = old * 0.5 + x.float()
    pool[idx.long()] = new.to(BF16)
    return new.sum((1, 2)), old.max(-1).values


@step(lambda r: dict(q=n(r, 2, 6), k=n(r, 2, 6), x=n(r, 2, 6)))
def broadcast_sums(q, k, x):
    """Sums over axes that were only broadcast, and a mean of several dims."""
    wide = x[:, :, None].expand(-1, -1, 5, -1)
    return wide.sum(2), (q[..., None] + k[..., None, :]).mean((1, 3)) * x[:, 0, :1], torch.full((1, 6), 2.0) * x[:, 0]


@step(lambda r: dict(x=n(r, 2, 6), w=n(2, 9)))
def padded_taps(x, w):
    y = F.pad(x, (2, 1))
    return (y * w).sum(-1), torch.nn.functional.pad(x, (0, 0, 1, 0), value=1.0)


@step(lambda r: dict(x=n(r, 2, 3, 5), s=n(r, 5, 3, 2)))
def transposed_write(x, s):
    s.transpose(1, 3)[:, 1] = x[:, 0] * 2
    s.view(-1, 30)[:, 3] = 7.0
    return x[:, 1, 0] + s.shape[1]


@step(lambda r: dict(tokens=n(r, 2, 6), window=n(r, 6, 3), w=n(6, 4)))
def two_tokens_of_a_window(tokens, window, w):
    outs = []
    for t in range(2):
        full = torch.cat([window, tokens[:, t, :, None]], -1)
        window.copy_(full[..., 1:])
        outs.append((full * w).sum(-1))
    return torch.stack(outs, 1)


@step(lambda r: dict(x=n(r, 6), ring=n(r, 6, 5), w=n(6, 4), place=torch.randint(0, 9, (r,))))
def ring_buffer(x, ring, w, place):
    """A history whose newest entry stands elsewhere in each row: an index per element, read and written."""
    taps = (place[:, None] + torch.arange(2, 5)) % 5
    old = torch.gather(ring, 2, taps[:, None, :].expand(-1, 6, -1))
    ring.scatter_(2, (place % 5)[:, None, None].expand(-1, 6, 1), x[:, :, None])
    return (torch.cat((old, x[:, :, None]), -1) * w).sum(-1)


@step(lambda r: dict(x=n(r, 5, 8), lens=torch.randint(1, 6, (r,)), pages=n(r + 4, 4, 8), page=slots(r),
                     entry=torch.randint(0, 4, (r,))))
def two_indices(x, lens, pages, page, entry):
    """Positions and values side by side as indices, read and written."""
    last = x[torch.arange(x.shape[0]), lens - 1]
    pages[page, entry] = pages[page, entry] + last
    return last.sigmoid()


@step(lambda r: dict(k=n(r, 2, 3, 5), v=n(r, 2, 3, 7), g=n(r, 2, 3), table=slots(3 * r, 3 * r + 2).view(r, 3),
                     taken=torch.randint(0, 3, (r,)), pool=n(3 * r + 2, 2, 5, 7)))
def speculative_tokens(k, v, g, table, taken, pool):
    """The state after the last accepted token is read from one of a row's slots, the states of all tokens go to all of them."""
    h = pool[table.gather(1, taken[:, None]).squeeze(1)]
    outs = []
    for t in range(3):
        h = h * g[:, :, t, None, None].sigmoid() + k[:, :, t, :, None] * v[:, :, t, None, :]
        pool[table[:, t]] = h
        outs.append(h.sum(2))
    return torch.stack(outs, 2)


@step(lambda r: dict(x=n(r, 8), table=n(20, 8), pos=torch.randint(0, 20, (r, 3))))
def sections_of_three_positions(x, table, pos):
    """A table read at several positions of a row, of each another section."""
    picked = table[pos]
    return x * torch.cat([picked[:, i, a:b] for i, (a, b) in enumerate(((0, 4), (4, 6), (6, 8)))], -1)


@step(lambda r: dict(x=n(r, 16), w=n(6, 16, 12), logits=n(r, 6)))
def best_of_several_weights(x, w, logits):
    """A slot that is the result of a reduction."""
    return torch.einsum("rd,rdo->ro", x, w[logits.argmax(-1)])


@step(lambda r: dict(score=n(r, 8), keys=n(r, 8, 4)))
def weighted_sum_of_the_best(score, keys):
    weight, at = score.topk(3)
    return (keys.gather(1, at[..., None].expand(-1, -1, 4)) * weight[..., None]).sum(1), score.argmin(-1)


@step(lambda r: dict(x=torch.randint(-10 ** 6, 10 ** 6, (r, 1100)) + 10 ** 9))
def ends_of_large_integers(x):
    return x.amin(-1), x.amax(-1), x.sum(-1), x[:, :5].amin(-1), (-x[:, :5]).amax(-1)


@step(lambda r: dict(q=n(r, 4, 16), k=n(r, 2, 16), w=n(16)))
def two_norms_with_nothing_in_common_but_a_weight(q, k, w):
    """No op brings the rows of q and k together: they are the batch all the same."""
    return F.rms_norm(q, (16,), w), F.rms_norm(k, (16,), w)


@step(lambda r: dict(h=n(r, 6, 8), x=n(r, 6), a=n(6, 8)))
def a_state_that_decays_beside_what_is_read(h, x, a):
    h.mul_(a)
    return (x[..., None] * a).sum(-1)


@step(lambda r: dict(q=n(r, 8), k=n(r, 4)))
def two_results_of_two_arguments(q, k):
    return q.softmax(-1), k.sum(-1)


@step(lambda r: dict(x=n(r, 9), k=torch.randint(0, 9, (r,))))
def taken_along_a_dim(x, k):
    return torch.take_along_dim(x, k[:, None], 1) * 2
