"""Named axes: every dim becomes a product of axes, views become binds of references, accesses to memory become Loads and Stores.

Afterwards no value and no iteration space carries an axis twice. The algorithm: dims are atoms; reshapes cut atoms into common
pieces; all other edges are links that copy cuts but unite nothing (atoms.py, axes_model.py); then links are coalesced as registers
are (axes_coalesce.py), and what could not be united stays a bind: a candidate for an exchange.
"""
from __future__ import annotations

from ..errors import FusionError
from ..ir import graph as g
from ..ir.tensor import Contract, Gather, Input, Join, Map, Reduce, TensorGraph, TensorNode, Update
from .axes_coalesce import AxisTable, coalesce
from .axes_emit import Emitter
from .axes_model import VIEWS, Model, Write, split_equal_ranges
from .axes_writes import fresh_tensors, plan_writes
from .names import Names


def assign_axes(tensor_graph: TensorGraph) -> g.Graph:
    """The graph over named axes that does what the tensor graph does.

    Raises FusionError where a view is no index map, an index picks from a computed value, or a tensor is read again through
    another index than it was updated through; UnsupportedOp for forms without a rule.
    """
    model = Model(tensor_graph)
    arguments = frozenset(a.name for a in tensor_graph.arguments)
    returned = [o for o in tensor_graph.outputs if o[0] not in "=!"]  # Not an argument itself, not a constant.
    table = tensor_graph.table
    stems = ["out"] if len(returned) == 1 else [f"out{i}" for i in range(len(returned))]
    fresh = fresh_tensors(tuple((stem, table[o].shape, table[o].dtype) for stem, o in zip(stems, returned)), arguments)
    writes = plan_writes(model, fresh, tuple(returned))
    _settle(model)
    live = _live(model, writes)
    classes = coalesce(model, live, writes)
    names = Names(arguments | {t.name for t in fresh})
    axes = AxisTable(model, classes, names)
    nodes = _emit(model, live, writes, axes, names)
    outputs = iter(fresh)
    return g.Graph(tensor_graph.name, tuple(axes.axes.values()), tensor_graph.arguments, fresh, nodes,
                   tuple(o if o[0] in "=!" else next(outputs).name for o in tensor_graph.outputs),
                   tensor_graph.structure, tensor_graph.rows)


def _settle(model: Model) -> None:
    """All links refined; a cut that does not nest is the user's error, at the read or view that makes it."""
    broken = model.atoms.settle()
    if not broken:
        split_equal_ranges(model.atoms)
        return
    for link, loc, what in model.owners:
        if link is broken[0]:
            raise FusionError(f"two views cut a dim of {what} at places that do not nest", loc,
                              "view the sizes as products of common factors, or slice at multiples of one size")


def needs(node: TensorNode) -> list[str]:
    """The values a node reads."""
    op = node.op
    if isinstance(op, (Map, Reduce, Contract)):
        return [a for a in op.args if isinstance(a, str)]
    if isinstance(op, Join):
        return list(op.parts)
    if isinstance(op, Update):
        return [v for v in (op.target, op.value, op.index, op.where) if v is not None]
    more = [v for v in (op.index, op.where) if v is not None] if isinstance(op, Gather) else []
    return ([op.arg] if isinstance(op, VIEWS) else []) + more


def _live(model: Model, writes: list[Write]) -> list[str]:
    """The values that are computed or read, in order of the function."""
    seen: set[str] = set()
    stack = [w.value for w in writes]
    for pick in (w.place[-1].pick for w in writes):
        stack += [v for v in (pick.index, pick.where) if v] if pick is not None else []
    while stack:
        name = stack.pop()
        if name not in seen:
            seen.add(name)
            op = model.values[name].node.op
            stack += [] if isinstance(op, Update) else needs(model.values[name].node)
    return [n.name for n in model.graph.nodes if n.name in seen]


def _emit(model: Model, live: list[str], writes: list[Write], axes: AxisTable, names: Names) -> tuple[g.Node, ...]:
    emitter = Emitter(model, axes, names)
    for name in live:
        value = model.values[name]
        if value.root == name and not isinstance(value.node.op, (Input, Update)) and type(value.node.op).__name__ != "Fill":
            emitter.value(value)
    for write in writes:
        emitter.store(write)
    return tuple(emitter.nodes)
