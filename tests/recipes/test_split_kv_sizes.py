"""The split-KV reductions over the sizes people run: every pair of head size, heads and splits, and every length at an edge."""
from __future__ import annotations

import pytest
import torch

import fusec
from fusec.recipes import split_kv_reduce as reduce
from fusec.recipes.kimi_k3_decode import mla_reduce

pytestmark = pytest.mark.recipes
INF = float("inf")
KEYS = reduce.KEYS

# Head size, heads, splits: every pair of two values occurs among the first 25; splits go up to more than a block holds at once.
SIZES = [
    (64, 1, 1), (64, 8, 2), (64, 12, 7), (64, 16, 32), (64, 64, 64), (100, 1, 2), (100, 8, 7), (100, 12, 32), (100, 16, 64),
    (100, 64, 1), (128, 1, 7), (128, 8, 32), (128, 12, 64), (128, 16, 1), (128, 64, 2), (256, 1, 32), (256, 8, 64), (256, 12, 1),
    (256, 16, 2), (256, 64, 7), (512, 1, 64), (512, 8, 1), (512, 12, 2), (512, 16, 7), (512, 64, 32), (64, 128, 7), (512, 2, 256),
]


def edges(splits: int) -> torch.Tensor:
    """Lengths [T] at the edges: none, one, around one split, and all of them."""
    return torch.tensor([0, 1, KEYS - 1, KEYS, KEYS + 1, splits * KEYS], dtype=torch.int32).clamp(max=splits * KEYS)


@pytest.mark.parametrize("dim, heads, splits", SIZES)
def test_lengths_at_every_edge(dim, heads, splits):
    torch.manual_seed(3)
    given = reduce.reduce_natural.inputs(6, H=heads, S=splits, D=dim) | {"lengths": edges(splits)}
    report = fusec.check(reduce.reduce_natural, given, level="kernel")
    assert report.ok, str(report)


@pytest.mark.parametrize("fused", [reduce.reduce_base2, reduce.reduce_max_sum, reduce.reduce_grouped, mla_reduce],
                         ids=lambda f: f.__name__)
@pytest.mark.parametrize("partial", ["bf16", "fp16", "fp32"])
def test_every_dtype_of_the_parts(fused, partial):
    torch.manual_seed(3)
    given = fused.inputs(6, H=4, S=7, D=100, **({} if fused is mla_reduce else {"partial": partial}))
    if fused is mla_reduce and partial != "bf16":
        given["partial"] = given["partial"].to(reduce.DTYPES[partial])
    given["lengths"] = edges(7)
    report = fusec.check(fused, given, level="kernel")
    assert report.ok, str(report)


def test_a_length_beyond_what_was_picked_reads_no_further():
    """Lengths [T] above the number of splits, and negative ones, are what the function makes of them: all splits, or none."""
    torch.manual_seed(3)
    given = reduce.reduce_grouped.inputs(5, H=2, S=4, D=64)
    given["lengths"] = torch.full((5,), 10 ** 6, dtype=torch.int32)
    given["topk_lengths"] = torch.tensor([0, 63, 4 * KEYS, 10 ** 6, -1], dtype=torch.int32)
    report = fusec.check(reduce.reduce_grouped, given, level="kernel")
    assert report.ok, str(report)
    out, lse = fusec.checker.compiled(reduce.reduce_grouped, given, "kernel")(**{n: t.clone() for n, t in given.items()})
    assert (out[[0, 4]].float() == 0).all() and (lse[[0, 4]] == -INF).all() and lse[1:4].isfinite().all()


@pytest.mark.parametrize("logarithm", [-INF, -1e30, 0.0, 3e4])
def test_what_stands_in_parts_without_weight_does_not_matter(logarithm):
    torch.manual_seed(3)
    given = reduce.reduce_natural.inputs(4, H=2, S=5, D=64)
    given["lengths"] = torch.full((4,), 5 * KEYS, dtype=torch.int32)
    given["lse"] = torch.full_like(given["lse"], -INF)
    given["lse"][:, :, 2] = logarithm
    given["partial"][:, :, [0, 1, 3]] = float("nan")
    given["partial"][:, :, 4] = INF
    kernel = fusec.checker.compiled(reduce.reduce_natural, given, "kernel")
    out, lse = kernel(**{n: t.clone() for n, t in given.items()})
    assert torch.equal(out, torch.zeros_like(out) if logarithm == -INF else given["partial"][:, :, 2])
    assert (lse == logarithm).all()
