"""The public functions: `fuse` decorates a step of one's own, `compile` takes anybody's, `check` compares it with its kernel."""
from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch

from .capture import annotations, bind, examples
from .capture.trace import capturing
from .compiler import Progress, graph_stages, kernels, quiet
from .errors import ArgumentError, CaptureError, FusecError, FusionError
from .ir.reference import TORCH_DTYPE
from .ir.axis import Extent
from .ir.graph import Graph
from .options import EXAMPLE_ROWS, archs, numerics_option
from .passes.pipeline import Stages
from .runtime import contract, launch
from .runtime.artifact import Announce, Artifact, Dispatcher, device_arch
from .runtime.kernel import Kernel
from .runtime.variants import Variant
from .runtime.worker import start_builder

Example = Callable[..., Mapping[str, Any]] | Mapping[str, Any]
Arch = str | Iterable[str] | None
EXAMPLE_SEED = 1
"""What examples are drawn from: each call of `inputs` gives the same values, and leaves the caller's generator as it was."""


def compile(fn: Callable[..., Any], example_inputs: Mapping[str, Any] | Sequence[Any] | None = None, dynamic_shapes: Any = None,
            arch: Arch = None, numerics: str = "default", *, static: Mapping[str, Any] | None = None,
            variants: Iterable[Variant] = (), strict: bool = False, progress: Progress = quiet) -> Artifact:
    """Compile a plain PyTorch function into an artifact that is callable on CUDA tensors.

    example_inputs: a dict by parameter name, or a tuple in their order; only dtypes, shapes and strides matter, and what is no
    tensor is a constant. None: the shapes that the function's annotations declare. dynamic_shapes: as torch.export takes it; None
    finds the axes that vary (rows, pools). static: sizes of declared axes by name, the others are known at the call only. arch: one
    or several ("sm_90a", ["sm_90a", "sm_100a"]); None is the present device's, a TargetError without one. numerics: "default" or
    "strict" (no contraction, no folding, no approximation). variants: further kernels for calls that the first cannot take:
    "unaligned", or which arguments are aligned to how many bytes or have the strides of which tensor ({"x": 2, "state": tensor}).
    strict: a call that needs a kernel beyond these is an error.

    Raises UnsupportedOp, CaptureError, FusionError or ResourceError with file, line and remedy where it cannot be one kernel.
    """
    wanted = archs(arch) if arch is not None else (device_arch(torch.device("cuda")),)
    start_builder()
    fn = fn.reference if isinstance(fn, Fused) else fn
    if example_inputs is None:
        example_inputs, static = examples.without_values(declared_layouts(fn, EXAMPLE_ROWS, static or {})), static or {}
    example = bind_example(fn, example_inputs)
    examples.check_known(fn, static or {})
    if dynamic_shapes is None and static is not None:
        dynamic_shapes = annotations.free_names(annotations.declared(fn), static)
    progress(f"{getattr(fn, '__name__', 'function')}: capturing")
    stages = capture_graph(fn, example, dynamic_shapes, numerics)
    artifact = make_artifact(fn, stages, example, dynamic_shapes, kernels(stages, wanted, progress=progress), wanted, strict)
    for number, variant in enumerate(variants, 1):
        progress(f"{artifact.name}: variant {number}")
        artifact.prepare(variant)
    return artifact


def capture_graph(fn: Callable[..., Any], example: Mapping[str, Any], dynamic_shapes: Any = None,
                  numerics: str = "default") -> Stages:
    """The function's graph over named axes: what every architecture and variant shares."""
    from .capture import capture
    try:
        with torch.no_grad():
            return graph_stages(capture(fn, dict(example), dynamic_shapes), numerics_option(numerics))
    except (CaptureError, FusionError) as error:
        if not isinstance(dynamic_shapes, annotations.FreeNames) or not dynamic_shapes.names:
            raise
        free = ", ".join(sorted(dynamic_shapes.names))
        hint = f"the sizes of {free} are free here: static= or -D fixes one" + (f"; {error.hint}" if error.hint else "")
        raise type(error)(error.message, error.loc, hint) from error


