r"""The emulator beside a device, in one run that is kept as data:

    python -m tests.emulate.agreement --json tests/emulate/data/agreement_sm_90a.json \
                                      --markdown benchmarks/results/agreement_h200.md

The same emitted files get the same inputs on the CPU and on the device. Kernels without an approximate function must give the same
bits; the others must stay within what the bounds of emulate/accuracy.py make of their results (envelope.py), and those bounds are
measured, one function at a time (sweeps.py). `--status` lists, without a device, whose emitted file has changed since.
"""
from __future__ import annotations

import json
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor

from fusec.emulate import emulate
from fusec.ir.kernel import KernelSpec
from fusec.runtime.identity import source_identity

from . import envelope, sweeps
from .envelope import Expected

FORMAT = 1
ARCH = "sm_90a"
DATA = Path(__file__).parent / "data" / f"agreement_{ARCH}.json"
Call = Callable[[Mapping[str, Tensor]], None]
"""Runs a built kernel in place in CPU tensors by parameter name."""
Build = Callable[[Mapping[str, tuple[str, KernelSpec]]], Mapping[str, Call]]
"""{name: (emitted file, its spec)} -> {name: what runs it}. The real one is Device; tests put the emulator there."""


# ---- the emulator's side, in processes of its own --------------------------------------------------------------------------------

def emulated(name: str) -> dict[int, Any]:
    """{rows: tensor -> (bytes, movement)} of a subject, or {0: bytes of a sweep's output}: numpy, which pickles without torch."""
    torch.set_num_threads(1)
    if name in sweeps.SWEEPS:
        one = sweeps.SWEEPS[name]
        given = sweeps.inputs(one)
        emulate(sweeps.source(one), given, arch=ARCH, parameters=sweeps.spec().parameters, counting=False)
        return {0: given["out"].numpy()}
    one = envelope.subject(name, ARCH)
    found = {rows: envelope.expected(one, rows) for rows in one.rows}
    return {rows: {n: (t.contiguous().view(torch.uint8).numpy(), m.numpy()) for n, (t, m) in each.items()}
            for rows, each in found.items()}


