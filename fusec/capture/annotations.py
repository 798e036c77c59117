"""Shapes that a function declares: annotations in jaxtyping's syntax, `x: BFloat16[Tensor, "rows 3*H*D"]`.

A dim is a number, a name, a product or sum of them, or `_` for any size. Names are axes, the same in all arguments. Annotations
are read, not evaluated, where they are text (`from __future__ import annotations`), so that jaxtyping need not be there.
"""

from __future__ import annotations

import ast
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any

import torch

from ..errors import CaptureError, Loc
from ..ir.reference import SHORT_DTYPE, TORCH_DTYPE
from ..ir.tensor import Factor
from .locate import of_function

ROWS = "rows"
"""The axis of a batch's rows, by its usual name."""
FLOATS = ("f32", "bf16", "f16", "f8e4m3", "f8e5m2")
SIGNED = ("i64", "i32", "i16", "i8")
EXACT = {
    "Float32": "f32", "BFloat16": "bf16", "Float16": "f16", "Float8e4m3fn": "f8e4m3", "Float8e5m2": "f8e5m2",
    "Int64": "i64", "Int32": "i32", "Int16": "i16", "Int8": "i8", "UInt8": "u8", "Bool": "bool",
}  # fmt: skip
FAMILIES = {
    "Float": FLOATS, "Inexact": FLOATS, "Int": SIGNED, "UInt": ("u8",), "Integer": (*SIGNED, "u8"),
    "Real": (*FLOATS, *SIGNED, "u8"), "Num": (*FLOATS, *SIGNED, "u8"), "Shaped": (*FLOATS, *SIGNED, "u8", "bool"),
}  # fmt: skip
KINDS = {**{k: (v,) for k, v in EXACT.items()}, **FAMILIES}
"""jaxtyping's name -> the dtypes it allows, the one it stands for without a tensor first."""
OTHER_NAMES = {"fp32": "f32", "fp16": "f16", "fp8": "f8e4m3", **{str(t).removeprefix("torch."): s for t, s in SHORT_DTYPE.items()}}


Factors = Mapping[str, tuple[tuple[Factor, ...], ...]]
"""Per argument and dim, what it is declared as."""


@dataclass(frozen=True, slots=True)
class Dim:
    """One declared dim. text: as written. tree: its expression; None for any size. factors: names and numbers of a product."""

    text: str
    tree: ast.expr | None
    names: tuple[str, ...]

    def size(self, sizes: Mapping[str, int]) -> int | None:
        """Its value, None where a name of it is unknown."""
        if self.tree is None or any(n not in sizes for n in self.names):
            return None
        return _value(self.tree, sizes)

    def factors(self, sizes: Mapping[str, int]) -> tuple[Factor, ...]:
        """(name or '', size) of each factor, outermost first."""
        if self.tree is None:
            return ()
        return tuple((f.id if isinstance(f, ast.Name) else "", _value(f, sizes)) for f in _product(self.tree))


@dataclass(frozen=True, slots=True)
class Declared:
    """What one parameter is declared to be."""

    name: str
    dtypes: tuple[str, ...]
    dims: tuple[Dim, ...]

    def __str__(self) -> str:
        return "[" + ", ".join(d.text for d in self.dims) + "]"


@dataclass(frozen=True, slots=True)
class FreeNames:
    """In the place of dynamic_shapes: the axes whose size is known at the call only, by name, and the sizes of the others as far as
    they are fixed."""

    names: frozenset[str]
    sizes: tuple[tuple[str, int], ...] = ()


# ---- reading ------------------------------------------------------------------------------------------------------------------


