"""How far a result may honestly be from the model when each written rounding may turn out one ulp away: a graph that tells it.

A running error analysis. Every float has, beside its value, an error: how far it may be away. An input has none. A function of
uncertain operands is evaluated at the corners of what they may be, sums add their terms' errors, a maximum takes the largest.
The errors are born at the written roundings alone: there the fp32 tolerance is added to the operand's error, and what counts is how
far the *rounded* value can get. Where no midpoint lies within reach that is 0, so an error is only granted where a flip can happen;
where one does, it is an ulp, the most that the contract allows.
"""
from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

from ..errors import Loc
from ..ir.axis import Axis
from ..ir.dtype import FLOATS, NARROW
from ..ir.graph import Graph, Join, Map, Node, Op, Reduce, Ref, Store
from ..ir.scalar import Lit
from .probes import moves
from .surgery import fresh, prune

BOUND = "bound_"
LOGIC = frozenset({"and", "or", "not", "lt", "le", "gt", "ge", "eq", "ne"})


@dataclass(slots=True)
class _Build:
    """Nodes under construction; `error` names the value that holds a value's error (of a bool: whether it may be the other)."""

    graph: Graph
    rtol: float
    atol: float
    nodes: list[Node] = field(default_factory=list)
    error: dict[str, str] = field(default_factory=dict)
    stored: dict[str, None] = field(default_factory=dict)

    def add(self, op: Op, axes: tuple[Axis, ...], dtype: str = "f32") -> Ref:
        name = f"err{len(self.nodes)}"
        self.nodes.append(Node(name, op, axes, dtype, Loc()))
        return Ref(name)

    def map(self, fn: str, axes: tuple[Axis, ...], *args: Ref | Lit, dtype: str = "f32") -> Ref:
        return self.add(Map(fn, args), axes, dtype)

    def total(self, terms: list[Ref], axes: tuple[Axis, ...], fn: str = "add") -> Ref:
        out = terms[0]
        for term in terms[1:]:
            out = self.map(fn, axes, out, term)
        return out

    def far(self, a: Ref, b: Ref, axes: tuple[Axis, ...]) -> Ref:
        """|a − b|, and 0 where both are the same infinity or one is NaN."""
        gap = self.map("abs", axes, self.map("sub", axes, a, b))
        return self.map("maxnum", axes, gap, Lit(0.0))


def reach(graph: Graph, rtol: float, atol: float) -> tuple[Graph, tuple[str, ...]]:
    """(graph, tensors): for each float tensor T that `graph` stores to, an argument `bound_T` of T's shape, f32, given as zeros.

    Running it in fp64 leaves there how far each element may be from the model's beyond the fp32 tolerance.
    """
    build = _Build(graph, rtol, atol)
    for node in graph.nodes:
        if isinstance(node.op, Store):
            _store(build, node)
            continue
        build.nodes.append(node)
        if node.dtype in FLOATS or node.dtype == "bool":
            found = _error(build, node)
            if found is not None:
                build.error[node.name] = found.value
    added = tuple(fresh(BOUND + t, "f32", graph.tensors[t].shape) for t in build.stored)
    out = replace(graph, nodes=tuple(build.nodes), arguments=graph.arguments + added, outputs=())
    return prune(out), tuple(build.stored)


def _store(build: _Build, node: Node) -> None:
    assert isinstance(node.op, Store)
    ref = node.op.arg
    if ref.value not in build.error or build.graph.table[ref.value].dtype not in FLOATS:
        return
    build.stored[node.op.tensor] = None
    op = replace(node.op, tensor=BOUND + node.op.tensor, arg=replace(ref, value=build.error[ref.value]))
    build.nodes.append(Node(f"{BOUND}{node.name}", op, node.axes, "f32", node.loc))


def _error(build: _Build, node: Node) -> Ref | None:
    op = node.op
    if isinstance(op, Join):
        return _joined(build, node, op)
    if isinstance(op, Reduce):
        found = _reduced(build, node, op)
        return _rounded(build, node, found) if node.dtype in NARROW else found
    if not isinstance(op, Map):
        return None
    if moves(build.graph, node):
        ref = op.args[0]
        known = isinstance(ref, Ref) and build.error.get(ref.value)
        return build.map("identity", node.axes, replace(ref, value=known)) if known else None
    found = _select(build, node, op) if op.fn == "select" else _corners(build, node, op)
    return _rounded(build, node, found) if node.dtype in NARROW else found


def _joined(build: _Build, node: Node, op: Join) -> Ref | None:
    if not any(ref.value in build.error for _, _, ref in op.parts):
        return None
    parts = []
    for start, length, ref in op.parts:
        known = build.error.get(ref.value)
        value = known or build.map("identity", build.graph.table[ref.value].axes, Lit(0.0)).value
        parts.append((start, length, replace(ref, value=value)))
    return build.add(Join(op.axis, tuple(parts)), node.axes)


