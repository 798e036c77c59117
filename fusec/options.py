"""What a caller may choose: architectures, numerics, sizes of the example; parsed and checked in one place."""
from __future__ import annotations

import os
from collections.abc import Iterable

from .errors import FusecError, TargetError
from .target import TARGETS, parse

NUMERICS = ("default", "strict")
EXAMPLE_ROWS = 4


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


def sizes(pairs: Iterable[str]) -> dict[str, int | float | bool | str]:
    """{"H": 12, "state": "bf16"} from ("H=12", "state=bf16")."""
    found: dict[str, int | float | bool | str] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.isidentifier():
            raise FusecError(f"-D {pair}: expected name=value")
        found[name] = _value(text)
    return found


def _value(text: str) -> int | float | bool | str:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            pass
    return {"true": True, "false": False}.get(text.lower(), text)


def strict() -> bool:
    """FUSEC_STRICT=1: a compile that a call would need is an error."""
    return os.environ.get("FUSEC_STRICT", "") not in ("", "0")
