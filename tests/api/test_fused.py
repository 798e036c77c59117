"""Decorated functions called on the CPU: all the way from tensors to the kernel, whose interpreter stands in for a launch.

The interpreter checks bounds and alignment, so a variant that is chosen wrongly is an error.
"""
import pytest
import torch

import fusec
from fusec.checker.ulp import ulp_distance
from fusec.recipes.gla_decode import gla_decode
from fusec.recipes.kimi_k3_decode import kda_decode
from fusec.recipes.rmsnorm import add_rmsnorm_quant
from fusec.recipes.short_conv import short_conv


def fresh(fused, **sizes):
    return fusec.fuse(fused.reference, example=lambda rows, device: fused.example(rows, device, **sizes))


def as_eager(call, inputs, **more):
    mine = {n: t.clone() if isinstance(t, torch.Tensor) else t for n, t in inputs.items()}
    expected = call.reference(**mine)
    found = call(**inputs, **more)
    for a, b in zip(found if isinstance(found, tuple) else [found], expected if isinstance(expected, tuple) else [expected]):
        same(a, b, rtol=3e-2, atol=1e-2)
    for name, t in mine.items():
        if isinstance(t, torch.Tensor):
            same(inputs[name], t, rtol=1e-2, atol=1e-4)
    return found


def same(found, expected, rtol, atol):
    """Codes of 8 bits are steps of an eighth: there a neighbour is what a flipped rounding gives, and no tolerance fits."""
    if found.dtype.itemsize == 1 and found.is_floating_point():
        assert int(ulp_distance(found, expected).max()) <= 1 if found.numel() else found.shape == expected.shape
    else:
        torch.testing.assert_close(found.float(), expected.float(), rtol=rtol, atol=atol)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(4)


def test_examples_are_the_same_at_each_call_and_leave_the_generator_alone():
    before = torch.get_rng_state()
    first, second = gla_decode.inputs(3, H=1, K=8, V=8), gla_decode.inputs(3, H=1, K=8, V=8)
    assert all(torch.equal(first[n], second[n]) for n in first)
    assert torch.equal(before, torch.get_rng_state())


def test_rows_share_a_kernel_and_one_row_needs_no_other(compiled):
    step = fresh(short_conv)
    for rows in (1, 2, 5, 0, 7):
        as_eager(step, short_conv.inputs(rows, C=200))
    assert compiled == [("short_conv", {})]


def test_without_an_example_the_first_call_is_the_example(compiled):
    step = fusec.fuse(short_conv.reference)
    as_eager(step, short_conv.inputs(3, C=24))
    as_eager(step, short_conv.inputs(1, C=24))
    assert len(compiled) == 1
    with pytest.raises(fusec.CaptureError, match="two rows or more"):
        fusec.fuse(short_conv.reference)(**short_conv.inputs(1, C=24))


def test_other_sizes_dtypes_and_constants_are_other_artifacts(compiled):
    def scaled(x, y, by=2.0):
        return x * by + y

    step = fusec.fuse(scaled)
    for x in (torch.randn(3, 16), torch.randn(3, 24), torch.randn(3, 16).bfloat16(), torch.randn(1, 16).half(), torch.randn(4, 16)):
        as_eager(step, dict(x=x, y=torch.randn_like(x)))
    assert len(compiled) == 4
    x, y = torch.randn(3, 16), torch.randn(3, 16)
    for by in (3.0, 2.0, 3.0, -2.0, 2):
        torch.testing.assert_close(step(x, y, by), x * by + y)
        torch.testing.assert_close(step(x, y, by=by), x * by + y)
    assert len(compiled) == 7
    assert len(step.kernels) == 7


def test_rows_by_heads_with_other_heads_are_another_artifact(compiled):
    """The first dim of x is rows times heads: for other heads it is another multiple, with one row and with several."""
    def example(rows, device, H=4):
        return dict(x=torch.randn(rows * H, 6), lengths=torch.randint(1, 6, (rows,)), sink=torch.randn(H))

    @fusec.fuse(example=example)
    def by_heads(x, lengths, sink):
        rows, heads = lengths.shape[0], sink.shape[0]
        live = torch.arange(6) < lengths[:, None]
        return torch.where(live[:, None], x.view(rows, heads, 6), 0.0).sum(-1) + sink

    for rows, heads in [(3, 4), (3, 2), (1, 3), (5, 3), (1, 4)]:
        given = example(rows, "cpu", heads)
        torch.testing.assert_close(by_heads(**given), by_heads.reference(**given))
    assert len(compiled) == 3


