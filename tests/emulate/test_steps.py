"""Steps of many shapes, from capture to source: each emitted file does bit for bit what its KernelSpec says, near and far away."""
import functools

import pytest
import torch

import fusec.emulate
from fusec.api import bind_example, capture_graph
from fusec.codegen.render import render
from fusec.emulate.judge import far
from fusec.errors import FusionError
from fusec.ir.reference import TORCH_DTYPE
from fusec.passes import pipeline

from ..passes.steps import STEPS
from .support import interpret, same_numbers


@functools.cache
def graph_of(name):
    fn, make = STEPS[name]
    torch.manual_seed(0)
    return capture_graph(fn, bind_example(fn, make(3)))


def kernel_of(name, arch):
    """(spec, a maker of inputs for so many rows)"""
    fn, make = STEPS[name]
    spec = pipeline.compile(graph_of(name).for_arch(arch), arch, until="kernel").kernel

    def inputs(rows):
        torch.manual_seed(1)
        tensors = {n: t for n, t in bind_example(fn, make(rows)).items() if isinstance(t, torch.Tensor)}
        known = {e: n for p in spec.parameters if p.name in tensors for e, n in zip(p.shape, tensors[p.name].shape)}
        for p in spec.parameters:
            if p.name not in tensors:
                tensors[p.name] = torch.full([known.get(e, e) for e in p.shape], 77.0).to(TORCH_DTYPE[p.dtype])
        return {p.name: tensors[p.name] for p in spec.parameters}
    return spec, inputs


@pytest.mark.emulation
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_a_step_is_its_kernel_bit_for_bit(name, arch):
    try:
        spec, inputs = kernel_of(name, arch)
    except FusionError as reason:
        pytest.skip(f"no kernel: {reason}")
    source, mine, other = render(spec), inputs(4), inputs(4)
    assert fusec.emulate.check_subset(source) == []
    report = fusec.emulate(source, mine, arch=arch, parameters=spec.parameters)
    assert report.ok, report
    interpret(spec, other)
    case = far(spec.parameters, inputs(4))
    away = fusec.emulate(source, case.tensors, arch=arch, parameters=spec.parameters)
    assert away.ok, away
    for tensor, found in mine.items():
        assert same_numbers(found, other[tensor]), tensor
        assert same_numbers(case.tensors[tensor].tensor, other[tensor]), f"{tensor}, far away"
