"""After this pass a dot does not wait for a scale of its operand that follows from a reduction over the same axes.

Normalised vectors are the case: q = y * rsqrt(sum(y * y)) and dot(h, q) need two dependent passes over one axis, dot(h, y) and
sum(y * y) are one. Only on unrounded fp32, and not under numerics "strict". While sum(y * y) is finite, |y| is below 2 ** 64: the
freed dot overflows only beside values of h above that.
"""
from __future__ import annotations

from dataclasses import replace

from ..ir.graph import Graph, Map, Node, Reduce, Ref
from ..ir.rewrite import compose, drop_dead, replace_nodes
from ..ir.scalar import Lit
from .fold_reductions import axes_read, waits_for_reduction
from .names import Names


def free_scales(graph: Graph) -> Graph:
    """The graph with scalar factors moved out of dots where that saves a dependent pass.

    Before: q = mul(y, s); o = dot(h, q) over K        (s lacks K and follows from a reduction over K; div alike)
    After:  o = mul(dot(h, y), s)
    """
    if graph.numerics == "strict":
        return graph
    names = Names(frozenset(graph.tensors) | {n.name for n in graph.nodes} | {a.name for a in graph.axes})
    return drop_dead(replace_nodes(graph, lambda g, node: _freed(g, node, names)))


def _freed(graph: Graph, node: Node, names: Names) -> tuple[Node, Node] | None:
    """The dot without one scale and the scaled result, or None where no operand has such a scale."""
    if not (isinstance(node.op, Reduce) and node.op.monoid == "dot" and node.op.form is None):
        return None
    over = {a.name for a in node.op.axes}
    for side in (0, 1):
        found = _scaled(graph, node.op.args[side], over)
        if found is None or not _waits(graph, found[2], over):
            continue
        fn, vector, scale = found
        args = tuple(vector if i == side else a for i, a in enumerate(node.op.args))
        base = Node(names.unused(f"{node.name}_raw"), Reduce("dot", args, node.op.axes), node.axes, "f32", node.loc)
        return base, replace(node, op=Map(fn, (Ref(base.name), scale)))
    return None


def _waits(graph: Graph, scale: Ref | Lit, over: set[str]) -> bool:
    return isinstance(scale, Lit) or waits_for_reduction(graph, scale.value, over)


def _scaled(graph: Graph, outer: Ref, over: set[str]) -> tuple[str, Ref, Ref | Lit] | None:
    """(mul or div, y, s) of a value y * s or y / s as its reader sees it, where y has all of the axes `over` and s none.

    s is a constant only where y is such a value in turn, whose scale follows from a reduction.
    """
    x = graph.table[outer.value]
    if x.dtype != "f32" or not isinstance(x.op, Map) or x.op.fn not in ("mul", "div"):
        return None
    refs = [a for a in x.op.args if isinstance(a, Ref)]
    constants = [a for a in x.op.args if isinstance(a, Lit)]
    if len(refs) == 1 and constants and x.op.args[0 if x.op.fn == "div" else x.op.args.index(refs[0])] == refs[0]:
        vector = compose(outer, refs[0], tuple(i.name for i in graph.table[refs[0].value].axes))
        below = _scaled(graph, vector, over)
        return (x.op.fn, vector, constants[0]) if below is not None and _waits(graph, below[2], over) else None
    if len(refs) != 2:
        return None
    seen = [compose(outer, a, tuple(i.name for i in graph.table[a.value].axes)) for a in refs]
    for vector, scale in (seen, seen[::-1]) if x.op.fn == "mul" else (seen,):
        if axes_read(graph, (vector,)) >= over and not axes_read(graph, (scale,)) & over:
            return x.op.fn, vector, scale
    return None
