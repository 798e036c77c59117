"""What the emulator found in an emitted file, with the text of the emitted line and of the function's line behind it."""
from __future__ import annotations

import linecache
from collections.abc import Iterable

from ..emulate.report import Finding
from ..errors import Frame, Loc


def described(finding: Finding, source: str, locs: Iterable[Loc]) -> str:
    """The finding in lines: the law, the emitted lines it is about, and the reference lines that their comments name."""
    lines = source.splitlines()
    count = f" [{finding.count} times]" if finding.count > 1 else ""
    text = [f"{finding.kind}: {finding.detail}{count}"]
    for number in (finding.line, finding.other_line):
        if 0 < number <= len(lines):
            text.append(f"    emitted line {number}: {lines[number - 1].strip()}")
    frames = {f"{f.function}+{f.offset}": f for loc in locs for f in loc.frames}
    for place in dict.fromkeys(p.strip() for p in finding.reference.split(",") if p.strip()):
        text.append(f"    {place}: {_line(frames.get(place))}".rstrip(": "))
    return "\n".join(text)


def _line(frame: Frame | None) -> str:
    return linecache.getline(frame.file, frame.line).strip() if frame is not None else ""
