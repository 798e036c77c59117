"""One capture by torch.export: example tensors without data in, a functional, located ATen graph out.

The examples' values are never looked at and their storage is never shared: capture sees fresh tensors without memory, of the same
shapes and strides. Every failure of torch's becomes a CaptureError at the user's line.
"""

from __future__ import annotations

import contextlib
import contextvars
import inspect
import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch._decomp
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.fx.traceback import preserve_node_meta

from ..errors import CaptureError, FusecError, Loc, UnsupportedOp
from ..ir import structure
from . import bind, complexes
from .locate import Locate, of_function, of_traceback
from .registry import OPS, REMEDIES, nearest

MOST_LEVELS = 4  # Of ops made of ops without a row.
_capturing: contextvars.ContextVar[bool] = contextvars.ContextVar("fusec_capturing", default=False)


def capturing() -> bool:
    """Whether a capture runs right now: a fused function called by another then runs as the plain function that it is."""
    return _capturing.get()


@dataclass(frozen=True, slots=True)
class Like:
    """An example tensor as capture sees it: no data."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


def like(t: torch.Tensor) -> Like:
    return Like(tuple(t.shape), tuple(t.stride()), t.dtype, t.device)


@dataclass(slots=True)
class Program:
    """A captured program: the exported graph, which output leaf is which argument, how the result was packed, its constants."""

    exported: Any
    names: tuple[str, ...]
    aliases: dict[int, str]
    constants: dict[int, Any]
    structure: str

    @property
    def shapes(self) -> dict[str, tuple[Any, ...]]:
        """The sizes of each argument: ints, and sympy expressions over torch's symbols."""
        inputs = set(self.exported.graph_signature.user_inputs)
        holders = [n for n in self.exported.graph.nodes if n.op == "placeholder" and n.name in inputs]
        return {
            name: tuple(n if isinstance(n, int) else n.node.expr for n in holder.meta["val"].shape)
            for name, holder in zip(self.names, holders)
        }


@dataclass(slots=True)
class _Return:
    """What the traced function returned, noted while it ran."""

    aliases: dict[int, str]
    constants: dict[int, Any]
    structure: str


