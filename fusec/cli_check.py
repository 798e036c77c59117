"""What `fusec check` and `fusec receipts` do: checks, the differential debugger, and the files that say what ran on a device."""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .errors import FusecError
from .options import EXAMPLE_ROWS, Progress, archs

if TYPE_CHECKING:
    from .checker.device import Gpu
    from .checker.receipts import Receipt, Wanted
    from .cli import Chosen, Request


def run_check(request: Request, progress: Progress, level: str | None, arch: str | None, cases: bool, dump: str | None,
              until: str | None, receipt: bool, folder: str | None) -> int:
    """`fusec check`; 1 where something differs."""
    name = archs(arch)[0] if arch else None
    if receipt and level != "gpu":
        raise FusecError("--receipt: expected --level gpu: a receipt says what ran on a device")
    found = request.functions(progress, builds=level == "gpu")
    if dump is not None or until is not None:
        return debug(found, progress, level, name, dump, until)
    if receipt:
        return int(any([_receipt(c, folder, progress) for c in found]))
    from .checker import check, check_file_cases
    failed = False
    for chosen in found:
        wanted = level or "graph"
        progress(f"{chosen.name}: checking at level {wanted}")
        reports = (check_file_cases(chosen.fused, wanted, arch=name, sizes=chosen.sizes) if cases else
                   [check(chosen.fused, chosen.inputs(), level=wanted, arch=name)])
        for report in reports:
            click.echo(f"{chosen.name}: {report}" if chosen.varying else str(report))
            failed = failed or not report.ok
    return int(failed)


# ---- the debugger ----------------------------------------------------------------------------------------------------------------

def debug(found: Sequence[Chosen], progress: Progress, level: str | None, arch: str | None, dump: str | None,
          until: str | None) -> int:
    """`fusec check --inputs, --until`: saved arguments, or the example's, level by level."""
    from .checker import debugger
    function, given = "", None
    if dump is not None:
        from .runtime.dump import load_inputs
        function, given = load_inputs(dump)
    wrong = 0
    for chosen in _of(found, function, dump is not None):
        inputs = chosen.inputs() if given is None else given
        progress(f"{chosen.name}: running every level")
        if until is not None:
            click.echo(debugger.until(chosen.fused, inputs, until, level=level, arch=arch))
            continue
        diagnosis = debugger.diagnose(chosen.fused, inputs, level=level, arch=arch)
        click.echo(str(diagnosis))
        wrong += not diagnosis.ok
    return int(wrong > 0)


def _of(found: Sequence[Chosen], function: str, one: bool) -> Sequence[Chosen]:
    """The functions that a dump is of: that of its name, or the only one."""
    named = [c for c in found if c.fused.name == function] or list(found)
    if one and len(named) > 1:
        raise FusecError(f"--inputs: expected one function, found {', '.join(c.fused.name for c in named)}",
                         hint=f"give FILE:{named[0].fused.name}")
    return named


# ---- receipts --------------------------------------------------------------------------------------------------------------------

def _receipt(chosen: Chosen, folder: str | None, progress: Progress) -> int:
    from .checker.receipts import FOLDER, make, write
    device, known = on_device(chosen, None, progress)
    receipt, reports = make(chosen.fused.name, known, {**chosen.sizes, "rows": chosen.rows}, device)
    for report in reports:
        if not report.ok:
            click.echo(str(report))
    path = write(receipt, Path(folder) if folder else FOLDER)
    click.echo(f"{receipt}\n  in {path}")
    return int(not receipt.ok)


def on_device(chosen: Chosen, calls: Path | None, progress: Progress) -> tuple[Gpu, str]:
    """(a function on this machine's device, the identity of its source there). calls: where its saved calls go."""
    from .api import make_artifact
    from .checker.device import Gpu, arch_here
    from .passes.traffic import bytes_moved
    stages = chosen.plan(arch_here(), "source", progress)
    sizes = make_artifact(chosen.fused.reference, stages, chosen.inputs(), chosen.fused.dynamic_shapes, (), None).sizes
    device = Gpu(chosen.fused, chosen.rows, chosen.sizes, bytes_moved(stages.need("graph"), sizes), calls)
    progress(f"{chosen.name}: running on {device.name}")
    return device, identity(stages)


def identity(stages: Any) -> str:
    """The identity of the source of stages that were made that far."""
    from .runtime.identity import source_identity
    return source_identity(stages.need("source"), stages.arch, stages.numerics)


def list_receipts(files: Sequence[str], wanted: Sequence[str], folder: str | None, strict: bool, progress: Progress) -> int:
    """`fusec receipts`: a line per source and architecture; 1 where one is missing and `strict` asks for all."""
    from .checker.receipts import FOLDER, listed, read, show
    from .cli_load import RECIPES
    place = Path(folder) if folder else FOLDER
    if not folder and not place.is_dir():
        raise FusecError(f"no folder {place} here",
                         hint="run this where the receipts are kept, or name their folder with --receipts")
    names = list(files) or sorted(p.stem for p in RECIPES.glob("*.py") if p.stem != "__init__")
    have: list[Receipt] = read(place) if place.is_dir() else []
    found = listed((w for name in names for w in _sources(name, wanted, progress)), have)
    missing = show(found, click.echo)
    click.echo(f"{len(found) - missing} of {len(found)} sources have a receipt in {place}/")
    return int(strict and missing > 0)


def _sources(file: str, wanted: Sequence[str], progress: Progress) -> list[Wanted]:
    from .checker.receipts import Wanted
    from .cli import Chosen
    from .cli_load import functions
    found = []
    for fused in functions(file):
        chosen, stages = Chosen(fused, EXAMPLE_ROWS, {}), None
        for arch in wanted:
            try:
                stages = chosen.plan(arch, "source", progress) if stages is None else _replanned(stages, arch)
                found.append(Wanted(chosen.name, arch, identity(stages)))
            except FusecError as refusal:
                found.append(Wanted(chosen.name, arch, "", f"refused: {refusal.message}"))
    return found


def _replanned(stages: Any, arch: str) -> Any:
    from .passes import pipeline
    return pipeline.compile(stages.for_arch(arch), arch)
