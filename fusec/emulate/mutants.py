"""Faults planted into an emitted source, one at a time, to show that the emulator notices them.

Kinds: a barrier deleted, a shared buffer shrunk, two neighbouring statements that depend on each other swapped, a 64-bit product
made 32-bit, a predicate dropped. Only the kernel function is touched, and the launch's shared memory.
"""
from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..ir.kernel import Parameter
from .api import emulate
from .memory import Placed
from .rewrite import is_kernel

Inputs = Callable[[], "Case"]
"""Makes the same case anew at each call."""


@dataclass(frozen=True, slots=True)
class Case:
    """Arguments by name, and which blocks of the grid to run."""

    tensors: Mapping[str, torch.Tensor | Placed]
    blocks: tuple[range | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Mutant:
    """A changed source. line: of the original; what: the change in words."""

    kind: str
    line: int
    what: str
    source: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """caught: how a mutant was noticed (a finding's kind, "result", "refused"), '' for a survivor."""

    mutant: Mutant
    caught: str

    def __str__(self) -> str:
        how = f"caught by {self.caught}" if self.caught else "SURVIVED"
        return f"{self.mutant.kind} at line {self.mutant.line} ({self.mutant.what}): {how}"


# ---- planting -------------------------------------------------------------------------------------------------------------------

def mutants(source: str) -> Iterator[Mutant]:
    """All mutants of a source, in the order of its lines within each kind."""
    tree = ast.parse(source)
    for plant in (_barriers, _buffers, _swaps, _products, _predicates):
        yield from plant(tree)


def _kernel(tree: ast.Module) -> ast.FunctionDef:
    return next(n for n in tree.body if isinstance(n, ast.FunctionDef) and is_kernel(n))


def _changed(tree: ast.Module, find: Callable[[ast.Module], Any], change: Callable[[Any], None]) -> str:
    """The text of a copy of the tree in which `change` was applied to what `find` finds."""
    made = copy.deepcopy(tree)
    change(find(made))
    return ast.unparse(ast.fix_missing_locations(made))


def _bodies(tree: ast.Module) -> list[list[ast.stmt]]:
    """All statement lists of the kernel, outermost first."""
    found: list[list[ast.stmt]] = []
    for node in ast.walk(_kernel(tree)):
        for name in ("body", "orelse"):
            body = getattr(node, name, None)
            if isinstance(body, list) and body:
                found.append(body)
    return found


def _is_barrier(s: ast.stmt) -> bool:
    return isinstance(s, ast.Expr) and _called(s.value) == "sync_threads"


def _called(e: ast.AST) -> str:
    if not isinstance(e, ast.Call):
        return ""
    return e.func.attr if isinstance(e.func, ast.Attribute) else e.func.id if isinstance(e.func, ast.Name) else ""


def _barriers(tree: ast.Module) -> Iterator[Mutant]:
    for b, body in enumerate(_bodies(tree)):
        for i, s in enumerate(body):
            if _is_barrier(s):
                def drop(found: list[ast.stmt], i: int = i) -> None:
                    found[i] = ast.Pass()
                yield Mutant("barrier", s.lineno, "deleted", _changed(tree, lambda t, b=b: _bodies(t)[b], drop))  # type: ignore[misc]


def _buffers(tree: ast.Module) -> Iterator[Mutant]:
    def calls(t: ast.Module) -> list[ast.Call]:
        return [n for n in ast.walk(_kernel(t)) if isinstance(n, ast.Call) and _called(n) == "shared"]

    def shrink(call: ast.Call) -> None:
        call.args[-1] = ast.BinOp(call.args[-1], ast.Sub(), ast.Constant(1))
    for i, call in enumerate(calls(tree)):
        text = _changed(tree, lambda t, i=i: calls(t)[i], shrink)  # type: ignore[misc]
        yield Mutant("buffer", call.lineno, f"{ast.unparse(call)} one element shorter", text)

    def total(t: ast.Module) -> ast.Assign | None:
        return next((n for n in t.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "SMEM_BYTES"), None)

    def less(node: ast.Assign) -> None:
        node.value = ast.BinOp(node.value, ast.Sub(), ast.Constant(4))
    size = total(tree)
    if size is not None:
        yield Mutant("buffer", size.lineno, "shared memory 4 bytes smaller", _changed(tree, total, less))


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and n.id != "_"}


