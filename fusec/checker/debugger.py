"""The differential debugger: one call at every level, and the first value that is not what the level before has.

The levels, in the order of the pipeline: the function in eager mode; the captured graph and the graph over named axes, value by
value at each source location; then, as `check` compares them, the folded graph, the interpreted kernel, the emitted file on the
CPU, and the kernel on the device where there is one. The first level that is wrong is where the fault was made.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..capture.bind import fill, invoke
from ..errors import FusecError, InternalError
from ..ir.graph import Graph, Node, Store
from ..passes.pipeline import Stages
from . import entry
from .eager_values import captured_values, eager_values, first_apart, graph_values
from .levels import LEVELS, model
from .method import Scene
from .probes import PROBE, probes, with_probes
from .report import Difference, Report, indent
from .storage import clone
from .target import Target, written_graph

ELEMENTS = 8
MOST_NAMED = 12
"""Elements of a row that are printed of a value."""


@dataclass(frozen=True, slots=True)
class Step:
    """A level that was looked at: what came of it, in a line, and its report where `check` made one."""

    level: str
    ok: bool
    text: str
    report: Report | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the debugger found. level: the first that is wrong, '' where all agree; first: the first value that differs there."""

    name: str
    steps: tuple[Step, ...]
    level: str = ""
    first: Difference | None = None

    @property
    def ok(self) -> bool:
        return not self.level

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        head = f"{self.name}: all levels agree" if self.ok else f"{self.name}: differs from level {self.level} on"
        lines = [head] + ([f"  first: {indent(str(self.first))}"] if self.first is not None else [])
        for step in self.steps:
            lines.append(f"  {step.level:8} {step.text}")
            lines += [f"    {indent(law)}" for law in (step.report.laws if step.report is not None else ())]
        return "\n".join(lines)


def diagnose(subject: Any, inputs: Mapping[str, Any] | Sequence[Any], example_inputs: Any = None, *, level: str | None = None,
             arch: str | None = None) -> Diagnosis:
    """Run a call at every level (up to `level`; by default all that can run here) and name the first value that differs.

    subject, inputs, example_inputs, arch: as `check` takes them; the inputs stay as they are. Raises what `check` raises.
    """
    levels = _levels(level)
    goal, tensors, tree, stages = entry.prepared(subject, inputs, example_inputs, "graph", arch)
    steps: list[Step] = []
    for name in levels:
        step = _step(goal, fill(tree, tensors), name)
        if name == "graph":
            early, first = _before_the_graph(goal, stages, tensors, tree, step.report)
            steps += early
            wrong = next((s for s in early if not s.ok), None)
            if wrong is not None:
                return Diagnosis(goal.name, tuple(steps), wrong.level, first or (step.report.first if step.report else None))
        steps.append(step)
        if not step.ok:
            return Diagnosis(goal.name, tuple(steps), name, step.report.first if step.report is not None else None)
    return Diagnosis(goal.name, tuple(steps))


def _levels(level: str | None) -> tuple[str, ...]:
    if level is not None:
        return LEVELS[:LEVELS.index(level) + 1]
    return LEVELS if torch.cuda.is_available() else LEVELS[:-1]


def _step(goal: Target, inputs: Mapping[str, Any], level: str) -> Step:
    try:
        report = entry.check(goal, inputs, level=level)
    except InternalError as error:
        return Step(level, False, f"cannot run: {error}")
    if report.ok:
        worst = report.worst
        near = "" if worst is None else f", worst {worst.value}: {worst.kernel!r} for {worst.model!r}"
        return Step(level, True, f"agrees ({sum(c.elements for c in report.compared):,} elements{near})", report)
    broken = [c for c in report.compared if not c.ok]
    return Step(level, False, f"{len(broken)} of {len(report.compared)} values differ" + (
        f", {len(report.laws)} laws broken" if report.laws else ""), report)


EAGER = "the function in eager mode"


def _before_the_graph(goal: Target, stages: Stages, tensors: dict[str, Tensor], tree: Mapping[str, Any],
                      report: Report | None) -> tuple[list[Step], Difference | None]:
    """Whether the model itself is what the function computes: if not, whether capture or the naming of axes made the difference,
    and the first value that differs there, where one was found."""
    if report is None or all(c.ok for c in report.compared if c.where == EAGER):
        return [Step("eager", True, "the model agrees with the function")], None
    eager, captured = _eager(goal, tensors, tree), captured_values(stages.need("captured"), tensors)
    steps = [Step("eager", True, "the model is not what the function computes")]
    first = first_apart(eager, captured, "captured graph", ("captured graph", "eager"))
    if first is not None:
        return [*steps, Step("captured", False, "the captured graph computes something else")], first
    named = graph_values(written_graph(stages), tensors)
    first = first_apart(captured, named, "graph over named axes", ("named axes", "captured graph"))
    steps.append(Step("captured", True, "agrees"))
    return [*steps, Step("axes", False, "the graph over named axes computes something else")], first


