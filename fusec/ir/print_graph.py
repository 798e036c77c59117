"""The named graph as stable text: one line per value, `name[axes] dtype = op`, with the reference's line beside it."""
from __future__ import annotations

from .graph import DimIndex, Digit, Graph, Index, Iota, Join, Load, Map, Node, Op, Reduce, Ref, Store
from .scalar import Lit
from .tensor import Argument, Size


def format_graph(graph: Graph) -> str:
    """The whole graph; equal graphs give equal text in every process."""
    lines = [f"graph {graph.name} (numerics {graph.numerics})", f"  axes {', '.join(map(str, graph.axes)) or 'none'}"]
    lines += [f"  argument {_tensor(a)}" + (" mutated" if a.name in graph.mutated else "") for a in graph.arguments]
    lines += [f"  fresh {_tensor(a)}" for a in graph.fresh]
    lines += [f"  {format_node(node)}" for node in graph.nodes]
    lines.append(f"  return {graph.structure} ({', '.join(graph.outputs)})")
    return "\n".join(lines) + "\n"


def format_node(node: Node) -> str:
    """One line: `h[rows, head] f32 = fma(a, b, c)    # step+12`."""
    axes = ", ".join(a.name for a in node.axes)
    where = f"    # {node.loc.short}" if node.loc.frames else ""
    if isinstance(node.op, Store):
        return f"for [{axes}]: {format_op(node.op)}{where}"
    return f"{node.name}[{axes}] {node.dtype} = {format_op(node.op)}{where}"


def format_op(op: Op) -> str:
    """An op without the axes it is computed over."""
    if isinstance(op, Load):
        return f"load {op.tensor}{_index(op.index)}{_where(op.where)}" + (f" version {op.version}" if op.version else "")
    if isinstance(op, Store):
        return f"store {op.tensor}{_index(op.index)} = {op.arg}{_where(op.where)}"
    if isinstance(op, Map):
        return f"{op.fn}({', '.join(_arg(a) for a in op.args)})"
    if isinstance(op, Reduce):
        over = ", ".join(a.name for a in op.axes)
        return f"{op.monoid}({', '.join(map(str, op.args))}) over {over}" + (f" as {op.form}" if op.form else "")
    if isinstance(op, Join):
        return f"join {op.axis}: " + ", ".join(f"{start}..{start + length - 1} = {ref}" for start, length, ref in op.parts)
    assert isinstance(op, Iota)
    return "iota"


def _tensor(tensor: Argument) -> str:
    shape = ", ".join(map(str, tensor.shape))
    strides = ", ".join("?" if s is None else str(s) for s in tensor.strides)
    return f"{tensor.name}: {tensor.dtype}[{shape}] strides ({strides})"


def _index(index: tuple[DimIndex, ...]) -> str:
    return "[" + ", ".join(_dim(d) for d in index) + "]"


def _dim(dim: DimIndex) -> str:
    return " + ".join(_digit(d) for d in dim) or "0"


def _digit(digit: Digit) -> str:
    source = str(digit.source)
    if digit.step == 1:
        return source
    needs = isinstance(digit.source, Index) and digit.source.axis is not None and digit.source.offset
    return (f"({source})" if needs else source) + f"*{digit.step}"


def _where(where: Ref | None) -> str:
    return f" where {where}" if where is not None else ""


def _arg(arg: Ref | Lit | Size) -> str:
    if isinstance(arg, Lit):
        return repr(arg.value)
    return f"size({arg.tensor}, {arg.dim})" if isinstance(arg, Size) else str(arg)
