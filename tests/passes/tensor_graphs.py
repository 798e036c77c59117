"""A tiny builder of tensor graphs, for tests of passes that must not depend on capture."""
from __future__ import annotations

from fusec.ir.scalar import Lit
from fusec.ir.tensor import (
    Argument, Contract, Expand, Fill, Gather, Input, Iota, Join, Map, Operand, Permute, Reduce, Reshape, Shape, Slice, TensorGraph,
    TensorNode, TensorOp, Update,
)
from fusec.errors import Loc


class Builder:
    """Each method adds a node and returns its name."""

    def __init__(self, name: str = "step", rows: object = None) -> None:
        self.name, self.rows = name, rows
        self.arguments: list[Argument] = []
        self.nodes: list[TensorNode] = []
        self.mutations: list[tuple[str, str]] = []

    def shape(self, name: str) -> Shape:
        return next(n.shape for n in self.nodes if n.name == name)

    def dtype(self, name: str) -> str:
        return next(n.dtype for n in self.nodes if n.name == name)

    def add(self, op: TensorOp, shape: Shape, dtype: str, target: str = "") -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(TensorNode(name, op, tuple(shape), dtype, Loc((), target)))
        return name

    def arg(self, name: str, shape: Shape, dtype: str = "f32") -> str:
        strides: list[int | None] = []
        step: int | None = 1
        for n in reversed(shape):
            strides.insert(0, 0 if n == 1 else step)
            step = step * n if isinstance(n, int) and step is not None else None
        self.arguments.append(Argument(name, dtype, tuple(shape), tuple(strides)))
        return self.add(Input(name), shape, dtype)

    def map(self, fn: str, *args: Operand | float, dtype: str | None = None, target: str = "") -> str:
        args = tuple(Lit(a) if isinstance(a, (int, float)) else a for a in args)
        names = [a for a in args if isinstance(a, str)]
        rank = max((len(self.shape(a)) for a in names), default=0)
        shapes = [(1,) * (rank - len(self.shape(a))) + self.shape(a) for a in names]
        shape = tuple(next((s[d] for s in shapes if s[d] != 1), 1) for d in range(rank))
        return self.add(Map(fn, args), shape, dtype or self.dtype(names[0]), target)

    def reduce(self, monoid: str, *args: str, dims: tuple[int, ...], keep: bool = False) -> str:
        shape = self.shape(args[0])
        dims = tuple(d % len(shape) for d in dims)
        out = self.add(Reduce(monoid, args, dims), tuple(n for d, n in enumerate(shape) if d not in dims), self.dtype(args[0]))
        return self.reshape(out, tuple(1 if d in dims else n for d, n in enumerate(shape))) if keep else out

    def einsum(self, equation: str, *args: str, target: str = "") -> str:
        inputs, output = equation.split("->")
        letters = {c: n for a, s in zip(args, inputs.split(",")) for c, n in zip(s, self.shape(a))}
        op = Contract(args, tuple(inputs.split(",")), output)
        return self.add(op, tuple(letters[c] for c in output), self.dtype(args[0]), target)

    def reshape(self, arg: str, shape: Shape, target: str = "") -> str:
        return self.add(Reshape(arg), shape, self.dtype(arg), target)

    def unsqueeze(self, arg: str, dim: int) -> str:
        shape = list(self.shape(arg))
        shape.insert(dim % (len(shape) + 1), 1)
        return self.reshape(arg, tuple(shape))

    def permute(self, arg: str, order: tuple[int, ...]) -> str:
        return self.add(Permute(arg, order), tuple(self.shape(arg)[i] for i in order), self.dtype(arg))

    def expand(self, arg: str, shape: Shape) -> str:
        return self.add(Expand(arg), shape, self.dtype(arg))

    def slice(self, arg: str, dim: int, start: int, length: int, step: int = 1) -> str:
        shape = list(self.shape(arg))
        dim %= len(shape)
        shape[dim] = length
        return self.add(Slice(arg, dim, start, step), tuple(shape), self.dtype(arg))

    def select(self, arg: str, dim: int, start: int) -> str:
        piece = self.slice(arg, dim, start, 1)
        shape = list(self.shape(piece))
        shape.pop(dim)
        return self.reshape(piece, tuple(shape))

    def gather(self, arg: str, dim: int, index: str, where: str | None = None) -> str:
        shape = self.shape(arg)
        return self.add(Gather(arg, dim, index, where), shape[:dim] + self.shape(index) + shape[dim + 1:], self.dtype(arg))

    def update(self, target: str, value: str, dim: int = 0, index: str | None = None, where: str | None = None) -> str:
        return self.add(Update(target, value, dim, index, where), self.shape(target), self.dtype(target))

    def join(self, dim: int, *parts: str) -> str:
        shape = list(self.shape(parts[0]))
        dim %= len(shape)
        shape[dim] = sum(self.shape(p)[dim] for p in parts)
        return self.add(Join(parts, dim), tuple(shape), self.dtype(parts[0]))

    def fill(self, value: float, shape: Shape, dtype: str = "f32") -> str:
        return self.add(Fill(Lit(value)), shape, dtype)

    def iota(self, count: int) -> str:
        return self.add(Iota(), (count,), "i64")

    def graph(self, *outputs: str, structure: str | None = None) -> TensorGraph:
        structure = structure or ("none" if not outputs else "tensor" if len(outputs) == 1 else "tuple")
        return TensorGraph(self.name, tuple(self.arguments), tuple(self.nodes), tuple(self.mutations), outputs, structure,
                           str(self.rows) if self.rows is not None else None)
