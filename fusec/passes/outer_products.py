"""After this pass a dot with a matrix of rank one, or with the identity and such a matrix, is a dot with a vector.

    m = mul(k, b); o = dot(S, m) over K     (m[K, J] = k[K] b[J])     ->     o = mul(dot(S, k), b)
    a = add(eye, m); o = dot(a, S) over K                             ->     o = add(S, dot(m, S))

A recurrence may be written so (S @ (k bᵀ), (I - k bᵀ) @ S), and would take a product of two matrices per token. Only on unrounded
fp32, not under numerics "strict", and only where k stays small, as free_scales has it: the freed dot then overflows only beside
values of S above 2 ** 64.
"""
from __future__ import annotations

from dataclasses import replace

from ..ir.graph import Graph, Index, Iota, Map, Node, Reduce, Ref
from ..ir.rewrite import drop_dead, make_ref, replace_nodes, through
from .fold_reductions import axes_read
from .free_scales import is_small
from .names import Names

Factor = tuple[str, Ref | None]
"""What was done to a vector after it was read: mul or div by a value, or neg."""


def outer_products(graph: Graph) -> Graph:
    """The graph with the factors of rank-one operands moved out of dots, and without products with the identity matrix."""
    if graph.numerics == "strict":
        return graph
    names = Names.of(graph)
    return drop_dead(replace_nodes(graph, lambda g, node: _without_identity(g, node, names) or _without_factors(g, node, names)))


def _sides(node: Node) -> tuple[tuple[Ref, Ref], ...]:
    """(operand, the other one) both ways around; none where the node is no dot."""
    if not (isinstance(node.op, Reduce) and node.op.monoid == "dot" and node.op.form is None):
        return ()
    return node.op.args[:2], node.op.args[:2][::-1]  # type: ignore[return-value]


# ---- rank one ------------------------------------------------------------------------------------------------------------------

def _without_factors(graph: Graph, node: Node, names: Names) -> tuple[Node, ...] | None:
    """The dot with the vector alone and what multiplies it, where that takes an axis from the dot."""
    for operand, other in _sides(node):
        assert isinstance(node.op, Reduce)
        over = {a.name for a in node.op.axes}
        vector, factors = _taken_apart(graph, operand, over)
        if not factors or not axes_read(graph, (vector,)) >= over:
            continue
        kept = axes_read(graph, (vector, other))
        if {a.name for a in node.axes} <= kept or not is_small(graph, vector, [f for _, f in factors if f is not None], over):
            continue
        args = tuple(vector if r is operand else r for r in node.op.args)
        axes = tuple(a for a in node.axes if a.name in kept)
        made = [Node(names.unused(f"{node.name}_vector"), Reduce("dot", args, node.op.axes), axes, "f32", node.loc)]
        for number, (fn, factor) in enumerate(reversed(factors)):
            read = axes_read(graph, (factor,)) if factor is not None else set()
            have = {a.name for a in made[-1].axes} | read
            last = number == len(factors) - 1
            own = node.axes if last else tuple(a for a in node.axes if a.name in have)
            name = node.name if last else names.unused(f"{node.name}_part")
            args = (Ref(made[-1].name),) if factor is None else (Ref(made[-1].name), factor)
            made.append(Node(name, Map(fn, args), own, "f32", node.loc))
        return tuple(made)
    return None


def _taken_apart(graph: Graph, outer: Ref, over: set[str]) -> tuple[Ref, list[Factor]]:
    """(a vector, what it is multiplied with, last first) of a product as its reader sees it; the factors lack the axes `over`."""
    x = graph.table[outer.value]
    if x.dtype != "f32" or not isinstance(x.op, Map) or x.op.fn not in ("mul", "div", "neg"):
        return outer, []
    seen = [through(graph, outer, a) for a in x.op.args if isinstance(a, Ref)]
    if x.op.fn == "neg":
        vector, below = _taken_apart(graph, seen[0], over)
        return (vector, [("neg", None), *below]) if below else (outer, [])
    if len(seen) != 2:
        return outer, []
    for vector, factor in (seen, seen[::-1]) if x.op.fn == "mul" else (seen,):
        if not axes_read(graph, (factor,)) & over:
            last, below = _taken_apart(graph, vector, over)
            return last, [(x.op.fn, factor), *below]
    return outer, []


# ---- the identity --------------------------------------------------------------------------------------------------------------

def _without_identity(graph: Graph, node: Node, names: Names) -> tuple[Node, ...] | None:
    """dot(eye + m, S) as S + dot(m, S) where S is read once along the axis that the identity leads to."""
    for operand, other in _sides(node):
        assert isinstance(node.op, Reduce)
        x = graph.table[operand.value]
        if x.dtype != "f32" or not isinstance(x.op, Map) or x.op.fn not in ("add", "sub") or len(node.op.axes) != 1:
            continue
        terms = [through(graph, operand, a) for a in x.op.args if isinstance(a, Ref)]
        if len(terms) != 2:
            continue
        for place, (eye, rest) in enumerate((terms, terms[::-1])):
            axis = _led_to(graph, eye, node.op.axes[0].name)
            if axis is None or axis in axes_read(graph, (other,)) or graph.table[other.value].dtype != "f32":
                continue
            if x.op.fn == "sub" and place == 1 or not _taken_apart(graph, rest, {node.op.axes[0].name})[1]:
                continue
            args = tuple(rest if r is operand else r for r in node.op.args)
            dot = Node(names.unused(f"{node.name}_rest"), Reduce("dot", args, node.op.axes), node.axes, "f32", node.loc)
            return dot, replace(node, op=Map(x.op.fn, (_moved(graph, other, node.op.axes[0].name, axis), Ref(dot.name))))
    return None


def _led_to(graph: Graph, ref: Ref, over: str) -> str | None:
    """The other axis of an identity matrix one of whose axes is `over`, None where the value is none."""
    node = graph.table[ref.value]
    if isinstance(node.op, Map) and node.op.fn == "identity" and isinstance(node.op.args[0], Ref):
        return _led_to(graph, through(graph, ref, node.op.args[0]), over)
    if not (isinstance(node.op, Map) and node.op.fn == "eq" and node.dtype == "bool"):
        return None
    at = []
    for arg in node.op.args:
        if not isinstance(arg, Ref) or not isinstance(graph.table[arg.value].op, Iota):
            return None
        seen = through(graph, ref, arg)
        at.append(seen.index(graph.table[arg.value].axes[0].name))
    found = {i.axis for i in at if i.offset == 0}
    if len(found) != 2 or over not in found:
        return None
    return next(a for a in found if a != over)


def _moved(graph: Graph, ref: Ref, axis: str, to: str) -> Ref:
    """A reference read along another axis of the reader."""
    def where(own: str) -> Index:
        at = ref.index(own)
        return replace(at, axis=to) if at.axis == axis else at
    return make_ref(ref.value, tuple(a.name for a in graph.table[ref.value].axes), where)
