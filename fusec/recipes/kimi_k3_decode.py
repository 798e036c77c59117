"""The decode steps of Kimi K3's two kinds of layers, one token per row: Kimi Delta Attention, and the end of its latent attention.

A width-4 causal convolution over paged history with SiLU gives query, key and value of a row; they drive a gated delta rule on a
paged state [value, key] per head, updated in place; the result goes through a gated RMSNorm. Kimi K3 has 96 heads of 128; under
tensor parallelism a GPU holds 48, 24, 12, 6 or 3 of them. Every fourth layer is latent attention (MLA) instead, whose keys are
split among blocks; `mla_reduce` combines what the splits found.
"""
import torch
import torch.nn.functional as F

import fusec

from .split_kv_reduce import INF, combine, parts, used, weigh

LOWER_BOUND = -5.0  # Of the decay's logarithm.
UNIT_EPS = 1e-6  # Inside the square root that normalises query and key.
NORM_EPS = 1e-5

STATES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def example(rows, device, H=12, D=128, state="fp32"):
    """Inputs of realistic scale: `rows` requests among half as many slots again, H heads of D, the state in fp32 or bf16."""
    def normal(*shape, scale=1.0, dtype=torch.float32):
        return (scale * torch.randn(*shape, device=device)).to(dtype)

    slots, channels, bf16 = rows + rows // 2 + 2, 3 * H * D, torch.bfloat16
    return dict(
        x=normal(rows, channels, dtype=bf16),
        weight=normal(3, 4, H * D, scale=0.1),
        conv_state=normal(slots, 3, channels, scale=0.1, dtype=bf16).transpose(1, 2),
        raw_gate=normal(1, rows, H, D, dtype=bf16),
        raw_beta=normal(1, rows, H, dtype=bf16),
        A_log=normal(H, scale=0.5),
        dt_bias=normal(H * D, scale=0.1),
        state_indices=torch.randperm(slots, device=device)[:rows].to(torch.int32),
        state=normal(slots, H, D, D, scale=0.01, dtype=STATES[state]),
        output_gate=normal(rows, H, D, dtype=bf16),
        norm_weight=1 + normal(D, scale=0.1),
    )


@fusec.fuse(example=example)
def kda_decode(x, weight, conv_state, raw_gate, raw_beta, A_log, dt_bias, state_indices, state, output_gate, norm_weight):
    """x [R, 3·H·D] (query, key, value), weight [3, 4, H·D] oldest tap first, conv_state [slots, 3·H·D, 3] and state
    [slots, H, value, key] in place at `state_indices` [R], raw_gate [1, R, H, D], raw_beta [1, R, H], A_log [H], dt_bias [H·D],
    output_gate [R, H, D], norm_weight [D] -> [1, R, H, D] bf16."""
    rows, heads, dim = output_gate.shape
    slots = state_indices.long()

    # Convolve each channel over its last four inputs; the window moves on by one.
    window = torch.cat([conv_state.index_select(0, slots), x.unsqueeze(-1)], dim=-1)
    conv_state.index_copy_(0, slots, window[..., 1:])
    taps = weight.transpose(1, 2).reshape(-1, 4)
    y = F.silu((window.float() * taps).sum(-1)).to(torch.bfloat16)

    # Query, key and value; the first two have unit length, the query is scaled as in attention.
    q, k, v = y.float().view(rows, 3, heads, dim).unbind(1)
    q = q * (torch.rsqrt(q.square().sum(-1, keepdim=True) + UNIT_EPS) * dim ** -0.5)
    k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + UNIT_EPS)

    # How much each key channel forgets, and how much of the correction is written.
    gate = raw_gate.float().view(rows, heads, dim) + dt_bias.view(heads, dim)
    decay = torch.exp(LOWER_BOUND * torch.sigmoid(A_log.exp().unsqueeze(-1) * gate))
    beta = torch.sigmoid(raw_beta.float().view(rows, heads, 1))

    # The delta rule: forget, then move the value that the key finds towards v.
    h = state.index_select(0, slots).float() * decay.unsqueeze(-2)
    delta = (v - torch.einsum("rhvk,rhk->rhv", h, k)) * beta
    h = h + delta.unsqueeze(-1) * k.unsqueeze(-2)
    state.index_copy_(0, slots, h.to(state.dtype))
    o = torch.einsum("rhvk,rhk->rhv", h, q).to(torch.bfloat16).float()

    # Gated RMSNorm over a head.
    o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + NORM_EPS) * norm_weight
    return (o * torch.sigmoid(output_gate.float())).to(torch.bfloat16).unsqueeze(0)


