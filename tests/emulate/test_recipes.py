"""The shipped recipes: their emitted files do bit for bit what their KernelSpecs say, and nothing is found in them."""
import functools
import importlib
import math
import pkgutil
import time

import pytest
import torch

import fusec.emulate
import fusec.recipes
from fusec.api import Fused, bind_example, capture_graph
from fusec.checker.storage import clone
from fusec.codegen.render import render
from fusec.emulate.judge import Case, far, high, judge
from fusec.errors import FusecError
from fusec.ir.reference import TORCH_DTYPE
from fusec.passes import pipeline

from .support import interpret, larger, same_numbers, unexplained, unread_is_nan

VARIANTS = {name: {"": {}, " bf16": dict(state="bf16")} for name in (
    "kimi_k3_decode:kda_decode", "gated_deltanet_decode:gdn_decode", "mamba2_decode:mamba2_decode")}
"""Recipe -> variants of it and their sizes; its own where there are none."""


def shipped():
    """{file:function: (recipe, sizes)} of every recipe in the package."""
    found = {}
    for file in pkgutil.iter_modules(fusec.recipes.__path__):
        module = importlib.import_module(f"fusec.recipes.{file.name}")
        for value in vars(module).values():
            if isinstance(value, Fused) and value.reference.__module__ == module.__name__:
                name = f"{file.name}:{value.name}"
                found.update({name + variant: (value, sizes) for variant, sizes in VARIANTS.get(name, {"": {}}).items()})
    return found


FULL = shipped()
FEWER = {
    "deepseek_v4_decode:reduce_unrotate_quant": dict(H=8), "gated_deltanet_decode:gdn_decode": dict(HK=1, HV=2),
    "gla_decode:gla_decode": dict(H=2), "kimi_k3_decode:kda_decode": dict(H=2), "kimi_k3_decode:kda_decode_padded": dict(H=2),
    "kimi_k3_decode:mla_reduce": dict(H=2), "kimi_linear_decode:kda_decode": dict(H=2),
    "lightning_decode:lightning_decode": dict(H=2), "lightning_decode:lightning_decode_normed": dict(H=16, D=64),
    "mamba2_decode:mamba2_decode": dict(H=4, G=1), "mlstm_decode:mlstm_decode": dict(H=1),
    "qk_norm_rope:qk_norm_rope": dict(HQ=4, HK=2), "rwkv7_decode:rwkv7_decode": dict(H=2),
    "short_conv:short_conv_ds": dict(C=512), "short_conv:short_conv_sd": dict(C=512),
    **{f"split_kv_reduce:{name}": dict(H=2) for name in ("reduce_natural", "reduce_base2", "reduce_max_sum", "reduce_grouped")},
}
"""Sizes for mutants, where each source runs hundreds of times: fewer heads or channels, so fewer blocks of the same kernel."""
ARCHS = ("sm_90a", "sm_100a")


@functools.cache
def graph_of(name, fewer=False):
    fused, sizes = FULL[name]
    sizes = {**sizes, **FEWER.get(name.split(" ")[0], {})} if fewer else sizes
    torch.manual_seed(0)
    return capture_graph(fused.reference, bind_example(fused.reference, fused.inputs(3, **sizes)), fused.dynamic_shapes)


@functools.cache
def kernel_of(name, arch, fewer):
    """The spec, or the reason why there is none."""
    try:
        return pipeline.compile(graph_of(name, fewer).for_arch(arch), arch, until="kernel").kernel
    except FusecError as reason:
        return reason.message


def specs(name, arch, fewer=False):
    """(spec, a maker of inputs for so many rows)"""
    fused, sizes = FULL[name]
    sizes = {**sizes, **FEWER.get(name.split(" ")[0], {})} if fewer else sizes
    spec = kernel_of(name, arch, fewer)
    if isinstance(spec, str):
        pytest.skip(f"no kernel: {spec}")

    @functools.cache
    def example(rows):
        tensors = bind_example(fused.reference, fused.inputs(rows, **sizes))
        known = {e: n for p in spec.parameters if p.name in tensors for e, n in zip(p.shape, tensors[p.name].shape)}
        for p in spec.parameters:
            if p.name not in tensors:
                shape = [known.get(e, e) for e in p.shape]
                tensors[p.name] = torch.full(shape, 777.0).to(TORCH_DTYPE[p.dtype])
        return {p.name: tensors[p.name] for p in spec.parameters}
    return spec, lambda rows: clone(example(rows))


@pytest.mark.emulation
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", FULL)
def test_a_recipe_is_its_kernel_bit_for_bit_and_quick(name, arch):
    spec, inputs = specs(name, arch)
    source, mine, other = render(spec), inputs(2), inputs(2)
    begin = time.perf_counter()
    report = fusec.emulate(source, mine, arch=arch, parameters=spec.parameters)
    assert time.perf_counter() - begin < 10  # Two rows; about 0.2 s on an idle core.
    assert report.ok, report
    assert fusec.emulate.check_subset(source) == []
    interpret(spec, other)
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
    spec, inputs = specs(name, arch, fewer=True)
    graph = graph_of(name, fewer=True).need("graph")
    cases = [lambda: Case(inputs(8)), lambda: Case(unread_is_nan(graph, inputs(8))), lambda: Case(larger(graph, inputs(8))),
             lambda: far(spec.parameters, inputs(2)),
             lambda: high(spec.parameters, inputs(2), spec.launch.grid[0])]
    source = render(spec)
    found = judge(source, cases, spec.parameters, arch)
    assert len(found) > 3
    assert unexplained(source, found, math.prod(n for dim in spec.launch.grid for n in dim if isinstance(n, int))) == []
