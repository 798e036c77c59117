"""One decode step of lightning attention (MiniMax-Text-01: 64 heads of 128): linear attention with a constant decay per head.

Query, key and value are SiLU of one projection, laid out by heads; the state [key, value] is fp32, paged, in place.
"""
import torch
import torch.nn.functional as F

import fusec

EPS = 1e-6


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


def example_normed(rows, device, H=64, D=128):
    """The same, with a gate for every channel and the weight of the norm over all of them."""
    return example(rows, device, H, D) | dict(
        gate=torch.randn(rows, H * D, device=device).to(torch.bfloat16),
        norm_weight=(1 + 0.1 * torch.randn(H * D, device=device)).to(torch.bfloat16),
    )


@fusec.fuse(example=example_normed)
def lightning_decode_normed(qkv, kv_cache, slope, slot_id, gate, norm_weight):
    """As above, then RMSNorm over all heads of a row, norm_weight [H·D], and the sigmoid of gate [R, H·D] -> [R, H·D] bf16."""
    out = lightning_decode.reference(qkv, kv_cache, slope, slot_id).float()
    out = out * torch.rsqrt(out.square().mean(-1, keepdim=True) + EPS) * norm_weight.float()
    return (torch.sigmoid(gate.float()) * out).to(qkv.dtype)
