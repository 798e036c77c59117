"""The laws of the named graph, one named check each, run after every pass.

A broken law is a bug of ours: the IR is printed at the op.
"""
from __future__ import annotations

import sympy

from ..errors import InternalError
from .axis import Axis
from .dtype import BYTES, INTS
from .graph import Digit, Graph, Index, Iota, Join, Load, Map, Node, Reduce, Ref, Store, operands, refs
from .monoid import MONOIDS
from .print_graph import format_graph, format_node
from .scalar import COMPOSITES, GIVE_BOOLS, arity


def verify(graph: Graph, after: str = "") -> Graph:
    """The graph itself if every law holds. Raises InternalError with the law, the op and the graph."""
    for check in CHECKS:
        check(graph, after)
    return graph


def _fail(law: str, graph: Graph, node: Node | None, after: str) -> InternalError:
    where = f"at {format_node(node)} ({node.loc.chain})" if node is not None else ""
    return InternalError(f"{law}" + (f" (after {after})" if after else ""), where, format_graph(graph))


def check_names_unique(graph: Graph, after: str = "") -> None:
    """Values, axes and tensors have distinct names, all identifiers."""
    names = [n.name for n in graph.nodes] + [a.name for a in graph.axes] + [t.name for t in graph.arguments + graph.fresh]
    for name in names:
        if names.count(name) > 1 or not name.isidentifier():
            raise _fail(f"the name {name} stands for two things or is no identifier", graph, None, after)


def check_definitions_before_use(graph: Graph, after: str = "") -> None:
    """Every reference is to a node that stands before its reader and is a value."""
    seen: dict[str, Node] = {}
    for node in graph.nodes:
        for ref in refs(node.op):
            if ref.value not in seen or isinstance(seen[ref.value].op, Store):
                raise _fail(f"{ref.value} is used before it is defined", graph, node, after)
        seen[node.name] = node


def check_no_axis_used_twice(graph: Graph, after: str = "") -> None:
    """No value and no iteration space has an axis twice, and no reference reads two axes of a value along one of the reader's."""
    table = graph.table
    for node in graph.nodes:
        names = [a.name for a in node.domain]
        if len(set(names)) != len(names):
            raise _fail("an iteration space has an axis twice", graph, node, after)
        for ref in refs(node.op):
            read = [at for a in table[ref.value].axes if (at := ref.index(a.name).axis) is not None]
            if len(set(read)) != len(read):
                raise _fail(f"{ref} is read along one axis twice", graph, node, after)


def check_axes_declared(graph: Graph, after: str = "") -> None:
    """Every axis of a node is one of the graph's, with that extent."""
    for node in graph.nodes:
        for axis in node.domain:
            if axis not in graph.axes:
                raise _fail(f"axis {axis} is not an axis of the graph", graph, node, after)


def check_every_ref_bound(graph: Graph, after: str = "") -> None:
    """Each axis of a value that is read is bound to an axis of the reader, or to a constant."""
    table = graph.table
    for node in graph.nodes:
        own = {a.name for a in node.domain}
        for ref in refs(node.op):
            axes = {a.name for a in table[ref.value].axes}
            if any(at not in own for a in axes if (at := ref.index(a).axis) is not None):
                raise _fail(f"{ref} is not bound to axes of its reader", graph, node, after)
            if not {a for a, _ in ref.bind} <= axes:
                raise _fail(f"{ref} binds an axis that its value lacks", graph, node, after)


def check_extents_consistent(graph: Graph, after: str = "") -> None:
    """A reader never reads beyond a value: offset + extent of the reader's axis (or of the part) fits the value's axis."""
    table = graph.table
    for node in graph.nodes:
        local = {a.name: a for a in node.domain}
        if isinstance(node.op, Join):
            for _, length, ref in node.op.parts:
                if not _in_range(table[ref.value], ref, {**local, node.op.axis: Axis(node.op.axis, length)}):
                    raise _fail(f"{ref} is read out of range", graph, node, after)
            continue
        for ref in refs(node.op):
            if not _in_range(table[ref.value], ref, local):
                raise _fail(f"{ref} is read out of range", graph, node, after)


def _in_range(value: Node, ref: Ref, local: dict[str, Axis]) -> bool:
    for axis in value.axes:
        at = ref.index(axis.name)
        if at.axis is None:
            good = axis.dynamic or 0 <= at.offset < axis.size
        elif axis.dynamic or local[at.axis].dynamic:
            good = (axis.extent,) == (local[at.axis].extent,) and at.offset == 0
        else:
            good = at.offset >= 0 and at.offset + local[at.axis].size <= axis.size
        if not good:
            return False
    return True


def check_index_in_tensor(graph: Graph, after: str = "") -> None:
    """Loads and Stores give one index per dim; without index values the largest coordinate lies within a static dim."""
    tensors = graph.tensors
    for node in graph.nodes:
        if not isinstance(node.op, (Load, Store)):
            continue
        tensor = tensors.get(node.op.tensor)
        if tensor is None or len(tensor.shape) != len(node.op.index):
            raise _fail(f"{node.op.tensor} is not indexed by its dims", graph, node, after)
        for extent, dim in zip(tensor.shape, node.op.index):
            last = _last(node, dim)
            if last is not None and isinstance(extent, int) and last >= extent:
                raise _fail(f"an index of {node.op.tensor} reaches {last} in a dim of {extent}", graph, node, after)


