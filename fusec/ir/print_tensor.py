"""A tensor graph as stable text: one line a value, with its shape, dtype and the place it comes from."""

from __future__ import annotations

from .scalar import Lit
from .tensor import (
    Argument,
    Contract,
    Expand,
    Fill,
    Gather,
    Input,
    Iota,
    Join,
    Map,
    Operand,
    Permute,
    Reduce,
    Reshape,
    Size,
    Slice,
    TensorGraph,
    TensorOp,
    Update,
)


def format_tensor(graph: TensorGraph, locations: bool = True) -> str:
    """The whole graph: arguments, values in order, mutations, outputs."""
    lines = [f"tensor graph {graph.name}" + (f"  rows = {graph.rows}" if graph.rows else "")]
    lines += [f"  argument {_argument(a)}" for a in graph.arguments]
    for node in graph.nodes:
        text = f"  {node.name} = {format_op(node.op)} : {node.dtype}{_shape(node.shape)}"
        lines.append(f"{text:<90}  # {node.loc.chain}" if locations and node.loc.frames else text)
    lines += [f"  {name} := {final}" for name, final in graph.mutations]
    lines.append(f"  return {', '.join(graph.outputs) or 'None'} ({graph.structure})")
    return "\n".join(lines) + "\n"


def _shape(shape: tuple[object, ...]) -> str:
    return "[" + ", ".join(str(n) for n in shape) + "]"


def _argument(a: Argument) -> str:
    strides = ", ".join("free" if s is None else str(s) for s in a.strides)
    note = f" indexed {', '.join(map(str, a.indexed))}" if a.indexed else ""
    return f"{a.name} : {a.dtype}{_shape(a.shape)} strides ({strides}){note}"


def _operand(a: Operand) -> str:
    if isinstance(a, Lit):
        return repr(a.value)
    return f"size({a.tensor}, {a.dim})" if isinstance(a, Size) else a


def format_op(op: TensorOp) -> str:
    """One primitive with its operands."""
    if isinstance(op, Input):
        return f"input {op.tensor}"
    if isinstance(op, Map):
        return f"{op.fn}({', '.join(map(_operand, op.args))})"
    if isinstance(op, Reduce):
        return f"reduce.{op.monoid}({', '.join(op.args)}; dims {', '.join(map(str, op.dims))})"
    if isinstance(op, Contract):
        return f"contract({', '.join(op.args)}; {','.join(op.inputs)}->{op.output})"
    if isinstance(op, Permute):
        return f"permute({op.arg}; {', '.join(map(str, op.order))})"
    if isinstance(op, Reshape):
        return f"reshape({op.arg})"
    if isinstance(op, Expand):
        return f"expand({op.arg})"
    if isinstance(op, Slice):
        step = f" step {op.step}" if op.step != 1 else ""
        return f"slice({op.arg}; dim {op.dim} from {op.start}{step})"
    return _indexed(op)


def _indexed(op: Gather | Update | Join | Iota | Fill) -> str:
    if isinstance(op, Gather):
        return f"gather({op.arg}; dim {op.dim} at {op.index}{_where(op.where)})"
    if isinstance(op, Update):
        at = f"; dim {op.dim} at {op.index}" if op.index is not None else ""
        return f"update({op.target}, {op.value}{at}{_where(op.where)})"
    if isinstance(op, Join):
        return f"join({', '.join(op.parts)}; dim {op.dim})"
    return "iota" if isinstance(op, Iota) else f"fill {op.value.value!r}"


def _where(mask: str | None) -> str:
    return f" where {mask}" if mask else ""
