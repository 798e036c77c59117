"""Residual add, RMSNorm and fp8 quantisation of a hidden state, as between two blocks of a transformer."""
import torch

import fusec

EPS = 1e-6
FP8_MAX = 448.0  # The largest finite e4m3.


def example(rows, device, D=7168):
    """`rows` hidden states of width D."""
    def normal(*shape, scale=1.0):
        return (scale * torch.randn(*shape, device=device)).to(torch.bfloat16)

    return dict(x=normal(rows, D), residual=normal(rows, D, scale=2.0), weight=1 + normal(D, scale=0.1))


@fusec.fuse(example=example)
def add_rmsnorm_quant(x, residual, weight):
    """x [R, D] bf16 is added to residual [R, D] bf16 in place; its norm times weight [D] -> ([R, D] e4m3, scale [R, 1] fp32),
    so that the product of both is the normalised row and the row's largest element takes the largest code."""
    residual.add_(x)
    h = residual.float()
    h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + EPS) * weight.float()
    scale = (h.abs().amax(-1, keepdim=True) / FP8_MAX).clamp(min=1e-12)
    return (h / scale).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn), scale
