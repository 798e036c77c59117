"""FUSEC_DEBUG=1: what a call promises is checked before anything is written, with the rows that break it (W39, C10)."""
import pytest
import torch

import fusec
from fusec.runtime import debug
from fusec.runtime.launch import Plan


def step(x, pool, slots):
    live = slots >= 0
    h = fusec.load_rows(pool, slots, where=live) if hasattr(fusec, "load_rows") else pool[slots]
    h = h * 0.5 + x
    y = (h * 2.0).to(torch.float16)
    fusec.store_rows_(pool, slots, h, where=live)
    return y


def plain(x, pool, slots):
    h = pool.index_select(0, slots) + x
    pool.index_copy_(0, slots, h)
    return h.to(torch.float16)


def given(slots, device="cpu", rows=3):
    made = dict(x=torch.arange(1.0, 8 * rows + 1).view(rows, 8), pool=torch.ones(6, 8), slots=torch.tensor(slots))
    return {n: t.to(device) for n, t in made.items()}


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    """Where calls run: on the CPU with the kernel interpreter in the kernel's place, on a device with the kernel itself."""
    if request.param == "cpu":
        request.getfixturevalue("compiled")
    return request.param


@pytest.fixture
def fused(device, monkeypatch):
    monkeypatch.setenv("FUSEC_DEBUG", "1")
    return fusec.fuse(plain)


def refused(fused, error, match, arguments):
    before = arguments["pool"].clone()
    with pytest.raises(error, match=match):
        fused(**arguments)
    assert torch.equal(arguments["pool"], before), "something was written"


def test_a_right_call_goes_through(fused, device):
    arguments = given([4, 0, 2], device)
    wanted = {n: t.clone() for n, t in arguments.items()}
    assert torch.equal(fused(**arguments), plain(**wanted)) and torch.equal(arguments["pool"], wanted["pool"])


def test_w39_duplicate_live_slots_are_named(fused, device):
    said = r"rows 0, 1 write the same elements of pool, at 2 \(index slots\)"
    refused(fused, fusec.ArgumentError, said, given([2, 2, 5], device))


def test_w39_off_it_runs_and_the_other_slot_is_right(device, races_allowed):
    arguments = given([2, 2, 5], device)
    fusec.fuse(plain)(**arguments)
    assert torch.equal(arguments["pool"][5], arguments["x"][2] + 1)
    assert torch.equal(arguments["pool"][[0, 1, 3, 4]], torch.ones(4, 8, device=device))


@pytest.mark.parametrize("slots, said", [([0, 6, 1], "row 1 picks element 6 of dim 0 of pool, which has 6 .index slots."),
                                         ([0, 1, -1], "row 2 picks element -1")])
def test_an_index_out_of_range_is_named(fused, device, slots, said):
    refused(fused, fusec.ArgumentError, said, given(slots, device))


def test_nan_and_overflow_at_a_written_rounding_are_named(fused, device):
    arguments = given([4, 0, 2], device)
    arguments["x"][1, 3] = float("nan")
    refused(fused, fusec.FusecError, r"is NaN at its rounding to f16, in row 1, first at \[.*=1, .*=3\]", arguments)
    arguments["x"][1, 3] = 1e5
    refused(fused, fusec.FusecError, r"is infinite at its rounding to f16, in row 1", arguments)
    arguments["x"][1, 3] = float("inf")
    assert fused(**arguments)[1, 3] == float("inf")


def test_rows_that_take_no_part_are_left_alone(device, monkeypatch):
    monkeypatch.setenv("FUSEC_DEBUG", "1")
    fused = fusec.fuse(step)
    arguments = given([3, -1, -1], device)
    arguments["x"][2, 0] = float("nan")
    assert torch.isfinite(fused(**arguments)[:2]).all()


def test_a_kernel_that_writes_nothing_is_found(fused, device, monkeypatch):
    arguments = given([4, 0, 2], device)
    fused(**arguments)
    monkeypatch.setattr(Plan, "_launch", lambda plan, tensors: None)
    with pytest.raises(fusec.InternalError, match=r"plain: 24 elements of \w+ were not written, the first at \[0, 0\]"):
        fused(**arguments)


def test_what_a_kernel_does_not_write_is_found(device):
    out = torch.zeros(3, 4, device=device)
    debug.poison(out)
    out[:, :3] = 1.0
    with pytest.raises(fusec.InternalError, match=r"step: 3 elements of out were not written, the first at \[0, 3\]"):
        debug.check_written("step", "out", out)
    for kind in (torch.float8_e4m3fn, torch.bfloat16):
        t = torch.zeros(2, dtype=kind, device=device)
        debug.check_written("step", "out", t)
        debug.poison(t)
        with pytest.raises(fusec.InternalError):
            debug.check_written("step", "out", t)


def test_arguments_of_a_running_call_are_saved_before_it_writes(compiled, tmp_path):
    from fusec.runtime.dump import load_inputs
    fused, arguments = fusec.fuse(plain), given([4, 0, 2])
    before = arguments["pool"].clone()
    with fusec.dump_inputs(fused, tmp_path / "call.pt") as dump:
        assert not dump.done
        fused(**arguments)
        assert dump.done
        fused(**arguments)
    name, saved = load_inputs(tmp_path / "call.pt")
    assert name == "plain" and torch.equal(saved["pool"], before) and not torch.equal(arguments["pool"], before)
    with fusec.dump_inputs(fused, tmp_path / "none.pt"):
        pass
    fused(**arguments)
    assert not (tmp_path / "none.pt").exists() and [p.name for p in tmp_path.iterdir()] == ["call.pt"]
    with pytest.raises(fusec.FusecError, match="dump_inputs: expected a function decorated"):
        fusec.dump_inputs(plain, tmp_path / "x.pt")
    (tmp_path / "bad.pt").write_text("nothing")
    for path, message in (("bad.pt", "cannot be read"), ("absent.pt", "found none")):
        with pytest.raises(fusec.FusecError, match=message):
            load_inputs(tmp_path / path)
