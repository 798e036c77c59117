"""Rendered sources do, bit for bit, what the interpreter of their KernelSpec does; and nothing is found in them."""
import pytest
import torch

from fusec.codegen.render import render
from fusec.emulate import check_subset, emulate
from fusec.ir.reference import TORCH_DTYPE

from ..codegen.specs import CASES
from ..codegen.zoo import ZOO
from .support import interpret, same_numbers

ARCHS = ("sm_90a", "sm_100a")


def both(spec, inputs, arch, **options):
    """(report, emulated tensors, interpreted tensors)"""
    mine, other = inputs(), inputs()
    report = emulate(render(spec), mine, arch=arch, parameters=spec.parameters, **options)
    interpret(spec, other)
    return report, mine, other


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", CASES)
def test_a_case_is_the_interpreters_bit_for_bit(name, arch):
    spec, inputs, _ = CASES[name]
    report, mine, other = both(spec(arch), lambda: inputs(4), arch)
    assert report.ok, report
    for tensor in mine:
        assert same_numbers(mine[tensor], other[tensor]), tensor


@pytest.mark.parametrize("name", ZOO)
def test_every_primitive_and_type_is_the_interpreters_bit_for_bit(name):
    spec, inputs = ZOO[name]
    report, mine, other = both(spec("sm_90a"), inputs, "sm_90a")
    assert report.ok, report
    for tensor in mine:
        assert same_numbers(mine[tensor], other[tensor]), tensor


@pytest.mark.parametrize("name", CASES)
def test_a_case_agrees_with_its_reference(name):
    spec, inputs, reference = CASES[name]
    built = spec("sm_90a")
    mine, want = inputs(5, 3), inputs(5, 3)
    assert emulate(render(built), mine, parameters=built.parameters).ok
    reference(want)
    for p in built.parameters:
        a, b = mine[p.name], want[p.name]
        assert a.dtype == TORCH_DTYPE[p.dtype]
        tolerance = {"f32": 2e-5, "bf16": 8e-3, "f8e4m3": 0.07}.get(p.dtype, 0)
        torch.testing.assert_close(a.double(), b.double(), rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("name", [*CASES, *ZOO])
def test_what_is_rendered_lies_in_the_subset(name):
    spec = CASES[name][0] if name in CASES else ZOO[name][0]
    for arch in ARCHS:
        assert check_subset(render(spec(arch))) == []


def test_blocks_in_any_chunks_give_the_same():
    spec, inputs, _ = CASES["delta"]
    built, results = spec("sm_90a"), []
    for lanes in (1, 400, 1 << 16):
        tensors = inputs(4)
        assert emulate(render(built), tensors, parameters=built.parameters, lanes=lanes).ok
        results.append(tensors["state"].clone())
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_counts_of_a_rendered_kernel():
    spec, inputs, _ = CASES["norm"]
    built = spec("sm_90a")
    counts = emulate(render(built), inputs(2), parameters=built.parameters).counts
    assert counts["blocks"] == 2 and counts["barriers"] == 4 and counts["bank_conflicts"] == 0
    assert counts["ideal_sectors"] <= counts["sectors"] < 1.1 * counts["ideal_sectors"]
