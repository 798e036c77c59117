"""How far a result may honestly be from the model when each written rounding may turn out one ulp away: a graph that tells it.

A running error analysis. Every float has, beside its value, an error: how far it may be away. An input has none. A function of
uncertain operands is evaluated at the corners of what they may be, sums add their terms' errors, a maximum takes the largest.
At a written rounding the fp32 tolerance is added to the operand's error, and what counts is how far the *rounded* value can get.
Where no midpoint lies within reach that is 0, so an error is only granted where a flip can happen; where one does, it is an ulp,
the most that the contract allows. An integer that a float becomes has the error of that conversion: a code may be the next one
where the number before it lies as near to it as fp32 can be off. What comparisons make of floats (positions of extremes, too) has
none. A value in fp32 has the error of its own last bits (`unit`, of a sum that of its terms): next to
the fp32 tolerance it is nothing, but where terms all but cancel it is most of what is left.
"""
from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace

from ..errors import Loc
from ..ir.axis import Axis
from ..ir.dtype import FLOATS, INTS, NARROW
from ..ir.graph import Graph, Join, Map, Node, Op, Reduce, Ref, Store
from ..ir.scalar import Lit
from .probes import Probe, moves, probes
from .surgery import extents, fresh, prune, store_all

BOUND = "bound_"
EXACT = frozenset({"identity", "select", "neg", "abs", "max", "min", "maxnum", "minnum", "floor", "ceil", "round", "trunc", "sign",
                   "clamp", "relu"})
"""Functions whose fp32 result is no further off than their operands."""
OF_INTEGERS = frozenset({"add", "sub", "mul"})
"""Functions that are exact where all operands are integers, as fp32 holds them."""


@dataclass(slots=True)
class _Build:
    """Nodes under construction; `error` names the value that holds a value's error (of a bool: whether it may be the other).

    flips: whether written roundings may turn out otherwise. Where not, `before` has the errors of what they round, which end there.
    """

    graph: Graph
    rtol: float
    atol: float
    unit: float
    flips: bool = True
    before: dict[str, str] = field(default_factory=dict)
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


def reach(graph: Graph, rtol: float, atol: float, unit: float = 0.0) -> tuple[Graph, tuple[str, ...]]:
    """(graph, tensors): for each float tensor T that `graph` stores to, an argument `bound_T` of T's shape, f32, given as zeros.

    Running it in fp64 leaves there how far each element may be from the model's beyond the fp32 tolerance. unit: what an fp32
    function may be off by, relative to its value; 0: fp32 is exact.
    """
    build = _Build(graph, rtol, atol, unit)
    for node in graph.nodes:
        _visit(build, node)
    return _derived(build, ())


def noise(graph: Graph, nodes: tuple[Node, ...], unit: float) -> tuple[Graph, tuple[str, ...]]:
    """The same of fp32 alone, as if each written rounding turned out like the model's; also of the probes at `nodes`, of a narrow
    one before it is rounded.
    """
    build = _Build(graph, 0.0, 0.0, unit, flips=False)
    probed = {p.value: p for p in probes(graph, nodes)}
    for node in graph.nodes:
        _visit(build, node)
        found = build.before.get(node.name) or build.error.get(node.name)
        if node.name in probed and found is not None:
            probe = probed[node.name]
            held = Node(f"err_{probe.tensor}", Map("identity", (Ref(found),)), node.axes, "f32", node.loc)
            build.nodes += [held, store_all(held, BOUND + probe.tensor, probe.axes)]
    return _derived(build, tuple(p for p in probed.values() if build.before.get(p.value) or build.error.get(p.value)))


def _visit(build: _Build, node: Node) -> None:
    if isinstance(node.op, Store):
        _store(build, node)
        return
    build.nodes.append(node)
    if node.dtype in INTS and not _is_code(build, node):
        return
    if node.dtype in FLOATS or node.dtype in INTS or node.dtype == "bool":
        found = _error(build, node)
        if found is not None:
            build.error[node.name] = found.value


def _is_code(build: _Build, node: Node) -> bool:
    """Whether an integer is made of floats or of such integers, and not picked by a comparison."""
    if not isinstance(node.op, Map):
        return isinstance(node.op, (Join, Reduce))
    sources = [build.graph.table[a.value] for a in node.op.args if isinstance(a, Ref)]
    picked = node.op.fn == "identity" and any(isinstance(s.op, Reduce) for s in sources if s.dtype in FLOATS)
    return not picked and not any(s.dtype == "bool" and s.name in build.error for s in sources)


def _derived(build: _Build, probed: tuple[Probe, ...]) -> tuple[Graph, tuple[str, ...]]:
    graph = build.graph
    added = tuple(fresh(BOUND + t, "f32", graph.tensors[t].shape) for t in build.stored)
    added += tuple(fresh(BOUND + p.tensor, "f32", extents(p.axes)) for p in probed)
    out = replace(graph, nodes=tuple(build.nodes), arguments=graph.arguments + added, outputs=())
    return prune(out), tuple(t.name.removeprefix(BOUND) for t in added)


