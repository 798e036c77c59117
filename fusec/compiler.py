"""From a captured function to kernels: look in the store, else plan, render, build in the worker, publish.

Used by the API and the command line alike. One call compiles one graph for several architectures at once.
"""
from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Any

from .ir.graph import Graph
from .ir.kernel import Parameter
from .ir.tensor import TensorGraph
from .passes import pipeline
from .passes.pipeline import Stages
from .runtime.artifact import Kernel
from .runtime.identity import graph_key, source_identity, versions
from .runtime.store import Entry, Store, store
from .runtime.worker import BUILD, builder, start_builder

Progress = Callable[[str], None]


def plan(captured: TensorGraph, arch: str, numerics: str = "default", alignment: Mapping[str, int] | None = None,
         until: str = "source") -> Stages:
    """The levels of a captured function up to `until`."""
    return pipeline.compile(captured, arch, numerics, alignment, until)


def kernels(stages: Stages, archs: Sequence[str], alignment: Mapping[str, int] | None = None,
            progress: Progress = lambda text: None, announce: Progress = lambda text: None) -> tuple[Kernel, ...]:
    """A kernel per architecture from stages that hold the graph; from the store where it has them.

    progress is told of each step; announce once before anything is built, and may raise to prevent it. Raises FusionError or
    ResourceError where there is no kernel, BuildError where the DSL is missing or refuses.
    """
    graph, place = stages.need("graph"), store()
    wanted = {arch: graph_key(graph, arch, stages.numerics, alignment) for arch in archs}
    found: dict[str, Kernel] = {}
    with ExitStack() as locks:
        missing = [arch for arch in archs if not _take(found, arch, place.find(wanted[arch]), stages, alignment, wanted)]
        if missing:
            announce(f"for {', '.join(missing)}")
            start_builder()
            for arch in sorted(missing, key=wanted.__getitem__):
                locks.enter_context(place.lock(wanted[arch]))
            missing = [arch for arch in missing if not _take(found, arch, place.find(wanted[arch]), stages, alignment, wanted)]
            found.update(_build(missing, stages, alignment, wanted, place, progress))
    return tuple(found[arch] for arch in archs)


def _take(found: dict[str, Kernel], arch: str, entry: Entry | None, stages: Stages, alignment: Mapping[str, int] | None,
          keys: Mapping[str, str]) -> bool:
    if entry is not None:
        found[arch] = _kernel(entry, keys[arch], 0.0, functools.partial(_replan, stages, arch, alignment))
    return entry is not None


def _replan(stages: Stages, arch: str, alignment: Mapping[str, int] | None) -> Stages:
    return pipeline.compile(stages.for_arch(arch, alignment), arch)


def _build(archs: Sequence[str], stages: Stages, alignment: Mapping[str, int] | None, keys: Mapping[str, str], place: Store,
           progress: Progress) -> dict[str, Kernel]:
    planned: dict[str, Stages] = {}
    spent: dict[str, float] = {}
    for arch in archs:
        progress(f"{stages.need('graph').name}: planning for {arch}")
        begin = time.perf_counter()
        planned[arch] = _replan(stages, arch, alignment)
        spent[arch] = time.perf_counter() - begin
    progress(f"{stages.need('graph').name}: building for {', '.join(archs)}")
    jobs = [(BUILD, (planned[a].source, planned[a].kernel, a, _entry_name(planned[a], keys[a]), False)) for a in archs]
    found: dict[str, Kernel] = {}
    for number, built in builder.run(jobs) if jobs else ():
        arch = archs[number]
        progress(f"{stages.need('graph').name}: built for {arch}")
        seconds = spent[arch] + built.seconds
        entry = _publish(place, keys[arch], planned[arch], built, seconds)
        found[arch] = _kernel(entry, keys[arch], round(seconds, 3), functools.partial(_same, planned[arch]))
    return found


def _same(stages: Stages) -> Stages:
    return stages


def _entry_name(stages: Stages, key: str) -> str:
    """The exported function: its own for each key, since objects of one process share a table of symbols."""
    return f"{stages.need('kernel').name}_{key[:8]}"


def _publish(place: Store, key: str, stages: Stages, built: Any, seconds: float) -> Entry:
    spec, source = stages.need("kernel"), stages.need("source")
    meta = {
        "function": stages.need("graph").name, "name": spec.name, "arch": stages.arch, "numerics": stages.numerics,
        "parameters": [asdict(p) for p in spec.parameters], "grid": spec.launch.grid, "threads": spec.launch.threads,
        "smem_bytes": spec.smem.total, "resources": built.resources, "seconds": seconds, "entry": _entry_name(stages, key),
        "identity": source_identity(source, stages.arch, stages.numerics), "versions": dict(versions()),
    }
    files = {"kernel.o": built.object, "source.py": source.encode(), **({"kernel.ptx": built.ptx.encode()} if built.ptx else {}),
             "kernel.cubin": built.cubin}
    return place.publish(key, files, meta)


def _kernel(entry: Entry, key: str, seconds: float, replan: Callable[[], Stages]) -> Kernel:
    m = entry.meta
    parameters = tuple(Parameter(p["name"], p["dtype"], tuple(p["shape"]), tuple(p["strides"]), p["align"], tuple(p["divisible"]))
                       for p in m["parameters"])
    return Kernel(m["function"], m["name"], m["arch"], key, m["numerics"], parameters, tuple(map(tuple, m["grid"])), m["threads"],
                  m["smem_bytes"], m["resources"], seconds, m["entry"], entry.file("kernel.o"), replan)


def graph_stages(captured: TensorGraph, numerics: str) -> Stages:
    """The stages that hold the graph: what every architecture and variant shares."""
    return pipeline.compile(captured, "", numerics, until="graph")


__all__ = ["Graph", "graph_stages", "kernels", "plan", "start_builder"]
