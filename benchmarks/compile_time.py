"""How long `fusec compile` of one function takes when nothing is in the store, and where the time goes.

    python -m benchmarks.compile_time [--runs 5] [--json FILE]

Each run is a process of its own with a store of its own; only the page cache is warm. On a busy machine look at the processor
seconds: the last lines say what they would come to on two free cores.
"""
from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Run:
    """Seconds of one compile: by the clock, and of all its processes in user and in system mode."""

    wall: float
    user: float
    system: float


@dataclass(frozen=True, slots=True)
class Phase:
    """What one process spent on one thing: first begun at `begin` seconds, seconds by the clock, seconds of processor time."""

    process: str
    phase: str
    begin: float
    wall: float
    cpu: float


def compile_once(arguments: list[str], module: str = "fusec", extra: Mapping[str, str] | None = None) -> Run:
    """Compile in a new process with a new store. Raises ClickException with what it said where it fails."""
    with tempfile.TemporaryDirectory(prefix="fusec-benchmark-") as store:
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "FUSEC_CACHE_DIR": store, "PYTHONPATH": path, **(extra or {})}
        before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        environment["FUSEC_BENCHMARK_BEGIN"] = str(begin)
        line = [sys.executable, "-m", module, "compile", *arguments]
        done = subprocess.run(line, capture_output=True, text=True, env=environment)
        wall, after = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise click.ClickException(f"fusec compile {' '.join(arguments)}: exit status {done.returncode}\n{done.stderr}")
    return Run(wall, after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime)


def trace_once(arguments: list[str]) -> tuple[Run, list[Phase]]:
    """A compile that is traced (which costs a little), and its phases in the order in which they begin."""
    with tempfile.TemporaryDirectory(prefix="fusec-benchmark-") as folder:
        file = Path(folder, "spans")
        begin = time.monotonic()
        run = compile_once(arguments, "benchmarks.trace", {"FUSEC_BENCHMARK_TRACE": str(file)})
        return run, phases([json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()], begin)


def phases(spans: Iterable[Mapping[str, Any]], begin: float) -> list[Phase]:
    """Spans of the same process and phase as one."""
    found: dict[tuple[str, str], Phase] = {}
    for s in sorted(spans, key=lambda s: s["begin"]):
        key = (s["process"], s["phase"])
        old = found.get(key, Phase(*key, s["begin"] - begin, 0.0, 0.0))
        found[key] = Phase(*key, old.begin, old.wall + s["wall"], old.cpu + s["cpu"])
    return list(found.values())


def two_cores(found: Iterable[Phase]) -> tuple[float, float, float]:
    """(processor seconds until the build can start, of the build, of the worker before it): the first and the last run beside each
    other, so a compile on two free cores takes about max(first, last) + second."""
    cpu = {"fusec": 0.0, "build": 0.0, "worker": 0.0}
    for p in found:
        cpu["build" if p.phase == "build" else p.process] += p.cpu
    return cpu["fusec"], cpu["build"], cpu["worker"]


def show(runs: list[Run], traced: Run, found: list[Phase]) -> None:
    """Tables on standard output."""
    from rich.console import Console
    from rich.table import Table
    console = Console(highlight=False)
    walls, busy = [r.wall for r in runs], [r.user + r.system for r in runs]
    if runs:
        console.print(f"{len(runs)} cold compiles: least {min(walls):.2f} s, median {statistics.median(walls):.2f} s; processor "
                      f"time least {min(busy):.2f} s, median {statistics.median(busy):.2f} s")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("process", "phase", "begins at", "wall s", "cpu s"):
        table.add_column(name, justify="left" if name in ("process", "phase") else "right", no_wrap=True)
    for p in found:
        if p.wall >= 0.02 or p.cpu >= 0.02:
            table.add_row(p.process, p.phase, f"{p.begin:.2f}", f"{p.wall:.2f}", f"{p.cpu:.2f}")
    console.print(table)
    main, build, worker = two_cores(found)
    console.print(f"traced: {traced.wall:.2f} s by the clock. Processor seconds: {main:.2f} outside of the build, {worker:.2f} in "
                  f"the worker beside it, {build:.2f} in the build: about {max(main, worker) + build:.2f} s on two free cores")


@click.command()
@click.argument("file", default="kimi_k3_decode:kda_decode")
@click.option("--arch", default="sm_90a", show_default=True)
@click.option("--runs", default=3, show_default=True, type=click.IntRange(0), help="Compiles that are only timed.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the results as JSON.")
def main(file: str, arch: str, runs: int, json_file: Path | None) -> None:
    """Time `fusec compile FILE` from a cold store, then trace it once."""
    arguments = [file, "--arch", arch]
    timed = [compile_once(arguments) for _ in range(runs)]
    traced, found = trace_once(arguments)
    show(timed, traced, found)
    if json_file:
        data = {"file": file, "arch": arch, "cores": len(os.sched_getaffinity(0)), "runs": [asdict(r) for r in timed],
                "traced": asdict(traced), "phases": [asdict(p) for p in found]}
        json_file.write_text(json.dumps(data, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
