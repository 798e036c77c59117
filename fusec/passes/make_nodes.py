"""New nodes for the tensor graph: a table that rewrites add to, views made only where they change something."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import sympy

from ..ir.axis import Extent
from ..ir.dtype import FLOATS, ends
from ..ir.scalar import Lit
from ..ir.tensor import (
    Expand, Gather, Iota, Map, Operand, Permute, Reduce, Reshape, Shape, Size, Slice, TensorGraph, TensorNode, TensorOp,
)
from .simplify_tensors import operand_names


class Maker:
    """The nodes of a graph by name, and new ones; `ordered` gives the graph that has them all."""

    def __init__(self, graph: TensorGraph) -> None:
        self.graph = graph
        self.table = graph.table

    def add(self, like: TensorNode, op: TensorOp, shape: Shape, dtype: str | None = None) -> str:
        """A new node, named, located and (by default) typed after another; its name."""
        count = len(self.table)
        while (name := f"{like.name}__p{count}") in self.table:
            count += 1
        self.table[name] = TensorNode(name, op, shape, dtype or like.dtype, like.loc, like.source)
        return name

    def ordered(self, graph: TensorGraph) -> TensorGraph:
        """The graph with the made nodes, each before its readers."""
        done: dict[str, TensorNode] = {}

        def visit(name: str) -> None:
            if name not in done:
                for operand in operand_names(self.table[name].op):
                    visit(operand)
                done[name] = self.table[name]
        for name in list(self.table):
            visit(name)
        return replace(graph, nodes=tuple(done.values()))

    # ---- views ------------------------------------------------------------------------------------------------------------------

    def shape(self, name: str) -> Shape:
        """The shape of a node."""
        return self.table[name].shape

    def reshape(self, name: str, shape: Shape) -> str:
        """The same elements in their order under another shape."""
        return name if shape == self.shape(name) else self.add(self.table[name], Reshape(name), shape)

    def expand(self, name: str, shape: Shape) -> str:
        """A value repeated along its unit dims and leading ones, as torch broadcasts."""
        return name if shape == self.shape(name) else self.add(self.table[name], Expand(name), shape)

    def permute(self, name: str, order: tuple[int, ...]) -> str:
        """Dim order[i] as dim i."""
        if order == tuple(range(len(order))):
            return name
        return self.add(self.table[name], Permute(name, order), tuple(self.shape(name)[d] for d in order))

    def element(self, name: str, dim: int, at: int) -> str:
        """name[..., at, ...] with the dim gone."""
        shape = self.shape(name)
        return self.reshape(self.range(name, dim, at, 1), shape[:dim] + shape[dim + 1:])

    def range(self, name: str, dim: int, start: int, length: int) -> str:
        """`length` elements of a dim from `start` on."""
        shape = self.shape(name)
        if shape[dim] == length:
            return name
        return self.add(self.table[name], Slice(name, dim, start), shape[:dim] + (length,) + shape[dim + 1:])

    def placed(self, name: str, dims: Sequence[int], rank: int) -> str:
        """Dim i of a value as dim dims[i] (all different) of a value of that rank; the others are unit dims."""
        order = tuple(sorted(range(len(dims)), key=lambda i: dims[i]))
        moved = self.permute(name, order)
        shape: list[Extent] = [1] * rank
        for i, n in zip(order, self.shape(moved), strict=True):
            shape[dims[i]] = n
        return self.reshape(moved, tuple(shape))

    # ---- values -----------------------------------------------------------------------------------------------------------------

    def map(self, like: TensorNode, fn: str, args: Sequence[Operand], dtype: str) -> str:
        """fn of operands that broadcast."""
        shapes = [self.shape(a) for a in args if isinstance(a, str)]
        rank = max(map(len, shapes), default=0)
        wide = [(1,) * (rank - len(s)) + s for s in shapes]
        return self.add(like, Map(fn, tuple(args)), tuple(next((n for n in column if n != 1), 1) for column in zip(*wide)), dtype)

    def along(self, like: TensorNode, extent: Extent, dim: int, rank: int) -> str:
        """0, 1, 2, … along one dim of a value of that rank."""
        return self.placed(self.add(like, Iota(), (extent,), "i64"), [dim], rank)

    def gather(self, like: TensorNode, name: str, dim: int, index: str, where: str | None = None) -> str:
        """What an index picks along a dim, which the index's dims take the place of."""
        whole = self.table[name]
        shape = whole.shape[:dim] + self.shape(index) + whole.shape[dim + 1:]
        return self.add(like, Gather(name, dim, index, where), shape, whole.dtype)

    def only(self, like: TensorNode, mask: str, name: str, dims: tuple[int, ...]) -> str:
        """The one element along `dims` where the mask holds, bit for bit; the dims vanish."""
        dtype = self.table[name].dtype
        chosen = self.map(like, "select", (mask, name, Lit(ends(dtype)[0])), dtype)
        shape = tuple(n for d, n in enumerate(self.shape(chosen)) if d not in dims)
        return self.add(like, Reduce("any" if dtype == "bool" else "max", (chosen,), dims), shape, dtype)

    @staticmethod
    def zero(dtype: str) -> Lit:
        """0 as a constant of a dtype."""
        return Lit(0.0) if dtype in FLOATS else Lit(False) if dtype == "bool" else Lit(0)

    def size(self, extent: Extent) -> Lit | Size:
        """An extent as an operand: a constant, or the size of the first argument's dim that has it."""
        if isinstance(extent, int):
            return Lit(extent)
        found = [(a.name, d) for a in self.graph.arguments for d, n in enumerate(a.shape) if sympy.sympify(n) == extent]
        return Size(*found[0])