def declared(fn: Callable[..., Any]) -> dict[str, Declared]:
    """The parameters of a function that have a declared shape, in order. Raises CaptureError for a form that is not supported."""
    plain = inspect.unwrap(fn)
    found = {}
    annotations = getattr(plain, "__annotations__", {})
    for name in getattr(plain, "__code__", None) and inspect.signature(plain).parameters or ():
        parts = _parts(annotations.get(name), getattr(plain, "__globals__", {}))
        if parts is not None:
            kind, text = parts
            loc = of_function(plain)
            if kind not in KINDS:
                raise CaptureError(f"argument {name}: no kernel has {kind} tensors", loc, f"known: {', '.join(KINDS)}")
            found[name] = Declared(name, KINDS[kind], tuple(_dim(name, word, loc) for word in text.split()))
    return found


def _parts(annotation: Any, scope: Mapping[str, Any]) -> tuple[str, str] | None:
    """(jaxtyping's name of the dtype, the text of the dims) of an annotation; None for any other."""
    if isinstance(annotation, str):
        try:
            return _of_tree(ast.parse(annotation, mode="eval").body, scope)
        except SyntaxError:
            return None
    if typing.get_origin(annotation) in (typing.Union, UnionType):
        return next((p for a in typing.get_args(annotation) if (p := _parts(a, scope)) is not None), None)
    if hasattr(annotation, "dim_str") and hasattr(annotation, "array_type"):
        return str(annotation.__name__).partition("[")[0], str(annotation.dim_str)
    return None


def _of_tree(node: ast.expr, scope: Mapping[str, Any]) -> tuple[str, str] | None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):  # … | None
        return _of_tree(node.left, scope) or _of_tree(node.right, scope)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _parts(node.value, scope)
    if isinstance(node, ast.Name):  # An alias of the module's.
        alias = scope.get(node.id)
        return None if alias is None or isinstance(alias, str) else _parts(alias, {})
    if not isinstance(node, ast.Subscript):
        return None
    base = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
    if base == "Optional":
        return _of_tree(node.slice, scope)
    items = node.slice.elts if isinstance(node.slice, ast.Tuple) else []
    text = items[1] if len(items) == 2 else None
    known = base in KINDS or base.startswith(("Complex", "Float", "Int", "UInt"))
    if known and isinstance(text, ast.Constant) and isinstance(text.value, str):
        return base, text.value
    return None


def _dim(argument: str, word: str, loc: Loc) -> Dim:
    if word == "_":
        return Dim(word, None, ())
    text = word.partition("=")[2] or word  # `heads=4` says what 4 is.
    hint = "write numbers, names, products and sums of them, or _ for any size"
    try:
        tree = ast.parse(text, mode="eval").body
        names = tuple(dict.fromkeys(_names(tree)))
    except (SyntaxError, ValueError):
        raise CaptureError(f"argument {argument}: a dim {word!r} is not supported", loc, hint) from None
    return Dim(word, tree, names)


def _names(node: ast.expr) -> Iterator[str]:
    """The names of an expression; ValueError for what is no sum, product or quotient of names and numbers."""
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Add, ast.Sub, ast.FloorDiv)):
        yield from _names(node.left)
        yield from _names(node.right)
    elif not (isinstance(node, ast.Constant) and type(node.value) is int):
        raise ValueError


