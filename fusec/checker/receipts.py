"""Receipts: what was found when an emitted source ran on a device, kept as a small file under the source's identity.

CI has no GPU. A receipt says that this very source (comments aside) was right on that architecture and driver: the sizes, the worst
difference, what the sanitizers said, its time beside a copy of as many bytes. A source that changes has none until it runs again.
"""
from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from ..errors import FusecError
from ..runtime.identity import makers
from .report import Report

FORMAT = 1
FOLDER = Path("receipts")
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")


class Device(Protocol):
    """What a receipt asks of a device; `checker.device.Gpu` is the real one."""

    arch: str
    name: str
    driver: str

    def check(self) -> list[Report]:
        """The function against its model, in every case that it has to pass."""

    def sanitize(self, tool: str) -> str:
        """"clean", what is wrong, or "not run: …"."""

    def times(self) -> dict[str, float]:
        """µs of the kernel ("fusec") and of a copy of as many bytes ("probe")."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """One run. identity: of the emitted source without comments, architecture and options. versions: of the kernel compiler.
    worst: the difference that came nearest to its rule, or exceeded it most. ok: everything was right and no sanitizer objected."""

    function: str
    arch: str
    identity: str
    driver: str
    device: str
    versions: Mapping[str, str]
    sizes: Mapping[str, Any]
    ok: bool
    cases: tuple[str, ...]
    elements: int
    worst: Mapping[str, Any] | None
    sanitizer: Mapping[str, str]
    times_us: Mapping[str, float]

    @property
    def file(self) -> str:
        return f"{self.function}-{self.arch}-{self.identity[:16]}-{self.driver}.json"

    def __str__(self) -> str:
        times = ", ".join(f"{n} {t:.2f} µs" for n, t in self.times_us.items())
        tools = ", ".join(f"{t}: {said}" for t, said in self.sanitizer.items())
        return (f"{self.function} for {self.arch} on {self.device}, driver {self.driver}: {'ok' if self.ok else 'WRONG'}, "
                f"{len(self.cases)} cases, {self.elements:,} elements; {times}; {tools}")


def make(function: str, identity: str, sizes: Mapping[str, Any], device: Device) -> tuple[Receipt, list[Report]]:
    """Run everything that a receipt holds on a device. The reports are for whoever reads the screen."""
    receipt, reports = checked(function, identity, sizes, device)
    return completed(receipt, {tool: device.sanitize(tool) for tool in TOOLS}, device.times()), reports


def checked(function: str, identity: str, sizes: Mapping[str, Any], device: Device) -> tuple[Receipt, list[Report]]:
    """A receipt of the checks alone, which may run beside others: neither sanitizers nor times."""
    reports = device.check()
    worst = max((r.worst for r in reports if r.worst is not None), key=lambda d: d.excess, default=None)
    shown = None if worst is None else {
        "value": worst.value, "line": worst.line, "row": worst.row, "kernel": repr(worst.kernel), "model": repr(worst.model),
        "of_what_is_allowed": worst.excess if worst.excess != float("inf") else "inf", "rule": worst.rule}
    elements = sum(c.elements for r in reports for c in r.compared)
    return Receipt(function, device.arch, identity, device.driver, device.name, makers(), dict(sizes), all(r.ok for r in reports),
                   tuple(r.case or "the example" for r in reports), elements, shown, dict.fromkeys(TOOLS, "not run"), {}), reports


def completed(receipt: Receipt, sanitizer: Mapping[str, str], times_us: Mapping[str, float]) -> Receipt:
    """The receipt with what the sanitizers said and the times; wrong where one of them objects."""
    ok = receipt.ok and all(s == "clean" or s.startswith("not run") for s in sanitizer.values())
    return replace(receipt, ok=ok, sanitizer=dict(sanitizer), times_us={n: round(t, 3) for n, t in times_us.items()})


def write(receipt: Receipt, folder: Path = FOLDER) -> Path:
    """Write a receipt into the folder; an older one of the same source, architecture and driver is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / receipt.file
    beside = path.with_suffix(f".{os.getpid()}")
    beside.write_text(json.dumps({"format": FORMAT, **asdict(receipt)}, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    os.replace(beside, path)
    return path


def read(folder: Path = FOLDER) -> list[Receipt]:
    """The receipts of a folder, by name. FusecError for a file that is none."""
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            data = json.loads(path.read_text())
            if data.pop("format") != FORMAT:
                raise ValueError("another format")
            found.append(Receipt(**{**data, "cases": tuple(data["cases"])}))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FusecError(f"{path}: expected a receipt: {error}", hint="remove it, or write it again on a device") from error
    return found


def _numbers(driver: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", driver))


@dataclass(frozen=True, slots=True)
class Wanted:
    """A shipped source that should have a receipt. why: what kept it from being emitted, '' otherwise."""

    function: str
    arch: str
    identity: str
    why: str = ""


def listed(wanted: Iterable[Wanted], receipts: Iterable[Receipt]) -> list[tuple[Wanted, Receipt | None]]:
    """Each wanted source with the receipt of its identity, the last by driver; None where there is none that is ok and whole."""
    have = {(r.arch, r.identity): r for r in sorted(receipts, key=lambda r: _numbers(r.driver)) if r.ok and r.times_us}
    return [(w, have.get((w.arch, w.identity))) for w in wanted]


def show(found: Iterable[tuple[Wanted, Receipt | None]], tell: Callable[[str], Any]) -> int:
    """Tell one line per source; how many have no receipt."""
    missing = 0
    for w, receipt in found:
        missing += receipt is None
        tell(f"{'ok     ' if receipt else 'missing'} {w.function} {w.arch} {w.identity[:16] or w.why}" + (
            f" ({receipt.device}, driver {receipt.driver})" if receipt else ""))
    return missing
