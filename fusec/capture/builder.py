"""Builds tensor graph nodes one primitive at a time; an op that changes nothing gives back its operand, an equal one its first
node.

The importer holds one Builder per function; the op tables call its methods. Every method gives a Value whose node already stands in
the graph. Shapes may hold sympy expressions where a size is known at the call only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

import sympy
import torch

from ..errors import InternalError, Loc, UnsupportedOp
from ..ir.dtype import FLOATS, INTS, NARROW, wrapped
from ..ir.reference import TORCH_DTYPE
from ..ir.scalar import COMPOSITES, GIVE_BOOLS, PRIMITIVES, Call, Lit, Param, Scalar as Expression
from ..ir.tensor import (
    Contract,
    Expand,
    Fill,
    Gather,
    Input,
    Iota,
    Join,
    Map,
    Operand,
    Permute,
    Reduce,
    Reshape,
    Size,
    Slice,
    TensorNode,
    TensorOp,
    Update,
)

Extent = Union[int, sympy.Expr]
Shape = tuple[Extent, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """A handle to a node: its name, shape and dtype."""

    name: str
    shape: Shape
    dtype: str

    @property
    def rank(self) -> int:
        return len(self.shape)


Scalar = Union[int, float, bool, sympy.Expr]
Arg = Union[Value, Lit, Size]


OF_BOOLS = {"add": "or", "mul": "and", "max": "or", "min": "and", "bitand": "and", "bitor": "or", "bitxor": "ne",
            "select": "select", "identity": "identity"}
"""What a function of bools that gives a bool is: eager's sum of two bools is one of them, not 2."""
BOOL_FOLDS = {"max": "any", "min": "all", "any": "any", "all": "all"}
"""The same of folds."""


def plain(extent: object) -> Extent:
    """An int where the expression is one."""
    e = sympy.sympify(extent)
    return int(e) if e.is_Integer else e


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """The shape of right-aligned operands that broadcast."""
    rank = max((len(s) for s in shapes), default=0)
    out: list[Extent] = [1] * rank
    for shape in shapes:
        for i, n in enumerate(reversed(shape)):
            if n != 1:
                if out[-1 - i] not in (1, n):
                    raise InternalError(f"shapes {[tuple(map(str, s)) for s in shapes]} do not broadcast")
                out[-1 - i] = n
    return tuple(out)