def _last(node: Node, dim: tuple[Digit, ...]) -> int | None:
    """The largest coordinate of a dim index, None where it is not static."""
    local = {a.name: a for a in node.domain}
    total = 0
    for digit in dim:
        if isinstance(digit.source, Ref):
            return None
        assert isinstance(digit.source, Index)
        if digit.source.axis is not None and (digit.source.axis not in local or local[digit.source.axis].dynamic):
            return None
        span = local[digit.source.axis].size - 1 if digit.source.axis is not None else 0
        total += (span + digit.source.offset) * digit.step
    return total


def check_index_axes(graph: Graph, after: str = "") -> None:
    """Digits use axes of the node; index values are integers and predicates bools; a Load has just the axes it is read along."""
    table = graph.table
    for node in graph.nodes:
        if not isinstance(node.op, (Load, Store)):
            continue
        own, used = {a.name for a in node.axes}, set[str]()
        for digit in (d for dim in node.op.index for d in dim):
            if isinstance(digit.source, Ref):
                value = table[digit.source.value]
                used |= {at for a in value.axes if (at := digit.source.index(a.name).axis) is not None}
                if value.dtype not in INTS:
                    raise _fail("an index is not an integer", graph, node, after)
            elif digit.source.axis is not None:
                used.add(digit.source.axis)
        if node.op.where is not None:
            if table[node.op.where.value].dtype != "bool":
                raise _fail("a predicate is not bool", graph, node, after)
            used |= {at for a in table[node.op.where.value].axes if (at := node.op.where.index(a.name).axis) is not None}
        if not used <= own or (isinstance(node.op, Load) and used != own):
            raise _fail("the axes of an access are not those of its node", graph, node, after)


def check_joins_cover(graph: Graph, after: str = "") -> None:
    """The parts of a Join are its axis, in order and without gaps."""
    for node in graph.nodes:
        if isinstance(node.op, Join):
            end = 0
            for start, length, _ in node.op.parts:
                if start != end or length < 1:
                    raise _fail("the parts of a join do not follow each other", graph, node, after)
                end = start + length
            if all(a.name != node.op.axis or a.extent != end for a in node.axes):
                raise _fail("a join does not cover its axis", graph, node, after)


def check_operand_counts(graph: Graph, after: str = "") -> None:
    """Functions and monoids have the operands they take; dtypes are known; a reduction folds only axes some operand has."""
    table = graph.table
    for node in graph.nodes:
        op = node.op
        wrong = node.dtype not in BYTES
        wrong = wrong or isinstance(op, Map) and arity(op.fn) != len(op.args)
        wrong = wrong or isinstance(op, Reduce) and MONOIDS[op.monoid].operands != len(op.args)
        wrong = wrong or isinstance(op, Iota) and len(node.axes) != 1
        if wrong:
            raise _fail("an op has the wrong number of operands, or a dtype is unknown", graph, node, after)
        if isinstance(op, Reduce):
            read = {at for r in operands(op) for a in table[r.value].axes if (at := r.index(a.name).axis) is not None}
            if not {a.name for a in op.axes} <= read:
                raise _fail("a reduction folds an axis that no operand has", graph, node, after)


def check_integers_by_primitives(graph: Graph, after: str = "") -> None:
    """No composite gives an integer: their helpers in the emitted file are of fp32."""
    for node in graph.nodes:
        if isinstance(node.op, Map) and node.op.fn in COMPOSITES and node.dtype in INTS:
            raise _fail("a composite function gives an integer", graph, node, after)


def check_bools_by_logic(graph: Graph, after: str = "") -> None:
    """What gives a bool compares, is logic, chooses or passes on: a sum of two bools held as integers would be 2."""
    for node in graph.nodes:
        fn = node.op.fn if isinstance(node.op, Map) else node.op.monoid if isinstance(node.op, Reduce) else ""
        if node.dtype == "bool" and fn and fn not in GIVE_BOOLS | {"select", "identity", "any", "all"} and fn not in COMPOSITES:
            raise _fail(f"{fn} gives a bool", graph, node, after)


def check_outputs_stored(graph: Graph, after: str = "") -> None:
    """Every fresh output is written by one Store, or by several that together have its size; arguments named as outputs exist."""
    for tensor in graph.fresh:
        stores = [n for n in graph.nodes if isinstance(n.op, Store) and n.op.tensor == tensor.name]
        written = sum(sympy.prod([sympy.sympify(a.extent) for a in n.axes]) for n in stores)
        if not stores or len(stores) > 1 and sympy.expand(written - sympy.prod([sympy.sympify(n) for n in tensor.shape])) != 0:
            raise _fail(f"output {tensor.name} is not written once", graph, None, after)
    known = {t.name for t in graph.fresh} | {f"={a.name}" for a in graph.arguments}
    if not {o for o in graph.outputs if o[0] != "!"} <= known:
        raise _fail("an output is neither fresh nor an argument", graph, None, after)


CHECKS = (check_names_unique, check_definitions_before_use, check_axes_declared, check_no_axis_used_twice, check_every_ref_bound,
          check_extents_consistent, check_index_axes, check_index_in_tensor, check_joins_cover, check_operand_counts,
          check_integers_by_primitives, check_bools_by_logic, check_outputs_stored)
