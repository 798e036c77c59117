"""Decode steps beside probes and peers on this GPU, in one run and one process.

    python -m benchmarks.decode [--group GROUP] [--peers FILE] [--json FILE]

Every candidate is compared with the reference before it is timed. Exit code 2 where there is nothing to time on, 1 where a kernel
of fusec's is wrong or does not compile.
"""
from __future__ import annotations

import gc
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from queue import Queue
from typing import TYPE_CHECKING, Any

import click

from . import cases as sizes
from . import grid, prepare, render
from . import peers as others
from .candidates import collect
from .cases import Case, Subject

if TYPE_CHECKING:
    from fusec.runtime.artifact import Artifact

PACKAGES = ("torch", "triton", "nvidia-cutlass-dsl", "apache-tvm-ffi")
START = time.perf_counter()


def say(text: str) -> None:
    """What is going on, with the seconds since the start, on standard error."""
    click.echo(f"[{time.perf_counter() - START:6.1f} s] {text}", err=True)


@click.command()
@click.option("--all", "every", is_flag=True, help="The KDA step at all 21 sizes that serving engines test theirs on.")
@click.option("--group", "groups", multiple=True, type=click.Choice(grid.GROUPS), help="Only this group (may be repeated).")
@click.option("--only", multiple=True, type=click.Choice(grid.FUNCTIONS), help="Only this function (may be repeated).")
@click.option("--peers", "peer_file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Python file with PEERS = {function: {name: load}}; without it installed packages are used.")
@click.option("--peer", "peer_names", multiple=True, help="A peer by name, of every function that has it (may be repeated).")
@click.option("--torch-compile", "compiled", is_flag=True, help="Time torch.compile beside reductions; it takes seconds a size.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the results as JSON.")
@click.option("--markdown", "markdown_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the results as Markdown.")
@click.option("--note", "notes", multiple=True, help="A line for the head of the results (may be repeated).")
@click.option("--archs", metavar="ARCH[,ARCH]", help="Compile for these; the present device's if not given.")
@click.option("--compile-only", is_flag=True, help="Fill the store (--store) and leave; needs no GPU.")
@click.option("--store", type=click.Path(file_okay=False, path_type=Path), help="The store of kernels; a new one if not given.")
def main(every: bool, groups: tuple[str, ...], only: tuple[str, ...], peer_file: Path | None, peer_names: tuple[str, ...],
         compiled: bool, json_file: Path | None, markdown_file: Path | None, notes: tuple[str, ...], archs: str | None,
         compile_only: bool, store: Path | None) -> None:
    """Time the shipped decode steps beside what memory can do, and beside other people's kernels."""
    from fusec.errors import FusecError
    from fusec.options import archs as parse
    try:
        wanted = parse(archs) if archs else ()
    except FusecError as error:
        raise click.UsageError(str(error)) from None
    if compile_only and not (wanted and store):
        raise click.UsageError("--compile-only needs --archs and --store")
    found = grid.cases(every, only, groups)
    if not found:
        raise click.UsageError("no function of --only belongs to a group of --group")
    arch = "" if compile_only else device_arch()
    with _store(store):
        if compile_only:
            sys.exit(1 if _complain(prepare.compile_all(_announced(found, wanted), wanted, say)) else 0)
        wanted = tuple(dict.fromkeys((*wanted, arch)))
        artifacts, failed, peers, left_out = _prepared(found, wanted, arch, peer_file, peer_names)
        data = measure(found, arch, artifacts, peers, compiled)
        data |= {"notes": list(notes), "left_out": left_out + [
            f"{s.name} {s.label}: not compiled: {e.splitlines()[0]}" for s, e in failed.items()]}
        _report(data, json_file, markdown_file)
    sys.exit(1 if failed or any("fusec" in r["troubles"] for r in data["rows"]) else 0)


def device_arch() -> str:
    """The architecture of the device; leaves with code 2 where there is none."""
    import torch
    if not torch.cuda.is_available():
        click.echo("no CUDA device: nothing to time", err=True)
        sys.exit(2)
    from fusec.errors import TargetError
    from fusec.target import of_capability
    try:
        major, minor = torch.cuda.get_device_capability()
        return of_capability(major, minor, torch.cuda.get_device_name())
    except TargetError as error:
        click.echo(f"{error}: nothing to time", err=True)
        sys.exit(2)


def _announced(found: Sequence[Case], archs: Sequence[str]) -> list[Subject]:
    subjects = grid.subjects(found)
    say(f"compiling {len(subjects)} kernels for {', '.join(archs)}")
    return subjects


def _prepared(found: Sequence[Case], archs: Sequence[str], arch: str, peer_file: Path | None, peer_names: Sequence[str]
              ) -> tuple[dict[Subject, Artifact], dict[Subject, str], list[others.Loaded], list[str]]:
    """(artifacts for arch, subjects that did not compile, peers, what was left out): while other processes compile, the peers are
    loaded and what is compiled is taken from the store."""
    subjects = _announced(found, archs)
    artifacts: dict[Subject, Artifact] = {}
    compiled: Queue[Subject | None] = Queue()

    def everything() -> dict[Subject, str]:
        try:
            return prepare.compile_all(subjects, archs, say, compiled.put)
        finally:
            compiled.put(None)

    with ThreadPoolExecutor(1) as beside:
        result = beside.submit(everything)
        peers, left_out = others.load(peer_file, (s.name for s in subjects), peer_names)
        while (subject := compiled.get()) is not None:
            artifacts[subject] = subject.fused().compile(arch, **dict(subject.sizes))
        failed = _complain(result.result())
    return artifacts, failed, peers, left_out


