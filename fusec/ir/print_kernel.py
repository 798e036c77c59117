"""A KernelSpec as stable text, one statement a line: what `inspect --stage kernel` shows and internal errors print."""
from __future__ import annotations

from collections.abc import Iterator

from .kernel import (
    AtLeast, Barrier, Compute, Condition, Coordinate, Copy, Declare, Digit, Elem, For, Global, Guard, KernelSpec,
    LaneReduce, Less, Let, Linear, Origin, Place, Round, Shared, Statement, Term, TensorSize, Value)
from .scalar import Lit

SIGNS = {"add": "+", "sub": "-", "mul": "*", "mul_rn": "*", "div": "/", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==",
         "ne": "!=", "and": "and", "or": "or", "shl": "<<", "shr": ">>", "bitand": "&", "bitor": "|", "bitxor": "^"}


def format_term(term: Term) -> str:
    """`3·k`, `slot·state.stride[0]`."""
    factor = f"{term.coef}·" if term.coef != 1 else ""
    stride = f"·{term.stride[0]}.stride[{term.stride[1]}]" if term.stride else ""
    return f"{factor}{term.var}{stride}"


def format_linear(value: Linear) -> str:
    """The terms in their order, then the constant where there is one."""
    parts = [format_term(t) for t in value.terms] + ([str(value.const)] if value.const or not value.terms else [])
    return " + ".join(parts)


def format_value(value: Value) -> str:
    """Nested calls; the usual signs for the usual operators."""
    if isinstance(value, Lit):
        return repr(value.value)
    if isinstance(value, Elem):
        inner = ", ".join(format_linear(i) for i in value.index)
        return f"{value.name}[{inner}]" if value.index else value.name
    if isinstance(value, Round):
        return f"{value.dtype}({format_value(value.value)})"
    if isinstance(value, Coordinate):
        return f"({format_linear(value.value)})"
    if isinstance(value, TensorSize):
        return f"{value.tensor}.size[{value.dim}]"
    args = [format_value(a) for a in value.args]
    if value.fn in SIGNS and len(args) == 2:
        return f"({args[0]} {SIGNS[value.fn]}{'.rn' if value.fn == 'mul_rn' else ''} {args[1]})"
    return f"{value.fn}({', '.join(args)})"


def format_condition(condition: Condition) -> str:
    """An integer comparison, or a bool value."""
    if isinstance(condition, Less):
        return f"{format_linear(condition.value)} < {condition.bound}"
    if isinstance(condition, AtLeast):
        return f"{format_linear(condition.value)} >= {condition.bound}"
    return format_value(condition)


def format_place(place: Place, width: int) -> str:
    """`global x[…]`, `shared s[…]` or a register, with the number of neighbours where it is not one."""
    many = f":{width}" if width > 1 else ""
    if isinstance(place, Global):
        return f"global {place.tensor}[{format_linear(place.offset)}{many}]"
    if isinstance(place, Shared):
        of = f" of peer {format_linear(place.peer)}" if place.peer is not None else ""
        return f"shared {place.buffer}[{format_linear(place.offset)}{many}]{of}"
    return format_value(place) + many


def format_loops(loops: tuple[For, ...]) -> str:
    return "".join(f"for {f.var} < {f.extent}: " for f in loops)


def format_when(when: tuple[Condition, ...]) -> str:
    return " where " + " and ".join(format_condition(c) for c in when) if when else ""


def _origin(origin: Origin) -> str:
    text = " ".join((*origin.lines, origin.note)).strip()
    return f"    # {text}" if text else ""


def _let(name: str, value: Digit | Linear | Elem) -> str:
    if isinstance(value, Digit):
        text = f"{value.source} // {value.step}" + (f" % {value.extent}" if value.extent else "")
        return f"let {name} = {text}"
    return f"let {name} = {format_linear(value) if isinstance(value, Linear) else 'i64 ' + format_value(value)}"


def _compute(s: Compute) -> Iterator[str]:
    head = format_loops(s.loops) + format_when(s.when).removeprefix(" ")
    yield "compute " + head.strip()
    for a in s.body:
        yield f"    {format_value(a.target)} = {format_value(a.value)}{_origin(a.origin)}"


def format_statement(statement: Statement) -> list[str]:
    """The lines of one statement; bodies are indented by four."""
    s = statement
    if isinstance(s, Let):
        return [_let(s.name, s.value) + _origin(s.origin)]
    if isinstance(s, Declare):
        return [f"declare {s.name}: {s.dtype}{list(s.shape) if s.shape else ''}" + ("" if s.init is None else f" = {s.init!r}")]
    if isinstance(s, Copy):
        hint = f" hint {s.hint}" if s.hint else ""
        text = f"copy {format_loops(s.loops)}{format_place(s.target, s.width)} <- {format_place(s.source, s.width)}"
        text += f" by {s.vector}" if s.vector > s.width else ""
        return [text + format_when(s.when) + hint + _origin(s.origin)]
    if isinstance(s, Compute):
        return list(_compute(s))
    if isinstance(s, LaneReduce):
        shape = list(s.shape) if s.shape else ""
        return [f"lanes {', '.join(s.targets)}{shape} by {s.fn} over {s.lanes} lanes, step {s.step}{_origin(s.origin)}"]
    if isinstance(s, Barrier):
        scope = "" if s.scope == "block" else f" {s.scope}"
        return [f"barrier{scope}  # {'; '.join(s.reasons)}"]
    if isinstance(s, Guard):
        head = f"if{' uniform' if s.uniform else ''} {' and '.join(format_condition(c) for c in s.when)}:"
    else:
        carried = f" carrying {', '.join(s.carried)}" if s.carried else ""
        head = f"repeat {s.var} < {format_value(s.count)}{carried}:"
    return [head, *("    " + line for inner in s.body for line in format_statement(inner))]


def format_kernel(spec: KernelSpec) -> str:
    """The whole kernel: parameters, launch, shared memory, statements. Ends with a newline; equal specs give equal text."""
    grid = " x ".join("·".join(str(f) for f in factors) or "1" for factors in spec.launch.grid)
    lines = [f"kernel {spec.name} for {spec.arch}: {spec.title}"]
    lines += [f"  {line}" for line in spec.summary]
    for p in spec.parameters:
        shape = ", ".join(str(n) for n in p.shape)
        strides = ", ".join("?" if n is None else str(n) for n in p.strides)
        divisible = f", divisible ({', '.join(map(str, p.divisible))})" if p.divisible else ""
        lines.append(f"  {p.name}: {p.dtype}[{shape}] strides ({strides}), align {p.align}{divisible}")
    blocks = f", {spec.launch.min_blocks} blocks per multiprocessor" if spec.launch.min_blocks > 1 else ""
    blocks += f", clusters of {spec.launch.cluster}" if spec.launch.cluster > 1 else ""
    blocks += f", hints below {spec.launch.once_below} blocks" if spec.launch.once_below else ""
    lines.append(f"  grid {grid}, {spec.launch.threads} threads{blocks}, {spec.smem.total} bytes of shared memory")
    for b in spec.smem.buffers:
        lines.append(f"  shared {b.name}: {b.dtype}[{b.count}] at {b.offset}, live {b.first}..{b.last}")
    lines += ["  " + line for statement in spec.body for line in format_statement(statement)]
    return "\n".join(lines) + "\n"

