"""How eager PyTorch promotes the operands of a pointwise op, and the row makers that share it.

A row maker takes the scalar function and the targets with their samples; what needs more than that is a builder of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch

from ..ir.dtype import FLOATS
from ..ir.reference import SHORT_DTYPE, TORCH_DTYPE
from ..ir.scalar import COMPOSITES, PRIMITIVES, Lit, Term, define
from . import registry
from .builder import Builder, Value, lit
from .registry import Result


def define_new(name: str, doc: str = "") -> Callable[[Callable[..., Term]], object]:
    """`define`, unless ir/scalar.py has the function already."""
    return (lambda build: None) if name in COMPOSITES or name in PRIMITIVES else define(name, doc)


def common_dtype(args: Sequence[Any]) -> str:
    """The dtype in which eager computes a binary op: 0-dim tensors and Python numbers count less, as in torch.result_type."""
    found: Any = None
    probes = []
    for a in args:
        if isinstance(a, Value):
            probes.append(torch.empty((1,) * a.rank, dtype=TORCH_DTYPE[a.dtype], device="meta"))
        elif a is not None:
            probes.append(1 if isinstance(a, sympy.Expr) and a.is_integer else 1.0 if isinstance(a, sympy.Expr) else a)
    found = probes[0]
    if len(probes) == 1:
        return SHORT_DTYPE[found.dtype]
    tensors = [p for p in probes if isinstance(p, torch.Tensor)]
    numbers = [p for p in probes if not isinstance(p, torch.Tensor)]
    total = tensors[0]
    for other in tensors[1:]:
        shape = (1,) * max(total.dim(), other.dim())
        total = torch.empty(shape, dtype=torch.result_type(total, other), device="meta")
    dtypes = [torch.result_type(total, n) for n in numbers] or [total.dtype]
    best = dtypes[0]
    for d in dtypes[1:]:
        best = torch.promote_types(best, d)
    return SHORT_DTYPE[best]


def promote(b: Builder, x: Any, common: str, exact: bool = False) -> Any:
    """An operand as a computation in `common` sees it. exact: constants are rounded to `common` first (comparisons do that)."""
    if isinstance(x, sympy.Expr) and not x.is_number:
        return b.scalar(x, common)
    if not isinstance(x, Value):
        number = float(x) if isinstance(x, sympy.Expr) and common in FLOATS else x
        if common in FLOATS and exact:
            number = torch.tensor(float(number), dtype=torch.float64).to(TORCH_DTYPE[common]).double().item()
        return lit(number, common)
    widened = x.dtype in FLOATS and (common == "f32" or x.dtype == common)
    return x if widened else b.cast(x, common)


def as_float(dtype: str) -> str:
    return dtype if dtype in FLOATS else "f32"


# ---- row makers ---------------------------------------------------------------------------------------------------------------


def unary(fn: str, target: str = "", *samples: str, default: str = "x") -> None:
    """A row for a float function of one tensor."""

    def build(b: Builder, out: Result, x: Value) -> Value:
        return b.map(fn, promote(b, x, as_float(out.dtype)), dtype=out.dtype)

    registry.add(f"{target or fn}.default", build, *(samples or (default,)))


def arithmetic(fn: str, *rows: tuple[str, ...], ints: str | None = "", exact: bool = False) -> None:
    """Rows (target, samples) for a function of tensors and numbers, computed in the dtype of the result; `ints`: the function for
    integers.

    exact: numbers are rounded to that dtype first (eager does so for some ops, and takes them as fp32 for the others).
    """

    def build(b: Builder, out: Result, *args: Any) -> Value:
        name = fn if out.dtype in FLOATS or ints == "" else ints
        if name is None:
            raise b.unsupported(f"is not supported for {out.dtype}", "convert to a float dtype first")
        return b.map(name, *(promote(b, a, out.dtype, exact) for a in args), dtype=out.dtype)

    for target, *samples in rows:
        registry.add(target, build, *samples)


def comparison(fn: str) -> None:
    """x < y in the operands' common dtype."""

    def build(b: Builder, out: Result, x: Any, y: Any) -> Value:
        common = common_dtype([x, y])
        left, right = promote(b, x, common, True), promote(b, y, common, True)
        if common == "bool":
            left, right = (b.cast(v, "i32") if isinstance(v, Value) else Lit(int(v.value)) for v in (left, right))
        return b.map(fn, left, right, dtype="bool")

    registry.add(f"{fn}.Tensor", build, "x, y", "i, j", "x, x", "x, i", "m, m2")
    registry.add(f"{fn}.Scalar", build, "x, 0.5", "i, 1", "x, 0.3")
