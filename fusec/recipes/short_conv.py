"""One step of a causal depthwise convolution with SiLU: the window of the last inputs moves on in place.

Serving engines keep the windows in a pool of slots, in one of two layouts: [slots, C, W − 1] (DS), which is Mamba's own and that of
causal-conv1d, or [slots, W − 1, C] (SD), whose channels are contiguous (vLLM's VLLM_SSM_CONV_STATE_LAYOUT). A row of a padded
batch that takes no part has the index −1.
"""
from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import BFloat16, Float32, Int
from torch import Tensor

import fusec


def example(rows, device, C=200):
    """`rows` windows of C channels."""
    return dict(
        x=torch.randn(rows, C, device=device).to(torch.bfloat16),
        window=(0.1 * torch.randn(rows, C, 3, device=device)).to(torch.bfloat16),
        weight=0.1 * torch.randn(C, 4, device=device),
    )


@fusec.fuse(example=example)
def short_conv(x, window, weight):
    """x [R, C] bf16, window [R, C, 3] bf16 in place, oldest first, weight [C, 4] -> [R, C] bf16."""
    full = torch.cat([window, x.unsqueeze(-1)], dim=-1)
    window.copy_(full[:, :, 1:])
    return F.silu((full.float() * weight).sum(dim=-1)).to(x.dtype)


SIZES = dict(C=4608, W=4)


@fusec.fuse(example=SIZES)
def short_conv_ds(x: BFloat16[Tensor, "rows C"], pool: BFloat16[Tensor, "slots C W-1"], weight: Float32[Tensor, "C W"],
                  bias: Float32[Tensor, "C"], index: Int[Tensor, "rows"]):
    """A window is [C, W − 1], oldest first -> [rows, C] bf16, 0 for absent rows."""
    live = index >= 0
    full = torch.cat([fusec.load_rows(pool, index, where=live), x.unsqueeze(-1)], dim=-1)
    fusec.store_rows_(pool, index, full[..., 1:], where=live)
    y = F.silu((full.float() * weight).sum(dim=-1) + bias)
    return torch.where(live.unsqueeze(-1), y, 0.0).to(x.dtype)


@fusec.fuse(example=SIZES)
def short_conv_sd(x: BFloat16[Tensor, "rows C"], pool: BFloat16[Tensor, "slots W-1 C"], weight: Float32[Tensor, "C W"],
                  bias: Float32[Tensor, "C"], index: Int[Tensor, "rows"]):
    """A window is [W − 1, C], oldest first -> [rows, C] bf16, 0 for absent rows."""
    live = index >= 0
    full = torch.cat([fusec.load_rows(pool, index, where=live), x.unsqueeze(1)], dim=1)
    fusec.store_rows_(pool, index, full[:, 1:], where=live)
    y = F.silu((full.float() * weight.t()).sum(dim=1) + bias)
    return torch.where(live.unsqueeze(-1), y, 0.0).to(x.dtype)
