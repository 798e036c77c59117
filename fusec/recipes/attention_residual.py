"""Kimi K3's attention residual: a layer's input is a softmax-weighted mean of earlier snapshots of the hidden state, not their sum.

Layers come in blocks; at the end of each a snapshot is kept. A layer scores every snapshot, and the running sum of its own block,
by its learned query against their RMSNorm, and mixes the unnormalised ones (Attention Residuals, arXiv 2603.15031, block form).
"""
import torch

import fusec

EPS = 1e-5


def example(rows, device, N=8, D=7168):
    """`rows` hidden states of width D with N snapshots each."""
    def normal(*shape, scale=1.0):
        return (scale * torch.randn(*shape, device=device)).to(torch.bfloat16)

    return dict(
        snapshots=normal(N, rows, D), partial=normal(rows, D), x=normal(rows, D, scale=0.3), query=normal(D, scale=0.02),
        norm_weight=1 + normal(D, scale=0.1),
    )


@fusec.fuse(example=example)
def attention_residual(snapshots, partial, x, query, norm_weight):
    """snapshots [N, R, D] and the running sum partial [R, D], bf16, which first takes in the last layer's x [R, D] in place;
    query and norm_weight [D] -> [R, D] bf16."""
    partial += x
    v = torch.cat([snapshots, partial.unsqueeze(0)]).float()
    k = v * torch.rsqrt(v.square().mean(-1, keepdim=True) + EPS) * norm_weight.float()
    score = torch.einsum("d,nrd->nr", query.float(), k)
    return torch.einsum("nr,nrd->rd", score.softmax(0), v).to(x.dtype)
