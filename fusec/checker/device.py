"""The GPU of this machine as a receipt asks it: checks, sanitizers in a process of their own, times beside a copy."""
from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..capture.bind import fill
from ..errors import FusecError, TargetError
from ..runtime.artifact import device_arch
from . import replay
from .entry import check, file_cases
from .levels import poisoned
from .report import Report
from .storage import clone
from .target import Target, device_kernel, taken_apart

ROWS, FEW = (0, 1, 2, 5), (1, 2)
"""Rows of the cases that are compared, and of those that are saved for the sanitizers."""
TOOLKIT = "/usr/local/cuda"
"""Where the toolkit lies unless CUDA_HOME says otherwise and the path does not lead to it."""
PATIENCE = 600.0


def arch_here() -> str:
    """The architecture of the current device. Raises TargetError where there is none."""
    if not torch.cuda.is_available():
        raise TargetError("a receipt: expected a CUDA device, found none")
    return device_arch(torch.device("cuda"))


class Gpu:
    """Runs one function with example inputs on the current device. folder: where its calls are saved, one that is gone with this
    object if none is given.

    Raises TargetError where there is no device.
    """

    def __init__(self, fused: Any, rows: int, sizes: Mapping[str, Any], bytes_moved: int, folder: Path | None = None) -> None:
        self.fused, self.rows, self.sizes, self.bytes_moved = fused, rows, dict(sizes), bytes_moved
        self.arch, self.name = arch_here(), torch.cuda.get_device_name()
        self.driver = driver()
        self._own = None if folder is not None else tempfile.TemporaryDirectory(prefix="fusec-calls-")
        self.folder = folder if folder is not None else Path(self._own.name if self._own else "")
        self._goal: Target | None = None
        self._saved: list[Path] = []

    def check(self) -> list[Report]:
        """Every case of `check_file_cases` at level gpu."""
        self._goal, tree, cases = file_cases(self.fused, ROWS, sizes=self.sizes)
        return [check(self._goal, fill(tree, make()), level="gpu", case=name) for name, make in cases]

    def saved(self) -> list[Path]:
        """Files of calls for `replay`: the example first, then each case at few rows."""
        if not self._saved:
            self.folder.mkdir(parents=True, exist_ok=True)
            goal, tree, cases = file_cases(self.fused, FEW, sizes=self.sizes)
            goal = self._goal or goal
            example = taken_apart(goal.fn, self.fused.inputs(self.rows, **self.sizes))[0]
            every = [lambda: example, *(make for _, make in cases)]
            self._saved = [self._save(goal, make(), self.folder / f"{n}.pt") for n, make in enumerate(every)]
        return self._saved

    def _save(self, goal: Target, tensors: Mapping[str, torch.Tensor], path: Path) -> Path:
        there = clone(tensors, "cuda")
        stages = goal.for_layout(there)
        graph = stages.need("graph")
        everything = {**there, **poisoned(graph, there)}
        return replay.save(path, device_kernel(goal, stages, graph, everything, ("saved", path.name)), everything, self.bytes_moved)

    def sanitize(self, tool: str) -> str:
        """The saved calls under compute-sanitizer."""
        return sanitized(self.saved(), tool)

    def times(self) -> dict[str, float]:
        """Median µs of the example's call in a graph of calls, and of a copy of as many bytes as it moves."""
        return times_of(self.saved()[:1])[0]


def sanitizer() -> str | None:
    """The program, where it is installed."""
    return shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path=os.path.join(os.environ.get("CUDA_HOME", TOOLKIT), "bin"))


def sanitized(files: Sequence[Path], tool: str) -> str:
    """What a tool of compute-sanitizer says to saved calls: "clean", what is wrong, or "not run: …"."""
    program = sanitizer()
    if program is None:
        return "not run: no compute-sanitizer"
    try:
        done = _replayed([program, "--tool", tool], map(str, files))
    except subprocess.TimeoutExpired:
        return f"no summary: not done after {PATIENCE:.0f} s"
    return verdict(done.stdout + done.stderr)


def times_of(files: Sequence[Path]) -> list[dict[str, float]]:
    """Times of saved calls, in a process of their own. FusecError with its last words where it fails."""
    done = _replayed([], ["--times", *map(str, files)])
    if done.returncode != 0:
        raise FusecError(f"timing: {(done.stderr.strip() or 'no output').splitlines()[-1]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return [found[str(f)] for f in files]


def _replayed(before: Sequence[str], arguments: Any) -> subprocess.CompletedProcess[str]:
    line = [*before, sys.executable, "-m", "fusec.checker.replay", *arguments]
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE, env={**os.environ, "PYTHONPATH": path})


def verdict(text: str) -> str:
    """What a sanitizer's output says: "clean", its summary, that it did not come to one, or that it cannot run here."""
    if "Device not supported" in text:
        return "not run: the sanitizer does not support this device"
    lines = [line.lstrip("= ").strip() for line in text.splitlines() if "SUMMARY" in line]
    if not lines:
        last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no output")
        return f"no summary: {last[:200]}"
    clean = all(" 0 errors" in line or " 0 hazards" in line or line.endswith("0 leaked") for line in lines)
    if clean and replay.DONE not in text:
        said = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("=")]
        return f"no errors, but the calls were not all made: {said[-1][:200] if said else 'no output'}"
    return "clean" if clean else "; ".join(lines)


def driver() -> str:
    """The version of the driver."""
    program = shutil.which("nvidia-smi")
    if program is not None:
        done = subprocess.run([program, "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True, text=True)
        found = done.stdout.strip().splitlines()
        if done.returncode == 0 and found:
            return found[0].strip()
    return f"cuda{torch.version.cuda}"
