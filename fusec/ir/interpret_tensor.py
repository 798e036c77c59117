"""Runs a tensor graph on CPU torch with every rounding where the graph has it: the oracle of capture, of folds and of axes.

Values are in register form (reference.py) until they are returned or written back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sympy
import torch
from torch import Tensor

from . import reference
from .scalar import Lit
from .tensor import (
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
    TensorNode,
    Update,
)

Values = dict[str, Tensor]


def run_tensor(graph: TensorGraph, arguments: Mapping[str, Tensor], precision: str = "f32") -> tuple[Tensor, ...]:
    """The tensors a graph returns, in order (constants among the results are left out); mutated arguments are written in place.

    arguments: by name, of any device; the values are computed on the CPU. precision "f64" computes what is fp32 in fp64 and keeps
    every narrower rounding. An output that is an argument is that very tensor. Raises KeyError for a missing argument.
    """
    values, shapes = evaluate(graph, arguments, precision)
    dtypes = {n.name: n.dtype for n in graph.nodes}
    for name, final in graph.mutations:
        target = arguments[name]
        with torch.no_grad():
            target.copy_(reference.from_register(values[final], dtypes[final]).to(target.device))
    fresh = {o: reference.from_register(values[o].expand(shapes[o]).clone(), dtypes[o]) for o in graph.outputs if o[0] not in "=!"}
    return tuple(arguments[o[1:]] if o[0] == "=" else fresh[o] for o in graph.outputs if o[0] != "!")


def evaluate(
    graph: TensorGraph, arguments: Mapping[str, Tensor], precision: str = "f32"
) -> tuple[Values, dict[str, tuple[int, ...]]]:
    """(every value in register form, its shape); nothing of the caller's is written."""
    sizes = _sizes(graph, arguments)
    values: Values = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for node in graph.nodes:
        shape = tuple(n if isinstance(n, int) else int(n.subs(sizes)) for n in node.shape)
        raw = _node(node, shape, values, arguments, precision)
        rounded = raw if isinstance(node.op, (Permute, Reshape, Expand, Slice, Gather, Join)) else _round(raw, node, precision)
        values[node.name], shapes[node.name] = rounded, shape
    return values, shapes


def _sizes(graph: TensorGraph, arguments: Mapping[str, Tensor]) -> dict[sympy.Symbol, int]:
    """Each symbol at this call; a dim may be made of one (3·rows, rows + 1), or of one and another that is known (rows + more)."""
    found: dict[sympy.Symbol, int] = {}
    pairs = [(e, n) for a in graph.arguments for e, n in zip(a.shape, arguments[a.name].shape) if not isinstance(e, int)]
    for extent, size in sorted(pairs, key=lambda pair: len(pair[0].free_symbols)):
        extent = extent.subs(found)
        for symbol in extent.free_symbols:
            found[symbol] = (size - int(extent.subs(symbol, 0))) // int(extent.coeff(symbol))
    return found


def _round(x: Tensor, node: TensorNode, precision: str) -> Tensor:
    return reference.round_to(x, node.dtype, precision)


def _operand(a: Operand, values: Values, arguments: Mapping[str, Tensor]) -> Tensor | Lit:
    if isinstance(a, Size):
        return torch.tensor(arguments[a.tensor].shape[a.dim], dtype=torch.int64)
    return a if isinstance(a, Lit) else values[a]


def _node(node: TensorNode, shape: tuple[int, ...], values: Values, arguments: Mapping[str, Tensor], precision: str) -> Tensor:
    op = node.op
    if isinstance(op, Input):
        return reference.to_register(arguments[op.tensor].detach().cpu(), precision)
    if isinstance(op, Map):
        return _map(op, values, arguments, precision)
    if isinstance(op, Reduce):
        return reference.reduce(op.monoid, torch.broadcast_tensors(*(values[a] for a in op.args)), op.dims, precision)
    if isinstance(op, Contract):
        return _contract(op, [values[a] for a in op.args], precision)
    if isinstance(op, Gather):
        return _gather(op, values)
    if isinstance(op, Update):
        return _update(op, values)
    if isinstance(op, Join):
        return torch.cat([values[p] for p in op.parts], op.dim)
    if isinstance(op, Iota):
        return torch.arange(shape[0])
    if isinstance(op, Fill):
        return reference.literal(op.value, precision).expand(shape).clone()
    return _view(op, values[op.arg], shape)


def _map(op: Map, values: Values, arguments: Mapping[str, Tensor], precision: str) -> Tensor:
    args = [_operand(a, values, arguments) for a in op.args]
    return reference.apply(op.fn, args, precision)


def _view(op: Permute | Reshape | Expand | Slice, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    if isinstance(op, Permute):
        return x.permute(op.order)
    if isinstance(op, Reshape):
        return x.reshape(shape)
    if isinstance(op, Expand):
        return x.expand(shape)
    stop = op.start + (shape[op.dim] - 1) * op.step + 1 if shape[op.dim] else op.start
    return x[(slice(None),) * op.dim + (slice(op.start, stop, op.step),)]


def _contract(op: Contract, args: Sequence[Tensor], precision: str) -> Tensor:
    """einsum; an integer contraction in int64, floats in the register's width."""
    letters = sorted(set("".join(op.inputs)))
    names = {c: chr(ord("a") + i) for i, c in enumerate(letters)}
    words = ["".join(names[c] for c in w) for w in (*op.inputs, op.output)]
    return torch.einsum(",".join(words[:-1]) + "->" + words[-1], *args)


def _gather(op: Gather, values: Values) -> Tensor:
    x, index = values[op.arg], values[op.index].long()
    where = values[op.where] if op.where is not None else None
    picked = x.index_select(op.dim, (index if where is None else torch.where(where, index, 0)).reshape(-1))
    out = picked.reshape(x.shape[: op.dim] + index.shape + x.shape[op.dim + 1 :])
    if where is None:
        return out
    live = where.reshape((1,) * op.dim + tuple(index.shape) + (1,) * (x.dim() - op.dim - 1))
    return torch.where(live, out, torch.zeros((), dtype=out.dtype))


def _update(op: Update, values: Values) -> Tensor:
    target, value = values[op.target], values[op.value]
    if op.index is None:
        full = value.to(target.dtype).expand(target.shape)
        return full.clone() if op.where is None else torch.where(values[op.where], full, target)
    index = values[op.index].long()
    part = target.shape[: op.dim] + index.shape + target.shape[op.dim + 1 :]
    flat = value.to(target.dtype).expand(part).reshape(target.shape[: op.dim] + (-1,) + target.shape[op.dim + 1 :])
    rows = index.reshape(-1)
    if op.where is not None:
        live = values[op.where].expand(index.shape).reshape(-1).nonzero().reshape(-1)
        rows, flat = rows[live], flat.index_select(op.dim, live)
    return target.index_copy(op.dim, rows, flat)
