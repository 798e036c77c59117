"""What a check found: the worst and the first difference, with the value, its source line and its row."""
from __future__ import annotations

from dataclasses import dataclass, field

from ..errors import Loc


@dataclass(frozen=True, slots=True)
class Difference:
    """One element that is not what the model has.

    value: name of the value or tensor. coordinates: (axis or dim, position). row: the coordinate along the rows' axis, None without
    one. kernel, model: the two numbers. ulps: their distance in the value's own type, None for fp32 values, whose measure is
    `excess`: |kernel − model| over what the rule allows (more than 1 fails). where: which build or run it was seen in.
    sides: what the two numbers are called.
    """

    value: str
    loc: Loc
    row: int | None
    coordinates: tuple[tuple[str, int], ...]
    kernel: float | int | bool
    model: float | int | bool
    excess: float
    rule: str
    where: str
    ulps: int | None = None
    sides: tuple[str, str] = ("kernel", "model")

    @property
    def line(self) -> str:
        """`function+offset` of the source line, helpers and their callers included."""
        return self.loc.chain

    def __str__(self) -> str:
        at = ", ".join(f"{name}={i}" for name, i in self.coordinates)
        row = "" if self.row is None or any(n == "row" for n, _ in self.coordinates) else f" (row {self.row})"
        ulps = "" if self.ulps is None else f", {self.ulps} ulp apart"
        numbers = f"{self.sides[0]} {self.kernel!r}, {self.sides[1]} {self.model!r}{ulps}"
        head = f"{self.value}[{at}]{row} at {self.line}: {numbers}; {self.rule} ({self.where})"
        return "\n".join(x for x in (head, self.loc.caret()) if x)


@dataclass(frozen=True, slots=True)
class Compared:
    """One value or tensor that was compared: how many elements, how many lie outside of the rule, the worst of them."""

    name: str
    loc: Loc
    where: str
    rule: str
    elements: int
    outside: int
    worst: Difference | None
    first: Difference | None
    ok: bool


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a check. True in a condition exactly if it is `ok`.

    level: "graph", "kernel", "emulate" or "gpu". compared: everything that was compared, in the order of the function. notes: what
    could not be looked at, or only in a weaker way. laws: what the emulator found wrong with the emitted file itself.
    """

    name: str
    level: str
    compared: tuple[Compared, ...]
    notes: tuple[str, ...] = ()
    case: str = ""
    located: Difference | None = None
    laws: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return all(c.ok for c in self.compared) and not self.laws

    def __bool__(self) -> bool:
        return self.ok

    @property
    def worst(self) -> Difference | None:
        """The difference that exceeds its rule by most, or comes nearest to it; None where nothing differs at all."""
        seen = [c.worst for c in self.compared if c.worst is not None]
        return max(seen, key=lambda d: d.excess, default=None)

    @property
    def first(self) -> Difference | None:
        """The first value, in the order of the function, that is outside of its rule; None where all is well."""
        if self.ok:
            return None
        return self.located or next((c.first for c in self.compared if not c.ok), None)

    def __str__(self) -> str:
        elements = sum(c.elements for c in self.compared)
        case = f", {self.case}" if self.case else ""
        head = (f"{self.name}: {'ok' if self.ok else 'WRONG'} at level {self.level}{case}"
                f" ({len(self.compared)} values, {elements:,} elements compared)")
        lines = [head]
        if not self.ok:
            lines += [f"  {indent(law)}" for law in self.laws]
            lines += [f"  first: {indent(str(self.first))}"] if self.first is not None else []
            for c in self.compared:
                if not c.ok:
                    lines.append(f"  {c.name} ({c.where}): {c.outside:,} of {c.elements:,} elements outside of: {c.rule}")
        if self.worst is not None:
            lines.append(f"  worst: {indent(str(self.worst))}")
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines)


def indent(text: str) -> str:
    return text.replace("\n", "\n    ")


@dataclass(slots=True)
class Findings:
    """A report being written."""

    compared: list[Compared] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return all(c.ok for c in self.compared)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
