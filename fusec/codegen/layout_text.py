"""Text as text: breaking long lines inside brackets, indenting blocks, comments."""
from __future__ import annotations

import textwrap

WIDTH = 120
INDENT = "    "


def _breaks(line: str, depth: int, indices: bool = False) -> list[tuple[int, int]]:
    """(depth, position) of each place inside parentheses where a line may go on below: after a comma, before an operator.

    `indices`: inside square brackets too.
    """
    found, quoted, index = [], False, 0
    for i, c in enumerate(line):
        quoted ^= c == '"'
        depth += (c == "(") - (c == ")")
        index += (c == "[") - (c == "]")
        if quoted or depth + index * indices <= 0 or (index and not indices):
            continue
        if c == "(" and line[i + 1:i + 2] != ")":
            found.append((depth, i + 1))
        elif c == "," and line[i + 1:i + 2] == " ":
            found.append((depth + index, i + 2))
        elif c in "+-&|" and line[i - 1:i] == " " and line[i + 1:i + 2] == " ":
            found.append((depth + index, i))
    return found


def _parenthesised(line: str) -> str:
    """`target = (value)`: a value that goes on below without parentheses of its own."""
    target, sign, value = line.partition(" = ")
    return f"{target}{sign}({value})" if sign and not value.startswith("(") else line


def wrap(line: str, width: int = WIDTH, depth: int = 0) -> list[str]:
    """A line of code in lines of at most `width`: broken at the outermost bracket level that makes them fit, gone on deeper.

    `depth`: how many parentheses are open where the line begins.
    """
    indent = line[:len(line) - len(line.lstrip())] + INDENT
    done: list[str] = []
    while len(line) > width:
        found = [(d, at) for d, at in _breaks(line, depth) if len(indent) < at <= width]
        if not found and not done and _parenthesised(line) != line:
            line = _parenthesised(line)
            continue
        found = found or [(d, at) for d, at in _breaks(line, depth, True) if len(indent) < at <= width]
        if not found:
            break
        at = _best(found, width)
        done.append(line[:at].rstrip())
        depth += line[:at].count("(") - line[:at].count(")")
        line = indent + line[at:].lstrip()
    return [*done, line]


def _best(found: list[tuple[int, int]], width: int) -> int:
    """The last place of the outermost level, or of a deeper one where the outermost would leave the line nearly empty."""
    for depth in sorted({d for d, _ in found}):
        at = max(p for d, p in found if d == depth)
        if at > width // 2:
            return at
    return max(at for d, at in found if d == min(d for d, _ in found))


def comment(text: str, indent: str = "") -> list[str]:
    """`# text`, wrapped."""
    return textwrap.wrap(text, WIDTH - 12, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}#   ", break_long_words=False)


def block(lines: list[str], depth: int = 1) -> list[str]:
    """The lines, indented."""
    return [INDENT * depth + line if line else line for line in lines]
