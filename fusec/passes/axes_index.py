"""Index values: which value gives the coordinate along one dim, also where an index picks from several dims viewed as one."""
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sympy

from ..errors import FusionError, Loc
from ..ir import graph as g
from ..ir.scalar import Lit
from ..ir.tensor import Map, Size
from .axes_model import Hop, Pick
from .atoms import Size as Extent

if TYPE_CHECKING:
    from .axes_emit import Emitter


@dataclass(frozen=True, slots=True)
class Picked:
    """A coordinate that an index value gives; `rest` are the hops from the picking view to the reader.

    leaf: the one of the picked dims that is meant where the index picks from several viewed as one; None: the whole.
    """

    pick: Pick
    rest: tuple[Hop, ...]
    leaf: int | None


@dataclass(frozen=True, slots=True)
class Term:
    """One digit of an index: a value (or constant) as the reader behind `hops` sees it, below `extent` (None: the topmost)."""

    value: str | Lit
    hops: tuple[Hop, ...]
    extent: Extent | None


def index_digit(emitter: "Emitter", picked: Picked, loc: Loc) -> g.Ref:
    """The value that is the coordinate along the picked dim.

    An index i · n + j into dims viewed as one gives i and j themselves; any other is divided: (index // inner) % extent.
    """
    atoms = emitter.model.atoms
    leaves = atoms.leaves(picked.pick.atom)
    whole = Term(picked.pick.index, (picked.pick.hop, *picked.rest), None)
    if picked.leaf is None or len(leaves) == 1:
        return _ref(emitter, whole, loc)
    extents = [atoms.extent(leaf) for leaf in leaves]
    position = leaves.index(picked.leaf)
    terms = _terms(emitter, whole)
    if len(terms) == len(leaves) and all(t.extent == n for t, n in zip(terms[1:], extents[1:])):
        return _ref(emitter, terms[position], loc)
    return _divided(emitter, _ref(emitter, whole, loc), extents, position, loc)


def _terms(emitter: "Emitter", term: Term) -> list[Term]:
    """i · n + j taken apart, outermost digit first; the term itself where it is not of that form."""
    if not isinstance(term.value, str):
        return [term]
    total = emitter.model.values[term.value]
    if total.root != term.value or not isinstance(total.node.op, Map) or total.node.op.fn != "add":
        return [term]
    high, low = total.node.op.args
    if not isinstance(high, str) or isinstance(low, Size):
        return [term]
    product = emitter.model.values[high]
    if product.root != high or not isinstance(product.node.op, Map) or product.node.op.fn != "mul":
        return [term]
    digit, count = product.node.op.args
    if isinstance(digit, Size) or isinstance(count, str):
        return [term]
    upper = Term(digit, ((product.reads[0], total.reads[0]) if isinstance(digit, str) else ()) + term.hops, term.extent)
    lower = Term(low, ((total.reads[1],) if isinstance(low, str) else ()) + term.hops, _extent(emitter, count))
    return _terms(emitter, upper) + [lower]


def _extent(emitter: "Emitter", count: Lit | Size) -> Extent:
    if isinstance(count, Lit):
        return int(count.value)
    argument = next(a for a in emitter.model.graph.arguments if a.name == count.tensor)
    extent: Extent = argument.shape[count.dim]
    return extent


def _ref(emitter: "Emitter", term: Term, loc: Loc) -> g.Ref:
    if isinstance(term.value, Lit):
        return g.Ref(emitter.add(g.Map("identity", (term.value,)), (), "i64", loc, "index", None))
    return emitter.value_ref(term.value, term.hops[0], term.hops[1:], loc)


def _divided(emitter: "Emitter", index: g.Ref, extents: list[Extent], position: int, loc: Loc) -> g.Ref:
    """(index // product of the inner extents) % extent; the topmost digit needs no remainder."""
    axes = tuple(emitter.axes.named(at) for a in emitter.nodes_axes(index.value) if (at := index.index(a.name).axis) is not None)
    result = index
    for inner in reversed(extents[position + 1:]):
        result = g.Ref(emitter.add(g.Map("floordiv", (result, _operand(emitter, inner))), axes, "i64", loc, "index", None))
    if position:
        result = g.Ref(emitter.add(g.Map("mod", (result, _operand(emitter, extents[position]))), axes, "i64", loc, "index", None))
    return result


def _operand(emitter: "Emitter", extent: Extent) -> Lit | Size:
    """An extent as an operand: a constant, or the size of the first argument's dim that has it."""
    if isinstance(extent, int):
        return Lit(extent)
    for argument in emitter.model.graph.arguments:
        for dim, n in enumerate(argument.shape):
            if not isinstance(n, int) and sympy.simplify(n - extent) == 0:
                return Size(argument.name, dim)
    raise FusionError(f"an index picks from a dim of size {extent}, which is no argument's", None, "index each dim by itself")
