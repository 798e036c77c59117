"""Residual add, RMSNorm and fp8 quantisation of a hidden state, as between two blocks of a transformer.

The codes' scale is that of the whole tensor, known beforehand; of the row; or of 128 elements. Without codes: the norm alone.
"""
import torch

import fusec

EPS = 1e-6
BLOCK = 128
FP8_MAX = 448.0  # The largest finite e4m3.


def example(rows, device, D=7168):
    """`rows` hidden states of width D."""
    def normal(*shape, scale=1.0):
        return (scale * torch.randn(*shape, device=device)).to(torch.bfloat16)

    return dict(x=normal(rows, D), residual=normal(rows, D, scale=2.0), weight=1 + normal(D, scale=0.1))


def scaled_example(rows, device, D=7168):
    """`rows` hidden states of width D and the scale of the codes."""
    return example(rows, device, D) | dict(scale=torch.full((1,), 0.02, device=device))


def add_norm(x, residual, weight):
    """The residual takes in x, in place; its norm times the weight, fp32."""
    residual.add_(x)
    h = residual.float()
    return h * torch.rsqrt(h.square().mean(-1, keepdim=True) + EPS) * weight.float()


def codes(h):
    """h in e4m3; what is beyond its range takes the largest code."""
    return h.clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)


@fusec.fuse(example=example)
def add_rmsnorm(x, residual, weight):
    """x [R, D] bf16 is added to residual [R, D] bf16 in place; its norm times weight [D] -> [R, D] bf16."""
    return add_norm(x, residual, weight).to(x.dtype)


@fusec.fuse(example=example)
def add_rmsnorm_quant(x, residual, weight):
    """x [R, D] bf16 is added to residual [R, D] bf16 in place; its norm times weight [D] -> ([R, D] e4m3, scale [R, 1] fp32),
    so that the product of both is the normalised row and the row's largest element takes the largest code."""
    h = add_norm(x, residual, weight)
    scale = (h.abs().amax(-1, keepdim=True) / FP8_MAX).clamp(min=1e-12)
    return codes(h / scale), scale


@fusec.fuse(example=scaled_example)
def add_rmsnorm_quant_static(x, residual, weight, scale):
    """As above with one scale [1] for all rows, known beforehand -> [R, D] e4m3."""
    return codes(add_norm(x, residual, weight) / scale)


@fusec.fuse(example=example)
def add_rmsnorm_quant_blocks(x, residual, weight):
    """As above with a scale per row and 128 elements -> ([R, D] e4m3, scale [R, D / 128] fp32)."""
    h = add_norm(x, residual, weight).unflatten(-1, (-1, BLOCK))
    scale = (h.abs().amax(-1, keepdim=True) / FP8_MAX).clamp(min=1e-12)
    return codes(h / scale).flatten(1), scale.squeeze(-1)
