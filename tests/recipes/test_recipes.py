"""The shipped recipes: the functions are the steps they claim to be, and each becomes one kernel without spills."""
import math

import pytest
import torch

import fusec
from fusec.recipes.gla_decode import gla_decode
from fusec.recipes.kimi_k3_decode import kda_decode
from fusec.recipes.rmsnorm import add_rmsnorm_quant
from fusec.recipes.short_conv import short_conv

SMALL = [(kda_decode, dict(H=2, D=32)), (kda_decode, dict(H=2, D=32, state="bf16")), (gla_decode, dict(H=2, K=32, V=64)),
         (short_conv, dict(C=40)), (add_rmsnorm_quant, dict(D=256))]
FULL = [(kda_decode, {}), (kda_decode, dict(state="bf16")), (gla_decode, {}), (short_conv, {}), (add_rmsnorm_quant, {})]


def inputs(fused, rows, sizes):
    torch.manual_seed(rows)
    return fused.inputs(rows, **sizes)


@pytest.mark.parametrize("state", ["fp32", "bf16"])
def test_kda_decode_row_by_row_and_head_by_head(state):
    """The step spelled out for one head of one row: decay, correction, update, and the norm over the head."""
    given = inputs(kda_decode, 3, dict(H=2, D=16, state=state))
    i = {n: t.clone() for n, t in given.items()}
    out = kda_decode.reference(**i)
    assert out.shape == (1, 3, 2, 16) and out.dtype == torch.bfloat16
    for row, slot in enumerate(given["state_indices"].tolist()):
        window = torch.cat([given["conv_state"][slot], given["x"][row, :, None]], 1)
        assert torch.equal(i["conv_state"][slot], window[:, 1:])
        for head in range(2):
            y = []
            for part in range(3):
                at = slice(part * 32 + head * 16, part * 32 + head * 16 + 16)
                taps = given["weight"][part, :, head * 16:head * 16 + 16].t()
                total = (window[at].float() * taps).sum(1)
                y.append((total / (1 + torch.exp(-total))).bfloat16().float())
            q, k, v = y
            q, k = q / torch.sqrt(q @ q + 1e-6) / math.sqrt(16), k / torch.sqrt(k @ k + 1e-6)
            gate = given["raw_gate"][0, row, head].float() + given["dt_bias"][head * 16:head * 16 + 16]
            decay = torch.exp(-5 * torch.sigmoid(torch.exp(given["A_log"][head]) * gate))
            beta = torch.sigmoid(given["raw_beta"][0, row, head].float())
            h = given["state"][slot, head].float() * decay
            h = h + torch.outer(beta * (v - h @ k), k)
            tolerance = dict(rtol=2e-2, atol=1e-4) if state == "bf16" else dict(rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(i["state"][slot, head].float(), h, **tolerance)
            o = (h @ q).bfloat16().float()
            z = torch.sigmoid(given["output_gate"][row, head].float())
            o = o / torch.sqrt(o.square().mean() + 1e-5) * given["norm_weight"] * z
            torch.testing.assert_close(out[0, row, head].float(), o, rtol=3e-2, atol=2e-2)
    others = [s for s in range(len(given["state"])) if s not in given["state_indices"]]
    for pool in ("state", "conv_state"):
        assert torch.equal(i[pool][others], given[pool][others])


def test_kda_decode_has_the_layout_that_serving_engines_use():
    given = inputs(kda_decode, 4, dict(H=3, D=128))
    assert given["conv_state"].stride()[1:] == (1, 3 * 3 * 128) and given["weight"].shape == (3, 4, 3 * 128)
    assert given["state"].shape[1:] == (3, 128, 128) and len(set(given["state_indices"].tolist())) == 4


def test_gla_decode_row_by_row():
    given = inputs(gla_decode, 3, dict(H=2, K=6, V=10))
    i = {n: t.clone() for n, t in given.items()}
    out = gla_decode.reference(**i)
    for row, slot in enumerate(given["idx"].tolist()):
        for head in range(2):
            k, v, q = (given[n][row, head].float() for n in "kvq")
            h = torch.diag(torch.exp(given["g"][row, head])) @ given["pool"][slot, head] + torch.outer(k, v)
            torch.testing.assert_close(i["pool"][slot, head], h, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(out[row, head].float(), h.t() @ q / math.sqrt(6), rtol=1e-2, atol=1e-3)


def test_short_conv_returns_the_tap_that_is_one():
    x, window = torch.full((2, 8), 4.0).bfloat16(), torch.tensor([1.0, 2.0, 3.0]).expand(2, 8, 3).contiguous().bfloat16()
    for tap in range(4):
        moved = window.clone()
        out = short_conv.reference(x, moved, torch.eye(4)[tap].expand(8, 4).contiguous())
        assert torch.equal(out, torch.nn.functional.silu(torch.full((2, 8), tap + 1.0)).bfloat16())
        assert torch.equal(moved, torch.tensor([2.0, 3.0, 4.0]).expand(2, 8, 3).bfloat16())


def test_add_rmsnorm_quant_scales_each_row_to_the_largest_code():
    given = inputs(add_rmsnorm_quant, 3, dict(D=64))
    residual = given["residual"].clone()
    codes, scale = add_rmsnorm_quant.reference(given["x"], residual, given["weight"])
    assert torch.equal(residual, given["residual"] + given["x"]) and codes.dtype == torch.float8_e4m3fn
    h = torch.nn.functional.rms_norm(residual.float(), (64,), given["weight"].float(), 1e-6)
    assert (codes.float().abs().amax(1) == 448).all() and scale.shape == (3, 1)
    torch.testing.assert_close(codes.float() * scale, h, rtol=0.07, atol=1e-3)
    assert torch.isfinite(add_rmsnorm_quant.reference(0 * given["x"], 0 * residual, given["weight"])[0].float()).all()


@pytest.mark.parametrize("fused, sizes", SMALL)
@pytest.mark.parametrize("level", ["graph", "kernel"])
def test_what_each_recipe_becomes_is_what_it_computes(fused, sizes, level):
    report = fusec.check(fused, inputs(fused, 3, sizes), level=level)
    assert report.ok, str(report)


@pytest.mark.recipes
@pytest.mark.parametrize("fused, sizes", FULL)
def test_each_recipe_is_one_kernel_without_spills_on_every_architecture(fused, sizes):
    artifact = fused.compile("sm_90a,sm_100a", **sizes)
    assert [k.arch for k in artifact.kernels] == ["sm_90a", "sm_100a"]
    for kernel in artifact.kernels:
        assert kernel.resources["spills"] == 0 and kernel.source.count("\n") < 350, (kernel.arch, kernel.resources)
