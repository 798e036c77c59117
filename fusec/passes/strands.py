"""After this pass it is fixed in which order reductions over bounded axes are folded, whatever the extent they are compiled for.

An axis is bounded where a value read on the device says how much of it counts (a length against the positions). Compiled for more
positions, the same data must give the same bits (C12): so the order cannot follow the layout that suits the extent. Position i goes
to strand i mod K; a strand folds in ascending order, the strands fold pairwise as a butterfly over K lanes, and what is missing is
the identity. Of several bounded axes (pages, places in a page) the innermost has the strands.
"""

from __future__ import annotations

from ..ir.dtype import NARROW
from ..ir.geometry import thread_factors
from ..ir.graph import Graph, Iota, Load, Map, Node, Reduce, refs
from ..ir.monoid import MONOIDS
from ..ir.plan import Layout

FEW, MANY = 4, 32  # Strands: where there is a further axis that lanes can share, and where the values are no more than that.
FLOATS = {"f32", *NARROW}


def strands(graph: Graph) -> dict[str, dict[str, int]]:
    """Per reduction, the strands of each bounded axis that it folds."""
    bounded = _bounded(graph)
    domains = [frozenset(a.name for a in n.domain) for n in graph.nodes if n.dtype in FLOATS]
    axes: dict[str, list[str]] = {}
    shared = set[str]()
    for node in graph.nodes:
        if isinstance(node.op, Reduce) and not MONOIDS[node.op.monoid].orderless:
            mine = frozenset(a.name for a in node.domain)
            axes[node.name] = [a.name for a in node.op.axes if a.name in bounded]
            if axes[node.name] and any(set(axes[node.name]) <= d < mine for d in domains):
                shared.add(axes[node.name][-1])
    return {
        name: dict.fromkeys(found, 1) | {found[-1]: FEW if found[-1] in shared else MANY} for name, found in axes.items() if found
    }


def _bounded(graph: Graph) -> frozenset[str]:
    """Axes whose positions are compared with something read from memory."""
    positions: dict[str, frozenset[str]] = {}
    read: dict[str, bool] = {}
    found: set[str] = set()
    for node in graph.nodes:
        needs = [r.value for r in refs(node.op)]
        own = frozenset({node.axes[0].name}) if isinstance(node.op, Iota) else frozenset()
        positions[node.name] = own.union(*(positions[n] for n in needs))
        read[node.name] = isinstance(node.op, Load) or any(read[n] for n in needs)
        if isinstance(node.op, Map) and node.dtype == "bool" and read[node.name]:
            found |= positions[node.name]
    return frozenset(found)


def realises(layout: Layout, axis: str, count: int) -> bool:
    """Whether a layout folds an axis in `count` strands: its innermost digit is that many lanes, all others are one thread's."""
    digits = thread_factors(layout, (axis,))
    if count == 1:
        return not digits
    factors = layout.factors(axis)
    return len(digits) == 1 and digits[0][1] == len(factors) - 1 and digits[0][2].extent == count and digits[0][2].kind == "LANE"


def fits(orders: dict[str, dict[str, int]], node: Node, layout: Layout) -> bool:
    """Whether a layout of a node's domain folds its bounded axes in the order that is fixed for them."""
    return all(realises(layout, axis, count) for axis, count in orders.get(node.name, {}).items())
