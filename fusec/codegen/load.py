"""From an exported object to a function: needs what loads it, not the kernel compiler's front end."""
from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ..errors import BuildError
from .toolchain import INSTALL


def load(path: str | os.PathLike[str], name: str) -> Callable[..., Any]:
    """The function `name` of an object that a build exported: takes its tensors in the order of the kernel's parameters.

    Raises BuildError where the runtime is missing or the file is not such an object.
    """
    try:
        from cutlass.cute.runtime import load_module  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise BuildError(f"loading a kernel needs nvidia-cutlass-dsl and apache-tvm-ffi: {error}", hint=INSTALL) from None
    try:
        found: Callable[..., Any] = load_module(os.fspath(path), enable_tvm_ffi=True)[name]
    except Exception as error:
        raise BuildError(f"{os.path.basename(path)} does not load as a kernel: {type(error).__name__}: {error}") from None
    return found
