"""Compiled functions that run on the CPU: the kernel interpreter stands in for a launch."""
from functools import cached_property

import pytest

from fusec import api
from fusec.ir.interpret_kernel import run_kernel
from fusec.runtime import artifact
from fusec.runtime.kernel import Kernel


class Interpreted(Kernel):
    races = True

    @cached_property
    def loaded(self):
        names = [p.name for p in self.parameters]
        return lambda *tensors: run_kernel(self.spec, dict(zip(names, tensors, strict=True)), self.races)


@pytest.fixture
def races_allowed(monkeypatch):
    """Two rows may write one element, as on a device."""
    monkeypatch.setattr(Interpreted, "races", False)


@pytest.fixture
def compiled(monkeypatch):
    """Kernels compiled by calls, as (function, alignment)."""
    done = []

    def kernels(stages, archs, alignment=None, progress=None, announce=lambda text: None):
        announce(f"for {archs[0]}")
        from fusec.passes import pipeline
        made = pipeline.compile(stages.for_arch(archs[0], alignment), archs[0], until="kernel")
        spec = made.need("kernel")
        done.append((spec.name, dict(alignment or {})))
        launch = spec.launch
        return [Interpreted(spec.name, spec.name, archs[0], "", made.numerics, spec.parameters, launch.grid, launch.threads,
                            spec.smem.total, {}, 0.0, "", None, made)]

    monkeypatch.setattr(api, "kernels", kernels)
    monkeypatch.setattr(artifact, "device_arch", lambda device: "sm_90a")
    monkeypatch.setattr(artifact.Dispatcher, "device_type", "cpu")
    return done
