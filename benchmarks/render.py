"""The results of a run as tables: on a terminal, and as the Markdown that `results/` keeps.

    python -m benchmarks.render RESULTS.json [-o benchmarks/results/h200.md]
"""
from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

FIXED = ("fusec", "probe")


def peers(data: Mapping[str, Any]) -> list[str]:
    """The candidates beside fusec and the probe, in the order of their first appearance."""
    return [n for n in dict.fromkeys(n for r in data["rows"] for n in r["us"]) if n not in FIXED]


def ratio(row: Mapping[str, Any], other: str) -> float | None:
    """fusec's time over another's; None where either is missing."""
    mine, theirs = row["us"].get("fusec"), row["us"].get(other)
    return mine / theirs if mine and theirs else None


def columns(names: Sequence[str]) -> list[str]:
    """The heads of the table's columns."""
    return ["function", "sizes", "rows", "moved", "fusec µs", "TB/s",
            *(column for n in ("probe", *names) for column in (f"{n} µs", f"÷ {n}"))]


def cells(row: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """One row of the table; `–` where there is no number."""
    mine = row["us"].get("fusec")
    found = [row["function"], row["sizes"] or "–", f"{row['rows']:,}", size(row["bytes"]), number(mine),
             f"{row['bytes'] / mine / 1e6:.2f}" if mine else "–"]
    for name in ("probe", *names):
        factor = ratio(row, name)
        found += [number(row["us"].get(name)), f"{factor:.2f}" if factor else "–"]
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
        for other in ("probe", *peers(data)):
            rows = [r for r in data["rows"] if (r["function"], r["state"]) == (function, state)]
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
    names = peers(data)
    parts = ["# Decode steps, measured",
             "Times are medians in microseconds per launch; `÷` is fusec's time over another's (below 1: fusec is faster). How "
             "they are measured: [README](../README.md).",
             "\n".join(f"- {line}" for line in head(data)),
             table(columns(names), [cells(r, names) for r in data["rows"]], left=2)]
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
    names = peers(data)
    for line in head(data):
        console.print(line, markup=False, style="dim")
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(columns(names)):
        shown.add_column(name, justify="left" if i < 2 else "right", no_wrap=True)
    for r in data["rows"]:
        shown.add_row(*cells(r, names))
    console.print(shown)
    for function, state, other, count, mean in means(data):
        console.print(f"{function}{f' {state}' if state else ''} ÷ {other}: geometric mean {mean:.3f} over {count}", markup=False)
    for line in troubles(data):
        console.print(line, markup=False, style="red")


@click.command()
@click.argument("results", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path),
              help="Where the Markdown goes; standard output if not given.")
def main(results: Path, output: Path | None) -> None:
    """Render the JSON that `python -m benchmarks.decode --json` wrote."""
    text = markdown(json.loads(results.read_text(encoding="utf-8")))
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
