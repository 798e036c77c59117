"""Which elements a call reads and writes, and which of them only hold moved bits: told by a graph over small integers."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..ir.graph import Graph, Join, Load, Map, Node, Ref, Store
from ..ir.tensor import Argument
from .levels import device_of, interpreted, shape_of, sizes
from .probes import moves
from .storage import key, owned_bytes, raw
from .surgery import constant, fresh, prune

UNTOUCHED, COMPUTED, MOVED, READ = 0, 1, 2, 3
MASK, SEEN = "mask_", "seen_"


@dataclass(frozen=True, slots=True)
class Touched:
    """masks: per stored tensor UNTOUCHED, COMPUTED or MOVED, u8 of its shape. bytes: per storage of a mutated argument two bools
    per byte: read or written, and written."""

    masks: dict[str, Tensor]
    bytes: dict[int, tuple[Tensor, Tensor]]


def touched(graph: Graph, tensors: Mapping[str, Tensor]) -> Touched:
    """What a call on these arguments touches. The arguments stay as they are."""
    written = {key(tensors[n]) for n in graph.mutated}
    shared = tuple(n for n, t in tensors.items() if key(t) in written)
    derived, stored = ownership(graph, shared)
    known = sizes(graph.arguments, tensors)
    device = device_of(tensors)
    masks = {a.name: torch.zeros(shape_of(a, known), dtype=torch.uint8, device=device)
             for a in derived.arguments if a.name.startswith((MASK, SEEN))}
    interpreted(derived, {**tensors, **masks})
    found: dict[int, tuple[Tensor, Tensor]] = {}
    for storage in written:
        mine = [n for n in shared if key(tensors[n]) == storage]
        own = owned_bytes(((tensors[n], masks[MASK + n] != 0) for n in mine if MASK + n in masks), raw(tensors[mine[0]]))
        seen = owned_bytes(((tensors[n], masks[SEEN + n] != 0) for n in mine if SEEN + n in masks), raw(tensors[mine[0]]))
        found[storage] = own | seen, own
    return Touched({n: masks[MASK + n] for n in stored}, found)


def ownership(graph: Graph, reads: tuple[str, ...] = ()) -> tuple[Graph, tuple[str, ...]]:
    """(graph, tensors): for each tensor T that `graph` stores to, an argument `mask_T` of T's shape, u8, to be given as zeros.

    Running it leaves there UNTOUCHED, COMPUTED or MOVED (a value that went through nothing but loads, joins and lossless casts).
    For each of `reads` that is loaded from there is an argument `seen_T` likewise, READ where it is.
    """
    table, out = graph.table, []
    stored: dict[str, Argument] = {}
    seen: dict[str, Argument] = {}
    for node in graph.nodes:
        if isinstance(node.op, Store):
            stored[node.op.tensor] = graph.tensors[node.op.tensor]
            out.append(replace(node, name=MASK + node.name, dtype="u8", op=replace(
                node.op, tensor=MASK + node.op.tensor, arg=replace(node.op.arg, value=MASK + node.op.arg.value))))
            continue
        out += [node, _mask(graph, node, table)]
        if isinstance(node.op, Load) and node.op.tensor in reads:
            seen[node.op.tensor] = graph.tensors[node.op.tensor]
            mark = constant(SEEN + node.name, READ, node, "u8")
            out += [mark, Node(f"{mark.name}_store", Store(SEEN + node.op.tensor, node.op.index, Ref(mark.name), node.op.where),
                               node.axes, "u8", node.loc)]
    added = tuple(fresh(MASK + t.name, "u8", t.shape) for t in stored.values()) + tuple(
        fresh(SEEN + t.name, "u8", t.shape) for t in seen.values())
    return prune(replace(graph, nodes=tuple(out), arguments=graph.arguments + added, outputs=())), tuple(stored)


def _mask(graph: Graph, node: Node, table: dict[str, Node]) -> Node:
    name = MASK + node.name
    constants = isinstance(node.op, Map) and node.op.fn == "identity" and not isinstance(node.op.args[0], Ref)
    if isinstance(node.op, Load) or constants:
        return constant(name, MOVED, node, "u8")
    if moves(graph, node):
        ref = node.op.args[0]  # type: ignore[union-attr]
        return Node(name, Map("identity", (replace(ref, value=MASK + ref.value),)), node.axes, "u8", node.loc)
    if isinstance(node.op, Join):
        parts = tuple((start, length, replace(ref, value=MASK + ref.value)) for start, length, ref in node.op.parts)
        return Node(name, Join(node.op.axis, parts), node.axes, "u8", node.loc)
    return constant(name, COMPUTED, node, "u8")
