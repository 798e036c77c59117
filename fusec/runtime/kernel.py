"""One compiled kernel, and which tensors it takes."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..ir.graph import Graph
from ..ir.kernel import KernelSpec, Parameter
from ..ir.plan import Schedule
from . import contract, launch

if TYPE_CHECKING:
    from ..passes.pipeline import Stages


@dataclass(frozen=True)
class Kernel:
    """One compiled kernel of one function for one architecture.

    parameters, grid, threads, smem_bytes: as launched. resources: what the assembler reported (registers, spills, barriers, …).
    seconds: what its compile took, 0 where it came from the store. `object`: the file to load. `made`: its levels as far as known.
    """

    function: str
    name: str
    arch: str
    key: str
    numerics: str
    parameters: tuple[Parameter, ...]
    grid: tuple[tuple[int | str, ...], ...]
    threads: int
    smem_bytes: int
    resources: Mapping[str, Any]
    seconds: float
    entry: str
    object: Path
    made: Stages

    @cached_property
    def stages(self) -> Stages:
        """Every level from the captured graph to the source, made again where the object came from the store."""
        from ..passes import pipeline
        return pipeline.compile(self.made, self.arch)

    @property
    def source(self) -> str:
        """The emitted file."""
        return str(self.stages.need("source"))

    @property
    def spec(self) -> KernelSpec:
        found: KernelSpec = self.stages.need("kernel")
        return found

    @property
    def plan(self) -> Schedule:
        found: Schedule = self.stages.need("schedule")
        return found

    @property
    def graph(self) -> Graph:
        found: Graph = self.made.need("graph")
        return found

    @cached_property
    def loaded(self) -> launch.Loaded:
        """The function of the object, on this process' device. BuildError where what loads it is missing."""
        from ..codegen.load import load
        return load(self.object, self.entry)

    def takes(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
        """The tensors (by name) that are less aligned than this kernel wants, with the bytes they are aligned to."""
        return contract.less_aligned(self.parameters, tensors)
