"""From the exported ATen graph to the tensor graph: each op by its row of the registry, then names, then only what is live."""

from __future__ import annotations

import keyword
import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import sympy
import torch

from ..errors import CaptureError, InternalError, Loc, UnsupportedOp
from ..ir.dtype import FLOATS
from ..ir.reference import SHORT_DTYPE, TORCH_DTYPE
from ..ir.tensor import Argument, Input, Size, TensorGraph, TensorNode
from . import complexes, selected
from .builder import Builder, Shape, Value, plain
from .complexes import Complex
from .known import Known, is_wide
from .nodes import live, rewire, word
from .ops import OPS
from .registry import Result
from .selected import Selected
from .trace import Program, alternatives

CHECKS = ("aten._assert", "aten.sym_constrain", "aten._assert_tensor_metadata", "aten._assert_scalar", "aten._assert_async")
MOST_CONSTANTS = 64
Symbols = Mapping[tuple[str, int], sympy.Expr]


class Importer:
    """One exported program on its way into a tensor graph.

    symbols: the expression each dynamic dim of an argument stands for, in our own symbols; torch's symbols are replaced by them.
    forwards, apart: as in Builder.
    """

    def __init__(
        self,
        program: Program,
        name: str,
        symbols: Symbols,
        indexed: Mapping[str, tuple[int, ...]],
        loc: Loc,
        forwards: bool = True,
        apart: bool = False,
    ) -> None:
        self.program, self.name, self.symbols, self.indexed, self.loc = program, name, symbols, indexed, loc
        self.builder = Builder(forwards=forwards, apart=apart)
        self.env: dict[Any, Any] = {}
        self.rename: dict[sympy.Symbol, sympy.Expr] = {}
        self.calls: dict[int, Any] = {}
        self.targets: dict[str, str] = {}
        self.known = Known(self._captured)

    # ---- sizes

    def expression(self, size: Any) -> int | sympy.Expr:
        """A SymInt as an expression over our symbols."""
        if isinstance(size, int):
            return size
        e = size.node.expr if hasattr(size, "node") else sympy.sympify(size)
        free = {s for s in e.free_symbols if s not in self.rename}
        if free:
            raise CaptureError(
                "a size depends on the values of a tensor",
                self.builder.loc,
                "use torch.where: sizes must be known without the data",
            )
        return plain(e.subs(self.rename))

    def shape(self, tensor: Any) -> Shape:
        return tuple(self.expression(n) for n in tensor.shape)

    def _note_symbols(self, name: str, tensor: Any) -> None:
        """torch's symbol for each dynamic dim of an argument -> ours, and where its size can be read."""
        for dim, size in enumerate(tensor.shape):
            ours = self.symbols.get((name, dim))
            if ours is None:
                continue
            if isinstance(size, int) or not size.node.expr.free_symbols:
                raise CaptureError(
                    f"the function fixes the size of dim {dim} of argument {name} to {size}",
                    self.loc,
                    "compute with the size it has (x.shape), not with a constant",
                )
            theirs, mine = size.node.expr, sympy.sympify(ours)
            symbol = next(iter(theirs.free_symbols))
            factor = theirs.coeff(symbol)
            self.rename[symbol] = (mine - (theirs - factor * symbol)) / factor
            if isinstance(mine, sympy.Symbol):
                self.builder.sizes.setdefault(mine, Size(name, dim))

    # ---- nodes

    def run(self) -> TensorGraph:
        nodes = list(self.program.exported.graph.nodes)
        self._arguments(nodes)
        for node in nodes:
            if node.op == "call_function" and not str(node.target).startswith(CHECKS):
                self._locate(node)
                self._call(node)
        self._name_targets()
        return self._finish()

    def _arguments(self, nodes: Sequence[Any]) -> None:
        inputs = set(self.program.exported.graph_signature.user_inputs)
        holders = [n for n in nodes if n.op == "placeholder"]
        mine = dict(zip([n for n in holders if n.name in inputs], self.program.names))
        if len(mine) != len(self.program.names):
            raise InternalError("the exported program has other arguments than the function", str(holders))
        for holder, name in mine.items():
            self._note_symbols(name, holder.meta["val"])
        for holder, name in mine.items():
            val = holder.meta["val"]
            self.env[holder] = self.builder.input(name, self.shape(val), SHORT_DTYPE[val.dtype])
        for holder in holders:
            if holder not in mine:
                self.env[holder] = self._constant(holder)

    def _captured(self, holder: Any) -> torch.Tensor | None:
        """A tensor that the function captured or made from Python numbers; None where there is none."""
        signature = self.program.exported.graph_signature
        fqn = (
            signature.inputs_to_lifted_tensor_constants.get(holder.name)
            or signature.inputs_to_buffers.get(holder.name)
            or signature.inputs_to_parameters.get(holder.name)
        )
        tensor = self.program.exported.constants.get(fqn)
        return self.program.exported.state_dict.get(fqn) if tensor is None else tensor

    def _constant(self, holder: Any) -> Any:
        """A captured tensor as constants of its elements; one of float64 stays as it is until something narrower comes of it."""
        tensor = self._captured(holder)
        return tensor if is_wide(tensor) and self.known.value(holder) is not None else self._elements(tensor)

    def _elements(self, tensor: torch.Tensor | None) -> Value:
        """Constants in the shape of a tensor. Raises CaptureError where they are too many."""
        if tensor is None or tensor.numel() > MOST_CONSTANTS or type(tensor).__name__ == "FakeTensor":
            size = "" if tensor is None else f" of {tensor.numel()} elements"
            raise CaptureError(
                f"the function reads a tensor{size} that is not an argument",
                self.builder.loc if self.builder.loc.frames else self.loc,
                f"pass it as an argument (constants of at most {MOST_CONSTANTS} elements may be captured)",
            )
        if tensor.dtype not in SHORT_DTYPE:
            raise CaptureError(
                f"the function reads a constant of dtype {tensor.dtype}", self.loc, "convert it to a supported dtype"
            )
        dtype = SHORT_DTYPE[tensor.dtype]
        flat = tensor.detach().cpu().reshape(-1).tolist()
        if len(set(map(repr, flat))) == 1:
            return self.builder.fill(flat[0], tuple(tensor.shape), dtype)
        return self.builder.reshape(self.builder.join([self.builder.fill(v, (1,), dtype) for v in flat], 0), tuple(tensor.shape))

    def _locate(self, node: Any) -> None:
        custom = node.meta.get("custom") or {}
        self.builder.loc = replace(custom.get("loc") or self.builder.loc, target="")
        self.builder.source = str(node.target)
        if "call" in custom:
            self.calls[custom["call"]] = (node, custom["loc"].target)

    def _call(self, node: Any) -> None:
        target = str(node.target)
        value = node.meta.get("val")
        if (
            isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool, int, float))
            and not isinstance(value, bool)
            or isinstance(value, torch.SymBool)
        ):
            self.env[node] = self._size(node, value)
        elif node.target is operator.getitem:
            self.env[node] = self._element(node)
        else:
            self.env[node] = self._build(node, target)

    def _size(self, node: Any, value: Any) -> Any:
        if str(node.target) in ("aten.item.default", "aten._local_scalar_dense.default"):
            raise CaptureError(
                "item() depends on the values of a tensor, which are known on the device only", self.builder.loc, "keep it a tensor"
            )
        try:
            return self.expression(value) if not isinstance(value, float) else value
        except CaptureError as error:
            return error  # What a mask selects has such a size: it is refused where something reads it.

    def _element(self, node: Any) -> Any:
        whole, index = node.args
        value = self.env[whole][index]
        if value is None:
            raise UnsupportedOp(
                f"{whole.target}: result {index} (positions of extremes)", self.builder.loc, "use amax or amin for the values"
            )
        return value

    def _build(self, node: Any, target: str) -> Any:
        tensors = [
            v for v in (node.meta["val"] if isinstance(node.meta["val"], (tuple, list)) else [node.meta["val"]]) if v is not None
        ]
        wide = any(map(is_wide, tensors))
        if wide or any(is_wide(self.env.get(n)) for n in node.all_input_nodes):
            found = self.known.value(node)
            if found is not None:
                return found if wide or not isinstance(found, torch.Tensor) else self._elements(found)
        if any(t.dtype == torch.complex64 for t in tensors) or complexes.holds([self.env.get(n) for n in node.all_input_nodes]):
            return self._build_complex(node, target, tensors)
        for t in tensors:
            if t.dtype not in SHORT_DTYPE:
                raise UnsupportedOp(
                    f"{target}: a result of dtype {str(t.dtype).removeprefix('torch.')}",
                    self.builder.loc,
                    "write what depends on an argument in float32 and narrower; complex numbers as two real tensors",
                )
        row = OPS.get(target)
        if row is None:
            raise UnsupportedOp(f"{target} is not supported", self.builder.loc, alternatives(target))
        self._check_device(node, tensors[0], target)
        operands = self._operands(node)
        if selected.selects(target, operands):
            return selected.build(self.builder, target, SHORT_DTYPE[tensors[0].dtype], operands)
        out = Result(self.shape(tensors[0]), SHORT_DTYPE[tensors[0].dtype])
        result = row.build(self.builder, out, *(self._narrowed(a, out) for a in operands))
        self._check(target, result, tensors)
        return result

    def _build_complex(self, node: Any, target: str, tensors: Sequence[Any]) -> Any:
        """What an op with complex operands or results gives."""
        out = Result(self.shape(tensors[0]), "f32")
        result = complexes.build(self.builder, target, out, self._operands(node))
        for value, tensor in zip(result if isinstance(result, tuple) else (result,), tensors):
            for part in complexes.parts(value):
                if part.shape != self.shape(tensor) or part.dtype != "f32":
                    raise InternalError(f"{target} was built as {part.dtype}{list(part.shape)}", self.builder.loc.caret())
        return result

    def _narrowed(self, a: Any, out: Result) -> Any:
        """An operand, a constant of float64 as one of the result's dtype: eager converts it to that before it computes."""
        if isinstance(a, list):
            return [self._narrowed(x, out) for x in a]
        return self._elements(a.to(TORCH_DTYPE[out.dtype if out.dtype in FLOATS else "f32"])) if is_wide(a) else a

    def _check_device(self, node: Any, tensor: Any, target: str) -> None:
        devices = {n.meta["val"].device for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor)}
        if devices and tensor.device not in devices:
            raise UnsupportedOp(
                f"{target}: a copy from {next(iter(devices))} to {tensor.device}", self.builder.loc, "keep the step on one device"
            )

    def _check(self, target: str, result: Any, tensors: Sequence[Any]) -> None:
        """What a row built must have the shape and dtype that eager gives."""
        for value, tensor in zip(result if isinstance(result, tuple) else (result,), tensors):
            if value is not None and (value.shape != self.shape(tensor) or value.dtype != SHORT_DTYPE[tensor.dtype]):
                raise InternalError(
                    f"{target} was built as {value.dtype}{list(value.shape)}, eager gives "
                    f"{SHORT_DTYPE[tensor.dtype]}{list(self.shape(tensor))}",
                    self.builder.loc.caret(),
                )

    def _operands(self, node: Any) -> list[Any]:
        """Every argument of the schema in its order, defaults filled in."""
        given = list(node.args)
        kwargs = dict(node.kwargs)
        for a in node.target._schema.arguments[len(given) :]:
            given.append(kwargs.pop(a.name) if a.name in kwargs else a.default_value)
        return [self._value(a) for a in given]

    def _value(self, a: Any) -> Any:
        if isinstance(a, torch.fx.Node):
            if isinstance(self.env[a], CaptureError):
                raise self.env[a]
            return self.env[a]
        if isinstance(a, (list, tuple)):
            return [self._value(x) for x in a]
        return a

    # ---- names

    def _name_targets(self) -> None:
        """The last op of a call carries the name that its statement assigns."""
        for node, target in self.calls.values():
            value = self.env.get(node)
            if target and isinstance(value, Value):
                self.targets.setdefault(value.name, target)

    def _finish(self) -> TensorGraph:
        mutations, outputs = self._results()
        kept = live(self.builder.nodes, [v for _, v in mutations] + [o for o in outputs if o[0] not in "=!"], self.program.names)
        names = self._names(kept)
        nodes = tuple(
            replace(rewire(n, names), name=names[n.name], loc=replace(n.loc, target=self.targets.get(n.name, ""))) for n in kept
        )
        arguments = tuple(self._argument(h, n) for h, n in zip(self._holders(), self.program.names))
        return TensorGraph(
            self.name,
            arguments,
            nodes,
            tuple((a, names[v]) for a, v in mutations),
            tuple(o if o[0] in "=!" else names[o] for o in outputs),
            self.program.structure,
            None,
        )

    def _holders(self) -> list[Any]:
        inputs = set(self.program.exported.graph_signature.user_inputs)
        return [n for n in self.program.exported.graph.nodes if n.op == "placeholder" and n.name in inputs]

    def _results(self) -> tuple[list[tuple[str, str]], list[str]]:
        """(mutations, outputs): values by name, `=argument` for an argument itself, `!constant` for one."""
        holders = {h.name: n for h, n in zip(self._holders(), self.program.names)}
        out = next(n for n in self.program.exported.graph.nodes if n.op == "output")
        mutations, tensors = [], []
        for spec, node in zip(self.program.exported.graph_signature.output_specs, out.args[0]):
            kind = spec.kind.name
            if kind == "USER_INPUT_MUTATION":
                mutations.append((holders[spec.target], self.env[node].name))
            elif kind == "USER_OUTPUT":
                tensors.append(self.program.aliases.get(len(tensors), self.env[node] if node is not None else None))
            else:
                raise CaptureError("the function writes to a tensor that is not an argument", self.loc, "pass it as an argument")
        for t in tensors:
            if isinstance(t, Selected):
                raise CaptureError("a size depends on the values of a tensor", t.loc, selected.HINT)
        if any(isinstance(t, Complex) for t in tensors):
            raise UnsupportedOp("a complex result", self.loc, "return torch.view_as_real of it")
        flat = ["=" + t if isinstance(t, str) else t.name for t in tensors]
        flat = ["=" + o if o in self.program.names else o for o in flat]
        for position, value in sorted(self.program.constants.items()):
            flat.insert(position, "!" + repr(value))
        return mutations, flat

    def _names(self, nodes: Sequence[TensorNode]) -> dict[str, str]:
        """Readable, unique names: the argument, the name assigned in the source, else what the op is."""
        taken, reserved = set(self.program.names) | set(keyword.kwlist), set(self.targets.values())
        names = {}
        for node in nodes:
            if isinstance(node.op, Input):
                names[node.name] = node.name
                continue
            base = self.targets.get(node.name) or word(node)
            others = taken if node.name in self.targets else taken | reserved
            name, k = base, 0
            while name in others:
                k += 1
                name = f"{base}_{k}"
            taken.add(name)
            names[node.name] = name
        return names

    def _argument(self, holder: Any, name: str) -> Argument:
        val = holder.meta["val"]
        shape = self.shape(val)
        strides = tuple(_stride(shape, d, val.stride()) for d in range(len(shape)))
        return Argument(name, SHORT_DTYPE[val.dtype], shape, strides, self.indexed.get(name, ()))


def _stride(shape: Shape, dim: int, strides: Sequence[Any]) -> int | None:
    """Free where the dim is dynamic or nests outside one that is, 0 for a unit dim, else the example's."""
    if shape[dim] == 1:
        return 0
    if not isinstance(shape[dim], int) or not isinstance(strides[dim], int):
        return None
    return strides[dim]
