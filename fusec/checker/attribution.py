"""Which statement, for which row, wrote an element of a tensor: asked only about elements that are wrong."""
from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..ir.graph import Graph, Iota, Map, Node, Ref, Store
from ..ir.scalar import Lit
from .levels import device_of, interpreted
from .surgery import fresh, prune

WRITER, ROW = "writer_of_it", "row_of_it"


def attribute(graph: Graph, tensor: str, tensors: dict[str, Tensor], shape: tuple[int, ...]) -> tuple[Tensor, Tensor | None]:
    """([shape] i32: the position in graph.nodes of the value stored there, [shape] i32: the row it was stored for); -1 where none.

    The second is None where the function has no rows, or the tensor's values none.
    """
    position = {n.name: i for i, n in enumerate(graph.nodes)}
    rows = next((a for a in graph.axes if str(a.extent) == graph.rows), None)
    nodes: list[Node] = [n for n in graph.nodes if not isinstance(n.op, Store)]
    seen = False
    if rows is not None:
        nodes.append(Node("row_number", Iota(), (rows,), "i32"))
    for n in graph.nodes:
        if not isinstance(n.op, Store) or n.op.tensor != tensor:
            continue
        number = Node(f"writer_{n.name}", Map("identity", (Lit(position[n.op.arg.value]),)), (), "i32")
        nodes += [number, replace(n, name=f"{n.name}_writer", op=replace(n.op, tensor=WRITER, arg=Ref(number.name)), dtype="i32")]
        if rows is not None and rows in n.axes:
            seen = True
            nodes.append(replace(n, name=f"{n.name}_row", op=replace(n.op, tensor=ROW, arg=Ref("row_number")), dtype="i32"))
    added = tuple(fresh(name, "i32", graph.tensors[tensor].shape) for name in (WRITER, ROW)[: 1 + seen])
    device = device_of(tensors)
    minus = {a.name: torch.full(shape, -1, dtype=torch.int32, device=device) for a in added}
    derived = prune(replace(graph, nodes=tuple(nodes), arguments=graph.arguments + added, outputs=()))
    interpreted(derived, {**tensors, **minus})
    return minus[WRITER], minus.get(ROW)
