"""Integer expressions, values and conditions of a KernelSpec as CuTe-DSL text with as few parentheses as it takes."""
from __future__ import annotations

import math
from dataclasses import dataclass, field

from ..errors import InternalError
from ..ir.dtype import FLOATS, INTS, NARROW, register
from ..ir.kernel import (
    Apply, AtLeast, Condition, Coordinate, Digit, Elem, Less, Let, Linear, Round, TensorSize, Term, Value)
from ..ir.scalar import COMPOSITES, Lit
from .scope import LIMIT, Scope, operand_kind, value_kind
from .spell import ATOM, BOOL, COMPARE, FLOAT, INTEGER, PRODUCT, SHIFT, SUM, TYPES, UNARY, Spelling

ROUNDED_BY = {"bf16": "round_bf16", "f16": "round_f16", "f8e4m3": "round_e4m3", "f8e5m2": "round_e5m2"}
"""The device function that rounds a value to a type narrower than fp32."""


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of an expression, its precedence, its kind: f32, i32, i64, bool; py (known while tracing); float, int (literal)."""

    text: str
    level: int = ATOM
    kind: str = "i32"

    def at(self, level: int) -> str:
        """The text, in parentheses where its precedence is below `level`."""
        return self.text if self.level >= level else f"({self.text})"


@dataclass(slots=True)
class Uses:
    """What an emitted file turned out to need, noted while spelling: device functions, composites, cutlass types, identifiers."""

    helpers: set[str] = field(default_factory=set)
    composites: set[str] = field(default_factory=set)
    types: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)

    def type(self, name: str) -> str:
        """A cutlass type by the short name of a dtype, noted as used."""
        self.types.add(TYPES[name])
        return TYPES[name]


def number(value: float | int | bool, uses: Uses) -> Text:
    """A literal that keeps every bit."""
    if isinstance(value, bool):
        return Text(f"{uses.type('bool')}({value})", ATOM, "bool")
    if isinstance(value, int):
        if not -LIMIT <= value < LIMIT:
            return Text(f"{uses.type('i64')}({value})", ATOM, "i64")
        return Text(str(value), UNARY if value < 0 else ATOM, "int")
    if math.isnan(value):
        return Text(f'{uses.type("f32")}(float("nan"))', ATOM, "f32")
    if math.isinf(value):
        name = uses.type("f32")
        return Text(f"{name}.inf" if value > 0 else f"-{name}.inf", ATOM if value > 0 else UNARY, "f32")
    return Text(repr(value), UNARY if math.copysign(1.0, value) < 0 else ATOM, "float")


class Expressions:
    """Spells the expressions of one kernel; `uses` collects what they need."""

    def __init__(self, scope: Scope, uses: Uses) -> None:
        self.scope, self.uses = scope, uses

    # ---- integers

    def _term(self, t: Term, wide: bool) -> Text:
        """|coef| · var · stride; widened to 64 bits before any product where `wide`."""
        name, kind = self.scope.name("int", t.var), self.scope.kinds["int", t.var]
        self.uses.names.add(name)
        if wide and kind != "i64":
            name = f"{self.uses.type('i64')}({name})"
        factors = [name] + ([str(abs(t.coef))] if abs(t.coef) != 1 else [])
        if t.stride is not None:
            factors.append(f"{self.scope.name('tensor', t.stride[0])}.stride[{t.stride[1]}]")
        return Text(" * ".join(factors), PRODUCT if len(factors) > 1 else ATOM, "i64" if wide else kind)

    def _is_wide(self, t: Term) -> bool:
        return t.stride is not None or self.scope.kinds["int", t.var] == "i64" or not self._fits(Linear((t,)))

    def _fits(self, value: Linear) -> bool:
        """Whether 32 bits do for an expression."""
        found = self.scope.range(value)
        return found is not None and -LIMIT <= found[0] and found[1] <= LIMIT

    def linear(self, value: Linear, wide: bool = False) -> Text:
        """An integer expression. `wide`: 64-bit wherever 32 bits might not do, for offsets into global memory."""
        far = [t for t in value.terms if (wide and self._is_wide(t)) or self.scope.kinds["int", t.var] == "i64" or t.stride]
        near = Linear(tuple(t for t in value.terms if t not in far), value.const)
        if wide and near.terms and not self._fits(near):
            far, near = list(value.terms), Linear((), value.const)
        if not far:
            return self._sum(near)
        parts = self._joined([(t.coef < 0, self._term(t, True).at(PRODUCT)) for t in far])
        if near.terms or near.const:
            rest = self._sum(near)
            if not near.terms and near.const < 0:
                return Text(f"{parts} - {-near.const}", SUM, "i64")
            parts += " + " + rest.at(PRODUCT)
        return Text(parts, SUM if len(far) > 1 or near.terms or near.const or far[0].coef < 0 else PRODUCT, "i64")

    def _joined(self, signed: list[tuple[bool, str]]) -> str:
        text = ("-" if signed[0][0] else "") + signed[0][1]
        return text + "".join((" - " if minus else " + ") + part for minus, part in signed[1:])

    def _sum(self, value: Linear) -> Text:
        """A sum in 32 bits (in Python's integers where only loop variables occur)."""
        if not value.terms:
            return Text(str(value.const), ATOM if value.const >= 0 else UNARY, "py")
        terms = sorted(value.terms, key=lambda t: t.coef < 0)
        signed = [(t.coef < 0, self._term(t, False)) for t in terms]
        kind = "py" if all(t.kind == "py" for _, t in signed) else "i32"
        pieces = [(minus, t.at(PRODUCT)) for minus, t in signed]
        if value.const:
            pieces.append((value.const < 0, str(abs(value.const))))
        if len(pieces) == 1 and not pieces[0][0]:
            return Text(signed[0][1].text, signed[0][1].level, kind)
        return Text(self._joined(pieces), SUM, kind)

    def digit(self, d: Digit, outside: bool = True) -> Text:
        """One digit of an integer: shifts and masks where steps and extents are powers of two."""
        source, step, level = self.scope.name("int", d.source), d.step, ATOM
        if outside and d.source == "thread" and step >= 32 and step % 32 == 0 and self.scope.warp:
            source, step = self.scope.warp, step // 32
        self.uses.names.add(source)
        bounds = self.scope.bounds.get(d.source)
        if step > 1:
            power = not step & (step - 1)
            source, level = (f"{source} >> {step.bit_length() - 1}", SHIFT) if power else (f"{source} // {step}", PRODUCT)
        if not d.extent or (bounds is not None and bounds[0] >= 0 and bounds[1] <= d.step * d.extent):
            return Text(source, level, "i32")
        inner = Text(source, level).at(ATOM)
        power = not d.extent & (d.extent - 1)
        return Text(f"{inner} & {d.extent - 1}" if power else f"{inner} % {d.extent}", SHIFT - 1 if power else PRODUCT, "i32")

    def let(self, s: Let, outside: bool) -> Text:
        """The right side of an integer variable."""
        if isinstance(s.value, Digit):
            return self.digit(s.value, outside)
        if isinstance(s.value, Linear):
            text = self.linear(s.value)
            return text if text.kind != "py" else Text(f"{self.uses.type('i32')}({text.text})", ATOM)
        return Text(f"{self.uses.type('i64')}({self.value(s.value).text})", ATOM, "i64")

    # ---- values

    def element(self, e: Elem, shift: int = 0) -> str:
        """A scalar or an element of a fragment as it is held; fragments have their last dim first, as CuTe has it."""
        if ("register", e.name) not in self.scope.identifiers:
            self.uses.names.add(self.scope.name("int", e.name))
            return self.scope.name("int", e.name)
        name = self.scope.name("register", e.name)
        if not e.index:
            return name
        last = Linear(e.index[-1].terms, e.index[-1].const + shift)
        return f"{name}[{', '.join(self.linear(i).text for i in (last, *reversed(e.index[:-1])))}]"

    def value(self, v: Value) -> Text:
        """A value in register form."""
        if isinstance(v, Lit):
            return number(v.value, self.uses)
        if isinstance(v, Elem):
            held = self.scope.dtypes.get(v.name, "")
            if held and (held != register(held) or (held == "bool" and v.index)):  # In a fragment a Boolean is a byte.
                return Text(f"{self.uses.type(register(held))}({self.element(v)})", ATOM, register(held))
            return Text(self.element(v), ATOM, value_kind(self.scope, v))
        if isinstance(v, Round):
            return self._round(v)
        if isinstance(v, Coordinate):
            text = self.linear(v.value)
            return text if text.kind == "i32" else Text(f"{self.uses.type('i32')}({text.text})", ATOM)
        if isinstance(v, TensorSize):
            return Text(f"{self.uses.type('i64')}({self.scope.name('tensor', v.tensor)}.shape[{v.dim}])", ATOM, "i64")
        return self._apply(v)

    def rounded(self, v: Value, dtype: str) -> str:
        """A value as an element of `dtype`: what a store to memory or to a narrow fragment takes."""
        if isinstance(v, Round) and v.dtype == dtype and dtype in NARROW:
            v = v.value
        text = self.value(v)
        if text.kind == dtype:
            return text.text
        if dtype in ("f8e4m3", "f8e5m2"):
            raise InternalError(f"a single value does not convert to {dtype}: it goes through a fragment")
        if dtype in NARROW and text.kind != "f32":
            text = Text(self.lifted(text, "f32"))
        if dtype == "bool":
            return text.text if text.kind == "bool" else f"{text.at(COMPARE + 1)} != 0"
        return f"{self.uses.type(dtype)}({text.text})"

    def _round(self, v: Round) -> Text:
        inner = self.value(v.value)
        if v.dtype in ROUNDED_BY:
            self.uses.helpers.add(ROUNDED_BY[v.dtype])
            return Text(f"{ROUNDED_BY[v.dtype]}({self.lifted(inner, 'f32')})", ATOM, "f32")
        if v.dtype in FLOATS:
            return Text(self.lifted(inner, "f32"), ATOM if inner.kind != "f32" else inner.level, "f32")
        if v.dtype in INTS:
            if inner.kind == v.dtype:
                return inner
            text = f"{self.uses.type(v.dtype)}({inner.text})"
            return Text(text if register(v.dtype) == v.dtype else f"{self.uses.type('i32')}({text})", ATOM, register(v.dtype))
        return inner if inner.kind == "bool" else Text(f"{inner.at(COMPARE + 1)} != 0", COMPARE, "bool")

    def lifted(self, text: Text, kind: str, bare: bool = False) -> str:
        """The text as a value of `kind`; `bare`: a literal stays as it is (beside a value in an infix expression)."""
        if text.kind == kind:
            return text.text
        literal = text.kind in ("float", "int")
        if literal and kind == "f32" and text.kind == "int":
            text = Text(f"{text.text}.0", text.level, "float")
        if literal and bare:
            return text.text
        if text.kind == "i32" and kind == "i64" and bare:
            return text.text
        return f"{self.uses.type(kind)}({text.text})"

    def _apply(self, v: Apply) -> Text:
        args = [self.value(a) for a in v.args]
        if v.fn in COMPOSITES:
            self.uses.composites.add(v.fn)
            return Text(f"{v.fn}({', '.join(self.lifted(a, 'f32') for a in args)})", ATOM, value_kind(self.scope, v))
        return spell_call(self, v.fn, args)


def spell_call(e: Expressions, fn: str, args: list[Text]) -> Text:
    """A primitive of spelled operands. InternalError where it has no spelling for their kind."""
    if fn == "select":
        kind = operand_kind(fn, [a.kind for a in args[1:]])
        e.uses.helpers.add("select")
        return Text(f"select({args[0].text}, {e.lifted(args[1], kind)}, {e.lifted(args[2], kind)})", ATOM, kind)
    kind = operand_kind(fn, [a.kind for a in args])
    row = {"f32": FLOAT, "bool": BOOL}.get(kind, INTEGER).get(fn)
    if row is None:
        raise InternalError(f"no spelling of {fn} on {kind}")
    e.uses.helpers.update(row.helpers)
    return Text(row.text.format(*_operands(e, row, kind, args)), row.level if row.text != "{0}" else args[0].level,
                kind if row.kind == "same" else row.kind)


def _operands(e: Expressions, row: Spelling, kind: str, args: list[Text]) -> list[str]:
    free = row.infix and any(a.kind not in ("float", "int") for a in args)
    texts = []
    for position, a in enumerate(args):
        lifted = e.lifted(a, kind, bare=free)
        level = a.level if lifted in (a.text, f"{a.text}.0") else ATOM
        texts.append(Text(lifted, level).at(row.operands[position] if row.operands else 0))
    return texts


def condition(e: Expressions, c: Condition | _Equal) -> Text:
    """A condition as an expression; kind py where it is known while tracing."""
    if isinstance(c, _Equal):
        value = e.linear(c.value)
        return Text(f"{value.at(COMPARE + 1)} == {c.bound}", COMPARE, "py" if value.kind == "py" else "bool")
    if isinstance(c, (Less, AtLeast)):
        value, bounds = e.linear(c.value), e.scope.range(c.value)
        if isinstance(c, Less) and c.bound == 1 and bounds is not None and bounds[0] >= 0 and value.kind != "py":
            return Text(f"{value.at(COMPARE + 1)} == 0", COMPARE, "bool")
        return Text(f"{value.at(COMPARE + 1)} {'<' if isinstance(c, Less) else '>='} {c.bound}", COMPARE,
                    "py" if value.kind == "py" else "bool")
    return e.value(c)


@dataclass(frozen=True, slots=True)
class _Equal:
    """value == bound: what an AtLeast and a Less say together when one value is left."""

    value: Linear
    bound: int


def _joined(when: tuple[Condition, ...]) -> list[Condition | _Equal]:
    """The conditions, with `n <= v` and `v < n + 1` as `v == n`."""
    out: list[Condition | _Equal] = []
    for c in when:
        last = out[-1] if out else None
        if isinstance(c, Less) and isinstance(last, AtLeast) and last.value == c.value and c.bound == last.bound + 1:
            out[-1] = _Equal(c.value, last.bound)
        else:
            out.append(c)
    return out


def conjunction(e: Expressions, when: tuple[Condition, ...]) -> Text:
    """All conditions together; kind py where all are known while tracing."""
    parts = [condition(e, c) for c in _joined(when)]
    kind = "py" if all(p.kind == "py" for p in parts) else "bool"
    if len(parts) == 1:
        return Text(parts[0].text, parts[0].level, kind)
    return Text(" and ".join(p.at(COMPARE) for p in parts), COMPARE - 1, kind)
