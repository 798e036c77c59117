"""From the captured tensor graph to the graph that is scheduled: the passes in order, each followed by the checks of verify.py."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..ir.graph import Graph
from ..ir.tensor import Slice, TensorGraph
from ..ir.verify import verify
from .axes import assign_axes
from .axes_model import CutsDoNotNest
from .contract_products import contract_products
from .cut_ranges import cut_ranges
from .fold_reductions import fold_reductions
from .free_scales import free_scales
from .merge_axes import merge_axes
from .select_written import select_written
from .simplify import simplify
from .simplify_tensors import simplify_tensors

GRAPH_PASSES: tuple[tuple[str, Callable[[Graph], Graph]], ...] = (
    ("simplify", simplify),  # First: a cast that is nothing would hide products from their sums.
    ("fold_reductions", fold_reductions),  # Before contraction: a product inside a sum belongs to the dot.
    ("free_scales", free_scales),  # After it: a dot that was distributed has dots of its own to free.
    ("contract_products", contract_products),
    ("simplify", simplify),  # Folding makes values that are equal to others.
    ("merge_axes", merge_axes),  # Last: what told axes apart may be gone by now.
)


MOST_RETRIES = 8
"""How many slices may be computed apart for the sake of views that cut across each other."""


def _axes(graph: TensorGraph) -> Graph:
    """The graph over named axes; a slice that cuts across another view of a computed value becomes a computation of its own."""
    for _ in range(MOST_RETRIES):
        try:
            return assign_axes(graph)
        except CutsDoNotNest as found:
            slices = [n.name for n in found.readers if isinstance(n.op, Slice)]
            apart = cut_ranges(graph, frozenset(slices[:1]))
            if not slices or apart is graph:
                raise
            graph = apart
    return assign_axes(graph)


def to_graph(tensor_graph: TensorGraph, numerics: str = "default") -> Graph:
    """The named graph of a captured function, folded and with contraction decided.

    Raises FusionError and UnsupportedOp for what cannot be one kernel, InternalError where a pass breaks a law.
    """
    graph = replace(_axes(cut_ranges(select_written(simplify_tensors(tensor_graph)))), numerics=numerics)
    verify(graph, "assign_axes")
    for name, run in GRAPH_PASSES:
        graph = verify(run(graph), name)
    return graph
