"""Calls of compiled kernels, saved with their objects and tensors, and made again by a process that does nothing else:

    compute-sanitizer --tool memcheck python -m fusec.checker.replay FILE…

Neither capture nor the kernel compiler runs there, so that a sanitizer sees the kernel and little besides. Each storage is an
allocation of its own, cut to size: a read beyond its end is a read beyond an allocation.
"""
from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

if __name__ == "__main__" and "--times" not in sys.argv:
    os.environ.setdefault("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")

import torch
from torch import Tensor

from .storage import key, raw

REPEATS, CALLS = 30, 20
DONE = "calls made again:"
"""What the process says last: that it came to its end."""


def save(path: Path, kernel: Any, tensors: Mapping[str, Tensor], bytes_moved: int) -> Path:
    """Keep a call of a compiled kernel; tensors that share a storage still do when it is made again."""
    storages: dict[int, Tensor] = {}
    views = []
    for t in (tensors[p.name] for p in kernel.parameters):
        storages.setdefault(key(t), raw(t).cpu())
        views.append((list(storages).index(key(t)), t.dtype, tuple(t.shape), t.stride(), t.storage_offset()))
    object_ = torch.frombuffer(bytearray(kernel.object.read_bytes()), dtype=torch.uint8)
    torch.save({"entry": kernel.entry, "object": object_, "storages": list(storages.values()), "views": views,
                "bytes": bytes_moved}, path)
    return path


def tensors_of(call: Mapping[str, Any], device: str) -> list[Tensor]:
    """The tensors of a saved call, in the order in which its kernel takes them."""
    storages = [s.to(device, copy=True) for s in call["storages"]]
    return [torch.empty(0, dtype=dtype, device=device).set_(storages[n].untyped_storage(), offset, shape, stride)
            for n, dtype, shape, stride, offset in call["views"]]


def loaded(path: Path, folder: Path) -> tuple[Callable[[], Any], int]:
    """(what makes a saved call on the current device, the bytes that it has to move); its object is unpacked into the folder."""
    from ..codegen.load import load
    call = torch.load(path, weights_only=True)
    place = folder / f"{len(list(folder.iterdir()))}.o"
    place.write_bytes(call["object"].numpy().tobytes())
    kernel, tensors = load(place, call["entry"]), tensors_of(call, "cuda")
    return lambda: kernel(*tensors), call["bytes"]


def times(path: Path, folder: Path) -> dict[str, float]:
    """Median µs of a saved call, and of a copy of as many bytes as it moves, in replays of graphs of several."""
    call, moved = loaded(path, folder)
    source, target = (torch.ones(max(moved // 2, 1), dtype=torch.uint8, device="cuda") for _ in range(2))
    return {"fusec": round(median_us(call), 3), "probe": round(median_us(lambda: target.copy_(source)), 3)}


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


def main(files: Sequence[str]) -> None:
    """Make each call once, and say how many there were; after `--times` print {file: times} instead."""
    with tempfile.TemporaryDirectory(prefix="fusec-replay-") as folder:
        if files[:1] == ["--times"]:
            print(json.dumps({f: times(Path(f), Path(folder)) for f in files[1:]}))
            return
        for file in files:
            call, _ = loaded(Path(file), Path(folder))
            call()
            torch.cuda.synchronize()
    print(DONE, len(files), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