def hide_devices() -> None:
    """A process that emulates needs no device, and capture would set one up."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def _expected(arrays: Mapping[str, Any], like: Mapping[str, Tensor]) -> Expected:
    return {n: (torch.from_numpy(a).view(like[n].dtype).view(like[n].shape), torch.from_numpy(m)) for n, (a, m) in arrays.items()}


# ---- the device's side -----------------------------------------------------------------------------------------------------------

@dataclass
class Device:
    """Builds files in the worker, as many at once as there are cores, and runs them on the current device."""

    folder: Path
    seconds: dict[str, float] = field(default_factory=dict)

    def __call__(self, wanted: Mapping[str, tuple[str, KernelSpec]]) -> dict[str, Call]:
        from fusec.runtime.worker import BUILD, builder
        names = list(wanted)
        entries = [f"agreement_{i}" for i in range(len(names))]
        jobs = [(BUILD, (*wanted[n], ARCH, entry)) for n, entry in zip(names, entries)]
        found = {}
        for i, built in builder.run(jobs):
            path = self.folder / f"{entries[i]}.o"
            path.write_bytes(built.object)
            self.seconds[names[i]] = round(built.seconds, 2)
            found[names[i]] = self._call(path, entries[i], wanted[names[i]][1])
        return found

    @staticmethod
    def _call(path: Path, entry: str, spec: KernelSpec) -> Call:
        from fusec.codegen.load import load
        kernel = load(path, entry)

        def run(tensors: Mapping[str, Tensor]) -> None:
            there = {n: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cuda").copy_(t) for n, t in tensors.items()}
            kernel(*(there[p.name] for p in spec.parameters))
            torch.cuda.synchronize()
            for name, t in tensors.items():
                t.copy_(there[name])
        return run


def about() -> dict[str, Any]:
    """The device and the versions that take part."""
    from fusec.checker.device import driver
    found = {"python": platform.python_version(), "cuda": str(torch.version.cuda)}
    for name in ("torch", "nvidia-cutlass-dsl", "apache-tvm-ffi", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    return {"device": torch.cuda.get_device_name(), "driver": driver(), "versions": found}


# ---- both ------------------------------------------------------------------------------------------------------------------------

def measure(build: Build, names: Sequence[str], functions: Sequence[str], processes: int = 1,
            say: Callable[[str], Any] = lambda text: None) -> dict[str, Any]:
    """{"kernels": …, "functions": …}: a row per subject and per form of a function."""
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), hide_devices) as pool:
        slow_first = sorted(names, key=lambda n: not n.startswith("recipes/"))
        waiting = {n: pool.submit(emulated, n) for n in (*slow_first, *functions)}
        subjects = {n: envelope.subject(n, ARCH) for n in names}
        say("captured")
        wanted = {n: (s.source, s.spec) for n, s in subjects.items()}
        calls = build(wanted | {n: (sweeps.source(sweeps.SWEEPS[n], ARCH), sweeps.spec(ARCH)) for n in functions})
        say("built")
        kernels = [_kernel(subjects[n], calls[n], waiting[n].result()) for n in names]
        say("kernels compared")
        return {"kernels": kernels, "functions": [_function(n, calls[n], waiting[n].result()[0]) for n in functions]}


def _kernel(one: envelope.Subject, call: Call, wanted: Mapping[int, Any]) -> dict[str, Any]:
    rows = []
    for count, arrays in wanted.items():
        tensors = one.inputs(count)
        call(tensors)
        rows += envelope.compare(one.name, count, _expected(arrays, tensors), tensors)
    found = {"name": one.name, "identity": source_identity(one.source, one.spec.arch),
             "approximate": list(envelope.approximate(one.source)), "tensors": rows}
    return found | {"ok": envelope.holds(found)}


def _function(name: str, call: Call, wanted: Any) -> dict[str, Any]:
    one = sweeps.SWEEPS[name]
    given = sweeps.inputs(one)
    call(given)
    row = sweeps.measure(one, given, torch.from_numpy(wanted), given["out"])
    return row | {"ok": sweeps.holds(row)}


def stale(data: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """The subjects whose emitted file is not the one that ran: the emitter has changed since, or they are new."""
    ran = {k["name"]: k["identity"] for k in data["kernels"]}
    now = {n: envelope.subject(n, ARCH) for n in names}
    return [n for n, s in now.items() if ran.get(n) != source_identity(s.source, s.spec.arch)]


# ---- shown -----------------------------------------------------------------------------------------------------------------------

def markdown(data: Mapping[str, Any]) -> str:
    """The file that benchmarks/results keeps."""
    versions = ", ".join(f"{n} {v}" for n, v in data["versions"].items())
    return "\n\n".join([
        "# The emulator beside a device",
        f"{data['device']}, driver {data['driver']}; {versions}. Written by `python -m tests.emulate.agreement`, never edited.",
        "## Elementary functions",
        "Each form over bit patterns of the whole range, and densely where it is used. *ulp*: numbers between the device's result "
        "and the correctly rounded one; *exact*: its distance from the exact result, in the result's spacing; operands and results "
        "below the smallest normal number are only in the column *subnormal*.",
        _table(("function", "bound, ulp", "source", "points", "other bits", "ulp", "exact", "at", "subnormal, ulp", "within"),
               map(_function_cells, data["functions"])),
        "## Kernels",
        "Emitted files, unchanged, on both. Without an approximate function the bits are equal. *movement*: what an element moves "
        "by at most in the emulator when approximate functions err by their bounds; *outside*: elements that differ by more than "
        "twice their movement and a unit in the last place.",
        _table(("kernel", "approximate", "tensor", "rows", "elements", "other bits", "ulp", "absolute", "movement", "outside",
                "ok"), (_tensor_cells(k, r) for k in data["kernels"] for r in k["tensors"] if not r["tensor"].startswith("in_"))),
    ]) + "\n"


def _function_cells(f: Mapping[str, Any]) -> list[Any]:
    bound = f"{f['bound_ulp']:g}" + (f" or {f['bound_absolute']:.2g}" if f["bound_absolute"] else "")
    return [f"`{f['name']}`", bound, f["source"], f["points"], f["differ"], f["ulp"], f["ulp_exact"], ", ".join(f["at"]),
            f["subnormal"]["ulp"], _verdict(f)]


def _tensor_cells(k: Mapping[str, Any], r: Mapping[str, Any]) -> list[Any]:
    return [k["name"], ", ".join(k["approximate"]) or "none", f"{r['tensor']} ({r['dtype']})", r["rows"], r["elements"],
            r["differ"], r["ulp"], f"{r['absolute']:.3g}", f"{r['movement']:.3g}", r["outside"], _verdict(k)]


def _verdict(row: Mapping[str, Any]) -> str:
    return "yes" if row["ok"] else "**no**"


def _table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in (header, [":--"] * len(header), *rows))


@click.command()
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the data.")
@click.option("--markdown", "markdown_file", type=click.Path(dir_okay=False, path_type=Path), help="Write it as tables.")
@click.option("--only", multiple=True, help="Only this kernel or function (may be repeated).")
@click.option("--processes", type=int, default=max(1, len(os.sched_getaffinity(0)) - 4), help="Emulating at once.")
@click.option("--status", is_flag=True, help="List what of the kept data is of an emitted file that has changed since.")
def main(json_file: Path | None, markdown_file: Path | None, only: tuple[str, ...], processes: int, status: bool) -> None:
    """Run every golden kernel and every function in the emulator and on this device. Exit code 1 where they do not agree."""
    begin = time.perf_counter()
    if status:
        sys.exit(show_status())
    if not torch.cuda.is_available():
        click.echo("no CUDA device: nothing to compare with", err=True)
        sys.exit(2)
    names = [n for n in envelope.names() if not only or n in only]
    functions = [n for n in sweeps.SWEEPS if not only or n in only]
    with tempfile.TemporaryDirectory(prefix="fusec-agreement-") as folder:
        device = Device(Path(folder))
        data = {"format": FORMAT, "arch": ARCH, **about(), **measure(device, names, functions, processes, lambda t: click.echo(
            f"[{time.perf_counter() - begin:5.1f} s] {t}", err=True))}
    for file, text in ((json_file, json.dumps(data, indent=1) + "\n"), (markdown_file, markdown(data))):
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    wrong = [row["name"] for row in (*data["kernels"], *data["functions"]) if not row["ok"]]
    for row in (*data["functions"], *data["kernels"]):
        click.echo(f"{'ok   ' if row['ok'] else 'WRONG'} {row['name']}: " + _told(row))
    click.echo(f"{len(wrong)} wrong, {time.perf_counter() - begin:.1f} s")
    sys.exit(1 if wrong else 0)


def _told(row: Mapping[str, Any]) -> str:
    if "tensors" not in row:
        return f"{row['ulp']} ulp of {row['bound_ulp']:g} at {', '.join(row['at'])}, {row['differ']} of {row['points']} differ"
    return "; ".join(f"{t['tensor']}: {t['differ']} differ, {t['ulp']} ulp, {t['outside']} outside"
                     for t in row["tensors"] if t["differ"])


def show_status() -> int:
    """Tell what is out of date; never an error, since no device stands behind whoever changes the emitter."""
    if not DATA.is_file():
        click.echo(f"no data yet: {DATA.name}")
        return 0
    found = stale(json.loads(DATA.read_text(encoding="utf-8")), envelope.names())
    for name in found:
        click.echo(f"changed since it ran on a device: {name}")
    click.echo(f"{len(envelope.names()) - len(found)} of {len(envelope.names())} emitted files are those that ran")
    return 0


if __name__ == "__main__":
    from .agreement import main as run  # Under the module's own name, by which the processes that emulate find its functions.
    run()
