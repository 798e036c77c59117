"""Whether one row is the same function as many: two tensor graphs compared after identity views are gone.

PyTorch treats extents 0 and 1 apart while it captures, without a guard: `if x.shape[0] > 1` captured with a dynamic dim is silently
the branch for many rows. So the function is captured once more with one row, and both graphs are brought to a normal form in which
unit dims, identity views and the order of independent ops do not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sympy

from ..ir.dtype import INTS
from ..ir.tensor import (
    Contract,
    Expand,
    Fill,
    Gather,
    Input,
    Iota,
    Join,
    Map,
    Permute,
    Reduce,
    Reshape,
    Size,
    Slice,
    TensorGraph,
    TensorNode,
    Update,
)
from .nodes import operands

Key = tuple[Any, ...]


def first_difference(many: TensorGraph, one: TensorGraph, symbols: Mapping[sympy.Symbol, int]) -> TensorNode | str | None:
    """None where the graphs agree with the symbols at the given values; else the first node of `many` that `one` lacks, or a text.

    many: with symbolic extents. one: static, of the same function at those sizes.
    """
    a, b = _Keys(many, symbols), _Keys(one, symbols)
    if many.structure != one.structure or len(many.outputs) != len(one.outputs):
        return "the number or packing of the results"
    for x, y in zip(many.outputs, one.outputs):
        if x[0] in "=!" or y[0] in "=!":
            if x != y:
                return f"the result {x.lstrip('=!')}"
        elif a.shape(x) != b.shape(y):
            return many.table[x]
        elif a.key(x) != b.key(y):
            return _deepest(a, set(b.all()), x)
    if [n for n, _ in many.mutations] != [n for n, _ in one.mutations]:
        return "which arguments are written"
    for (_, x), (_, y) in zip(many.mutations, one.mutations):
        if a.key(x) != b.key(y):
            return _deepest(a, set(b.all()), x)
    return None


def _deepest(keys: "_Keys", other: set[int], value: str) -> TensorNode:
    """The earliest node that `value` needs and the other graph does not have."""
    needed, todo = set(), [value]
    while todo:
        name = todo.pop()
        if name not in needed:
            needed.add(name)
            todo += operands(keys.graph.table[name].op)
    return next(n for n in keys.graph.nodes if n.name in needed and keys.key(n.name) not in other)


class _Keys:
    """Numbers for values, equal where two values are computed alike up to unit dims. Numbers are shared by all instances."""

    numbers: dict[Key, int] = {}

    def __init__(self, graph: TensorGraph, symbols: Mapping[sympy.Symbol, int]) -> None:
        self.graph, self.symbols = graph, symbols
        self.found: dict[str, int] = {}
        self.shapes: dict[str, tuple[Any, ...]] = {}
        for node in graph.nodes:
            self.shapes[node.name] = tuple(self._size(n) for n in node.shape)
            self.found[node.name] = self._number(node)

    def key(self, value: str) -> int:
        return self.found[value]

    def shape(self, value: str) -> tuple[Any, ...]:
        return self.shapes[value]

    def all(self) -> list[int]:
        return list(self.found.values())

    def _size(self, n: Any) -> Any:
        return n if isinstance(n, int) else int(e) if (e := n.subs(self.symbols)).is_Integer else e

    def _number(self, node: TensorNode) -> int:
        same = self._zero(node)
        same = self._identity(node) if same is None else same
        if same is not None:
            return same
        key = (self._describe(node), self._long(self.shapes[node.name]), node.dtype)
        return self.numbers.setdefault(key, len(self.numbers))

    def _zero(self, node: TensorNode) -> int | None:
        """The number of the integer 0 for a range of one position and what is made of it; the other operand's where it is added."""
        op, zero = node.op, self.numbers.setdefault(("zero",), len(self.numbers))
        if self._long(self.shapes[node.name]) or node.dtype not in INTS:
            return self._added(op, zero) if isinstance(op, Map) and op.fn == "add" else None
        if isinstance(op, Iota) or isinstance(op, Fill) and op.value.value == 0:
            return zero
        if (
            isinstance(op, Map)
            and op.fn in ("mul", "identity")
            and any(isinstance(a, str) and self.found[a] == zero for a in op.args)
        ):
            return zero
        return self._added(op, zero) if isinstance(op, Map) and op.fn == "add" else None

    def _added(self, op: Map, zero: int) -> int | None:
        rest = [a for a in op.args if not (isinstance(a, str) and self.found[a] == zero)]
        return self.found[rest[0]] if len(rest) == 1 and len(op.args) == 2 and isinstance(rest[0], str) else None

    @staticmethod
    def _long(shape: tuple[Any, ...]) -> tuple[Any, ...]:
        """The shape without its unit dims."""
        return tuple(n for n in shape if n != 1)

    def _identity(self, node: TensorNode) -> int | None:
        """The operand's number where the op only adds, drops or moves unit dims."""
        op = node.op
        if not isinstance(op, (Reshape, Expand, Permute, Slice, Join)):
            return None
        arg = op.parts[0] if isinstance(op, Join) else op.arg
        if isinstance(op, Join) and len(op.parts) > 1 or self._long(self.shapes[arg]) != self._long(self.shapes[node.name]):
            return None
        if isinstance(op, Permute):
            order = [d for d in op.order if self.shapes[arg][d] != 1]
            return self.found[arg] if order == sorted(order) else None
        if isinstance(op, Slice) and self.shapes[arg] != self.shapes[node.name]:
            return None
        return self.found[arg]

    def _places(self, value: str, rank: int) -> tuple[int, ...]:
        """Where the long dims of a right-aligned operand stand among `rank` dims."""
        shape = self.shapes[value]
        return tuple(rank - len(shape) + i for i, n in enumerate(shape) if n != 1)

    def _squeezed(self, shape: tuple[Any, ...], dim: int) -> Any:
        """A dim counted without unit dims; None for a unit dim."""
        return None if shape[dim] == 1 else sum(n != 1 for n in shape[:dim])

    def _describe(self, node: TensorNode) -> Key:
        op = node.op
        shape = self.shapes[node.name]
        if isinstance(op, Input):
            return ("input", op.tensor)
        if isinstance(op, Map):
            return ("map", op.fn, tuple(self._operand(a, shape) for a in op.args))
        if isinstance(op, Reduce):
            return self._reduce(op)
        if isinstance(op, Contract):
            return self._contract(op)
        if isinstance(op, Permute):
            return (
                "permute",
                self.found[op.arg],
                tuple(self._squeezed(self.shapes[op.arg], d) for d in op.order if self.shapes[op.arg][d] != 1),
            )
        if isinstance(op, (Reshape, Expand)):
            return (
                type(op).__name__,
                self.found[op.arg],
                self._places(op.arg, len(shape)) if isinstance(op, Expand) else (),
                shape if isinstance(op, Expand) else (),
            )
        return self._indexed(op, shape)

    def _operand(self, a: Any, shape: tuple[Any, ...]) -> Any:
        if isinstance(a, Size):
            return ("size", self._size(next(x for x in self.graph.arguments if x.name == a.tensor).shape[a.dim]))
        if not isinstance(a, str):
            return ("size", a.value) if isinstance(a.value, int) and not isinstance(a.value, bool) else ("lit", repr(a.value))
        long = [i for i, n in enumerate(shape) if n != 1]
        return ("value", self.found[a], tuple(long.index(p) for p in self._places(a, len(shape)) if p in long))

    def _reduce(self, op: Reduce) -> Key:
        rank = max(len(self.shapes[a]) for a in op.args)
        dims = tuple(
            d for d in op.dims if any(d - rank + len(self.shapes[a]) >= 0 and self.shapes[a][d - rank] != 1 for a in op.args)
        )
        return ("reduce", op.monoid, tuple((self.found[a], self._places(a, rank)) for a in op.args), dims)

    def _contract(self, op: Contract) -> Key:
        names: dict[str, int] = {}
        words = [[names.setdefault(c, len(names)) for c, n in zip(w, self.shapes[a]) if n != 1] for w, a in zip(op.inputs, op.args)]
        return (
            "contract",
            tuple(self.found[a] for a in op.args),
            tuple(map(tuple, words)),
            tuple(names[c] for c in op.output if c in names),
        )

    def _indexed(self, op: Any, shape: tuple[Any, ...]) -> Key:
        if isinstance(op, Slice):
            return ("slice", self.found[op.arg], self._squeezed(self.shapes[op.arg], op.dim), op.start, op.step)
        if isinstance(op, Gather):
            return (
                "gather",
                self.found[op.arg],
                self._squeezed(self.shapes[op.arg], op.dim),
                self.found[op.index],
                op.where and self.found[op.where],
            )
        if isinstance(op, Update):
            return (
                "update",
                self.found[op.target],
                self.found[op.value],
                self._squeezed(self.shapes[op.target], op.dim),
                op.index and self.found[op.index],
                op.where and self.found[op.where],
            )
        if isinstance(op, Join):
            return (
                "join",
                tuple(self.found[p] for p in op.parts),
                self._squeezed(shape, op.dim),
                tuple(self.shapes[p][op.dim] for p in op.parts),
            )
        assert isinstance(op, (Iota, Fill))
        return (type(op).__name__, repr(op.value.value) if isinstance(op, Fill) else "")