def test_a_shape_that_does_not_fit_is_the_callers_error_with_expected_and_given(compiled):
    step = fresh(gla_decode, H=2, K=32, V=16)
    given = gla_decode.inputs(3, H=2, K=32, V=16)
    as_eager(step, given)
    before = given["pool"].clone()
    for change, message in (
        (dict(idx=given["idx"][:2]), r"argument idx: expected shape \[rows=3\] \(rows as in q\), given \[2\]"),
        (dict(g=given["g"][:, :1, :8]), r"argument g: expected shape \[rows.*, 2, 32\].*, given \[3, 1, 8\]"),
        (dict(g=given["g"][None]), r"argument g: expected shape \[rows.*, given \[1, 3, 2, 32\]"),
        (dict(v=given["v"][:1]), r"argument v: expected shape \[rows=3, .*given \[1, 2, 16\]"),
        (dict(idx=given["idx"].float()), "idx"),
    ):
        with pytest.raises(fusec.FusecError, match=message):
            step(**given | change)
    assert torch.equal(before, given["pool"])


def test_rows_that_start_unaligned_get_a_variant(compiled):
    step = fresh(add_rmsnorm_quant, D=256)
    as_eager(step, add_rmsnorm_quant.inputs(2, D=256))
    wide = torch.randn(3, 520).bfloat16()
    for start in (1, 8, 4, 1):
        as_eager(step, add_rmsnorm_quant.inputs(3, D=256) | dict(x=wide[:, start:start + 256]))
    as_eager(step, add_rmsnorm_quant.inputs(3, D=256) | dict(x=torch.randn(3, 257).bfloat16()[:, :256]))
    as_eager(step, add_rmsnorm_quant.inputs(1, D=256) | dict(x=torch.randn(1, 257).bfloat16()[:, :256]))
    assert [a for _, a in compiled] == [{}, {"x": 2}, {"x": 8}]


def test_layouts_of_the_paged_tensors(compiled):
    step, slots = fresh(kda_decode, H=1, D=32), 7
    conv, state = 0.1 * torch.randn(slots, 96, 3), 0.01 * torch.randn(slots, 1, 32, 32)
    for change in (
        dict(),
        dict(conv_state=conv.bfloat16()),  # (slot, 3, 1)
        dict(state=torch.empty(1, slots, 32, 32).permute(1, 0, 2, 3).copy_(state)),
        dict(state=torch.zeros(slots * 2, 1, 32, 32)[::2].copy_(state)),
    ):
        as_eager(step, kda_decode.inputs(3, H=1, D=32) | change)
    assert len(compiled) == 2
    page = 96 * 3 * 2 + 32 * 32 * 4
    storage = torch.zeros(slots * page, dtype=torch.uint8)
    given = kda_decode.inputs(3, H=1, D=32) | dict(
        conv_state=storage.view(torch.bfloat16).as_strided((slots, 96, 3), (page // 2, 1, 96)).copy_(conv),
        state=storage.view(torch.float32).as_strided((slots, 1, 32, 32), (page // 4, 1024, 32, 1), 144).copy_(state))
    as_eager(step, given)
    assert len(compiled) == 2


def test_outputs_may_be_the_callers(compiled):
    step, given = fresh(add_rmsnorm_quant, D=256), add_rmsnorm_quant.inputs(3, D=256)
    out = torch.empty(3, 256, dtype=torch.float8_e4m3fn), torch.empty(3, 1)
    assert as_eager(step, given, out=out)[0] is out[0]
    on_residual = given["residual"].view(torch.float8_e4m3fn).flatten()[:768].view(3, 256)
    with pytest.raises(fusec.ArgumentError, match="residual and out0 alias: they share memory, and residual is written"):
        step(**given, out=(on_residual, out[1]))


def test_tensors_in_containers_and_keyword_only_constants(compiled):
    def joined(pair, weights, *, scale=1.0):
        return (pair[0] * weights["a"] + pair[1]) * scale

    step, weight = fusec.fuse(joined), torch.randn(16)
    for rows in (3, 4, 1):
        pair = [torch.randn(rows, 16), torch.randn(rows, 16)]
        torch.testing.assert_close(step(pair, dict(a=weight), scale=2.0), joined(pair, dict(a=weight), scale=2.0))
    assert len(compiled) == 1


def turned(x, angles):
    """x [R, 8] bf16 in pairs, turned by complex angles [R, 4]."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * angles).flatten(-2).to(x.dtype)


def test_complex_arguments_are_taken_by_every_call(compiled):
    fn = fusec.fuse(turned)
    for seed in range(3):  # The first call learns that there are some; the later ones find its plan.
        torch.manual_seed(seed)
        x, angles = torch.randn(3, 8).bfloat16(), torch.polar(torch.ones(3, 4), torch.randn(3, 4))
        out = torch.empty_like(x)
        assert torch.equal(fn(x, angles), turned(x, angles)) and torch.equal(fn(x, angles, out=out), turned(x, angles))
    assert len(compiled) == 1
