"""Whether planted faults are noticed: every mutant of a source is run against the source itself, near, far away, in high rows."""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..ir.kernel import Parameter
from ..ir.sizes import factors
from .api import emulate
from .memory import Placed
from .mutants import Mutant, mutants


@dataclass(frozen=True, slots=True)
class Case:
    """Arguments by name, which blocks of the grid to run, and which tensors the kernel before may still write."""

    tensors: Mapping[str, torch.Tensor | Placed]
    blocks: tuple[range | None, ...] = ()
    dependent: tuple[str, ...] = ()


Inputs = Callable[[], Case]
"""Makes the same case anew at each call."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """caught: how a mutant was noticed (a finding's kind, "result", "refused"), '' for a survivor. reason: why a survivor means the
    same as the source, where that is proven."""

    mutant: Mutant
    caught: str
    reason: str = ""

    def __str__(self) -> str:
        how = f"caught by {self.caught}" if self.caught else self.reason or "SURVIVED"
        return f"{self.mutant.kind} at line {self.mutant.line} ({self.mutant.what}): {how}"


def _bits(tensors: Mapping[str, torch.Tensor | Placed]) -> dict[str, torch.Tensor]:
    """Every byte of every storage."""
    found = {}
    for name, t in tensors.items():
        t = t.tensor if isinstance(t, Placed) else t
        found[name] = torch.empty(0, dtype=torch.uint8).set_(t.untyped_storage()).clone()
    return found


def judge(source: str, cases: Sequence[Inputs], parameters: Sequence[Parameter] = (), arch: str = "sm_90a",
          **options: Any) -> list[Verdict]:
    """Every mutant of a source, run on each case until one notices it.

    AssertionError where the source itself does not run clean.
    """
    wanted = []
    for inputs in cases:
        case = inputs()
        report = emulate(source, case.tensors, arch=arch, parameters=parameters, counting=False, blocks=case.blocks,
                         dependent=case.dependent, **options)
        assert report.ok, f"the source itself:\n{report}"
        wanted.append(_bits(case.tensors))
    found = []
    for m in mutants(source):
        caught = _caught(m.source, cases, wanted, parameters, arch, options)
        proven = not caught and m.proof and not _caught(m.proof, cases, wanted, parameters, arch, options)
        found.append(Verdict(m, caught, "nothing depends on what the other threads would compute" if proven else ""))
    return found


def _caught(source: str, cases: Sequence[Inputs], wanted: Sequence[dict[str, torch.Tensor]], parameters: Sequence[Parameter],
            arch: str, options: Mapping[str, Any]) -> str:
    for inputs, want in zip(cases, wanted, strict=True):
        case = inputs()
        try:
            report = emulate(source, case.tensors, arch=arch, parameters=parameters, counting=False, blocks=case.blocks,
                             dependent=case.dependent, **options)
        except Exception as error:  # Whatever a broken source raises: it does not run, so it is noticed.
            return f"refused: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        if not report.ok:
            return report.findings[0].kind
        found = _bits(case.tensors)
        different = [name for name in want if not torch.equal(found[name], want[name])]
        if different:
            return f"result of {', '.join(different)}"
    return ""


# ---- far away -------------------------------------------------------------------------------------------------------------------

def _dense(t: torch.Tensor) -> torch.Tensor:
    """The same values without gaps, the dims in the order of their strides."""
    order = sorted(range(t.dim()), key=lambda d: (-t.stride(d), d))
    return t.permute(order).contiguous().permute(sorted(range(t.dim()), key=lambda d: order[d]))


def _spread(p: Parameter, t: torch.Tensor, step: int) -> tuple[int, ...]:
    """Strides of which every run-time one is beyond `step` elements and a multiple of what the parameter promises."""
    strides, span = list(t.stride()), 1
    for d in sorted(range(t.dim()), key=lambda d: t.stride(d)):
        if p.strides[d] is None and t.shape[d] > 1:
            unit = max(p.align // t.element_size(), *(p.divisible or (1,)), 1)
            strides[d] = (max(span, step) // unit + 3) * unit
        elif strides[d] < span and t.shape[d] > 1 and strides[d]:
            return tuple(t.stride())
        span += max(t.shape[d] - 1, 0) * strides[d]
    return tuple(strides)


def far(parameters: Sequence[Parameter], tensors: Mapping[str, torch.Tensor], step: int = 2**31) -> Case:
    """The same values with every run-time stride grown beyond `step` elements: no memory lies between."""
    return Case({p.name: Placed(_dense(tensors[p.name]), _spread(p, tensors[p.name], step)) for p in parameters})


def _per_row(size: int | str, rows: int | str) -> int:
    """Elements of a dim that belong to one row: 1 for `rows`, 2 for `2*rows`, 0 for a dim that is no rows."""
    split = factors(size)
    return split[0] if split is not None and split[1] == (rows,) else 0


def high(parameters: Sequence[Parameter], tensors: Mapping[str, torch.Tensor], grid: tuple[int | str, ...],
         step: int = 2**31) -> Case:
    """The same values as the last rows of as many as it takes for their offsets to pass `step` elements; only these rows run.

    grid: the factors of the first grid dim, outermost first, the first of them a symbol: the rows. Tensors without it stay.
    """
    rows, each = grid[0], math.prod(f for f in grid[1:] if isinstance(f, int))
    dims = {p.name: (d, k) for p in parameters for d, e in enumerate(p.shape) if (k := _per_row(e, rows))}
    near = [tensors[n].stride(d) * k for n, (d, k) in dims.items() if tensors[n].stride(d) > 1]
    before = min(step // min(near, default=1) + 1, (2**31 - 4096) // each)
    count = max(tensors[n].shape[d] // k for n, (d, k) in dims.items())
    found: dict[str, torch.Tensor | Placed] = dict(tensors)
    for name, (d, k) in dims.items():
        t = _dense(tensors[name])
        shape, origin, strides = list(t.shape), [0] * t.dim(), list(tensors[name].stride())
        shape[d], origin[d] = before * k + t.shape[d], before * k
        for outer, s in enumerate(strides):  # Dims that step over all rows step over as many more.
            if s > strides[d] and t.shape[d]:
                strides[outer] = s // t.shape[d] * shape[d]
        found[name] = Placed(t, tuple(strides), None, tuple(shape), tuple(origin))
    return Case(found, (range(before * each, (before + count) * each),))
