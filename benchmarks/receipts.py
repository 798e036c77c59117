"""Receipts of every shipped recipe on this GPU, in one command:

    python -m benchmarks.receipts --receipts receipts

What `fusec check FILE --level gpu --receipt` does for one function, for all of them, in an order that keeps a machine busy: first
the checks, several processes at once, which compile everything; then the sanitizers over the calls that these saved; last the
times, with nothing else on the device. A receipt is written once its function is checked, and again when the rest is known.
"""
from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

from fusec.checker.receipts import TOOLS, Receipt, completed, read, write
from fusec.errors import FusecError

ROOT = Path(__file__).parents[1]
TOGETHER = 4
"""Functions whose calls share a process of a sanitizer; each gets its own where one of them is not clean."""
START = time.perf_counter()


def say(text: str) -> None:
    """What is going on, with the seconds since the start, on standard error."""
    click.echo(f"[{time.perf_counter() - START:6.1f} s] {text}", err=True)


def shipped() -> list[str]:
    """`recipe:function` of every function that the package ships."""
    from fusec.cli_load import RECIPES, functions
    files = sorted(p.stem for p in RECIPES.glob("*.py") if p.stem != "__init__")
    return [f"{file}:{fused.name}" for file in files for fused in functions(file)]


def check_one(name: str, folder: Path, calls: Path) -> int:
    """Check a function, save its calls, write its receipt without what is found out later. 1 where something differs."""
    from fusec.checker.receipts import checked
    from fusec.cli import Chosen
    from fusec.cli_check import on_device
    from fusec.cli_load import functions
    from fusec.options import EXAMPLE_ROWS
    from fusec.runtime.worker import start_builder
    start_builder()
    chosen = Chosen(functions(name)[0], EXAMPLE_ROWS, {})
    device, identity = on_device(chosen, calls, lambda text: None)
    receipt, reports = checked(chosen.fused.name, identity, {"rows": chosen.rows}, device)
    for report in reports:
        if not report.ok:
            click.echo(str(report))
    path = write(receipt, folder)
    device.saved()
    (calls / "receipt").write_text(path.name)
    return int(not receipt.ok)


# ---- all of them -----------------------------------------------------------------------------------------------------------------

def check_all(names: Sequence[str], folder: Path, work: Path, at_once: int, deadline: float) -> dict[str, str]:
    """{function: what was said} of those that failed; none is begun after so many seconds."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}

    def one(name: str) -> tuple[str, str]:
        if time.perf_counter() - START > deadline:
            return name, "left out: no time"
        begin = time.perf_counter()
        given = ["--one", name, "--receipts", str(folder), "--calls", str(place(work, name))]
        line = [sys.executable, "-m", "benchmarks.receipts", *given]
        done = subprocess.run(line, capture_output=True, text=True, env=environment)
        good = done.returncode == 0
        say(f"{name}: {'checked' if good else 'FAILED'}, {time.perf_counter() - begin:.1f} s")
        return name, "" if good else (done.stdout + done.stderr).strip()[-3000:] or f"exit status {done.returncode}"

    with ThreadPoolExecutor(at_once) as pool:
        return {name: error for name, error in pool.map(one, names) if error}


def place(work: Path, name: str) -> Path:
    """Where a function's saved calls lie."""
    return work / name.replace(":", ".")


def saved(work: Path, name: str) -> list[Path]:
    """Its saved calls, the example's first."""
    return sorted(place(work, name).glob("*.pt"), key=lambda p: int(p.stem))


def sanitize_all(names: Sequence[str], work: Path, tools: Iterable[str], at_once: int) -> dict[str, dict[str, str]]:
    """{function: {tool: what it said}}."""
    from fusec.checker.device import sanitized
    groups = [names[i:i + TOGETHER] for i in range(0, len(names), TOGETHER)]

    def run(job: tuple[Sequence[str], str]) -> list[tuple[str, str, str]]:
        group, tool = job
        said = sanitized([f for name in group for f in saved(work, name)], tool)
        if len(group) > 1 and said != "clean" and not said.startswith("not run"):
            return [found for name in group for found in run(([name], tool))]
        say(f"{tool}: {', '.join(group)}: {said}")
        return [(name, tool, said) for name in group]

    result: dict[str, dict[str, str]] = {name: {tool: "not run: left out" for tool in TOOLS} for name in names}
    with ThreadPoolExecutor(at_once) as pool:
        for found in pool.map(run, [(group, tool) for tool in tools for group in groups]):
            for name, tool, said in found:
                result[name][tool] = said
    return result


def complete_all(names: Sequence[str], folder: Path, work: Path, said: Mapping[str, Mapping[str, str]]) -> list[Receipt]:
    """Time every function and write its receipt anew."""
    from fusec.checker.device import times_of
    times = dict(zip(names, times_of([saved(work, name)[0] for name in names])))
    known = {r.file: r for r in read(folder)}
    made = []
    for name in names:
        old = known[(place(work, name) / "receipt").read_text()]
        made.append(completed(old, said[name], times[name]))
        write(made[-1], folder)
    return made


@click.command()
@click.argument("names", nargs=-1, metavar="[RECIPE:FUNCTION]…")
@click.option("--receipts", "folder", type=click.Path(file_okay=False, path_type=Path), default=Path("receipts"), show_default=True,
              help="Where receipts are written.")
@click.option("--jobs", type=click.IntRange(1), default=max(1, 3 * len(os.sched_getaffinity(0)) // 4), show_default=True,
              help="Processes at once.")
@click.option("--tools", default=",".join(TOOLS), show_default=True, metavar="TOOL[,TOOL]", help="Which sanitizers; '' for none.")
@click.option("--deadline", type=float, default=float("inf"), help="Seconds after which no further function is begun.")
@click.option("--one", hidden=True)
@click.option("--calls", hidden=True, type=click.Path(path_type=Path))
def main(names: tuple[str, ...], folder: Path, jobs: int, tools: str, deadline: float, one: str | None,
         calls: Path | None) -> None:
    """Write receipts of the shipped recipes, or of some of their functions, on this GPU.

    Exit code 1 where one is wrong or missing.
    """
    if one is not None and calls is not None:
        sys.exit(check_one(one, folder, calls))
    chosen = list(names) or shipped()
    unknown = [t for t in filter(None, tools.split(",")) if t not in TOOLS]
    if unknown:
        raise click.UsageError(f"--tools: expected some of {', '.join(TOOLS)}, found {unknown[0]}")
    with tempfile.TemporaryDirectory(prefix="fusec-receipts-") as work:
        os.environ.setdefault("FUSEC_CACHE_DIR", str(Path(work, "store")))
        failed = check_all(chosen, folder, Path(work), jobs, deadline)
        ran = [n for n in chosen if (place(Path(work), n) / "receipt").is_file()]
        say(f"{len(ran)} of {len(chosen)} functions ran")
        said = sanitize_all(ran, Path(work), filter(None, tools.split(",")), jobs)
        try:
            made = complete_all(ran, folder, Path(work), said) if ran else []
        except FusecError as error:
            _tell(failed)
            raise click.ClickException(f"{error.message}; the receipts have neither times nor sanitizers") from None
    for receipt in made:
        click.echo(str(receipt))
    _tell(failed)
    say(f"{sum(r.ok for r in made)} of {len(chosen)} receipts are ok")
    sys.exit(0 if len(made) == len(chosen) and all(r.ok for r in made) else 1)


def _tell(failed: Mapping[str, str]) -> None:
    for name, error in failed.items():
        click.echo(f"{name}:\n{error}\n", err=True)


if __name__ == "__main__":
    main()
