"""Kernels for other strides and poorer alignment that are asked for ahead of time; calls that find none, where that is an error."""
import pytest
import torch

import fusec
from fusec.recipes.short_conv import short_conv_ds
from fusec.runtime.variants import parse


def step(x, state, idx):
    h = state[idx] * 0.5 + x.float()
    state[idx] = h
    return h.to(x.dtype)


def inputs(rows=3):
    return dict(x=torch.randn(rows, 32).bfloat16(), state=torch.randn(5, 32), idx=torch.randperm(5)[:rows])


def as_eager(artifact, given, **more):
    mine = {n: t.clone() for n, t in given.items()}
    expected = step(**mine)
    found = artifact(**given, **more)
    torch.testing.assert_close(found.float(), expected.float(), rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(given["state"], mine["state"])


def shifted(rows, by):
    """Rows that begin `by` elements behind an aligned place, and lie an odd number of elements apart."""
    return torch.randn(rows, 67).bfloat16()[:, by:by + 32]


def test_an_artifact_holds_the_variants_that_were_asked_for(compiled):
    spread = torch.randn(5, 64)[:, ::2]
    artifact = fusec.compile(step, inputs(), arch="sm_90a", variants=["unaligned", {"x": 4}, {"state": spread}], strict=True)
    assert [a for _, a in compiled] == [{}, {"x": 2, "state": 4, "idx": 8, "out": 2}, {"x": 4}, {}]
    assert len(artifact.kernels) == 4
    as_eager(artifact, inputs(4))
    for by in (1, 2, 3):
        as_eager(artifact, inputs() | dict(x=shifted(3, by)))
    as_eager(artifact, inputs() | dict(x=torch.randn(3, 34).bfloat16()[:, 2:]))  # 4 bytes: the variant with wider accesses.
    as_eager(artifact, inputs() | dict(x=shifted(3, 1)), out=torch.empty(99).bfloat16()[3:].view(3, 32))
    as_eager(artifact, inputs() | dict(state=torch.randn(5, 64)[:, 1::2]))
    assert len(compiled) == 4
    given = inputs() | dict(state=torch.randn(32, 5).t())
    with pytest.raises(fusec.ArgumentError, match=r"would compile .*argument state: expected strides \[any, 1\], given \[1, 5\]"):
        artifact(**given)
    assert len(compiled) == 4


def test_strict_names_what_differs(compiled):
    artifact = fusec.compile(step, inputs(), arch="sm_90a", strict=True)
    given = inputs() | dict(x=shifted(3, 1))
    before = given["state"].clone()
    with pytest.raises(fusec.ArgumentError, match="for sm_90a; x is aligned to 2 bytes, which its strict=True forbids"):
        artifact(**given)
    assert torch.equal(before, given["state"]) and len(compiled) == 1


def test_without_strict_what_is_missing_is_compiled_once(compiled):
    artifact = fusec.compile(step, inputs(), arch="sm_90a", variants=[{"x": 8}])
    for _ in range(2):
        as_eager(artifact, inputs() | dict(x=shifted(3, 1)))
    assert [a for _, a in compiled] == [{}, {"x": 8}, {"x": 2}]


@pytest.mark.parametrize("variant, said", [
    ({"y": 2}, "y: expected one of x, state, idx, out"), ({"state": 2}, "state: expected a tensor, or a power of two from 4"),
    ({"x": 3}, "given 3"), ({"x": "2"}, "given str"), ("narrow", "expected 'unaligned' or a mapping"),
])
def test_what_is_no_variant(compiled, variant, said):
    with pytest.raises(fusec.ArgumentError, match=said):
        fusec.compile(step, inputs(), arch="sm_90a", variants=[variant])


def test_variants_on_the_command_line():
    assert parse("unaligned") == "unaligned" and parse("x=2,y=4") == {"x": 2, "y": 4}
    for wrong in ("x", "x=", "=2", "x=two"):
        with pytest.raises(fusec.FusecError, match="expected unaligned, or argument=bytes"):
            parse(wrong)


def test_declared_axes_tell_the_rows_from_a_single_row(compiled):
    """Without an example a first call with one row is refused: it looks like a constant. A declared axis is one."""
    fused = fusec.fuse(short_conv_ds.reference, example=dict(C=24, W=4))
    for rows, C in ((1, 24), (3, 24), (1, 40)):
        given = short_conv_ds.inputs(rows, C=C)
        mine = {n: t.clone() for n, t in given.items()}
        assert torch.allclose(fused(**given).float(), fused.reference(**mine).float(), rtol=2e-2, atol=1e-3)
        assert torch.equal(given["pool"], mine["pool"])
    assert len(compiled) == 2
