"""Where an index stands: coordinates along the pieces of a dim, and which value a coordinate really is.

An index into dims viewed as one, i · n + j, has the digits i and j. All on the tensor graph, before dims have names.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from ..ir.dtype import INTS
from ..ir.scalar import Lit
from ..ir.tensor import Expand, Iota, Map, Permute, Reshape, Shape, Size, TensorNode
from .atoms import Size as Extent
from .atoms import quotient, times
from .make_nodes import Maker

Term = tuple[Union[str, None], Extent]
"""(value, stride): one summand of an index; without a value the stride itself."""


@dataclass(frozen=True, slots=True)
class Core:
    """The value that an index repeats: `dims` says for each of the value's dims which dim of the index runs along it."""

    value: str
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pieces:
    """The common pieces of two shapes of the same elements, outermost first; per piece the dim of each shape that it belongs to."""

    extents: tuple[Extent, ...]
    first: tuple[int, ...]
    second: tuple[int, ...]


def pieces(first: Shape, second: Shape) -> Pieces | None:
    """The coarsest pieces that both shapes are made of, unit dims left out; None where the sizes do not nest."""
    found: list[tuple[Extent, int, int]] = []
    left = [(n, d) for d, n in enumerate(first) if n != 1]
    right = [(n, d) for d, n in enumerate(second) if n != 1]
    while left and right:
        (a, d), (b, e) = left.pop(), right.pop()
        if a == b:
            found.append((a, d, e))
        elif (q := quotient(a, b)) is not None:
            found.append((b, d, e))
            left.append((q, d))
        elif (q := quotient(b, a)) is not None:
            found.append((a, d, e))
            right.append((q, e))
        else:
            return None
    if left or right:
        return None
    found.reverse()
    return Pieces(tuple(n for n, _, _ in found), tuple(d for _, d, _ in found), tuple(e for _, _, e in found))


def refined(common: Pieces, shape: Shape) -> Pieces:
    """The pieces cut where a third shape of the same elements has its dims too; the same where those do not nest."""
    finer = pieces(common.extents, shape)
    if finer is None:
        return common
    return Pieces(finer.extents, tuple(common.first[i] for i in finer.first), tuple(common.second[i] for i in finer.first))


def terms(maker: Maker, value: str, stride: Extent = 1, least: Extent = 1) -> list[Term]:
    """An index as a sum of products with sizes. A sum without any product with a multiple of `least` stays one value."""
    op = maker.table[value].op
    if isinstance(op, Expand):
        return terms(maker, op.arg, stride, least)
    if isinstance(op, Reshape) and (dims := _kept_dims(maker.shape(op.arg), maker.shape(value))) is not None:
        below = terms(maker, op.arg, stride, least)
        return [(v if v is None else _moved(maker, v, dims, len(maker.shape(value))), s) for v, s in below]
    if not isinstance(op, Map) or op.fn not in ("add", "mul") or len(op.args) != 2:
        return [(value, stride)]
    if op.fn == "add" and not _has_multiple(maker, value, stride, least):
        return [(value, stride)]
    numbers = [_number(maker, a) for a in op.args]
    if op.fn == "mul":
        if (numbers[0] is None) == (numbers[1] is None):
            return [(value, stride)]
        factor, inner = (numbers[0], op.args[1]) if numbers[1] is None else (numbers[1], op.args[0])
        assert factor is not None and isinstance(inner, str)
        return terms(maker, inner, times(factor, stride), least)
    if any(isinstance(n, int) and n < 0 for n in numbers):
        return [(value, stride)]
    out: list[Term] = []
    for a, n in zip(op.args, numbers):
        out += [(None, times(n, stride))] if n is not None else terms(maker, str(a), stride, least)
    return out


def _has_multiple(maker: Maker, value: object, stride: Extent, least: Extent) -> bool:
    """Whether a sum has a term whose stride is a multiple of `least`."""
    if least == 1 or (quotient(stride, least)) is not None:
        return True
    op = maker.table[value].op if isinstance(value, str) else None
    if isinstance(op, (Expand, Reshape)):
        return _has_multiple(maker, op.arg, stride, least)
    if not isinstance(op, Map) or op.fn not in ("add", "mul") or len(op.args) != 2:
        return False
    if op.fn == "add":
        return any(_has_multiple(maker, a, stride, least) for a in op.args)
    numbers = [_number(maker, a) for a in op.args]
    return any(n is not None and _has_multiple(maker, a, times(n, stride), least) for n, a in zip(numbers, reversed(op.args)))


