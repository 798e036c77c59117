"""From a captured function to kernels: look in the store, else plan, render, build in the worker, publish.

Used by the API and the command line alike. One call compiles one graph for several architectures at once.
"""
from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from .ir.kernel import Parameter
from .ir.tensor import TensorGraph
from .options import Progress
from .passes import pipeline
from .passes.pipeline import Stages
from .runtime.kernel import Kernel
from .runtime.identity import graph_key, source_identity, versions
from .runtime.store import Entry, Store, store
from .runtime.worker import BUILD, builder, start_builder

SPILL_TRIES = 6  # Kernels built in place of one that spills.


def quiet(text: str) -> None:
    """Progress that nobody sees."""


def graph_stages(captured: TensorGraph, numerics: str) -> Stages:
    """The stages that hold the graph: what every architecture and variant shares."""
    return pipeline.compile(captured, "", numerics, until="graph")


def plan(captured: TensorGraph, arch: str, numerics: str = "default", alignment: Mapping[str, int] | None = None,
         until: str = "source") -> Stages:
    """The levels of a captured function up to `until`: what `inspect` shows, without a build."""
    return pipeline.compile(captured, arch, numerics, alignment, until)


def kernels(stages: Stages, archs: Sequence[str], alignment: Mapping[str, int] | None = None, progress: Progress = quiet,
            announce: Progress = quiet) -> tuple[Kernel, ...]:
    """A kernel per architecture from stages that hold the graph; from the store where it has them.

    progress is told of each step; announce once before anything is built, and may raise to prevent it. Raises FusionError or
    ResourceError where there is no kernel, BuildError where the DSL is missing or refuses.
    """
    wanted = {arch: _Wanted(graph_key(stages.need("graph"), arch, stages.numerics, alignment), stages.for_arch(arch, alignment))
              for arch in archs}
    place, found = store(), dict[str, Kernel]()
    with ExitStack() as locks:
        missing = _take(wanted, place, found)
        if missing:
            announce(f"for {', '.join(missing)}")
            start_builder()
            for key in sorted(wanted[arch].key for arch in missing):
                locks.enter_context(place.lock(key))
            missing = _take({arch: wanted[arch] for arch in missing}, place, found)  # Another process may have made them meanwhile.
        if missing:
            found.update(_build({arch: wanted[arch] for arch in missing}, place, progress))
    return tuple(found[arch] for arch in archs)


@dataclass(slots=True)
class _Wanted:
    """One kernel to be had: its key, its levels as far as they are made, seconds spent on it."""

    key: str
    stages: Stages
    seconds: float = field(default=0.0)

    @property
    def entry_name(self) -> str:
        """The exported function: its own for each key, since the objects of a process share a table of symbols."""
        return f"{self.stages.need('kernel').name}_{self.key[:8]}"


def _take(wanted: Mapping[str, _Wanted], place: Store, found: dict[str, Kernel]) -> list[str]:
    """Put what the store has into `found`; the architectures that it lacks."""
    missing = []
    for arch, one in wanted.items():
        entry = place.find(one.key)
        if entry is None:
            missing.append(arch)
        else:
            found[arch] = _kernel(entry, one)
    return missing


def _build(wanted: Mapping[str, _Wanted], place: Store, progress: Progress) -> dict[str, Kernel]:
    for arch, one in wanted.items():
        progress(f"{one.stages.need('graph').name}: planning for {arch}")
        begin = time.perf_counter()
        one.stages = pipeline.compile(one.stages, arch)
        one.seconds = time.perf_counter() - begin
    archs = list(wanted)
    name = wanted[archs[0]].stages.need("graph").name
    progress(f"{name}: building for {', '.join(archs)}")
    built = _built(wanted)
    tried = {arch: one for arch, one in wanted.items() if built[arch].resources["spills"]}
    for _ in range(SPILL_TRIES):
        others = {arch: pipeline.relaxed(one.stages) for arch, one in tried.items()}
        tried = {arch: replace(tried[arch], stages=other) for arch, other in others.items() if other is not None}
        for arch in tried:
            progress(f"{name}: spills for {arch}, building another")
        for arch, found in _built(tried).items():
            wanted[arch].seconds = tried[arch].seconds
            if found.resources["spills"] < built[arch].resources["spills"]:
                wanted[arch].stages, built[arch] = tried[arch].stages, found
        tried = {arch: one for arch, one in tried.items() if built[arch].resources["spills"]}
    return {arch: _kernel(_publish(place, one, built[arch]), one) for arch, one in wanted.items()}


def _built(wanted: Mapping[str, _Wanted]) -> dict[str, Any]:
    """What the worker makes of each, side by side."""
    archs, found = list(wanted), dict[str, Any]()
    jobs = [(BUILD, (one.stages.source, one.stages.kernel, arch, one.entry_name, False)) for arch, one in wanted.items()]
    for number, result in builder.run(jobs) if jobs else ():
        found[archs[number]] = result
        wanted[archs[number]].seconds += result.seconds
    return found


def _publish(place: Store, one: _Wanted, built: Any) -> Entry:
    stages, spec, source = one.stages, one.stages.need("kernel"), one.stages.need("source")
    meta = {
        "function": stages.need("graph").name, "name": spec.name, "arch": stages.arch, "numerics": stages.numerics,
        "parameters": [asdict(p) for p in spec.parameters], "grid": spec.launch.grid, "threads": spec.launch.threads,
        "smem_bytes": spec.smem.total, "resources": built.resources, "seconds": one.seconds, "entry": one.entry_name,
        "identity": source_identity(source, stages.arch, stages.numerics), "versions": dict(versions()),
    }
    files = {"kernel.o": built.object, "kernel.cubin": built.cubin, "kernel.ptx": built.ptx.encode(), "source.py": source.encode()}
    return place.publish(one.key, files, meta)


def _kernel(entry: Entry, one: _Wanted) -> Kernel:
    m = entry.meta
    parameters = tuple(Parameter(p["name"], p["dtype"], tuple(p["shape"]), tuple(p["strides"]), p["align"], tuple(p["divisible"]))
                       for p in m["parameters"])
    grid = tuple(map(tuple, m["grid"]))
    return Kernel(m["function"], m["name"], m["arch"], one.key, m["numerics"], parameters, grid, m["threads"], m["smem_bytes"],
                  m["resources"], round(one.seconds, 3), m["entry"], entry.file("kernel.o"), one.stages)
