"""FUSEC_DEBUG=1: what a call promises is checked before it is launched, and what the kernel leaves unwritten afterwards.

A debug mode: it computes the function once more with torch operations on the call's device, and waits for the device. Before the
launch: indices out of range, two live rows that write one slot, NaN at a written rounding, a number that a rounding makes infinite;
each with its rows and source line, and nothing was written. Then fresh outputs are poisoned, and an element that still is
afterwards is ours to explain.
"""
from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError, FusecError, InternalError
from ..ir.dtype import NARROW
from ..ir.graph import DimIndex, Graph, Index, Load, Map, Node, Reduce, Ref, Store, refs
from ..ir.interpret import Run
from ..log import warn_once
from .launch import Plan

POISON = 777.0
NAMED = 8
"""Rows that a message names at most."""


def debugging() -> bool:
    """Whether calls are to be checked: FUSEC_DEBUG=1."""
    return os.environ.get("FUSEC_DEBUG", "") not in ("", "0")


class Watched:
    """A launch plan whose calls are checked; in everything else the plan itself."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.graph, self.names = plan, plan.graph, plan.names

    def run(self, tensors: list[Tensor], outputs: Sequence[Tensor]) -> Any:
        """Check, launch, check. Raises ArgumentError, FusecError or InternalError as the module says."""
        plan = self.plan
        if not plan.launches:
            return plan.run(tensors, outputs)
        if plan.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            warn_once(f"{plan.graph.name}: FUSEC_DEBUG checks no call while a CUDA graph is captured")
            return plan.run(tensors, outputs)
        check_call(plan.graph, dict(zip(plan.names, tensors)))
        made = list(outputs) or [torch.empty(shape, dtype=dtype, device=plan.device) for shape, dtype in plan.allocations]
        for t in made:
            poison(t)
        found = plan.run(tensors, made)
        for name, t in zip((a.name for a in plan.graph.fresh), made):
            check_written(plan.graph.name, name, t)
        return found


def watched(plan: Plan) -> Any:
    """The plan, checked where the debug mode is on."""
    return Watched(plan) if debugging() else plan


# ---- before the launch -----------------------------------------------------------------------------------------------------------


def check_call(graph: Graph, tensors: Mapping[str, Tensor]) -> None:
    """ArgumentError for indices out of range and for slots that two live rows write, FusecError for NaN and inf. Writes nothing."""
    device = next((t.device for t in tensors.values()), torch.device("cpu"))
    with device, torch.no_grad():
        run = Run(graph, dict(tensors), "f32", {})
        for node in graph.nodes:
            if isinstance(node.op, (Load, Store)):
                _check_range(run, node, node.op)
            if isinstance(node.op, Store):
                _check_distinct(run, node, node.op)
            else:
                run.compute(node)
        absent = _absent(run)
        for node in graph.nodes:
            _check_finite(run, node, absent)


def _check_range(run: Run, node: Node, op: Load | Store) -> None:
    if op.tensor not in run.tensors or not any(isinstance(d.source, Ref) for dim in op.index for d in dim):
        return
    live = run.read(op.where, node.axes) if op.where is not None else None
    for dim, at in enumerate(run.index(op.index, node.axes)):
        if not any(isinstance(d.source, Ref) for d in op.index[dim]):
            continue
        size = run.tensors[op.tensor].shape[dim]
        wrong = (at < 0) | (at >= size)
        wrong = wrong if live is None else wrong & live
        if bool(wrong.any()):
            first = [int(i) for i in wrong.nonzero()[0]]
            value = int(at.expand(wrong.shape)[tuple(first)])
            does = "writes" if isinstance(op, Store) else "picks"
            raise ArgumentError(
                f"{run.graph.name}: {_rows(run, node, wrong)} {does} element {value} of dim {dim} of {op.tensor}, which has {size}"
                f"{_by(run.graph, op.index[dim])}", node.loc, "an index must lie inside of what it picks from; nothing was written")


def _check_distinct(run: Run, node: Node, op: Store) -> None:
    if not any(isinstance(d.source, Ref) for dim in op.index for d in dim):
        return
    picked = run.index(tuple(tuple(d for d in dim if isinstance(d.source, Ref)) for dim in op.index), node.axes)
    live = run.read(op.where, node.axes) if op.where is not None else None
    shape = torch.broadcast_shapes(*(p.shape for p in picked), *(() if live is None else (live.shape,)))
    along = {node.axes[i].name for i, n in enumerate(shape) if n > 1}

    def own(dim: DimIndex) -> DimIndex:
        return tuple(d for d in dim if isinstance(d.source, Ref) or (isinstance(d.source, Index) and d.source.axis in along))

    at = torch.stack([i.expand(shape).flatten() for i in run.index(tuple(map(own, op.index)), node.axes)], 1)
    points = torch.arange(at.shape[0])
    if live is not None:
        keep = live.expand(shape).flatten()
        at, points = at[keep], points[keep]
    if not at.shape[0]:
        return
    slots, which, count = torch.unique(at, dim=0, return_inverse=True, return_counts=True)
    if not bool((count > 1).any()):
        return
    first = int((count > 1).nonzero()[0])
    wrong = torch.zeros(shape, dtype=torch.bool).flatten()
    wrong[points[which == first]] = True
    slot = [int(n) for n, dim in zip(slots[first], op.index) if any(isinstance(d.source, Ref) for d in dim)]
    raise ArgumentError(
        f"{run.graph.name}: {_rows(run, node, wrong.view(shape))} write the same elements of {op.tensor}, at "
        f"{', '.join(map(str, slot))}{_by(run.graph, tuple(d for dim in op.index for d in dim))}", node.loc,
        "two rows that take part need slots of their own; rows that take none need a predicate. Nothing was written")


def _rows(run: Run, node: Node, wrong: Tensor) -> str:
    """The rows at which something is wrong, in words; coordinates where the node has no rows."""
    dim = next((i for i, a in enumerate(node.axes) if str(a.extent) == run.graph.rows and wrong.shape[i] > 1), None)
    if dim is None:
        at = wrong.nonzero()[0].tolist() if wrong.dim() else []
        names = ", ".join(f"{a.name}={i}" for a, i, n in zip(node.axes, at, wrong.shape) if n > 1)
        return f"[{names}]" if names else "the call"
    found = wrong.nonzero()[:, dim].unique().tolist()
    shown = ", ".join(map(str, found[:NAMED])) + (f" and {len(found) - NAMED} more" if len(found) > NAMED else "")
    return f"row{'s' * (len(found) > 1)} {shown}"


def _by(graph: Graph, digits: DimIndex) -> str:
    """The arguments that an index comes from, in words."""
    names = dict.fromkeys(n for d in digits if isinstance(d.source, Ref) for n in _arguments(graph, d.source.value))
    return f" (index {', '.join(names)})" if names else ""


def _arguments(graph: Graph, value: str) -> Iterator[str]:
    op = graph.table[value].op
    if isinstance(op, Load):
        yield op.tensor
    for ref in refs(op):
        yield from _arguments(graph, ref.value)


def _absent(run: Run) -> Tensor | None:
    """[rows] bool: rows that take no part, as far as a paged access has a predicate of the rows alone."""
    found = None
    for node in run.graph.nodes:
        if not isinstance(node.op, (Load, Store)) or node.op.where is None:
            continue
        live = run.read(node.op.where, node.axes)
        wide = [i for i, n in enumerate(live.shape) if n > 1]
        if len(wide) == 1 and str(node.axes[wide[0]].extent) == run.graph.rows:
            found = ~live.flatten() if found is None else found | ~live.flatten()
    return found


def _check_finite(run: Run, node: Node, absent: Tensor | None) -> None:
    if not isinstance(node.op, (Map, Reduce)) or node.dtype not in NARROW:
        return
    value = run.values[node.name]
    wrong, what = value.isnan(), "NaN"
    operands = [run.values[a.value] for a in node.op.args if isinstance(a, Ref)]
    if not bool(wrong.any()) and not any(bool(o.isinf().any()) for o in operands if o.is_floating_point()):
        wrong, what = value.isinf(), "infinite"
    dim = next((i for i, a in enumerate(node.axes) if str(a.extent) == run.graph.rows), None)
    if absent is not None and dim is not None and absent.numel() == value.shape[dim]:
        wrong = wrong & ~absent.view([-1 if i == dim else 1 for i in range(value.dim())])
    if bool(wrong.any()):
        at = wrong.nonzero()[0].tolist()
        place = ", ".join(f"{a.name}={i}" for a, i in zip(node.axes, at))
        where = f"in {_rows(run, node, wrong)}, first at [{place}]"
        raise FusecError(f"{run.graph.name}: {node.name} is {what} at its rounding to {node.dtype}, {where}", node.loc,
                         "nothing was written; fusec.dump_inputs saves the arguments of a call")


# ---- afterwards ------------------------------------------------------------------------------------------------------------------


def poison(t: Tensor) -> None:
    """777.0 everywhere; NaN in 8-bit floats, whose largest number saturated results have; 77 in integers, True in bools."""
    if t.is_floating_point():
        t.copy_(torch.full_like(t, float("nan") if t.element_size() == 1 else POISON, dtype=torch.float32).to(t.dtype))
    else:
        t.fill_(True if t.dtype == torch.bool else 77)


def check_written(function: str, name: str, t: Tensor) -> None:
    """InternalError where elements of a fresh float output still are poison."""
    if not t.is_floating_point() or not t.numel():
        return
    left = t.float().isnan() if t.element_size() == 1 else t.float() == torch.tensor(POISON).to(t.dtype).float().item()
    if bool(left.any()):
        at = left.nonzero()[0].tolist()
        raise InternalError(f"{function}: {int(left.sum())} elements of {name} were not written, the first at {at}")
