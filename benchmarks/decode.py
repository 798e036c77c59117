"""Decode steps beside probes and peers on this GPU, in one run and one process.

    python -m benchmarks.decode [--all] [--peers FILE] [--json FILE]

Every candidate is compared with the reference before it is timed. Exit code 2 where there is nothing to time on, 1 where a kernel
of fusec's is wrong or does not compile.
"""
from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import cases as sizes
from . import peers as others
from . import prepare, render
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
@click.option("--only", multiple=True, type=click.Choice(sizes.FUNCTIONS), help="Only this function (may be repeated).")
@click.option("--peers", "peer_file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Python file with load(names) -> {name: call}; without it installed packages are used.")
@click.option("--peer", "peer_names", multiple=True, default=("flashinfer",), show_default=True,
              help="A peer by name (may be repeated).")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the results as JSON.")
@click.option("--markdown", "markdown_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the results as Markdown.")
@click.option("--note", "notes", multiple=True, help="A line for the head of the results (may be repeated).")
@click.option("--archs", metavar="ARCH[,ARCH]", help="Compile for these; the present device's if not given.")
@click.option("--compile-only", is_flag=True, help="Fill the store (--store) and leave; needs no GPU.")
@click.option("--store", type=click.Path(file_okay=False, path_type=Path), help="The store of kernels; a new one if not given.")
def main(every: bool, only: tuple[str, ...], peer_file: Path | None, peer_names: tuple[str, ...], json_file: Path | None,
         markdown_file: Path | None, notes: tuple[str, ...], archs: str | None, compile_only: bool, store: Path | None) -> None:
    """Time the shipped decode steps beside an in-place probe, and the KDA step beside other people's kernels."""
    from fusec.errors import FusecError
    from fusec.options import archs as parse
    try:
        wanted = parse(archs) if archs else ()
    except FusecError as error:
        raise click.UsageError(str(error)) from None
    if compile_only and not (wanted and store):
        raise click.UsageError("--compile-only needs --archs and --store")
    if not compile_only:
        wanted = (*wanted, *(a for a in (device_arch(),) if a not in wanted))
    found = sizes.cases(every, only)
    with _store(store):
        failed, peers, left_out = _prepared(found, wanted, peer_file, peer_names if not compile_only else ())
        good = not failed
        if not compile_only:
            data = measure(found, wanted[-1], failed, peers)
            data |= {"notes": list(notes), "left_out": left_out + data["left_out"]}
            _report(data, json_file, markdown_file)
            good = good and not any("fusec" in r["troubles"] for r in data["rows"])
    sys.exit(0 if good else 1)


def device_arch() -> str:
    """The architecture of the device; leaves with code 2 where there is none."""
    import torch
    if not torch.cuda.is_available():
        click.echo("no CUDA device: nothing to time", err=True)
        sys.exit(2)
    from fusec.errors import TargetError
    from fusec.target import of_capability
    try:
        return of_capability(*torch.cuda.get_device_capability(), torch.cuda.get_device_name())
    except TargetError as error:
        click.echo(f"{error}: nothing to time", err=True)
        sys.exit(2)


def _prepared(found: Sequence[Case], archs: Sequence[str], peer_file: Path | None,
              peer_names: Sequence[str]) -> tuple[dict[Subject, str], list[others.Peer], list[str]]:
    """(subjects that did not compile, peers, what was left out): the peers are loaded while other processes compile."""
    subjects = sizes.subjects(found)
    say(f"compiling {len(subjects)} kernels for {', '.join(archs)}")
    with ThreadPoolExecutor(1) as beside:
        compiled = beside.submit(prepare.compile_all, subjects, archs, say)
        wanted = peer_names if any(c.subject.function == others.FUNCTION for c in found) else ()
        peers, left_out = others.load(peer_file, wanted) if wanted else ([], [])
        failed = compiled.result()
    for subject, error in failed.items():
        click.echo(f"{subject.function} {subject.label}: {error}", err=True)
    return failed, peers, left_out


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


def measure(found: Sequence[Case], arch: str, failed: dict[Subject, str], peers: Sequence[others.Peer]) -> dict[str, Any]:
    """Everything that `render` shows."""
    artifacts: dict[Subject, Artifact] = {}
    for subject in sizes.subjects(found):
        if subject not in failed:
            artifacts[subject] = subject.fused().compile(arch, **dict(subject.sizes))
    say(f"timing {len(found)} cases" + (f", peers: {', '.join(p.name for p in peers)}" if peers else ""))
    rows = []
    for case in found:
        if case.subject in artifacts:
            rows.append(_measured(case, artifacts[case.subject], peers))
            r = rows[-1]
            say(f"{r['function']} {r['sizes']} rows={r['rows']}: " + ", ".join(f"{n} {t:.2f}" for n, t in r["us"].items()))
            for name, trouble in r["troubles"].items():
                say(f"    {name}: {trouble}")
    left_out = [f"{s.function} {s.label}: not compiled: {e.splitlines()[0]}" for s, e in failed.items()]
    kernels = [_kernel(s, a) for s, a in artifacts.items()]
    return {"device": device(arch), "versions": versions(peers), "kernels": kernels, "rows": rows, "left_out": left_out,
            "seconds": round(time.perf_counter() - START, 1)}


