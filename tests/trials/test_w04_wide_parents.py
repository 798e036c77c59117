"""W04: a tensor is small, but a view of a wide parent, so row times stride leaves 32 bits."""
import pytest
import torch

from fusec.checker import compiled

from .steps import rmsnorm


@pytest.mark.parametrize("offset", [1000, *(pytest.param(n, marks=pytest.mark.slow) for n in (0, 1003))])
def test_a_few_rows_very_far_apart(offset, level, device):
    """Row 3 lies beyond 2^31 elements, row 5 beyond 2^32; column slices may start unaligned."""
    rows, width, stride = 6, 72, 2 ** 30 - 7 + 8 * 91
    parent = torch.empty((rows - 1) * stride + 4096, dtype=torch.bfloat16, device=device)
    x = parent.as_strided((rows, width), (stride, 1), offset)
    x.copy_(torch.randn(rows, width).bfloat16())
    weight = torch.randn(width, device=device)
    dense = x.clone()
    step = compiled(rmsnorm, dict(x=dense, weight=weight), level)
    wanted = step(x=dense, weight=weight)[0]
    assert torch.equal(step(x=x, weight=weight)[0], wanted)
    assert torch.allclose(wanted.float(), rmsnorm(dense, weight).float(), rtol=1e-2)


@pytest.mark.gpu
def test_a_slice_of_a_parent_of_five_gigabytes():
    parent = torch.zeros(40000, 65536, dtype=torch.bfloat16, device="cuda")
    x = parent[:, 1000:1256]
    x.copy_(torch.randn(40000, 256).bfloat16())
    weight = torch.randn(256, device="cuda")
    out = compiled(rmsnorm, dict(x=torch.randn(4, 256).bfloat16(), weight=weight.cpu()), "gpu")(x=x, weight=weight)[0]
    wanted = rmsnorm(x, weight)
    for row in (0, 32767, 32768, 39999):
        assert torch.allclose(out[row].float(), wanted[row].float(), rtol=1e-2), row
    assert ((out.float() - wanted.float()).abs() <= 2e-2 * wanted.float().abs()).all()
