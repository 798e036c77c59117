"""The two ways to run an emitted kernel on the CPU: with a report, or as the kernel interpreter is called."""
from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from ..errors import InternalError
from ..ir.kernel import KernelSpec, Parameter
from . import functions
from .accuracy import Jitter, Shift
from .launch import LANES_AT_ONCE, Run, call
from .memory import Placed
from .report import Report


def emulate(kernel: Any, tensors: Mapping[str, torch.Tensor | Placed], *, arch: str | None = None,
            parameters: Sequence[Parameter] | None = None, counting: bool = True, lanes: int = LANES_AT_ONCE,
            blocks: tuple[range | None, ...] = (), replace: Mapping[str, Callable[..., Any]] | None = None,
            jitter: int | Shift | None = None, dependent: Collection[str] = ()) -> Report:
    """Run an emitted kernel in place in the caller's CPU tensors and report what it does wrong.

    kernel: the source text, a KernelSpec (it is rendered), or an object with `source`, `arch` and `spec` (a kernel of an artifact).
    tensors: by parameter name; a `Placed` has strides and a base of its own. parameters: what the entry promises of them (taken
    from the spec where there is one; without them sizes and strides are run-time values, the alignment is that of the tensor).
    counting: sectors, bank conflicts. lanes: threads that run at once. blocks: which of the grid to run, a range for each of its
    dims (None, or none given: all).
    replace: functions on fp32 arrays by name, in the place of the exact ones. jitter: a seed; approximate functions then err at
    random within their documented bounds (accuracy.py); a Shift: all of them as far as they may. dependent: tensors that the kernel
    before this one touches, in a dependent launch: no thread may touch them before its griddepcontrol_wait.
    Raises EmulationError where the source leaves the subset or breaks a rule of the DSL.
    """
    source, found_arch, found_parameters = _parts(kernel)
    target = arch or found_arch or "sm_90a"
    run_ = Run(source, target, counting, lanes, blocks, dependent)
    functions.replacement.append(replace or {})
    functions.jitter.append(Jitter(jitter) if isinstance(jitter, int) else jitter)
    try:
        call(run_, source, tensors, found_parameters if parameters is None else parameters)
    finally:
        functions.replacement.pop()
        functions.jitter.pop()
    findings = run_.log.findings()
    return Report(not findings, findings, _counts(run_), run_.log.accesses())


def _parts(kernel: Any) -> tuple[str, str | None, Sequence[Parameter]]:
    """Source, arch and parameters of what was given."""
    if isinstance(kernel, str):
        return kernel, None, ()
    if isinstance(kernel, KernelSpec):
        from ..codegen.render import render
        return render(kernel), kernel.arch, kernel.parameters
    spec = getattr(kernel, "spec", None) or getattr(kernel, "kernel", None)
    return kernel.source, getattr(kernel, "arch", None), spec.parameters if spec is not None else ()


def _counts(run_: Run) -> dict[str, int]:
    traffic = run_.log.accesses()
    return {"blocks": run_.blocks, "smem_bytes": run_.smem, **run_.log.counts,
            "requests": sum(t.requests for t in traffic), "sectors": sum(t.sectors for t in traffic),
            "ideal_sectors": sum(t.ideal for t in traffic), "bank_conflicts": sum(t.conflicts for t in traffic)}


def run(kernel: Any, tensors: Mapping[str, torch.Tensor | Placed], **options: Any) -> None:
    """Run an emitted kernel in place in the caller's CPU tensors, as ir.interpret_kernel.run_kernel does with its spec.

    Raises InternalError with every finding where the kernel breaks a law.
    """
    report = emulate(kernel, tensors, **options)
    if not report.ok:
        raise InternalError("the emitted kernel breaks a law", str(report.findings[0]), "\n".join(map(str, report.findings)))
