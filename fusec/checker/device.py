"""The GPU of this machine as a receipt asks it: checks, sanitizers in a process of their own, times beside a copy."""
from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..errors import TargetError
from ..runtime.artifact import device_arch
from .entry import check_file_cases
from .report import Report
from .storage import clone

REPEATS, CALLS = 30, 20


def arch_here() -> str:
    """The architecture of the current device. Raises TargetError where there is none."""
    if not torch.cuda.is_available():
        raise TargetError("a receipt: expected a CUDA device, found none")
    return device_arch(torch.device("cuda"))


class Gpu:
    """Runs one function with example inputs on the current device. file: FILE:function, for the processes of the sanitizers.

    Raises TargetError where there is no device.
    """

    def __init__(self, fused: Any, file: str, rows: int, sizes: Mapping[str, Any], bytes_moved: int) -> None:
        self.fused, self.file, self.rows, self.sizes, self.bytes_moved = fused, file, rows, dict(sizes), bytes_moved
        self.arch, self.name = arch_here(), torch.cuda.get_device_name()
        self.driver = driver()

    def check(self) -> list[Report]:
        """Every case of `check_file_cases` at level gpu."""
        return check_file_cases(self.fused, "gpu", sizes=self.sizes)

    def sanitize(self, tool: str) -> str:
        """The function checked once under compute-sanitizer."""
        program = shutil.which("compute-sanitizer")
        if program is None:
            return "not run: no compute-sanitizer"
        sizes = [text for n, v in self.sizes.items() for text in ("-D", f"{n}={v}")]
        check = [sys.executable, "-m", "fusec", "check", self.file, "--level", "gpu", "--rows", str(max(self.rows, 2)), *sizes]
        done = subprocess.run([program, "--tool", tool, *check], capture_output=True, text=True)
        return verdict(done.stdout + done.stderr)

    def times(self) -> dict[str, float]:
        """Median µs per call of graphs of calls: the compiled function, and a copy of as many bytes as it moves."""
        inputs = self.fused.inputs(self.rows, "cuda", **self.sizes)
        mine = clone({n: t for n, t in inputs.items() if isinstance(t, torch.Tensor)})
        given = {**inputs, **mine}
        half = max(self.bytes_moved // 2, 1)
        source, target = (torch.ones(half, dtype=torch.uint8, device="cuda") for _ in range(2))
        return {"fusec": median_us(lambda: self.fused(**given)), "probe": median_us(lambda: target.copy_(source))}


def median_us(call: Callable[[], Any]) -> float:
    """The median time of a call, µs, over replays of a CUDA graph of several."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()
    found = []
    for turn in range(REPEATS + 3):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        stop.record()
        torch.cuda.synchronize()
        if turn >= 3:
            found.append(start.elapsed_time(stop) * 1e3 / CALLS)
    return statistics.median(found)


def verdict(text: str) -> str:
    """What a sanitizer's output says: "clean", its summary, or that it did not come to one."""
    lines = [line.lstrip("= ").strip() for line in text.splitlines() if "SUMMARY" in line]
    if not lines:
        last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no output")
        return f"no summary: {last[:200]}"
    clean = all(" 0 errors" in line or " 0 hazards" in line or line.endswith("0 leaked") for line in lines)
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
