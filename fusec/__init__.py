"""The public names of fusec. Nothing heavy is imported before it is used: `import fusec` loads neither torch nor the DSL."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "fuse": "api", "compile": "api", "check": "api", "dump_inputs": "runtime.dump",
    "load_rows": "capture.row_ops", "store_rows_": "capture.row_ops",
    "Fused": "api", "Artifact": "runtime.artifact", "Kernel": "runtime.artifact",
    "FusecError": "errors", "UnsupportedOp": "errors", "CaptureError": "errors", "ArgumentError": "errors",
    "ResourceError": "errors", "FusionError": "errors", "BuildError": "errors", "TargetError": "errors", "InternalError": "errors",
}
__all__ = [*_PUBLIC]

if TYPE_CHECKING:
    from .api import Fused as Fused
    from .api import check as check
    from .api import compile as compile
    from .api import fuse as fuse
    from .capture.row_ops import load_rows as load_rows
    from .capture.row_ops import store_rows_ as store_rows_
    from .errors import ArgumentError as ArgumentError
    from .errors import BuildError as BuildError
    from .errors import CaptureError as CaptureError
    from .errors import FusecError as FusecError
    from .errors import FusionError as FusionError
    from .errors import InternalError as InternalError
    from .errors import ResourceError as ResourceError
    from .errors import TargetError as TargetError
    from .errors import UnsupportedOp as UnsupportedOp
    from .runtime.artifact import Artifact as Artifact
    from .runtime.kernel import Kernel as Kernel
    from .runtime.dump import dump_inputs as dump_inputs


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'fusec' has no attribute {name!r}")
    from importlib import import_module
    value = getattr(import_module(f".{_PUBLIC[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
