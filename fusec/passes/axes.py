"""Named axes: every dim becomes a product of axes, views become binds of references, accesses to memory become Loads and Stores.

Afterwards no value and no iteration space carries an axis twice. The algorithm: dims are atoms; reshapes cut atoms into common
pieces; all other edges are links that copy cuts but unite nothing (atoms.py, axes_model.py); then links are coalesced as registers
are (axes_coalesce.py), and what could not be united stays a bind: a candidate for an exchange.
"""
from __future__ import annotations

from ..errors import FusionError, Loc
from ..ir import graph as g
from ..ir.tensor import Argument, Fill, Input, Iota, TensorGraph, Update
from .atoms import Link
from .axes_coalesce import AxisTable, coalesce
from .axes_emit import Emitter
from .axes_model import CutsDoNotNest, Model, Write, split_equal_ranges
from .axes_writes import add_writes, fresh_tensors
from .names import Names
from .simplify_tensors import operand_names
from .written import Written, written, written_whole


def assign_axes(tensor_graph: TensorGraph) -> g.Graph:
    """The graph over named axes that does what the tensor graph does.

    Raises FusionError where a view is no index map, an index picks from a computed value, or a tensor is read again through
    another index than it was updated through; UnsupportedOp for forms without a rule.
    """
    arguments = frozenset(a.name for a in tensor_graph.arguments)
    returned = tuple(o for o in tensor_graph.outputs if o[0] not in "=!")  # Not an argument itself, not a constant.
    _check_returned(tensor_graph, returned)
    fresh = _fresh(tensor_graph, returned, arguments)
    results = tuple(w for t, o in zip(fresh, returned) for w in written_whole(tensor_graph, t.name, o))
    writes = written(tensor_graph) + results
    live = _live(tensor_graph, writes)
    model = Model(tensor_graph, frozenset(live))
    stores = add_writes(model, writes, fresh)
    _settle(model)
    classes = coalesce(model, live, stores)
    names = Names(arguments | {t.name for t in fresh})
    axes = AxisTable(model, classes, stores, names)
    nodes = _emit(model, live, stores, axes, names)
    outputs = iter(fresh)
    return g.Graph(tensor_graph.name, tuple(axes.axes.values()), tensor_graph.arguments, fresh, nodes,
                   tuple(o if o[0] in "=!" else next(outputs).name for o in tensor_graph.outputs),
                   tensor_graph.structure, tensor_graph.rows)


def _check_returned(graph: TensorGraph, returned: tuple[str, ...]) -> None:
    for name in returned:
        node = graph.table[name]
        if isinstance(node.op, Update):
            raise FusionError("an updated copy of a tensor is returned: all of it would have to be written", node.loc,
                              "update the argument in place and return it")


def _fresh(graph: TensorGraph, returned: tuple[str, ...], taken: frozenset[str]) -> tuple[Argument, ...]:
    """Tensors for the returned values: `out`, or `out0`, `out1`, …"""
    stems = ["out"] if len(returned) == 1 else [f"out{i}" for i in range(len(returned))]
    return fresh_tensors(tuple((stem, graph.table[o].shape, graph.table[o].dtype) for stem, o in zip(stems, returned)), taken)


def _settle(model: Model) -> None:
    """All links refined; a cut that does not nest is the user's error, at the read or view that makes it."""
    broken = model.atoms.settle()
    if not broken:
        split_equal_ranges(model.atoms)
        return
    found = [(link, node, what) for link, node, what in model.owners if any(link is b for b in broken)]
    pieces = [(node, _radix(model, link)) for link, node, _ in found if node is not None]
    readers = [node for node, _ in pieces]
    raise CutsDoNotNest(found[0][2], readers, [r for _, r in pieces], readers[0].loc if readers else Loc())


def _radix(model: Model, link: Link) -> tuple[int, ...]:
    extents = [model.atoms.extent(leaf) for leaf in model.atoms.leaves(link.whole)]
    return tuple(n if isinstance(n, int) else 0 for n in extents)


def _live(graph: TensorGraph, writes: tuple[Written, ...]) -> list[str]:
    """The values that are computed or read, in order of the function."""
    table, seen = graph.table, set[str]()
    stack = [w.value for w in writes]
    stack += [v for w in writes if w.update is not None for v in (w.update.index, w.update.where) if v is not None]
    while stack:
        name = stack.pop()
        if name not in seen:
            seen.add(name)
            stack += operand_names(table[name].op)
    return [n.name for n in graph.nodes if n.name in seen]


def _emit(model: Model, live: list[str], writes: list[Write], axes: AxisTable, names: Names) -> tuple[g.Node, ...]:
    emitter = Emitter(model, axes, names)
    for name in live:
        value = model.values[name]
        if value.root == name and not isinstance(value.node.op, (Input, Fill, Iota)):
            emitter.value(value)
    for write in writes:
        emitter.store(write)
    return tuple(emitter.nodes)