def _eager(goal: Target, tensors: Mapping[str, Tensor], tree: Mapping[str, Any]) -> Any:
    mine = clone(tensors)
    return eager_values(lambda: invoke(goal.fn, fill(tree, mine)))


# ---- one value -------------------------------------------------------------------------------------------------------------------


def until(subject: Any, inputs: Mapping[str, Any] | Sequence[Any], value: str, example_inputs: Any = None, *,
          level: str | None = None, arch: str | None = None) -> str:
    """A value at every level, as text: its line, its axes, and its first elements for each row where the levels agree least.

    value: its name in the graph (`fusec inspect --stage axes`), the name it is assigned to, or `function+line`.
    """
    levels = _levels(level)
    goal, tensors, tree, stages = entry.prepared(subject, inputs, example_inputs, "graph", arch)
    graph = written_graph(stages)
    node = find_value(graph, value)
    found: dict[str, Tensor] = {}
    for name in levels:
        ask = entry.question(goal, stages, graph, tree, name, 0)
        assert ask.check_build is not None
        scene = Scene(ask, clone(tensors, "cuda") if name == "gpu" else tensors)
        if not found:
            found["model"] = _probe(scene, graph, node, scene.question.name, None)
        found[name] = _probe(scene, graph, node, name, ask.check_build)
    return _shown(graph, node, found)


def _probe(scene: Scene, graph: Graph, node: Node, level: str, build: Callable[..., dict[str, Tensor]] | None) -> Tensor:
    probed = with_probes(graph, (node,))
    after = scene.run(lambda t: model(probed, t) if build is None else build(probed, t))
    held = after[PROBE + node.name].cpu()
    return held[0] if probes(graph, (node,))[0].copies else held


def find_value(graph: Graph, value: str) -> Node:
    """The value of that name, assigned to that name, or last on that line; FusecError with similar ones where there is none."""
    nodes = [n for n in graph.nodes if not isinstance(n.op, Store)]
    for fits in (lambda n: n.name == value, lambda n: n.loc.target == value, lambda n: n.loc.short == value,
                 lambda n: value in n.loc.chain.split(" < ")):
        found = [n for n in nodes if fits(n)]
        if found:
            return found[-1]
    import difflib
    known = list(dict.fromkeys(name for n in nodes for name in (n.name, n.loc.target) if name))
    near = difflib.get_close_matches(value, known, 8, 0.5) or known[:MOST_NAMED]
    more = f" and {len(known) - MOST_NAMED} more" if len(near) == MOST_NAMED < len(known) else ""
    what = "on that line: it makes views only, or none" if "+" in value else "of that name"
    raise FusecError(f"--until {value}: expected a value of {graph.name}, found none {what}",
                     hint=f"values: {', '.join(near)}{more}")


def _shown(graph: Graph, node: Node, found: Mapping[str, Tensor]) -> str:
    axes = probes(graph, (node,))[0]
    names = axes.axes[axes.copies:]
    lines = [f"{node.name} [{', '.join(map(str, names))}] {node.dtype} at {node.loc.chain}"]
    lines += [f"    {line}" for line in node.loc.caret().splitlines()]
    model = found["model"].double()
    gaps = {level: (t.double() - model).abs().nan_to_num(float("inf")) for level, t in found.items()}
    far = max(gaps.values(), key=lambda g: float(g.max()) if g.numel() else 0.0)
    at = [int(i) for i in torch.unravel_index(far.flatten().argmax(), far.shape)] if far.dim() and far.numel() else []
    row = tuple(at[:-1])
    place = ", ".join(f"{a.name}={i}" for a, i in zip(names, row)) or "all"
    start = max(min(at[-1] - ELEMENTS // 2, model.shape[-1] - ELEMENTS), 0) if at else 0
    last = f"{names[-1].name}={start}.." if names else ""
    lines.append(f"  at {', '.join(x for x in (place if row else '', last) if x) or 'its only element'}:")
    for level, t in found.items():
        part = (t[row][start:start + ELEMENTS] if at else t.reshape(1)[:1]).double()
        numbers = " ".join(f"{x:.8g}" for x in part.tolist())
        lines.append(f"  {level:8} {numbers}" + ("" if level == "model" else f"    worst {float(gaps[level].max()):.3g} off")
                     if t.numel() else f"  {level:8} empty")
    return "\n".join(lines)
