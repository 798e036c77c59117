"""From a call to flat, named tensors and constants, and what an example tensor may be.

Tensors inside tuples, lists, dicts and dataclasses become arguments of their own: `states[1]` is `states_1`.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import CaptureError, Loc
from ..ir.reference import SHORT_DTYPE
from .locate import of_function

PLAIN = (torch.Tensor, torch.nn.Parameter)


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a tensor stood in the call: replaced by the tensor of that name when the function is run.

    paired: the tensor was complex; what is passed on is the real view of its pairs.
    """

    name: str
    paired: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """A call with its tensors taken out: `tensors` by flat name in order, `tree` the bound arguments with Slots in their place."""

    tensors: dict[str, torch.Tensor]
    tree: dict[str, Any]


def signature(fn: Callable[..., Any]) -> inspect.Signature:
    """The function's signature; CaptureError for what cannot be a decode step."""
    if not callable(fn):
        raise CaptureError(f"expected a function, found {type(fn).__name__}")
    plain = inspect.unwrap(fn)
    if inspect.isgeneratorfunction(plain) or inspect.iscoroutinefunction(plain) or inspect.isasyncgenfunction(plain):
        raise CaptureError("a generator or coroutine has no single result", of_function(plain), "return tensors")
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError):
        raise CaptureError(f"{getattr(fn, '__name__', fn)!s} has no signature", hint="wrap it in a Python function") from None


def bind(fn: Callable[..., Any], given: Mapping[str, Any], static: Mapping[str, Any] | None = None) -> Call:
    """Names to values (tensors, containers of them, constants) bound to the function's parameters, defaults filled in.

    Raises CaptureError for a name that the function does not have, and for a parameter without a value.
    """
    sig = signature(fn)
    values = {**given, **(static or {})}
    kinds = {p.name: p.kind for p in sig.parameters.values()}
    extra = [n for n in values if n not in kinds]
    takes_any = inspect.Parameter.VAR_KEYWORD in kinds.values()
    if extra and not takes_any:
        raise CaptureError(
            f"the example has {', '.join(map(repr, extra))}, which {_name(fn)} does not take",
            of_function(inspect.unwrap(fn)),
            f"it takes {', '.join(kinds) or 'nothing'}",
        )
    tree: dict[str, Any] = {}
    for p in sig.parameters.values():
        if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) and p.name not in values:
            continue
        if p.name in values:
            tree[p.name] = values[p.name]
        elif p.default is not p.empty:
            tree[p.name] = p.default
        else:
            raise CaptureError(
                f"the example lacks {p.name!r}", of_function(inspect.unwrap(fn)), "give every argument without a default"
            )
    tree.update({n: values[n] for n in extra})
    tensors: dict[str, torch.Tensor] = {}
    return Call(tensors, {n: _take(v, n, tensors) for n, v in tree.items()})


def _name(fn: Any) -> str:
    return getattr(fn, "__name__", type(fn).__name__)


def _take(x: Any, name: str, tensors: dict[str, torch.Tensor]) -> Any:
    """x with a Slot for every tensor in it; the tensors go to `tensors`, complex ones as pairs of real numbers."""
    if isinstance(x, torch.Tensor):
        while name in tensors:
            name += "_"
        paired = x.dtype == torch.complex64 and not x.is_conj()
        tensors[name] = torch.view_as_real(x) if paired else x
        return Slot(name, paired)
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*(_take(v, f"{name}_{k}", tensors) for k, v in zip(x._fields, x)))
    if isinstance(x, (list, tuple)):
        return type(x)(_take(v, f"{name}_{i}", tensors) for i, v in enumerate(x))
    if isinstance(x, dict):
        return {k: _take(v, f"{name}_{k}", tensors) for k, v in x.items()}
    if dataclasses.is_dataclass(x) and not isinstance(x, type) and _holds_tensor(x):
        return dataclasses.replace(
            x, **{f.name: _take(getattr(x, f.name), f"{name}_{f.name}", tensors) for f in dataclasses.fields(x) if f.init}
        )
    return x


