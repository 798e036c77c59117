"""What is checked: the function, its graph before and after folding for the layout of a call, and how to run it at each level."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..capture.bind import bind, fill, invoke
from ..errors import ArgumentError, CaptureError, FusecError, FusionError
from ..ir import structure
from ..ir.graph import Graph
from ..ir.interpret_kernel import run_kernel
from ..ir.kernel import KernelSpec
from ..passes.pipeline import Stages
from .laws import described
from .levels import device_of, poisoned
from .single_rounding import SingleRounding

DEFAULT_ARCH = "sm_90a"
WATCHED = 1 << 18
"""Elements up to which the kernel interpreter watches for races: as many as make every race of a few rows show."""


@dataclass(slots=True)
class Target:
    """fn: the plain function. example: the arguments it was captured from. artifact: the compiled form, where there is one.

    `layouts` keeps what was captured for other strides. `laws`: where not None, it takes what the emulator finds wrong with an
    emitted file, once for all builds; where None, that is an InternalError.
    """

    fn: Callable[..., Any]
    example: dict[str, Any]
    stages: Stages
    dynamic_shapes: Any = None
    artifact: Any = None
    arch: str = DEFAULT_ARCH
    layouts: list[Stages] = field(default_factory=list)
    built: dict[Any, Any] = field(default_factory=dict)
    laws: dict[tuple[str, str, str], str] | None = None

    @property
    def name(self) -> str:
        return self.stages.need("graph").name

    def for_layout(self, named: Mapping[str, Tensor]) -> Stages:
        """The stages whose strides fit; captured anew where none do. Raises ArgumentError where shapes or dtypes do not fit."""
        from ..api import stand_ins
        from ..runtime import contract
        for stages in (self.stages, *self.layouts):
            try:
                contract.check_shapes(stages.need("graph").arguments, named, {})
                return stages
            except contract.LayoutError:
                continue
        example, tree = taken_apart(self.fn, self.example)
        given = fill(tree, stand_ins(self.stages.need("graph"), named, example))
        self.layouts.append(_captured(self.fn, given, self.dynamic_shapes, self.stages.numerics))
        return self.layouts[-1]


def target(subject: Any, inputs: Mapping[str, Any] | Sequence[Any], example_inputs: Any = None, arch: str | None = None) -> Target:
    """The target that a function, a decorated one or an artifact stands for, captured from the example inputs (by default: from the
    artifact's, else from `inputs`, else from the function's own example)."""
    from ..api import Fused, bind_example, stand_ins
    from ..runtime.artifact import Artifact
    if isinstance(subject, Target):
        return subject
    if not callable(subject):
        raise FusecError(f"check: expected a function or an artifact, found {subject!r}")
    fn = subject.reference if isinstance(subject, (Fused, Artifact)) else subject
    dynamic = getattr(subject, "dynamic_shapes", None)
    numerics = subject.numerics if isinstance(subject, Fused) else "default"
    if isinstance(subject, Artifact):
        numerics = subject.kernels[0].numerics if subject.kernels else numerics
        example = subject.given
        first = arch or (subject.archs[0] if subject.archs else None) or DEFAULT_ARCH
        made = subject.kernels[0].stages if subject.kernels else None
        again = made is None or made.captured is None or made.graph is None
        stages = _captured(fn, example, dynamic, numerics) if again else made
        return Target(fn, example, stages, dynamic, subject, first)
    example = bind_example(fn, inputs if example_inputs is None else example_inputs)
    tensors, tree = taken_apart(fn, example)
    try:
        stages = _captured(fn, fill(tree, stand_ins(None, tensors, {})), dynamic, numerics)
    except CaptureError:
        if example_inputs is not None or getattr(subject, "example", None) is None:
            raise
        example = subject.inputs()
        stages = _captured(fn, example, dynamic, numerics)
    return Target(fn, example, stages, dynamic, None, arch or DEFAULT_ARCH)


def taken_apart(fn: Callable[..., Any], given: Mapping[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(tensors by flat name, the arguments with placeholders for them): those in lists and dicts are arguments of their own."""
    call = bind(fn, given)
    return call.tensors, call.tree


def _captured(fn: Callable[..., Any], example: Mapping[str, Any], dynamic_shapes: Any, numerics: str) -> Stages:
    from ..api import capture_graph
    return capture_graph(fn, example, dynamic_shapes, numerics)


def written_graph(stages: Stages) -> Graph:
    """The graph as the function is written, before anything is folded: what the model is made from.

    Where views cut across each other, or what was written in part is read, it is what the pipeline makes of them; else it is made
    without those passes.
    """
    from ..passes.axes import assign_axes
    from ..passes.front import to_axes
    from ..passes.simplify_tensors import simplify_tensors
    captured = stages.need("captured")
    try:
        graph = assign_axes(simplify_tensors(captured))
    except FusionError:
        graph = to_axes(captured)
    return replace(graph, numerics=stages.numerics)


def folded(graph: Graph) -> Graph:
    """A graph as it goes into scheduling."""
    from ..ir.verify import verify
    from ..passes.front import GRAPH_PASSES
    for name, run in GRAPH_PASSES:
        graph = verify(run(graph), name)
    return graph


# ---- running -------------------------------------------------------------------------------------------------------------------


