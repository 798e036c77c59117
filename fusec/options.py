"""What a caller may choose: architectures, numerics, sizes of the example; parsed and checked in one place."""
from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from itertools import product

from .errors import FusecError, TargetError
from .target import TARGETS, parse

NUMERICS = ("default", "strict")
EXAMPLE_ROWS = 4

Progress = Callable[[str], None]
"""Takes a line that says what is being done now."""


def numerics_option(given: str) -> str:
    """"default" (contracts, folds, approximates within 2 ulp) or "strict" (none of these); FusecError for anything else."""
    if given not in NUMERICS:
        raise FusecError(f"numerics: expected one of {', '.join(NUMERICS)}, found {given!r}")
    return given


def archs(given: str | Iterable[str]) -> tuple[str, ...]:
    """("sm_100a", "sm_90a") from "sm_100a,sm_90a" or a list; TargetError for one that is not known, with the known ones."""
    names = given.split(",") if isinstance(given, str) else list(given)
    found = tuple(dict.fromkeys(parse(n.strip()).name for n in names if n.strip()))
    if not found:
        raise TargetError(f"arch: expected one or more of {', '.join(TARGETS)}, found none")
    return found


SizeValue = int | float | bool | str


def sizes(pairs: Iterable[str]) -> dict[str, tuple[SizeValue, ...]]:
    """{"H": (12, 24), "state": ("bf16",)} from ("H=12,24", "state=bf16"): the values that each size takes in turn."""
    found: dict[str, tuple[SizeValue, ...]] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        values = text.split(",")
        if not equals or not name.isidentifier() or not all(values):
            raise FusecError(f"-D {pair}: expected name=value, or name=value,value for one after the other")
        found[name] = tuple(dict.fromkeys([*found.get(name, ()), *map(_value, values)]))
    return found


def combinations(given: Mapping[str, tuple[SizeValue, ...]]) -> list[dict[str, SizeValue]]:
    """Every combination of the values that sizes take, the last size changing first."""
    return [dict(zip(given, values)) for values in product(*given.values())]


def _value(text: str) -> SizeValue:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            pass
    return {"true": True, "false": False}.get(text.lower(), text)


def strict() -> bool:
    """FUSEC_STRICT=1: a compile that a call would need is an error."""
    return os.environ.get("FUSEC_STRICT", "") not in ("", "0")