def _reduced(build: _Build, node: Node, op: Reduce) -> Ref | None:
    errors = [replace(a, value=build.error[a.value]) if a.value in build.error else None for a in op.args]
    if not any(errors):
        return None
    if op.monoid in ("any", "all"):
        return build.add(Reduce("any", (errors[0],), op.axes), node.axes, "bool")  # type: ignore[arg-type]
    if op.monoid in ("sum", "max", "min"):
        return build.add(Reduce("sum" if op.monoid == "sum" else "max", (errors[0],), op.axes), node.axes)  # type: ignore[arg-type]
    sizes = [replace(a, value=build.map("abs", build.graph.table[a.value].axes, Ref(a.value)).value) for a in op.args]
    if op.monoid == "dot":
        terms = [build.add(Reduce("dot", (sizes[1 - i], e), op.axes), node.axes) for i, e in enumerate(errors) if e is not None]
        if all(errors):
            terms.append(build.add(Reduce("dot", (errors[0], errors[1]), op.axes), node.axes))  # type: ignore[arg-type]
        return build.total(terms, node.axes)
    own = build.graph.table[op.args[0].value].axes
    most = build.map("add", own, Ref(sizes[0].value), Ref(errors[0].value))  # type: ignore[union-attr]
    high = build.add(Reduce("prod", (replace(op.args[0], value=most.value),), op.axes), node.axes)
    return build.far(high, build.add(Reduce("prod", (sizes[0],), op.axes), node.axes), node.axes)


def _unsure(build: _Build, op: Map) -> dict[int, Ref]:
    known = build.error
    return {i: replace(a, value=known[a.value]) for i, a in enumerate(op.args) if isinstance(a, Ref) and a.value in known}


def _select(build: _Build, node: Node, op: Map) -> Ref | None:
    unsure, axes = _unsure(build, op), node.axes
    if not unsure or node.dtype == "bool":
        return _corners(build, node, op)
    zero = Lit(0.0)
    one, other = unsure.get(1, zero), unsure.get(2, zero)
    kept = build.map("select", axes, op.args[0], one, other)  # type: ignore[arg-type]
    if 0 not in unsure:
        return kept
    apart = build.map("abs", axes, build.map("sub", axes, op.args[1], op.args[2]))  # type: ignore[arg-type]
    both = build.total([apart, build.map("add", axes, one, other)], axes)
    return build.map("select", axes, unsure[0], both, kept)


def _shifted(build: _Build, arg: Ref, error: Ref, sign: str, axes: tuple[Axis, ...]) -> Ref:
    if build.graph.table[arg.value].dtype == "bool":
        flipped = build.map("not", axes, arg, dtype="bool")
        return build.map("select", axes, error, flipped, arg, dtype="bool")
    return build.map(sign, axes, arg, error)


def _corners(build: _Build, node: Node, op: Map) -> Ref | None:
    """The farthest that fn gets from its value when every uncertain operand goes to either end of what it may be."""
    unsure, axes = _unsure(build, op), node.axes
    if not unsure:
        return None
    logical = node.dtype == "bool"
    exact = Ref(node.name) if node.dtype not in NARROW else build.map(op.fn, axes, *op.args)  # type: ignore[arg-type]
    found: list[Ref] = []
    for signs in itertools.product(("add", "sub"), repeat=len(unsure)):
        args = list(op.args)
        for (i, error), sign in zip(unsure.items(), signs):
            args[i] = _shifted(build, op.args[i], error, sign, axes)  # type: ignore[arg-type]
        corner = build.map(op.fn, axes, *args, dtype="bool" if logical else "f32")  # type: ignore[arg-type]
        found.append(build.map("ne", axes, corner, exact, dtype="bool") if logical else build.far(corner, exact, axes))
    out = found[0]
    for other in found[1:]:
        out = build.map("or" if logical else "max", axes, out, other, dtype="bool" if logical else "f32")
    return out


def _rounded(build: _Build, node: Node, before: Ref | None) -> Ref:
    """The error after the rounding: how far the rounded value gets while the operand stays within its error and the tolerance."""
    axes = node.axes
    exact = build.add(node.op, axes)
    slack = build.map("fma", axes, build.map("abs", axes, exact), Lit(build.rtol), Lit(build.atol))
    width = slack if before is None else build.map("add", axes, slack, before)
    ends = [build.map("identity", axes, build.map(sign, axes, exact, width), dtype=node.dtype) for sign in ("add", "sub")]
    gaps = [build.far(end, Ref(node.name), axes) for end in ends]
    return build.map("max", axes, *gaps)
