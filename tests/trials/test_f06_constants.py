"""F06: infinities, NaN, minus zero, denormals and huge numbers as constants keep every bit, and their code compiles."""
import math

import pytest
import torch

import fusec
from fusec.checker.ulp import bits

from .steps import both, right

INF, NAN = float("inf"), float("nan")
NUMBERS = [INF, -INF, NAN, -0.0, 1e-45, -1e-45, 1.1754942e-38, 3.4028234e38, 3.4e38, 0.1, 1 / 3, 2.0 ** -149, 123456789.0]


@pytest.mark.parametrize("number", NUMBERS, ids=str)
def test_a_constant_keeps_its_bits(number, level, device):
    def step(x):
        return torch.where(x > 0, x, number)

    (eager, _), (mine, _) = both(step, dict(x=torch.tensor([[-1.0, 2.0, -3.0], [4.0, -5.0, 6.0]])), level, device)
    same = bits(eager[0].cpu()) == bits(mine[0].cpu())
    assert bool((same | (eager[0].cpu().isnan() & mine[0].cpu().isnan())).all()), f"{eager[0]} {mine[0]}"


def masked(x, mask):
    return x.masked_fill(mask, float("-inf")).amax(-1)


def clamped(x, mask):
    return x.clamp(max=INF).clamp(min=-INF)


def added(x, mask):
    return x + torch.tensor(-0.0)


def scaled(x, mask):
    return x * 1e-45 * 1e30


def soft(x, mask):
    return torch.softmax(x.masked_fill(mask, -INF), -1)


def compared(x, mask):
    return (x < INF) & (x > -INF) & ~mask


FUNCTIONS = [masked, clamped, added, scaled, soft, compared]


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
def test_functions_around_them(fn, level):
    x = torch.randn(3, 8)
    x[0, 1], x[1, 2], x[2, 0] = INF, -INF, -0.0
    mask = torch.rand(3, 8) > 0.6
    mask[:, 3] = False
    right(fn, dict(x=x, mask=mask), level)


@pytest.mark.parametrize("number", [2 ** 31 - 1, -2 ** 31, 2 ** 31, 2 ** 40 + 3, -2 ** 63, 2 ** 63 - 1])
def test_huge_integers(number, level, device):
    def step(x):
        return torch.where(x > 0, x, number)

    given = dict(x=torch.tensor([[-1, 2], [3, -4]], dtype=torch.int64))
    try:
        (eager, _), (mine, _) = both(step, given, level, device)
    except fusec.FusecError as refusal:
        assert str(abs(number))[:6] in str(refusal) or "int" in str(refusal)
        return
    assert torch.equal(eager[0].cpu(), mine[0].cpu())


def test_the_emitted_code_holds_them_and_compiles():
    """Every special constant in one function, as source text that Python can parse."""
    import ast

    from fusec.api import capture_graph
    from fusec.compiler import plan

    def step(x):
        total = x
        for number in NUMBERS:
            if not math.isnan(number):
                total = torch.where(total > number, total, number)
        return torch.where(total.isnan(), NAN, total)

    try:
        stages = capture_graph(step, dict(x=torch.randn(3, 8)))
    except fusec.UnsupportedOp as refusal:
        pytest.skip(str(refusal))
    source = plan(stages.captured, "sm_90a").need("source")
    ast.parse(source)
