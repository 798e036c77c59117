"""Reductions of the named graph, also over axes that the operands only broadcast along."""
from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import UnsupportedOp
from ..ir import graph as g
from ..ir.axis import Axis
from ..ir.dtype import FLOATS
from ..ir.scalar import Lit
from ..ir.tensor import Size
from .axes_model import Value

if TYPE_CHECKING:
    from .axes_emit import Emitter

IDEMPOTENT = frozenset({"max", "min", "any", "all"})


def reduce_node(emitter: "Emitter", value: Value, monoid: str, args: tuple[g.Ref, ...]) -> str:
    """The node of a reduction; returns its name.

    An axis that no operand has is folded by algebra: n equal terms sum to n times one, and their maximum is one of them.
    Raises UnsupportedOp for a product over such an axis.
    """
    node = value.node
    read = {at for ref in args for a in emitter.nodes_axes(ref.value) if (at := ref.index(a.name).axis) is not None}
    reduced = emitter.own(value.reduced)
    kept, copies = tuple(a for a in reduced if a.name in read), tuple(a for a in reduced if a.name not in read)
    axes = emitter.own(value.axes)
    if not copies or monoid in IDEMPOTENT and kept:
        return emitter.add(g.Reduce(monoid, args, kept), axes, node.dtype, node.loc, monoid, node)
    if monoid in IDEMPOTENT:
        return emitter.add(g.Map("identity", args), axes, node.dtype, node.loc, monoid, node)
    if monoid not in ("sum", "dot"):
        raise UnsupportedOp(f"a {monoid} over a dim that is only a broadcast", node.loc, "use a power")
    op: g.Op = g.Reduce(monoid, args, kept) if kept else g.Map("identity" if monoid == "sum" else "mul", args)
    wide = "f32" if node.dtype in FLOATS else node.dtype
    total = emitter.add(op, axes, wide, node.loc, monoid, None)
    for axis in copies:
        last = axis is copies[-1]
        product = g.Map("mul", (g.Ref(total), _count(emitter, axis, wide)))
        total = emitter.add(product, axes, node.dtype if last else wide, node.loc, monoid, node if last else None)
    return total


def _count(emitter: "Emitter", axis: Axis, dtype: str) -> Lit | Size:
    if not axis.dynamic:
        return Lit(float(axis.size) if dtype in FLOATS else axis.size)
    return next(Size(a.name, d) for a in emitter.model.graph.arguments for d, n in enumerate(a.shape) if n == axis.extent)
