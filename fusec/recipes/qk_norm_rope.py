"""Between the projection and attention (Qwen3: 32 query and 8 key heads of 128): q/k norm, rotary embedding, KV cache write.

One row holds all query, key and value heads. Queries and keys get an RMSNorm each, then turn by the position's angle, first half
against second half; keys and values go to their slot of the paged cache, as they are or in fp8 under a scale each.
"""
import torch
import torch.nn.functional as F

import fusec

EPS = 1e-6
PAGE = 16
FP8_MAX = 448.0  # The largest finite e4m3.


def example(rows, device, HQ=32, HK=8, D=128, cache="bf16"):
    """`rows` tokens of HQ query and HK key heads of D; pages of 16 tokens in bf16 or e4m3."""
    def normal(*shape, scale=1.0, dtype=torch.bfloat16):
        return (scale * torch.randn(*shape, device=device)).to(dtype)

    pages, kind = rows // PAGE + 3, {"bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}[cache]
    angle = torch.arange(4096, device=device)[:, None] * 1e6 ** (-torch.arange(0, D, 2, device=device) / D)
    scales = {f"{n}_scale": torch.full((1,), 0.02, device=device) for n in "kv"} if cache == "fp8" else {}
    return scales | dict(
        qkv=normal(rows, (HQ + 2 * HK) * D), q_weight=1 + normal(D, scale=0.1), k_weight=1 + normal(D, scale=0.1),
        cos_sin=torch.cat([angle.cos(), angle.sin()], -1), positions=torch.randint(4096, (rows,), device=device),
        k_cache=normal(pages, PAGE, HK, D).to(kind), v_cache=normal(pages, PAGE, HK, D).to(kind),
        slot_mapping=torch.randperm(pages * PAGE, device=device)[:rows],
    )


def turn(x, cos, sin):
    """x [R, heads, D] turned: its first half is the real part, its second half the imaginary one."""
    real, imaginary = x.chunk(2, dim=-1)
    return torch.cat([real * cos - imaginary * sin, imaginary * cos + real * sin], dim=-1)


@fusec.fuse(example=example)
def qk_norm_rope(qkv, q_weight, k_weight, cos_sin, positions, k_cache, v_cache, slot_mapping, k_scale=None, v_scale=None):
    """qkv [R, (HQ + 2·HK)·D] bf16, q_weight and k_weight [D], cos_sin [positions, D], positions [R], caches [pages, 16, HK, D]
    written at slot_mapping [R], with scales [1] where they are e4m3 -> queries [R, HQ, D] bf16."""
    heads, dim = k_cache.shape[2:]
    q, k, v = qkv.unflatten(-1, (-1, dim)).split([qkv.shape[1] // dim - 2 * heads, heads, heads], dim=1)
    cos, sin = cos_sin[positions].unsqueeze(1).chunk(2, dim=-1)
    q = turn(F.rms_norm(q.float(), (dim,), q_weight.float(), EPS), cos, sin).to(qkv.dtype)
    k = turn(F.rms_norm(k.float(), (dim,), k_weight.float(), EPS), cos, sin).to(qkv.dtype)
    if k_scale is not None:
        k = (k.float() / k_scale).clamp(-FP8_MAX, FP8_MAX)
        v = (v.float() / v_scale).clamp(-FP8_MAX, FP8_MAX)
    page, slot = slot_mapping // PAGE, slot_mapping % PAGE
    k_cache[page, slot] = k.to(k_cache.dtype)
    v_cache[page, slot] = v.to(v_cache.dtype)
    return q