def _written(s: ast.stmt) -> set[str]:
    """Names that a statement writes: assigned ones, tensors stored to, targets of copies."""
    found: set[str] = set()
    for n in ast.walk(s):
        if isinstance(n, (ast.Assign, ast.AugAssign, ast.For)):
            for t in n.targets if isinstance(n, ast.Assign) else [n.target]:
                while isinstance(t, ast.Subscript):
                    t = t.value
                found |= _names(t)
        elif isinstance(n, ast.Expr) and isinstance(n.value, ast.Call):
            call = n.value
            if isinstance(call.func, ast.Attribute) and call.func.attr in ("fill", "store"):
                found |= _names(call.func.value)
            elif call.args:
                found |= _names(call.args[-1])
    return found


def _touches_shared(s: ast.stmt) -> bool:
    return any(len(n) > 1 and n[0] == "s" and n[1].isupper() for n in _names(s))


def _dependent(first: ast.stmt, second: ast.stmt) -> bool:
    if _is_barrier(first) or _is_barrier(second):
        return _touches_shared(first) or _touches_shared(second)
    mine, other = _written(first), _written(second)
    return bool(mine & _names(second) or other & _names(first))


def _swaps(tree: ast.Module) -> Iterator[Mutant]:
    for b, body in enumerate(_bodies(tree)):
        for i, (first, second) in enumerate(zip(body, body[1:], strict=False)):
            if _dependent(first, second):
                def swap(found: list[ast.stmt], i: int = i) -> None:
                    found[i], found[i + 1] = found[i + 1], found[i]
                text = _changed(tree, lambda t, b=b: _bodies(t)[b], swap)  # type: ignore[misc]
                yield Mutant("swap", first.lineno, f"with line {second.lineno}", text)