def _kept_dims(before: Shape, after: Shape) -> dict[int, int] | None:
    """Where the dims of a value stand in a reshape that only adds and drops unit dims, counted from the end; None in others."""
    old, new = ([d - len(s) for d, n in enumerate(s) if n != 1] for s in (before, after))
    same = [before[d] for d in old] == [after[d] for d in new]
    return dict(zip(old, new)) if same else None


def _moved(maker: Maker, value: str, dims: dict[int, int], rank: int) -> str:
    """A summand of the index before the reshape as one of the index after it."""
    shape = maker.shape(value)
    long = [d for d, n in enumerate(shape) if n != 1]
    flat = maker.reshape(value, tuple(shape[d] for d in long))
    return maker.placed(flat, [rank + dims[d - len(shape)] for d in long], rank)


def _number(maker: Maker, operand: object) -> Extent | None:
    """The constant or the size that an operand is, products of sizes among them."""
    if isinstance(operand, str):
        op = maker.table[operand].op
        if not isinstance(op, Map) or op.fn not in ("identity", "mul") or maker.shape(operand) != ():
            return None
        factors = [_number(maker, a) for a in op.args]
        return None if None in factors else _product(tuple(n for n in factors if n is not None))
    if isinstance(operand, Lit):
        return int(operand.value)
    if isinstance(operand, Size):
        argument = next(a for a in maker.graph.arguments if a.name == operand.tensor)
        extent: Extent = argument.shape[operand.dim]
        return extent
    return None


def _product(sizes: tuple[Extent, ...]) -> Extent:
    total: Extent = 1
    for n in sizes:
        total = times(total, n)
    return total


def digits(maker: Maker, index: str, extents: tuple[Extent, ...]) -> list[str] | None:
    """One index value per piece of a dim, all broadcasting to the index; None where its strides do not fit the pieces."""
    if len(extents) == 1:
        return [index]
    strides: list[Extent] = [1]
    for extent in reversed(extents[1:]):
        strides.insert(0, times(strides[0], extent))
    tried = (_digits(maker, index, extents, strides, least) for least in reversed(strides))
    return next((found for found in tried if found is not None), None)


def _digits(maker: Maker, index: str, extents: tuple[Extent, ...], strides: list[Extent], least: Extent) -> list[str] | None:
    """The same with the index's sums taken apart in one way; `least` as in `terms`."""
    shares: list[list[Term]] = [[] for _ in extents]
    for value, stride in terms(maker, index, 1, least):
        bounded = _top(maker, value, 1) is not None
        for place, s in enumerate(strides):
            step = _times_in(stride, s)
            if step:
                shares[place].append((value, step))
                stride = stride - step * s if isinstance(stride, int) and isinstance(s, int) else 0
                if stride != 0 and not bounded:
                    return None
        if stride != 0:
            return None
    if sum(map(len, shares)) < 2 or not all(_fits(maker, share, n) for share, n in zip(shares, extents)):
        return None
    like = maker.table[index]
    found = [_sum(maker, like, share) for share in shares]
    for place, share in enumerate(shares):
        outer = next((p for p in reversed(range(place)) if shares[p]), -1) + 1
        if outer < place and share and any(_top(maker, value, step) is None for value, step in share):
            found[outer:place + 1] = divided(maker, like, found[place], extents[outer:place + 1])
    return found


def divided(maker: Maker, like: TensorNode, value: str, extents: tuple[Extent, ...]) -> list[str]:
    """The digits of an index value that runs over several pieces, by division: for one that is nowhere negative."""
    found: list[str] = []
    for n in reversed(extents[1:]):
        found.insert(0, maker.map(like, "mod", (value, maker.size(n)), "i64"))
        value = maker.map(like, "floordiv", (value, maker.size(n)), "i64")
    return [value, *found]


def _times_in(stride: Extent, inner: Extent) -> int:
    """How often a stride has another one in it: with sizes known at the call, exactly or not at all."""
    if isinstance(stride, int) and isinstance(inner, int):
        return stride // inner
    whole = quotient(stride, inner)
    return whole if isinstance(whole, int) else 0