@dataclass(slots=True)
class _Row:
    """What is timed in one case: candidates by name, and what went wrong."""

    candidates: dict[str, list[Callable[[], object]]] = field(default_factory=dict)
    troubles: dict[str, str] = field(default_factory=dict)


def _measured(case: Case, artifact: Artifact, peers: Sequence[others.Peer]) -> dict[str, Any]:
    """One row of the results."""
    import torch

    from .timing import side_by_side
    moved = sizes.moved(artifact, case.rows)
    count = sizes.set_count(moved)
    row, times = _Row(), dict[str, float]()
    try:
        inputs = sizes.make_inputs(case, artifact, count)
        _probe(row, case, inputs, moved)
        _fusec(row, case, artifact, inputs)
        for peer in peers if case.subject.function == others.FUNCTION else ():
            _peer(row, case, artifact, inputs, peer)
        times, failed = side_by_side(row.candidates, cold=moved * count >= 2 * sizes.COLD_BYTES)
        row.troubles |= failed
    except torch.OutOfMemoryError:
        row.troubles["fusec"] = "more memory than the device has"
    torch.cuda.empty_cache()
    us = {n: round(times[n], 3) for n in dict.fromkeys(("fusec", "probe", *row.candidates)) if n in times}
    return {"function": case.subject.function, "sizes": case.subject.label, "state": dict(case.subject.sizes).get("state", ""),
            "rows": case.rows, "bytes": moved, "sets": count, "us": us, "troubles": row.troubles}


def _probe(row: _Row, case: Case, inputs: sizes.Inputs, moved: int) -> None:
    from . import probe
    if case.subject.pool is None:
        row.candidates["probe"] = list(probe.copies(moved, len(inputs.sets)))
    else:
        pool, index = case.subject.pool
        row.candidates["probe"] = [probe.slots(s[pool], s[index]) for s in inputs.sets]


def _fusec(row: _Row, case: Case, artifact: Artifact, inputs: sizes.Inputs) -> None:
    wrong = _wrong(case, artifact, inputs, lambda k: artifact(**k, out=inputs.outputs[0]), None)
    if wrong:
        row.troubles["fusec"] = wrong
    else:
        row.candidates["fusec"] = [lambda s=s, o=o: artifact(**s, out=o) for s, o in zip(inputs.sets, inputs.outputs)]


def _peer(row: _Row, case: Case, artifact: Artifact, inputs: sizes.Inputs, peer: others.Peer) -> None:
    state = inputs.sets[0]["state"]
    if not peer.covers(state.shape[1], state.dtype):
        return

    def into(arguments: dict[str, Any], output: Any) -> Any:
        peer.call({**arguments, "output": output})
        return output

    try:
        inputs.outputs[0].fill_(777.0)
        wrong = _wrong(case, artifact, inputs, lambda k: into(k, inputs.outputs[0]), others.TOLERANCE)
    except Exception as error:  # What a peer raises is its own affair: the case goes on without it.
        wrong = f"{type(error).__name__}: {str(error)[:200]}"
    if wrong:
        row.troubles[peer.name] = wrong
        return
    # Dicts are made beforehand: only what the peer itself does is recorded.
    given = [{**s, "output": o} for s, o in zip(inputs.sets, inputs.outputs)]
    row.candidates[peer.name] = [lambda k=k: peer.call(k) for k in given]


def _wrong(case: Case, artifact: Artifact, inputs: sizes.Inputs, call: Callable[[dict[str, Any]], Any],
           tolerance: dict[str, tuple[float, float]] | None) -> str:
    """What a candidate gets wrong on the first set; '' where it agrees with the reference."""
    from .agree import differences
    first = inputs.sets[0]
    slots = first[case.subject.pool[1]] if case.subject.pool else None
    return "; ".join(differences(artifact.reference, call, first, inputs.mutated, slots, tolerance))


def _kernel(subject: Subject, artifact: Artifact) -> dict[str, Any]:
    k = artifact.kernels[0]
    return {"function": subject.function, "sizes": subject.label, "key": k.key, "arch": k.arch, "threads": k.threads,
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


def versions(peers: Sequence[others.Peer] = ()) -> dict[str, str]:
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
    return found | {p.name: p.version for p in peers if p.version}


if __name__ == "__main__":
    main()
