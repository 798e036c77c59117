"""Other people's kernels of the same functions: from installed packages, or from a file that loads them."""
from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Bind = Callable[[dict[str, Any], tuple[Any, ...]], Callable[[], object] | None]
DEFAULTS: Mapping[str, tuple[str, ...]] = {
    "kda_decode": ("flashinfer",),
    "reduce_natural": ("sglang-triton",),
    "mla_reduce": ("sglang-triton",),
}
"""{function: the peers that a run asks for where it names none}."""
TOLERANCE = {"out": (3e-2, 2e-2), "state": (3e-2, 2e-3)}
"""(rtol, atol) that their own tests grant them against a reference that rounds elsewhere."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One kernel of others'.

    bind(arguments by name, outputs): the call of one set of inputs, which updates the arguments in place as the function does and
    fills the outputs, on the current stream, capturable in a CUDA graph; None where it does not take that size. What `bind` itself
    does, such as laying the inputs out anew, is not timed. outputs: the numbers of those it fills; None means all.
    """

    bind: Bind
    version: str = ""
    outputs: tuple[int, ...] | None = None


Loader = Callable[[], Peer]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A peer by the function that it computes and by its name."""

    function: str
    name: str
    peer: Peer


def load(file: Path | None, functions: Iterable[str], names: Sequence[str] = ()) -> tuple[list[Loaded], list[str]]:
    """(peers of these functions, what was left out and why). names: which peers, for every function that has them; none means those
    of DEFAULTS. file: Python that has `PEERS = {function: {name: load}}`, load() -> Peer; without it the installed PACKAGES."""
    try:
        offered = PACKAGES if file is None else _of(file)
    except Exception as error:  # A file that does not run is no failure of ours.
        return [], [f"{file}: {_said(error)}"]
    wanted = list(dict.fromkeys(functions))
    pairs = [(f, n) for f in wanted for n in (names or DEFAULTS.get(f, ()))]
    where = "no installed package is known by that name; --peers FILE loads others" if file is None else f"not in {file.name}"
    found, left_out = [], []
    for function, name in pairs:
        if name not in offered.get(function, {}):
            if not names or not any(name in offered.get(f, {}) for f in wanted):
                left_out.append(f"{name}: {where}")
            continue
        try:
            found.append(Loaded(function, name, offered[function][name]()))
        except Exception as error:  # A package that is not there or does not fit this machine is no failure of ours.
            left_out.append(f"{name}: {_said(error)}")
    return found, list(dict.fromkeys(left_out))


def _of(file: Path) -> Mapping[str, Mapping[str, Loader]]:
    spec = importlib.util.spec_from_file_location("fusec_benchmark_peers", file)
    if spec is None or spec.loader is None:
        raise ValueError("not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    offered: Mapping[str, Mapping[str, Loader]] = module.PEERS
    return offered


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:200]}"


def _flashinfer() -> Peer:
    from importlib.metadata import version

    from flashinfer.kda_kernels.fused_kda_decode import run_fused_kda_decode

    def bind(arguments: dict[str, Any], outputs: tuple[Any, ...]) -> Callable[[], object] | None:
        if arguments["state"].shape[1] not in (8, 12, 16, 24, 32, 48, 64, 96):
            return None
        given = {**arguments, "output": outputs[0]}
        return lambda: run_fused_kda_decode(**given)

    return Peer(bind, version("flashinfer-python"))


PACKAGES: Mapping[str, Mapping[str, Loader]] = {"kda_decode": {"flashinfer": _flashinfer}}
