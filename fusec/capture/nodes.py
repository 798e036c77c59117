"""Small questions about tensor graph nodes: what they read, the same node over other names, a word for a value, what is live."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..ir.tensor import (
    Contract,
    Expand,
    Fill,
    Gather,
    Input,
    Iota,
    Join,
    Map,
    Permute,
    Reduce,
    Reshape,
    Slice,
    TensorNode,
    TensorOp,
    Update,
)


def word(node: TensorNode) -> str:
    """A name for a value that the source gives none."""
    op = node.op
    if isinstance(op, Map):
        return {"identity": node.dtype, "and": "both", "or": "either", "not": "negated"}.get(op.fn, op.fn)
    if isinstance(op, Reduce):
        return {"sum": "total", "max": "top", "min": "low"}.get(op.monoid, op.monoid)
    words: dict[type, str] = {
        Contract: "dot",
        Permute: "permuted",
        Reshape: "view",
        Expand: "spread",
        Slice: "part",
        Gather: "picked",
        Update: "updated",
        Join: "joined",
        Iota: "position",
        Fill: "constant",
    }
    return words[type(op)]


def operands(op: TensorOp) -> tuple[str, ...]:
    """Names of the values an op reads."""
    if isinstance(op, Map):
        return tuple(a for a in op.args if isinstance(a, str))
    if isinstance(op, (Reduce, Contract)):
        return op.args
    if isinstance(op, Join):
        return op.parts
    if isinstance(op, Gather):
        return tuple(n for n in (op.arg, op.index, op.where) if n)
    if isinstance(op, Update):
        return tuple(n for n in (op.target, op.value, op.index, op.where) if n)
    return () if isinstance(op, (Input, Iota, Fill)) else (op.arg,)


def rewire(node: TensorNode, names: Mapping[str, str]) -> TensorNode:
    """The node with its operands under other names."""
    op = node.op
    if isinstance(op, Map):
        new: TensorOp = replace(op, args=tuple(names[a] if isinstance(a, str) else a for a in op.args))
    elif isinstance(op, (Reduce, Contract)):
        new = replace(op, args=tuple(names[a] for a in op.args))
    elif isinstance(op, Join):
        new = replace(op, parts=tuple(names[a] for a in op.parts))
    elif isinstance(op, Gather):
        new = replace(op, arg=names[op.arg], index=names[op.index], where=op.where and names[op.where])
    elif isinstance(op, Update):
        new = replace(
            op,
            target=names[op.target],
            value=names[op.value],
            index=op.index and names[op.index],
            where=op.where and names[op.where],
        )
    elif isinstance(op, (Input, Iota, Fill)):
        new = op
    else:
        new = replace(op, arg=names[op.arg])
    return replace(node, op=new)


def live(nodes: Sequence[TensorNode], wanted: Sequence[str], arguments: Sequence[str]) -> list[TensorNode]:
    """The nodes that outputs and mutations need, in order; every argument stays."""
    needed = set(wanted) | set(arguments)
    for node in reversed(nodes):
        if node.name in needed:
            needed.update(operands(node.op))
    return [n for n in nodes if n.name in needed]