def declared_layouts(fn: Callable[..., Any], rows: int, given: Mapping[str, Any]) -> examples.Layouts:
    """What a function's annotations say of its arguments. Raises FusecError where they declare no shape."""
    if not annotations.declared(fn):
        raise FusecError(f"{getattr(fn, '__name__', fn)} has no example inputs, and its annotations declare no shapes",
                         hint='give example inputs, or annotate the arguments: x: BFloat16[Tensor, "rows H*D"]')
    return examples.layouts(fn, rows, given)


def bind_example(fn: Callable[..., Any], inputs: Mapping[str, Any] | Sequence[Any], maker: Callable[..., Any] | None = None
                 ) -> dict[str, Any]:
    """{parameter: value}, defaults filled in. Raises ArgumentError at `maker` (by default `fn`) where the inputs do not fit, and
    CaptureError for a function whose parameters Python does not tell."""
    signature = bind.signature(fn)
    try:
        bound = signature.bind(**inputs) if isinstance(inputs, Mapping) else signature.bind(*inputs)
    except TypeError as error:
        takes = ", ".join(signature.parameters) or "nothing"
        raise ArgumentError(f"example inputs of {getattr(fn, '__name__', fn)}: {error}", annotations.loc_of(maker or fn),
                            f"the function takes {takes}") from None
    bound.apply_defaults()
    return dict(bound.arguments)


def flatten(fn: Callable[..., Any], arguments: Mapping[str, Any]) -> tuple[dict[str, torch.Tensor], Any]:
    """(tensors by flat name, the arguments with placeholders for them): tensors in containers become arguments of their own."""
    from .capture.bind import bind
    call = bind(fn, arguments)
    return call.tensors, call.tree


def make_artifact(fn: Callable[..., Any], stages: Stages, example: Mapping[str, Any], dynamic_shapes: Any, made: Sequence[Kernel],
                  wanted: tuple[str, ...] | None, strict: bool = False) -> Artifact:
    """An artifact that compiles further variants from the same function when calls need them."""
    from .capture.bind import fill
    given, tree = flatten(fn, example)
    tensors = without_memory({n: (t.shape, t.stride(), t.dtype) for n, t in given.items()})
    by_graph: dict[int, Stages] = {id(stages.graph): stages}

    def recapture(named: Mapping[str, torch.Tensor]) -> Graph:
        inputs = fill(tree, stand_ins(stages.need("graph"), named, tensors))
        found = capture_graph(fn, inputs, dynamic_shapes, stages.numerics)
        by_graph[id(found.graph)] = found
        graph: Graph = found.need("graph")
        return graph

    def compile_variant(graph: Graph, arch: str, alignment: Mapping[str, int], announce: Announce) -> Kernel:
        return kernels(by_graph[id(graph)], (arch,), alignment, announce=announce)[0]

    return Artifact(fn, stages.need("graph"), fill(tree, tensors), made, compile_variant, recapture, wanted, flatten, strict)


