"""The results of one run or of several as tables: on a terminal, and as the Markdown that `results/` keeps.

    python -m benchmarks.render RESULTS.json [MORE.json …] [-o benchmarks/results/h200.md]
"""
from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from .criteria import verdicts

FLOORS = ("probe", "copy")
"""What memory can do; of a row at most one."""
TITLES = {"kda": "Kimi Delta Attention", "recurrences": "Recurrences", "rows": "Functions of rows", "splits": "Split-KV reductions"}


def merged(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Several runs on one machine as one; where two measured the same, the later counts. Raises ClickException where the machines
    differ."""
    for run in runs[1:]:
        if run["device"] != runs[0]["device"]:
            raise click.ClickException(f"not of one machine: {head(runs[0])[0]}; {head(run)[0]}")
    rows = {(r["function"], r["sizes"], r["rows"]): r for run in runs for r in run["rows"]}
    kernels = {(k["function"], k["sizes"]): k for run in runs for k in run["kernels"]}
    versions: dict[str, list[str]] = {}
    for run in runs:
        for name, version in run["versions"].items():
            versions.setdefault(name, []).append(version)
    measured = [f"Measured in {len(runs)} runs, the later of which counts where two measured the same: "
                + "; ".join(", ".join(run["groups"]) for run in runs)]
    return {
        "device": runs[0]["device"], "versions": {n: " / ".join(dict.fromkeys(v)) for n, v in versions.items()},
        "groups": list(dict.fromkeys(g for run in runs for g in run["groups"])), "kernels": list(kernels.values()),
        "rows": sorted(rows.values(), key=lambda r: list(TITLES).index(r["group"])),
        "notes": list(dict.fromkeys([*(measured if len(runs) > 1 else ()), *(n for run in runs for n in run.get("notes", ()))])),
        "left_out": list(dict.fromkeys(line for run in runs for line in run.get("left_out", ()))),
        "seconds": sum(run["seconds"] for run in runs),
    }


def others(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The candidates beside fusec, what memory can do first, then in the order of their first appearance."""
    found = dict.fromkeys(n for r in rows for n in r["us"] if n != "fusec")
    return [*(n for n in FLOORS if n in found), *(n for n in found if n not in FLOORS)]


def by_group(data: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """The rows of each group."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in data["rows"]:
        found.setdefault(row["group"], []).append(row)
    return found


def ratio(row: Mapping[str, Any], other: str) -> float | None:
    """fusec's time over another's; None where either is missing, or the other does nothing."""
    mine, theirs = row["us"].get("fusec"), row["us"].get(other)
    return mine / theirs if mine and theirs and other != "empty" else None


def columns(names: Sequence[str]) -> list[str]:
    """The heads of the table's columns."""
    return ["function", "sizes", "rows", "moved", "fusec µs", "TB/s",
            *(column for n in names for column in (f"{n} µs", *((f"÷ {n}",) if n != "empty" else ())))]


def cells(row: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """One row of the table; `–` where there is no number."""
    mine = row["us"].get("fusec")
    found = [row["function"], row["sizes"] or "–", f"{row['rows']:,}", size(row["bytes"]), number(mine),
             f"{row['bytes'] / mine / 1e6:.2f}" if mine else "–"]
    for name in names:
        factor = ratio(row, name)
        found += [number(row["us"].get(name)), *((f"{factor:.2f}" if factor else "–",) if name != "empty" else ())]
    return found


def number(us: float | None) -> str:
    return "–" if us is None else f"{us:.2f}" if us < 20 else f"{us:.1f}"


def size(count: float) -> str:
    """Bytes in a unit that a person reads."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f} B"


def means(data: Mapping[str, Any]) -> list[tuple[str, str, str, int, float]]:
    """(function, dtype of its state, other candidate, cases, geometric mean of fusec's time over the other's)."""
    found = []
    groups = dict.fromkeys((r["function"], r["state"]) for r in data["rows"])
    for function, state in groups:
        rows = [r for r in data["rows"] if (r["function"], r["state"]) == (function, state)]
        for other in others(rows):
            factors = [f for r in rows if (f := ratio(r, other))]
            if factors:
                found.append((function, state, other, len(factors), math.exp(sum(map(math.log, factors)) / len(factors))))
    return found


def head(data: Mapping[str, Any]) -> list[str]:
    """Where and with what it was measured, as lines."""
    device = data["device"]
    lines = [f"{device['name']}, driver {device['driver']}, {device['multiprocessors']} multiprocessors, {device['arch']}",
             ", ".join(f"{n} {v}" for n, v in data["versions"].items())]
    return lines + list(data.get("notes", ()))


def troubles(data: Mapping[str, Any]) -> list[str]:
    """What is wrong or missing, as lines."""
    found = [f"{r['function']} {r['sizes']} rows={r['rows']}: {name}: {text}"
             for r in data["rows"] for name, text in r["troubles"].items()]
    return found + list(data.get("left_out", ()))


def markdown(data: Mapping[str, Any]) -> str:
    """The file that `results/` keeps."""
    parts = ["# Decode steps, measured",
             "Times are medians in microseconds per launch; `÷` is fusec's time over another's (below 1: fusec is faster). How "
             "they are measured: [README](../README.md).",
             "\n".join(f"- {line}" for line in head(data))]
    for group, rows in by_group(data).items():
        names = others(rows)
        parts += [f"## {TITLES[group]}", table(columns(names), [cells(r, names) for r in rows], left=2)]
    if judged := verdicts(data["rows"]):
        parts += ["## Criteria", f"{sum(v.ok for v in judged)} of {len(judged)} are met; fractions are of another's time over "
                  "fusec's.", "\n".join(f"- {v}" for v in judged)]
    found = [[f, s or "–", o, str(n), f"{g:.3f}"] for f, s, o, n, g in means(data)]
    parts += ["## Geometric means", table(["function", "state", "fusec ÷", "cases", "mean"], found, left=3)]
    kernels = [[k["function"], k["sizes"] or "–", str(k["threads"]), str(k["registers"]), str(k["spills"]), str(k["smem_bytes"])]
               for k in data["kernels"]]
    parts += ["## Kernels", table(["function", "sizes", "threads", "registers", "spills", "shared bytes"], kernels, left=2)]
    if troubles(data):
        parts += ["## Not measured", "\n".join(f"- {line}" for line in troubles(data))]
    return "\n\n".join(parts) + "\n"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], left: int) -> str:
    """A Markdown table, the first `left` columns aligned to the left."""
    rule = [":--" if i < left else "--:" for i in range(len(header))]
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *rows))


def show(data: Mapping[str, Any]) -> None:
    """The tables on standard output."""
    from rich.console import Console
    from rich.table import Table
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200
    for line in head(data):
        console.print(line, markup=False, style="dim")
    for rows in by_group(data).values():
        names = others(rows)
        shown = Table(box=None, pad_edge=False, header_style="bold")
        for i, name in enumerate(columns(names)):
            shown.add_column(name, justify="left" if i < 2 else "right", no_wrap=True)
        for r in rows:
            shown.add_row(*cells(r, names))
        console.print(shown)
    for function, state, other, count, mean in means(data):
        console.print(f"{function}{f' {state}' if state else ''} ÷ {other}: geometric mean {mean:.3f} over {count}", markup=False)
    for line in troubles(data):
        console.print(line, markup=False, style="red")
    judged = verdicts(data["rows"])
    for verdict in judged:
        console.print(str(verdict), markup=False, style="green" if verdict.ok else "red")
    if judged:
        console.print(f"{sum(v.ok for v in judged)} of {len(judged)} criteria are met", markup=False)


@click.command()
@click.argument("results", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path),
              help="Where the Markdown goes; standard output if not given.")
def main(results: tuple[Path, ...], output: Path | None) -> None:
    """Render the JSON that `python -m benchmarks.decode --json` wrote; several files of one machine become one page."""
    text = markdown(merged([json.loads(file.read_text(encoding="utf-8")) for file in results]))
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
