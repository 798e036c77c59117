"""One decode step of lightning attention (MiniMax-Text-01: 64 heads of 128): linear attention with a constant decay per head.

Query, key and value are SiLU of one projection, laid out by heads; the state [key, value] is fp32, paged, in place.
"""
import torch
import torch.nn.functional as F

import fusec


def example(rows, device, H=64, D=128):
    """`rows` requests of H heads of D among half as many slots again."""
    slots = rows + rows // 2 + 2
    return dict(
        qkv=torch.randn(rows, H * 3 * D, device=device).to(torch.bfloat16),
        kv_cache=0.1 * torch.randn(slots, H, D, D, device=device),
        slope=2.0 ** (-8 * torch.arange(1, H + 1, device=device) / H),
        slot_id=torch.randperm(slots, device=device)[:rows].to(torch.int32),
    )


@fusec.fuse(example=example)
def lightning_decode(qkv, kv_cache, slope, slot_id):
    """qkv [R, H·3·D] bf16, kv_cache [slots, H, key, value] in place at slot_id [R], slope [H] -> [R, H·D] bf16."""
    heads, dim = kv_cache.shape[1:3]
    q, k, v = F.silu(qkv.float()).view(-1, heads, 3, dim).unbind(2)
    kv = torch.exp(-slope)[:, None, None] * kv_cache[slot_id] + k[..., :, None] * v[..., None, :]
    kv_cache[slot_id] = kv
    return torch.matmul(q.unsqueeze(2), kv).to(qkv.dtype).flatten(1)
