"""From the captured tensor graph to the graph that is scheduled: the passes in order, each followed by the checks of verify.py."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ..ir.graph import Graph
from ..ir.tensor import TensorGraph
from ..ir.verify import verify
from .axes import assign_axes
from .contract_products import contract_products
from .cut_ranges import cut_ranges
from .fold_reductions import fold_reductions
from .simplify import simplify
from .simplify_tensors import simplify_tensors

GRAPH_PASSES: tuple[tuple[str, Callable[[Graph], Graph]], ...] = (
    ("simplify", simplify),  # First: a cast that is nothing would hide products from their sums.
    ("fold_reductions", fold_reductions),  # Before contraction: a product inside a sum belongs to the dot.
    ("contract_products", contract_products),
    ("simplify", simplify),  # Folding makes values that are equal to others.
)


def to_graph(tensor_graph: TensorGraph, numerics: str = "default") -> Graph:
    """The named graph of a captured function, folded and with contraction decided.

    Raises FusionError and UnsupportedOp for what cannot be one kernel, InternalError where a pass breaks a law.
    """
    graph = replace(assign_axes(cut_ranges(simplify_tensors(tensor_graph))), numerics=numerics)
    verify(graph, "assign_axes")
    for name, run in GRAPH_PASSES:
        graph = verify(run(graph), name)
    return graph
