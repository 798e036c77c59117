"""Composite scalar functions as helper functions of an emitted file, printed from their expressions."""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ..ir.scalar import COMPOSITES, Call, Lit, Param, Scalar
from .express import Expressions, Text, Uses, number, spell_call
from .scope import Scope, composite_kind


@dataclass(frozen=True, slots=True)
class Function:
    """A helper: its name, parameters, doc line and body lines."""

    name: str
    parameters: str
    doc: str
    body: tuple[str, ...]


def _calls(e: Scalar) -> Iterator[Call]:
    if isinstance(e, Call):
        yield e
        for a in e.args:
            yield from _calls(a)


def _closed(name: str) -> list[str]:
    """The composite and those that it calls, callees first."""
    inner = [n for call in _calls(COMPOSITES[name].body) if call.fn in COMPOSITES for n in _closed(call.fn)]
    return list(dict.fromkeys([*inner, name]))


class _Printer:
    def __init__(self, names: tuple[str, ...], uses: Uses) -> None:
        self.names, self.express, self.locals = names, Expressions(Scope(), uses), dict[Scalar, str]()

    def text(self, e: Scalar) -> Text:
        """An expression over the parameters. Products are spelled so that the caller's additions cannot contract them."""
        if e in self.locals:
            return Text(self.locals[e], kind="f32")
        if isinstance(e, Param):
            return Text(self.names[e.position], kind="f32")
        if isinstance(e, Lit):
            return number(e.value, self.express.uses)
        args = [self.text(a) for a in e.args]
        if e.fn in COMPOSITES:
            return Text(f"{e.fn}({', '.join(self.express.lifted(a, 'f32') for a in args)})", kind=composite_kind(e.fn))
        return spell_call(self.express, "mul_rn" if e.fn == "mul" else e.fn, args)


def _print(name: str, uses: Uses) -> Function:
    row = COMPOSITES[name]
    printer = _Printer(row.parameters, uses)
    counts = Counter(_calls(row.body))
    repeated = sorted((c for c, n in counts.items() if n > 1), key=lambda c: (sum(1 for _ in _calls(c)), repr(c)))
    body = []
    for number_, call in enumerate(repeated):
        text = printer.text(call)
        printer.locals[call] = f"t{number_}"
        body.append(f"t{number_} = {text.text}")
    body.append(f"return {printer.text(row.body).text}")
    return Function(name, ", ".join(row.parameters), row.doc.strip() or f"The scalar function {name}.", tuple(body))


def composite_functions(uses: Uses) -> list[Function]:
    """Helpers for the composites in `uses` and those that they call; notes in `uses` what they need themselves."""
    names = list(dict.fromkeys(n for wanted in sorted(uses.composites) for n in _closed(wanted)))
    return [_print(name, uses) for name in names]
