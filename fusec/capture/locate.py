"""Where an op comes from: the user's frames at each torch call, as locations with columns and the name assigned to.

A TorchFunctionMode writes the calling frames into the annotations of the ops being captured; they survive decomposition. Frames of
torch, of the standard library and of fusec (but not of its recipes) are not the user's. What a decode step must not do with a
tensor (print it, branch on it, copy it to the host) is refused here, at the line that does it.
"""

from __future__ import annotations

import ast
import linecache
import os
import sys
import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

import torch
from torch.fx.traceback import annotate
from torch.overrides import TorchFunctionMode

from ..errors import CaptureError, Frame, Loc, UnsupportedOp

ROOT = str(Path(__file__).resolve().parent.parent) + os.sep
RECIPES = ROOT + "recipes" + os.sep
FOREIGN = (str(Path(torch.__file__).resolve().parent) + os.sep,)
STDLIB = sysconfig.get_paths()["stdlib"] + os.sep
PACKAGES = ("site-packages", "dist-packages")

ON_VALUE = {
    "__bool__": "a branch",
    "__int__": "an int",
    "__float__": "a float",
    "__index__": "an index",
    "__complex__": "a number",
    "item": "item()",
    "tolist": "tolist()",
    "numpy": "numpy()",
    "nonzero": "nonzero()",
    "__array__": "numpy()",
    "masked_select": "masked_select()",
    "unique": "unique()",
    "cpu": "cpu()",
    "cuda": "cuda()",
}
HINTS = {
    "a branch": "select with torch.where, or branch on a Python value or a shape",
    "nonzero()": "use torch.where: a size must not depend on values",
    "masked_select()": "use torch.where: a size must not depend on values",
    "unique()": "a size must not depend on values",
    "cpu()": "keep the step on one device",
    "cuda()": "keep the step on one device",
}
TEXT = ("__repr__", "__str__", "__format__")


def is_users(file: str) -> bool:
    """Whether a frame of that file is code of the user's."""
    if file.startswith(ROOT):
        return file.startswith(RECIPES)
    if file.startswith(FOREIGN):
        return False
    return not (file.startswith(STDLIB) and not any(p in file for p in PACKAGES)) and not file.startswith("<frozen")


@lru_cache(maxsize=4096)
def _positions(code: CodeType) -> tuple[tuple[int | None, int | None, int | None, int | None], ...]:
    return tuple(code.co_positions())


@lru_cache(maxsize=256)
def _tree(file: str, text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return None


def _module(file: str) -> ast.Module | None:
    """The syntax tree of a source file, or None where there is no source (exec, python -c)."""
    lines = linecache.getlines(file)
    return _tree(file, "".join(lines)) if lines else None


@lru_cache(maxsize=1024)
def _definitions(tree: ast.Module) -> dict[int, int]:
    """First line of each function, decorators included -> the line of its `def`."""
    return {
        min([n.lineno, *(d.lineno for d in n.decorator_list)]): n.lineno
        for n in ast.walk(tree)
        if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))
    }


def _frame(code: CodeType, line: int, column: int) -> Frame:
    tree = _module(code.co_filename)
    start = code.co_firstlineno
    if tree is not None and code.co_name != "<lambda>":  # A lambda in a decorator stands on its own line, not at the def below it.
        start = _definitions(tree).get(start, start)
    name = code.co_qualname.rpartition("<locals>.")[2]
    return Frame(name, code.co_filename, line, column, line - start)


@lru_cache(maxsize=1024)
def _assignments(tree: ast.Module) -> dict[tuple[int, int, int, int], str]:
    """Range of an assigned expression -> the name it is assigned to."""
    found = {}
    for node in ast.walk(tree):
        value = getattr(node, "value", None)
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name):
                found[_range(value)] = target.id
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            found[_range(node)] = node.target.id
    return found


