"""One decode step of Qwen3-Next's Gated DeltaNet: 16 key heads serve 32 value heads, and one scalar per head is the gate.

Query, key and value are one row with one convolution; the state is [key, value], paged, in place; the norm is gated by SiLU.
After transformers' models/qwen3_next (Qwen3NextGatedDeltaNet, torch_recurrent_gated_delta_rule, Qwen3NextRMSNormGated).
"""
import torch
import torch.nn.functional as F

import fusec

EPS = 1e-6
STATES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def example(rows, device, HK=16, HV=32, D=128, state="fp32"):
    """`rows` requests among half as many slots again, HK key and HV value heads of D, the state in fp32 or bf16."""
    def normal(*shape, scale=1.0, dtype=torch.bfloat16):
        return (scale * torch.randn(*shape, device=device)).to(dtype)

    slots, channels, f32 = rows + rows // 2 + 2, (2 * HK + HV) * D, torch.float32
    return dict(
        mixed_qkv=normal(rows, channels), z=normal(rows, HV, D), b=normal(rows, HV), a=normal(rows, HV),
        conv_weight=normal(channels, 4, scale=0.1), conv_state=normal(slots, channels, 3, scale=0.1),
        A_log=normal(HV, scale=0.5, dtype=f32), dt_bias=normal(HV, scale=0.1),
        state=normal(slots, HV, D, D, scale=0.01, dtype=STATES[state]),
        cache_indices=torch.randperm(slots, device=device)[:rows].to(torch.int32), norm_weight=1 + normal(D, scale=0.1),
        key_heads=HK,
    )


def l2norm(x):
    return x * torch.rsqrt((x * x).sum(dim=-1, keepdim=True) + 1e-6)


@fusec.fuse(example=example)
def gdn_decode(mixed_qkv, z, b, a, conv_weight, conv_state, A_log, dt_bias, state, cache_indices, norm_weight, key_heads):
    """mixed_qkv [R, (2·HK + HV)·D], z [R, HV, D], b and a [R, HV], conv_weight [channels, 4], conv_state [slots, channels, 3] and
    state [slots, HV, key, value] in place at cache_indices [R], A_log and dt_bias [HV], norm_weight [D] -> [R, HV·D] bf16."""
    rows, heads, dim = z.shape
    window = torch.cat([conv_state[cache_indices], mixed_qkv[:, :, None]], dim=-1)
    conv_state[cache_indices] = window[:, :, 1:]
    y = F.silu(torch.sum(window * conv_weight, dim=-1))

    q, k, v = torch.split(y, [key_heads * dim, key_heads * dim, heads * dim], dim=-1)
    q, k = (l2norm(t.reshape(rows, key_heads, dim).float()) for t in (q, k))
    q = q.repeat_interleave(heads // key_heads, dim=1) * dim ** -0.5
    k = k.repeat_interleave(heads // key_heads, dim=1)
    v = v.reshape(rows, heads, dim).float()
    g = -A_log.float().exp() * F.softplus(a.float() + dt_bias)
    beta = b.sigmoid().float()

    h = state[cache_indices].float() * g.exp()[..., None, None]
    memory = (h * k.unsqueeze(-1)).sum(dim=-2)
    delta = (v - memory) * beta.unsqueeze(-1)
    h = h + k.unsqueeze(-1) * delta.unsqueeze(-2)
    state[cache_indices] = h.to(state.dtype)
    o = (h * q.unsqueeze(-1)).sum(dim=-2).to(z.dtype)

    o = o.float() * torch.rsqrt(o.float().pow(2).mean(-1, keepdim=True) + EPS)
    o = norm_weight * o.to(z.dtype) * F.silu(z.float())
    return o.to(z.dtype).flatten(1)
