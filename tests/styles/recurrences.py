"""Recurrences on a state, in the styles of public test and model files.

STEPS: name -> (function, make(rows) of its arguments).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .record import BF16, normal, record, slots

STEPS = {}
step = record(STEPS)


@step(
    lambda r: dict(
        state=normal(r, 4, 8, 6),
        x=normal(r, 4, 8),
        dt=normal(r, 4, 8),
        A=-torch.rand(4, 8, 6),
        B=normal(r, 2, 6),
        C=normal(r, 2, 6),
        D=normal(4, 8),
        z=normal(r, 4, 8),
        dt_bias=normal(4, 8),
    )
)
def ssu_ref(state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=True):
    has_heads = state.dim() > 3
    if not has_heads:
        state = state.unsqueeze(1)
    batch, nheads, dim, dstate = state.shape
    ngroups = B.shape[1]
    dt = dt + dt_bias
    dt = F.softplus(dt) if dt_softplus else dt
    dA = torch.exp(dt[..., None] * A)
    B = B.repeat_interleave(nheads // ngroups, dim=1)
    C = C.repeat_interleave(nheads // ngroups, dim=1)
    dB = dt[..., None] * B[:, :, None, :]
    state.copy_(state * dA + dB * x[..., None])
    out = torch.einsum("bhdn,bhn->bhd", state.to(C.dtype), C)
    out += (x * D).to(out.dtype)
    out = (out if z is None else out * F.silu(z)).to(x.dtype)
    return out


@step(
    lambda r: dict(
        q=normal(r, 3, 2, 8, dtype=BF16),
        k=normal(r, 3, 2, 8, dtype=BF16),
        v=normal(r, 3, 2, 10, dtype=BF16),
        g=-torch.rand(r, 3, 2),
        beta=torch.rand(r, 3, 2).to(BF16),
        state=normal(r, 2, 8, 10),
    )
)
def gdr_tokens(q, k, v, g, beta, state, scale=None):
    q, k, v, beta, g = map(lambda x: x.transpose(1, 2).contiguous().to(torch.float32), [q, k, v, beta, g])
    B, H, L, K = k.shape
    V = v.shape[-1]
    o = torch.zeros(B, H, L, V).to(v)
    h = state.clone()
    if scale is None:
        scale = 1 / (q.shape[-1] ** 0.5)
    q = q * scale
    for i in range(L):
        b_q, b_k, b_v = q[:, :, i], k[:, :, i], v[:, :, i].clone()
        h = h.clone() * g[:, :, i].exp()[..., None, None]
        b_beta = beta[:, :, i]
        b_v = b_v - (h.clone() * b_k[..., None]).sum(-2)
        b_v = b_v * b_beta[..., None]
        h = h.clone() + b_k.unsqueeze(-1) * b_v.unsqueeze(-2)
        o[:, :, i] = torch.einsum("bhd,bhdm->bhm", b_q, h)
    state.copy_(h)
    return o.transpose(1, 2).contiguous()


@step(
    lambda r: dict(
        q=normal(r, 2, 8),
        k=normal(r, 2, 8),
        v=normal(r, 2, 8),
        f=normal(r, 2, 8),
        pool=normal(r + 4, 2, 8, 8),
        slot=slots(r, 4, torch.int32),
    )
)
def hgrn2(q, k, v, f, pool, slot):
    lb = 0.1
    gate = lb + (1 - lb) * torch.sigmoid(f)
    key = 1 - gate
    S = torch.index_select(pool, 0, slot)
    S = S * gate.unsqueeze(-1) + torch.matmul(key.unsqueeze(-1), v.unsqueeze(-2))
    pool.index_copy_(0, slot.long(), S)
    return torch.matmul(q.unsqueeze(-2), S).squeeze(-2)


@step(
    lambda r: dict(
        r_=normal(r, 2, 8),
        w=normal(r, 2, 8),
        k=normal(r, 2, 8),
        v=normal(r, 2, 8),
        a=normal(r, 2, 8),
        b=normal(r, 2, 8),
        state=normal(r, 2, 8, 8),
    )
)
def rwkv7_naive(r_, w, k, v, a, b, state):
    w = torch.exp(-torch.exp(w))
    sa = (state * a[:, :, None, :]).sum(-1)
    state.mul_(w[:, :, None, :]).add_(sa[..., None] * b[:, :, None, :]).add_(v[..., None] * k[:, :, None, :])
    return (state @ r_[..., None])[..., 0]


@step(
    lambda r: dict(
        q=normal(r, 2, 6),
        k=normal(r, 2, 6),
        v=normal(r, 2, 6),
        p=normal(r, 2, 6),
        beta=torch.rand(r, 2),
        d=torch.rand(2),
        g=-torch.rand(r, 2),
        S=normal(r, 2, 6, 6),
    )
)
def comba(q, k, v, p, beta, d, g, S):
    q = q - d[None, :, None] * k
    kp = F.normalize(k * p, p=2, dim=-1)
    k = F.normalize(k, p=2, dim=-1)
    S1 = S * g.exp()[:, :, None, None]
    vn = (v - torch.einsum("bhkv,bhk->bhv", S1, kp)) * beta[:, :, None]
    S1 = S1 + torch.einsum("bhk,bhv->bhkv", k, vn)
    S[...] = S1
    return torch.einsum("bhkv,bhk->bhv", S1, q)


@step(
    lambda r: dict(
        q=normal(r, 2, 6),
        k=normal(r, 2, 6),
        v=normal(r, 2, 6),
        s=torch.rand(r, 2, 5),
        g=-torch.rand(r, 2, 5),
        hk=normal(r, 2, 6, 5),
        hv=normal(r, 2, 5, 6),
    )
)
def gated_slot(q, k, v, s, g, hk, hv):
    hk.copy_(hk * g.exp().unsqueeze(-2) + k.unsqueeze(-1) * s.unsqueeze(-2))
    ok = (q.unsqueeze(-1) * hk).sum(-2)
    p = ok.softmax(-1)
    hv.copy_(hv * g.exp().unsqueeze(-1) + s.unsqueeze(-1) * v.unsqueeze(-2))
    return (p.unsqueeze(-1) * hv).sum(-2)


@step(
    lambda r: dict(
        q=normal(r, 2, 6, dtype=BF16),
        k=normal(r, 2, 6, dtype=BF16),
        v=normal(r, 2, 6, dtype=BF16),
        S=normal(r, 2, 6, 6),
        z=normal(r, 2, 6),
    )
)
def linear_attention_norm(q, k, v, S, z):
    def phi(u):
        return F.elu(u.float()) + 1
    q, k = phi(q), phi(k)
    S += torch.einsum("bhk,bhv->bhkv", k, v.float())
    z += k
    num = torch.einsum("bhk,bhkv->bhv", q, S)
    den = torch.einsum("bhk,bhk->bh", q, z).clamp_min(1e-6)
    return (num / den.unsqueeze(-1)).type_as(v)


@step(
    lambda r: dict(
        k=normal(r, 2, 6),
        v=normal(r, 2, 6),
        q=normal(r, 2, 6),
        eta=torch.rand(r, 2),
        alpha=torch.rand(r, 2),
        theta=torch.rand(r, 2),
        M=normal(r, 2, 6, 6),
        Mom=normal(r, 2, 6, 6),
    )
)
def titans(k, v, q, eta, alpha, theta, M, Mom):
    def u(t):
        return t.view(-1, 2, 1, 1)
    err = torch.baddbmm(-v.reshape(-1, 6, 1), M.reshape(-1, 6, 6), k.reshape(-1, 6, 1)).view(-1, 2, 6)
    grad = err[..., :, None] * k[..., None, :]
    Mom.copy_(u(eta) * Mom - u(theta) * grad)
    M.copy_((1 - u(alpha)) * M + Mom)
    return (M * q[..., None, :]).sum(dim=-1)


@step(
    lambda r: dict(x=normal(r, 16, dtype=BF16), wa=normal(16), wb=normal(16), a_param=normal(16), h=normal(r + 4, 16), i=slots(r))
)
def rglru(x, wa, wb, a_param, h, i):
    c = 8.0
    ga, gx = torch.sigmoid(x.float() * wa), torch.sigmoid(x.float() * wb)
    log_a = -c * ga * F.softplus(a_param)
    a = log_a.exp()
    mult = torch.sqrt(1 - torch.exp(2 * log_a))
    new = a * h[i] + mult * (gx * x.float())
    h.index_put_((i,), new)
    return new.to(x.dtype)


@step(lambda r: dict(q=normal(r, 2, 6), k=normal(r, 2, 6), v=normal(r, 2, 6), h=normal(r, 2, 6, 6), g=torch.rand(r, 2, 6)))
def vec_ops(q, k, v, h, g):
    h.mul_(g.unsqueeze(-1)).addcmul_(k.unsqueeze(-1), v.unsqueeze(-2))
    return torch.einsum("bhk,bhkv->bhv", q * 6**-0.5, h)


@step(lambda r: dict(q=normal(r, 2, 6), k=normal(r, 2, 6), v=normal(r, 2, 6), h=normal(r, 2, 6, 6), b=torch.rand(r, 2)))
def lerp_state(q, k, v, h, b):
    pred = torch.matmul(k.unsqueeze(-2), h).squeeze(-2)
    target = torch.lerp(pred, v, b.unsqueeze(-1))
    h += k.unsqueeze(-1) @ (target - pred).unsqueeze(-2)
    return torch.matmul(q.unsqueeze(-2), h).squeeze(-2)


@step(lambda r: dict(x=normal(r, 2, 8, dtype=BF16), s=normal(r, 2, 8, 8, dtype=BF16), decay=torch.tensor([0.9, 0.99])))
def bf16_state_inplace(x, s, decay):
    s *= decay.view(1, 2, 1, 1).to(s.dtype)
    s += x.unsqueeze(-1) * x.unsqueeze(-2)
    return s.sum(-1)


@step(lambda r: dict(q=normal(r, 8, 4), k=normal(r, 2, 4), v=normal(r, 2, 4), S=normal(r, 2, 4, 4)))
def gqa_state(q, k, v, S):
    S += torch.einsum("rhk,rhv->rhkv", k, v)
    q = q.view(-1, 2, 4, 4)
    return torch.einsum("rhgk,rhkv->rhgv", q, S).reshape(q.shape[0], 8, 4)


@step(lambda r: dict(q=normal(r, 4, 4), k=normal(r, 2, 4), v=normal(r, 4, 4), S=normal(r, 4, 4, 4)))
def gqa_interleaved(q, k, v, S):
    k = torch.cat([k, k], 1)
    S.copy_(0.9 * S + k[:, :, :, None] * v[:, :, None, :])
    return (S * q[..., None]).sum(2)


@step(lambda r: dict(k=normal(r, 2, 3, 4), v=normal(r, 2, 3, 4), b=torch.rand(r, 2, 3), q=normal(r, 3, 4), S=normal(r, 3, 4, 4)))
def householder_loop(k, v, b, q, S):
    S_ = S.clone()
    for i in range(k.size(1)):
        ki = F.normalize(k[:, i], dim=-1)
        S_ = S_ - b[:, i, :, None, None] * (ki[..., :, None] * torch.einsum("rhk,rhkv->rhv", ki, S_)[..., None, :])
        S_ = S_ + b[:, i, :, None, None] * (ki[..., :, None] * v[:, i, :, None, :])
    S.copy_(S_)
    return torch.einsum("rhk,rhkv->rhv", q, S_)


@step(lambda r: dict(x=normal(r, 8, dtype=torch.float16), st=normal(r, 8, dtype=torch.float16)))
def half_scan(x, st):
    st.copy_(torch.sigmoid(x) * st + (1 - torch.sigmoid(x)) * torch.tanh(x))
    return F.gelu(st, approximate="tanh"), F.gelu(st)


@step(lambda r: dict(x=normal(r, 2, 8), S=normal(r, 2, 8, 8), A=normal(2)))
def retention(x, S, A):
    gamma = 1 - torch.exp2(-5.0 - torch.arange(0, 2))
    S.copy_(gamma[None, :, None, None] * S + x[..., None] * x[..., None, :])
    o = (x[..., None, :] @ S).squeeze(-2)
    o = F.group_norm(o.reshape(-1, 16), 2)
    return o


@step(lambda r: dict(x=normal(r, 4, 8), h=normal(r, 4, 8, 8), n_=normal(r, 4, 8), eps=1e-6))
def states_in_tuple(x, h, n_, eps):
    def step(state, u):
        c, m = state
        return (0.5 * c + u[..., None] * u[..., None, :], torch.maximum(m, u))

    c, m = step((h, n_), x)
    h[:] = c
    n_[:] = m
    return (c @ x[..., None])[..., 0] / (m.abs().sum(-1, keepdim=True) + eps)


@step(
    lambda r: dict(
        x=normal(r, 8),
        cache={"conv": normal(r, 8, 3), "ssm": normal(r, 8, 4)},
        p={"w": normal(8, 4), "a": normal(8, 4), "b": normal(8, 4)},
    )
)
def dict_of_states(x, cache, p):
    c = cache["conv"]
    full = torch.cat((c, x.unsqueeze(2)), 2)
    c.copy_(full[:, :, 1:])
    u = (full * p["w"]).sum(2)
    cache["ssm"].copy_(cache["ssm"] * p["a"].sigmoid() + u.unsqueeze(2) * p["b"])
    return cache["ssm"].sum(2)


@step(lambda r: dict(x=normal(r, 6), h1=normal(r, 6, 4), h2=normal(r, 6), c=torch.zeros(r, dtype=torch.int32)))
def counters(x, h1, h2, c):
    c += 1
    h2 += (x - h2) / c.unsqueeze(-1)
    h1[:, :, 0] = h2
    return h1.sum(-1), c


@step(lambda r: dict(x=normal(r, 2, 8), s=normal(5, r, 2, 8)))
def layer_slice(x, s):
    s[3] = s[3] * 0.5 + x
    return s[3].tanh()


@step(
    lambda r: dict(
        state=normal(r + 4, 3, 4, 4), ids=torch.stack([slots(r), slots(r)], 1)[:, :1].expand(-1, 3).contiguous(), x=normal(r, 4)
    )
)
def index_column(state, ids, x):
    slot = ids[:, 0]
    s = state[slot, 1]
    state[slot, 2] = s + x[:, :, None] * x[:, None, :]
    return s.sum(-1)


@step(lambda r: dict(h=normal(r, 8), pool=normal(r + 4, 8), idx_=slots(r), acc=torch.randint(0, 3, (r,)), win=normal(r, 3, 8)))
def gather_accepted(h, pool, idx_, acc, win):
    last = win.gather(1, acc.view(-1, 1, 1).expand(-1, 1, 8)).squeeze(1)
    pool[idx_] = last + h
    return last


@step(lambda r: dict(x=normal(r, 8), pool=normal(r + 4, 8), slot=slots(r), best=torch.randint(0, 3, (r, 8)), win=normal(r, 3, 8)))
def gather_each(x, pool, slot, best, win):
    index = slot.view(-1, 1).repeat(1, x.size(-1))
    old = torch.gather(pool, 0, index)
    pool.scatter_(0, index, old * 0.5 + win.gather(1, best.unsqueeze(1)).squeeze(1))
    return old + x


@step(
    lambda r: dict(
        x=normal(r, 10), pool=normal(r + 4, 10), i=torch.where(torch.arange(r) % 2 == 0, torch.arange(r), torch.full((r,), -1))
    )
)
def skip_rows_where(x, pool, i):
    live = i >= 0
    safe = torch.where(live, i, 0)
    old = pool[safe]
    return torch.where(live[:, None], old + x, 0.0)


@step(lambda n: dict(r=normal(n, 4, 32, dtype=BF16), w=normal(n, 4, 32, dtype=BF16), k=normal(n, 4, 32, dtype=BF16),
                     v=normal(n, 4, 32, dtype=BF16), a=normal(n, 4, 32, dtype=BF16), state=normal(n, 4, 32, 32)))
def rwkv7_matrices(r, w, k, v, a, state):
    B, H, D = r.shape
    kk = F.normalize(k.float(), dim=-1)
    vk = v.float().view(B, H, D, 1) @ k.float().view(B, H, 1, D)
    ab = (-kk).view(B, H, D, 1) @ (kk * torch.sigmoid(a.float())).view(B, H, 1, D)
    s = state * torch.exp(-0.606531 * torch.sigmoid(w.float())).view(B, H, 1, D) + state @ ab + vk
    state.copy_(s)
    return (s.to(r.dtype) @ r.view(B, H, D, 1)).view(B, H * D)


@step(
    lambda r: dict(
        q=normal(r, 1, 2, 12),
        k=normal(r, 2, 2, 12),
        v=normal(r, 2, 2, 10),
        beta=2 * torch.rand(r, 2, 2),
        g=-torch.rand(r, 1, 2),
        pool=normal(r + 3, 2, 12, 10, dtype=BF16),
        ix=slots(r, 3, torch.int32),
    )
)
def two_householders(q, k, v, beta, g, pool, ix, num_householder=2):
    h = pool.index_select(0, ix).float()
    o = q.new_empty(q.shape[0], q.shape[1], q.shape[2], v.shape[-1])
    for i in range(q.shape[1] * num_householder):
        t = i // num_householder
        if i % num_householder == 0:
            h = h * g[:, t].exp()[..., None, None]
        b_k = F.normalize(k[:, i], dim=-1, eps=1e-5)
        b_v = v[:, i] - (h * b_k[..., None]).sum(-2)
        h = h + (b_k * beta[:, i].unsqueeze(-1)).unsqueeze(-1) * b_v.unsqueeze(-2)
        if (i + 1) % num_householder == 0:
            o[:, t] = (h * (q[:, t] * q.shape[-1] ** -0.5).unsqueeze(-1)).sum(-2)
    pool.index_copy_(0, ix.long(), h.to(pool.dtype))
    return o


@step(lambda r: dict(wx=normal(r, 4, 4 * 6), recurrent=normal(4, 6, 24, scale=0.2), bias=normal(4, 24), states=normal(4, r, 24)))
def slstm_pointwise(wx, recurrent, bias, states):
    y, c, n, m = torch.unbind(states, dim=0)
    rows = wx.shape[0]
    ry = (y.view(rows, 4, 1, 6) @ recurrent.unsqueeze(0)).reshape(rows, 4, 4, 6).transpose(1, 2).reshape(rows, -1)
    raw = wx.view(rows, 4, 4, 6).transpose(1, 2).reshape(rows, -1) + ry + bias.view(4, 4, 6).transpose(0, 1).reshape(-1)
    i_raw, f_raw, z_raw, o_raw = torch.unbind(raw.view(rows, 4, -1), dim=1)
    log_f_plus_m = m + F.logsigmoid(f_raw)
    m_new = torch.max(i_raw, log_f_plus_m)
    i_gate = torch.minimum(torch.exp(i_raw - m_new), torch.ones_like(i_raw))
    f_gate = torch.minimum(torch.exp(log_f_plus_m - m_new), torch.ones_like(i_raw))
    c_new = f_gate * c + i_gate * torch.tanh(z_raw)
    n_new = f_gate * n + i_gate
    y_new = torch.sigmoid(o_raw) * c_new / n_new
    states.copy_(torch.stack((y_new, c_new, n_new, m_new), dim=0))
    return y_new


@step(
    lambda r: dict(
        xq=normal(r, 2, 1, 8), xk=normal(r, 2, 1, 8), xv=normal(r, 2, 1, 8), eta=torch.rand(r, 2, 1, 1),
        w1=normal(r, 2, 8, 8, scale=0.1), b1=normal(r, 2, 1, 8), grad_w=normal(r, 2, 8, 8), grad_b=normal(r, 2, 1, 8),
        ln_weight=normal(2, 8), ln_bias=normal(2, 8), token=torch.rand(1, 1),
    )
)
def learned_at_test_time(xq, xk, xv, eta, w1, b1, grad_w, grad_b, ln_weight, ln_bias, token):
    heads, dim = ln_weight.shape
    gamma, beta = ln_weight.reshape(1, heads, 1, dim), ln_bias.reshape(1, heads, 1, dim)
    z1 = xk @ w1 + b1
    std = torch.sqrt(z1.var(dim=-1, keepdim=True, unbiased=False) + 1e-6)
    x_hat = (z1 - z1.mean(dim=-1, keepdim=True)) / std
    grad = (gamma * x_hat + beta - (xv - xk)) * gamma
    inner = grad.sum(dim=-1, keepdim=True) + x_hat * (grad * x_hat).sum(dim=-1, keepdim=True)
    z = (1.0 / dim) * (dim * grad - inner) / std
    grad_w.add_(xk.transpose(-2, -1) @ z)
    grad_b.add_(z)
    w1.sub_(token * eta * grad_w)
    b1.sub_(token * eta * grad_b)
    return xq + F.layer_norm(xq @ w1 + b1, (dim,)) * gamma + beta


@step(
    lambda r: dict(q=normal(r, 4, 2, 8), k=normal(r, 4, 2, 8), v=normal(r, 4, 2, 8), g=-torch.rand(r, 4, 2), S=normal(r, 2, 8, 8))
)
def chunk_of_tokens(q, k, v, g, S):
    tokens = q.shape[1]
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    total = g.transpose(1, 2).cumsum(-1)
    later = torch.triu(torch.ones(tokens, tokens, dtype=torch.bool), 1)
    decay = (total[..., :, None] - total[..., None, :]).masked_fill(later, float("-inf")).exp()
    o = ((q @ k.transpose(-1, -2)) * decay) @ v + (q * total[..., None].exp()) @ S
    kept = k * (total[..., -1:] - total).exp()[..., None]
    S.copy_(S * total[..., -1, None, None].exp() + kept.transpose(-1, -2) @ v)
    return o.transpose(1, 2)
