"""Every step of steps.py as one kernel, run on the CPU: outputs and updated arguments are what eager makes of them."""
from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from fusec.capture import capture
from fusec.errors import FusionError
from fusec.ir.interpret_kernel import run_kernel
from fusec.ir.reference import TORCH_DTYPE
from fusec.passes.back import to_kernel
from fusec.passes.front import to_graph

from .steps import STEPS

# Flat slots of pages: that idx // 4 and idx % 4 name the element that view(-1)[idx] names would need arithmetic on floors.
REFUSED = {"paged_rows": "pages is updated in place and read through another index"}


def own_memory(t: torch.Tensor) -> torch.Tensor:
    """The same tensor over a copy of its storage."""
    return torch.empty(0, dtype=t.dtype).set_(t.untyped_storage().clone(), t.storage_offset(), t.shape, t.stride())


def tensors_of(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif value is not None:
        for v in value.values() if isinstance(value, dict) else value:
            yield from tensors_of(v)


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    step = {torch.bfloat16: 2 ** -7, torch.float16: 2 ** -10, torch.float8_e4m3fn: 2 ** -3}.get(theirs.dtype, 1e-4)
    torch.testing.assert_close(ours.double(), theirs.double(), rtol=step, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("name", STEPS)
def test_step_as_a_kernel(name: str) -> None:
    fn, make = STEPS[name]
    torch.manual_seed(1)
    example = make(4)
    graph = to_graph(capture(fn, {n: own_memory(v) for n, v in example.items()}))
    if name in REFUSED:
        with pytest.raises(FusionError, match=REFUSED[name]):
            to_kernel(graph, "sm_90a")
        return
    _, spec = to_kernel(graph, "sm_90a")
    ours, theirs = ({n: own_memory(v) for n, v in example.items()} for _ in range(2))
    want = list(tensors_of(fn(**theirs)))
    names = [n.lstrip("=") for n in graph.outputs]
    for fresh in graph.fresh:
        like = want[names.index(fresh.name)]
        ours[fresh.name] = torch.full(like.shape, 1 if like.dtype == torch.bool else 77).to(TORCH_DTYPE[fresh.dtype])
    run_kernel(spec, ours)
    for n, w in zip(names, want, strict=True):
        close(ours[n], w)
    for n in example:
        close(ours[n], theirs[n])
