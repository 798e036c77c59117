"""Building blocks for the checker's graph transformations: fresh tensors, stores of whole values, dead nodes.

The checker has no evaluator of its own. What it wants to know of a graph (the model from a kernel's roundings on, which elements a
call owns, how far one ulp reaches) is itself a graph, derived from the given one and run by the interpreter.
"""
from __future__ import annotations

from dataclasses import replace

from ..errors import Loc
from ..ir.axis import Axis
from ..ir.graph import Digit, Graph, Index, Load, Map, Node, Op, Ref, Store
from ..ir.rewrite import drop_dead, map_refs
from ..ir.scalar import Lit
from ..ir.tensor import Argument, Shape


def fresh(name: str, dtype: str, shape: Shape) -> Argument:
    """A dense row-major tensor; a stride that a dynamic extent enters is free."""
    strides: list[int | None] = []
    step: int | None = 1
    for extent in reversed(shape):
        strides.append(step if extent != 1 else 0)
        step = step * extent if step is not None and isinstance(extent, int) else None
    return Argument(name, dtype, shape, tuple(reversed(strides)))


def storage_axes(node: Node, rows: str | None) -> tuple[Axis, ...]:
    """The order in which a value is laid out: dynamic axes first, so that all strides but theirs are static; then its own order."""
    return tuple(sorted(node.axes, key=lambda a: (not a.dynamic, a.dynamic and str(a.extent) != rows)))


def store_all(node: Node, tensor: str, axes: tuple[Axis, ...]) -> Node:
    """The Store of a whole value into a dense tensor over `axes` ([1] for a scalar)."""
    index = tuple((Digit(Index(a.name)),) for a in axes) or ((),)
    return Node(f"store_{tensor}", Store(tensor, index, Ref(node.name)), axes, node.dtype, node.loc)


def load_all(name: str, tensor: str, axes: tuple[Axis, ...], own: tuple[Axis, ...], dtype: str, loc: Loc) -> Node:
    """The Load of a whole dense tensor over `axes` as a value over `own`."""
    return Node(name, Load(tensor, tuple((Digit(Index(a.name)),) for a in axes) or ((),)), own, dtype, loc)


def extents(axes: tuple[Axis, ...]) -> Shape:
    return tuple(a.extent for a in axes) or (1,)


def redirect(op: Op, names: dict[str, str]) -> Op:
    """The op with every reference to a value in `names` made to the other value, index and predicate references included."""
    def turn(ref: Ref) -> Ref:
        return replace(ref, value=names.get(ref.value, ref.value))

    return map_refs(op, turn)


def constant(name: str, value: float | int, like: Node, dtype: str) -> Node:
    """The same number at every coordinate of a node."""
    return Node(name, Map("identity", (Lit(value),)), like.axes, dtype, like.loc)


def prune(graph: Graph) -> Graph:
    """Without the values that no Store needs, and without the fresh outputs that none writes."""
    graph = drop_dead(graph)
    written = {n.op.tensor for n in graph.nodes if isinstance(n.op, Store)}
    return replace(graph, fresh=tuple(t for t in graph.fresh if t.name in written),
                   outputs=tuple(o for o in graph.outputs if o.lstrip("=") in written))