def _complain(failed: dict[Subject, str]) -> dict[Subject, str]:
    for subject, error in failed.items():
        click.echo(f"{subject.name} {subject.label}: {error}", err=True)
    return failed


@contextmanager
def _store(given: Path | None) -> Iterator[None]:
    """Kernels go to a store of this run, so that each is what the compiler makes of the function now."""
    before = os.environ.get("FUSEC_CACHE_DIR")
    with tempfile.TemporaryDirectory(prefix="fusec-benchmark-") as fresh:
        os.environ["FUSEC_CACHE_DIR"] = str(given.absolute()) if given else fresh
        try:
            yield
        finally:
            os.environ.pop("FUSEC_CACHE_DIR")
            if before is not None:
                os.environ["FUSEC_CACHE_DIR"] = before


def _report(data: dict[str, Any], json_file: Path | None, markdown_file: Path | None) -> None:
    render.show(data)
    for file, text in ((json_file, json.dumps(data, indent=1, ensure_ascii=False)), (markdown_file, render.markdown(data))):
        if file:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")


def measure(found: Sequence[Case], arch: str, artifacts: Mapping[Subject, Artifact], peers: Sequence[others.Loaded],
            compiled: bool) -> dict[str, Any]:
    """Everything that `render` shows."""
    names = dict.fromkeys(p.name for p in peers)
    say(f"timing {len(found)} cases" + (f", peers: {', '.join(names)}" if peers else ""))
    # What lives by now stays: each recording collects garbage, and need not look through all of torch and the compiler for it.
    gc.collect()
    gc.freeze()
    rows = []
    for case in found:
        if case.subject in artifacts:
            rows.append(_measured(case, artifacts[case.subject], peers, compiled))
            r = rows[-1]
            say(f"{r['function']} {r['sizes']} rows={r['rows']}: " + ", ".join(f"{n} {t:.2f}" for n, t in r["us"].items()))
            for name, trouble in r["troubles"].items():
                say(f"    {name}: {trouble}")
    kernels = [_kernel(s, artifacts[s]) for s in grid.subjects(found) if s in artifacts]
    return {"device": device(arch), "versions": versions(peers), "groups": list(dict.fromkeys(c.group for c in found)),
            "kernels": kernels, "rows": rows, "seconds": round(time.perf_counter() - START, 1)}


def _measured(case: Case, artifact: Artifact, peers: Sequence[others.Loaded], compiled: bool = False) -> dict[str, Any]:
    """One row of the results."""
    import torch

    from .timing import side_by_side
    moved = sizes.moved(artifact, case)
    count = sizes.set_count(moved)
    times, troubles = dict[str, float](), dict[str, str]()
    try:
        inputs = sizes.make_inputs(case, artifact, count)
        taking_part = collect(case, artifact, inputs, moved, peers, compiled)
        times, troubles = side_by_side(taking_part.calls, cold=moved * count >= 2 * sizes.COLD_BYTES)
        troubles = taking_part.troubles | troubles
        torch.cuda.empty_cache()
    except torch.OutOfMemoryError:
        troubles["fusec"] = "more memory than the device has"
    except Exception as error:  # The other cases are worth having, and that of this one is in the results.
        troubles["fusec"] = f"{type(error).__name__}: {str(error)[:200]}"
    us = {n: round(times[n], 3) for n in dict.fromkeys(("fusec", case.subject.floor, *times)) if n in times}
    return {"function": case.subject.name, "sizes": case.label, "state": dict(case.subject.sizes).get("state", ""),
            "group": case.group, "rows": case.rows, "tokens": case.tokens, "bytes": moved, "sets": count, "us": us,
            "troubles": troubles}


def _kernel(subject: Subject, artifact: Artifact) -> dict[str, Any]:
    k = artifact.kernels[0]
    return {"function": subject.name, "sizes": subject.label, "key": k.key, "arch": k.arch, "threads": k.threads,
            "registers": k.resources.get("registers"), "spills": k.resources.get("spills"), "smem_bytes": k.smem_bytes,
            "variants": len(artifact.kernels)}


def device(arch: str) -> dict[str, Any]:
    """The GPU: name, driver, multiprocessors, memory in bytes."""
    import torch
    properties = torch.cuda.get_device_properties(0)
    return {"name": properties.name, "driver": driver(), "multiprocessors": properties.multi_processor_count,
            "memory": properties.total_memory, "arch": arch}


def driver() -> str:
    """The version of the GPU's driver, `unknown` where nothing tells."""
    try:
        said = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True,
                              timeout=20).stdout
        return said.split()[0]
    except (OSError, IndexError, subprocess.TimeoutExpired):
        return "unknown"


def versions(peers: Sequence[others.Loaded] = ()) -> dict[str, str]:
    """Versions of what takes part in the measurement."""
    import fusec
    found = {"fusec": fusec.__version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    import torch
    found["cuda"] = str(torch.version.cuda)
    return found | {p.name: p.peer.version for p in peers if p.peer.version}


if __name__ == "__main__":
    main()
