"""F11: strides beyond 2^31, unit dims with any stride, expanded dims: right, or an error where one element has two indices."""
import pytest
import torch

import fusec
from fusec.checker import compiled
from fusec.checker.storage import clone

from .steps import both, right, rmsnorm


@fusec.fuse(dynamic_shapes={"x": {1: torch.export.Dim("rows")}})
def norm_of_heads(x, w):
    """x [1, R, H, D] -> the same."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w


def given(rows=3, H=2, D=16):
    return dict(x=torch.randn(1, rows, H, D), w=torch.randn(D))


@pytest.mark.parametrize("stride", [0, 1, 7, 2 ** 31 + 8, 2 ** 40])
def test_the_stride_of_a_unit_dim_does_not_matter(stride, level, device):
    example = given()
    mine = clone(given(), device)
    x = mine["x"]
    odd = x.as_strided(x.shape, (stride, *x.stride()[1:]))
    out = compiled(norm_of_heads, example, level)(x=odd, w=mine["w"])[0]
    assert torch.allclose(out, norm_of_heads.reference(x, mine["w"]), rtol=1e-5, atol=1e-6)


def test_a_unit_dim_with_a_huge_stride_in_the_example(level):
    example = given()
    x = example["x"]
    right(norm_of_heads, dict(example, x=x.as_strided(x.shape, (2 ** 33, *x.stride()[1:]))), level)


@pytest.mark.parametrize("dim", [0, 1])
def test_an_expanded_input_is_right_or_refused(dim, level, device):
    def step(x, y):
        return x * y + 1.0

    base = torch.randn(1, 16) if dim == 0 else torch.randn(3, 1)
    wide = base.expand(3, 16)
    try:
        right(step, dict(x=torch.randn(3, 16), y=wide), level)
        eager, mine = both(step, dict(x=torch.randn(3, 16), y=wide), level, device)
        assert torch.allclose(eager[0][0], mine[0][0], rtol=1e-6, atol=1e-6)
    except fusec.FusecError as refusal:
        assert "y" in str(refusal) and "stride" in str(refusal)


def test_rows_that_all_are_one_row(level, device):
    """Expanded along the rows: the example has rows of its own, the call does not."""
    example = dict(x=torch.randn(4, 32).bfloat16(), weight=torch.randn(32))
    given = dict(x=torch.randn(1, 32).bfloat16().expand(5, 32), weight=torch.randn(32))
    eager, mine = both(rmsnorm, given, level, device, example)
    assert torch.allclose(eager[0][0].float(), mine[0][0].float(), rtol=1e-2)


def accumulate(x, total):
    total.add_(x)
    return total * 2.0


def test_an_expanded_tensor_that_is_written_is_refused():
    with pytest.raises(fusec.FusecError):
        fusec.compile(accumulate, dict(x=torch.randn(3, 16), total=torch.randn(1, 16).expand(3, 16)), arch="sm_90a")


@pytest.mark.gpu
def test_an_output_with_stride_zero_is_refused():
    artifact = fusec.compile(rmsnorm, dict(x=torch.randn(4, 32).bfloat16(), weight=torch.randn(32)))
    x, weight = torch.randn(4, 32, device="cuda").bfloat16(), torch.randn(32, device="cuda")
    with pytest.raises(fusec.ArgumentError, match="out"):
        artifact(x=x, weight=weight, out=torch.zeros(1, 32, device="cuda", dtype=torch.bfloat16).expand(4, 32))
    total = torch.zeros(1, 16, device="cuda").expand(4, 16)
    with pytest.raises(fusec.ArgumentError, match="total"):
        compiled_step = fusec.compile(accumulate, dict(x=torch.randn(3, 16), total=torch.randn(3, 16)))
        compiled_step(x=torch.randn(4, 16, device="cuda"), total=total)


def test_negative_and_broken_layouts_are_right_or_refused(level):
    base = torch.randn(6, 40)
    for x in (base[::2], base[:, ::2][:, :16], base.t()[:16].t(), base[:, 4:20]):
        try:
            right(rmsnorm, dict(x=x[:3, :16], weight=torch.randn(16)), level)
        except fusec.FusecError as refusal:
            assert "x" in str(refusal)