def _holds_tensor(x: Any) -> bool:
    return any(isinstance(getattr(x, f.name), (torch.Tensor, list, tuple, dict)) for f in dataclasses.fields(x))


def fill(tree: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The inverse of taking out: Slots replaced by the tensors of their names."""
    if isinstance(tree, Slot):
        return torch.view_as_complex(tensors[tree.name]) if tree.paired else tensors[tree.name]
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(fill(v, tensors) for v in tree))
    if isinstance(tree, (list, tuple)):
        return type(tree)(fill(v, tensors) for v in tree)
    if isinstance(tree, dict):
        return {k: fill(v, tensors) for k, v in tree.items()}
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type) and _holds_slot(tree):
        return dataclasses.replace(
            tree, **{f.name: fill(getattr(tree, f.name), tensors) for f in dataclasses.fields(tree) if f.init}
        )
    return tree


def _holds_slot(x: Any) -> bool:
    return any(isinstance(getattr(x, f.name), (Slot, list, tuple, dict)) for f in dataclasses.fields(x))


def flat_shapes(call: Call, dynamic_shapes: Any) -> dict[str, Any]:
    """dynamic_shapes as torch.export takes it (by parameter, or in their order; containers like the arguments) by flat name."""
    if isinstance(dynamic_shapes, (tuple, list)):
        dynamic_shapes = dict(zip(call.tree, dynamic_shapes, strict=False))
    found: dict[str, Any] = {}
    for name, marks in dynamic_shapes.items():
        if name in call.tree:
            _walk_shapes(call.tree[name], marks, found)
        else:
            found[name] = marks
    return found


def _walk_shapes(tree: Any, marks: Any, found: dict[str, Any]) -> None:
    if isinstance(tree, Slot):
        found[tree.name] = marks
    elif isinstance(tree, dict) and isinstance(marks, Mapping):
        for key in tree:
            _walk_shapes(tree[key], marks.get(key), found)
    elif isinstance(tree, (list, tuple)) and isinstance(marks, (list, tuple)):
        for part, mark in zip(tree, marks, strict=False):
            _walk_shapes(part, mark, found)


def invoke(fn: Callable[..., Any], tree: Mapping[str, Any]) -> Any:
    """fn of bound arguments by name, with *args and positional-only ones where they belong."""
    sig = signature(fn)
    bound = inspect.BoundArguments(sig, {n: tree[n] for n in sig.parameters if n in tree})  # type: ignore[arg-type]
    return fn(*bound.args, **{**bound.kwargs, **{n: v for n, v in tree.items() if n not in sig.parameters}})


def check_tensor(name: str, t: torch.Tensor, loc: Loc) -> None:
    """CaptureError for a tensor that no kernel takes: dtype, layout, subclass, gradients wanted."""

    def refuse(found: str, hint: str) -> None:
        raise CaptureError(f"argument {name}: {found}", loc, hint)

    if t.dtype not in SHORT_DTYPE:
        known = ", ".join(str(d).removeprefix("torch.") for d in SHORT_DTYPE)
        refuse(f"expected one of {known}, found {str(t.dtype).removeprefix('torch.')}", "convert the tensor before the call")
    if t.layout != torch.strided:
        refuse(f"expected a dense tensor, found layout {t.layout}", "convert the tensor before the call")
    if type(t) not in PLAIN and type(t).__name__ not in ("FakeTensor", "Buffer"):
        refuse(f"expected a plain tensor, found {type(t).__name__}", "pass its local tensor")
    if t.is_conj() or t.is_neg():
        refuse(
            "expected a plain tensor, found a lazily conjugated or negated view", "resolve it with resolve_conj() or resolve_neg()"
        )
    if t.requires_grad and torch.is_grad_enabled():
        refuse("requires a gradient, and gradients are enabled", "fused kernels are for inference only: call under torch.no_grad()")
