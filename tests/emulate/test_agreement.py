"""The emulator beside a device: how they are compared, and what one run on a device found."""
import json
import warnings

import pytest
import torch

from fusec.emulate import check_subset, emulate
from fusec.emulate.accuracy import BOUNDS, Shift

from . import agreement, envelope, sweeps

NAMES = ("cases/conv", "cases/merge", "zoo/functions_exact", "zoo/products", "arithmetic/row_sums")


def standing_in(jitter=None, spoil=lambda name, tensors: None):
    """A build whose kernels run in the emulator; spoil: what it then changes."""
    def build(wanted):
        def call(name):
            def run(tensors):
                source, spec = wanted[name]
                assert emulate(source, tensors, parameters=spec.parameters, counting=False, jitter=jitter).ok
                spoil(name, tensors)
            return run
        return {name: call(name) for name in wanted}
    return build


def sweep(name, jitter=None, spoil=lambda t: None):
    one = sweeps.SWEEPS[name]
    given, found = (sweeps.inputs(one, 1 << 14) for _ in range(2))
    for tensors, moved in ((given, None), (found, jitter)):
        assert emulate(sweeps.source(one), tensors, parameters=sweeps.spec().parameters, counting=False, jitter=moved).ok
    spoil(found["out"])
    return sweeps.measure(one, found, given["out"], found["out"])


def compared(name, build):
    one = envelope.subject(name)
    want = {rows: envelope.expected(one, rows) for rows in one.rows}
    call, found = build({name: (one.source, one.spec)})[name], []
    for rows, each in want.items():
        tensors = one.inputs(rows)
        call(tensors)
        found += envelope.compare(name, rows, each, tensors)
    return {"approximate": envelope.approximate(one.source), "tensors": found}


@pytest.mark.parametrize("name", NAMES)
def test_a_device_within_the_bounds_agrees(name):
    exact = name.partition("/")[0] in ("zoo", "arithmetic")
    assert (envelope.approximate(envelope.subject(name).source) == ()) == exact
    found = compared(name, standing_in(jitter=99))
    assert envelope.holds(found), found
    assert all(row["differ"] == 0 for row in found["tensors"]) or not exact


def test_one_bit_is_noticed_where_nothing_is_approximate():
    def flip(name, tensors):
        tensors["y"].view(torch.int32)[7] ^= 1
    found = compared("zoo/products", standing_in(spoil=flip))
    assert not envelope.holds(found)
    assert [(r["differ"], r["ulp"]) for r in found["tensors"] if r["tensor"] == "y"] == [(1, 1)]


def test_more_than_the_bounds_make_is_noticed():
    def move(name, tensors):
        tensors["output"] += 1e-3
    assert not envelope.holds(compared("cases/merge", standing_in(spoil=move)))


@pytest.mark.parametrize("name", sweeps.SWEEPS)
def test_each_form_of_a_function_is_swept(name):
    assert check_subset(sweeps.source(sweeps.SWEEPS[name])) == []
    row = sweep(name, Shift(1))
    assert sweeps.holds(row), row
    assert row["ulp"] == int(BOUNDS[name].ulp)

    def spoil(out):
        out.view(torch.int32)[out.isfinite() & (out.abs() > 1e-30)] += int(BOUNDS[name].ulp) + 1
    assert not sweeps.holds(sweep(name, spoil=spoil)) or BOUNDS[name].absolute


def test_a_run_is_kept_and_shown(monkeypatch):
    monkeypatch.setattr(agreement, "ProcessPoolExecutor", Inline)
    monkeypatch.setattr(sweeps, "POINTS", 1 << 12)
    data = agreement.measure(standing_in(), ["cases/conv"], ["exp"])
    data |= {"device": "a device", "driver": "1", "versions": {"torch": "2"}}
    assert [k["ok"] for k in data["kernels"]] == [True] and [f["ok"] for f in data["functions"]] == [True]
    assert agreement.stale(data, ["cases/conv"]) == [] and agreement.stale(data, ["cases/norm"]) == ["cases/norm"]
    text = agreement.markdown(json.loads(json.dumps(data)))
    assert "| `exp` | 2 |" in text and "| cases/conv | exp, rcp.approx | output (bfloat16) | 1 | 200 | 0 |" in text


class Inline:
    """A pool that runs what it is given at once."""

    def __init__(self, *args):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *args):
        pass

    def submit(self, fn, *args):
        result = fn(*args)
        return type("Done", (), {"result": lambda self: result})()


# ---- the data --------------------------------------------------------------------------------------------------------------------

@pytest.fixture(scope="module")
def data():
    if not agreement.DATA.is_file():
        pytest.skip(f"no run on a device is kept yet ({agreement.DATA.name})")
    return json.loads(agreement.DATA.read_text(encoding="utf-8"))


def test_every_function_was_measured_and_lies_within_its_bound(data):
    rows = {row["name"]: row for row in data["functions"]}
    assert set(rows) == set(BOUNDS)
    for name, row in rows.items():
        assert (row["bound_ulp"], row["bound_absolute"]) == (BOUNDS[name].ulp, BOUNDS[name].absolute), f"{name}: measure it again"
        assert sweeps.holds(row) and row["points"] >= sweeps.POINTS, row


def test_every_kernel_agreed(data):
    assert len(data["kernels"]) >= 15
    for kernel in data["kernels"]:
        assert envelope.holds(kernel), kernel["name"]
    assert sum(not k["approximate"] for k in data["kernels"]) >= 5


def test_what_changed_since_is_told(data):
    """No device stands behind a change of the emitter: it makes a warning, as a missing receipt makes a line."""
    for name in agreement.stale(data, [n for n in envelope.names() if not n.startswith("recipes/")]):
        warnings.warn(f"{name}: the emitted file has changed since it ran on a device", stacklevel=1)


@pytest.mark.gpu
def test_the_emulator_agrees_with_this_device(tmp_path):
    names = ["cases/norm", "zoo/functions_exact", "arithmetic/delta_rule"]
    found = agreement.measure(agreement.Device(tmp_path), names, ["exp", "rcp"])
    assert all(row["ok"] for row in (*found["kernels"], *found["functions"])), found
