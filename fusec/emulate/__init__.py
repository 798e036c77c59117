"""Emitted kernels on the CPU: the file is executed unchanged against a fake `cutlass`, and what it does wrong is reported.

`fusec.emulate(kernel, tensors)` gives a Report, `fusec.emulate.run` raises like the kernel interpreter, `check_subset` says what of
a source cannot be emulated. Needs torch and numpy, not the DSL.
"""
import sys
from types import ModuleType
from typing import Any

from .api import emulate, run
from .memory import Placed
from .numeric import EmulationError
from .report import Finding, Report
from .subset import check_subset

__all__ = ["EmulationError", "Finding", "Placed", "Report", "check_subset", "emulate", "run"]


class _Callable(ModuleType):
    """The package is also the function: `fusec.emulate(…)`."""

    def __call__(self, *args: Any, **options: Any) -> Report:
        return emulate(*args, **options)


sys.modules[__name__].__class__ = _Callable
