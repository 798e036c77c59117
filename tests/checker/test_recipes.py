"""The shipped recipes pass the checker on the CPU: as graphs, and as kernels interpreted statement by statement."""
import pytest
import torch

from fusec.checker import cases, check, check_batch_mates, check_file_cases
from fusec.checker.facts import facts
from fusec.checker.target import target, written_graph
from fusec.recipes.gla_decode import gla_decode
from fusec.recipes.kimi_k3_decode import kda_decode
from fusec.recipes.rmsnorm import add_rmsnorm_quant
from fusec.recipes.short_conv import short_conv

RECIPES = [
    pytest.param(kda_decode, dict(H=2, D=16), id="kda_decode fp32"),
    pytest.param(kda_decode, dict(H=3, D=16, state="bf16"), id="kda_decode bf16", marks=pytest.mark.slow),
    pytest.param(gla_decode, dict(H=2, K=12, V=24), id="gla_decode"),
    pytest.param(short_conv, dict(C=40), id="short_conv"),
    pytest.param(add_rmsnorm_quant, dict(D=320), id="add_rmsnorm_quant"),
]
TINY = [pytest.param(kda_decode, dict(H=1, D=4), id="kda_decode"), pytest.param(gla_decode, dict(H=1, K=4, V=4), id="gla_decode"),
        pytest.param(short_conv, dict(C=4), id="short_conv"), pytest.param(add_rmsnorm_quant, dict(D=16), id="add_rmsnorm_quant")]


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(7)


@pytest.mark.parametrize("level", ["graph", "kernel"])
@pytest.mark.parametrize("fn, sizes", RECIPES)
def test_every_case_passes(fn, sizes, level):
    reports = check_file_cases(fn, level, sizes=sizes)
    names = [r.case for r in reports]
    assert {"0 rows", "1 row", "2 rows", "5 rows", "unaligned rows"} <= set(names)
    if fn is kda_decode:
        assert {"another pool size", "permuted slots", "spaced slots", "pools interleaved in pages"} <= set(names)
    for report in reports:
        assert report.ok, str(report)
        assert not report.notes or report.case == "0 rows", "every recipe has a check build"


@pytest.mark.parametrize("fn, sizes", RECIPES)
def test_bits_do_not_depend_on_the_mates(fn, sizes):
    """C12."""
    example = fn.inputs(5, **sizes)
    report = check_batch_mates(fn, example, level="kernel")
    assert report.ok, str(report)
    assert len({c.where for c in report.compared}) >= 4 and report.worst is None


@pytest.mark.slow
@pytest.mark.parametrize("level", ["graph", "kernel"])
@pytest.mark.parametrize("fn, sizes", TINY)
def test_seventy_thousand_rows(fn, sizes, level):
    example = fn.inputs(4, **sizes)
    goal = target(fn, example, example)
    report = check(goal, cases.with_rows(facts(written_graph(goal.stages)), example, 70_000), level=level)
    assert report.ok, str(report)
