"""`fusec.check`: a function or an artifact, on given inputs, at a level, gives a Report."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..capture.bind import fill
from ..errors import FusecError, Loc, TargetError
from ..ir.graph import Graph
from ..passes.pipeline import Stages
from ..runtime import contract
from ..runtime.launch import pairs
from .levels import check_level, interpreted, shape_of, sizes
from .mates import compare_mates
from .method import Question, Scene
from .method import check as compare
from .report import Compared, Difference, Report
from .storage import clone
from .target import (
    Target, eager, folded, production, run_as_kernel, run_on_device, taken_apart, target, tensor_outputs, written_graph,
)


def check(subject: Any, inputs: Mapping[str, Any] | Sequence[Any], example_inputs: Any = None, level: str = "graph", *,
          arch: str | None = None, case: str = "", seed: int = 0) -> Report:
    """Compare what a function becomes at a level with its model in fp64 that keeps every written rounding.

    subject: a plain function, a decorated one, or an artifact. inputs: a dict by parameter name, or a tuple in their order; they
    stay as they are. They may have no row or one where an artifact, example_inputs or the function's own example say which axes
    vary. level: "graph" (the graph over named axes, interpreted), "kernel" (the kernel, interpreted statement by statement for
    `arch`), "emulate" (the emitted file, executed on the CPU), "gpu" (the compiled kernel on the device). seed: of the random bytes
    around the inputs.

    Raises FusecError for an unknown level and for inputs that are all zeros, ArgumentError for a written tensor that shares memory
    with another one, TargetError without a device at level "gpu", and what
    compiling raises where the function cannot be compiled.
    """
    goal, tensors, tree, stages = prepared(subject, inputs, example_inputs, level, arch)
    graph = written_graph(stages)
    refuse_zeros(graph, tensors)
    refuse_aliases(graph, tensors)
    if _no_rows(graph, tensors):
        return _zero_rows(goal, graph, tensors, tree, level, case)
    ask = question(goal, stages, graph, tree, level, seed)
    goal.laws = {}
    try:
        compared, notes, located = compare(ask, tensors)
        return Report(goal.name, level, compared, notes, case, located, tuple(goal.laws.values()))
    finally:
        goal.laws = None


def prepared(subject: Any, inputs: Mapping[str, Any] | Sequence[Any], example_inputs: Any, level: str,
              arch: str | None) -> tuple[Target, dict[str, Tensor], dict[str, Any], Stages]:
    """The target, the tensors of the inputs (on the device at level "gpu"), the inputs with
    placeholders for them, and the stages for their layout."""
    check_level(level)
    if level == "gpu" and not torch.cuda.is_available():
        raise TargetError("level gpu: expected a CUDA device, found none", hint='levels "graph", "kernel" and "emulate" need none')
    from ..api import bind_example
    goal = target(subject, inputs, example_inputs, arch)
    given = bind_example(goal.fn, inputs)
    tensors, tree = taken_apart(goal.fn, given)
    if level == "gpu":
        goal.artifact = goal.artifact or _artifact(goal)
        tensors = clone(tensors, "cuda")
    return goal, tensors, tree, goal.for_layout(tensors)


def _artifact(goal: Target) -> Any:
    from ..api import make_artifact
    return make_artifact(goal.fn, goal.stages, goal.example, goal.dynamic_shapes, (), None)


def question(goal: Target, stages: Stages, graph: Graph, tree: Mapping[str, Any], level: str, seed: int) -> Question:
    """What `method.check` compares: the graph as written, and how the function and its builds run at a level."""
    final = stages.need("graph")
    place = goal.layouts.index(stages) if stages in goal.layouts else -1

    def check_build(probed: Graph, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        ready = folded(probed)
        key = ("check", place, len(probed.nodes))
        if level == "graph":
            return interpreted(ready, tensors)
        if level == "gpu":
            return run_on_device(goal, stages, ready, tensors, key)
        return run_as_kernel(goal, ready, tensors, key, level == "emulate")

    def run(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        if level == "graph":
            return interpreted(final, tensors)
        if level == "gpu":
            return production(goal, final, tree, tensors)
        return run_as_kernel(goal, final, tensors, ("production", place), level == "emulate")

    return Question(goal.name, graph, eager(goal, graph, tree), check_build, run, seed)


def refuse_zeros(graph: Graph, tensors: Mapping[str, Tensor]) -> None:
    """FusecError where every floating input holds nothing but zeros: any kernel, or none, would pass."""
    floats = [t for n, t in tensors.items() if t.is_floating_point() and t.numel()]
    if floats and not any(bool((t.to(torch.float32) != 0).any()) for t in floats):
        raise FusecError(f"{graph.name}: all floating inputs are zero, so a check would prove nothing",
                         hint="pass data of realistic scale, such as torch.randn")


def refuse_aliases(graph: Graph, tensors: Mapping[str, Tensor]) -> None:
    """ArgumentError where a tensor that is written shares memory with another, as a call would say."""
    names = [a.name for a in graph.arguments]
    views = {n: contract.view(tensors[n]) for n in names}
    for i, j, before, after in pairs(views, names, tuple(graph.mutated)):
        distance = contract.address(tensors[names[j]]) - contract.address(tensors[names[i]])
        if before < distance < after:
            contract.check_apart(names[i], names[j], views, distance)


def _no_rows(graph: Graph, tensors: Mapping[str, Tensor]) -> bool:
    known = sizes(graph.arguments, tensors)
    return graph.rows is not None and known.get(graph.rows) == 0


def _zero_rows(goal: Target, graph: Graph, tensors: dict[str, Tensor], tree: Mapping[str, Any], level: str,
               case: str) -> Report:
    """Without rows nothing runs: outputs have the shapes and dtypes that eager gives them, and nothing changes."""
    ask = Question(goal.name, graph, eager(goal, graph, tree), None, None)
    scene = Scene(ask, tensors)
    known = sizes(graph.arguments, tensors)
    assert ask.eager is not None
    try:
        found, compared = scene.run(ask.eager), []
    except (RuntimeError, ValueError, LookupError) as error:  # view(0, -1): nothing to compare with.
        return Report(goal.name, level, (), (f"no rows: in eager mode the function raises {type(error).__name__}: {error}",), case)
    made = _called(goal, scene, tree) if level == "gpu" else {}
    for output in graph.fresh:
        wanted = tuple(found[output.name].shape), found[output.name].dtype
        given = {"the graph": (shape_of(output, known), _dtype(output.dtype))}
        if output.name in made:
            given["production build"] = tuple(made[output.name].shape), made[output.name].dtype
        for where, what in given.items():
            ok = what == wanted
            wrong = None if ok else Difference(output.name, Loc(), None, (), float("nan"), float("nan"), float("inf"),
                                               f"shape and dtype {what}, eager {wanted}", where)
            rule = "shape and dtype as in eager mode"
            compared.append(Compared(output.name, Loc(), where, rule, 1, int(not ok), wrong, wrong, ok))
    findings: list[Compared] = []
    for where, after in (("the function in eager mode", found), *((("production build", made),) if made else ())):
        findings += scene.untouched(where, {**scene.base, **after})
    return Report(goal.name, level, (*compared, *findings), ("no rows: nothing is launched",), case)


def _called(goal: Target, scene: Scene, tree: Mapping[str, Any]) -> dict[str, Tensor]:
    from .target import leaves
    mine = clone(scene.base)
    flat = leaves(goal.artifact(**fill(tree, mine)))
    torch.cuda.synchronize()
    return {**mine, **{n: t for n, t in zip(tensor_outputs(scene.graph), flat) if not n.startswith("=")}}


def _dtype(short: str) -> torch.dtype:
    from ..ir.reference import TORCH_DTYPE
    return TORCH_DTYPE[short]


def check_batch_mates(subject: Any, inputs: Mapping[str, Any] | Sequence[Any], example_inputs: Any = None, level: str = "graph", *,
                      arch: str | None = None) -> Report:
    """Whether each row's bits are the same alone, among other mates and at other positions, at a level of `check`."""
    goal, tensors, tree, stages = prepared(subject, inputs, example_inputs, level, arch)
    ask = question(goal, stages, written_graph(stages), tree, level, 0)
    assert ask.production is not None
    return compare_mates(goal.name, ask.graph, ask.production, tensors, level)


