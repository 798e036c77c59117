"""The shipped recipes: their emitted files do bit for bit what their KernelSpecs say, and nothing is found in them."""
import time

import pytest
import torch

import fusec.emulate
from fusec.api import bind_example, capture_graph
from fusec.codegen.render import render
from fusec.emulate.judge import Case, far, high, judge
from fusec.ir.interpret_kernel import run_kernel
from fusec.ir.reference import TORCH_DTYPE
from fusec.passes import pipeline
from fusec.recipes.gla_decode import gla_decode
from fusec.recipes.kimi_k3_decode import kda_decode
from fusec.recipes.rmsnorm import add_rmsnorm_quant
from fusec.recipes.short_conv import short_conv

from .support import TORCH, same_numbers, unexplained

FULL = {"kda_decode fp32": (kda_decode, dict(H=2)), "kda_decode bf16": (kda_decode, dict(H=2, state="bf16")),
        "gla_decode": (gla_decode, {}), "short_conv": (short_conv, {}), "add_rmsnorm_quant": (add_rmsnorm_quant, {})}
ARCHS = ("sm_90a", "sm_100a")
_GRAPHS = {}


def specs(name, arch):
    """(spec, a maker of inputs for so many rows)"""
    fused, sizes = FULL[name]
    if name not in _GRAPHS:
        torch.manual_seed(0)
        _GRAPHS[name] = capture_graph(fused.reference, bind_example(fused.reference, fused.inputs(3, **sizes)))
    spec = pipeline.compile(_GRAPHS[name].for_arch(arch), arch, until="kernel").kernel

    def inputs(rows, seed=1):
        torch.manual_seed(seed)
        tensors = bind_example(fused.reference, fused.inputs(rows, **sizes))
        known = {e: n for p in spec.parameters if p.name in tensors for e, n in zip(p.shape, tensors[p.name].shape)}
        for p in spec.parameters:
            if p.name not in tensors:
                shape = [known.get(e, e) for e in p.shape]
                tensors[p.name] = torch.full(shape, 777.0).to(TORCH_DTYPE[p.dtype])
        return {p.name: tensors[p.name] for p in spec.parameters}
    return spec, inputs


@pytest.mark.emulation
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", FULL)
def test_a_recipe_is_its_kernel_bit_for_bit_and_quick(name, arch):
    spec, inputs = specs(name, arch)
    source, mine, other = render(spec), inputs(2), inputs(2)
    begin = time.perf_counter()
    report = fusec.emulate(source, mine, arch=arch, parameters=spec.parameters, replace=TORCH)
    assert time.perf_counter() - begin < 5
    assert report.ok, report
    assert fusec.emulate.check_subset(source) == []
    run_kernel(spec, other)
    for tensor in mine:
        assert same_numbers(mine[tensor], other[tensor]), tensor


@pytest.mark.emulation
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", FULL)
def test_a_recipe_far_away_is_the_same(name, arch):
    spec, inputs = specs(name, arch)
    near = inputs(2)
    assert fusec.emulate(spec, near).ok
    for case in (far(spec.parameters, inputs(2)), high(spec.parameters, inputs(2), spec.launch.grid[0])):
        report = fusec.emulate(spec, case.tensors, blocks=case.blocks)
        assert report.ok, report
        for tensor, want in near.items():
            found = case.tensors[tensor]
            assert same_numbers(getattr(found, "tensor", found), want), tensor


@pytest.mark.mutants
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", FULL)
def test_every_mutant_of_a_recipe_is_noticed_or_explained(name, arch):
    spec, inputs = specs(name, arch)
    cases = [lambda: Case(inputs(2)), lambda: far(spec.parameters, inputs(2)),
             lambda: high(spec.parameters, inputs(2), spec.launch.grid[0])]
    source = render(spec)
    found = judge(source, cases, spec.parameters, arch)
    assert len(found) > 10
    assert unexplained(source, found) == []