def _wide(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and any(
        _called(n) == "Int64" or (isinstance(n, ast.Subscript) and isinstance(n.value, ast.Attribute) and n.value.attr == "stride")
        for n in ast.walk(node))


def _products(tree: ast.Module) -> Iterator[Mutant]:
    def products(t: ast.Module) -> list[ast.BinOp]:
        return [n for n in ast.walk(_kernel(t)) if isinstance(n, ast.BinOp) and _wide(n)]

    def narrow(node: ast.BinOp) -> None:
        for side in ("left", "right"):
            value = getattr(node, side)
            if _called(value) == "Int64":
                value = value.args[0]
            setattr(node, side, value if isinstance(value, ast.Constant) else ast.Call(ast.Name("Int32", ast.Load()), [value], []))

    def change(t: ast.Module, i: int) -> None:
        narrow(products(t)[i])
        t.body.insert(1, ast.ImportFrom("cutlass", [ast.alias("Int32")], 0))
    for i, node in enumerate(products(tree)):
        made = copy.deepcopy(tree)
        change(made, i)
        yield Mutant("product", node.lineno, f"{ast.unparse(node)} in 32 bits", ast.unparse(ast.fix_missing_locations(made)))


def _predicates(tree: ast.Module) -> Iterator[Mutant]:
    def ifs(t: ast.Module) -> list[ast.If | ast.IfExp]:
        return [n for n in ast.walk(_kernel(t)) if isinstance(n, (ast.If, ast.IfExp))]

    def always(node: ast.If | ast.IfExp) -> None:
        node.test = ast.Constant(True)
    for i, node in enumerate(ifs(tree)):
        yield Mutant("predicate", node.lineno, ast.unparse(node.test), _changed(tree, lambda t, i=i: ifs(t)[i], always))  # type: ignore[misc]


# ---- noticing -------------------------------------------------------------------------------------------------------------------

def _bits(tensors: Mapping[str, torch.Tensor | Placed]) -> dict[str, torch.Tensor]:
    """Every byte of every storage."""
    found = {}
    for name, t in tensors.items():
        t = t.tensor if isinstance(t, Placed) else t
        found[name] = torch.empty(0, dtype=torch.uint8).set_(t.untyped_storage()).clone()
    return found


def judge(source: str, cases: Sequence[Inputs], parameters: Sequence[Parameter] = (), arch: str = "sm_90a",
          **options: Any) -> list[Verdict]:
    """Every mutant of a source, run on each case until one notices it.

    AssertionError where the source itself does not run clean.
    """
    wanted = []
    for inputs in cases:
        case = inputs()
        report = emulate(source, case.tensors, arch=arch, parameters=parameters, counting=False, blocks=case.blocks, **options)
        assert report.ok, f"the source itself:\n{report}"
        wanted.append(_bits(case.tensors))
    return [Verdict(m, _caught(m, cases, wanted, parameters, arch, options)) for m in mutants(source)]


def _caught(mutant: Mutant, cases: Sequence[Inputs], wanted: Sequence[dict[str, torch.Tensor]], parameters: Sequence[Parameter],
            arch: str, options: Mapping[str, Any]) -> str:
    for inputs, want in zip(cases, wanted, strict=True):
        case = inputs()
        try:
            report = emulate(mutant.source, case.tensors, arch=arch, parameters=parameters, counting=False, blocks=case.blocks,
                             **options)
        except Exception as error:  # Whatever a broken source raises: it does not run, so it is noticed.
            return f"refused: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        if not report.ok:
            return report.findings[0].kind
        found = _bits(case.tensors)
        different = [name for name in want if not torch.equal(found[name], want[name])]
        if different:
            return f"result of {', '.join(different)}"
    return ""


# ---- far away -------------------------------------------------------------------------------------------------------------------

def _dense(t: torch.Tensor) -> torch.Tensor:
    """The same values without gaps, the dims in the order of their strides."""
    order = sorted(range(t.dim()), key=lambda d: (-t.stride(d), d))
    return t.permute(order).contiguous().permute(sorted(range(t.dim()), key=lambda d: order[d]))


def _spread(p: Parameter, t: torch.Tensor, step: int) -> tuple[int, ...]:
    """Strides of which every run-time one is beyond `step` elements and a multiple of what the parameter promises."""
    strides, span = list(t.stride()), 1
    for d in sorted(range(t.dim()), key=lambda d: t.stride(d)):
        if p.strides[d] is None and t.shape[d] > 1:
            unit = max(p.align // t.element_size(), *(p.divisible or (1,)), 1)
            strides[d] = (max(span, step) // unit + 3) * unit
        elif strides[d] < span and t.shape[d] > 1 and strides[d]:
            return tuple(t.stride())
        span = max(span, 1 + (t.shape[d] - 1) * strides[d])
    return tuple(strides)


def far(parameters: Sequence[Parameter], tensors: Mapping[str, torch.Tensor], step: int = 2**31) -> Case:
    """The same values with every run-time stride grown beyond `step` elements: no memory lies between."""
    return Case({p.name: Placed(_dense(tensors[p.name]), _spread(p, tensors[p.name], step)) for p in parameters})


def high(parameters: Sequence[Parameter], tensors: Mapping[str, torch.Tensor], rows: str, step: int = 2**31) -> Case:
    """The same values as the last rows of as many as it takes for their offsets to pass `step` elements; only these rows run.

    rows: the symbol that the first grid dim counts. Tensors without it stay.
    """
    dims = {p.name: p.shape.index(rows) for p in parameters if rows in p.shape}
    near = [tensors[n].stride(d) for n, d in dims.items() if tensors[n].stride(d) > 1]
    before, count = min(step // min(near, default=1) + 1, 2**31 - 4096), max(tensors[n].shape[d] for n, d in dims.items())
    found: dict[str, torch.Tensor | Placed] = dict(tensors)
    for name, d in dims.items():
        t = _dense(tensors[name])
        shape, origin = list(t.shape), [0] * t.dim()
        shape[d], origin[d] = before + t.shape[d], before
        found[name] = Placed(t, tuple(tensors[name].stride()), None, tuple(shape), tuple(origin))
    return Case(found, (range(before, before + count),))
