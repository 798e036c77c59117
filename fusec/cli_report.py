"""What `fusec compile` prints: one row per kernel, as a table or as JSON."""
from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from .errors import FusecError
from .ir.graph import Graph
from .ir.tensor import Input, TensorGraph
from .passes.traffic import bytes_moved
from .runtime.artifact import Artifact
from .runtime.kernel import Kernel
from .runtime.variants import label as variant_label
from .target import parse


def ops_fused(captured: TensorGraph) -> int:
    """How many PyTorch operations of the function the kernel holds: runs of nodes that one captured op became count once."""
    count, last = 0, None
    for node in captured.nodes:
        if not isinstance(node.op, Input) and node.source:
            count += (node.source, node.loc) != last
            last = (node.source, node.loc)
    return count


def row(kernel: Kernel, artifact: Artifact, label: str = "", given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The fields of a kernel: sizes in bytes, times in µs and seconds; bytes and floor at the example's sizes.

    label: the function among several of other sizes. given: the sizes of the example that were asked for.
    """
    moved = bytes_moved(kernel.graph, artifact.sizes)
    variant = variant_label(kernel.made.alignment, kernel.graph)
    label = (label or kernel.function) + (f" ({variant})" if variant else "")
    return {
        "function": kernel.function, "label": label, "sizes": dict(given or {}), "name": kernel.name,
        "arch": kernel.arch, "ops": ops_fused(kernel.made.need("captured")),
        "grid": ["*".join(map(str, factors)) or "1" for factors in kernel.grid], "threads": kernel.threads,
        "smem_bytes": kernel.smem_bytes, "registers": kernel.resources.get("registers"), "spills": kernel.resources.get("spills"),
        "barriers": kernel.resources.get("barriers"), "bytes_moved": moved,
        "floor_us": round(moved / (parse(kernel.arch).bandwidth_tb_s * 1e6), 3), "key": kernel.key, "seconds": kernel.seconds,
    }


def notes(artifact: Artifact) -> list[str]:
    """What the numbers of a row hold for."""
    sizes = ", ".join(f"{name} = {n}" for name, n in artifact.sizes.items()) or "the example's sizes"
    found = [f"{artifact.name}: bytes and floor at {sizes}", *(f"{artifact.name}: {text}" for text in kept_sizes(artifact.graph))]
    for kernel in artifact.kernels:
        target = parse(kernel.arch)
        rate = "measured stream" if target.stream_tb_s else "peak by its data sheet"
        found.append(f"floor on {target.name}: {target.bandwidth_tb_s:g} TB/s, {rate}")
    return found


def kept_sizes(graph: Graph) -> list[str]:
    """Which leading dims of arguments have the example's size in every call, where one may think that they are the rows."""
    if graph.rows is None:
        free = any(not isinstance(n, int) for a in graph.arguments for n in a.shape)
        return [] if free else ["no size varies: every call has the example's (dynamic_shapes= names dims that vary)"]
    found = []
    for a in graph.arguments:
        lead, size = next(((d, n) for d, n in enumerate(a.shape) if n != 1), (0, 1))
        if isinstance(size, int) and graph.rows in map(str, a.shape):
            at = [str(n) for n in a.shape].index(graph.rows)
            found.append(f"warning: dim {lead} of {a.name} is {size} in every call, as in the example: what varies is dim {at} "
                         "(dynamic_shapes= names another)")
    return found


def as_json(rows: list[dict[str, Any]], remarks: list[str], refused: Sequence[tuple[str, FusecError]] = ()) -> str:
    """One object: "kernels", "notes", and "refused", each with function, type, message, file, line and hint."""
    said = []
    for name, error in refused:
        frame = error.loc.frames[0] if error.loc is not None and error.loc.frames else None
        said.append(dict(function=name, type=type(error).__name__, message=error.message, file=frame.file if frame else None,
                         line=frame.line if frame else None, hint=error.hint))
    return json.dumps({"kernels": rows, "notes": remarks, "refused": said}, indent=2, ensure_ascii=False)


COLUMNS = ("function", "arch", "ops", "grid", "threads", "shared", "regs", "spills", "barriers", "bytes moved", "floor", "key",
           "seconds")


def cells(r: Mapping[str, Any]) -> list[str]:
    """A row of the table."""
    grid = list(r["grid"])
    while len(grid) > 1 and grid[-1] == "1":
        grid.pop()
    show = [r["label"], r["arch"], r["ops"], " × ".join(g.replace("*", "·") for g in grid), r["threads"], size(r["smem_bytes"]),
            r["registers"], r["spills"], r["barriers"], size(r["bytes_moved"]), f"{r['floor_us']:.3g} µs", r["key"][:12],
            f"{r['seconds']:.2f}" if r["seconds"] else "stored"]
    return ["?" if v is None else str(v) for v in show]


def size(count: int) -> str:
    """Bytes in a unit that a person reads."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= scale:
            return f"{count / scale:.4g} {unit}"
    return f"{count} B"


def print_table(rows: list[dict[str, Any]], remarks: list[str]) -> None:
    """The table on standard output: as wide as the terminal, and as wide as it needs where there is none."""
    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in COLUMNS:
        table.add_column(name, justify="left" if name in ("function", "arch", "grid", "key") else "right",
                         overflow="fold", no_wrap=not console.is_terminal)
    for r in rows:
        table.add_row(*cells(r))
    if not console.is_terminal:
        console.width = max(console.measure(table).maximum, 80) if console.width < 400 else console.width
        console.width = max(Console(width=400).measure(table).maximum, 80)
    console.print(table)
    for remark in remarks:
        console.print(remark, style="dim", markup=False, soft_wrap=True)
