"""Executing an emitted file: its fake `cutlass`, its entry, its launches over the grid in chunks of blocks."""
from __future__ import annotations

import ast
import contextlib
import importlib
import math
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from ..ir.kernel import Parameter
from ..target import TARGETS
from . import control, numeric
from .clusters import grouped
from .lockstep import NAMES as CLUSTERED
from .lockstep import Clusters, fits
from .machine import FILE, Log, Machine, current, executing
from .memory import GlobalMemory, Placed
from .numeric import Array, EmulationError, Int32, Int64, Numeric
from .rewrite import RUNTIME, rewrite
from .strands import NAMES as MEETING
from .strands import Team
from .subset import BUILTINS, NAMES
from .tensors import Layout, Pointer, Tensor

LANES_AT_ONCE = 1 << 13
GRID_YZ = 65535
_RUN = threading.local()


class Marker:
    """An object of the DSL that only selects an instruction's flavour."""


def jit(fn: Callable[..., Any]) -> Callable[..., Any]:
    """@cute.jit: rewriting has done it."""
    return fn


class Kernel:
    """@cute.kernel: called with its arguments, launched over a grid."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn

    def __call__(self, *args: Any) -> "Launch":
        return Launch(self.fn, args)

    def set_name_prefix(self, prefix: str, remove_cutlass_symbol: bool = False) -> None:
        """The symbol's name, which nothing here needs."""


class Launch:
    """A kernel with arguments."""

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.fn, self.args = fn, args

    def launch(self, *, grid: Any, block: Any, cluster: Any = None, smem: int | None = None, stream: Any = None,
               **options: Any) -> None:
        """Run all blocks."""
        run: Run = _RUN.now
        run.launch(self.fn, self.args, tuple(map(_size, grid)), tuple(map(_size, block)), smem,
                   (1, 1, 1) if cluster is None else tuple(map(_size, cluster)))


def _size(x: Any) -> int:
    return int(x.value) if isinstance(x, Numeric) else int(x)


