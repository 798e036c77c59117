"""The meaning of the named graph on CPU torch: every value over its axes, Stores applied in the order written.

The everyday oracle. With precision "f64" it is the checker's model: fp32 arithmetic becomes fp64 and every rounding to bf16, fp16
and fp8 is kept (rounded once, from the fp64 value).
"""
from __future__ import annotations

from collections.abc import Mapping
from math import prod

import sympy
import torch
from torch import Tensor

from ..errors import ArgumentError, InternalError
from . import reference
from .axis import Axis, Extent
from .dtype import FLOATS
from .graph import DimIndex, Graph, Index, Iota, Join, Load, Map, Node, Reduce, Ref, Store
from .scalar import Lit
from .tensor import Shape, Size

Axes = tuple[Axis, ...]


def run_graph(graph: Graph, tensors: dict[str, Tensor], precision: str = "f32", overrides: Mapping[str, Tensor] | None = None,
              until: str | None = None) -> dict[str, Tensor]:
    """Every value of the graph, by name: a tensor whose dims are the node's axes in order, in register form.

    tensors: arguments by name, CPU; written in place by the Stores, in order, after all Loads (which read the bytes at the call).
    Fresh outputs that are missing are created in it. precision: "f32", or "f64" for fp64 arithmetic with all narrow roundings kept.
    overrides: values that replace a computed one from there on. until: stop before the node of that name (no Store is applied).
    Raises ArgumentError for a missing argument or sizes that disagree.
    """
    run = Run(graph, tensors, precision, overrides or {})
    for node in graph.nodes:
        if node.name == until:
            return run.values
        if not isinstance(node.op, Store):
            run.compute(node)
    run.allocate()
    for node in graph.nodes:
        if isinstance(node.op, Store):
            run.store(node, node.op)
    return run.values


