"""One decode step of Mamba-2 (heads of 64, groups of 128 states): convolution, selective update, gated norm.

One projection holds z, x, B, C and dt of a row. B and C belong to groups of heads; the state [head, dim, state] forgets by
exp(dt·A), takes in dt·x·B and is read by C; D·x skips it; the norm over each group comes after the gate.
"""
import torch
import torch.nn.functional as F

import fusec

EPS = 1e-5
STATES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def example(rows, device, H=128, P=64, N=128, G=8, state="fp32"):
    """`rows` requests among half as many slots again, H heads of P in G groups of N states."""
    def normal(*shape, scale=1.0, dtype=torch.bfloat16):
        return (scale * torch.randn(*shape, device=device)).to(dtype)

    slots, channels = rows + rows // 2 + 2, H * P + 2 * G * N
    return dict(
        zxbcdt=normal(rows, H * P + channels + H),
        conv_weight=normal(channels, 4, scale=0.3), conv_bias=normal(channels, scale=0.1),
        conv_state=normal(slots, channels, 3), ssm_state=normal(slots, H, P, N, scale=0.1, dtype=STATES[state]),
        indices=torch.randperm(slots, device=device)[:rows].to(torch.int32),
        A_log=torch.rand(H, device=device) * 2, D=1 + normal(H, scale=0.1, dtype=torch.float32),
        dt_bias=normal(H, dtype=torch.float32) - 3, norm_weight=1 + normal(H * P, scale=0.1), groups=G,
    )


@fusec.fuse(example=example)
def mamba2_decode(zxbcdt, conv_weight, conv_bias, conv_state, ssm_state, indices, A_log, D, dt_bias, norm_weight, groups):
    """zxbcdt [R, H·P + (H·P + 2·G·N) + H], conv_weight [channels, 4], conv_bias [channels], conv_state [slots, channels, 3] and
    ssm_state [slots, H, P, N] in place at indices [R], A_log, D and dt_bias [H], norm_weight [H·P] -> [R, H·P] bf16."""
    slots, heads, dim, states = ssm_state.shape
    z, xbc, dt = zxbcdt.split([heads * dim, heads * dim + 2 * groups * states, heads], dim=-1)

    window = torch.cat([conv_state[indices], xbc.unsqueeze(-1)], dim=-1)
    conv_state[indices] = window[..., 1:]
    xbc = F.silu((window.float() * conv_weight.float()).sum(-1) + conv_bias.float()).to(zxbcdt.dtype)
    x, B, C = xbc.float().split([heads * dim, groups * states, groups * states], dim=-1)
    x = x.view(-1, groups, heads // groups, dim)
    B, C = (t.view(-1, groups, 1, 1, states) for t in (B, C))

    dt = F.softplus(dt.float() + dt_bias)
    decay = torch.exp(-torch.exp(A_log) * dt).view(-1, groups, heads // groups, 1, 1)
    dt = dt.view(-1, groups, heads // groups, 1)
    h = ssm_state[indices].float().view(-1, groups, heads // groups, dim, states)
    h = h * decay + (dt * x).unsqueeze(-1) * B
    ssm_state[indices] = h.flatten(1, 2).to(ssm_state.dtype)
    y = (h * C).sum(-1) + D.view(groups, -1, 1) * x

    y = y.flatten(2) * F.silu(z.float()).unflatten(-1, (groups, -1))
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + EPS)
    return (y.flatten(1) * norm_weight.float()).to(zxbcdt.dtype)
