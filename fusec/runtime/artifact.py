"""What a caller holds: kernels with what is known about them, and callables that find the right one for a call."""
from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..errors import ArgumentError, FusecError, TargetError
from ..ir.graph import Graph
from ..ir.reference import TORCH_DTYPE
from ..ir.tensor import Argument
from ..log import log
from ..options import strict
from ..target import of_capability
from . import contract, debug, launch, variants
from .kernel import Kernel
from .variants import Variant


def device_arch(device: torch.device) -> str:
    """The architecture of a CUDA device; TargetError where there is none or fusec does not know it."""
    if not torch.cuda.is_available():
        raise TargetError("no CUDA device: kernels can be compiled here (arch=…) but not run")
    major, minor = torch.cuda.get_device_capability(device)
    return of_capability(major, minor, torch.cuda.get_device_name(device))


PLANS = 4096
"""Plans kept at most by one callable; they are cheap to make again."""


Flatten = Callable[[Callable[..., Any], Mapping[str, Any]], tuple[dict[str, torch.Tensor], Any]]
"""(function, its arguments by parameter) -> (tensors by flat name, the arguments with placeholders for the tensors)."""

SIMPLE = (int, float, bool, str, type(None), torch.dtype)
"""Types of arguments that hold no tensor and have a value of their own."""


BeforeCall = Callable[[Mapping[str, Any]], None]


