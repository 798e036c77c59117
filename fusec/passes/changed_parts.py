"""Which joins put single elements of a value, changed element by element, back between ranges of it that stay.

Such a value is computed whole, and the join becomes a selection (lift_parts): neither is worth taking apart before.
"""
from __future__ import annotations

from ..ir.tensor import Expand, Join, Map, Permute, Reshape, Slice, TensorGraph, TensorNode
from .simplify_tensors import operand_names

ELEMENTWISE = (Map, Permute, Reshape, Expand, Slice, Join)


def changed_parts(graph: TensorGraph) -> frozenset[str]:
    """The names of these joins."""
    return frozenset(n.name for n in graph.nodes if isinstance(n.op, Join) and _changes(graph, n, n.op))


def flow_back(graph: TensorGraph, slices: list[TensorNode]) -> bool:
    """Whether slices of a value are read only by such joins in their place, single elements of it only on the way there."""
    joins, readers = changed_parts(graph), _readers(graph)
    results = {*graph.outputs, *(v for _, v in graph.mutations)}
    for node in slices:
        if not _is_single(node):
            if not readers[node.name] or not all(r.name in joins and _in_place(graph, node, r) for r in readers[node.name]):
                return False
    queue, seen = [n.name for n in slices if _is_single(n)], set[str]()
    while queue:
        name = queue.pop()
        if name in seen or name in joins:
            continue
        seen.add(name)
        if name in results or not all(isinstance(r.op, ELEMENTWISE) for r in readers[name]):
            return False
        queue += [r.name for r in readers[name]]
    return bool(joins)


def _changes(graph: TensorGraph, node: TensorNode, op: Join) -> bool:
    """Whether a join is made of ranges of values in their place and of single elements that are made of these."""
    parts = [graph.table[p] for p in op.parts]
    bases = {p.op.arg for p in parts if isinstance(p.op, Slice) and _in_place(graph, p, node)}
    changed = [p for p in parts if not _in_place(graph, p, node)]
    single = all(p.shape[op.dim] == 1 and _elementwise(graph, p.name, bases) for p in changed)
    return bool(bases) and bool(changed) and single


def _elementwise(graph: TensorGraph, name: str, bases: set[str]) -> bool:
    """Whether all that leads from some values to another is elementwise."""
    known = dict.fromkeys(bases, True)

    def depends(at: str) -> bool:
        if at not in known:
            known[at] = any([depends(o) for o in operand_names(graph.table[at].op)])
        return known[at]

    def fits(at: str) -> bool:
        if at in bases or not depends(at):
            return True
        op = graph.table[at].op
        return isinstance(op, ELEMENTWISE) and all(fits(o) for o in operand_names(op))
    return fits(name)


def _is_single(node: TensorNode) -> bool:
    return isinstance(node.op, Slice) and node.shape[node.op.dim] == 1


def _in_place(graph: TensorGraph, node: TensorNode, reader: TensorNode) -> bool:
    """Whether a join has a slice where it was taken from."""
    if not (isinstance(node.op, Slice) and isinstance(reader.op, Join) and reader.op.dim == node.op.dim):
        return False
    if node.op.step != 1 or reader.shape != graph.table[node.op.arg].shape:
        return False
    before = reader.op.parts[:reader.op.parts.index(node.name)]
    return sum(int(str(graph.table[p].shape[reader.op.dim])) for p in before) == node.op.start


def _readers(graph: TensorGraph) -> dict[str, list[TensorNode]]:
    """The nodes that read each node."""
    found: dict[str, list[TensorNode]] = {n.name: [] for n in graph.nodes}
    for node in graph.nodes:
        for operand in set(operand_names(node.op)):
            found[operand].append(node)
    return found