class Run:
    """One emulated call: findings, counts, and how its blocks are run."""

    def __init__(self, source: str, arch: str, counting: bool, lanes: int = LANES_AT_ONCE,
                 only: tuple[range | None, ...] = (), dependent: Collection[str] = ()) -> None:
        self.dependent = frozenset(dependent)
        self.log = Log(source.splitlines())
        self.arch, self.counting, self.lanes, self.only = arch, counting, lanes, only
        self.memories: list[GlobalMemory] = []
        self.blocks = self.smem = 0
        self.way = way_of(source)

    def launch(self, fn: Callable[..., Any], args: tuple[Any, ...], grid: tuple[int, ...], block: tuple[int, ...],
               smem: int | None, cluster: tuple[int, ...] = (1, 1, 1)) -> None:
        """All blocks of a grid, chunk after chunk."""
        if len(grid) != 3 or len(block) != 3:
            raise EmulationError("grid and block have three sizes")
        numbers, threads = self._numbers(grid), math.prod(block)
        if not 0 < threads <= TARGETS[self.arch].threads_block:
            raise EmulationError(f"{threads} threads a block")
        if grid[0] >= 2**31 or max(grid[1:]) > GRID_YZ:
            raise EmulationError(f"grid {grid}: at most 2^31 - 1 blocks along x, {GRID_YZ} along y and z")
        self.blocks += len(numbers)
        step, size, make = max(1, self.lanes // threads), math.prod(cluster), self.way
        if make is Machine and size > 1:
            make = Clusters
        if make is not Machine:
            numbers = grouped(numbers, grid, cluster)
            step = size if make is Team else max(size, step // size * size)
        for chunk in (numbers[i:i + step] for i in range(0, len(numbers), step)):
            machine = make(self.log, grid, block, chunk, self.arch, self.counting, *((size,) if make is Clusters else ()))
            machine.launch_smem, machine.cluster_shape = smem, cluster
            for memory in self.memories:
                memory.begin(machine)
            run_blocks(machine, fn, args)
            self.smem = max(self.smem, machine.shared.nbytes if machine.shared else 0)
        for memory in self.memories:
            memory.finish(self.log)


    def _numbers(self, grid: tuple[int, ...]) -> Array:
        """The blocks to run, x fastest."""
        chosen = [self.only[d] if d < len(self.only) else None for d in range(3)]
        x, y, z = (np.arange(n) if c is None else np.asarray(c, np.int64) for n, c in zip(grid, chosen, strict=True))
        return (z[:, None, None] * grid[0] * grid[1] + y[:, None] * grid[0] + x).reshape(-1)


def way_of(source: str) -> type[Machine]:
    """How the kernels of a source are run: in lockstep, as clusters in lockstep where blocks meet at nothing but their barrier and
    the cluster's, each warp as a strand of its own where they meet elsewhere."""
    tree = ast.parse(source)
    found = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    found |= {a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for a in n.names}
    found &= set(MEETING)
    if not found:
        return Machine
    return Clusters if found <= set(CLUSTERED) and fits(tree) else Team


def run_blocks(machine: Machine, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """One chunk, from the first statement to the last; what goes wrong inside names its line."""
    def contraction(differ: Array) -> None:
        machine = current()
        lanes = np.broadcast_to(differ.any(0) if differ.ndim > 2 else differ, machine.shape) & machine.active()
        if lanes.any():
            what = "a product and a sum, which joined into one fma give another result"
            machine.find("contraction", f"{what} at {machine.where(lanes)}", int(lanes.sum()))
    numeric.contraction.append(contraction)
    try:
        if isinstance(machine, Team):
            machine.run(fn, args)
        else:
            with executing(machine):
                fn(*args)
            machine.finish()
    except EmulationError as error:
        raise EmulationError(f"line {_line_of(error)}: {error}") from error
    finally:
        numeric.contraction.pop()


def _line_of(error: BaseException) -> int:
    """The kernel's line in a traceback: the outermost emitted frame below run_blocks."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == FILE:
            return trace.tb_lineno
        trace = trace.tb_next
    return 0


# ---- the module -----------------------------------------------------------------------------------------------------------------

class _Namespace(SimpleNamespace):
    """A module of the subset; a name it lacks is outside of it."""

    def __getattr__(self, name: str) -> Any:
        raise EmulationError(f"{name} is outside of the subset that is emulated")

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


def namespace() -> Any:
    """The fake `cutlass`, from the table of the subset."""
    root = _Namespace()
    for full, name in NAMES.items():
        at = root
        for part in full.split(".")[1:-1]:
            if part not in vars(at):
                setattr(at, part, _Namespace())
            at = getattr(at, part)
        setattr(at, full.rsplit(".", 1)[1], _implementation(name.implementation))
    return root


def _implementation(text: str) -> Any:
    if text.startswith("="):
        return text[1:]
    module, _, name = text.partition(":")
    return getattr(importlib.import_module(f".{module}", __package__), name)


def _builtins(root: Any) -> dict[str, Any]:
    import builtins

    def load(name: str, scope: Any = None, local: Any = None, fromlist: Sequence[str] = (), level: int = 0) -> Any:
        parts = name.split(".")
        if parts[0] != "cutlass":
            raise EmulationError(f"import of {name}: emitted files import cutlass only")
        found = root
        for part in parts[1:]:
            found = getattr(found, part)
        return found if fromlist else root
    return {**{n: getattr(builtins, n) for n in BUILTINS}, "__import__": load}


def load_module(source: str) -> dict[str, Any]:
    """The globals of an emitted file after its execution. The source itself is not changed."""
    code = compile(rewrite(source), FILE, "exec")
    scope: dict[str, Any] = {"__name__": "emitted", "__builtins__": _builtins(namespace()), RUNTIME: control}
    exec(code, scope)
    return scope


def entry_of(source: str) -> ast.FunctionDef:
    """The function that launches: the last @cute.jit function with a `.launch(` in it."""
    def launches(n: ast.AST) -> bool:
        return isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == "launch"
    found = [n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and any(map(launches, ast.walk(n)))]
    if not found:
        raise EmulationError("no function of the source launches a kernel")
    return found[-1]


# ---- arguments ------------------------------------------------------------------------------------------------------------------

def argument(memory: GlobalMemory, parameter: Parameter | None, log: Log) -> Tensor:
    """A tensor argument as the kernel sees it: static sizes and strides as Python ints, the others as run-time values."""
    shape: list[Any] = [Int32(n) for n in memory.shape]
    stride: list[Any] = [1 if s == 1 else Int64(s) for s in memory.strides]
    align = math.gcd(memory.base, 1 << 8)
    if parameter is not None:
        shape = [n if isinstance(n, int) else Int32(found) for n, found in zip(parameter.shape, memory.shape, strict=True)]
        stride = [Int64(found) if s is None else s for s, found in zip(parameter.strides, memory.strides, strict=True)]
        align = parameter.align
        _check_fit(memory, parameter, log)
    return Tensor(Pointer(memory, 0, memory.dtype, align), Layout(tuple(shape), tuple(stride)))


def _check_fit(memory: GlobalMemory, p: Parameter, log: Log) -> None:
    """EmulationError where a tensor is not what the kernel was made for: the runtime would refuse it."""
    fits = memory.dtype.short == p.dtype and len(memory.shape) == len(p.shape)
    for n, s, size, step in zip(p.shape, p.strides, memory.shape, memory.strides, strict=False):
        fits &= (not isinstance(n, int) or n == size) and (s is None or s == step or size <= 1)
    if not fits or memory.base % p.align:
        found = f"{memory.dtype} {memory.shape} strides {memory.strides} at {memory.base:#x}"
        raise EmulationError(f"argument {p.name}: expected {p}, found {found}")


@contextlib.contextmanager
def running(run: Run) -> Iterator[None]:
    """Make launches of this thread belong to a run."""
    before = getattr(_RUN, "now", None)
    _RUN.now = run
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        _RUN.now = before


def call(run: Run, source: str, tensors: Mapping[str, torch.Tensor | Placed | int | float],
         parameters: Sequence[Parameter] = ()) -> None:
    """Execute the file and call its entry with arguments by name; `stream` is given nothing."""
    known = {p.name: p for p in parameters}
    by_position = list(parameters)
    with running(run):
        scope = load_module(source)
        entry = entry_of(source)
        given: list[Any] = []
        names = [a.arg for a in entry.args.args if a.arg != "stream"]
        for number, name in enumerate(names):
            p = known.get(name) or (by_position[number] if number < len(by_position) else None)
            value = tensors[p.name if p is not None else name]
            if isinstance(value, (torch.Tensor, Placed)):
                memory = GlobalMemory(name, value, number)
                memory.dependent = name in run.dependent
                run.memories.append(memory)
                given.append(argument(memory, p, run.log))
            else:
                given.append(value)
        extra = [None] if any(a.arg == "stream" for a in entry.args.args) else []
        scope[entry.name](*given, *extra)