def dims_of(dims: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Non-negative, sorted; all of them for None or an empty list, none of a number."""
    if dims is None or (not isinstance(dims, int) and len(dims) == 0):
        return tuple(range(rank))
    given = [dims] if isinstance(dims, int) else list(dims)
    return tuple(sorted({d % rank for d in given})) if rank else ()


@dataclass(slots=True)
class Builder:
    """The nodes so far, and what the next ones are credited to.

    sizes: where each symbol can be read, as (argument, dim). loc, source: of the captured op that is being imported. viewed: what a
    value of the same bits was made from. forwards:
    whether reads and views of updates are replaced by what was written. apart: whether constants and positions of equal sizes stay
    values of their own: where sizes are those of an example, equal ones say nothing.
    """

    sizes: dict[sympy.Symbol, Size] = field(default_factory=dict)
    nodes: list[TensorNode] = field(default_factory=list)
    loc: Loc = Loc()
    source: str = ""
    known: dict[Any, Value] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    table: dict[str, TensorNode] = field(default_factory=dict)
    viewed: dict[str, Value] = field(default_factory=dict)
    forwards: bool = True
    apart: bool = False

    def _add(self, op: TensorOp, shape: Sequence[Extent], dtype: str, name: str = "") -> Value:
        node_shape = tuple(plain(n) for n in shape)
        key = (repr(op), node_shape, dtype)  # repr tells 0.0 from -0.0 and from 0.
        if self.apart and isinstance(op, (Iota, Fill)):
            key = (f"{len(self.nodes)}", node_shape, dtype)
        if key in self.known:
            return self.known[key]
        name = name or f"%{len(self.nodes)}"
        self.known[key] = self.values[name] = Value(name, node_shape, dtype)
        self.table[name] = TensorNode(name, op, node_shape, dtype, self.loc, self.source)
        self.nodes.append(self.table[name])
        return self.known[key]

    def node(self, value: Value) -> TensorNode:
        """The node a value stands for."""
        return self.table[value.name]

    def unsupported(self, what: str, hint: str = "") -> UnsupportedOp:
        """An error that names the op being imported and where it stands."""
        return UnsupportedOp(f"{self.source}: {what}", self.loc, hint)

    # ---- leaves

    def input(self, name: str, shape: Shape, dtype: str) -> Value:
        return self._add(Input(name), shape, dtype, name)

    def fill(self, value: float | int | bool, shape: Shape, dtype: str) -> Value:
        """A constant everywhere, rounded to dtype."""
        if dtype in NARROW:
            value = torch.tensor(value, dtype=torch.float64).to(TORCH_DTYPE[dtype]).item()
        return self._add(Fill(lit(value, dtype)), shape, dtype)

    def iota(self, extent: Extent, dtype: str = "i64") -> Value:
        return self._add(Iota(), (extent,), dtype)

    # ---- elementwise

    def map(self, fn: str, *args: Value | Operand | float, dtype: str) -> Value:
        """fn over operands that broadcast, rounded to dtype. Python numbers become constants of the operands' kind.

        A composite of integers is taken apart: as one function it would be of fp32.
        """
        ready = [a if isinstance(a, (Value, Lit, Size)) else lit(a, "f32" if isinstance(a, float) else "i64") for a in args]
        if dtype == "bool" and fn in PRIMITIVES and fn not in GIVE_BOOLS:
            fn = self._of_bools(fn, OF_BOOLS)
        if fn in COMPOSITES and dtype in (*INTS, "bool") and not any(isinstance(a, Value) and a.dtype in FLOATS for a in ready):
            return self._of_integers(Call(fn, tuple(Param(i) for i in range(len(ready)))), ready, dtype)
        shape = broadcast([a.shape for a in ready if isinstance(a, Value)])
        return self._add(Map(fn, tuple(a.name if isinstance(a, Value) else a for a in ready)), shape, dtype)

    def _of_bools(self, fn: str, known: Mapping[str, str]) -> str:
        """What a function or fold that gives a bool is. Raises UnsupportedOp."""
        if fn not in known:
            raise self.unsupported(f"{fn} of bools", "cast to an integer first")
        return known[fn]

    def _of_integers(self, e: Expression, args: Sequence[Arg], dtype: str) -> Any:
        """An expression of integers, one primitive at a time."""
        if isinstance(e, Param):
            return args[e.position]
        if isinstance(e, Lit):
            if not float(e.value).is_integer():
                raise InternalError(f"{e.value} in a function of integers")
            return lit(e.value, dtype)
        inner = [self._of_integers(a, args, dtype) for a in e.args]
        if e.fn in COMPOSITES:
            return self._of_integers(COMPOSITES[e.fn].body, inner, dtype)
        return self.map(e.fn, *inner, dtype="bool" if e.fn in GIVE_BOOLS else dtype)

    def cast(self, x: Value, dtype: str) -> Value:
        """x as dtype; a float or int becomes a bool by comparison with zero."""
        if x.dtype == dtype:
            return x
        if dtype == "bool":
            return self.map("ne", x, Lit(0.0) if x.dtype in FLOATS else Lit(0), dtype="bool")
        return self.map("identity", x, dtype=dtype)

    def scalar(self, number: Scalar, dtype: str) -> Value | Lit:
        """A number as an operand of kind dtype: a constant, or a value computed from sizes that are known at the call."""
        if not isinstance(number, sympy.Expr) or number.is_number:
            return lit(number if not isinstance(number, sympy.Expr) else _number(number), dtype)
        return self.cast(self._size_value(number, dtype in FLOATS), dtype)

    def _size_value(self, e: sympy.Expr, real: bool) -> Value:
        if isinstance(e, sympy.Symbol):
            return self._add(Map("identity", (self.size(e),)), (), "f32" if real else "i64")
        kind = "f32" if real else "i64"
        parts = [self._size_value(a, real) if not a.is_number else lit(_number(a), kind) for a in e.args]
        if e.is_Add or e.is_Mul:
            total = parts[0]
            for part in parts[1:]:
                total = self.map("add" if e.is_Add else "mul", total, part, dtype=kind)
            assert isinstance(total, Value)
            return total
        if real and e.is_Pow and isinstance(parts[1], Lit) and parts[1].value in (-1.0, 0.5, -0.5):
            return self.map({-1.0: "rcp", 0.5: "sqrt", -0.5: "rsqrt"}[float(parts[1].value)], parts[0], dtype=kind)
        raise self.unsupported(f"the size {e} as a number", "compute it from constants, or pass it as a tensor")

    def size(self, extent: Extent) -> Size | Lit:
        """The size as an operand."""
        if isinstance(extent, int):
            return Lit(extent)
        if isinstance(extent, sympy.Symbol):
            return self.sizes[extent]
        raise self.unsupported(f"the size {extent} as a number")

    # ---- folds

    def reduce(self, monoid: str, args: Sequence[Value], dims: Sequence[int], dtype: str, keep: bool = False) -> Value:
        """The fold over `dims` of the aligned operands; unit dims are reshaped away, none at all is a Map."""
        shape = broadcast([a.shape for a in args])
        monoid = self._of_bools(monoid, BOOL_FOLDS) if dtype == "bool" else monoid
        kept = tuple(n for i, n in enumerate(shape) if i not in dims)
        out = (
            self._add(Reduce(monoid, tuple(a.name for a in args), tuple(dims)), kept, dtype) if dims else self.cast(args[0], dtype)
        )
        return self.reshape(out, tuple(1 if i in dims else n for i, n in enumerate(shape))) if keep else out

    def contract(self, args: Sequence[Value], inputs: Sequence[str], output: str, dtype: str) -> Value:
        extent = {letter: n for a, word in zip(args, inputs) for letter, n in zip(word, a.shape)}
        return self._add(Contract(tuple(a.name for a in args), tuple(inputs), output), tuple(extent[c] for c in output), dtype)

    # ---- views

    def permute(self, x: Value, order: Sequence[int]) -> Value:
        order = tuple(d % x.rank for d in order)
        if order == tuple(range(x.rank)):
            return x
        op = self.table[x.name].op
        if isinstance(op, Permute):
            return self.permute(self.values[op.arg], [op.order[d] for d in order])
        if (update := forward.permuted(self, x, order)) is not None:
            return update
        return self._add(Permute(x.name, order), tuple(x.shape[d] for d in order), x.dtype)

    def reshape(self, x: Value, shape: Sequence[Extent]) -> Value:
        shape = tuple(plain(n) for n in shape)
        if shape == x.shape:
            return x
        op = self.table[x.name].op
        if isinstance(op, Reshape):
            return self.reshape(self.values[op.arg], shape)
        update = forward.reshaped(self, x, shape)
        return self._add(Reshape(x.name), shape, x.dtype) if update is None else update

    def unsqueeze(self, x: Value, dim: int) -> Value:
        dim %= x.rank + 1
        return self.reshape(x, x.shape[:dim] + (1,) + x.shape[dim:])

    def squeeze(self, x: Value, dims: Sequence[int]) -> Value:
        return self.reshape(x, tuple(n for i, n in enumerate(x.shape) if i not in dims or n != 1))

    def expand(self, x: Value, shape: Sequence[Extent]) -> Value:
        shape = tuple(plain(n) for n in shape)
        return x if shape == x.shape else self._add(Expand(x.name), shape, x.dtype)

    def slice(self, x: Value, dim: int, start: int, length: Extent, step: int = 1) -> Value:
        dim %= x.rank
        if length == x.shape[dim]:
            return x
        op = self.table[x.name].op
        if isinstance(op, Slice) and op.dim == dim:
            return self.slice(self.values[op.arg], dim, op.start + start * op.step, length, op.step * step)
        if (update := forward.sliced(self, x, dim, start, length, step)) is not None:
            return update
        shape = x.shape[:dim] + (length,) + x.shape[dim + 1 :]
        return self._add(Slice(x.name, dim, start, step), shape, x.dtype)

    def select(self, x: Value, dim: int, index: int) -> Value:
        """x[..., index, ...] with the dim gone."""
        dim %= x.rank
        one = self.slice(x, dim, index, 1)
        return self.reshape(one, x.shape[:dim] + x.shape[dim + 1 :])

    def join(self, parts: Sequence[Value], dim: int) -> Value:
        """Ranges of one dim side by side; neighbouring ranges of one value are one range, updates of all parts one update."""
        parts = self._merged([p for p in parts if p.shape[dim] != 0] or list(parts[:1]), dim)
        if len(parts) == 1:
            return parts[0]
        if (update := forward.joined(self, parts, dim)) is not None:
            return update
        shape = list(parts[0].shape)
        shape[dim] = plain(sum(sympy.sympify(p.shape[dim]) for p in parts))
        return self._add(Join(tuple(p.name for p in parts), dim), shape, parts[0].dtype)

    def _merged(self, parts: Sequence[Value], dim: int) -> list[Value]:
        """Slices of one value that follow each other are one slice."""
        out: list[Value] = []
        for part in parts:
            last = self.table[out[-1].name].op if out else None
            op = self.table[part.name].op
            if (
                isinstance(last, Slice)
                and isinstance(op, Slice)
                and (last.arg, last.dim, last.step) == (op.arg, dim, op.step) == (op.arg, op.dim, 1)
            ):
                if last.start + out[-1].shape[dim] == op.start:
                    length = plain(sympy.sympify(out[-1].shape[dim]) + part.shape[dim])
                    out[-1] = self.slice(self.values[op.arg], dim, last.start, length)
                    continue
            out.append(part)
        return out

    def stack(self, parts: Sequence[Value], dim: int) -> Value:
        return self.join([self.unsqueeze(p, dim) for p in parts], dim % (parts[0].rank + 1))

    # ---- indexing

    def gather(self, x: Value, dim: int, index: Value, where: Value | None = None) -> Value:
        """x[..., index, ...], 0 where the bool `where` of the index's shape is false; what was just written there, if it was
        written through the same index."""
        written = forward.stored(self, x, dim, index, where)
        if written is not None:
            return written if where is None else self.masked(written, dim, where)
        shape = x.shape[:dim] + index.shape + x.shape[dim + 1 :]
        return self._add(Gather(x.name, dim, index.name, where.name if where is not None else None), shape, x.dtype)

    def masked(self, x: Value, dim: int, where: Value) -> Value:
        """x, 0 where a bool value over its dims from `dim` on is false."""
        mask = self.reshape(where, where.shape + (1,) * (x.rank - dim - where.rank))
        return self.map("select", mask, x, lit(0, x.dtype), dtype=x.dtype)

    def update(self, target: Value, value: Value, dim: int = 0, index: Value | None = None, where: Value | None = None) -> Value:
        """The target with a part replaced; the value broadcasts to that part's shape and takes the target's dtype.

        Without an index all of it is replaced, and the new version is the value itself. where: bool, of the index's shape; what it
        is false for stays.
        """
        part = target.shape if index is None else target.shape[:dim] + index.shape + target.shape[dim + 1 :]
        value = self.expand(self.cast(value, target.dtype), part)
        if index is None:
            return value
        before = forward.updated(self, target)
        if before is not None and before[2:] == (dim, index, where):  # Written again through the same index.
            target = before[0]
        op = Update(target.name, value.name, dim, index.name, where.name if where is not None else None)
        return self._add(op, target.shape, target.dtype)

    def wrap(self, index: Value, extent: Extent) -> Value:
        """An index that may count from the end: index + size where it is negative."""
        wide = self.cast(index, "i64")
        if self._counts(wide.name):
            return wide
        place = self._place(wide)
        if place is not None and (blocks := sympy.sympify(extent) / place[1]).is_integer:
            outer = self.map("mul", self.wrap(place[0], plain(blocks)), Lit(place[1]), dtype="i64")
            return self.map("add", outer, place[2], dtype="i64")
        size = self.scalar(extent, "i64") if not isinstance(extent, (int, sympy.Symbol)) else self.size(extent)
        moved = self.map("add", wide, size, dtype="i64")
        return self.map("select", self.map("lt", wide, Lit(0), dtype="bool"), moved, wide, dtype="i64")

    def _place(self, index: Value) -> tuple[Value, int, Value] | None:
        """(block, n, place) of an index block · n + place with place in 0 … n - 1: it is negative where the block is."""
        op = self.table[index.name].op
        if not isinstance(op, Map) or op.fn != "add" or not all(isinstance(a, str) for a in op.args):
            return None
        for block, place in (op.args, op.args[::-1]):
            product, rest = self.table[str(block)].op, self.table[str(place)].op
            if not isinstance(product, Map) or not isinstance(rest, Map) or (product.fn, rest.fn) != ("mul", "mod"):
                continue
            steps = product.args[-1]
            if isinstance(steps, Lit) and steps.value > 0 and rest.args[-1] == steps and isinstance(product.args[0], str):
                return self.values[str(product.args[0])], int(steps.value), self.values[str(place)]
        return None

    def _counts(self, name: str) -> bool:
        """Whether an index is a position by its making, never negative: arange, scaled and shifted."""
        op = self.table[name].op
        if isinstance(op, (Reshape, Expand, Permute)):
            return self._counts(op.arg)
        if isinstance(op, Map) and op.fn in ("add", "mul", "identity"):
            return all(self._counts(a) if isinstance(a, str) else isinstance(a, Size) or a.value >= 0 for a in op.args)
        return isinstance(op, Iota)


def lit(number: object, dtype: str) -> Lit:
    """A Python number as a constant of the kind of dtype; float bits are kept, an integer wraps around as eager has it."""
    if dtype in FLOATS:
        return Lit(float(number))
    if dtype in INTS:
        return Lit(wrapped(int(number), dtype))
    return Lit(bool(number))


def _number(e: sympy.Expr) -> int | float:
    return int(e) if e.is_Integer else float(e)


from . import forward  # noqa: E402 - it builds with the Builder, and the Builder asks it.
