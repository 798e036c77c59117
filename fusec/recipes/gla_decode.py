"""One decode step of gated linear attention, one token per row, on a paged state [key, value] with unequal sides.

Each key channel forgets by its own gate, the outer product of key and value is added, and the query reads the new state.
"""
import torch

import fusec


def example(rows, device, H=4, K=96, V=192):
    """`rows` requests among half as many slots again, H heads, keys of K and values of V; the state is fp32."""
    def normal(*shape, scale=1.0, dtype=torch.bfloat16):
        return (scale * torch.randn(*shape, device=device)).to(dtype)

    slots = rows + rows // 2 + 2
    return dict(
        q=normal(rows, H, K), k=normal(rows, H, K), v=normal(rows, H, V),
        g=-0.1 * normal(rows, H, K, dtype=torch.float32).abs(),
        pool=normal(slots, H, K, V, scale=0.1, dtype=torch.float32),
        idx=torch.randperm(slots, device=device)[:rows],
    )


@fusec.fuse(example=example)
def gla_decode(q, k, v, g, pool, idx):
    """q, k [R, H, K] and v [R, H, V] bf16, g [R, H, K] the decay's logarithm, pool [slots, H, K, V] in place at idx [R]
    -> [R, H, V] bf16."""
    scale = q.shape[-1] ** -0.5
    h = pool[idx] * torch.exp(g)[..., None] + k.float()[..., :, None] * v.float()[..., None, :]
    pool[idx] = h
    o = (q.float() * scale).unsqueeze(-2) @ h
    return o.squeeze(-2).to(q.dtype)
