"""After this pass a dot does not wait for a scale of its operand that follows from a reduction over the same axes.

Normalised vectors are the case: q = y * rsqrt(sum(y * y)) and dot(h, q) need two dependent passes over one axis, dot(h, y) and
sum(y * y) are one. Only on unrounded fp32, and not under numerics "strict". Only where y itself stays small: the scale follows from
sum(y * y), and while that is finite |y| is below 2 ** 64; or y is exp(x - max(x)), at most 1. The freed dot then overflows only
beside values of h above 2 ** 64. After a division by a plain maximum or sum y may be anything, and the dot stays.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..ir.graph import Graph, Map, Node, Reduce, Ref, operands
from ..ir.rewrite import drop_dead, replace_nodes, through
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
    names = Names.of(graph)
    return drop_dead(replace_nodes(graph, lambda g, node: _freed(g, node, names)))


def _freed(graph: Graph, node: Node, names: Names) -> tuple[Node, Node] | None:
    """The dot without one scale and the scaled result, or None where no operand has such a scale."""
    if not (isinstance(node.op, Reduce) and node.op.monoid == "dot" and node.op.form is None):
        return None
    over = {a.name for a in node.op.axes}
    for side in (0, 1):
        found = _scaled(graph, node.op.args[side], over)
        if found is None or not _small(graph, found[1], found[2], over):
            continue
        fn, vector, scale = found
        args = tuple(vector if i == side else a for i, a in enumerate(node.op.args))
        base = Node(names.unused(f"{node.name}_raw"), Reduce("dot", args, node.op.axes), node.axes, "f32", node.loc)
        return base, replace(node, op=Map(fn, (Ref(base.name), scale)))
    return None


def _small(graph: Graph, vector: Ref, scale: Ref | Lit, over: set[str]) -> bool:
    """Whether a scale follows from a reduction of the vector that bounds it; a constant was looked at with what it multiplies."""
    if isinstance(scale, Lit):
        return True
    return waits_for_reduction(graph, scale.value, over) and (
        _at_most_one(graph, vector, over) or any(_square_sum(graph, name, vector) for name in _ancestors(graph, scale.value)))


def is_small(graph: Graph, vector: Ref, scales: Sequence[Ref], over: set[str]) -> bool:
    """Whether a vector is bounded: by one of the scales that stand beside it, which follows from the sum of its squares, by what it
    is computed with, or by its dtype. over: the reader's axes that it is a vector along."""
    node = graph.table[vector.value]
    if node.dtype in ("f16", "f8e4m3", "f8e5m2") or isinstance(node.op, Map) and node.op.fn in ("sigmoid", "tanh", "sin", "cos"):
        return True
    own = {a.name for a in node.axes if vector.index(a.name).axis in over}
    squares = [op for s in scales for n in _ancestors(graph, s.value) if _square_sum(graph, n, vector)
               and isinstance(op := graph.table[n].op, Reduce)]
    return _at_most_one(graph, vector, over) or any(own <= {a.name for a in op.axes} for op in squares)


def _ancestors(graph: Graph, name: str) -> set[str]:
    """A value and all that it is made of by elementwise functions, reductions included, not what these reduce."""
    found, todo = set[str](), [name]
    while todo:
        node = graph.table[todo.pop()]
        if node.name not in found:
            found.add(node.name)
            todo += [r.value for r in operands(node.op)] if isinstance(node.op, Map) else []
    return found


def _square_sum(graph: Graph, name: str, vector: Ref) -> bool:
    op = graph.table[name].op
    return isinstance(op, Reduce) and op.monoid == "dot" and all(a.value == vector.value for a in op.args)


def _at_most_one(graph: Graph, vector: Ref, over: set[str]) -> bool:
    """Whether a value is exp(x - m), or exp2, with m a maximum of x over the axes."""
    op = graph.table[vector.value].op
    if not (isinstance(op, Map) and op.fn in ("exp", "exp2") and isinstance(op.args[0], Ref)):
        return False
    below = graph.table[op.args[0].value].op
    if not (isinstance(below, Map) and below.fn == "sub" and all(isinstance(a, Ref) for a in below.args)):
        return False
    x, m = (a for a in below.args if isinstance(a, Ref))
    tops = [graph.table[n].op for n in _ancestors(graph, m.value)]
    return any(isinstance(t, Reduce) and t.monoid == "max" and any(a.value == x.value for a in t.args) for t in tops)


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
        vector = through(graph, outer, refs[0])
        below = _scaled(graph, vector, over)
        return (x.op.fn, vector, constants[0]) if below is not None and _small(graph, below[1], below[2], over) else None
    if len(refs) != 2:
        return None
    seen = [through(graph, outer, a) for a in refs]
    for vector, scale in (seen, seen[::-1]) if x.op.fn == "mul" else (seen,):
        if axes_read(graph, (vector,)) >= over and not axes_read(graph, (scale,)) & over:
            return x.op.fn, vector, scale
    return None