def _range(node: Any) -> tuple[int, int, int, int]:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def describe(chain: Iterator[tuple[CodeType, int, int]]) -> Loc:
    """A location from (code, instruction offset, line), innermost frame first."""
    frames, target = [], ""
    for code, lasti, fallback in chain:
        if not is_users(code.co_filename):
            continue
        positions = _positions(code)
        line, end, column, end_column = positions[lasti // 2] if 0 <= lasti // 2 < len(positions) else (fallback, None, 0, None)
        if not frames and None not in (line, end, column, end_column):
            tree = _module(code.co_filename)
            target = _assignments(tree).get((line, end, column, end_column), "") if tree is not None else ""
        frames.append(_frame(code, line or fallback, column or 0))
    return Loc(tuple(frames), target)


def _stack(frame: FrameType | None, entry: CodeType | None) -> Iterator[tuple[CodeType, int, int]]:
    while frame is not None and frame.f_code is not entry:
        yield frame.f_code, frame.f_lasti, frame.f_lineno
        frame = frame.f_back


def of_traceback(trace: TracebackType | None, entry: CodeType | None) -> Loc:
    """The user's frames of an exception, innermost first, below the frame that called the function (`entry`)."""
    found = []
    while trace is not None:
        if trace.tb_frame.f_code is entry:
            found = []
        else:
            found.append((trace.tb_frame.f_code, trace.tb_lasti, trace.tb_lineno))
        trace = trace.tb_next
    return describe(iter(found[::-1]))


def of_function(fn: Any) -> Loc:
    """The `def` line of a function, as far as there is one."""
    code = getattr(fn, "__code__", None)
    if not isinstance(code, CodeType):
        return Loc()
    frame = _frame(code, code.co_firstlineno, 0)
    return Loc((Frame(frame.function, frame.file, frame.line - frame.offset, 0, 0),))


def _unbind(x: torch.Tensor, dim: int = 0) -> Any:
    return tuple(x.select(dim, i) for i in range(x.shape[dim]))


def _split(x: torch.Tensor, sizes: Any, dim: int = 0) -> Any:
    length = x.shape[dim]
    if isinstance(sizes, int):
        sizes = [min(sizes, length - start) for start in range(0, length, sizes)]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(x.narrow(dim, start, size) for start, size in zip(starts, sizes, strict=True))


def _chunk(x: torch.Tensor, chunks: int, dim: int = 0) -> Any:
    return _split(x, -(-x.shape[dim] // chunks), dim)


SINGLE = {"unbind": _unbind, "split": _split, "split_with_sizes": _split, "chunk": _chunk}
"""Views with several results, as several views: torch fixes free sizes when one of the former is written to."""


def single_views(name: str, args: Any, kwargs: Any) -> Any:
    """The results of a view op with several, taken one by one; None where the op is another, or its dim has a free size."""
    if name not in SINGLE or not args or not isinstance(args[0], torch.Tensor):
        return None
    names = {"unbind": 1, "split": 2, "split_with_sizes": 2, "chunk": 2}[name]
    dim = kwargs.get("dim", args[names] if len(args) > names else 0)
    sizes = [v for k, v in kwargs.items() if k != "dim"] + list(args[1:names])
    plain = all(isinstance(n, int) for s in sizes for n in (s if isinstance(s, (list, tuple)) else [s]))
    x = args[0]
    if not isinstance(dim, int) or not -x.dim() <= dim < x.dim() or not isinstance(x.shape[dim], int) or not plain:
        return None
    if name.startswith("split") and not isinstance(sizes[0], int) and sum(sizes[0]) != x.shape[dim]:
        return None
    return SINGLE[name](x, *sizes, dim=dim)


def _take_along_dim(input: Any, indices: Any, dim: int | None = None) -> Any:
    """A gather of what both broadcast to."""
    if dim is None:
        return torch.gather(input.flatten(), 0, indices.flatten())
    dim %= input.dim()
    shapes = [[1 if d == dim else n for d, n in enumerate(t.shape)] for t in (input, indices)]
    common = list(torch.broadcast_shapes(*shapes))
    sizes = [[n if d != dim else t.shape[dim] for d, n in enumerate(common)] for t in (input, indices)]
    return torch.gather(input.expand(sizes[0]), dim, indices.expand(sizes[1]))


RESPELLED = {"take_along_dim": _take_along_dim}
"""Functions that torch composes in a way that fixes free sizes, as compositions that do not."""


class Locate(TorchFunctionMode):
    """Annotates each op with `loc` (a Loc) and `call` (the number of the torch call it belongs to)."""

    def __init__(self, entry: CodeType | None) -> None:
        super().__init__()
        self.entry = entry
        self.calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in ("__get__", "dim", "size", "stride"):
            return func(*args, **(kwargs or {}))
        loc = describe(_stack(sys._getframe(1), self.entry))
        self._refuse(name, args, loc)
        self.calls += 1
        with annotate({"loc": loc, "call": self.calls}):
            if name in RESPELLED:
                func = RESPELLED[name]
            views = single_views(name, args, kwargs or {})
            return func(*args, **(kwargs or {})) if views is None else views

    def _refuse(self, name: str, args: Any, loc: Loc) -> None:
        if name in TEXT:
            raise UnsupportedOp("print: a kernel has no values to print while it is captured", loc, "print outside of the function")
        if name in ON_VALUE and args and isinstance(args[0], torch.Tensor):
            if name in ("cuda", "cpu") and args[0].device.type == name:
                return
            what = ON_VALUE[name]
            raise CaptureError(
                f"{what} depends on the values of a tensor, which are known on the device only",
                loc,
                HINTS.get(what, "keep it a tensor; sizes, strides and Python numbers are known"),
            )
