"""One decode step of Kimi-Linear (48B, 32 heads of 128), in the form of flash-linear-attention: softplus gate, state [key, value].

Query, key and value have convolutions of their own, each with its paged window of the last three inputs and the weights of the
checkpoint; the gated delta rule runs on a paged state in place; the result goes through a sigmoid-gated RMSNorm.
"""
import torch
import torch.nn.functional as F

import fusec

EPS = 1e-5
STATES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def example(rows, device, H=32, D=128, state="fp32"):
    """`rows` requests among half as many slots again, H heads of D, the state in fp32 or bf16."""
    def normal(*shape, scale=1.0, dtype=torch.bfloat16):
        return (scale * torch.randn(*shape, device=device)).to(dtype)

    slots, f32 = rows + rows // 2 + 2, torch.float32
    made = dict(qkv=normal(rows, 3 * H * D))
    for name in "qkv":
        made[f"{name}_weight"] = normal(H * D, 1, 4, scale=0.1)
        made[f"{name}_window"] = normal(slots, H * D, 3, scale=0.1)
    return made | dict(
        gate=normal(rows, H * D), beta=normal(rows, H),
        A_log=normal(H, scale=0.5, dtype=f32), dt_bias=normal(H * D, scale=0.1, dtype=f32),
        state=normal(slots, H, D, D, scale=0.01, dtype=STATES[state]), slots=torch.randperm(slots, device=device)[:rows],
        output_gate=normal(rows, H * D), norm_weight=1 + normal(D, scale=0.1),
    )


def convolve(x, weight, window, slots, heads):
    """x [R, H·D], weight [H·D, 1, 4], window [slots, H·D, 3] in place -> [R, H, D] bf16."""
    full = torch.cat([window[slots], x.unsqueeze(-1)], dim=-1)
    window[slots] = full[..., 1:]
    y = F.silu((full.float() * weight.squeeze(1).float()).sum(-1)).to(x.dtype)
    return y.unflatten(-1, (heads, -1))


@fusec.fuse(example=example)
def kda_decode(qkv, q_weight, q_window, k_weight, k_window, v_weight, v_window, gate, beta, A_log, dt_bias, state, slots,
               output_gate, norm_weight):
    """qkv [R, 3·H·D], weights [H·D, 1, 4], windows [slots, H·D, 3] and state [slots, H, key, value] in place at `slots` [R],
    gate [R, H·D], beta [R, H], A_log [H], dt_bias [H·D], output_gate [R, H·D], norm_weight [D] -> [R, H·D] bf16."""
    heads, dim = state.shape[1:3]
    q, k, v = qkv.chunk(3, dim=-1)
    q = convolve(q, q_weight, q_window, slots, heads)
    k = convolve(k, k_weight, k_window, slots, heads)
    v = convolve(v, v_weight, v_window, slots, heads)
    q = F.normalize(q.float(), p=2, dim=-1) * dim ** -0.5
    k = F.normalize(k.float(), p=2, dim=-1)

    g = (gate.float() + dt_bias).unflatten(-1, (heads, dim))
    g = -A_log.exp().unsqueeze(-1) * F.softplus(g, threshold=20.0)
    h = state[slots].float() * g.exp().unsqueeze(-1)
    delta = (v.float() - (k.unsqueeze(-1) * h).sum(-2)) * beta.float().sigmoid().unsqueeze(-1)
    h = h + k.unsqueeze(-1) * delta.unsqueeze(-2)
    state[slots] = h.to(state.dtype)
    o = (q.unsqueeze(-1) * h).sum(-2).to(qkv.dtype)

    o = F.rms_norm(o.float(), (dim,), norm_weight.float(), EPS) * output_gate.float().view_as(o).sigmoid()
    return o.to(qkv.dtype).flatten(1)
