"""A process that builds kernels, started before it is needed so that the DSL is loaded and warm by the time capture is done.

The DSL is not safe in threads and can take its process down, so each build runs in a fork of the worker, as many at once as there
are cores; a build that dies is an error of that build alone. The worker has no device, imports no torch, and ends with its parent.
"""
from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pickle
import selectors
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from ..errors import BuildError, FusecError

Job = tuple[str, tuple[Any, ...]]
"""("package.module:function", arguments): what a build calls. Arguments and results are pickled."""

_MAIN = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from fusec.runtime.worker import serve; serve()"


class Worker:
    """The client's side. `preload` ("package.module:function") is called when the process starts.

    `run` may be called from several threads; the jobs of one call are built at once.
    """

    def __init__(self, preload: str) -> None:
        self._preload, self._lock = preload, threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process if it is not there; returns at once."""
        with self._lock:
            self._running()

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Any]]:
        """(number of the job, its result) as they finish. A FusecError of a job is raised here; BuildError where a build died."""
        with self._lock:
            process = self._running()
            assert process.stdin is not None and process.stdout is not None
            try:
                _send(process.stdin, list(jobs))
                for _ in jobs:
                    number, kind, value = _receive(process.stdout)
                    if kind != "result":
                        self._stop()
                        raise value
                    yield number, value
            except (EOFError, BrokenPipeError):
                self._stop()
                raise BuildError("the process that builds kernels died", hint="its last words are above; try again") from None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            # -c with the parent's path: the worker imports what the parent would. CUDA is kept out of it.
            environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1"}
            self._process = subprocess.Popen([sys.executable, "-c", _MAIN, json.dumps(sys.path)], stdin=subprocess.PIPE,
                                             stdout=subprocess.PIPE, env=environment)
            assert self._process.stdin is not None
            _send(self._process.stdin, self._preload)
        return self._process

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._stop()


def _send(stream: BinaryIO | Any, value: Any) -> None:
    data = pickle.dumps(value)
    stream.write(struct.pack("<Q", len(data)) + data)
    stream.flush()


def _receive(stream: BinaryIO | Any) -> Any:
    size, = struct.unpack("<Q", _exactly(stream, 8))
    return pickle.loads(_exactly(stream, size))


def _exactly(stream: BinaryIO | Any, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = stream.read(count - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


@dataclass(slots=True)
class _Child:
    number: int
    process: int
    answer: BinaryIO


def serve() -> None:
    """The worker's side: answers lists of jobs on standard input until it is closed. What builds print goes to standard error."""
    # Collecting garbage takes a fifth of the start and writes into the pages that forks share; each build is a short-lived fork.
    gc.disable()
    # tvm-ffi imports torch wherever it can, which takes longer than the compiler itself; no build needs it.
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        _preload(_receive(sys.stdin.buffer))
        while True:
            _serve_jobs(_receive(sys.stdin.buffer), answers)
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        pass
    finally:
        os._exit(0)


def _preload(name: str) -> None:
    module, _, function = name.partition(":")
    try:
        getattr(importlib.import_module(module), function)()
    except Exception:  # Each job says in its own words what is missing.
        pass


def _serve_jobs(jobs: list[Job], answers: BinaryIO) -> None:
    """Fork a child per job, as many at once as there are cores, and pass on their answers as they come."""
    waiting = list(enumerate(jobs))[::-1]
    with selectors.DefaultSelector() as running:
        while waiting or running.get_map():
            while waiting and len(running.get_map()) < len(os.sched_getaffinity(0)):
                child = _fork(*waiting.pop())
                running.register(child.answer, selectors.EVENT_READ, child)
            for key, _ in running.select():
                running.unregister(key.fileobj)
                _send(answers, _finish(key.data))


def _fork(number: int, job: Job) -> _Child:
    read, write = os.pipe()
    process = os.fork()
    if process:
        os.close(write)
        return _Child(number, process, os.fdopen(read, "rb"))
    try:
        with os.fdopen(write, "wb") as stream:
            _send(stream, _attempt(job))
    finally:
        os._exit(0)


def _attempt(job: Job) -> tuple[str, Any]:
    module, _, function = job[0].partition(":")
    try:
        return "result", getattr(importlib.import_module(module), function)(*job[1])
    except FusecError as error:
        return "error", error
    except BaseException as error:
        return "error", BuildError(f"{type(error).__name__}: {error}\n{traceback.format_exc()}")


def _finish(child: _Child) -> tuple[int, str, Any]:
    try:
        kind, value = _receive(child.answer)
    except EOFError:
        kind, value = "error", None
    child.answer.close()
    _, status = os.waitpid(child.process, 0)
    if value is None and kind == "error":
        how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else f"exit status {os.WEXITSTATUS(status)}"
        value = BuildError(f"the kernel compiler died with {how}", hint="its last words are above")
    return child.number, kind, value


BUILD = "fusec.codegen.build:build"
builder = Worker("fusec.codegen.warm:warm_up")
"""This process' worker. Forks inherit what its first compile has set up: a build takes a third of the time it would take."""


def start_builder() -> None:
    """Start the process that builds kernels, so that it has loaded the DSL by the time it is needed."""
    builder.start()


atexit.register(builder.close)
