"""The meaning of primitives, roundings and monoids, against exact arithmetic where torch itself is not the definition."""
from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from fusec.ir.monoid import MONOIDS
from fusec.ir.reference import apply, from_register, literal, odd_f32, reduce, round_to, to_register
from fusec.ir.scalar import Lit

INF, NAN = math.inf, math.nan


def bits(x: float) -> int:
    return int(torch.tensor(x, dtype=torch.float32).view(torch.int32))


def nearest_f32(exact: Fraction) -> float:
    """The fp32 number nearest to an exact one, ties to even."""
    guess = torch.tensor(float(exact), dtype=torch.float32)
    around = [float(torch.nextafter(guess, torch.tensor(s * INF))) for s in (-1.0, 1.0)] + [float(guess)]
    return min(around, key=lambda x: (abs(Fraction(x) - exact), bits(x) & 1))


def test_bools_count_as_numbers() -> None:
    a, b = torch.tensor([True, True, False]), torch.tensor([True, False, False])
    assert apply("add", [a, b]).tolist() == [2, 1, 0] and apply("neg", [a]).tolist() == [-1, -1, 0]
    assert apply("sub", [b, a.float()]).tolist() == [0.0, -1.0, 0.0] and apply("and", [a, b]).dtype == torch.bool


def test_fma_rounds_once() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(500), torch.randn(500)
    c = -(a * b) * (1 + torch.randn(500) * 2.0 ** -12)  # Much cancels.
    half = torch.tensor([1 + 2.0 ** -12]), torch.tensor([1 + 2.0 ** -12]), torch.tensor([2.0 ** -60])
    for x, y, z in ((a, b, c), half):
        have = apply("fma", [x, y, z])
        for i in range(len(x)):
            assert float(have[i]) == nearest_f32(Fraction(float(x[i])) * Fraction(float(y[i])) + Fraction(float(z[i])))
    assert apply("fma", [torch.tensor(INF), torch.tensor(0.0), torch.tensor(1.0)]).isnan()
    assert apply("fma", [torch.tensor(3e38), torch.tensor(2.0), torch.tensor(0.0)]).isinf()


@pytest.mark.parametrize("dtype, ulp", [("bf16", 2.0 ** -7), ("f16", 2.0 ** -10), ("f8e4m3", 2.0 ** -3), ("f8e5m2", 2.0 ** -2)])
def test_a_rounding_from_fp64_is_one_rounding(dtype: str, ulp: float) -> None:
    """Just above a tie of the narrow type, by less than fp32 sees: up, where fp64 → fp32 → narrow would go to even."""
    tie, bit = 1 + ulp / 2, 2.0 ** -40
    x = torch.tensor([tie, tie + bit, tie - bit, -(tie + bit)], dtype=torch.float64)
    assert round_to(x, dtype, "f64").tolist() == [1.0, 1 + ulp, 1.0, -(1 + ulp)]
    assert from_register(x, dtype).float().tolist() == [1.0, 1 + ulp, 1.0, -(1 + ulp)]


def test_odd_rounding_keeps_special_values() -> None:
    x = torch.tensor([0.0, -0.0, INF, -INF, 1.5, 1e300, 2.0 ** -149], dtype=torch.float64)
    y = odd_f32(x)
    assert y.tolist()[:5] == [0.0, -0.0, INF, -INF, 1.5] and math.copysign(1, float(y[1])) == -1
    assert float(y[5]) == torch.finfo(torch.float32).max and float(y[6]) == 2.0 ** -149
    assert odd_f32(torch.tensor(NAN).double()).isnan()


def test_maximum_propagates_nan_and_maxnum_ignores_it() -> None:
    x, nan = torch.tensor([1.0]), torch.tensor([NAN])
    assert apply("max", [x, nan]).isnan() and apply("min", [nan, x]).isnan()
    assert apply("maxnum", [nan, x]) == 1 and reduce("max", [torch.tensor([1.0, NAN])], (0,)).isnan()


def test_composites_keep_their_limits() -> None:
    x = torch.tensor([-INF, -1e4, -100.0, -0.0, 88.0, 1e4, INF])
    assert apply("sigmoid", [x]).tolist()[:2] == [0.0, 0.0] and not apply("sigmoid", [x]).isnan().any()
    torch.testing.assert_close(apply("softplus", [x, Lit(1.0), Lit(20.0)]), torch.nn.functional.softplus(x))
    finite = x[1:-1]
    torch.testing.assert_close(apply("silu", [finite]), torch.nn.functional.silu(finite))


def test_literals_are_fp32_in_both_precisions() -> None:
    assert literal(Lit(0.1), "f64").item() == torch.tensor(0.1, dtype=torch.float32).item() != 0.1
    assert literal(Lit(True)).dtype == torch.bool and literal(Lit(3)).dtype == torch.int64 and literal(Lit(-INF)).item() == -INF


def test_an_integer_literal_takes_the_kind_of_its_neighbour() -> None:
    assert apply("mul", [torch.ones(2), Lit(3)]).dtype == torch.float32
    assert apply("add", [torch.ones(2, dtype=torch.int32), Lit(3)]).dtype == torch.int32


def test_narrow_integers_wrap_and_widen() -> None:
    assert round_to(torch.tensor([300, -1]), "u8").tolist() == [44, 255]
    assert to_register(torch.tensor([3], dtype=torch.int8)).dtype == torch.int32


@pytest.mark.parametrize("name", MONOIDS)
def test_a_fold_is_its_row(name: str) -> None:
    """The named folds agree with lift, combine and finish of the table, and an empty one is the identity."""
    row = MONOIDS[name]
    torch.manual_seed(1)
    boolean = name in ("any", "all")
    args = [torch.randn(3, 5) > 0 if boolean else torch.randn(3, 5) for _ in range(row.operands)]
    from fusec.ir.reference import _fold_serially
    torch.testing.assert_close(reduce(name, args, (1,)), _fold_serially(name, args, (1,), "f32"))
    torch.testing.assert_close(reduce(name, args, (0, 1)), _fold_serially(name, args, (0, 1), "f32"))
    empty = reduce(name, [a[:, :0] for a in args], (1,))
    assert torch.equal(empty, literal(row.identity[0]).to(empty.dtype).expand(3))
