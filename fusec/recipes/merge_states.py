"""Merging complete attention results, the cascade form: each comes with the log-sum-exp of its own keys.

The forms of FlashInfer (merge_state, merge_state_in_place, merge_states: logarithms of base 2, [T, H]) and of vLLM
(merge_attn_states: natural logarithms, [H, T]). Merging nothing with nothing gives 0 and -inf, and what stands in a result without
weight, NaN included, does not matter.
"""
import torch

import fusec

INF = float("inf")


def weights(a, b, exp):
    """What each of two results weighs beside the heavier one, and the heavier one's logarithm; -inf weighs nothing."""
    top = torch.maximum(a, b)
    top = torch.where(top == -INF, 0.0, top)
    return exp(a - top), exp(b - top), top


def mean(v_a, weight_a, v_b, weight_b):
    """The weighted mean, fp32; 0 where neither has weight."""
    total = weight_a + weight_b
    out = torch.where(weight_a > 0, v_a.float(), 0.0) * weight_a + torch.where(weight_b > 0, v_b.float(), 0.0) * weight_b
    return out / torch.where(total > 0, total, 1.0)


def two(rows, device, H=32, D=128):
    """Two results of `rows` tokens of H heads of D; one token has no keys at all."""
    made = {}
    for name in ("a", "b"):
        made[f"v_{name}"] = torch.randn(rows, H, D, device=device).to(torch.bfloat16)
        made[f"s_{name}"] = 3 * torch.randn(rows, H, device=device)
        made[f"s_{name}"][rows // 2] = -INF
    return made


@fusec.fuse(example=two)
def merge_state(v_a, s_a, v_b, s_b):
    """v [T, H, D], s [T, H] base 2, twice -> ([T, H, D] of v's dtype, [T, H])."""
    weight_a, weight_b, top = weights(s_a, s_b, torch.exp2)
    out = mean(v_a, weight_a.unsqueeze(-1), v_b, weight_b.unsqueeze(-1))
    return out.to(v_a.dtype), top + torch.log2(weight_a + weight_b)


def in_place(rows, device, H=32, D=128):
    """As above; some tokens have nothing to merge."""
    made = two(rows, device, H, D)
    mask = torch.arange(rows, device=device) % 3 != 1
    return dict(v=made["v_a"], s=made["s_a"], v_other=made["v_b"], s_other=made["s_b"], mask=mask)


@fusec.fuse(example=in_place)
def merge_state_in_place(v, s, v_other, s_other, mask):
    """v [T, H, D] and s [T, H] base 2 take in v_other and s_other in place, for the tokens of mask [T]."""
    live = mask[:, None]
    weight, weight_other, top = weights(s, torch.where(live, s_other, -INF), torch.exp2)
    other = torch.where(live[..., None], v_other, 0.0)
    out = mean(v, weight.unsqueeze(-1), other, weight_other.unsqueeze(-1))
    v.copy_(torch.where(live[..., None], out.to(v.dtype), v))
    s.copy_(torch.where(live, top + torch.log2(weight + weight_other), s))


def several(rows, device, H=32, D=128, S=4):
    """S results of `rows` tokens of H heads of D; one token has no keys at all."""
    s = 3 * torch.randn(rows, S, H, device=device)
    s[rows // 2] = -INF
    return dict(v=torch.randn(rows, S, H, D, device=device).to(torch.bfloat16), s=s)


@fusec.fuse(example=several)
def merge_states(v, s):
    """v [T, S, H, D], s [T, S, H] base 2 -> ([T, H, D] of v's dtype, [T, H])."""
    top = s.amax(1, keepdim=True)
    top = torch.where(top == -INF, 0.0, top)
    weight = torch.exp2(s - top)
    total = weight.sum(1)
    part = torch.where(weight.unsqueeze(-1) > 0, v.float(), 0.0)
    out = (weight.unsqueeze(-1) * part).sum(1) / torch.where(total > 0, total, 1.0).unsqueeze(-1)
    return out.to(v.dtype), top.squeeze(1) + total.log2()


def prefix_suffix(rows, device, H=32, D=128):
    """A prefix that many share, and the rest of each of `rows` tokens."""
    made = two(rows, device, H, D)
    return dict(
        prefix_output=made["v_a"], prefix_lse=made["s_a"].t().contiguous(),
        suffix_output=made["v_b"], suffix_lse=made["s_b"].t().contiguous(),
    )


@fusec.fuse(example=prefix_suffix, dynamic_shapes={"prefix_output": {0: torch.export.Dim("tokens")}})
def merge_attn_states(prefix_output, prefix_lse, suffix_output, suffix_lse):
    """output [T, H, D], lse [H, T] natural, twice -> ([T, H, D] of output's dtype, [H, T]). Some kernels give +inf for no keys."""
    prefix_lse = torch.where(prefix_lse == INF, -INF, prefix_lse)
    suffix_lse = torch.where(suffix_lse == INF, -INF, suffix_lse)
    prefix, suffix, top = weights(prefix_lse, suffix_lse, torch.exp)
    out = mean(prefix_output, prefix.t().unsqueeze(-1), suffix_output, suffix.t().unsqueeze(-1))
    return out.to(prefix_output.dtype), top + torch.log(prefix + suffix)