def _entry(fn: Callable[..., Any], call: bind.Call, loc: Loc) -> tuple[torch.nn.Module, dict[str, Any]]:
    """A module whose forward takes the flat tensors by name and runs fn on the call they were taken from."""
    if "self" in call.tensors:
        raise CaptureError("a tensor argument is called self", loc, "rename it, or bind the method to its object first")
    noted: dict[str, Any] = {}

    def forward(self: Any, **tensors: torch.Tensor) -> Any:
        with Locate(forward.__code__):
            result = bind.invoke(fn, bind.fill(call.tree, tensors))
        if inspect.isgenerator(result) or inspect.iscoroutine(result):
            raise CaptureError("the function returns a generator", loc, "return tensors")
        flat = structure.leaves(result)
        by_id = {id(t): name for name, t in tensors.items()}
        tensor_leaves = [(i, x) for i, x in enumerate(flat) if isinstance(x, torch.Tensor)]
        noted["return"] = _Return(
            {k: by_id[id(x)] for k, (_, x) in enumerate(tensor_leaves) if id(x) in by_id},
            {i: x for i, x in enumerate(flat) if not isinstance(x, torch.Tensor)},
            structure.describe(result, lambda x: isinstance(x, torch.Tensor), loc),
        )
        return tuple(x for _, x in tensor_leaves)

    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
    forward.__signature__ = inspect.Signature([inspect.Parameter(n, positional) for n in ("self", *call.tensors)])
    module = type("Step", (torch.nn.Module,), {"forward": forward})()
    noted["code"] = forward.__code__
    return module, noted


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """torch.export explains failures on stderr and warns about its own internals; our errors say what is needed."""
    loggers = [
        logging.getLogger(n)
        for n in (
            "torch.fx.experimental.symbolic_shapes",
            "torch._export",
            "torch.export",
            "torch._dynamo",
            "torch._subclasses.fake_tensor",
        )
    ]
    levels = [x.level for x in loggers]
    try:
        for x in loggers:
            x.setLevel(logging.CRITICAL + 1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for x, level in zip(loggers, levels):
            x.setLevel(level)


def trace(
    fn: Callable[..., Any], call: bind.Call, examples: Mapping[str, Like], dynamic: Mapping[str, Mapping[int, Any]]
) -> Program:
    """Capture fn on tensors like `examples`; `dynamic` gives a torch.export Dim for (argument, dim).

    Raises CaptureError or UnsupportedOp, with the user's location where torch's exception has one.
    """
    loc = of_function(inspect.unwrap(fn))
    module, noted = _entry(fn, call, loc)
    with FakeTensorMode(allow_non_fake_inputs=True):
        fakes = {n: torch.empty_strided(x.shape, x.strides, dtype=x.dtype, device=x.device) for n, x in examples.items()}
    spec = {n: dict(dynamic.get(n, {})) or None for n in examples} if dynamic else None
    token = _capturing.set(True)
    try:
        with (
            _quiet(),
            torch.inference_mode(False),
            torch.no_grad(),
            preserve_node_meta(),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            exported = torch.export.export(module, (), fakes, strict=False, dynamic_shapes=spec).run_decompositions({})
            exported = taken_apart(exported)
    except FusecError as error:
        if error.loc is not None:
            raise
        raise _explain(error, of_traceback(error.__traceback__, noted["code"]), loc) from error
    except Exception as error:  # noqa: BLE001 - whatever torch raises is about the user's function
        raise _explain(error, of_traceback(error.__traceback__, noted["code"]), loc) from error
    finally:
        _capturing.reset(token)
    back: _Return = noted["return"]
    return Program(exported, tuple(examples), back.aliases, back.constants, back.structure)


def taken_apart(exported: Any) -> Any:
    """The program with ops that have no row as torch itself composes them of ops that have one; all others stay whole."""
    for op in sorted(_unknown(exported.graph), key=str):
        exported = _without(exported, op) or exported
    return exported


def _without(exported: Any, op: Any) -> Any:
    """The program with one op taken apart, level by level; None where torch does not, or comes to ops without a row."""
    others = _unknown(exported.graph)
    for _ in range(MOST_LEVELS):
        table = {o: rule for o in _unknown(exported.graph) - others | {op} if (rule := _composition(o)) is not None}
        try:
            exported = exported.run_decompositions(table)
        except Exception:  # noqa: BLE001 - the op is refused as it stands
            return None
        if _unknown(exported.graph) <= others - {op}:
            return exported
    return None


def _unknown(graph: Any) -> set[Any]:
    calls = {n.target for n in graph.nodes if n.op == "call_function"}
    return {
        t
        for t in calls
        if isinstance(t, torch._ops.OpOverload) and t.namespace in ("aten", "prims") and str(t) not in OPS
        and str(t).split(".")[1] not in complexes.RULES
        and any(isinstance(r.type, (torch.TensorType, torch.ListType)) for r in t._schema.returns)
    }


def _composition(op: Any) -> Callable[..., Any] | None:
    """What eager runs for a composite op, else torch's reference for one that has a kernel of its own."""
    if op.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
        from torch._export.utils import _get_decomp_for_cia  # torch's own: a version without it still captures all other ops.
        return _get_decomp_for_cia(op)  # type: ignore[no-any-return]
    rule: Callable[..., Any] | None = torch._decomp.decomposition_table.get(op)
    return rule


def _explain(error: BaseException, at: Loc, function: Loc) -> FusecError:
    """torch's exception as ours: what was found, where, what to do."""
    where = at if at.frames else function
    for e in _causes(error):
        if isinstance(e, FusecError):
            return e if e.loc is not None else type(e)(e.message, where, e.hint)
    text = str(error).strip()
    if any(isinstance(e, GuardOnDataDependentSymNode) for e in _causes(error)) or "data-dependent" in text:
        return CaptureError(
            "control flow or a size depends on the values of a tensor, which are known on the device only",
            where,
            "select with torch.where, or branch on a Python value or a shape",
        )
    if "Constraints violated" in text or "marked" in text and "dynamic" in text or "specialized" in text:
        return CaptureError(
            "the function fixes the size of a dim that must be free: " + _constraint(text),
            where,
            "let Python neither loop over rows nor compare their number with a constant; dynamic_shapes={} fixes every size",
        )
    if "is mutated in the forward" in text:
        return CaptureError("the function writes to a tensor that is not an argument", where, "pass it as an argument")
    unsupported = re.search(r"aten[.:]+(\w+)", text)
    if isinstance(error, NotImplementedError) and unsupported:
        return UnsupportedOp(f"aten.{unsupported.group(1)}: {first(text)}", where, alternatives(unsupported.group(1)))
    return CaptureError(
        f"{type(error).__name__}: {first(text)}", where, "run the function on the example in eager mode: it must run there first"
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def first(text: str) -> str:
    """The first line that says something."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "no message")


_SIZE = re.compile(r"L\['(\w+)'\]\.size\(\)\[(\d+)\]")


def _constraint(text: str) -> str:
    """Which dim, and to what: from torch's account of the guards that it had to take."""
    fixed = re.search(r"You marked (.+?) as dynamic but your code specialized it to be a constant \((\d+)\)", text)
    if fixed:
        return f"{fixed.group(1)} is fixed to {fixed.group(2)}"
    guard = re.search(r"Not all values of (\w+) = .*? satisfy the generated guard (.+?)\.?$", text, re.MULTILINE)
    if not guard:
        return first(text)
    rule = _SIZE.sub(r"\1.shape[\2]", guard.group(2))
    return f"{guard.group(1)} must satisfy {rule}"


def alternatives(target: str) -> str:
    """A hint that names supported ops with a similar name."""
    name = target.split(".")[1] if "." in target else target
    if name in REMEDIES:
        return REMEDIES[name]
    near = nearest(name)
    return (
        f"supported ops of similar name: {', '.join(near)}"
        if near
        else "write it with supported ops (fusec.capture.ops.supported())"
    )
