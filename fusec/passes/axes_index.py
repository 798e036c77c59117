"""Index values as coordinates: sums of positions and values, also where an index picks from several dims viewed as one."""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import sympy

from ..errors import FusionError, Loc
from ..ir import graph as g
from ..ir.scalar import Lit
from ..ir.tensor import Iota, Map, Size
from .atoms import Size as Extent
from .atoms import quotient, times
from .axes_model import Hop, Pick, Value

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
    """`stride` times a value as the reader behind `hops` sees it; without a value the stride alone."""

    value: str | None
    hops: tuple[Hop, ...]
    stride: Extent


def index_digits(emitter: "Emitter", picked: Picked, loc: Loc) -> g.DimIndex:
    """The digits whose sum is the coordinate along the picked dim.

    Positions become coordinates themselves. An index into dims viewed as one, i · n + j, gives i and j; one that is no such sum is
    divided: (index // inner) % extent.
    """
    atoms = emitter.model.atoms
    leaves = atoms.leaves(picked.pick.atom)
    whole = Term(picked.pick.index, (picked.pick.hop, *picked.rest), 1)
    terms = _terms(emitter, whole)
    if picked.leaf is None or len(leaves) <= 1:
        return _digits(emitter, terms if all(_is_position(emitter, t) for t in terms) else [whole], loc)
    extents = [atoms.extent(leaf) for leaf in leaves]
    position = leaves.index(picked.leaf)
    shares = _shares(terms, extents)
    if shares is not None:
        return _digits(emitter, shares[position], loc)
    return (g.Digit(_divided(emitter, _ref(emitter, whole, loc), extents, position, loc)),)


# ---- sums ----------------------------------------------------------------------------------------------------------------------

def _terms(emitter: "Emitter", term: Term) -> list[Term]:
    """A sum of products with sizes, perhaps seen through views, taken apart; the term itself where it is not of that form."""
    if term.value is None:
        return [term]
    view = emitter.model.values[term.value]
    value = emitter.model.values[view.root]
    if not isinstance(value.node.op, Map) or value.node.op.fn not in ("add", "mul"):
        return [term]
    if value is not view:
        term = replace(term, value=view.root, hops=(*view.hops, *term.hops))
    first, second = (_operand(emitter, value, i, term) for i in (0, 1))
    if value.node.op.fn == "add":
        if any(t.value is None and isinstance(t.stride, int) and t.stride < 0 for t in (first, second)):
            return [term]
        return _terms(emitter, first) + _terms(emitter, second)
    if (first.value is None) == (second.value is None):
        return [term]
    factor, inner = (first, second) if first.value is None else (second, first)
    return _terms(emitter, replace(inner, stride=factor.stride))


def _operand(emitter: "Emitter", value: Value, position: int, term: Term) -> Term:
    """One operand of a sum or product, times the stride of the whole."""
    op = value.node.op
    assert isinstance(op, Map)
    arg = op.args[position]
    if isinstance(arg, Lit):
        return Term(None, (), times(int(arg.value), term.stride))
    if isinstance(arg, Size):
        return Term(None, (), times(_extent(emitter, arg), term.stride))
    return Term(arg, (value.reads[position], *term.hops), term.stride)


def _extent(emitter: "Emitter", size: Size) -> Extent:
    argument = next(a for a in emitter.model.graph.arguments if a.name == size.tensor)
    extent: Extent = argument.shape[size.dim]
    return extent


def _shares(terms: list[Term], extents: list[Extent]) -> list[list[Term]] | None:
    """Which terms make the coordinate along each of several dims viewed as one; None where strides do not fit the dims.

    A view of several dims as one exists only where their strides nest, so that any share gives the address that the sum gives.
    """
    strides: list[Extent] = [1]
    for extent in reversed(extents[1:]):
        strides.insert(0, times(strides[0], extent))
    shares: list[list[Term]] = [[] for _ in extents]
    for term in terms:
        for share, stride in zip(shares, strides):
            step = quotient(term.stride, stride)
            if isinstance(step, int) and step > 0:
                share.append(replace(term, stride=step))
                break
        else:
            return None
    return shares if len(terms) > 1 else None


def _is_position(emitter: "Emitter", term: Term) -> bool:
    if term.value is None:
        return isinstance(term.stride, int)
    values = emitter.model.values
    return isinstance(values[values[term.value].root].node.op, Iota) and isinstance(term.stride, int)


def _digits(emitter: "Emitter", terms: list[Term], loc: Loc) -> g.DimIndex:
    """Digits of a sum: positions as coordinates of the reader, other values as references."""
    digits: list[g.Digit] = []
    for term in terms:
        assert isinstance(term.stride, int)
        if term.value is None:
            digits.append(g.Digit(g.Index(None, term.stride)))
        elif _is_position(emitter, term):
            value = emitter.model.values[term.value]
            root = emitter.model.values[value.root]
            inner = emitter.dim_index(root.dims[0], value.hops + list(term.hops), loc)
            digits += [replace(d, step=d.step * term.stride) for d in inner]
        else:
            digits.append(g.Digit(_ref(emitter, term, loc), term.stride))
    return tuple(digits)


def _ref(emitter: "Emitter", term: Term, loc: Loc) -> g.Ref:
    assert term.value is not None
    return emitter.value_ref(term.value, term.hops[0], term.hops[1:], loc)


# ---- quotients and remainders --------------------------------------------------------------------------------------------------

def _divided(emitter: "Emitter", index: g.Ref, extents: list[Extent], position: int, loc: Loc) -> g.Ref:
    """(index // product of the inner extents) % extent; the topmost digit needs no remainder."""
    axes = tuple(emitter.axes.named(at) for a in emitter.nodes_axes(index.value) if (at := index.index(a.name).axis) is not None)
    result = index
    for inner in reversed(extents[position + 1:]):
        result = g.Ref(emitter.add(g.Map("floordiv", (result, _size(emitter, inner))), axes, "i64", loc, "index", None))
    if position:
        result = g.Ref(emitter.add(g.Map("mod", (result, _size(emitter, extents[position]))), axes, "i64", loc, "index", None))
    return result


def _size(emitter: "Emitter", extent: Extent) -> Lit | Size:
    """An extent as an operand: a constant, or the size of the first argument's dim that has it."""
    if isinstance(extent, int):
        return Lit(extent)
    for argument in emitter.model.graph.arguments:
        for dim, n in enumerate(argument.shape):
            if not isinstance(n, int) and sympy.simplify(n - extent) == 0:
                return Size(argument.name, dim)
    raise FusionError(f"an index picks from a dim of size {extent}, which is no argument's", None, "index each dim by itself")
