"""The form of every reduction: the order in which its elements are folded, read off the layout it was placed under.

The order is part of a kernel's meaning: a row's bits depend on it and on nothing else. Every schedule of one artifact must realise
the same forms; today an artifact has one schedule, so the layout pass chooses them, but for what strands.py fixes before.
"""

from __future__ import annotations

from ..ir.geometry import weight
from ..ir.graph import Reduce, ReduceForm
from ..ir.plan import REG, SERIAL, THREAD, VEC
from .problem import Placement, Problem


def reduce_forms(problem: Problem, placed: Placement) -> tuple[tuple[str, ReduceForm], ...]:
    """(reduction, form): registers ascending in one carry, turn by turn, then lanes in a butterfly, then warps ascending, block by
    block of a cluster."""
    rank = {a.name: i for i, a in enumerate(problem.graph.axes)}
    found: list[tuple[str, ReduceForm]] = []
    for node in problem.graph.nodes:
        if not isinstance(node.op, Reduce):
            continue
        layout = placed.layouts[node.name]
        axes = sorted((a.name for a in problem.grid.local(node.op.axes)), key=rank.__getitem__)
        digits = [(a, f, weight(layout.factors(a), i)) for a in axes for i, f in enumerate(layout.factors(a)) if f.extent > 1]
        serial = [d for place in (SERIAL, REG, VEC) for d in digits if d[1].place == place]
        lanes = sorted((d for d in digits if d[1].place == THREAD and d[1].step < 32), key=lambda d: d[1].step)
        warps = sorted((d for d in digits if d[1].place == THREAD and d[1].step >= 32), key=lambda d: d[1].step)
        steps = [("serial", a, f.extent, stride) for a, f, stride in reversed(serial)]
        steps += [("tree", a, f.extent, stride) for a, f, stride in lanes]
        steps += [("serial", a, f.extent, stride) for a, f, stride in warps]
        if problem.folds_blocks(node):
            steps += [("serial", problem.grid.cluster, problem.grid.peers, problem.grid.axes[-1][2])]
        found.append((node.name, ReduceForm(tuple(steps))))
    return tuple(found)
