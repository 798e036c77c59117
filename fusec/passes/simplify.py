"""No dead value, no cast that keeps the value, no value twice, no constant that is computed: on the named graph.

A cast that rounds is a part of the meaning and stays. Registers hold fp32 for every float, so a cast to a wider float is nothing.
"""
from __future__ import annotations

import math
import struct
from dataclasses import replace
from typing import Union

from ..ir.dtype import FLOATS, NARROW, SATURATES, wrapped
from ..ir.graph import Digit, Graph, Index, Load, Map, Node, Reduce, Ref, Store, refs
from ..ir.rewrite import compose, drop_dead, map_refs
from ..ir.scalar import Lit
from ..ir.tensor import Size
from .names import Names

WIDER: dict[str, frozenset[str]] = {
    "bf16": frozenset({"f32"}), "f16": frozenset({"f32"}), "f8e4m3": frozenset({"f32", "bf16", "f16"}),
    "f8e5m2": frozenset({"f32", "bf16", "f16"}), "i8": frozenset({"i16", "i32"}), "u8": frozenset({"i16", "i32"}),
    "i16": frozenset({"i32"})}
"""Element type -> types that hold every one of its values, in the same kind of register."""

Arg = Union[Ref, Lit, Size]


def simplify(graph: Graph) -> Graph:
    """The same graph without casts that keep the value, folded constants, common subexpressions and dead values.

    Before: b: f32 = identity(a: bf16); c = add(b, 1)   After: c = add(a, 1)
    """
    for rule in (_drop_casts, _drop_clamps, _drop_index_casts, _drop_wraps, _fold_constants, _multiply_by_reciprocals,
                 _drop_broadcast_axes, _merge_equal):
        graph = rule(graph)
    return drop_dead(graph)


# ---- casts ---------------------------------------------------------------------------------------------------------------------

def _drop_casts(graph: Graph) -> Graph:
    """Readers of a value-preserving cast read its operand; a name the user gave passes on to an operand that has none."""
    graph = _rename_through_casts(graph)
    table: dict[str, Node] = {}
    reduced = {r.value for n in graph.nodes if isinstance(n.op, Reduce) for r in refs(n.op)}
    through: dict[str, Ref] = {}

    def look(ref: Ref) -> Ref:
        if ref.value not in through:
            return ref
        inner = through[ref.value]
        return compose(ref, inner, tuple(a.name for a in table[inner.value].axes))
    for node in graph.nodes:
        node = replace(node, op=map_refs(node.op, look))
        table[node.name] = node
        if _keeps_value(node, table) and (node.name not in reduced or _covers(node, table)):
            assert isinstance(node.op, Map) and isinstance(node.op.args[0], Ref)
            through[node.name] = node.op.args[0]
    return graph.with_nodes(tuple(table.values()))


def _keeps_value(node: Node, table: dict[str, Node]) -> bool:
    if not isinstance(node.op, Map) or node.op.fn != "identity" or not isinstance(node.op.args[0], Ref):
        return False
    source = table[node.op.args[0].value].dtype
    return source == node.dtype or node.dtype in WIDER.get(source, frozenset())


def _covers(node: Node, table: dict[str, Node]) -> bool:
    """Whether a cast's operand has every axis of the cast: a reduction must not lose one that it folds."""
    assert isinstance(node.op, Map) and isinstance(node.op.args[0], Ref)
    ref = node.op.args[0]
    return {ref.index(a.name).axis for a in table[ref.value].axes} >= {a.name for a in node.axes}


def _drop_clamps(graph: Graph) -> Graph:
    """A cast that saturates needs no bound at its largest number or beyond.

    Before: c = clamp(x, -448.0, 448.0); y: f8e4m3 = identity(c)   After: y: f8e4m3 = identity(x)
    """
    table = graph.table

    def inner(ref: Ref, largest: float) -> Ref:
        node = table[ref.value]
        if not isinstance(node.op, Map) or node.op.fn not in ("clamp", "max", "min") or node.dtype in NARROW:
            return ref
        bounds = [a.value for a in node.op.args[1:] if isinstance(a, Lit)]
        low, high = {"clamp": (-largest, largest), "max": (-largest, None), "min": (None, largest)}[node.op.fn]
        wanted = [b for b in (low, high) if b is not None]
        first = node.op.args[0]
        if len(bounds) != len(wanted) or not isinstance(first, Ref) or table[first.value].dtype not in FLOATS:
            return ref
        if not all(b >= w if w > 0 else b <= w for b, w in zip(bounds, wanted)):
            return ref
        return inner(compose(ref, first, tuple(a.name for a in table[first.value].axes)), largest)

    def change(node: Node) -> Node:
        if node.dtype not in SATURATES or not (isinstance(node.op, Map) and node.op.fn == "identity"):
            return node
        arg = node.op.args[0]
        return replace(node, op=Map("identity", (inner(arg, SATURATES[node.dtype]),))) if isinstance(arg, Ref) else node
    return graph.with_nodes(tuple(change(n) for n in graph.nodes))


