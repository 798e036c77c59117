"""`fusec compile`, traced: what its processes do when, and what each part costs in processor time.

Run in place of `python -m fusec` with FUSEC_BENCHMARK_TRACE naming a file: each span is appended to it as a line of JSON. Imports
are spans of their own wherever they happen; of nested spans each keeps what is not in an inner one.
"""
from __future__ import annotations

import builtins
import functools
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

FILE = "FUSEC_BENCHMARK_TRACE"
WORKER = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from benchmarks.trace import serve; serve()"
SHORTEST = 1e-3

CALLS = (
    ("fusec.api", "Fused.inputs", "example inputs"),
    ("fusec.capture.export", "Step.graph", "capture"),
    ("fusec.capture.export", "choose_free", "capture: which dims are free"),
    ("fusec.passes.front", "to_graph", "graph passes"),
    ("fusec.passes.back", "to_kernel", "schedule to barriers"),
    ("fusec.codegen.render", "render", "render"),
    ("fusec.runtime.worker", "_receive", "waiting for the build"),
    ("fusec.compiler", "_publish", "store"),
    ("fusec.cli_report", "row", "report"),
    ("fusec.cli_report", "print_table", "report"),
    ("fusec.runtime.worker", "Worker.start", "starting the worker"),
    ("fusec.cli", "run", "the rest"),
)
"""(module, function, phase) of the process that the user starts. Each is wrapped once its module has been imported: a name that
another module took before that stays what it was, so these are called through their module or imported where they are used."""
SERVED = (("fusec.codegen.warm", "warm_up", "warm-up"), ("fusec.codegen.build", "build", "build"))
"""The same of the process that builds: a fork of it runs `build`."""


class Recorder:
    """Writes spans of one process."""

    def __init__(self, process: str, calls: tuple[tuple[str, str, str], ...]) -> None:
        self.process, self.file = process, os.environ[FILE]
        self.missing = list(calls)
        self.inner: list[list[float]] = [[0.0, 0.0]]
        self.importing: list[str] = []

    def span(self, phase: str, run: Callable[[], Any]) -> Any:
        """Run and record: wall and processor seconds, less those of spans inside."""
        begin, cpu = time.monotonic(), time.process_time()
        self.inner.append([0.0, 0.0])
        try:
            return run()
        finally:
            wall, used = time.monotonic() - begin, time.process_time() - cpu
            inside = self.inner.pop()
            self.inner[-1][0] += wall
            self.inner[-1][1] += used
            if wall >= SHORTEST:
                self.write(phase, begin, wall - inside[0], used - inside[1])

    def write(self, phase: str, begin: float, wall: float, cpu: float) -> None:
        line = json.dumps({"process": self.process, "phase": phase, "begin": begin, "wall": wall, "cpu": cpu})
        with open(self.file, "a", encoding="utf-8") as file:
            file.write(line + "\n")

    def watch_imports(self) -> None:
        """Make imports spans by top-level package; functions to be traced are wrapped when their module is there."""
        plain_import, plain_module = builtins.__import__, importlib.import_module

        def imported(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
            package = ((globals or {}).get("__package__") or "") if level else name
            there = sys.modules.get(name) if not level else None
            if there is not None and all(hasattr(there, n) for n in fromlist or ()):
                return plain_import(name, globals, locals, fromlist, level)
            return self.importing_span(package, lambda: plain_import(name, globals, locals, fromlist, level))

        def module(name: str, package: str | None = None) -> Any:
            return self.importing_span(package if name.startswith(".") and package else name, lambda: plain_module(name, package))

        builtins.__import__, importlib.import_module = imported, module

    def importing_span(self, name: str, run: Callable[[], Any]) -> Any:
        """An import, as a span where it leaves the package that is being imported."""
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or self.importing and self.importing[-1] == top:
            return run()
        self.importing.append(top)
        try:
            return self.span(f"import {top}", run)
        finally:
            self.importing.pop()
            self.wrap()

    def wrap(self) -> None:
        """Wrap what can be found by now."""
        for entry in list(self.missing):
            module = sys.modules.get(entry[0])
            owner, _, name = entry[1].rpartition(".")
            place = getattr(module, owner, None) if owner else module
            if place is not None and callable(getattr(place, name, None)):
                setattr(place, name, self.traced(getattr(place, name), entry[2]))
                self.missing.remove(entry)

    def traced(self, fn: Callable[..., Any], phase: str) -> Callable[..., Any]:
        @functools.wraps(fn)
        def run(*args: Any, **kwargs: Any) -> Any:
            return self.span(phase, lambda: fn(*args, **kwargs))
        return run


def main() -> None:
    """The process that the user starts."""
    spawned = float(os.environ["FUSEC_BENCHMARK_BEGIN"])
    recorder = Recorder("fusec", CALLS)
    recorder.write("python", spawned, time.monotonic() - spawned, time.process_time())
    recorder.watch_imports()
    from fusec.runtime import worker
    worker._MAIN = WORKER
    import fusec.cli
    recorder.wrap()
    fusec.cli.main()


def serve() -> None:
    """The process that builds."""
    recorder = Recorder("worker", SERVED)
    recorder.write("python", time.monotonic(), 0.0, time.process_time())
    recorder.watch_imports()
    from fusec.runtime.worker import serve as run
    run()


if __name__ == "__main__":
    main()
