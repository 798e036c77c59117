"""The check build: a graph that also stores its value at each written rounding, and the model that goes on from those values."""
from __future__ import annotations

from dataclasses import dataclass, replace

from ..ir.axis import Axis
from ..ir.dtype import BYTES, FLOATS, NARROW
from ..ir.graph import Graph, Map, Node, Reduce, Ref, Store
from ..ir.tensor import Argument
from .surgery import extents, fresh, load_all, redirect, storage_axes, store_all

PROBE, GIVEN, WIDE = "probe_", "given_", "wide_"
WIDER = {"bf16": {"f32"}, "f16": {"f32"}, "f8e4m3": {"f16", "bf16", "f32"}, "f8e5m2": {"f16", "bf16", "f32"}, "f32": set()}
"""Float types that hold every number of a type."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A fresh fp32 output `tensor`, dense over `axes`, that holds what a register holds for node `value`: were a rounding to a narrower
    type dropped, a store in that type would hide it."""

    value: str
    tensor: str
    axes: tuple[Axis, ...]


def moves(graph: Graph, node: Node) -> bool:
    """A Map that hands its operand on without losing a bit: no rounding is written there."""
    if not isinstance(node.op, Map) or node.op.fn != "identity" or not isinstance(node.op.args[0], Ref):
        return False
    source = graph.table[node.op.args[0].value].dtype
    return source == node.dtype or node.dtype in WIDER.get(source, ())


def roundings(graph: Graph) -> tuple[Node, ...]:
    """The values at which the function rounds to a type narrower than fp32, in order."""
    return tuple(n for n in graph.nodes if isinstance(n.op, (Map, Reduce)) and n.dtype in NARROW and not moves(graph, n))


def every_value(graph: Graph) -> tuple[Node, ...]:
    """All computed floats: where the first wrong one is looked for once something is wrong."""
    return tuple(n for n in graph.nodes if isinstance(n.op, (Map, Reduce)) and n.dtype in FLOATS)


def probes(graph: Graph, nodes: tuple[Node, ...] | None = None) -> tuple[Probe, ...]:
    """The probes that `with_probes` adds: one per node, of the written roundings by default."""
    chosen = roundings(graph) if nodes is None else nodes
    return tuple(Probe(n.name, PROBE + n.name, storage_axes(n, graph.rows)) for n in chosen)


def with_probes(graph: Graph, nodes: tuple[Node, ...] | None = None) -> Graph:
    """The graph with a fresh output and a Store for the value at each of `nodes` (by default: at each written rounding).

    Everything else stays; a probe lies dense in memory, rows outermost, in fp32.
    """
    added = {p.value: p for p in probes(graph, nodes)}
    out: list[Node] = []
    for node in graph.nodes:
        out.append(node)
        if node.name in added:
            wide = Node(WIDE + node.name, Map("identity", (Ref(node.name),)), node.axes, "f32", node.loc)
            out += [wide, store_all(wide, added[node.name].tensor, added[node.name].axes)]
    tensors = tuple(fresh(p.tensor, "f32", extents(p.axes)) for p in added.values())
    return replace(graph, nodes=tuple(out), fresh=graph.fresh + tensors, structure="tuple",
                   outputs=graph.outputs + tuple(t.name for t in tensors))


def with_given(graph: Graph, nodes: tuple[Node, ...] | None = None) -> Graph:
    """The model: each of `nodes` is computed and stored as in `with_probes`, and its readers go on from a given value instead.

    The given values are further arguments `given_<name>` of the value's dtype, dense over the axes of the probes.
    """
    chosen = {p.value: p for p in probes(graph, nodes)}
    names = {value: GIVEN + value for value in chosen}
    probed = with_probes(graph, nodes)
    out: list[Node] = []
    arguments: list[Argument] = []
    for node in probed.nodes:
        own = node.name.startswith(WIDE) or (isinstance(node.op, Store) and node.op.tensor.startswith(PROBE))
        out.append(node if own else replace(node, op=redirect(node.op, names)))
        if node.name in chosen:
            axes = chosen[node.name].axes
            arguments.append(fresh(names[node.name], node.dtype, extents(axes)))
            out.append(load_all(names[node.name], names[node.name], axes, node.axes, node.dtype, node.loc))
    return replace(probed, nodes=tuple(out), arguments=graph.arguments + tuple(arguments))


def probe_bytes(graph: Graph, rows: int) -> int:
    """Bytes that the probes of a graph's roundings take at so many rows: a check build has to have room for them."""
    total = 0
    for probe in probes(graph):
        count = BYTES["f32"]
        for axis in probe.axes:
            count *= axis.extent if isinstance(axis.extent, int) else rows
        total += count
    return total
