"""Each row of the op registry against torch, by its samples: a new op is tested by being added."""

import pytest
import torch

from fusec.capture.ops import OPS, nearest, supported

from .samples import DTYPES, captured

ROWS = [(target, sample) for target, row in sorted(OPS.items()) for sample in row.samples]

# Where torch on the CPU rounds a narrow result more than once, and CUDA (which the graph follows) does not.
TWICE_ON_CPU = {
    "aten.linear.default": "the bias is added to a rounded product",
    "aten.rsqrt.default": "the square root is rounded",
    "aten.pow.Tensor_Scalar": "the square root is rounded",
    "aten.prod.default": "each product is rounded",
    "aten.prod.dim_int": "each product is rounded",
    "aten.softmax.int": "kept in bf16 between passes",
    "aten.log_softmax.int": "kept in bf16 between passes",
    "aten.special_softmax.default": "kept in bf16 between passes",
    "aten.special_log_softmax.default": "kept in bf16 between passes",
    **{
        f"aten.{op}": "the constant, or alpha, is rounded"
        for op in (
            "add.Tensor",
            "add.Scalar",
            "sub.Tensor",
            "sub.Scalar",
            "rsub.Tensor",
            "rsub.Scalar",
            "subtract.Tensor",
            "subtract.Scalar",
        )
    },
}


@pytest.fixture(scope="module")
def results():
    return {name: captured(ROWS, dtype) for name, dtype in DTYPES.items()}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0].removeprefix('aten.')}({row[1]})")
def test_row_gives_what_eager_gives(results, row, dtype):
    got, want = results[dtype][row]
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    loose = row[0] in TWICE_ON_CPU
    rtol, atol = (
        (2**-7, 2**-7) if loose and dtype == "bf16" else (0, 0) if want.dtype in (torch.bfloat16, torch.float16) else (3e-6, 1e-6)
    )
    torch.testing.assert_close(got.double(), want.double(), rtol=rtol, atol=atol, equal_nan=True)


def test_every_row_without_a_sample_refuses_or_is_undefined():
    bare = {t for t, row in OPS.items() if not row.samples}
    assert bare == {
        "aten.empty.memory_format",
        "aten.new_empty.default",
        "aten.empty_like.default",
        "aten.empty_strided.default",
        "aten.new_empty_strided.default",
        "aten.index_reduce.default",
    }


def test_targets_exist_in_torch():
    for target in supported():
        space, name, overload = target.split(".")
        assert hasattr(getattr(getattr(torch.ops, space), name), overload), target


def test_nearest_names_come_from_the_registry():
    assert "layer_norm" in nearest("native_layer_norm")
    assert nearest("zzzz") == []
