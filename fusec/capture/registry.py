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


def add(target: str, build: Build, *samples: str, space: str = "aten") -> None:
    """Record a row; an error at import for a target that has one."""
    target = f"{space}.{target}"
    assert target not in OPS, f"{target} is registered twice"
    OPS[target] = Op(target, build, samples)


def op(*, space: str = "aten", **rows: str | tuple[str, ...]) -> Callable[[Build], Build]:
    """Decorator: targets by keyword with `__` for the dot of the overload (`sum__dim_IntList="x, [1]"`), each with its samples.

    space: the library that defines them.
    """

    def record(build: Build) -> Build:
        for target, samples in rows.items():
            name, _, overload = target.rpartition("__")
            words = (samples,) if isinstance(samples, str) else samples
            add(f"{name}.{overload}" if name else f"{target}.default", build, *words, space=space)
        return build

    return record


def alias(**names: str) -> None:
    """Other names that torch has for an op: all its overloads under the new name, samples included."""
    for new, old in names.items():
        for row in [r for t, r in OPS.items() if t.split(".")[1] == old]:
            add(f"{new}.{row.target.split('.')[2]}", row.build, *row.samples)


def supported() -> tuple[str, ...]:
    """Targets that can be imported, sorted."""
    return tuple(sorted(OPS))


def nearest(name: str, count: int = 3) -> list[str]:
    """Supported ops with a similar name, without overloads: those that share a word of it, then those spelled alike."""
    names = sorted({t.split(".")[1] for t in OPS})
    words = {w for w in name.split("_") if len(w) > 3} - {"linalg", "special", "native"}
    return list(
        dict.fromkeys([n for n in names if words & set(n.split("_"))] + difflib.get_close_matches(name, names, count, 0.75))
    )[:count]


REMEDIES = {
    "repeat_interleave": "how often each element stands is known on the device only: pass what to repeat as an index, x[i]",
    **dict.fromkeys(
        ("kthvalue", "median"),
        "an order of values is not supported: choose before the step, pass indices",
    ),
    **dict.fromkeys(
        ("randn", "rand", "randn_like", "rand_like", "bernoulli", "multinomial", "native_dropout", "dropout", "randint"),
        "random numbers are not supported: pass them as an argument",
    ),
    **dict.fromkeys(
        ("nonzero", "masked_select", "unique", "bincount"), "a size that depends on values is not supported: use torch.where"
    ),
}
"""What to do instead of ops that people do use."""
