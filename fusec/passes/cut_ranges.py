"""Where a computed value is used in unequal ranges, each range becomes a value of its own, from the arguments on.

Rows whose parts have different widths (as many small heads as large ones, inputs beside gates) have no axis for the part: as one
value they could share a grid in no other way than by the rows. Equal ranges stay one value with an axis for the part.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..ir.tensor import (
    Contract, Expand, Gather, Input, Join, Map, Permute, Reduce, Reshape, Shape, Slice, TensorGraph, TensorNode, Update,
)
from .changed_parts import flow_back
from .picks import composed, picked
from .push_reads import Picks, Pusher, Range, through_reshape
from .simplify_tensors import drop_dead, simplify_tensors

Ranges = set[tuple[int, int]]


def cut_ranges(graph: TensorGraph, also: frozenset[str] = frozenset()) -> TensorGraph:
    """The same function with unequal ranges of computed values computed apart, stores of what they share included.

    Before: y = f(x); a = y[:4]; b = y[4:10]     After: a = f(x[:4]); b = f(x[4:10])

    Gathers from computed values become computations on gathered ones where that is possible, else a search among the elements.
    `also` names slices that are computed apart although nothing here asks for it.
    """
    pusher = Pusher(graph)
    same: dict[str, str] = {}
    for node in graph.nodes:
        if isinstance(node.op, Gather):
            loads = _loads(graph, node.op.arg)
            from_memory = replace(node.op, arg=_sliced_first(pusher, node.op.arg)) if loads else node.op
            made = composed(pusher, node, from_memory) if loads else _pick(pusher, node, node.op)
            if made is not None:
                same[node.name] = made
    for node in _uneven_slices(graph, also):
        assert isinstance(node.op, Slice)
        length = node.shape[node.op.dim]
        assert isinstance(length, int)
        made = pusher.part(node.op.arg, Range(node.op.dim, node.op.start, length))
        if made is not None:
            same[node.name] = made
    if not same:
        return graph
    mutations = tuple((a, _cut_mutation(pusher, graph, a, v)) for a, v in graph.mutations)
    for name, made in same.items():  # A removed node stands for what replaces it: a reshape to its own shape.
        pusher.table[name] = replace(pusher.table[name], op=Reshape(made))
    graph = replace(pusher.ordered(graph), mutations=mutations)
    return _keep_cuts(graph)


def _sliced_first(pusher: Pusher, name: str) -> str:
    """A view of what an index picked, as a reshape of what it picks from a slice: x[i][:, a:b] -> x[:, a:b][i]."""
    node, op = pusher.table[name], pusher.table[name].op
    if isinstance(op, Slice) and op.step == 1 and isinstance(length := node.shape[op.dim], int):
        return pusher.part(op.arg, Range(op.dim, op.start, length)) or name
    below = _sliced_first(pusher, op.arg) if isinstance(op, Reshape) else name
    while isinstance(inner := pusher.table[below].op, Reshape) and below != name:
        below = inner.arg
    return name if below == name or isinstance(op, Reshape) and below == op.arg else pusher.reshape(below, node.shape)


def _pick(pusher: Pusher, node: TensorNode, op: Gather) -> str | None:
    """A pick from a computed value: computed on what is picked, or found among the elements."""
    if op.where is not None:
        return None
    made = pusher.part(op.arg, Picks(op.dim, op.index, None, len(pusher.shape(op.index))))
    return made if made is not None else picked(pusher, node, op)


def _keep_cuts(graph: TensorGraph) -> TensorGraph:
    """Simplified, but for the whole updates of parts that say where a store is cut: those must not become one join again."""
    mutated = {v for _, v in graph.mutations}
    kept = {p for n in graph.nodes if n.name in mutated and isinstance(n.op, Join) for p in n.op.parts}
    return drop_dead(simplify_tensors(graph, frozenset(kept)))


def _loads(graph: TensorGraph, name: str) -> bool:
    """Whether a value is only views of an argument, or of what was just stored in one."""
    op = graph.table[name].op
    if isinstance(op, (Permute, Reshape, Expand, Slice, Gather)):
        return _loads(graph, op.arg)
    return isinstance(op, (Input, Update))


# ---- which slices --------------------------------------------------------------------------------------------------------------

def _uneven_slices(graph: TensorGraph, also: frozenset[str]) -> list[TensorNode]:
    """Slices of computed values that share a dim with slices of other lengths, none overlapping."""
    groups: dict[tuple[str, int], Ranges] = {}
    slices: list[tuple[TensorNode, tuple[str, int]]] = []
    for node in graph.nodes:
        if not isinstance(node.op, Slice) or node.op.step != 1 or not isinstance(length := node.shape[node.op.dim], int):
            continue
        name, part = _source(graph, node.op.arg, Range(node.op.dim, node.op.start, length))
        if not _loads(graph, name) and isinstance(graph.table[name].op, (Map, Reduce, Contract)):
            groups.setdefault((name, part.dim), set()).add((part.start, part.length))
            slices.append((node, (name, part.dim)))
    uneven = {key for key, ranges in groups.items() if _is_uneven(graph.table[key[0]].shape[key[1]], ranges)
              and not flow_back(graph, [node for node, own in slices if own == key])}
    return [node for node, key in slices if key in uneven or node.name in also]


def _source(graph: TensorGraph, name: str, part: Range) -> tuple[str, Range]:
    """The value that a view shows, and the range of it that a range of the view is."""
    node = graph.table[name]
    if isinstance(node.op, Permute):
        return _source(graph, node.op.arg, replace(part, dim=node.op.order[part.dim]))
    if isinstance(node.op, Reshape):
        found = through_reshape(graph.table[node.op.arg].shape, node.shape, part)
        if isinstance(found, Range):
            return _source(graph, node.op.arg, found)
    return name, part


def _is_uneven(extent: object, ranges: Ranges) -> bool:
    ordered = sorted(ranges)
    overlap = any(a + n > b for (a, n), (b, _) in zip(ordered, ordered[1:]))
    lengths = {n for _, n in ranges}
    equal = len(lengths) == 1 and all(a % n == 0 for a, n in ranges)
    return isinstance(extent, int) and len(ranges) > 1 and not overlap and not equal and lengths != {1}


# ---- stores --------------------------------------------------------------------------------------------------------------------

def _cut_mutation(pusher: Pusher, graph: TensorGraph, tensor: str, name: str) -> str:
    """What an argument ends as, written range by range where its value shares operands with what was cut."""
    node = graph.table[name]
    source = next((n for n in graph.nodes if isinstance(n.op, Input) and n.op.tensor == tensor), None)
    if source is None:
        return name
    update = node.op if isinstance(node.op, Update) else Update(source.name, name)
    if update.target != source.name:
        return name
    index = len(graph.table[update.index].shape) if update.index is not None else 0
    value = graph.table[update.value]
    for dim, extent in enumerate(value.shape):
        if update.index is not None and update.dim <= dim < update.dim + index or not isinstance(extent, int):
            continue
        pieces = _pieces(extent, _shared(pusher, graph, update.value, dim))
        target = dim if update.index is None or dim < update.dim else dim - index + 1
        if len(pieces) > 1 and value.shape[dim] == source.shape[target]:
            return _by_ranges(pusher, node, source, update, dim, target, pieces)
    return name


def _by_ranges(pusher: Pusher, node: TensorNode, source: TensorNode, update: Update, dim: int, target: int,
               pieces: list[tuple[int, int]]) -> str:
    """Join of updates of the ranges of an argument."""
    parts = []
    for start, length in pieces:
        shape: Shape = source.shape[:target] + (length,) + source.shape[target + 1:]
        old = pusher.add(source, Slice(source.name, target, start), shape)
        value = pusher.part(update.value, Range(dim, start, length))
        assert value is not None
        parts.append(pusher.add(replace(node, dtype=source.dtype), replace(update, target=old, value=value), shape))
    return pusher.add(replace(node, dtype=source.dtype), Join(tuple(parts), target), source.shape)


def _pieces(extent: int, ranges: Ranges) -> list[tuple[int, int]]:
    """The ranges and the gaps between them, in order; one piece where they overlap."""
    out: list[tuple[int, int]] = []
    end = 0
    for start, length in sorted(ranges):
        if start < end:
            return [(0, extent)]
        out += [(end, start - end)] if start > end else []
        out.append((start, length))
        end = start + length
    return out + ([(end, extent - end)] if end < extent else [])


def _shared(pusher: Pusher, graph: TensorGraph, name: str, dim: int) -> Ranges:
    """The ranges that were taken, along this dim, of a value or of what it is computed from."""
    found = {r for r in pusher.asked.get((name, dim), set()) if r != (0, graph.table[name].shape[dim])}
    for arg, at in producers(graph.table, graph.table[name], dim):
        if not found:
            found = _shared(pusher, graph, arg, at)
    return found


def producers(table: Mapping[str, TensorNode], node: TensorNode, dim: int) -> list[tuple[str, int]]:
    """(operand, dim) that a dim of a value runs along with, element by element."""
    op, shape = node.op, node.shape
    if isinstance(op, (Map, Expand)):
        args = [op.arg] if isinstance(op, Expand) else [a for a in op.args if isinstance(a, str)]
        pairs = [(a, dim - (len(shape) - len(table[a].shape))) for a in args]
        return [(a, d) for a, d in pairs if d >= 0 and table[a].shape[d] == shape[dim]]
    if isinstance(op, Reduce):
        full = [d for d in range(len(shape) + len(op.dims)) if d not in op.dims][dim]
        pairs = [(a, full - (len(shape) + len(op.dims) - len(table[a].shape))) for a in op.args]
        return [(a, d) for a, d in pairs if d >= 0 and table[a].shape[d] == shape[dim]]
    if isinstance(op, Contract):
        return [(a, w.index(op.output[dim])) for a, w in zip(op.args, op.inputs) if op.output[dim] in w]
    if isinstance(op, Permute):
        return [(op.arg, op.order[dim])]
    if isinstance(op, Reshape) and isinstance(extent := shape[dim], int):
        found = through_reshape(table[op.arg].shape, shape, Range(dim, 0, extent))
        same = found is not None and table[op.arg].shape[found.dim] == extent
        return [(op.arg, found.dim)] if found is not None and same else []
    if isinstance(op, (Join, Slice)) and op.dim != dim:
        return [(p, dim) for p in (op.parts if isinstance(op, Join) else (op.arg,))]
    if isinstance(op, Gather):
        rank = len(table[op.index].shape)
        if not op.dim <= dim < op.dim + rank:
            return [(op.arg, dim if dim < op.dim else dim - rank + 1)]
    return []