def _rename_through_casts(graph: Graph) -> Graph:
    """y: bf16 = identity(silu); silu has no name of the user's, the cast has: swap nothing but the names."""
    table = graph.table
    renamed: dict[str, str] = {}
    for node in graph.nodes:
        if not _keeps_value(node, table) or not node.loc.target:
            continue
        assert isinstance(node.op, Map) and isinstance(node.op.args[0], Ref)
        source = table[node.op.args[0].value]
        if not source.loc.target and source.name not in renamed and node.name not in renamed:
            renamed[source.name], renamed[node.name] = node.name, source.name
    return rename(graph, renamed)


def rename(graph: Graph, names: dict[str, str]) -> Graph:
    """The graph with values renamed (a permutation of names, or to names that are free)."""
    def change(ref: Ref) -> Ref:
        return replace(ref, value=names.get(ref.value, ref.value))
    return graph.with_nodes(tuple(replace(n, name=names.get(n.name, n.name), op=map_refs(n.op, change)) for n in graph.nodes))


def _drop_index_casts(graph: Graph) -> Graph:
    """An index tensor cast from i32 to i64 only to be used as an index: coordinates are 64-bit anyway."""
    table = graph.table

    def narrow(ref: Ref) -> Ref:
        node = table[ref.value]
        if not (isinstance(node.op, Map) and node.op.fn == "identity" and node.dtype == "i64" and isinstance(node.op.args[0], Ref)):
            return ref
        source = table[node.op.args[0].value]
        if source.dtype not in ("i32", "i16", "i8", "u8"):
            return ref
        return compose(ref, node.op.args[0], tuple(a.name for a in source.axes))

    def digit(d: Digit) -> Digit:
        return Digit(narrow(d.source), d.step) if isinstance(d.source, Ref) else d

    def change(node: Node) -> Node:
        if not isinstance(node.op, (Load, Store)):
            return node
        index = tuple(tuple(digit(d) for d in dim) for dim in node.op.index)
        return replace(node, op=replace(node.op, index=index))
    return graph.with_nodes(tuple(change(n) for n in graph.nodes))


def _drop_wraps(graph: Graph) -> Graph:
    """An index that is somewhere used as it is does not count from the end anywhere: eager would have refused it there.

    Before: a = pool[i]; j = select(lt(i, 0), add(i, n), i); pool[j] = b   After: a = pool[i]; pool[i] = b
    """
    table = graph.table
    plain = {d.source.value for n in graph.nodes if isinstance(n.op, (Load, Store)) and n.op.where is None
             for dim in n.op.index for d in dim if isinstance(d.source, Ref)}

    def unwrap(ref: Ref) -> Ref:
        inner = _wrapped(table, ref.value)
        if inner is None or inner.value not in plain:
            return ref
        return compose(ref, inner, tuple(a.name for a in table[inner.value].axes))
    return graph.with_nodes(tuple(replace(n, op=map_refs(n.op, unwrap)) for n in graph.nodes))


def _wrapped(table: dict[str, Node], name: str) -> Ref | None:
    """i of select(lt(i, 0), add(i, n), i)."""
    op = table[name].op
    if not (isinstance(op, Map) and op.fn == "select" and all(isinstance(a, Ref) for a in op.args)):
        return None
    negative, moved, index = (a for a in op.args if isinstance(a, Ref))
    test, total = table[negative.value].op, table[moved.value].op
    if negative.bind or moved.bind or not isinstance(test, Map) or not isinstance(total, Map):
        return None
    same = test.fn == "lt" and test.args == (index, Lit(0)) and total.fn == "add" and total.args[0] == index
    return index if same else None


# ---- constants -----------------------------------------------------------------------------------------------------------------

def _f32(x: float) -> float:
    """A Python float rounded to fp32; beyond its range an infinity."""
    try:
        return float(struct.unpack("f", struct.pack("f", x))[0])
    except OverflowError:
        return float("inf") if x > 0 else float("-inf")


def _evaluate(node: Node) -> Lit | None:
    """The value of a Map over constants; fp32 sums, products and quotients through fp64 are rounded as if once."""
    if not isinstance(node.op, Map) or not all(isinstance(a, Lit) for a in node.op.args):
        return None
    values = [a.value for a in node.op.args if isinstance(a, Lit)]
    fn, x = node.op.fn, values[0]
    if fn == "identity" and type(x) is {"f32": float, "i64": int, "i32": int, "bool": bool}.get(node.dtype):
        return Lit(_f32(x)) if isinstance(x, float) else Lit(x if isinstance(x, bool) else wrapped(x, node.dtype))
    if node.dtype != "f32" or not all(type(v) is float for v in values):
        return None
    y = values[1] if len(values) == 2 else 0.0
    table = {"add": lambda: x + y, "sub": lambda: x - y, "mul": lambda: x * y, "neg": lambda: -x}
    if fn == "div" and y != 0.0:
        return Lit(_f32(_f32(x) / _f32(y)))
    x, y = _f32(x), _f32(y)
    return Lit(_f32(table[fn]())) if fn in table else None


