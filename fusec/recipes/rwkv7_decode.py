"""One decode step of RWKV-7's time mixing, from the projections on: a delta rule whose removal and replacement keys differ.

The state [value, key] decays per channel, forgets what the unit removal key finds and takes in value ⊗ key; the read-out goes
through a group norm per head, a bonus for the current token, and a gate.
"""
import torch
import torch.nn.functional as F

import fusec

EPS = 64e-5
DECAY = -0.606531  # -exp(-1/2)


def example(rows, device, H=32, D=64):
    """`rows` sequences of H heads of D among half as many slots again."""
    def normal(*shape, scale=1.0, dtype=torch.bfloat16):
        return (scale * torch.randn(*shape, device=device)).to(dtype)

    slots, width = rows + rows // 2 + 2, H * D
    made = {name: normal(rows, width) for name in ("r", "w", "k", "v", "a", "g")}
    made |= {name: normal(width, scale=0.3) for name in ("k_k", "k_a", "r_k", "ln_weight", "ln_bias")}
    return made | dict(
        state=normal(slots, H, D, D, scale=0.1, dtype=torch.float32), idx=torch.randperm(slots, device=device)[:rows],
    )


@fusec.fuse(example=example)
def rwkv7_decode(r, w, k, v, a, g, k_k, k_a, r_k, ln_weight, ln_bias, state, idx):
    """r, w, k, v, a, g [R, H·D] bf16, k_k, k_a, r_k, ln_weight, ln_bias [H·D], state [slots, H, D, D] in place at idx [R]
    -> [R, H·D] bf16."""
    rows, (heads, dim) = r.shape[0], state.shape[1:3]
    a = torch.sigmoid(a.float())
    decay = torch.exp(DECAY * torch.sigmoid(w.float())).view(rows, heads, 1, dim)
    kk = F.normalize((k * k_k).float().view(rows, heads, dim), dim=-1, p=2.0)
    k = k.float() * (1 + (a - 1) * k_a.float())
    r, k, v, a = (t.float().view(rows, heads, dim) for t in (r, k, v, a))

    S = state[idx]
    removed = torch.einsum("bhij,bhj->bhi", S, -kk)
    S = S * decay + removed.unsqueeze(-1) * (kk * a).unsqueeze(-2) + v.unsqueeze(-1) * k.unsqueeze(-2)
    state[idx] = S
    y = torch.einsum("bhij,bhj->bhi", S, r)

    y = F.group_norm(y.flatten(1), heads, ln_weight.float(), ln_bias.float(), EPS)
    bonus = (r * k * r_k.float().view(heads, dim)).sum(-1, keepdim=True) * v
    return ((y + bonus.flatten(1)) * g.float()).to(torch.bfloat16)
