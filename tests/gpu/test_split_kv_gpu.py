"""On a device: reductions over splits at every size, with any number of tokens, without a word to the host, and in graphs."""
from __future__ import annotations

import pytest
import torch

import fusec
from fusec.recipes import split_kv_reduce as reduce
from fusec.recipes.deepseek_v4_decode import reduce_unrotate_quant
from fusec.recipes.kimi_k3_decode import mla_reduce

from ..recipes.test_split_kv_sizes import SIZES, edges

pytestmark = pytest.mark.gpu
KEYS = reduce.KEYS
SMALL = [(mla_reduce, dict(H=2, S=7, D=64)), (reduce.reduce_base2, dict(H=2, S=7, D=64)),
         (reduce.reduce_max_sum, dict(H=2, S=7, D=64)), (reduce.reduce_grouped, dict(H=2, S=7, D=64)),
         (reduce_unrotate_quant, dict(H=8, S=3, D=512))]
NAMES = [f.__name__ for f, _ in SMALL]


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(3)
    yield
    torch.cuda.empty_cache()


def lengths_of(given):
    """The arguments that say how many keys a token has."""
    return [n for n in ("lengths", "topk_lengths") if n in given]


@pytest.mark.parametrize("dim, heads, splits", SIZES)
def test_lengths_at_every_edge(dim, heads, splits):
    given = reduce.reduce_natural.inputs(6, H=heads, S=splits, D=dim) | {"lengths": edges(splits)}
    report = fusec.check(reduce.reduce_natural, given, level="gpu")
    assert report.ok, str(report)


@pytest.mark.parametrize("tokens", [0, 1, 5, 128, 70_000])
@pytest.mark.parametrize("fn", [reduce.reduce_natural, reduce.reduce_grouped], ids=lambda f: f.__name__)
def test_any_number_of_tokens(fn, tokens):
    sizes = dict(H=1, S=3, D=64)
    report = fusec.check(fn, fn.inputs(max(tokens, 1), **sizes) if tokens else _none(fn, sizes), fn.inputs(4, **sizes), level="gpu")
    assert report.ok, str(report)


def _none(fn, sizes):
    """No tokens at all."""
    one = fn.inputs(2, **sizes)
    return {n: t[:0] if t.shape[0] == 2 else t for n, t in one.items()}


@pytest.mark.parametrize("fn, sizes", SMALL, ids=NAMES)
def test_lengths_never_reach_the_host(fn, sizes):
    given = fn.inputs(4, "cuda", **sizes)
    fn(**given)
    torch.cuda.set_sync_debug_mode("error")
    try:
        fn(**given)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("fn, sizes", SMALL, ids=NAMES)
def test_a_captured_graph_takes_other_lengths(fn, sizes):
    """Replayed with none, some and all of the keys, each time the bits of a call of its own."""
    given = fn.inputs(5, "cuda", **sizes)
    fn(**given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = fn(**given)
    for keys in (0, 1, KEYS + 1, sizes["S"] * KEYS):
        for name in lengths_of(given):
            if fn is not reduce_unrotate_quant or name == "topk_lengths":  # There `lengths` are positions.
                given[name].fill_(keys)
        graph.replay()
        found = recorded if isinstance(recorded, (list, tuple)) else [recorded]
        wanted = fn(**given)
        for a, b in zip(found, wanted if isinstance(wanted, (list, tuple)) else [wanted], strict=True):
            assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))
        close = fn.reference(**given)
        for a, b in zip(found, close if isinstance(close, (list, tuple)) else [close], strict=True):
            if a.dtype != torch.int32:
                torch.testing.assert_close(a.float(), b.float(), rtol=0.13 if a.element_size() == 1 else 1e-2, atol=1e-2)


@pytest.mark.parametrize("dims", [64, 100, 512])
def test_a_token_has_the_same_bits_however_many_splits_were_launched(dims):
    given = reduce.reduce_natural.inputs(4, "cuda", H=2, S=64, D=dims, partial="fp32")
    given["lengths"] = torch.tensor([2 * KEYS, 2 * KEYS, 5, 0], dtype=torch.int32, device="cuda")
    found = []
    for splits in (2, 7, 64):
        mine = given | {n: given[n][:, :, :splits].contiguous() for n in ("partial", "lse")}
        found.append(fusec.compile(reduce.reduce_natural.reference, mine)(**mine))
    for other in found[:-1]:
        assert all(torch.equal(a, b) for a, b in zip(other, found[-1], strict=True))