def _store(build: _Build, node: Node) -> None:
    assert isinstance(node.op, Store)
    ref = node.op.arg
    if ref.value not in build.error or build.graph.table[ref.value].dtype == "bool":
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
        return _rounded(build, node, found) if node.dtype in NARROW else _with_own(build, node, found)
    if not isinstance(op, Map):
        return None
    if moves(build.graph, node):
        ref = op.args[0]
        known = isinstance(ref, Ref) and build.error.get(ref.value)
        return build.map("identity", node.axes, replace(ref, value=known)) if known else None
    found = _select(build, node, op) if op.fn == "select" else _corners(build, node, op)
    return _rounded(build, node, found) if node.dtype in NARROW else _with_own(build, node, found)


def _with_own(build: _Build, node: Node, found: Ref | None) -> Ref | None:
    """The error of an fp32 value with what computing it in fp32 adds."""
    own = _own(build, node) if node.dtype == "f32" else None
    return found if own is None else own if found is None else build.map("add", node.axes, found, own)


def _own(build: _Build, node: Node) -> Ref | None:
    """What computing a value in fp32 may put it off by."""
    op, axes = node.op, node.axes
    if not build.unit or isinstance(op, Map) and op.fn in EXACT:
        return None
    size, unit = build.map("abs", axes, Ref(node.name)), build.unit
    if isinstance(op, Map) and op.fn in OF_INTEGERS and _has_codes(build.graph):
        size = _unless_integers(build, op, axes, size)
    if isinstance(op, Reduce):
        if op.monoid not in ("sum", "dot", "prod"):
            return None
        unit *= 1 + math.sqrt(math.prod(a.extent if isinstance(a.extent, int) else 1 for a in op.axes)) / 4
        if op.monoid != "prod":
            sizes = tuple(replace(a, value=build.map("abs", build.graph.table[a.value].axes, Ref(a.value)).value) for a in op.args)
            size = build.add(Reduce(op.monoid, sizes, op.axes), axes)
    return build.map("mul", axes, size, Lit(unit))


def _has_codes(graph: Graph) -> bool:
    return any(n.dtype in INTS and isinstance(n.op, Map) and n.op.fn == "identity" and isinstance(ref := n.op.args[0], Ref)
               and graph.table[ref.value].dtype in FLOATS for n in graph.nodes)


def _unless_integers(build: _Build, op: Map, axes: tuple[Axis, ...], size: Ref) -> Ref:
    """The size of a result, 0 where all operands are integers."""
    first, *others = (build.map("ne", axes, build.map("floor", axes, a), a, dtype="bool")  # type: ignore[arg-type]
                      for a in op.args)
    for other in others:
        first = build.map("or", axes, first, other, dtype="bool")
    return build.map("select", axes, first, size, Lit(0.0))


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
    if build.graph.table[arg.value].dtype in INTS:
        return build.map(sign, axes, arg, build.map("identity", axes, error, dtype="i64"), dtype="i64")
    return build.map(sign, axes, arg, error)


def _corners(build: _Build, node: Node, op: Map) -> Ref | None:
    """The farthest that fn gets from its value when every uncertain operand goes to either end of what it may be."""
    unsure, axes = _unsure(build, op), node.axes
    if not unsure:
        return None
    logical, whole = node.dtype == "bool", node.dtype in INTS
    kind = "bool" if logical else "f32" if not whole else "i32" if op.fn.startswith("bitcast") else "i64"
    exact = Ref(node.name) if node.dtype not in NARROW else build.map(op.fn, axes, *op.args)  # type: ignore[arg-type]
    found: list[Ref] = []
    for signs in itertools.product(("add", "sub"), repeat=len(unsure)):
        args = list(op.args)
        for (i, error), sign in zip(unsure.items(), signs):
            args[i] = _shifted(build, op.args[i], error, sign, axes)  # type: ignore[arg-type]
        corner = build.map(op.fn, axes, *args, dtype=kind)  # type: ignore[arg-type]
        found.append(build.far(*(build.map("identity", axes, v) for v in (corner, exact)), axes) if whole else
                     build.map("ne", axes, corner, exact, dtype="bool") if logical else build.far(corner, exact, axes))
    out = found[0]
    for other in found[1:]:
        out = build.map("or" if logical else "max", axes, out, other, dtype="bool" if logical else "f32")
    return out


def _rounded(build: _Build, node: Node, before: Ref | None) -> Ref | None:
    """The error after the rounding: how far the rounded value gets while the operand stays within its error and the tolerance."""
    axes = node.axes
    if not build.flips:
        own = _own(build, node)
        both = before if own is None else own if before is None else build.map("add", axes, before, own)
        if both is not None:
            build.before[node.name] = both.value
        return None
    exact = build.add(node.op, axes)
    slack = build.map("fma", axes, build.map("abs", axes, exact), Lit(build.rtol), Lit(build.atol))
    width = slack if before is None else build.map("add", axes, slack, before)
    ends = [build.map("identity", axes, build.map(sign, axes, exact, width), dtype=node.dtype) for sign in ("add", "sub")]
    gaps = [build.far(end, Ref(node.name), axes) for end in ends]
    return build.map("max", axes, *gaps)
