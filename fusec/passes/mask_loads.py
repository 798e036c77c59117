"""After this pass memory that a mask discards is not read.

    select(live, load(T), 0)   ->   load(T) where live

Both are 0 where `live` is false; where it is true nothing changes. Only where the Load has no other reader, and where the mask
is known before the Load: it depends on other values than the Load's own.
"""

from __future__ import annotations

from dataclasses import replace

from ..ir.dtype import NARROW
from ..ir.graph import Graph, Load, Map, Node, Ref, refs
from ..ir.scalar import Lit


def mask_loads(graph: Graph) -> Graph:
    """The graph with masked reads as predicated Loads; definitions stay before uses."""
    nodes = list(graph.nodes)
    for node in graph.nodes:
        load = _masked(graph, node)
        if load is None:
            continue
        assert isinstance(node.op, Map) and isinstance(load.op, Load) and isinstance(node.op.args[0], Ref)
        moved = replace(node, op=replace(load.op, where=node.op.args[0]), dtype=load.dtype)
        nodes[nodes.index(node)] = moved
        nodes.remove(load)
    return graph.with_nodes(tuple(nodes))


def _masked(graph: Graph, node: Node) -> Node | None:
    """The Load that a node masks with zero, where it can take the mask."""
    op = node.op
    if not (isinstance(op, Map) and op.fn == "select" and isinstance(op.args[0], Ref) and isinstance(op.args[1], Ref)):
        return None
    zero = isinstance(op.args[2], Lit) and op.args[2].value == 0 and str(float(op.args[2].value)) == "0.0"
    load = graph.table[op.args[1].value]
    plain = isinstance(load.op, Load) and load.op.where is None and not op.args[1].bind
    alone = len(graph.readers(load.name)) == 1 and sum(r.value == load.name for r in refs(op)) == 1
    whole = {a.name for a in load.axes} == {a.name for a in node.axes} and (
        load.dtype == node.dtype or load.dtype in NARROW and node.dtype == "f32"
    )
    return load if zero and plain and alone and whole else None
