"""The gated activation between the two products of an MLP: SwiGLU, and Kimi K3's SiTU; the result in bf16 or quantised.

SwiGLU is silu(gate)·up. SiTU limits both sides softly: β·tanh(gate/β)·sigmoid(gate) times λ·tanh(up/λ), β = 4 and λ = 25.
"""
import torch
import torch.nn.functional as F

import fusec

BETA, LINEAR_BETA = 4.0, 25.0
BLOCK = 128
FP8_MAX = 448.0  # The largest finite e4m3.


def example(rows, device, D=2048):
    """`rows` pairs of D: gate, then up."""
    return dict(x=(3 * torch.randn(rows, 2 * D, device=device)).to(torch.bfloat16))


@fusec.fuse(example=example)
def swiglu(x):
    """x [R, 2·D] bf16 -> [R, D] bf16, the activation rounded before the product as eager layers do it."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def situ_of(x):
    gate, up = x.float().chunk(2, dim=-1)
    return BETA * torch.tanh(gate / BETA) * torch.sigmoid(gate) * (LINEAR_BETA * torch.tanh(up / LINEAR_BETA))


@fusec.fuse(example=example)
def situ(x):
    """x [R, 2·D] bf16 -> [R, D] bf16."""
    return situ_of(x).to(x.dtype)


def quantise(y, block):
    """y [R, D] fp32 -> (e4m3 [R, D], scale [R, D / block]); the largest element of a block takes the largest code."""
    y = y.unflatten(-1, (-1, block))
    scale = (y.abs().amax(-1, keepdim=True) / FP8_MAX).clamp(min=1e-12)
    return (y / scale).to(torch.float8_e4m3fn).flatten(1), scale.squeeze(-1)


@fusec.fuse(example=example)
def swiglu_quant(x):
    """x [R, 2·D] bf16 -> ([R, D] e4m3, scale [R, D / 128] fp32)."""
    gate, up = x.float().chunk(2, dim=-1)
    return quantise(F.silu(gate) * up, BLOCK)


@fusec.fuse(example=example)
def situ_quant(x):
    """x [R, 2·D] bf16 -> ([R, D] e4m3, scale [R, 1] fp32)."""
    return quantise(situ_of(x), x.shape[1] // 2)
