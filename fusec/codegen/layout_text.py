"""Text as text: breaking long lines inside brackets, indenting blocks, comments."""
from __future__ import annotations

import textwrap

WIDTH = 120
INDENT = "    "


def _breaks(line: str) -> list[tuple[int, int]]:
    """(bracket depth, position) of every place where a line may be broken: after a comma, before a spaced + - or &."""
    found, depth, quoted = [], 0, False
    for i, c in enumerate(line):
        quoted ^= c == '"'
        depth += (c in "([") - (c in ")]")
        if quoted or depth <= 0:
            continue
        if c == "," and line[i + 1:i + 2] == " ":
            found.append((depth, i + 2))
        elif c in "+-&|*" and line[i - 1:i] == " " and line[i + 1:i + 2] == " ":
            found.append((depth, i))
    return found


def wrap(line: str, width: int = WIDTH) -> list[str]:
    """A line of code in lines of at most `width`: broken at the outermost bracket level that helps, continued with a deeper indent."""
    if len(line) <= width:
        return [line]
    indent = line[:len(line) - len(line.lstrip())] + INDENT
    fitting = [(depth, -at) for depth, at in _breaks(line) if len(indent) < at <= width]
    if not fitting:
        return [line]
    shallow = min(depth for depth, _ in fitting)
    at = max(-minus for depth, minus in fitting if depth <= shallow + 1 and -minus > width // 2) if any(
        depth <= shallow + 1 and -minus > width // 2 for depth, minus in fitting) else -min(m for d, m in fitting if d == shallow)
    return [line[:at].rstrip(), *_continued(indent + line[at:], indent, width)]


def _continued(line: str, indent: str, width: int) -> list[str]:
    """The rest of a broken statement: its brackets are still open, so that depth starts at one."""
    if len(line) <= width:
        return [line]
    shifted = "(" + line
    found = [(d, at - 1) for d, at in _breaks(shifted) if len(indent) < at - 1 <= width]
    if not found:
        return [line]
    shallow = min(d for d, _ in found)
    at = max(at for d, at in found if d == shallow)
    return [line[:at].rstrip(), *_continued(indent + line[at:], indent, width)]


def comment(text: str, indent: str = "") -> list[str]:
    """`# text`, wrapped."""
    return textwrap.wrap(text, WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}#   ", break_long_words=False)


def block(lines: list[str], depth: int = 1) -> list[str]:
    """The lines, indented."""
    return [INDENT * depth + line if line else line for line in lines]
