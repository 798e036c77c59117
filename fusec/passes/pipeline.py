"""The driver: the order of the passes in one tuple, and `compile`, which runs them up to any level.

Inspection is this same code path stopped earlier. What each pass promises is checked by the pass itself when it is done.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import InternalError, ResourceError
from ..ir.graph import Graph
from ..ir.kernel import KernelSpec
from ..ir.plan import Layout, Schedule
from ..ir.tensor import TensorGraph


@dataclass(frozen=True, slots=True)
class Stages:
    """The levels of one function for one architecture, as far as they were made (None: not yet).

    alignment: bytes that a tensor's data and free strides are a multiple of, where less than a kernel would like. avoid: layouts of
    the anchor that were tried and spill.
    """

    captured: TensorGraph | None
    arch: str
    numerics: str = "default"
    alignment: Mapping[str, int] = field(default_factory=dict)
    graph: Graph | None = None
    schedule: Schedule | None = None
    kernel: KernelSpec | None = None
    source: str | None = None
    avoid: tuple[Layout, ...] = ()

    def need(self, level: str) -> Any:
        """A level that must be there. Raises InternalError where the pipeline was stopped before it."""
        value = getattr(self, level)
        if value is None:
            raise InternalError(f"the level {level} was not made")
        return value

    def for_arch(self, arch: str, alignment: Mapping[str, int] | None = None) -> "Stages":
        """The same captured function and graph, with what depends on the architecture still to be made."""
        return Stages(self.captured, arch, self.numerics, dict(alignment or {}), self.graph)


def _axes(s: Stages) -> Stages:
    from .front import to_graph
    return replace(s, graph=to_graph(s.need("captured"), s.numerics))


def _kernel(s: Stages) -> Stages:
    from .back import to_kernel
    schedule, kernel = to_kernel(s.need("graph"), s.arch, dict(s.alignment) or None)
    return replace(s, schedule=schedule, kernel=kernel)


def relaxed(s: Stages) -> Stages | None:
    """Another kernel in place of one that spills, None where there is none.

    Where more than two blocks were to share a multiprocessor: with one less, of a later layout with two. Where two were: once the
    next layout of the anchor with which they can, then the kernel without that promise. After it the next layout that leaves more
    registers.
    """
    from .back import to_kernel
    kernel = s.need("kernel")
    several = kernel.launch.min_blocks > 1

    def with_blocks(count: int) -> Stages:
        return _source(replace(s, kernel=replace(kernel, launch=replace(kernel.launch, min_blocks=count))))
    if kernel.launch.min_blocks > 2:
        return with_blocks(2 if s.avoid else kernel.launch.min_blocks - 1)
    avoid = (*s.avoid, s.need("schedule").layout(s.need("schedule").anchor))
    if several and s.avoid:
        return with_blocks(1)
    try:
        schedule, other = to_kernel(s.need("graph"), s.arch, dict(s.alignment) or None, avoid)
    except ResourceError:
        return with_blocks(1) if several else None
    if several and other.launch.min_blocks == 1:
        return with_blocks(1)
    return _source(replace(s, schedule=schedule, kernel=other, avoid=avoid))


def _source(s: Stages) -> Stages:
    from ..codegen.render import render
    return replace(s, source=render(s.need("kernel")))


@dataclass(frozen=True, slots=True)
class Pass:
    """A step: the levels it makes, and why it stands where it stands."""

    makes: tuple[str, ...]
    run: Callable[[Stages], Stages]
    why: str


ORDER = (
    Pass(("graph",), _axes,
         "names every dimension, makes memory accesses explicit, then folds while ops are whole: contraction and the order of each "
         "reduction are meaning, so they are fixed before anything knows an architecture"),
    Pass(("schedule", "kernel"), _kernel,
         "places regions, then orders statements, then plans shared memory, then puts barriers: reuse of bytes makes hazards"),
    Pass(("source",), _source, "text comes last and nothing reads it again"),
)


def compile(captured: TensorGraph | Stages, arch: str, numerics: str = "default", alignment: Mapping[str, int] | None = None,
            until: str = "source") -> Stages:
    """Run the passes from a captured graph (or from stages made before) until the level `until` is there.

    Raises UnsupportedOp, FusionError or ResourceError where the function cannot be one kernel.
    """
    stages = captured if isinstance(captured, Stages) else Stages(captured, arch, numerics, dict(alignment or {}))
    for step in ORDER:
        if getattr(stages, until) is not None:
            break
        if any(getattr(stages, level) is None for level in step.makes):
            stages = step.run(stages)
    return stages