class Dispatcher:
    """A callable over a plain function's signature that keeps one launch plan per combination of layouts and constants."""

    device_type = "cuda"

    def __init__(self, fn: Callable[..., Any], flatten: Flatten) -> None:
        self.reference = fn
        self.name: str = getattr(fn, "__name__", type(fn).__name__)
        self.signature = inspect.signature(fn)
        self._names = tuple(self.signature.parameters)
        kinds = [p.kind for p in self.signature.parameters.values()]
        usual = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
        self._positional = kinds.count(usual[0]) if set(kinds) <= set(usual) else -1
        self._defaults = {n: p.default for n, p in self.signature.parameters.items() if p.default is not p.empty}
        self._flatten = flatten
        self._plans: dict[tuple[Any, ...], launch.Plan] = {}
        self._complex = False  # Whether an argument was complex: kernels take its real view, and other calls need not ask.
        self._compiling = threading.RLock()
        self._before_call: BeforeCall | None = None

    def __call__(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        """Run the step on CUDA tensors; returns what the function returns, in fresh tensors or in `out`.

        Raises ArgumentError before anything is written where an argument does not fit, TargetError without a device or kernel.
        """
        values = args if not kwargs and len(args) == len(self._names) == self._positional else self._bind(args, kwargs)
        try:
            tensors, key = self._keyed(values)
        except (RuntimeError, NotImplementedError):  # A tensor without strides or memory: say which, and why it will not do.
            self._new_plan(values, out)
            raise
        if out is not None:
            return self._call_into(out, values, tensors, key)
        plan = self._plans.get(tuple(key))
        if plan is None:
            plan = self._new_plan(values, None)
            tensors, key = self._keyed(values)
            self._remember(tuple(key), plan)
        return plan.run(tensors, ())

    @property
    def before_call(self) -> BeforeCall | None:
        """What is told of the arguments before a call; while there is something no plan is remembered, so each call says so."""
        return self._before_call

    @before_call.setter
    def before_call(self, told: BeforeCall | None) -> None:
        self._before_call = told
        self._plans.clear()

    def _keyed(self, values: Sequence[Any]) -> tuple[list[torch.Tensor], list[Any]]:
        """The tensors of a call, and what its plan depends on."""
        tensors: list[torch.Tensor] = []
        key: list[Any] = []
        recording, some_complex = torch.is_grad_enabled(), self._complex
        for v in values:
            if isinstance(v, torch.Tensor) and not (some_complex and v.is_complex()):
                tensors.append(v)
                key.append((v.__class__, v.shape, v.stride(), v.dtype, v.get_device(), v.data_ptr() & 31, v.requires_grad))
            elif isinstance(v, SIMPLE):
                key.append((v.__class__, repr(v) if v.__class__ is float else v))  # 0.0 == -0.0, nan != nan
            else:
                named, tree = self._flatten(self.reference, dict(zip(self._names, values)))
                tensors, key = self._keyed(tuple(named.values()))
                return tensors, [*key, repr(tree)]
        key.append(recording)
        return tensors, key

    def _call_into(self, out: Any, values: Sequence[Any], tensors: list[torch.Tensor], key: list[Any]) -> Any:
        leaves = list(out.values()) if isinstance(out, dict) else list(out) if isinstance(out, (tuple, list)) else [out]
        for t in leaves:
            contract.check_kind("out", t)
            key.append((t.shape, t.stride(), t.dtype, t.get_device(), t.data_ptr() & 31, [t is v for v in tensors].count(True)))
        key.append((type(out), tuple(out) if isinstance(out, dict) else None))
        plan = self._plans.get(found := tuple(key))
        if plan is None:
            plan = self._new_plan(values, out)
            tensors, _ = self._keyed(values)
            self._remember(found, plan)
        given = launch.unpack_outputs(plan.graph, out, dict(zip(plan.names, tensors)))
        return plan.run(tensors, [given[a.name] for a in plan.graph.fresh])

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """The values of the parameters in their order. Signature.bind knows every rule and takes 50 µs: it gets what is unusual."""
        rest = self._names[len(args):]
        if len(args) <= self._positional and all(n in kwargs or n in self._defaults for n in rest):
            if sum(n in kwargs for n in rest) == len(kwargs):
                return (*args, *(kwargs[n] if n in kwargs else self._defaults[n] for n in rest))
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentError(f"{self.name}: {error}") from None
        bound.apply_defaults()
        return tuple(bound.arguments[n] for n in self._names)

    def _new_plan(self, values: Sequence[Any], out: Any) -> launch.Plan:
        self._complex = self._complex or any(isinstance(v, torch.Tensor) and v.is_complex() for v in values)
        if self._before_call is not None:
            self._before_call(dict(zip(self._names, values)))
        named, tree = self._flatten(self.reference, dict(zip(self._names, values)))
        for name, value in named.items():
            contract.check_kind(name, value)
        if not named:
            raise ArgumentError(f"{self.name}: expected tensors, given none")
        with self._compiling:
            return debug.watched(self._plan(named, tree, out))

    def _remember(self, key: tuple[Any, ...], plan: launch.Plan) -> None:
        if len(self._plans) >= PLANS:
            self._plans.clear()
        if self._before_call is None:
            self._plans[key] = plan

    def _plan(self, named: dict[str, torch.Tensor], tree: Any, out: Any) -> launch.Plan:
        raise NotImplementedError


Recapture = Callable[[Mapping[str, torch.Tensor]], Graph]
Announce = Callable[[str], None]
Compile = Callable[[Graph, str, Mapping[str, int], Announce], Kernel]


class Artifact(Dispatcher):
    """A compiled function of fixed dtypes and static sizes, callable on CUDA tensors.

    It holds a kernel per architecture, and further variants for other strides or poorer alignment: those that it was prepared for,
    and others that are compiled when a call first needs them (with a line in the log; where it is strict, or under FUSEC_STRICT=1,
    an error). archs: those it was compiled for; None: any device's, when needed.
    """

    def __init__(self, fn: Callable[..., Any], graph: Graph, example: Mapping[str, Any], kernels: Sequence[Kernel],
                 compile: Compile, recapture: Recapture, archs: tuple[str, ...] | None, flatten: Flatten,
                 strict: bool = False) -> None:
        super().__init__(fn, flatten)
        self.strict = strict
        self._prepared: list[Kernel] = []
        self._why: dict[tuple[Any, ...], str] = {}
        self.name, self.archs = graph.name, archs
        self.given = dict(example)
        self.example, self._tree = flatten(fn, example)
        self._graphs: dict[tuple[Any, ...], Graph] = {_strides(graph): graph}
        self._kernels: dict[tuple[Any, ...], Kernel] = {(_strides(graph), k.arch, ()): k for k in kernels}
        self._compile, self._recapture = compile, recapture

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Every kernel compiled so far: those asked for first, then variants in the order they were needed."""
        return tuple(self._kernels.values())

    def prepare(self, variant: Variant) -> tuple[Kernel, ...]:
        """The kernels, one per architecture, that calls like the variant (see runtime.variants) will take; compiled now. Calls that
        a prepared kernel can take, and the usual one cannot, need no compilation."""
        tensors, alignment = variants.resolve(variant, self.graph, self.example)
        graph, _ = self._graph_for(tensors)
        found = tuple(self._kernel(graph, arch, tensors, alignment) for arch in self.archs or ())
        self._prepared += found
        return found

    @property
    def graph(self) -> Graph:
        """The graph it was compiled from first."""
        return next(iter(self._graphs.values()))

    @property
    def constants(self) -> dict[str, Any]:
        """The arguments that it was compiled for by value."""
        return {n: v for n, v in self._tree.items() if n not in self.example}

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the graph's symbols in the example."""
        found: dict[str, int] = {}
        contract.check_shapes(self.graph.arguments, self.example, found)
        return found

    def __repr__(self) -> str:
        return f"<fusec artifact {self.name}: {', '.join(f'{k.name} for {k.arch}' for k in self.kernels) or 'no kernel yet'}>"

    def check_call(self, named: Mapping[str, torch.Tensor], tree: Any) -> None:
        """Raise ArgumentError where dtypes, sizes or constants of a call are not those it was compiled for; strides may differ."""
        self._check_constants(tree)
        try:
            contract.check_shapes(self.graph.arguments, named, {})
        except contract.LayoutError:
            pass

    def agreement(self, named: Mapping[str, torch.Tensor]) -> int:
        """How many tensors of a call have the dtype and the sizes it was compiled for."""
        def fits(a: Argument) -> bool:
            t = named.get(a.name)
            return t is not None and t.dtype == TORCH_DTYPE[a.dtype] and t.dim() == len(a.shape) and all(
                given == extent or not isinstance(extent, int) for given, extent in zip(t.shape, a.shape))
        return sum(map(fits, self.graph.arguments))

    def _plan(self, named: dict[str, torch.Tensor], tree: Any, out: Any) -> launch.Plan:
        self._check_constants(tree)
        if self.device_type == "cuda" and not torch.cuda.is_available():
            device_arch(torch.device("cuda"))
        contract.check_gradients(named)
        device = contract.check_devices(named, self.device_type)
        graph, sizes = self._graph_for(named)
        outputs = launch.unpack_outputs(graph, out, named) if out is not None else {}
        contract.check_shapes([a for a in graph.fresh if a.name in outputs], outputs, sizes)
        everything = {**named, **outputs}
        contract.check_devices(everything, self.device_type)
        names = (*named, *(a.name for a in graph.fresh))
        apart = _check_memory(everything, (*graph.mutated, *outputs), names)
        allocations = tuple((tuple(e if isinstance(e, int) else sizes[str(e)] for e in a.shape), TORCH_DTYPE[a.dtype])
                            for a in graph.fresh)
        launches = self._launches(graph, everything, names, sizes, device)
        return launch.Plan(device, launches, allocations, apart, names, {n: contract.view(t) for n, t in everything.items()},
                           launch.returned(graph, names), launch.packer(graph), graph,
                           any(t.requires_grad for t in named.values()))

    def _check_constants(self, tree: Mapping[str, Any]) -> None:
        for name, expected in self._tree.items():
            given = tree.get(name)
            if type(given) is not type(expected) or repr(given) != repr(expected):
                wanted = "a tensor" if name in self.example else f"{expected!r}, which it was compiled for"
                found = "a tensor" if type(given).__name__ == "Slot" else repr(given)
                raise ArgumentError(f"argument {name}: expected {wanted}, given {found}",
                                    hint="" if name in self.example else "compile another artifact for it, or use @fusec.fuse")

    def _graph_for(self, named: Mapping[str, torch.Tensor]) -> tuple[Graph, dict[str, int]]:
        """The graph whose strides fit, captured anew where none does, and the sizes of its symbols."""
        refusals = []
        for graph in self._graphs.values():
            sizes: dict[str, int] = {}
            try:
                contract.check_shapes(graph.arguments, named, sizes)
                return graph, sizes
            except contract.LayoutError as error:
                refusals.append(error.message)
        try:
            graph, sizes = self._recapture(named), {}
        except (FusecError, RuntimeError) as error:
            raise ArgumentError(refusals[0], hint=f"the function cannot take other strides: {error}") from error
        contract.check_shapes(graph.arguments, named, sizes)
        self._why[_strides(graph)] = refusals[0]
        self._graphs[_strides(graph)] = graph
        return graph, sizes

    def _launches(self, graph: Graph, everything: Mapping[str, torch.Tensor], names: Sequence[str], sizes: Mapping[str, int],
                  device: torch.device) -> tuple[tuple[launch.Loaded, tuple[int, ...]], ...]:
        if graph.rows is not None and sizes.get(graph.rows) == 0:
            return ()
        kernel = self._kernel(graph, self._arch(device), everything, None)
        if not launch.check_grid(kernel.grid, sizes):
            return ()
        return ((kernel.loaded, tuple(names.index(p.name) for p in kernel.parameters)),)

    def _arch(self, device: torch.device) -> str:
        arch = device_arch(device)
        if self.archs is not None and arch not in self.archs:
            raise TargetError(f"{self.name}: expected a kernel for {arch} ({device}), found kernels for {', '.join(self.archs)}",
                              hint=f"compile with arch={arch!r}")
        return arch

    def _kernel(self, graph: Graph, arch: str, tensors: Mapping[str, torch.Tensor], ahead: Mapping[str, int] | None) -> Kernel:
        """The kernel for an architecture that takes these tensors as they lie, compiled where there is none yet.

        ahead: the alignment that is asked for where no call needs it yet; None for a call, which is content with what is prepared.
        """
        alignment = dict(ahead or {})
        while True:
            place = (_strides(graph), arch, tuple(sorted(alignment.items())))
            if place not in self._kernels:
                ready = [k for k in self._prepared if k.arch == arch and k.graph == graph and not k.takes(tensors)]
                if ready and ahead is None:
                    return max(ready, key=lambda k: sum(p.align for p in k.parameters))
                why = self._why.get(_strides(graph), "")
                announce = functools.partial(self._announce, alignment, why) if ahead is None else _unsaid
                self._kernels[place] = self._compile(graph, arch, alignment, announce)
            poor = self._kernels[place].takes(tensors)
            if not poor:
                return self._kernels[place]
            for name, given in poor.items():
                if alignment.get(name, given + 1) <= given:
                    raise ArgumentError(f"argument {name}: expected data that a kernel can read, given an address or strides "
                                        f"aligned to {given} bytes only")
            alignment |= poor

    def _announce(self, alignment: Mapping[str, int], strides: str, what: str) -> None:
        """Say that a call compiles, or raise where that is not allowed now. strides: how those of the call differ."""
        why = f"; {strides}" if strides else ""
        why += "".join(f"; {n} is aligned to {b} bytes" for n, b in alignment.items())
        if strict() or self.strict:
            forbids = "FUSEC_STRICT forbids" if strict() else "its strict=True forbids"
            raise ArgumentError(f"{self.name}: this call would compile {what}{why}, which {forbids}",
                                hint="compile it ahead of the service: fusec.compile(…, variants=…) or `fusec compile --variant …`")
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise ArgumentError(f"{self.name}: this call would compile {what}{why}, impossible while a CUDA graph is captured",
                                hint="call it once with such tensors before the capture")
        log(f"{self.name}: compiling {what}{why}")


def _check_memory(tensors: Mapping[str, torch.Tensor], written: Sequence[str],
                  names: Sequence[str]) -> tuple[tuple[int, int, int, int], ...]:
    """Check that what is written holds each element once and lies apart from all else; the pairs that each call looks at again."""
    views = {n: contract.view(t) for n, t in tensors.items()}
    contract.check_written(written, views)
    apart = launch.pairs(views, names, written)
    for i, j, before, after in apart:
        distance = tensors[names[j]].data_ptr() - tensors[names[i]].data_ptr()
        if before < distance < after:
            contract.check_apart(names[i], names[j], views, distance)
    return apart


def _unsaid(what: str) -> None:
    """Nothing is said of what was asked for."""


def _strides(graph: Graph) -> tuple[Any, ...]:
    return tuple((a.name, a.strides) for a in graph.arguments)
