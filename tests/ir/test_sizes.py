"""Sizes that are symbols or products of them."""
import pytest

from fusec.ir.sizes import evaluate, factors, least, solve


def test_factors() -> None:
    assert factors(7) == (7, ()) and factors("rows") == (1, ("rows",)) and factors("2*rows") == (2, ("rows",))
    assert factors("3*b*2*a") == (6, ("a", "b")) and factors("rows + 1") is None and factors("rows**2") is None


def test_evaluate() -> None:
    assert evaluate("2*rows + 1", {"rows": 4}) == 9 and evaluate(7, {}) == 7
    assert evaluate("rows + 1", {}) is None and evaluate("rows**2", {"rows": 4}) is None


def test_least() -> None:
    assert least("rows + more", {"rows": 4}) == 4 and least("2*rows + 1", {}) == 1 and least("rows**2", {"rows": 4}) == 0


def test_solve() -> None:
    assert solve([("2*rows", 8), (3, 3), ("pool", 9)]) == {"2*rows": 8, "rows": 4, "pool": 9}
    assert solve([("rows*tokens", 12), ("rows", 4)])["tokens"] == 3
    assert solve([("rows + 1", 5), ("rows", 4)]) == {"rows": 4, "rows + 1": 5}
    assert solve([("rows + 1", 5)]) == {"rows": 4, "rows + 1": 5} and solve([("rows + 1", 1)])["rows"] == 0
    assert solve([("rows + more", 5)]) == {"rows + more": 5}
    for pairs, words in (([("rows", 4), ("rows", 5)], "rows is 4 and 5"), ([("rows", 4), ("2*rows", 9)], r"2\*rows is 8 and 9"),
                         ([("rows + 1", 5), ("rows", 5)], r"rows \+ 1 is 6 and 5"),
                         ([("rows + more", 3), ("rows", 4)], r"rows \+ more is 4 at least and 3"),
                         ([("2*rows", 9)], "not a multiple of 2")):
        with pytest.raises(ValueError, match=words):
            solve(pairs)
