"""A part of a value from parts of its operands: slices and gathers pushed towards the arguments, on the tensor graph.

Only what makes the part is computed. Used where a part must be a value of its own: unequal ranges of one dim, and picks from
computed values.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from string import ascii_letters
from typing import Union

import sympy

from ..ir.scalar import Lit
from ..ir.tensor import (
    Contract, Expand, Fill, Gather, Input, Iota, Join, Map, Permute, Reduce, Reshape, Shape, Slice, TensorGraph, TensorNode,
    Update,
)
from .make_nodes import Maker


@dataclass(frozen=True, slots=True)
class Range:
    """Elements start … start + length - 1 of a dim."""

    dim: int
    start: int
    length: int

    def shape(self, shape: Shape, index: Shape) -> Shape:
        return shape[:self.dim] + (self.length,) + shape[self.dim + 1:]


@dataclass(frozen=True, slots=True)
class Picks:
    """The elements of a dim that an index value (of `rank` dims) names; `where` as in Gather."""

    dim: int
    index: str
    where: str | None
    rank: int

    def shape(self, shape: Shape, index: Shape) -> Shape:
        return shape[:self.dim] + index + shape[self.dim + 1:]


Part = Union[Range, Picks]


def at(part: Part, dim: int) -> Part:
    """The same part along another dim."""
    return replace(part, dim=dim)


class Pusher(Maker):
    """Makes nodes for parts of values. `asked`: every (value, dim) that a Range was taken of, with the ranges."""

    def __init__(self, graph: TensorGraph) -> None:
        super().__init__(graph)
        self.made: dict[tuple[str, Part], str | None] = {}
        self.asked: dict[tuple[str, int], set[tuple[int, int]]] = {}

    def part(self, name: str, part: Part) -> str | None:
        """The name of a value that is that part; None where it cannot be made from parts of operands."""
        if isinstance(part, Range):
            self.asked.setdefault((name, part.dim), set()).add((part.start, part.length))
            if part.length == self.table[name].shape[part.dim]:
                return name
        if (name, part) not in self.made:
            self.made[name, part] = self._make(self.table[name], part)
        return self.made[name, part]

    # ---- by op ------------------------------------------------------------------------------------------------------------------

    def _new_shape(self, node: TensorNode, part: Part) -> Shape:
        return part.shape(node.shape, self.table[part.index].shape if isinstance(part, Picks) else ())

    def _make(self, node: TensorNode, part: Part) -> str | None:
        op = node.op
        if isinstance(op, (Input, Update)):
            return self._taken(node, part)
        rule = getattr(self, "_" + type(op).__name__.lower())
        made = rule(node, op, part)
        assert made is None or isinstance(made, str)
        return made if made is not None or isinstance(part, Picks) else self._taken(node, part)

    def _taken(self, node: TensorNode, part: Part) -> str | None:
        """The part as a view of the value itself."""
        if isinstance(part, Range):
            return self.add(node, Slice(node.name, part.dim, part.start), self._new_shape(node, part))
        if not isinstance(node.op, Input):
            return None
        return self.add(node, Gather(node.name, part.dim, part.index, part.where), self._new_shape(node, part))

    def _aligned(self, arg: str, rank: int, part: Part) -> str | None:
        """The operand of a broadcasting op for a part of the result: itself where it does not have the dim."""
        shape = self.table[arg].shape
        dim = part.dim - (rank - len(shape))
        if dim < 0:
            return arg
        if shape[dim] != 1:
            return self.part(arg, at(part, dim))
        if isinstance(part, Range) or part.rank == 1:
            return arg
        return self.add(self.table[arg], Reshape(arg), shape[:dim] + (1,) * part.rank + shape[dim + 1:])

    def _map(self, node: TensorNode, op: Map, part: Part) -> str | None:
        args = [self._aligned(a, len(node.shape), part) if isinstance(a, str) else a for a in op.args]
        if any(a is None for a in args):
            return None
        return self.add(node, Map(op.fn, tuple(a for a in args if a is not None)), self._new_shape(node, part))

    def _reduce(self, node: TensorNode, op: Reduce, part: Part) -> str | None:
        rank = len(node.shape) + len(op.dims)
        dim = [d for d in range(rank) if d not in op.dims][part.dim]
        args = [self._aligned(a, rank, at(part, dim)) for a in op.args]
        grown = part.rank - 1 if isinstance(part, Picks) else 0
        if any(a is None for a in args):
            return None
        dims = tuple(d + grown if d > dim else d for d in op.dims)
        return self.add(node, Reduce(op.monoid, tuple(a for a in args if a is not None), dims), self._new_shape(node, part))

    def _contract(self, node: TensorNode, op: Contract, part: Part) -> str | None:
        letter = op.output[part.dim]
        free = iter(c for c in ascii_letters if not any(c in word for word in op.inputs))
        letters = letter if isinstance(part, Range) else "".join(next(free) for _ in range(part.rank))
        args: list[str] = []
        for arg, word in zip(op.args, op.inputs):
            made = self.part(arg, at(part, word.index(letter))) if letter in word else arg
            if made is None:
                return None
            args.append(made)
        words = tuple(word.replace(letter, letters) for word in op.inputs)
        return self.add(node, Contract(tuple(args), words, op.output.replace(letter, letters)), self._new_shape(node, part))

    def _permute(self, node: TensorNode, op: Permute, part: Part) -> str | None:
        dim = op.order[part.dim]
        made = self.part(op.arg, at(part, dim))
        if made is None:
            return None
        count = part.rank if isinstance(part, Picks) else 1
        order: list[int] = []
        for d in op.order:
            shifted = d + count - 1 if d > dim else d
            order += list(range(dim, dim + count)) if d == dim else [shifted]
        return self.add(node, Permute(made, tuple(order)), self._new_shape(node, part))

    def _reshape(self, node: TensorNode, op: Reshape, part: Part) -> str | None:
        found = through_reshape(self.table[op.arg].shape, node.shape, part)
        made = self.part(op.arg, found) if found is not None else None
        return self.add(node, Reshape(made), self._new_shape(node, part)) if made is not None else None

    def _expand(self, node: TensorNode, op: Expand, part: Part) -> str | None:
        made = self._aligned(op.arg, len(node.shape), part)
        return self.add(node, Expand(made), self._new_shape(node, part)) if made is not None else None

    def _slice(self, node: TensorNode, op: Slice, part: Part) -> str | None:
        if part.dim == op.dim:
            if isinstance(part, Picks) or op.step != 1:
                return None
            return self.part(op.arg, Range(op.dim, op.start + part.start, part.length))
        made = self.part(op.arg, part)
        grown = part.rank - 1 if isinstance(part, Picks) and op.dim > part.dim else 0
        return self.add(node, replace(op, arg=made, dim=op.dim + grown), self._new_shape(node, part)) if made is not None else None

    def _gather(self, node: TensorNode, op: Gather, part: Part) -> str | None:
        rank = len(self.table[op.index].shape)
        if isinstance(part, Picks):
            return None
        if op.dim <= part.dim < op.dim + rank:
            index, where = self.part(op.index, at(part, part.dim - op.dim)), op.where
            if where is not None:
                where = self.part(where, at(part, part.dim - op.dim))
            return self.add(node, Gather(op.arg, op.dim, index, where), self._new_shape(node, part)) if index is not None else None
        made = self.part(op.arg, at(part, part.dim if part.dim < op.dim else part.dim - rank + 1))
        return self.add(node, replace(op, arg=made), self._new_shape(node, part)) if made is not None else None

    def _join(self, node: TensorNode, op: Join, part: Part) -> str | None:
        if part.dim != op.dim:
            grown = part.rank - 1 if isinstance(part, Picks) and op.dim > part.dim else 0
            parts = [self.part(p, part) for p in op.parts]
            if any(p is None for p in parts):
                return None
            return self.add(node, Join(tuple(p for p in parts if p is not None), op.dim + grown), self._new_shape(node, part))
        if isinstance(part, Picks):
            return None
        chosen = [self.part(name, Range(op.dim, low, high - low)) for name, low, high in self._overlaps(op, part)]
        if any(p is None for p in chosen):
            return None
        found = tuple(p for p in chosen if p is not None)
        return found[0] if len(found) == 1 else self.add(node, Join(found, op.dim), self._new_shape(node, part))

    def _overlaps(self, op: Join, part: Range) -> Iterator[tuple[str, int, int]]:
        """(part of the join, first, end) of what the range covers of it."""
        start = 0
        for name in op.parts:
            size = self.table[name].shape[op.dim]
            assert isinstance(size, int)
            low, high = max(part.start - start, 0), min(part.start + part.length - start, size)
            if low < high:
                yield name, low, high
            start += size

    def _fill(self, node: TensorNode, op: Fill, part: Part) -> str | None:
        return self.add(node, op, self._new_shape(node, part)) if isinstance(part, Range) or part.where is None else None

    def _iota(self, node: TensorNode, op: Iota, part: Part) -> str | None:
        if isinstance(part, Picks):
            return None
        positions = self.add(node, Iota(), (part.length,))
        return self.add(node, Map("add", (positions, Lit(part.start))), (part.length,)) if part.start else positions


def through_reshape(below: Shape, above: Shape, part: Part) -> Part | None:
    """The part of a reshape's operand that is the given part of its result; None where that is no part along one dim.

    x[24].view(4, 6)[1:3] is x[6:18].view(2, 6); x[4, 6].view(24)[6:18] is x[1:3].view(12).
    """
    before = sympy.prod([sympy.sympify(n) for n in above[:part.dim]])
    size = above[part.dim]
    for dim, n in enumerate(below):
        if n == 1 or sympy.prod([sympy.sympify(m) for m in below[:dim]]) != before:
            continue
        if n == size:
            return at(part, dim)
        if not isinstance(part, Range) or not isinstance(n, int) or not isinstance(size, int):
            return None
        if n % size == 0:
            return Range(dim, part.start * (n // size), part.length * (n // size))
        inner = size // n
        if size % n == 0 and part.start % inner == 0 and part.length % inner == 0:
            return Range(dim, part.start // inner, part.length // inner)
        return None
    return None
