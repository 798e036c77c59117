"""The captured graph without dead ops and without detours through views: on the tensor graph, before dims have names.

Slices of joins go to the parts they cover, joins of joins are one join, a read of what was just written is the written value.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..ir.tensor import (
    Contract, Expand, Gather, Join, Map, Permute, Reduce, Reshape, Shape, Slice, TensorGraph, TensorNode, TensorOp, Update,
)


def simplify_tensors(graph: TensorGraph, keep: frozenset[str] = frozenset()) -> TensorGraph:
    """The same function with fewer nodes: equal ones merged, views composed, reads after writes forwarded, dead ones gone.

    keep: values (and joins of them) that stay as they are.
    """
    rewriter = _Rewriter(keep)
    for node in graph.nodes:
        rewriter.visit(node)
    new = replace(graph, nodes=tuple(rewriter.nodes.values()),
                  mutations=tuple((a, rewriter.name(v)) for a, v in graph.mutations),
                  outputs=tuple(o if o[0] in "=!" else rewriter.name(o) for o in graph.outputs))
    return drop_dead(new)


def operand_names(op: TensorOp) -> list[str]:
    """The values an op reads, in order."""
    if isinstance(op, (Map, Reduce, Contract)):
        return [a for a in op.args if isinstance(a, str)]
    if isinstance(op, Join):
        return list(op.parts)
    if isinstance(op, Update):
        return [v for v in (op.target, op.value, op.index, op.where) if v is not None]
    if isinstance(op, Gather):
        return [v for v in (op.arg, op.index, op.where) if v is not None]
    return [op.arg] if isinstance(op, (Permute, Reshape, Expand, Slice)) else []


def renamed(op: TensorOp, name: Callable[[str], str]) -> TensorOp:
    """The op with the values it reads under other names."""
    if isinstance(op, Map):
        return replace(op, args=tuple(name(a) if isinstance(a, str) else a for a in op.args))
    if isinstance(op, (Reduce, Contract)):
        return replace(op, args=tuple(map(name, op.args)))
    if isinstance(op, Join):
        return replace(op, parts=tuple(map(name, op.parts)))
    if isinstance(op, Gather):
        return replace(op, arg=name(op.arg), index=name(op.index), where=op.where and name(op.where))
    if isinstance(op, Update):
        return replace(op, target=name(op.target), value=name(op.value), index=op.index and name(op.index),
                       where=op.where and name(op.where))
    return replace(op, arg=name(op.arg)) if isinstance(op, (Permute, Reshape, Expand, Slice)) else op


def drop_dead(graph: TensorGraph) -> TensorGraph:
    """Only what a mutation or an output needs."""
    table, live = graph.table, set[str]()
    stack = [v for _, v in graph.mutations] + [o for o in graph.outputs if o[0] not in "=!"]
    while stack:
        name = stack.pop()
        if name not in live:
            live.add(name)
            stack += operand_names(table[name].op)
    return replace(graph, nodes=tuple(n for n in graph.nodes if n.name in live))


class _Rewriter:
    """Visits nodes in order; `same` maps a removed node to the one that stands for it."""

    def __init__(self, keep: frozenset[str]) -> None:
        self.keep = keep
        self.nodes: dict[str, TensorNode] = {}
        self.same: dict[str, str] = {}
        self.known: dict[object, str] = {}
        self.count = 0

    def name(self, name: str) -> str:
        return self.same.get(name, name)

    def visit(self, node: TensorNode) -> None:
        """Add a node, or find the one that it equals after its rules were applied."""
        renamed = replace(node, op=self._renamed(node.op))
        fixed = node.name in self.keep or isinstance(node.op, Join) and self.keep.issuperset(node.op.parts)
        found = None if fixed else self._rule(renamed)
        self.same[node.name] = found if found is not None else self._add(renamed)

    def _add(self, node: TensorNode) -> str:
        key = (repr(node.op), node.shape, node.dtype)
        if key not in self.known:
            self.known[key] = node.name
            self.nodes[node.name] = node
        return self.known[key]

    def _new(self, like: TensorNode, op: TensorOp, shape: Shape) -> str:
        """A node made by a rule: simplified itself before it is added."""
        self.count += 1
        node = TensorNode(f"{like.name}__{self.count}", op, shape, like.dtype, like.loc, like.source)
        found = self._rule(node)
        return found if found is not None else self._add(node)

    def _renamed(self, op: TensorOp) -> TensorOp:
        return renamed(op, self.name)

    # ---- rules: each gives the name of a value that equals the node, or None ----------------------------------------------------

    def _rule(self, node: TensorNode) -> str | None:
        op = node.op
        if isinstance(op, Slice):
            return self._slice(node, op)
        if isinstance(op, Reshape):
            return self._reshape(node, op)
        if isinstance(op, Permute):
            return self._permute(node, op)
        if isinstance(op, Expand) and self.nodes[op.arg].shape == node.shape:
            return op.arg
        if isinstance(op, Join):
            return self._join(node, op)
        if isinstance(op, Gather):
            return self._gather(node, op)
        return self._update(node, op) if isinstance(op, Update) else None

    def _update(self, node: TensorNode, op: Update) -> str | None:
        """What is overwritten at once was never written: Update(Update(t, a, i), b, i) -> Update(t, b, i)."""
        if op.where is not None:
            return None
        if op.index is None:
            return self._whole(node, op)
        below = self.nodes[op.target].op
        if not isinstance(below, Update) or (below.index, below.dim) != (op.index, op.dim):
            return None
        return self._new(node, replace(op, target=below.target), node.shape)

    def _whole(self, node: TensorNode, op: Update) -> str | None:
        """Everything replaced by a value is the value: Update(t, v) -> v."""
        value = self.nodes[op.value]
        if value.dtype != node.dtype:
            return None
        return op.value if value.shape == node.shape else self._new(node, Expand(op.value), node.shape)

    def _reshape(self, node: TensorNode, op: Reshape) -> str | None:
        """Reshape(Reshape(x)) -> Reshape(x); Reshape(x) to its own shape -> x."""
        below = self.nodes[op.arg]
        if below.shape == node.shape:
            return op.arg
        return self._new(node, Reshape(below.op.arg), node.shape) if isinstance(below.op, Reshape) else None

    def _permute(self, node: TensorNode, op: Permute) -> str | None:
        """Permute(Permute(x)) -> Permute(x); an identity permutation -> x."""
        below = self.nodes[op.arg]
        if op.order == tuple(range(len(op.order))):
            return op.arg
        if not isinstance(below.op, Permute):
            return None
        return self._new(node, Permute(below.op.arg, tuple(below.op.order[i] for i in op.order)), node.shape)

    def _slice(self, node: TensorNode, op: Slice) -> str | None:
        """Slice(Slice(x)) -> Slice(x); a slice of a join that covers whole parts -> those parts, one inside a part -> its slice."""
        below = self.nodes[op.arg]
        if below.shape == node.shape:
            return op.arg
        if op.step != 1:
            return None
        if isinstance(below.op, Slice) and below.op.dim == op.dim and below.op.step == 1:
            return self._new(node, Slice(below.op.arg, op.dim, below.op.start + op.start), node.shape)
        if isinstance(below.op, Join):
            return self._slice_of_join(node, op, below.op)
        return None

    def _slice_of_join(self, node: TensorNode, op: Slice, join: Join) -> str | None:
        length = node.shape[op.dim]
        if not isinstance(length, int):
            return None
        if join.dim != op.dim:
            return None
        start, chosen = 0, []
        for part in join.parts:
            size = self.nodes[part].shape[op.dim]
            if not isinstance(size, int):
                return None
            end = start + size
            if start <= op.start and op.start + length <= end:
                return self._new(node, Slice(part, op.dim, op.start - start), node.shape)
            if op.start <= start and end <= op.start + length:
                chosen.append(part)
            elif start < op.start + length and op.start < end:
                return None
            start = end
        return self._new(node, Join(tuple(chosen), op.dim), node.shape)

    def _join(self, node: TensorNode, op: Join) -> str | None:
        """Join(a, Join(b, c)) -> Join(a, b, c); a join of one -> it; parts of no extent vanish; neighbouring slices are one."""
        parts: list[str] = []
        for part in op.parts:
            below = self.nodes[part]
            if below.shape[op.dim] == 0:
                continue
            parts += list(below.op.parts) if isinstance(below.op, Join) and below.op.dim == op.dim else [part]
        merged: list[str] = []
        for part in parts:
            both = self._neighbours(merged[-1], part, op.dim, node) if merged else None
            merged = merged[:-1] + [both] if both is not None else merged + [part]
        if len(merged) == 1:
            return merged[0]
        return self._add(replace(node, op=Join(tuple(merged), op.dim))) if tuple(merged) != op.parts else None

    def _neighbours(self, first: str, second: str, dim: int, like: TensorNode) -> str | None:
        """x[a : b] and x[b : c] -> x[a : c]."""
        a, b = self.nodes[first], self.nodes[second]
        if not (isinstance(a.op, Slice) and isinstance(b.op, Slice) and a.op.arg == b.op.arg and a.op.dim == b.op.dim == dim):
            return None
        length, more = a.shape[dim], b.shape[dim]
        if not isinstance(length, int) or not isinstance(more, int) or a.op.step != 1 or b.op.step != 1:
            return None
        if a.op.start + length != b.op.start:
            return None
        shape = a.shape[:dim] + (length + more,) + a.shape[dim + 1:]
        return self._new(replace(like, dtype=a.dtype), Slice(a.op.arg, dim, a.op.start), shape)

    def _gather(self, node: TensorNode, op: Gather) -> str | None:
        """A read of what was written through the same index is the written value.

        Update(t, v, index)[index] -> v          (the value already has the dtype of the tensor)
        """
        below = self.nodes[op.arg]
        if not isinstance(below.op, Update) or below.op.index != op.index or below.op.dim != op.dim:
            return None
        value = self.nodes[below.op.value]
        if below.op.where != op.where or op.where is not None or value.shape != node.shape or value.dtype != node.dtype:
            return None
        return below.op.value