def padded_example(rows, device, H=12, D=128, state="fp32"):
    """The same with a bias of the convolution, and with every fourth row absent: its index is −1."""
    made = example(rows, device, H, D, state)
    made["bias"] = 0.1 * torch.randn(3 * H * D, device=device)
    made["state_indices"][3::4] = -1
    return made


@fusec.fuse(example=padded_example)
def kda_decode_padded(x, weight, bias, conv_state, raw_gate, raw_beta, A_log, dt_bias, state_indices, state, output_gate,
                      norm_weight):
    """kda_decode for a batch that was padded to a fixed number of rows, with a bias [3·H·D] of the convolution.

    A row whose index is negative takes no part: it reads and writes no state, and its result is 0."""
    rows, heads, dim = output_gate.shape
    live = state_indices >= 0

    window = torch.cat([fusec.load_rows(conv_state, state_indices, where=live), x.unsqueeze(-1)], dim=-1)
    fusec.store_rows_(conv_state, state_indices, window[..., 1:], where=live)
    taps = weight.transpose(1, 2).reshape(-1, 4)
    y = F.silu((window.float() * taps).sum(-1) + bias).to(torch.bfloat16)

    q, k, v = y.float().view(rows, 3, heads, dim).unbind(1)
    q = q * (torch.rsqrt(q.square().sum(-1, keepdim=True) + UNIT_EPS) * dim ** -0.5)
    k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + UNIT_EPS)

    gate = raw_gate.float().view(rows, heads, dim) + dt_bias.view(heads, dim)
    decay = torch.exp(LOWER_BOUND * torch.sigmoid(A_log.exp().unsqueeze(-1) * gate))
    beta = torch.sigmoid(raw_beta.float().view(rows, heads, 1))

    h = fusec.load_rows(state, state_indices, where=live).float() * decay.unsqueeze(-2)
    delta = (v - torch.einsum("rhvk,rhk->rhv", h, k)) * beta
    h = h + delta.unsqueeze(-1) * k.unsqueeze(-2)
    fusec.store_rows_(state, state_indices, h, where=live)
    o = torch.einsum("rhvk,rhk->rhv", h, q).to(torch.bfloat16).float()

    o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + NORM_EPS) * norm_weight
    o = (o * torch.sigmoid(output_gate.float())).to(torch.bfloat16)
    return torch.where(live.view(-1, 1, 1), o, 0).unsqueeze(0)


def mla_example(rows, device, H=12, S=32, D=512, partial="bf16"):
    """`rows` tokens of H heads, S splits of 128 keys, latent values of D."""
    part, lengths = parts(rows, device, (rows, H, S, D), partial, S)
    return dict(partial=part, lse=torch.randn(rows, H, S, device=device), lengths=lengths)


@fusec.fuse(example=mla_example)
def mla_reduce(partial, lse, lengths):
    """partial [T, H, S, D] normalised, lse [T, H, S] natural, lengths [T] the number of keys -> ([T, H, D] bf16, lse [T, H])."""
    live = used(lengths, lse.shape[-1]).unsqueeze(1)
    part = torch.where(live.unsqueeze(-1), partial, 0.0)
    weight, total, top = weigh(torch.where(live, lse, -INF), -1)
    return combine(part, weight, total, 2).to(torch.bfloat16), top + total.log()
