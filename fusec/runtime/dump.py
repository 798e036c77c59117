"""Arguments of a call in a file: saved by a running server before anything is written in place, read by `fusec check --inputs`."""
from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from ..errors import FusecError
from ..log import log
from .artifact import Dispatcher

FORMAT = 1


class Dump:
    """Waits for the next call of a compiled function and saves its arguments; as a context it stops waiting at its end.

    `done`: whether they were saved. Calls while a CUDA graph is captured are left alone: saving would have to wait for the device.
    """

    def __init__(self, fn: Dispatcher, path: str | os.PathLike[str]) -> None:
        self.fn, self.path, self.done = fn, Path(path), False
        fn.before_call = self._before

    def __enter__(self) -> "Dump":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.cancel()

    def cancel(self) -> None:
        """Wait no longer."""
        if self.fn.before_call == self._before:
            self.fn.before_call = None

    def _before(self, arguments: Mapping[str, Any]) -> None:
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return
        self.cancel()
        save(self.path, self.fn.name, arguments)
        self.done = True
        log(f"{self.fn.name}: arguments saved to {self.path}; `fusec check FILE --inputs {self.path}` looks into them")


def dump_inputs(fn: Any, path: str | os.PathLike[str]) -> Dump:
    """Save the arguments of the next call of a decorated function or an artifact, as they are before the call, to `path`.

    The call itself goes on as usual. The file is a torch.save of {"function", "arguments"}; whole storages are saved, pools too.
    Raises FusecError for anything that is not compiled by fusec.
    """
    if not isinstance(fn, Dispatcher):
        raise FusecError(f"dump_inputs: expected a function decorated with @fusec.fuse, or an artifact, found {fn!r}")
    return Dump(fn, path)


def save(path: Path, function: str, arguments: Mapping[str, Any]) -> None:
    """Write the file beside its place, then move it there: who reads it sees all of it."""
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    torch.save({"fusec": FORMAT, "function": function, "arguments": dict(arguments)}, beside)
    os.replace(beside, path)


def load_inputs(path: str | os.PathLike[str]) -> tuple[str, Any]:
    """(the function's name or '', its arguments: a dict by parameter, or a tuple in their order), tensors on the CPU.

    Takes what `dump_inputs` writes, or any torch.save of a dict or a tuple. Raises FusecError where the file holds anything else.
    """
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise FusecError(f"{path}: expected a file of saved arguments, found none") from None
    except Exception as error:  # torch raises what its unpickler meets.
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise FusecError(f"{path}: cannot be read: {first}",
                         hint="save tensors, numbers, strings, lists and dicts: torch.save(dict(x=x, …), path)") from error
    if isinstance(found, dict) and found.get("fusec") == FORMAT:
        return str(found["function"]), found["arguments"]
    if not isinstance(found, (dict, tuple, list)):
        raise FusecError(f"{path}: expected arguments by parameter name, or a tuple of them, found {type(found).__name__}")
    return "", found if isinstance(found, dict) else tuple(found)
