"""The check build: a graph that also stores its value at each written rounding, and the model that goes on from those values."""
from __future__ import annotations

from dataclasses import dataclass, replace

from ..ir.axis import Axis
from ..ir.dtype import FLOATS, NARROW
from ..ir.graph import Graph, Map, Node, Reduce, Ref, Store
from ..ir.tensor import Argument
from .surgery import extents, fresh, load_all, redirect, storage_axes, store_all

PROBE, GIVEN, WIDE = "probe_", "given_", "wide_"
WIDER = {"bf16": {"f32"}, "f16": {"f32"}, "f8e4m3": {"f16", "bf16", "f32"}, "f8e5m2": {"f16", "bf16", "f32"}, "f32": set()}
"""Float types that hold every number of a type."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A fresh fp32 output `tensor`, dense over `axes`, that holds what a register holds for node `value`.

    Were a rounding to a narrower type dropped, a store in that type would hide it. The first `copies` axes are not the value's:
    every row stores it once.
    """

    value: str
    tensor: str
    axes: tuple[Axis, ...]
    copies: int = 0


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
    chosen, rows, found = roundings(graph) if nodes is None else nodes, rows_axis(graph), []
    for node in chosen:
        extra = (rows,) if rows is not None and rows not in node.axes else ()
        found.append(Probe(node.name, PROBE + node.name, extra + storage_axes(node, graph.rows), len(extra)))
    return tuple(found)


def rows_axis(graph: Graph) -> Axis | None:
    """The axis of the rows, as the Stores have it: a kernel's results all have it, and so must its probes."""
    return next((a for n in graph.nodes if isinstance(n.op, Store) for a in n.axes if str(a.extent) == graph.rows), None)


def with_probes(graph: Graph, nodes: tuple[Node, ...] | None = None) -> Graph:
    """The graph with a fresh output and a Store for the value at each of `nodes` (by default: at each written rounding).

    Everything else stays; a probe lies dense in memory, rows outermost, in fp32.
    """
    added = {p.value: p for p in probes(graph, nodes)}
    out: list[Node] = []
    for node in graph.nodes:
        out.append(node)
        if node.name in added:
            probe = added[node.name]
            wide = Node(WIDE + node.name, Map("identity", (Ref(node.name),)), node.axes, "f32", node.loc)
            out += [wide, store_all(wide, probe.tensor, probe.axes)]
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
            axes = chosen[node.name].axes[chosen[node.name].copies:]
            arguments.append(fresh(names[node.name], node.dtype, extents(axes)))
            out.append(load_all(names[node.name], names[node.name], axes, node.axes, node.dtype, node.loc))
    return replace(probed, nodes=tuple(out), arguments=graph.arguments + tuple(arguments))