def eager(target: Target, graph: Graph, tree: Mapping[str, Any]) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    """The function itself in eager mode; its outputs by the names that the graph gives them, on the device of the arguments (a
    constant that the function makes lies elsewhere)."""
    def run(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        with torch.no_grad(), SingleRounding(), full_products():
            found = invoke(target.fn, fill(tree, tensors))
        flat = leaves(found)
        names = tensor_outputs(graph)
        if len(flat) != len(names):
            raise ArgumentError(f"{graph.name}: the function returns {len(flat)} tensors, the graph has {len(names)}")
        return {n: t.to(device_of(tensors)) for n, t in zip(names, flat) if not n.startswith("=")}
    return run


@contextmanager
def full_products() -> Iterator[None]:
    """Matrix products and convolutions in eager mode on a device as their types say: fp32 not as tf32, narrow sums not narrow."""
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    switches = [(products, "allow_tf32"), (products, "allow_bf16_reduced_precision_reduction"),
                (products, "allow_fp16_reduced_precision_reduction"), (convolutions, "allow_tf32")]
    before = [getattr(where, name) for where, name in switches]
    try:
        for where, name in switches:
            setattr(where, name, False)
        yield
    finally:
        for (where, name), value in zip(switches, before):
            setattr(where, name, value)


def leaves(found: Any) -> list[Tensor]:
    """The tensors of what a function returns, in order."""
    return [x for x in structure.leaves(found) if isinstance(x, Tensor)]


def tensor_outputs(graph: Graph) -> tuple[str, ...]:
    """The outputs without those that are constants."""
    return tuple(o for o in graph.outputs if not o.startswith("!"))


def spec_for(target: Target, graph: Graph, tensors: Mapping[str, Tensor], key: Any) -> KernelSpec:
    """The kernel of a folded graph that takes these tensors as they lie."""
    from ..passes.back import to_kernel

    def make(alignment: dict[str, int]) -> KernelSpec:
        return to_kernel(graph, target.arch, alignment or None)[1]
    found: KernelSpec = _as_aligned(target, (key, "interpreted"), make, tensors)
    return found


def _as_aligned(target: Target, key: tuple[Any, ...], make: Callable[[dict[str, int]], Any], tensors: Mapping[str, Tensor]) -> Any:
    """What `make` builds, made again for poorer alignment until it takes these tensors or they cannot be told to be any poorer."""
    from ..runtime.contract import less_aligned
    alignment: dict[str, int] = {}
    while True:
        place = (*key, tuple(sorted(alignment.items())))
        if place not in target.built:
            target.built[place] = make(dict(alignment))
        poor = less_aligned(target.built[place].parameters, tensors)
        if all(alignment.get(name, given + 1) <= given for name, given in poor.items()):
            return target.built[place]
        alignment |= poor


def run_as_kernel(target: Target, graph: Graph, tensors: Mapping[str, Tensor], key: Any, emitted: bool) -> dict[str, Tensor]:
    """The kernel of a folded graph, interpreted: statement by statement, or (`emitted`) the file that is emitted for it."""
    out = poisoned(graph, tensors)
    everything = {**tensors, **out}
    size = max((t.untyped_storage().nbytes() // t.element_size() for t in everything.values()), default=0)
    spec = spec_for(target, graph, everything, key)
    if emitted:
        _emulated(target, spec, everything)
    else:
        run_kernel(spec, everything, check_races=size <= WATCHED)
    return out


def _emulated(target: Target, spec: KernelSpec, tensors: Mapping[str, Tensor]) -> None:
    from ..codegen.render import render
    from ..emulate import emulate, run
    if target.laws is None:
        run(spec, tensors, counting=False)
        return
    source = render(spec)
    report = emulate(source, tensors, arch=spec.arch, parameters=spec.parameters, counting=False)
    captured = [n.loc for n in target.stages.captured.nodes] if target.stages.captured is not None else []
    for f in report.findings:
        target.laws.setdefault((f.kind, f.detail, f.reference), described(f, source, captured))


def run_on_device(target: Target, stages: Stages, graph: Graph, tensors: Mapping[str, Tensor], key: Any) -> dict[str, Tensor]:
    """The kernel of a folded graph, built and launched on the device of the tensors."""
    out = poisoned(graph, tensors)
    kernel = device_kernel(target, stages, graph, {**tensors, **out}, key)
    kernel.loaded(*[{**tensors, **out}[p.name] for p in kernel.parameters])
    torch.cuda.synchronize()
    return out


def device_kernel(target: Target, stages: Stages, graph: Graph, everything: Mapping[str, Tensor], key: Any) -> Any:
    """The kernel of a folded graph for the device of the tensors (fresh outputs among them), built where the store has none."""
    from ..compiler import kernels
    from ..runtime.artifact import device_arch
    arch = device_arch(next(t.device for t in everything.values()))
    begin = Stages(None, "", stages.numerics, {}, graph)
    return _as_aligned(target, (key, "device"), lambda poor: kernels(begin, (arch,), poor)[0], everything)


def production(target: Target, graph: Graph, tree: Mapping[str, Any], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """A call as a user makes it, into poisoned outputs."""
    out = poisoned(graph, tensors)
    names = graph.outputs
    given = [None if n.startswith("!") else tensors[n[1:]] if n.startswith("=") else out[n] for n in names]
    if graph.structure == "none" or not names:
        target.artifact(**fill(tree, tensors))
    else:
        target.artifact(out=structure.rebuild(graph.structure, given), **fill(tree, tensors))
    torch.cuda.synchronize()
    return out