def _fits(maker: Maker, share: list[Term], extent: Extent) -> bool:
    """Whether a sum stays a digit: one value that is an index already, or positions that end before the extent."""
    tops = [_top(maker, value, step) for value, step in share]
    known = [t for t in tops if t is not None]
    if len(known) == len(tops) and isinstance(extent, int):
        return sum(known) < extent
    return len(share) == 1 and share[0][1] == 1


def _top(maker: Maker, value: str | None, step: Extent) -> int | None:
    """The largest value of a term, None where it is not known."""
    if not isinstance(step, int):
        return None
    if value is None:
        return step
    behind = maker.table[core(maker, value).value]
    size = behind.shape[0] if isinstance(behind.op, Iota) else None
    return (size - 1) * step if isinstance(size, int) else None


def _sum(maker: Maker, like: TensorNode, share: list[Term]) -> str:
    total: str | None = None
    constant = sum(int(step) for value, step in share if value is None)
    for value, step in share:
        if value is None:
            continue
        term = value if step == 1 else maker.map(like, "mul", (value, Lit(int(step))), "i64")
        total = term if total is None else maker.map(like, "add", (total, term), "i64")
    if total is None:
        return maker.map(like, "identity", (Lit(constant),), "i64")
    return total if constant == 0 else maker.map(like, "add", (total, Lit(constant)), "i64")


def core(maker: Maker, index: str, extent: Extent | None = None) -> Core:
    """The value behind repeats, unit dims, integer casts and the wrap of negative values, with the index's dims it runs along.

    extent: of the dim that it indexes; a wrap by another size makes another slot of it. None: for values that are nowhere negative.
    """
    shape = maker.shape(index)
    return _core(maker, index, tuple(d for d, n in enumerate(shape) if n != 1), extent)


def _core(maker: Maker, name: str, places: tuple[int, ...], extent: Extent | None) -> Core:
    """`places`: for each dim of `name` that is not a unit dim the dim of the index that it is."""
    node = maker.table[name]
    op, own = node.op, tuple(d for d, n in enumerate(node.shape) if n != 1)
    if isinstance(op, Map) and (below := _same_number(maker, node, op, extent)) is not None:
        lead = len(node.shape) - len(maker.shape(below))
        kept = {d + lead for d, n in enumerate(maker.shape(below)) if n != 1}
        return _core(maker, below, tuple(p for d, p in zip(own, places) if d in kept), extent)
    if isinstance(op, Expand):
        lead = len(node.shape) - len(maker.shape(op.arg))
        kept = {d + lead for d, n in enumerate(maker.shape(op.arg)) if n != 1}
        return _core(maker, op.arg, tuple(p for d, p in zip(own, places) if d in kept), extent)
    if isinstance(op, Reshape) and [n for n in maker.shape(op.arg) if n != 1] == [n for n in node.shape if n != 1]:
        return _core(maker, op.arg, places, extent)
    if isinstance(op, Permute):
        by_source = {op.order[d]: p for d, p in zip(own, places)}
        return _core(maker, op.arg, tuple(by_source[d] for d in sorted(by_source)), extent)
    return Core(name, places)


def _same_number(maker: Maker, node: TensorNode, op: Map, extent: Extent | None) -> str | None:
    """The operand that a Map of integers passes on: a cast, or i of select(i < 0, i + n, i) (an index counts in one way only), n
    being the extent of what it indexes where that is given."""
    if op.fn == "identity" and isinstance(op.args[0], str) and maker.table[op.args[0]].dtype in INTS and node.dtype in INTS:
        return op.args[0]
    if op.fn != "select" or not isinstance(op.args[0], str) or not isinstance(op.args[2], str):
        return None
    test = maker.table[op.args[0]].op
    wrapped = maker.table[op.args[1]].op if isinstance(op.args[1], str) else None
    if not isinstance(test, Map) or (test.fn, test.args) != ("lt", (op.args[2], Lit(0))):
        return None
    if not isinstance(wrapped, Map) or (wrapped.fn, wrapped.args[0]) != ("add", op.args[2]):  # select(i < 0, 0, i) is another slot.
        return None
    whole = _number(maker, wrapped.args[1])
    return op.args[2] if whole is not None and extent in (None, whole) else None
