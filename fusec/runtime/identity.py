"""What makes two compilations the same: canonical text of a graph, the versions in play, and the keys made of them.

A key holds everything that shapes the code and nothing of the process: no path, address, line number, comment, order of building
or time. Locations are left out of a graph's text for that reason.
"""
from __future__ import annotations

import hashlib
import io
import platform
import sys
import tokenize
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..codegen.toolchain import DSL, FFI, libraries
from ..errors import InternalError, Loc

FORMAT = "1"
"""Changes when entries of the store change their shape."""


def canonical(value: Any) -> str:
    """Text of a value made of dataclasses, tuples, numbers, strings and symbols: equal values give equal text, locations left out.

    Floats are written in hexadecimal, so that 0.0 and -0.0, infinities and neighbours stay apart; True and 1 and 1.0 too.
    """
    if is_dataclass(value) and not isinstance(value, type):
        inner = ", ".join(f"{f.name}={canonical(v)}" for f in fields(value) if not isinstance(v := getattr(value, f.name), Loc))
        return f"{type(value).__name__}({inner})"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(canonical, value))}]"
    if isinstance(value, (dict, frozenset, set)):
        pairs = value.items() if isinstance(value, dict) else ((v, True) for v in value)
        return "{" + ", ".join(sorted(f"{canonical(k)}: {canonical(v)}" for k, v in pairs)) + "}"
    if isinstance(value, float):
        return value.hex()
    if value is None or isinstance(value, (bool, int, str, bytes)):
        return repr(value)
    if type(value).__module__.partition(".")[0] == "sympy":
        return f"sym {value}"
    raise InternalError(f"a {type(value).__name__} has no canonical text")


COMPILER = ("ir", "passes", "codegen", "target.py")
"""What turns a graph into code."""


@cache
def compiler_digest() -> str:
    """The version of the compiler itself: the contents of its files, so that a change of it between releases counts too."""
    root = Path(__file__).parents[1]
    files = [f for part in COMPILER for f in ([root / part] if part.endswith(".py") else sorted((root / part).rglob("*")))
             if f.suffix in (".py", ".j2")]
    return digest(*(text for f in files for text in (f.relative_to(root).as_posix(), f.read_text(encoding="utf-8"))))[:12]


@cache
def versions() -> Mapping[str, str]:
    """Versions that shape an object: fusec, each package of the DSL, tvm-ffi ("absent" where missing) and the Python ABI."""
    from .. import __version__
    abi = f"{sys.implementation.cache_tag}-{platform.machine()}-{sys.platform}"
    found = {"fusec": f"{__version__}+{compiler_digest()}", "python": abi, **libraries()}
    for name in (DSL, FFI):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    return dict(sorted(found.items()))


def digest(*parts: str) -> str:
    """32 hexadecimal digits over the parts, each delimited."""
    state = hashlib.sha256()
    for part in parts:
        data = part.encode()
        state.update(f"{len(data)}:".encode())
        state.update(data)
    return state.hexdigest()[:32]


def graph_key(graph: Any, arch: str, numerics: str, alignment: Mapping[str, int] | None, schedule: Any = None) -> str:
    """The key of an artifact's entry in the store."""
    return digest(FORMAT, canonical(graph), arch, numerics, canonical(dict(alignment or {})), canonical(schedule),
                  canonical(dict(versions())))


def source_identity(source: str, arch: str, numerics: str = "default") -> str:
    """The identity of a kernel for golden files and receipts: its emitted source without comments, arch and options.

    No versions: ours, torch's and Python's make the source or only run it, and the kernel compiler's are told beside it."""
    return digest(without_comments(source), arch, numerics)


def makers() -> dict[str, str]:
    """The versions of what turns an emitted source into code: the kernel compiler and what exports its objects."""
    return {name: v for name, v in versions().items() if name in (DSL, FFI)}


def without_comments(source: str) -> str:
    """Python source without comments, docstring-free text left as it is; lines that held nothing else vanish."""
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    return "\n".join(line.rstrip() for line in lines if line.strip()) + "\n"
