"""Small tools that graph rewrites share: composing references, replacing operands, dropping dead values."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from .graph import Digit, DimIndex, Graph, Index, Join, Load, Map, Node, Op, Reduce, Ref, Store, refs


def make_ref(value: str, own: tuple[str, ...], where: Callable[[str], Index]) -> Ref:
    """A reference to a value over the axes `own`, each read at where(axis); binds to the same axis are left out."""
    return Ref(value, tuple((a, where(a)) for a in own if where(a) != Index(a)))


def compose(outer: Ref, inner: Ref, own: tuple[str, ...]) -> Ref:
    """What `inner` (an operand of the value that `outer` reads) is for the reader of `outer`. `own`: axes of inner's value.

    x[a = i + 1] of y[i = j + 2]   ->   x[a = j + 3]
    """
    def where(axis: str) -> Index:
        at = inner.index(axis)
        if at.axis is None:
            return at
        further = outer.index(at.axis)
        return Index(further.axis, further.offset + at.offset)
    return make_ref(inner.value, own, where)


def through(graph: Graph, outer: Ref, inner: Ref) -> Ref:
    """`compose`, with the axes that the graph says inner's value has."""
    return compose(outer, inner, tuple(a.name for a in graph.table[inner.value].axes))


def map_refs(op: Op, change: Callable[[Ref], Ref]) -> Op:
    """The op with every reference changed: operands, predicates, and index values of loads and stores."""
    def digit(d: Digit) -> Digit:
        return Digit(change(d.source), d.step) if isinstance(d.source, Ref) else d

    def index(dims: tuple[DimIndex, ...]) -> tuple[DimIndex, ...]:
        return tuple(tuple(digit(d) for d in dim) for dim in dims)
    if isinstance(op, Load):
        return replace(op, index=index(op.index), where=change(op.where) if op.where is not None else None)
    if isinstance(op, Store):
        return replace(op, index=index(op.index), arg=change(op.arg), where=change(op.where) if op.where is not None else None)
    if isinstance(op, Map):
        return replace(op, args=tuple(change(a) if isinstance(a, Ref) else a for a in op.args))
    if isinstance(op, Reduce):
        return replace(op, args=tuple(change(a) for a in op.args))
    if isinstance(op, Join):
        return replace(op, parts=tuple((s, n, change(r)) for s, n, r in op.parts))
    return op


def uses(graph: Graph) -> Mapping[str, int]:
    """How many references each value has."""
    count: dict[str, int] = {n.name: 0 for n in graph.nodes}
    for node in graph.nodes:
        for ref in refs(node.op):
            count[ref.value] += 1
    return count


def drop_dead(graph: Graph) -> Graph:
    """Without the values that no Store depends on, and without axes that nothing has any more."""
    table = graph.table
    live: set[str] = set()
    stack = [n.name for n in graph.nodes if isinstance(n.op, Store)]
    while stack:
        name = stack.pop()
        if name not in live:
            live.add(name)
            stack += [r.value for r in refs(table[name].op)]
    nodes = tuple(n for n in graph.nodes if n.name in live)
    used = {a.name for n in nodes for a in n.domain}
    return replace(graph, nodes=nodes, axes=tuple(a for a in graph.axes if a.name in used))


def ordered(graph: Graph) -> Graph:
    """Definition before use again, otherwise in the order given."""
    table, done, out = graph.table, set[str](), list[Node]()

    def visit(node: Node) -> None:
        if node.name in done:
            return
        done.add(node.name)
        for ref in refs(node.op):
            visit(table[ref.value])
        out.append(node)
    for node in graph.nodes:
        visit(node)
    return graph.with_nodes(tuple(out))


def replace_nodes(graph: Graph, made: Callable[[Graph, Node], tuple[Node, ...] | None]) -> Graph:
    """The graph with nodes replaced by others, one at a time, until `made` gives None for all; definition before use."""
    while True:
        found = next(((n, new) for n in graph.nodes if (new := made(graph, n)) is not None), None)
        if found is None:
            return graph
        graph = ordered(graph.with_nodes(tuple(m for n in graph.nodes for m in (found[1] if n is found[0] else (n,)))))
