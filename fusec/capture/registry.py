"""The op registry: ATen overload -> builder of primitives. An op is one row, in the file of its kind.

A builder gets the Builder, the captured op's result (`Result`) and every argument of the schema in the schema's order, defaults
filled in: Values for tensors, Python numbers, sympy expressions for sizes known at the call, lists, None. It gives a Value, or a
tuple of Values for an op with several results. `samples` are arguments in words (see tests/capture): every row is tested against
torch by them.
"""
from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .builder import Shape


@dataclass(frozen=True, slots=True)
class Result:
    """What eager PyTorch gives: shape and dtype (of the first tensor where there are several)."""

    shape: Shape
    dtype: str


Build = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Op:
    """A row: `target` as torch prints it (`aten.silu.default`)."""

    target: str
    build: Build
    samples: tuple[str, ...]


OPS: dict[str, Op] = {}


def add(target: str, build: Build, *samples: str) -> None:
    """Record a row; an error at import for a target that has one."""
    target = f"aten.{target}"
    assert target not in OPS, f"{target} is registered twice"
    OPS[target] = Op(target, build, samples)


def op(**rows: str | tuple[str, ...]) -> Callable[[Build], Build]:
    """Decorator: targets by keyword with `__` for the dot of the overload (`sum__dim_IntList="x, [1]"`), each with its samples."""
    def record(build: Build) -> Build:
        for target, samples in rows.items():
            name, _, overload = target.rpartition("__")
            add(f"{name}.{overload}" if name else f"{target}.default", build, *((samples,) if isinstance(samples, str) else samples))
        return build
    return record


def supported() -> tuple[str, ...]:
    """Targets that can be imported, sorted."""
    return tuple(sorted(OPS))


def nearest(target: str, count: int = 3) -> list[str]:
    """Supported ops with a similar name, without overloads."""
    names = sorted({t.split(".")[1] for t in OPS})
    word = target.split(".")[1] if "." in target else target
    inside = [n for n in names if len(n) > 2 and (n in word or word in n)]
    return list(dict.fromkeys(inside + difflib.get_close_matches(word, names, count, 0.6)))[:count]
