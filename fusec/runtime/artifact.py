"""What a caller holds: kernels with everything known about them, and callables that find the right one for the tensors of a call."""
from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..errors import ArgumentError, FusecError, TargetError
from ..ir.graph import Graph
from ..ir.kernel import KernelSpec, Parameter
from ..ir.plan import Schedule
from ..log import log
from ..options import strict
from . import contract, launch

if TYPE_CHECKING:
    from ..passes.pipeline import Stages


@dataclass(frozen=True)
class Kernel:
    """One compiled kernel of one function for one architecture.

    parameters, grid, threads, smem_bytes: as launched. resources: what the assembler reported (registers, spills, barriers, …).
    seconds: what its compile took, 0 where it came from the store. `object`: the file that is loaded. `replan` makes its stages again.
    """

    function: str
    name: str
    arch: str
    key: str
    numerics: str
    parameters: tuple[Parameter, ...]
    grid: tuple[tuple[int | str, ...], ...]
    threads: int
    smem_bytes: int
    resources: Mapping[str, Any]
    seconds: float
    entry: str
    object: Path
    replan: Callable[[], Stages]

    @cached_property
    def stages(self) -> Stages:
        """Every level from the captured graph to the source, made again where the object came from the store."""
        return self.replan()

    @property
    def source(self) -> str:
        """The emitted file."""
        return self.stages.need("source")

    @property
    def spec(self) -> KernelSpec:
        return self.stages.need("kernel")

    @property
    def plan(self) -> Schedule:
        return self.stages.need("schedule")

    @property
    def graph(self) -> Graph:
        return self.stages.need("graph")

    @cached_property
    def loaded(self) -> launch.Loaded:
        """The function of the object, on this process' device. BuildError where what loads it is missing."""
        from ..codegen.load import load
        return load(self.object, self.entry)

    def takes(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
        """The tensors (by name) that are less aligned than this kernel wants, with the bytes they are aligned to."""
        poor = {}
        for p in self.parameters:
            t = tensors.get(p.name)
            if t is None or t.numel() == 0:
                continue
            free = [s is None for s in p.strides]
            divisible = p.divisible or (1,) * len(free)
            fits = t.data_ptr() % p.align == 0
            for stride, extent, counts, by in zip(t.stride(), t.shape, free, divisible):
                fits = fits and (not counts or extent < 2 or stride % by == 0)
            if not fits:
                poor[p.name] = min(contract.alignment(t, free), max(p.align, max(divisible) * t.element_size()))
        return poor


def device_arch(device: torch.device) -> str:
    """The architecture of a CUDA device; TargetError where there is none or fusec does not know it."""
    if not torch.cuda.is_available():
        raise TargetError("no CUDA device: kernels can be compiled here (arch=…) but not run")
    from ..target import of_capability
    major, minor = torch.cuda.get_device_capability(device)
    return of_capability(major, minor, torch.cuda.get_device_name(device))


class Dispatcher:
    """A callable over a plain function's signature that keeps one launch plan per combination of layouts."""

    device_type = "cuda"

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.reference = fn
        self.signature = inspect.signature(fn)
        for p in self.signature.parameters.values():
            if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                raise FusecError(f"{fn.__name__}: expected named parameters, found {p}", hint="write the parameters out")
        self._names = tuple(self.signature.parameters)
        self._plans: dict[tuple[Any, ...], launch.Plan] = {}
        self._compiling = threading.RLock()

    def __call__(self, *args: Any, out: Any = None, **kwargs: Any) -> Any:
        """Run the step on CUDA tensors; returns what the function returns, in fresh tensors or in `out`.

        Raises ArgumentError before anything is written where an argument does not fit, TargetError without a device or kernel.
        """
        values = args if not kwargs and len(args) == len(self._names) else self._bind(args, kwargs)
        tensors, key, recording = [], [], torch.is_grad_enabled()
        for v in values:
            if isinstance(v, torch.Tensor):
                tensors.append(v)
                key.append((v.__class__, v.shape, v.stride(), v.dtype, v.get_device(), v.data_ptr() & 31, recording and v.requires_grad))
            else:
                key.append((v.__class__, _hashable(v)))
        if out is not None:
            return self._call_into(out, values, tensors, key)
        plan = self._plans.get(found := tuple(key))
        if plan is None:
            plan = self._plans[found] = self._new_plan(values, None)
        return plan.run(tensors, ())

    def _call_into(self, out: Any, values: Sequence[Any], tensors: list[torch.Tensor], key: list[Any]) -> Any:
        leaves = list(out.values()) if isinstance(out, dict) else list(out) if isinstance(out, (tuple, list)) else [out]
        for t in leaves:
            contract.check_kind("out", t)
            key.append((t.shape, t.stride(), t.dtype, t.get_device(), t.data_ptr() & 31, [t is v for v in tensors].count(True)))
        key.append((type(out), tuple(out) if isinstance(out, dict) else None))
        plan = self._plans.get(found := tuple(key))
        if plan is None:
            plan = self._plans[found] = self._new_plan(values, out)
        named = dict(zip(plan.names, tensors))
        given = launch.unpack_outputs(plan.graph, out, named)
        return plan.run(tensors, [given[a.name] for a in plan.graph.fresh])

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ArgumentError(f"{self.reference.__name__}: {error}") from None
        bound.apply_defaults()
        return tuple(bound.arguments.values())

    def _new_plan(self, values: Sequence[Any], out: Any) -> launch.Plan:
        named = {n: contract.check_kind(n, v) for n, v in zip(self._names, values) if isinstance(v, torch.Tensor)}
        constants = {n: v for n, v in zip(self._names, values) if not isinstance(v, torch.Tensor)}
        with self._compiling:
            return self._plan(named, constants, out)

    def _plan(self, named: dict[str, torch.Tensor], constants: dict[str, Any], out: Any) -> launch.Plan:
        raise NotImplementedError


def _hashable(value: Any) -> Any:
    try:
        hash(value)
        return value
    except TypeError:
        return repr(value)


Recapture = Callable[[Mapping[str, torch.Tensor]], Graph]
Compile = Callable[[Graph, str, Mapping[str, int]], Kernel]


class Artifact(Dispatcher):
    """A compiled function of fixed dtypes and static sizes, callable on CUDA tensors.

    It holds a kernel per architecture, and further variants for other strides or poorer alignment, compiled when a call first needs
    them (with a line in the log; under FUSEC_STRICT=1 an error).
    """

    def __init__(self, fn: Callable[..., Any], graph: Graph, constants: Mapping[str, Any], kernels: Sequence[Kernel],
                 compile: Compile, recapture: Recapture) -> None:
        super().__init__(fn)
        self.name = graph.name
        self.constants = dict(constants)
        self._graphs: dict[tuple[Any, ...], Graph] = {_strides(graph): graph}
        self._kernels: dict[tuple[Any, ...], Kernel] = {(_strides(graph), k.arch, ()): k for k in kernels}
        self._compile, self._recapture = compile, recapture

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Every kernel compiled so far: those asked for first, then variants in the order they were needed."""
        return tuple(self._kernels.values())

    @property
    def graph(self) -> Graph:
        """The graph it was compiled from first."""
        return next(iter(self._graphs.values()))

    @property
    def archs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(k.arch for k in self._kernels.values()))

    def __repr__(self) -> str:
        return f"<fusec artifact {self.name}: {len(self._kernels)} kernels for {', '.join(self.archs)}>"

    def _arch(self, device: torch.device) -> str:
        arch = device_arch(device)
        if arch not in self.archs:
            raise TargetError(f"{self.name}: expected a kernel for {arch} ({device}), found kernels for {', '.join(self.archs)}",
                              hint=f"compile with arch={arch!r}")
        return arch

    def _plan(self, named: dict[str, torch.Tensor], constants: dict[str, Any], out: Any) -> launch.Plan:
        self._check_constants(constants)
        if self.device_type == "cuda" and not torch.cuda.is_available():
            device_arch(torch.device("cuda"))
        contract.check_gradients(named)
        device = contract.check_devices(named, self.device_type)
        graph, sizes = self._graph_for(named)
        outputs = launch.unpack_outputs(graph, out, named) if out is not None else {}
        contract.check_shapes([a for a in graph.fresh if a.name in outputs], outputs, sizes)
        everything = {**named, **outputs}
        contract.check_devices(everything, self.device_type)
        views = {n: contract.view(t) for n, t in everything.items()}
        written = (*graph.mutated, *outputs)
        contract.check_written(written, views)
        names = (*named, *(a.name for a in graph.fresh))
        apart = launch.pairs(views, names, written)
        for i, j, before, after in apart:
            a, b = names[i], names[j]
            if before < (distance := everything[b].data_ptr() - everything[a].data_ptr()) < after:
                contract.check_apart(a, b, views, distance)
        allocations = tuple((tuple(e if isinstance(e, int) else sizes[str(e)] for e in a.shape), contract.DTYPES[a.dtype])
                            for a in graph.fresh)
        return launch.Plan(device, self._launches(graph, everything, names, sizes, device), allocations, apart, names, views,
                           launch.returned(graph, names), launch.packer(graph.structure), graph)

    def _check_constants(self, constants: Mapping[str, Any]) -> None:
        for name, value in constants.items():
            if name not in self.constants:
                raise ArgumentError(f"argument {name}: expected a tensor, given {type(value).__name__}")
        for name, expected in self.constants.items():
            if name not in constants:
                raise ArgumentError(f"argument {name}: expected {expected!r}, which it was compiled for, given a tensor")
            given = constants[name]
            if type(given) is not type(expected) or repr(given) != repr(expected):
                raise ArgumentError(f"argument {name}: expected {expected!r}, which it was compiled for, given {given!r}",
                                    hint="compile another artifact for it, or decorate the function with @fusec.fuse")

    def _graph_for(self, named: Mapping[str, torch.Tensor]) -> tuple[Graph, dict[str, int]]:
        """The graph whose strides fit, captured anew where none does, and the sizes of its symbols."""
        refusal: contract.LayoutError | None = None
        for graph in self._graphs.values():
            sizes: dict[str, int] = {}
            try:
                contract.check_shapes(graph.arguments, named, sizes)
                return graph, sizes
            except contract.LayoutError as error:
                refusal = refusal or error
        assert refusal is not None
        self._may_compile(f"another layout ({refusal.message})", refusal)
        graph = self._recapture(named)
        sizes = {}
        contract.check_shapes(graph.arguments, named, sizes)
        self._graphs[_strides(graph)] = graph
        return graph, sizes

    def _launches(self, graph: Graph, everything: Mapping[str, torch.Tensor], names: Sequence[str], sizes: Mapping[str, int],
                  device: torch.device) -> tuple[tuple[launch.Loaded, tuple[int, ...]], ...]:
        if graph.rows is not None and sizes.get(graph.rows) == 0:
            return ()
        kernel = self._kernel(graph, self._arch(device), everything)
        if not launch.check_grid(kernel.grid, sizes):
            return ()
        return ((kernel.loaded, tuple(names.index(p.name) for p in kernel.parameters)),)

    def _kernel(self, graph: Graph, arch: str, tensors: Mapping[str, torch.Tensor]) -> Kernel:
        """The kernel for an architecture that takes these tensors as they lie, compiled where there is none yet."""
        strides, alignment = _strides(graph), {}
        for _ in range(2 + len(tensors)):
            kernel = self._kernels.get((strides, arch, tuple(sorted(alignment.items()))))
            if kernel is None:
                why = ", ".join(f"{n} is aligned to {b} bytes" for n, b in alignment.items()) or f"strides or architecture {arch}"
                self._may_compile(f"a variant ({why})", None)
                kernel = self._compile(graph, arch, alignment)
                self._kernels[strides, arch, tuple(sorted(alignment.items()))] = kernel
            poor = kernel.takes(tensors)
            if not poor:
                return kernel
            if all(alignment.get(n, 1 << 30) <= b for n, b in poor.items()):
                break
            alignment = {**alignment, **{n: min(b, alignment.get(n, b)) for n, b in poor.items()}}
        name = next(iter(poor))
        raise ArgumentError(f"argument {name}: expected data that its kernel can read, given an address or strides aligned to "
                            f"{poor[name]} bytes only")

    def _may_compile(self, what: str, refusal: FusecError | None) -> None:
        if strict():
            raise ArgumentError(f"{self.name}: this call needs {what}, and FUSEC_STRICT forbids to compile it now") from refusal
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            raise ArgumentError(f"{self.name}: this call needs {what}, which cannot be compiled while a CUDA graph is captured",
                                hint="call it once with such tensors before the capture") from refusal
        log(f"{self.name}: compiling {what}")


def _strides(graph: Graph) -> tuple[Any, ...]:
    return tuple((a.name, a.strides) for a in graph.arguments)
