"""Source locations, and the two kinds of failure: a user's error and a bug of ours.

A user's error (FusecError and its subclasses) names file, line, source text and what to do instead. An InternalError is a
law of the compiler that does not hold; it prints the IR at the op.
"""
from __future__ import annotations

import linecache
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of a call chain: `line` is absolute in `file`, `offset` is relative to the function's `def` line (def = 0)."""

    function: str
    file: str
    line: int
    column: int
    offset: int


@dataclass(frozen=True, slots=True)
class Loc:
    """Where a value comes from: the call chain, innermost frame first, and the name it is assigned to there ('' if none)."""

    frames: tuple[Frame, ...] = ()
    target: str = ""

    @property
    def short(self) -> str:
        """`function+offset` of the innermost frame: no path and no absolute line, so that emitted bytes do not depend on them."""
        return f"{self.frames[0].function}+{self.frames[0].offset}" if self.frames else "?"

    @property
    def chain(self) -> str:
        """`helper+2 < step+7`: the helper and its callers."""
        return " < ".join(f"{f.function}+{f.offset}" for f in self.frames) or "?"

    def caret(self) -> str:
        """file:line:column, the source text and a caret under the column; '' without a location."""
        if not self.frames:
            return ""
        frame = self.frames[0]
        text = linecache.getline(frame.file, frame.line).rstrip("\n")
        stripped = text.lstrip()
        if not stripped:
            return f"{frame.file}:{frame.line}:{frame.column + 1}"
        mark = " " * max(frame.column - (len(text) - len(stripped)), 0) + "^"
        return f"{frame.file}:{frame.line}:{frame.column + 1}\n    {stripped}\n    {mark}"


class FusecError(Exception):
    """An error of the user's: what was expected, what was found, what to do; with a location where there is one."""

    def __init__(self, message: str, loc: Loc | None = None, hint: str = "") -> None:
        self.message, self.loc, self.hint = message, loc, hint
        parts = [message, loc.caret() if loc else "", f"hint: {hint}" if hint else ""]
        super().__init__("\n".join(p for p in parts if p))


class UnsupportedOp(FusecError):
    """The function uses an op, or a form of one, that fusec does not know."""


class CaptureError(FusecError):
    """The function cannot be captured: value-dependent control, aliased examples, an axis that must be static."""


class ArgumentError(FusecError):
    """An argument of a call does not fit the kernel: name, expected and given."""


class ResourceError(FusecError):
    """No schedule fits the target: bytes needed, limit, and the buffer."""


class FusionError(FusecError):
    """The step cannot be one kernel: which dependency, limit or missing rule forbids it."""


class BuildError(FusecError):
    """The kernel compiler is missing, too old, or refused the emitted file."""


class TargetError(FusecError):
    """An unknown architecture, or a device without a kernel in the artifact."""


class InternalError(Exception):
    """A law of the compiler does not hold: a bug of ours, with the IR at the op."""

    def __init__(self, law: str, where: str = "", ir: str = "") -> None:
        super().__init__("\n".join(p for p in (f"internal error: {law}", where, ir) if p))
