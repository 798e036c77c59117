"""The table of errors, and results under errors as large as it allows."""
import numpy as np
import pytest
import torch

import fusec.emulate
from fusec.codegen.render import render
from fusec.emulate.accuracy import BOUNDS, Bound, Jitter, bound
from fusec.emulate.functions import EXACT
from fusec.ir.scalar import PRIMITIVES

from ..codegen.specs import CASES

NAMES = {"rcp_approx": "rcp.approx", "rcp": "rcp", "sqrt": "sqrt"}


def test_every_function_has_a_bound_and_its_source():
    assert set(EXACT) <= set(BOUNDS)
    assert all(row.source for row in BOUNDS.values())


@pytest.mark.parametrize("name", [p.name for p in PRIMITIVES.values() if p.approximate])
def test_primitives_promise_no_less_than_the_hardware_does(name):
    assert PRIMITIVES[name].approximate >= BOUNDS[NAMES.get(name, name)].ulp


def test_jitter_stays_within_its_bound():
    v = np.float32(2.0) ** np.arange(-20, 20, dtype=np.float32) * np.float32(1.3)
    moved = Jitter(1)(v, Bound(2, "test"))
    away = np.abs(moved.view(np.int32) - v.view(np.int32))
    assert 0 < away.max() <= 2
    assert (Jitter(1)(v, Bound(2, "test")) == moved).all() and (Jitter(1)(v, Bound(0.5, "exact")) == v).all()
    special = np.array([0, np.inf, -np.inf, np.nan], np.float32)
    assert np.array_equal(Jitter(2)(special, Bound(8, "test")), special, equal_nan=True)
    assert bound("exp2", True).ulp == 2 and bound("rcp").ulp == 0.5


@pytest.mark.parametrize("name", CASES)
def test_a_case_stands_the_errors_of_its_functions(name):
    spec, inputs, _ = CASES[name]
    built, exact, moved = spec("sm_90a"), inputs(4), inputs(4)
    assert fusec.emulate(render(built), exact, parameters=built.parameters).ok
    assert fusec.emulate(render(built), moved, parameters=built.parameters, jitter=7).ok
    for p in built.parameters:
        tolerance = {"f32": 2e-5, "bf16": 8e-3, "f8e4m3": 0.07}.get(p.dtype, 0)
        torch.testing.assert_close(moved[p.name].double(), exact[p.name].double(), rtol=tolerance, atol=tolerance, equal_nan=True)
