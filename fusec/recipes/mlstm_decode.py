"""One decode step of xLSTM's matrix memory (8 heads; xLSTM-7B has keys of 256 and values of 512): exponential gates, kept in range.

Three states per head move together in place: the memory [key, value], the normaliser [key] and the running maximum of the gates'
logarithms, which keeps every exponential at or below 1. The result is divided by what the query finds in the normaliser, normalised
per head and gated.
"""
import torch
import torch.nn.functional as F

import fusec

CAP = 15.0  # Gates are softly limited to ±CAP.
EPS = 1e-6


def example(rows, device, H=8, K=256, V=512):
    """`rows` requests of H heads, keys of K, values of V, among half as many slots again."""
    def normal(*shape, scale=1.0, dtype=torch.bfloat16):
        return (scale * torch.randn(*shape, device=device)).to(dtype)

    slots, f32 = rows + rows // 2 + 2, torch.float32
    return dict(
        q=normal(rows, H, K), k=normal(rows, H, K), v=normal(rows, H, V), i=normal(rows, H), f=3 + normal(rows, H),
        o_gate=normal(rows, H * V), norm_weight=1 + normal(H * V, scale=0.1),
        memory=normal(slots, H, K, V, scale=0.1, dtype=f32), normaliser=normal(slots, H, K, dtype=f32),
        maximum=normal(slots, H, dtype=f32), idx=torch.randperm(slots, device=device)[:rows],
    )


@fusec.fuse(example=example)
def mlstm_decode(q, k, v, i, f, o_gate, norm_weight, memory, normaliser, maximum, idx):
    """q, k [R, H, K], v [R, H, V], i and f [R, H] before their exponential and sigmoid, o_gate [R, H·V], norm_weight [H·V], memory
    [slots, H, K, V], normaliser [slots, H, K] and maximum [slots, H] in place at idx [R] -> [R, H·V] bf16."""
    heads, dim = v.shape[1:]
    i, f = (CAP * torch.tanh(t.float() / CAP) for t in (i, f))
    log_f = F.logsigmoid(f) + maximum[idx]
    top = torch.maximum(log_f, i)
    keep, add = torch.exp(log_f - top), torch.exp(i - top)

    k, q, v = k.float() * k.shape[-1] ** -0.5, q.float(), v.float()
    C = keep[..., None, None] * memory[idx] + add[..., None, None] * (k[..., :, None] * v[..., None, :])
    n = keep[..., None] * normaliser[idx] + add[..., None] * k
    memory[idx], normaliser[idx], maximum[idx] = C, n, top

    found = torch.maximum((n * q).sum(-1).abs(), torch.exp(-top)) + EPS
    h = torch.einsum("rhkv,rhk->rhv", C, q) / found[..., None]
    h = F.layer_norm(h, (dim,), eps=EPS).flatten(1) * norm_weight.float()
    return (torch.sigmoid(o_gate.float()) * h).to(o_gate.dtype)
