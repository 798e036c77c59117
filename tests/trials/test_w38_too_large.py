"""W38: shared memory over the limit must be found when planning, with bytes, limit and buffer, not at the launch."""
import time

import pytest
import torch

import fusec
from fusec.api import capture_graph
from fusec.compiler import plan
from fusec.target import TARGETS

from .steps import delta_inputs, delta_rule


def conv_delta_norm(x, window, taps, gate, pool, slots, weight):
    """Convolution, delta rule and gated norm in one: x [R, 3, D], window [slots, 3, D, 3], taps [3, D, 4], gate [R, D]."""
    full = torch.cat([window[slots], x.unsqueeze(-1)], -1)
    window[slots] = full[..., 1:]
    q, k, v = torch.nn.functional.silu((full.float() * taps).sum(-1)).unbind(1)
    h = pool[slots] * torch.sigmoid(gate.float()).unsqueeze(-2)
    delta = v - torch.einsum("rvk,rk->rv", h, k)
    h = h + delta.unsqueeze(-1) * k.unsqueeze(-2)
    pool[slots] = h
    o = torch.einsum("rvk,rk->rv", h, q)
    o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + 1e-5) * weight
    return (o * torch.sigmoid(gate.float())).to(x.dtype)


def conv_delta_inputs(D):
    bf16 = torch.bfloat16
    return dict(x=torch.randn(2, 3, D).to(bf16), window=torch.randn(4, 3, D, 3).to(bf16), taps=torch.randn(3, D, 4),
                gate=torch.randn(2, D).to(bf16), pool=torch.randn(4, D, D), slots=torch.tensor([3, 1]), weight=torch.randn(D))


def planned(fn, given, arch):
    """(seconds, spec or the refusal) of planning a captured function for an arch."""
    stages = capture_graph(fn, given)
    began = time.perf_counter()
    try:
        made = plan(stages.captured, arch, until="kernel")
        return time.perf_counter() - began, made.need("kernel"), None
    except fusec.ResourceError as refusal:
        return time.perf_counter() - began, None, str(refusal)


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("fn, given", [
    (delta_rule, lambda: delta_inputs(2, 4, 1, 256, 256)), (delta_rule, lambda: delta_inputs(2, 4, 1, 512, 512)),
    (delta_rule, lambda: delta_inputs(2, 4, 1, 1024, 1024)), (conv_delta_norm, lambda: conv_delta_inputs(192)),
    (conv_delta_norm, lambda: conv_delta_inputs(256)), (conv_delta_norm, lambda: conv_delta_inputs(768))],
    ids=["256", "512", "1024", "fused 192", "fused 256", "fused 768"])
def test_a_plan_fits_or_says_what_does_not(fn, given, arch):
    seconds, spec, refusal = planned(fn, given(), arch)
    limit = TARGETS[arch].smem_per_block
    if spec is not None:
        assert spec.smem.total <= limit and all(b.offset + b.bytes <= spec.smem.total for b in spec.smem.buffers)
        return
    assert seconds < 1.0, f"refused after {seconds:.1f} s"
    numbers = [int(w.replace(",", "")) for w in refusal.replace(".", " ").split() if w.replace(",", "").isdigit()]
    assert len(numbers) >= 2 and max(numbers) > min(n for n in numbers if n > 255), f"bytes needed and the limit: {refusal}"
    assert any(name in refusal for name in ("pool", "h", "state")), f"which buffer: {refusal}"
