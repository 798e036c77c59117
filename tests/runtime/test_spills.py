"""A kernel that spills under its promise of several blocks per multiprocessor is built again: with another layout, then without the
promise."""
from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from fusec import compiler
from fusec.api import capture_graph
from fusec.codegen.result import BuildResult


def step(x, w):
    h = x.float()
    return (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6) * w).to(x.dtype)


def test_a_spilling_kernel_is_built_with_more_registers(monkeypatch) -> None:
    asked: list[int] = []

    class Builder:
        @staticmethod
        def run(jobs: list) -> Iterator[tuple[int, BuildResult]]:
            for number, (_, (source, spec, *_)) in enumerate(jobs):
                asked.append(spec.launch.min_blocks)
                assert ("MIN_BLOCKS" in source) == (spec.launch.min_blocks > 1)
                resources = {"registers": 64, "spills": 72 if spec.launch.min_blocks > 1 else 0}
                yield number, BuildResult(b"object", "ptx", b"cubin", resources, 0.1)

    monkeypatch.setattr(compiler, "builder", Builder)
    monkeypatch.setattr(compiler, "start_builder", lambda: None)
    stages = capture_graph(step, {"x": torch.randn(4, 256).bfloat16(), "w": torch.rand(256)})
    kernel, = compiler.kernels(stages, ("sm_90a",))
    assert asked == [4, 3, 2, 4, 2, 1] and kernel.resources["spills"] == 0
    assert kernel.spec.launch.min_blocks == 1 and "MIN_BLOCKS" not in kernel.source


@pytest.mark.parametrize("good", [2, 9])
def test_a_kernel_that_spills_all_the_same_gets_another_layout(monkeypatch, tmp_path, good) -> None:
    """The layout numbered `good` does not spill; where none is tried that far, the one that spills least is kept."""
    seen: list[str] = []
    monkeypatch.setenv("FUSEC_CACHE_DIR", str(tmp_path))

    class Builder:
        @staticmethod
        def run(jobs: list) -> Iterator[tuple[int, BuildResult]]:
            for number, (_, (_, spec, *_)) in enumerate(jobs):
                anchor = spec.summary[1]
                if anchor not in seen:
                    seen.append(anchor)
                spills = 0 if seen.index(anchor) == good else 72 + seen.index(anchor)
                yield number, BuildResult(b"object", "ptx", b"cubin", {"registers": 64, "spills": spills}, 0.1)

    monkeypatch.setattr(compiler, "builder", Builder)
    monkeypatch.setattr(compiler, "start_builder", lambda: None)
    stages = capture_graph(step, {"x": torch.randn(4, 4096).bfloat16(), "w": torch.rand(4096)})
    kernel, = compiler.kernels(stages, ("sm_90a",))
    assert len(seen) > 2 and kernel.resources["spills"] == (0 if good == 2 else 72)
    assert kernel.spec.summary[1] == seen[2 if good == 2 else 0]