def symbol_sizes(graph: Graph, tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """The value of every symbol, from the shapes of the arguments; ArgumentError where they disagree."""
    sizes: dict[str, int] = {}
    for argument in sorted(graph.arguments, key=lambda a: any(isinstance(e, sympy.Add) for e in a.shape)):
        if argument.name not in tensors:
            raise ArgumentError(f"argument {argument.name} is missing")
        given = tuple(tensors[argument.name].shape)
        if len(given) != len(argument.shape):
            raise ArgumentError(f"{argument.name}: expected {len(argument.shape)} dims, got {len(given)}")
        for want, have in zip(argument.shape, given):
            if not _agrees(want, have, sizes):
                raise ArgumentError(f"{argument.name}: expected [{', '.join(map(str, argument.shape))}], got {list(given)}")
    return sizes


def _agrees(want: Extent | sympy.Expr, have: int, sizes: dict[str, int]) -> bool:
    """Whether a size fits; a symbol not seen before, an int times one, or one more term of a sum, takes its value from it."""
    if isinstance(want, int):
        return want == have
    factor, rest = want.as_coeff_Mul()
    if isinstance(rest, sympy.Symbol) and factor.is_Integer:
        return have % int(factor) == 0 and sizes.setdefault(str(rest), have // int(factor)) == have // int(factor)
    rest = have - want.subs({s: sizes[str(s)] for s in want.free_symbols if str(s) in sizes})
    terms = [s for s in want.free_symbols if str(s) not in sizes]
    return bool(rest == 0) if not terms else len(terms) == 1 and sizes.setdefault(str(terms[0]), int(rest + terms[0])) >= 0


class Run:
    """One execution: the environment of values and the sizes of axes. `compute` one node after the other, in order."""

    def __init__(self, graph: Graph, tensors: dict[str, Tensor], precision: str, overrides: Mapping[str, Tensor]) -> None:
        self.graph, self.tensors, self.precision, self.overrides = graph, tensors, precision, overrides
        self.sizes = symbol_sizes(graph, tensors)
        self.values: dict[str, Tensor] = {}
        self.table = graph.table

    # ---- sizes and references ---------------------------------------------------------------------------------------------------

    def size(self, extent: Extent) -> int:
        if isinstance(extent, int):
            return extent
        return int(extent.subs({s: self.sizes[str(s)] for s in extent.free_symbols}))

    def shape(self, axes: Axes) -> list[int]:
        return [self.size(a.extent) for a in axes]

    def coordinate(self, axis: str, axes: Axes, start: int = 0) -> Tensor:
        """start, start + 1, … along one dim of a tensor over `axes`, size 1 along the others."""
        position = next(i for i, a in enumerate(axes) if a.name == axis)
        count = self.size(axes[position].extent)
        shape = [count if i == position else 1 for i in range(len(axes))]
        return (torch.arange(count) + start).reshape(shape)

    def read(self, ref: Ref, axes: Axes) -> Tensor:
        """A value at the reader's coordinates: size 1 along axes of the reader that it does not depend on."""
        value, own = self.values[ref.value], self.table[ref.value].axes
        names: list[str] = []
        for axis in own:  # The dims handled so far are at the front, in `names`.
            at, dim = ref.index(axis.name), len(names)
            if at.axis is None:
                value = value.select(dim, at.offset)
                continue
            reader = next((a for a in axes if a.name == at.axis), None)
            if reader is None:
                where = f"{ref} in [{', '.join(map(str, axes))}]"
                raise InternalError("a value is read along an axis that its reader lacks", where)
            value = value.narrow(dim, at.offset, self.size(reader.extent))
            names.append(at.axis)
        order = sorted(range(len(names)), key=lambda i: [a.name for a in axes].index(names[i]))
        value = value.permute(order)
        have = dict(zip((names[i] for i in order), value.shape))
        return value.reshape([have.get(a.name, 1) for a in axes])

    def index(self, dims: tuple[DimIndex, ...], axes: Axes) -> list[Tensor]:
        """int64 coordinates per dim of a tensor, broadcast over `axes`."""
        out = []
        for dim in dims:
            total = torch.zeros([1] * len(axes), dtype=torch.int64)
            for digit in dim:
                if isinstance(digit.source, Ref):
                    term = self.read(digit.source, axes).to(torch.int64)
                elif isinstance(digit.source, Index) and digit.source.axis is not None:
                    term = self.coordinate(digit.source.axis, axes, digit.source.offset)
                else:
                    term = torch.tensor(digit.source.offset)
                total = total + term * digit.step
            out.append(total)
        return out

    # ---- ops --------------------------------------------------------------------------------------------------------------------

    def compute(self, node: Node) -> None:
        op = node.op
        if isinstance(op, Load):
            value = self.load(node, op)
        elif isinstance(op, Map):
            args = [a if isinstance(a, Lit) else self.argument(a, node.axes) for a in op.args]
            value = reference.apply(op.fn, args, self.precision)
        elif isinstance(op, Reduce):
            value = self.reduce(node, op)
        elif isinstance(op, Join):
            value = self.join(node, op)
        elif isinstance(op, Iota):
            value = torch.arange(self.size(node.axes[0].extent))
        else:
            raise InternalError(f"no meaning for {type(op).__name__}", node.name)
        if node.dtype in FLOATS and not value.is_floating_point():
            value = value.to(reference.FLOAT_REGISTER[self.precision])
        value = reference.round_to(value, node.dtype, self.precision).expand(self.shape(node.axes))
        self.values[node.name] = self.overrides.get(node.name, value).to(value.dtype)

    def argument(self, arg: Ref | Size, axes: Axes) -> Tensor:
        if isinstance(arg, Size):
            return torch.tensor(self.tensors[arg.tensor].shape[arg.dim], dtype=torch.int64).reshape([1] * len(axes))
        return self.read(arg, axes)

    def load(self, node: Node, op: Load) -> Tensor:
        source = _bits(self.tensors[op.tensor].detach())
        index = self.index(op.index, node.axes)
        shape = self.shape(node.axes)
        live = self.read(op.where, node.axes).expand(shape) if op.where is not None else None
        if live is not None:
            index = [torch.where(live, i, 0) for i in index]
        if live is not None and not source.numel():
            value = torch.zeros(shape, dtype=source.dtype)
        else:
            value = source[tuple(i.expand(shape) for i in index)].clone() if index else source.expand(shape).clone()
        value = value.view(self.tensors[op.tensor].dtype) if value.dtype != self.tensors[op.tensor].dtype else value
        value = reference.to_register(value, self.precision)
        return value if live is None else torch.where(live, value, torch.zeros((), dtype=value.dtype))

    def reduce(self, node: Node, op: Reduce) -> Tensor:
        domain = node.domain
        shape = self.shape(domain)
        args = [self.read(a, domain) for a in op.args]
        full = list(torch.broadcast_shapes(*(a.shape for a in args))) if args else shape
        reduced = range(len(node.axes), len(domain))
        args = [a.expand([shape[d] if d in reduced else full[d] for d in range(len(domain))]) for a in args]
        return reference.reduce(op.monoid, args, tuple(reduced), self.precision)

    def join(self, node: Node, op: Join) -> Tensor:
        dim = [a.name for a in node.axes].index(op.axis)
        pieces = []
        for _, length, ref in op.parts:
            local = tuple(Axis(a.name, length) if a.name == op.axis else a for a in node.axes)
            pieces.append(self.read(ref, local).expand(self.shape(local)))
        return torch.cat(pieces, dim)

    # ---- effects ----------------------------------------------------------------------------------------------------------------

    def allocate(self) -> None:
        for tensor in self.graph.fresh:
            if tensor.name not in self.tensors:
                shape = self._static(tensor.shape)
                self.tensors[tensor.name] = torch.zeros(shape, dtype=reference.TORCH_DTYPE[tensor.dtype])

    def _static(self, shape: Shape) -> list[int]:
        return [self.size(n) for n in shape]

    def store(self, node: Node, op: Store) -> None:
        target = self.tensors[op.tensor].detach()
        shape = self.shape(node.axes)
        value = reference.from_register(self.read(op.arg, node.axes).expand(shape), self.graph.tensors[op.tensor].dtype)
        index = [i.expand(shape) for i in self.index(op.index, node.axes)]
        if op.where is not None:
            live = self.read(op.where, node.axes).expand(shape)
            index, value = [i[live] for i in index], value[live]
        if prod(value.shape) == 0:
            return
        if index:
            _bits(target)[tuple(index)] = _bits(value)
        else:
            target.copy_(value.reshape(target.shape))


def _bits(tensor: Tensor) -> Tensor:
    """fp8 tensors as bytes: torch cannot index them on the CPU."""
    return tensor.view(torch.uint8) if tensor.dtype in (torch.float8_e4m3fn, torch.float8_e5m2) else tensor
