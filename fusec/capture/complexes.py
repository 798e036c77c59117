"""Complex numbers, as they rotate pairs: two real values each, and no complex value in the graph.

Functions know them by views of pairs, by polar coordinates, and as arguments; what moves elements moves both parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..ir.dtype import FLOATS
from .builder import Builder, Value
from .ops import OPS
from .registry import Result


@dataclass(frozen=True, slots=True)
class Complex:
    """A complex value: its real and its imaginary part, of one shape."""

    real: Value
    imag: Value


MOVES = frozenset(
    "alias lift lift_fresh_copy detach clone contiguous view _unsafe_view reshape _reshape_alias view_as reshape_as flatten"
    " unflatten squeeze unsqueeze expand expand_as broadcast_to permute transpose t mT movedim slice narrow select split"
    " split_with_sizes chunk unbind cat stack repeat repeat_interleave index index_select gather roll flip where add sub neg sum"
    " mean copy select_scatter slice_scatter index_put index_copy to _to_copy".split()
)
"""Ops that do the same to both parts, none of them with the other."""
TERMS = {"add": (0, 2), "sub": (0, 2), "where": (1, 3)}
"""Where ops that take numbers beside tensors have them: all or none of these are complex."""


def parts(value: Any) -> tuple[Any, Any]:
    """(real, imaginary) of an operand; of what is not complex, itself twice."""
    if isinstance(value, (list, tuple)):
        pairs = [parts(v) for v in value]
        return [p[0] for p in pairs], [p[1] for p in pairs]
    return (value.real, value.imag) if isinstance(value, Complex) else (value, value)


def holds(value: Any) -> bool:
    """Whether an operand is complex, or a list with a complex value."""
    return any(map(holds, value)) if isinstance(value, (list, tuple)) else isinstance(value, (Complex, complex))


def build(b: Builder, target: str, out: Result, arguments: list[Any]) -> Any:
    """What an op on complex numbers gives: a Complex, a tuple of them, or a real Value. UnsupportedOp where it has no rule."""
    name = target.split(".")[1]
    if name in RULES:
        return RULES[name](b, out, *arguments)
    terms = arguments[slice(*TERMS[name])] if name in TERMS else []
    if name not in MOVES or target not in OPS or any(map(_is_real, arguments)) or not all(isinstance(t, Complex) for t in terms):
        raise b.unsupported("of complex numbers", "use two real tensors")
    found = [OPS[target].build(b, Result(out.shape, "f32"), *each) for each in zip(*map(parts, arguments))]
    if isinstance(found[0], (list, tuple)):
        return tuple(Complex(x, y) for x, y in zip(*found))
    return Complex(*found)


def _is_real(value: Any) -> bool:
    """Whether an operand is a real tensor, or a list that has one: not an index, nor a mask."""
    return any(map(_is_real, value)) if isinstance(value, (list, tuple)) else isinstance(value, Value) and value.dtype in FLOATS


def _from_pairs(b: Builder, out: Result, x: Value) -> Complex:
    return Complex(b.select(x, -1, 0), b.select(x, -1, 1))


def _to_pairs(b: Builder, out: Result, x: Complex) -> Value:
    return b.stack([x.real, x.imag], x.real.rank)


def _of_parts(b: Builder, out: Result, real: Value, imag: Value) -> Complex:
    return Complex(b.expand(real, out.shape), b.expand(imag, out.shape))


def _polar(b: Builder, out: Result, size: Value, angle: Value) -> Complex:
    return Complex(*(b.map("mul", size, b.map(fn, angle, dtype="f32"), dtype="f32") for fn in ("cos", "sin")))


def _mul(b: Builder, out: Result, x: Any, y: Any) -> Complex:
    """(a + bi)(c + di); a real factor scales both parts."""
    def times(p: Any, q: Any) -> Value:
        return b.map("mul", p, q, dtype="f32")
    x, y = (_constant(b, v) for v in (x, y))
    if not isinstance(x, Complex) or not isinstance(y, Complex):
        whole, factor = (x, y) if isinstance(x, Complex) else (y, x)
        return Complex(times(whole.real, factor), times(whole.imag, factor))
    real = b.map("sub", times(x.real, y.real), times(x.imag, y.imag), dtype="f32")
    return Complex(real, b.map("add", times(x.real, y.imag), times(x.imag, y.real), dtype="f32"))


def _constant(b: Builder, value: Any) -> Any:
    if isinstance(value, complex):
        return Complex(b.fill(value.real, (), "f32"), b.fill(value.imag, (), "f32"))
    return b.cast(value, "f32") if isinstance(value, Value) else value if isinstance(value, Complex) else float(value)


def _div(b: Builder, out: Result, x: Any, y: Any, *_: Any) -> Complex:
    if not isinstance(x, Complex) or isinstance(y, (Complex, complex)):
        raise b.unsupported("by a complex number", "multiply by its inverse, as two real tensors")
    divisor = b.cast(y, "f32") if isinstance(y, Value) else float(y)
    return Complex(*(b.map("div", p, divisor, dtype="f32") for p in (x.real, x.imag)))


def _conj(b: Builder, out: Result, x: Complex) -> Complex:
    return Complex(x.real, b.map("neg", x.imag, dtype="f32"))


def _exp(b: Builder, out: Result, x: Complex) -> Complex:
    return _polar(b, out, b.map("exp", x.real, dtype="f32"), x.imag)


def _same(b: Builder, out: Result, x: Complex) -> Complex:
    return x


def _real(b: Builder, out: Result, x: Complex) -> Value:
    return x.real


def _imag(b: Builder, out: Result, x: Complex) -> Value:
    return x.imag


RULES: dict[str, Callable[..., Any]] = {
    "view_as_complex": _from_pairs, "view_as_real": _to_pairs, "complex": _of_parts, "polar": _polar, "mul": _mul, "multiply": _mul,
    "div": _div, "conj": _conj, "_conj": _conj, "conj_physical": _conj, "_conj_physical": _conj, "resolve_conj": _same,
    "resolve_neg": _same, "exp": _exp, "real": _real, "imag": _imag, "view_as_real_copy": _to_pairs,
}
"""Ops with a rule of their own, by name."""
