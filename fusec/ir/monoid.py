"""Monoids of reductions: rows of a table, each with identity, lift, combine and finish.

A reduction folds `lift(operands)` with `combine`, starting from `identity`; `accumulate` names the scalar function that folds one
more lifted element in one step where there is one (a dot accumulates by fma). `finish` maps the carry to the result.
A carry may have several components (log-sum-exp: maximum and scaled sum).
"""

from __future__ import annotations

from dataclasses import dataclass

from .scalar import Call, Lit, Param, Scalar


INTEGER_BITS = {"i32": 32, "i64": 64}


@dataclass(frozen=True, slots=True)
class Monoid:
    """`lift` and `finish` are expressions over Params; `combine` has the components of the left carry first, then the right's.

    `operands`: how many values one element has; `carry`: how many fp32 components.
    """

    name: str
    operands: int
    identity: tuple[Lit, ...]
    lift: tuple[Scalar, ...]
    combine: tuple[Scalar, ...]
    accumulate: tuple[Scalar, ...] | None = None
    finish: tuple[Scalar, ...] = (Param(0),)
    orderless: bool = False  # Whether every order of folding gives the same bits.

    def start(self, dtype: str) -> float | int | bool:
        """The first component of the identity as a register of `dtype` holds it: integers have no infinity, but ends."""
        value = self.identity[0].value
        if dtype not in INTEGER_BITS or isinstance(value, bool):
            return value
        end = 1 << (INTEGER_BITS[dtype] - 1)
        return int(min(max(value, -end), end - 1))

    @property
    def carry(self) -> int:
        return len(self.identity)


def _both(fn: str) -> tuple[Scalar, ...]:
    return (Call(fn, (Param(0), Param(1))),)


MONOIDS = {
    m.name: m
    for m in (
        Monoid("sum", 1, (Lit(0.0),), (Param(0),), _both("add")),
        # One step: carry' = a * b + carry. Params of accumulate: the carry, then the operands.
        Monoid(
            "dot",
            2,
            (Lit(0.0),),
            (Call("mul", (Param(0), Param(1))),),
            _both("add"),
            (Call("fma", (Param(1), Param(2), Param(0))),),
        ),
        # Propagates NaN as torch.amax and torch.amin do.
        Monoid("max", 1, (Lit(float("-inf")),), (Param(0),), _both("max"), orderless=True),
        Monoid("min", 1, (Lit(float("inf")),), (Param(0),), _both("min"), orderless=True),
        Monoid("prod", 1, (Lit(1.0),), (Param(0),), _both("mul")),
        Monoid("any", 1, (Lit(False),), (Param(0),), _both("or"), orderless=True),
        Monoid("all", 1, (Lit(True),), (Param(0),), _both("and"), orderless=True),
    )
}
