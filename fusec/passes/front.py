"""From the captured tensor graph to the graph that is scheduled: the passes in order, each followed by the checks of verify.py."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ..ir.graph import Graph
from ..ir.scalar import Lit
from ..ir.tensor import Gather, Join, Slice, TensorGraph
from ..ir.verify import verify
from .axes import assign_axes
from .axes_model import CutsDoNotNest, StepDoesNotNest
from .contract_products import contract_products
from .cut_ranges import cut_ranges
from .fold_reductions import fold_reductions
from .free_scales import free_scales
from .lift_parts import lift_parts
from .make_nodes import Maker
from .merge_axes import merge_axes
from .nest_joins import nest_join, slice_blocks
from .outer_products import outer_products
from .select_written import select_written
from .share_reciprocals import share_reciprocals
from .simplify import simplify
from .simplify_tensors import simplify_tensors
from .split_joins import split_joins

GRAPH_PASSES: tuple[tuple[str, Callable[[Graph], Graph]], ...] = (
    ("lift_parts", lift_parts),  # First: joins keep values of one domain apart.
    ("simplify", simplify),  # Before sums: a cast that is nothing would hide products from them.
    ("fold_reductions", fold_reductions),  # Before contraction: a product inside a sum belongs to the dot.
    ("outer_products", outer_products),  # After it: dots are dots. Before scales are freed: a vector's own scale bounds it.
    ("free_scales", free_scales),  # After it: a dot that was distributed has dots of its own to free.
    ("share_reciprocals", share_reciprocals),  # After both: they look for quotients.
    ("contract_products", contract_products),
    ("simplify", simplify),  # Folding makes values that are equal to others.
    ("merge_axes", merge_axes),  # Last: what told axes apart may be gone by now.
)


MOST_RETRIES = 8
"""How many slices may be computed apart for the sake of views that cut across each other."""


def _axes(graph: TensorGraph) -> Graph:
    """The graph over named axes; what cuts across another view of a computed value becomes a computation of its own."""
    for _ in range(MOST_RETRIES):
        try:
            return assign_axes(graph)
        except CutsDoNotNest as found:
            apart = next((g for g in _apart(graph, found) if g is not graph), None)
            if apart is None:
                raise
            graph = apart
        except StepDoesNotNest as found:
            graph = _picked(graph, found)
    return assign_axes(graph)


def _picked(graph: TensorGraph, found: StepDoesNotNest) -> TensorGraph:
    """The graph with the elements of a slice with a step picked one by one; raises `found` where their number is not constant."""
    node, maker = found.node, Maker(graph)
    assert isinstance(node.op, Slice)
    if not isinstance(node.shape[node.op.dim], int):
        raise found
    places = maker.along(node, node.shape[node.op.dim], 0, 1)
    for fn, number in (("mul", node.op.step), ("add", node.op.start)):
        places = maker.map(node, fn, (places, Lit(number)), "i64")
    maker.table[node.name] = replace(node, op=Gather(node.op.arg, node.op.dim, places))
    return cut_ranges(simplify_tensors(maker.ordered(graph)))


def _apart(graph: TensorGraph, found: CutsDoNotNest) -> Iterator[TensorGraph]:
    """The graph with a reader that cuts across made in parts, as far as that can be done (else the graph itself)."""
    for node, radix in zip(found.readers, found.radix):
        if isinstance(node.op, Join) and len(radix) > 1 and 0 not in radix:
            nested = nest_join(graph, node.name, radix)
            yield split_joins(nested) if nested is not graph else graph
        if isinstance(node.op, Join):
            yield split_joins(graph, frozenset({node.name}))
    slices = [(node, radix) for node, radix in zip(found.readers, found.radix) if isinstance(node.op, Slice)]
    for node, _ in slices:
        yield cut_ranges(graph, frozenset({node.name}))
    for node, radix in slices:
        if len(radix) > 1 and 0 not in radix:
            yield slice_blocks(graph, node.name, radix)


def to_axes(tensor_graph: TensorGraph) -> Graph:
    """The named graph of a captured function as it is written: nothing is folded yet."""
    return _axes(cut_ranges(split_joins(select_written(simplify_tensors(tensor_graph)))))


def to_graph(tensor_graph: TensorGraph, numerics: str = "default") -> Graph:
    """The named graph of a captured function, folded and with contraction decided.

    Raises FusionError and UnsupportedOp for what cannot be one kernel, InternalError where a pass breaks a law.
    """
    graph = verify(replace(to_axes(tensor_graph), numerics=numerics), "assign_axes")
    for name, run in GRAPH_PASSES:
        graph = verify(run(graph), name)
    return graph