def _product(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return _product(node.left) + _product(node.right)
    return [node]


def _value(node: ast.expr, sizes: Mapping[str, int]) -> int:
    if isinstance(node, ast.Name):
        return sizes[node.id]
    if isinstance(node, ast.Constant):
        return int(node.value)  # type: ignore[arg-type]
    assert isinstance(node, ast.BinOp)
    a, b = _value(node.left, sizes), _value(node.right, sizes)
    if isinstance(node.op, ast.FloorDiv):
        return a // b
    return a * b if isinstance(node.op, ast.Mult) else a + b if isinstance(node.op, ast.Add) else a - b


def names(specs: Mapping[str, Declared]) -> tuple[str, ...]:
    """The axes that declared shapes name, in order."""
    return tuple(dict.fromkeys(n for s in specs.values() for d in s.dims for n in d.names))


def dtype_named(text: str) -> str:
    """The short name of a dtype by any of its names; '' for none."""
    return text if text in TORCH_DTYPE else OTHER_NAMES.get(text, "")


# ---- checking -----------------------------------------------------------------------------------------------------------------


def check(
    specs: Mapping[str, Declared], tensors: Mapping[str, torch.Tensor], static: Mapping[str, int], loc: Loc
) -> dict[str, int]:
    """The size of every named axis, from tensors that must be as declared.

    static: sizes that are fixed. Raises CaptureError with the argument, the dim, what was expected and what was found.
    """
    sizes, origin = dict(static), dict.fromkeys(static, "fixed")
    given = {n: (s, tensors[n]) for n, s in specs.items() if n in tensors}
    for name, (spec, t) in given.items():
        if SHORT_DTYPE.get(t.dtype) not in spec.dtypes:
            wanted = ", ".join(str(TORCH_DTYPE[d]).removeprefix("torch.") for d in spec.dtypes)
            raise CaptureError(f"argument {name}: expected dtype {wanted}, found {str(t.dtype).removeprefix('torch.')}", loc)
        if t.dim() != len(spec.dims):
            raise CaptureError(f"argument {name}: expected shape {spec}, found {list(t.shape)}", loc)
        for dim, n in zip(spec.dims, t.shape):
            if isinstance(dim.tree, ast.Name) and dim.names[0] not in sizes:
                sizes[dim.names[0]], origin[dim.names[0]] = int(n), f"as in {name}"
    for name, (spec, t) in given.items():
        for d, (dim, n) in enumerate(zip(spec.dims, t.shape)):
            _solve(dim, int(n), sizes, origin, name)
            wanted_size = dim.size(sizes)
            if wanted_size is not None and wanted_size != n:
                why = ", ".join(f"{x} = {sizes[x]} {origin[x]}" for x in dim.names)
                computed = dim.names and not isinstance(dim.tree, ast.Name)
                whole = f"{dim.text} = {wanted_size} ({why})" if computed else why or dim.text
                raise CaptureError(f"argument {name}: dim {d}: expected {whole}, found {n} in shape {list(t.shape)}", loc)
    return sizes


def factors(
    specs: Mapping[str, Declared], tensors: Mapping[str, torch.Tensor], static: Mapping[str, int], loc: Loc
) -> dict[str, tuple[tuple[Factor, ...], ...]]:
    """What the dims of declared arguments are products of, once the tensors are checked."""
    sizes = check(specs, tensors, static, loc)
    known = {n: s for n, s in specs.items() if n in tensors}
    return {n: tuple(d.factors(sizes) if set(d.names) <= set(sizes) else () for d in s.dims) for n, s in known.items()}


def _solve(dim: Dim, found: int, sizes: dict[str, int], origin: dict[str, str], name: str) -> None:
    """The one unknown of a product that nothing else tells: 3*H of 36 says that H is 12."""
    unknown = [n for n in dim.names if n not in sizes]
    if dim.tree is None or len(unknown) != 1:
        return
    parts = _product(dim.tree)
    mine = [p for p in parts if isinstance(p, ast.Name) and p.id == unknown[0]]
    rest = 1
    for p in parts:
        if p not in mine:
            if unknown[0] in _names(p):
                return
            rest *= _value(p, sizes)
    if len(mine) == 1 and rest > 0 and found % rest == 0:
        sizes[unknown[0]], origin[unknown[0]] = found // rest, f"as in {name}"


def free_names(specs: Mapping[str, Declared], given: Mapping[str, Any]) -> FreeNames:
    """The declared axes, apart by whether a size is given."""
    axes = names(specs)
    return FreeNames(frozenset(n for n in axes if n not in given), tuple((n, given[n]) for n in axes if n in given))


def loc_of(fn: Callable[..., Any]) -> Loc:
    """Where a function stands, behind its decorators."""
    return of_function(inspect.unwrap(fn))
