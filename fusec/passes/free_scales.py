"""After this pass a dot does not wait for a scale of its operand that follows from a reduction over the same axes.

Normalised vectors are the case: q = y * rsqrt(sum(y * y)) and dot(h, q) need two dependent passes over one axis, dot(h, y) and
sum(y * y) are one. Only on unrounded fp32, and not under numerics "strict". While sum(y * y) is finite, |y| is below 2 ** 64: the
freed dot overflows only beside values of h above that.
"""
from __future__ import annotations

from dataclasses import replace

from ..ir.graph import Graph, Map, Node, Reduce, Ref
from ..ir.rewrite import compose, drop_dead, replace_nodes
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
        if found is None or not waits_for_reduction(graph, found[2].value, over):
            continue
        fn, vector, scale = found
        args = tuple(vector if i == side else a for i, a in enumerate(node.op.args))
        base = Node(names.unused(f"{node.name}_raw"), Reduce("dot", args, node.op.axes), node.axes, "f32", node.loc)
        return base, replace(node, op=Map(fn, (Ref(base.name), scale)))
    return None


def _scaled(graph: Graph, outer: Ref, over: set[str]) -> tuple[str, Ref, Ref] | None:
    """(mul or div, y, s) of a value y * s or y / s as its reader sees it, where y has all of the axes `over` and s none."""
    x = graph.table[outer.value]
    if x.dtype != "f32" or not isinstance(x.op, Map) or x.op.fn not in ("mul", "div"):
        return None
    refs = [a for a in x.op.args if isinstance(a, Ref)]
    if len(refs) != 2:
        return None
    seen = [compose(outer, a, tuple(i.name for i in graph.table[a.value].axes)) for a in refs]
    for vector, scale in (seen, seen[::-1]) if x.op.fn == "mul" else (seen,):
        if axes_read(graph, (vector,)) >= over and not axes_read(graph, (scale,)) & over:
            return x.op.fn, vector, scale
    return None