def compiled(subject: Any, example_inputs: Mapping[str, Any] | Sequence[Any], level: str = "graph", *,
             arch: str | None = None) -> Callable[..., list[Tensor]]:
    """What a function becomes at a level, callable by parameter names: changes its tensors in place, as the function does, and
    gives the tensors that the function returns, in a list. At level "gpu" the tensors lie on the device."""
    check_level(level)
    from ..api import bind_example
    goal = target(subject, example_inputs, example_inputs, arch)
    if level == "gpu":
        goal.artifact = goal.artifact or _artifact(goal)

    def call(**inputs: Any) -> list[Tensor]:
        tensors, tree = taken_apart(goal.fn, bind_example(goal.fn, inputs))
        stages = goal.for_layout(tensors)
        run = question(goal, stages, stages.need("graph"), tree, level, 0).production
        assert run is not None
        found = run(tensors)
        return [tensors[n[1:]] if n.startswith("=") else found[n] for n in tensor_outputs(stages.need("graph"))]
    return call


def check_file_cases(fn: Any, level: str = "graph", rows: tuple[int, ...] = (0, 1, 2, 5), *, arch: str | None = None,
                     sizes: Mapping[str, Any] | None = None) -> list[Report]:
    """A report per case that a decorated function with example inputs has to pass: several numbers of rows, unaligned rows, and
    where it is paged other pools, permuted and spaced slots, pools interleaved in pages. sizes: passed to the example."""
    check_level(level)
    goal, tree, cases = file_cases(fn, rows, arch=arch, sizes=sizes)
    return [check(goal, fill(tree, make()), level=level, case=name) for name, make in cases]


def file_cases(fn: Any, rows: tuple[int, ...] = (0, 1, 2, 5), *, arch: str | None = None, sizes: Mapping[str, Any] | None = None
               ) -> tuple[Target, dict[str, Any], list[tuple[str, Callable[[], dict[str, Any]]]]]:
    """(the target, its arguments with placeholders for tensors, (name, maker of tensors) of each case of `check_file_cases`)."""
    from .cases import variants
    from .facts import facts
    example = fn.inputs(**(sizes or {}))
    goal = target(fn, example, example, arch)
    tensors, tree = taken_apart(goal.fn, example)
    return goal, tree, variants(facts(written_graph(goal.stages)), tensors, rows)


__all__ = ["check", "check_batch_mates", "check_file_cases", "compiled"]