def stand_ins(graph: Graph | None, named: Mapping[str, torch.Tensor],
              example: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors to capture from in place of a call's: same dtypes, sizes and strides, without memory.

    A symbol of the graph that is below 2 in the call takes the example's size: capture cannot tell one row from a broadcast.
    """
    sizes: dict[str, int] = {}
    symbols = {a.name: a.shape for a in graph.arguments} if graph is not None else {}
    if graph is not None:
        contract.check_shapes(graph.arguments, example, sizes)
    called = {e: named[name].shape[dim] for name, shape in symbols.items() if name in named
              for dim, e in enumerate(shape) if isinstance(e, sympy.Symbol)}

    def size(extent: Extent, given: int) -> int:
        """The size in place of a given one of this extent."""
        few = {s: max(sizes[str(s)], 2) for s in sympy.sympify(extent).free_symbols if called.get(s, 2) < 2}
        if not few or isinstance(extent, int):
            return given
        before, after = (int(str(extent.subs({**called, **now}))) for now in ({}, few))
        return after if given == before else given * after // before if before else given
    found = {}
    for name, t in named.items():
        shape, strides = list(t.shape), list(t.stride())
        for dim, extent in enumerate(symbols.get(name, ())):
            now = size(extent, shape[dim])
            if now != shape[dim]:
                strides[dim] = max((n * s for n, s in zip(shape, strides) if n > 1), default=1) if shape[dim] < 2 else strides[dim]
                shape[dim] = now
        found[name] = shape, strides, t.dtype
    return without_memory(found)


def without_memory(layouts: Mapping[str, tuple[Sequence[int], Sequence[int], torch.dtype]]) -> dict[str, torch.Tensor]:
    """Tensors of these shapes, strides and dtypes that hold nothing: good for capture and for comparing layouts."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    with FakeTensorMode():
        return {n: torch.empty_strided(shape, strides, dtype=dtype) for n, (shape, strides, dtype) in layouts.items()}


class Fused(Dispatcher):
    """A decorated function: callable on CUDA tensors, compiled when first needed; `reference` is the function itself.

    Calls with other dtypes, static sizes or constants than before are compiled anew, each into an artifact of its own.
    """

    def __init__(self, fn: Callable[..., Any], example: Example | None, dynamic_shapes: Any, numerics: str,
                 static: Mapping[str, Any] | None = None) -> None:
        super().__init__(fn, flatten)
        functools.update_wrapper(self, fn)
        self.example = None if isinstance(example, Mapping) else example
        self.defaults = dict(example) if isinstance(example, Mapping) else {}
        examples.check_known(fn, static or {})
        self.static, self.numerics = static, numerics_option(numerics)
        by_name = dynamic_shapes is None and static is not None
        self.dynamic_shapes = annotations.free_names(annotations.declared(fn), static or {}) if by_name else dynamic_shapes
        self._artifacts: list[Artifact] = []
        self._limits: dict[Any, tuple[dict[str, int], dict[str, int]]] = {}

    def __call__(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        """Run the step on CUDA tensors; inside the capture of another function it is the plain function that it was."""
        if capturing():
            return self.reference(*args, **kwargs)
        return super().__call__(*args, out=out, **kwargs)

    def __repr__(self) -> str:
        return f"<fusec function {self.name}>"

    def __get__(self, instance: Any, owner: Any = None) -> "Fused":
        if instance is not None:
            raise FusecError(f"{self.name}: expected a function, found a method",
                             hint="decorate a function that takes what it needs of the object as arguments")
        return self

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Every kernel compiled so far by calls."""
        return tuple(k for a in self._artifacts for k in a.kernels)

    def bound(self, **static: Any) -> "Fused":
        """The same function with further sizes of declared axes, dtypes of arguments and constants fixed."""
        return Fused(self.reference, self.example, None, self.numerics, {**self.defaults, **(self.static or {}), **static})

    @property
    def has_example(self) -> bool:
        """Whether it can be compiled as it stands: it has example inputs, or its annotations declare shapes."""
        return self.example is not None or bool(annotations.declared(self.reference))

    def sizes(self) -> tuple[str, ...]:
        """The names of the example's sizes, or of the declared axes; "**" where it takes any."""
        if self.example is None:
            return examples.known(self.reference)
        found = list(inspect.signature(self.example).parameters.values())[2:]
        return tuple("**" if p.kind is p.VAR_KEYWORD else p.name for p in found)

    def inputs(self, rows: int = EXAMPLE_ROWS, device: Any = "cpu", **sizes: Any) -> dict[str, Any]:
        """The function's example inputs, or tensors as its annotations declare them; the same at each call. Raises FusecError where
        it has none, or knows no such size."""
        if self.example is None:
            return self._declared_inputs(rows, device, sizes)
        try:
            inspect.signature(self.example).bind(rows, device, **sizes)
        except TypeError as error:
            raise FusecError(f"{self.name}: {error}; the example's sizes are {', '.join(self.sizes()) or 'none'}") from None
        with torch.random.fork_rng([device] if torch.device(device).type == "cuda" else []):
            torch.manual_seed(EXAMPLE_SEED)
            return bind_example(self.reference, self._made(rows, device, sizes), self.example)

    def _made(self, rows: int, device: Any, sizes: Mapping[str, Any]) -> Any:
        """What the example function gives; FusecError with the sizes asked for where it raises."""
        assert self.example is not None
        parameters = inspect.signature(self.example).parameters
        wants_dtype = {n for n, p in parameters.items() if isinstance(p.default, torch.dtype)}
        ready = {n: TORCH_DTYPE.get(annotations.dtype_named(str(v)), v) if n in wants_dtype else v for n, v in sizes.items()}
        try:
            return self.example(rows, device, **ready)
        except (LookupError, ValueError, TypeError, ArithmeticError) as error:
            given = "".join(f", {name}={value}" for name, value in sizes.items())
            raise FusecError(f"{self.name}: its example function raises {type(error).__name__}: {error} (rows={rows}{given})",
                             annotations.loc_of(self.example),
                             hint="--traceback shows where; the example may take other values of a size") from error

    def _layouts(self, rows: int, sizes: Mapping[str, Any]) -> examples.Layouts:
        if not self.has_example:
            raise FusecError(f"{self.name} has no example inputs",
                             hint="decorate it with @fusec.fuse(example=make), where make(rows, device, **sizes) returns a dict of "
                                  "tensors, declare shapes by annotations, or call fusec.compile with example inputs")
        return declared_layouts(self.reference, rows, {**self.defaults, **(self.static or {}), **sizes})

    def _declared_inputs(self, rows: int, device: Any, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """Values for declared shapes; an index stays below the size of what it picks from, which the captured graph says."""
        made = self._layouts(rows, sizes)
        limits, grown = self._index_limits(made)
        if grown:
            made = self._layouts(rows, {**sizes, **grown})
            limits, _ = self._index_limits(made)
        with torch.random.fork_rng([device] if torch.device(device).type == "cuda" else []):
            torch.manual_seed(EXAMPLE_SEED)
            return bind_example(self.reference, examples.with_values(made, device, limits))

    def _index_limits(self, made: examples.Layouts) -> tuple[dict[str, int], dict[str, int]]:
        """(what the values of each index argument stay below, sizes of free axes that let the slots of a pool be distinct).

        Captured once for each layout and constants.
        """
        from .checker.facts import facts
        if all(dtype.is_floating_point or dtype == torch.bool for _, dtype in made.tensors.values()):
            return {}, {}
        plain = all(isinstance(v, (bool, int, float, str, torch.dtype, type(None))) for v in made.constants.values())
        key = (tuple(made.tensors.items()), tuple((n, type(v), v) for n, v in made.constants.items()), made.free)
        if plain and key in self._limits:
            return self._limits[key]
        stand_in = bind_example(self.reference, examples.without_values(made))
        known = facts(capture_graph(self.reference, stand_in, made.free).need("graph"))
        limits = {n: known.capacity(n, stand_in) for n in known.indices if n in made.tensors}
        found = limits, examples.grown(self.reference, made, known.slots, limits)
        if plain:
            self._limits[key] = found
        return found

    def capture_inputs(self, rows: int = EXAMPLE_ROWS, **sizes: Any) -> tuple[dict[str, Any], Any]:
        """(arguments to capture from, dynamic_shapes) for the given sizes; tensors as declared have no memory."""
        if self.example is not None:
            return self.inputs(rows, **sizes), self.dynamic_shapes
        made = self._layouts(rows, sizes)
        return bind_example(self.reference, examples.without_values(made)), made.free

    def compile(self, arch: Arch = None, rows: int = EXAMPLE_ROWS, *, numerics: str | None = None, progress: Progress = quiet,
                variants: Iterable[Variant] = (), strict: bool = False, **sizes: Any) -> Artifact:
        """An artifact for the example inputs of the given sizes; arch, variants and strict as for fusec.compile."""
        example, dynamic_shapes = self.capture_inputs(rows, **sizes)
        return compile(self.reference, example, dynamic_shapes, arch, numerics or self.numerics, variants=variants, strict=strict,
                       progress=progress)

    def _plan(self, named: dict[str, torch.Tensor], tree: Any, out: Any) -> launch.Plan:
        if self.device_type == "cuda" and not torch.cuda.is_available():
            device_arch(torch.device("cuda"))
        if not self._artifacts and (self.example is not None or self.defaults):
            self._capture(*self.capture_inputs())
        for artifact in self._artifacts:
            try:
                artifact.check_call(named, tree)
            except ArgumentError:
                continue
            return artifact._plan(named, tree, out)
        contract.check_gradients(named)
        contract.check_devices(named, self.device_type)
        return self._capture_call(named, tree)._plan(named, tree, out)

    def _capture(self, example: Mapping[str, Any], dynamic_shapes: Any = None) -> Artifact:
        dynamic = self.dynamic_shapes if dynamic_shapes is None else dynamic_shapes
        stages = capture_graph(self.reference, example, dynamic, self.numerics)
        self._artifacts.append(make_artifact(self.reference, stages, example, dynamic, (), None))
        return self._artifacts[-1]

    def _capture_call(self, named: Mapping[str, torch.Tensor], tree: Any) -> Artifact:
        """Capture from a call's tensors. Sizes and dtypes are the call's; what the first capture found to vary must agree, and what
        it made of that (rows times heads) is made anew."""
        from .capture.bind import fill
        known = next(iter(self._artifacts), None)
        if known is None:
            return self._capture(fill(tree, stand_ins(None, named, {})))
        loose = [replace(a, shape=tuple(e if isinstance(e, sympy.Symbol) else n for e, n in zip(a.shape, named[a.name].shape))
                         if len(a.shape) == named[a.name].dim() else a.shape, strides=(None,) * len(a.shape))
                 for a in known.graph.arguments if a.name in named]
        contract.check_shapes(loose, named, {}, dtypes=False)
        try:
            return self._capture(fill(tree, stand_ins(known.graph, named, known.example)))
        except CaptureError as error:
            nearest = max(self._artifacts, key=lambda a: a.agreement(named))
            if 2 * nearest.agreement(named) >= len(named):
                nearest.check_call(named, tree)
            raise ArgumentError(f"{self.name}: cannot be captured for these arguments: {error}") from error


def fuse(fn: Callable[..., Any] | None = None, *, example: Example | None = None, dynamic_shapes: Any = None,
         numerics: str = "default", static: Mapping[str, Any] | None = None) -> Any:
    """Decorate a plain PyTorch function of one step: `@fusec.fuse` or `@fusec.fuse(example=make)`.

    make(rows, device, **sizes) returns a dict of example tensors by parameter name; compile, check and bench use it, and the sizes
    it names can be set from the command line. Instead of it annotations may declare the shapes, x: BFloat16[Tensor, "rows H*D"]:
    then example=dict(H=12, D=128) gives sizes to compile and check with, static=dict(H=12) fixes some for every call, and axes
    without a size are known at the call only. Without either the first call's tensors are the example. Returns a Fused.
    """
    if fn is None:
        return functools.partial(fuse, example=example, dynamic_shapes=dynamic_shapes, numerics=numerics, static=static)
    if isinstance(fn, Fused) or not callable(fn) or isinstance(fn, type):
        raise FusecError(f"fuse: expected a function, found {fn!r}")
    return Fused(fn, example, dynamic_shapes, numerics, static)


def check(subject: Any, inputs: Any, example_inputs: Any = None, level: str = "graph", **options: Any) -> Any:
    """Compare a function or an artifact with what it computes in exact arithmetic, every written rounding kept.

    level: "graph" interprets the folded graph, "kernel" the kernel statement by statement, "gpu" runs it. The report has `.ok`, the
    worst difference, and the first differing value with source line and row.
    """
    from .checker import check as run
    return run(subject, inputs, example_inputs, level, **options)
