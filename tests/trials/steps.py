"""Small decode steps that several trials share, and helpers that hold a compiled form against eager mode."""
from __future__ import annotations

from typing import Any

import torch

import fusec
from fusec.checker import compiled
from fusec.checker.storage import clone


def right(fn: Any, inputs: dict[str, Any], level: str, example: Any = None) -> Any:
    """The report of a check that has to pass."""
    report = fusec.check(fn, inputs, example, level=level)
    assert report.ok, str(report)
    return report


def outputs(found: Any) -> list[torch.Tensor]:
    if found is None:
        return []
    if isinstance(found, torch.Tensor):
        return [found]
    return list(found.values()) if isinstance(found, dict) else list(found)


def both(fn: Any, inputs: dict[str, Any], level: str, device: str = "cpu", example: Any = None):
    """((outputs, tensors after) in eager mode, the same compiled); each on copies of its own."""
    mine, other = clone(inputs, device), clone(inputs, device)
    with torch.no_grad():
        found = outputs(getattr(fn, "reference", fn)(**mine))
    return (found, mine), (compiled(fn, example or inputs, level)(**other), other)


def rmsnorm(x, weight):
    """x [R, D], weight [D] -> [R, D] of x's dtype."""
    h = x.float()
    return (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6) * weight).to(x.dtype)


def delta_rule(q, k, v, decay, beta, pool, slots):
    """One step on a paged state [slots, H, V, K]: forget by exp(decay) per key channel, move what the key finds towards v.

    q, k, decay [R, H, K], v [R, H, V], beta [R, H], slots [R] -> [R, H, V]."""
    h = pool[slots].float() * torch.exp(decay.float()).unsqueeze(-2)
    found = torch.einsum("rhvk,rhk->rhv", h, k.float())
    h = h + ((v.float() - found) * beta.float().unsqueeze(-1)).unsqueeze(-1) * k.float().unsqueeze(-2)
    pool[slots] = h.to(pool.dtype)
    return torch.einsum("rhvk,rhk->rhv", h, q.float()).to(v.dtype)


def delta_inputs(rows: int, slots: int, H: int = 2, K: int = 16, V: int = 16, state: torch.dtype = torch.float32,
                 device: str = "cpu") -> dict[str, torch.Tensor]:
    def normal(*shape, scale=1.0, dtype=torch.float32):
        return (scale * torch.randn(*shape)).to(device, dtype)

    bf16 = torch.bfloat16
    return dict(q=normal(rows, H, K, dtype=bf16, scale=K ** -0.5), k=normal(rows, H, K, dtype=bf16, scale=K ** -0.5),
                v=normal(rows, H, V, dtype=bf16), decay=-normal(rows, H, K).abs(), beta=torch.rand(rows, H).to(device),
                pool=normal(slots, H, V, K, dtype=state), slots=torch.randperm(slots)[:rows].to(device))


def conv_step(x, window, weight, slots):
    """Depthwise causal convolution over paged windows [slots, C, W − 1]: x [R, C], weight [C, W] -> [R, C], windows move on."""
    full = torch.cat([window[slots], x.unsqueeze(-1)], dim=-1)
    window[slots] = full[..., 1:]
    return torch.nn.functional.silu((full.float() * weight).sum(-1)).to(x.dtype)
