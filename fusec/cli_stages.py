"""What `fusec inspect` and `fusec explain` print: each level of a function as text."""
from __future__ import annotations

from collections.abc import Iterator

from .cli_report import kept_sizes
from .ir.kernel import Barrier, walk
from .ir.plan import Layout, Schedule
from .ir.print_graph import format_graph
from .ir.print_kernel import format_kernel
from .ir.print_tensor import format_tensor
from .passes.pipeline import Stages
from .runtime.kernel import Kernel

STAGES = ("graph", "axes", "regions", "schedule", "kernel", "smem", "source", "ptx", "resources")
NEEDS = {"graph": "captured", "axes": "graph", "regions": "schedule", "schedule": "schedule", "kernel": "kernel", "smem": "kernel",
         "source": "source"}
"""The level that a stage shows; ptx and resources need a build."""


def stage_text(stages: Stages, stage: str) -> str:
    """A stage of those that need no build."""
    return {"graph": _graph, "axes": _axes, "regions": _regions, "schedule": _schedule, "kernel": _kernel, "smem": _smem,
            "source": _source}[stage](stages)


def built_text(kernel: Kernel, stage: str) -> str:
    """The PTX or the resources of a built kernel."""
    if stage == "ptx":
        return kernel.object.with_suffix(".ptx").read_text()
    from .codegen.resources import opcodes, sass
    found = {**kernel.resources, "opcodes": opcodes(sass(kernel.object.with_suffix(".cubin").read_bytes()))}
    counts = ", ".join(f"{name} {count}" for name, count in found["opcodes"])
    return "\n".join(f"{name}: {value}" for name, value in sorted({**found, "opcodes": counts or "no disassembler"}.items())) + "\n"


def _graph(s: Stages) -> str:
    return format_tensor(s.need("captured"))


def _axes(s: Stages) -> str:
    return format_graph(s.need("graph"))


def _kernel(s: Stages) -> str:
    return format_kernel(s.need("kernel"))


def _source(s: Stages) -> str:
    return str(s.need("source"))


def regions(schedule: Schedule) -> dict[Layout, list[str]]:
    """The values of each layout, layouts in the order of their first value."""
    found: dict[Layout, list[str]] = {}
    for value, layout in schedule.layouts:
        found.setdefault(layout, []).append(value)
    return found


def _regions(s: Stages) -> str:
    schedule: Schedule = s.need("schedule")
    lines = []
    for number, (layout, values) in enumerate(regions(schedule).items()):
        anchor = " (anchor)" if schedule.anchor in values else ""
        lines += [f"region {number}{anchor} {layout}", *(f"    {line}" for line in _wrapped(values))]
    lines += [f"through shared memory: {e.value} [{', '.join(e.axes)}] as {e.buffer}" for e in schedule.exchanges]
    return "\n".join(lines) + "\n"


def _wrapped(values: list[str], width: int = 120) -> Iterator[str]:
    line = ""
    for value in values:
        if line and len(line) + len(value) + 2 > width:
            yield line + ","
            line = ""
        line += f"{', ' if line else ''}{value}"
    yield line


def _schedule(s: Stages) -> str:
    schedule: Schedule = s.need("schedule")
    lines = [f"anchor {schedule.anchor}", f"threads {schedule.threads}"]
    lines += [f"grid {axis}: {blocks} blocks" + (f" of {each}" if each != 1 else "") for axis, blocks, each in schedule.grid]
    width = max((len(v) for v, _ in schedule.layouts), default=0)
    lines += [f"{value:{width}} {layout}" for value, layout in schedule.layouts]
    lines += [f"exchange {e.value} [{', '.join(map(str, e.axes))}] {e.extents} {e.dtype} as {e.buffer}" for e in schedule.exchanges]
    return "\n".join(lines) + "\n"


def _smem(s: Stages) -> str:
    plan = s.need("kernel").smem
    if not plan.buffers:
        return "no shared memory\n"
    lines = [f"{'bytes':>15}  {'statements':>10}  buffer"]
    for b in sorted(plan.buffers, key=lambda b: (b.offset, b.first)):
        lines.append(f"{b.offset:>7}..{b.offset + b.bytes - 1:<6}  {b.first:>4}..{b.last:<4}  {b.name}: {b.count} x {b.dtype}")
    return "\n".join([*lines, f"total {plan.total} bytes"]) + "\n"


def _parts(s: Stages) -> list[str]:
    """How the blocks of a cluster, and the turns of a block, take their parts of an axis."""
    schedule, kernel = s.need("schedule"), s.need("kernel")
    found = [line for line in kernel.summary if line.startswith("walk: ")]
    if kernel.launch.cluster > 1:
        axis = schedule.grid[-1][0]
        why = "not every store has it, or a reduction folds it"
        found.insert(0, f"{kernel.launch.cluster} blocks of a cluster share out {axis}: {why}")
    return found


def explain(s: Stages, ops: int) -> str:
    """Why the function became this kernel: grid, anchor, regions, exchanges, barriers."""
    schedule, kernel, graph = s.need("schedule"), s.need("kernel"), s.need("graph")
    one, owned = ("cluster", schedule.grid[:-1]) if kernel.launch.cluster > 1 else ("block", schedule.grid)
    grid = " × ".join(f"{axis}" + (f" in parts of {each}" if each != 1 else "") for axis, _, each in owned) or "one block"
    lines = [f"{graph.name}: {ops} operations in one kernel for {s.arch}",
             f"  one {one} per {grid}: these axes are in every region and in every index that is written" if owned else
             f"  one {one}: no axis is in every region",
             f"  {schedule.threads} threads; the largest is placed first: {schedule.anchor} {schedule.layout(schedule.anchor)}"]
    lines += [f"  {text}" for text in (*_parts(s), *kept_sizes(graph))]
    loc = graph.table[schedule.anchor].loc.chain if schedule.anchor in graph.table else "?"
    lines[2] += f" (from {loc})" if loc != "?" else ""
    for layout, values in regions(schedule).items():
        if schedule.anchor not in values:
            names = f"{', '.join(values[:4])}{' and others' if len(values) > 4 else ''}"
            lines.append(f"  {names}: {layout if layout.axes else 'one value per block, the same in all threads'}")
    lines += [f"  {e.value} goes through shared memory: other threads read it than made it" for e in schedule.exchanges]
    barriers = [b for b in walk(kernel.body) if isinstance(b, Barrier) and b.reasons]
    lines += [f"  a barrier{'' if b.scope == 'block' else ' of the cluster'}: {'; '.join(b.reasons)}" for b in barriers]
    lines.append(f"  {kernel.smem.total} bytes of shared memory" if kernel.smem.total else "  no shared memory")
    return "\n".join(lines) + "\n"