def _fold_constants(graph: Graph) -> Graph:
    """Maps over constants become constants in the Maps that read them.

    Before: a = mul(2.0, 3.0); b = add(x, a)   After: b = add(x, 6.0)
    """
    known: dict[str, Lit] = {}
    nodes = []
    for node in graph.nodes:
        if isinstance(node.op, Map):
            args: tuple[Arg, ...] = tuple(known.get(a.value, a) if isinstance(a, Ref) else a for a in node.op.args)
            node = replace(node, op=Map(node.op.fn, args))
        value = _evaluate(node)
        if value is not None:
            known[node.name] = value
        nodes.append(node)
    return graph.with_nodes(tuple(nodes))


def _multiply_by_reciprocals(graph: Graph) -> Graph:
    """Division by a power of two is a product with its reciprocal, exact in the same cases.

    Before: m = div(x, 8.0)   After: m = mul(x, 0.125)
    """
    def change(node: Node) -> Node:
        op = node.op
        if not (isinstance(op, Map) and op.fn == "div" and isinstance(op.args[1], Lit) and isinstance(op.args[1].value, float)):
            return node
        mantissa, exponent = math.frexp(op.args[1].value)
        if abs(mantissa) != 0.5 or not -125 <= exponent <= 126:
            return node
        return replace(node, op=Map("mul", (op.args[0], Lit(1.0 / op.args[1].value))))
    return graph.with_nodes(tuple(change(n) for n in graph.nodes))


# ---- broadcasts ----------------------------------------------------------------------------------------------------------------

def _drop_broadcast_axes(graph: Graph) -> Graph:
    """A value has no axis that none of its operands has: its readers broadcast it.

    Before: n[head, copy] = rsqrt(s[head]); y[head, copy] = mul(x, n)   After: n[head] = rsqrt(s[head]); …

    A reduction over such an axis needs it, and keeps it on its operands. A Load that an index leads to one place has no axis of it.
    """
    table, names = graph.table, Names.of(graph)
    folded = {(r.value, a.name) for n in graph.nodes if isinstance(n.op, Reduce) for r in n.op.args for a in table[r.value].axes
              if r.index(a.name).axis in {x.name for x in n.op.axes}}
    kept: dict[str, frozenset[str]] = {}

    def look(ref: Ref) -> Ref:
        return Ref(ref.value, tuple(b for b in ref.bind if b[0] in kept[ref.value]))
    nodes = []
    for node in graph.nodes:
        node = replace(node, op=map_refs(node.op, look))
        if isinstance(node.op, (Map, Reduce, Load)):
            read = {at for r in refs(node.op) for a in kept[r.value] if (at := r.index(a).axis) is not None}
            if isinstance(node.op, Load):
                along = (d.source.axis for dim in node.op.index for d in dim if isinstance(d.source, Index))
                read |= {a for a in along if a is not None}
            needed = tuple(a for a in node.axes if a.name in read or (node.name, a.name) in folded)
            if isinstance(node.op, Load) and any(a.name not in read for a in needed):
                once = replace(node, name=names.unused(node.name), axes=tuple(a for a in needed if a.name in read))
                kept[once.name] = frozenset(a.name for a in once.axes)
                nodes.append(once)
                node = replace(node, op=Map("identity", (Ref(once.name, tuple((a.name, Index(a.name)) for a in once.axes)),)))
            node = replace(node, axes=needed)
        kept[node.name] = frozenset(a.name for a in node.axes)
        nodes.append(node)
    return graph.with_nodes(tuple(nodes))


# ---- equal values --------------------------------------------------------------------------------------------------------------

def _merge_equal(graph: Graph) -> Graph:
    """Of several nodes with the same op, axes and dtype the first stays (Stores are effects and stay)."""
    first: dict[object, str] = {}
    same: dict[str, str] = {}
    nodes = []

    def look(ref: Ref) -> Ref:
        return replace(ref, value=same.get(ref.value, ref.value))
    for node in graph.nodes:
        node = replace(node, op=map_refs(node.op, look))
        key = (repr(node.op), node.axes, node.dtype)  # repr tells -0.0 from 0.0 and 1 from True, and NaN is equal to itself.
        if isinstance(node.op, Store) or first.setdefault(key, node.name) == node.name:
            nodes.append(node)
        else:
            same[node.name] = first[key]
    return graph.with_nodes(tuple(nodes))
