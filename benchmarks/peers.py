"""Other people's kernels of the same step: from installed packages, or from a file that loads them."""
from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Call = Callable[[dict[str, Any]], Any]
Covers = Callable[[int, Any], bool]
FUNCTION = "kda_decode"
"""The step that the peers compute."""
TOLERANCE = {"out": (3e-2, 2e-2), "state": (3e-2, 2e-3)}
"""(rtol, atol) that their own tests grant them against a reference that rounds elsewhere."""


@dataclass(frozen=True, slots=True)
class Peer:
    """call: takes the arguments of the step by name and `output`, updates state and window in place, fills the output.

    covers(heads, state dtype): whether it takes that size.
    """

    name: str
    call: Call
    covers: Covers
    version: str = ""


def load(file: Path | None, names: Iterable[str]) -> tuple[list[Peer], list[str]]:
    """(peers, what was left out and why). file: Python that has `load(names) -> {name: call}` and may have `COVERS`, a dict
    {name: covers}; without it the installed packages of those names are used."""
    if file is None:
        return _installed(names)
    spec = importlib.util.spec_from_file_location("fusec_benchmark_peers", file)
    if spec is None or spec.loader is None:
        return [], [f"{file}: not a Python file"]
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    calls = module.load(tuple(names))
    covers = getattr(module, "COVERS", {})
    found = [Peer(n, calls[n], covers.get(n, lambda heads, dtype: True)) for n in names if n in calls]
    return found, [f"{n}: not loaded by {file.name}" for n in names if n not in calls]


def _installed(names: Iterable[str]) -> tuple[list[Peer], list[str]]:
    found, left_out = [], []
    for name in names:
        try:
            found.append(PACKAGES[name]())
        except KeyError:
            left_out.append(f"{name}: no installed package is known by that name; --peers FILE loads others")
        except Exception as error:  # A package that is not there or does not fit this machine is no failure of ours.
            left_out.append(f"{name}: {type(error).__name__}: {str(error)[:200]}")
    return found, left_out


def _flashinfer() -> Peer:
    from importlib.metadata import version

    from flashinfer.kda_kernels.fused_kda_decode import run_fused_kda_decode
    return Peer("flashinfer", lambda k: run_fused_kda_decode(**k), lambda heads, dtype: heads in (8, 12, 16, 24, 32, 48, 64, 96),
                version("flashinfer-python"))


PACKAGES: dict[str, Callable[[], Peer]] = {"flashinfer": _flashinfer}
