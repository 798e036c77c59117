"""The benchmark of compile time: its arithmetic, its recorder, and (marked) one trace from end to end."""
import json
import sys
import types

import pytest
from click.testing import CliRunner

from benchmarks import compile_time, trace
from benchmarks.compile_time import Phase, Run

SPANS = [
    {"process": "worker", "phase": "build", "begin": 107.0, "wall": 2.0, "cpu": 1.5},
    {"process": "fusec", "phase": "capture", "begin": 101.0, "wall": 3.0, "cpu": 2.0},
    {"process": "fusec", "phase": "capture", "begin": 104.5, "wall": 1.0, "cpu": 0.5},
    {"process": "worker", "phase": "import cutlass", "begin": 100.5, "wall": 4.0, "cpu": 3.0},
]


def test_spans_of_a_phase_are_one_and_phases_come_as_they_begin():
    assert compile_time.phases(SPANS, 100.0) == [
        Phase("worker", "import cutlass", 0.5, 4.0, 3.0), Phase("fusec", "capture", 1.0, 4.0, 2.5),
        Phase("worker", "build", 7.0, 2.0, 1.5)]


def test_what_two_cores_would_take():
    assert compile_time.two_cores(compile_time.phases(SPANS, 100.0)) == (2.5, 1.5, 3.0)


def test_the_command_prints_and_writes_what_was_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(compile_time, "compile_once", lambda arguments: Run(7.0, 8.0, 1.0))
    monkeypatch.setattr(compile_time, "trace_once", lambda arguments: (Run(7.5, 8.0, 1.0), compile_time.phases(SPANS, 100.0)))
    done = CliRunner().invoke(compile_time.main, ["--runs", "2", "--json", str(tmp_path / "r.json")])
    assert done.exit_code == 0
    said = " ".join(done.stdout.split())
    assert "2 cold compiles: least 7.00 s, median 7.00 s; processor time least 9.00 s, median 9.00 s" in said
    assert "worker import cutlass 0.50 4.00 3.00" in said and "about 4.50 s on two free cores" in said
    data = json.loads((tmp_path / "r.json").read_text())
    assert data["file"] == "kimi_k3_decode:kda_decode" and len(data["runs"]) == 2 and len(data["phases"]) == 3


def test_arguments_are_checked():
    assert CliRunner().invoke(compile_time.main, ["--runs", "-1"]).exit_code == 2


def test_a_compile_that_fails_says_so():
    done = CliRunner().invoke(compile_time.main, ["no_such_file", "--runs", "1"])
    assert done.exit_code == 1 and "no_such_file: expected a file or the name of a shipped recipe" in done.stderr


@pytest.fixture
def recorder(tmp_path, monkeypatch):
    monkeypatch.setenv(trace.FILE, str(tmp_path / "spans"))
    module = types.ModuleType("somebodys")
    module.step = lambda: "done"
    monkeypatch.setitem(sys.modules, "somebodys", module)
    monkeypatch.setattr(trace, "SHORTEST", 0.0)
    return trace.Recorder("fusec", (("somebodys", "step", "a step"), ("nobodys", "step", "never")))


def read(recorder):
    with open(recorder.file) as file:
        return [json.loads(line) for line in file]


def test_what_a_recorder_wraps_is_recorded(recorder):
    recorder.wrap()
    assert sys.modules["somebodys"].step() == "done"
    assert [s["phase"] for s in read(recorder)] == ["a step"] and recorder.missing == [("nobodys", "step", "never")]


def test_an_outer_span_has_what_is_not_in_the_inner_one(recorder, monkeypatch):
    clock = iter([0.0, 1.0, 4.0, 10.0])
    monkeypatch.setattr(trace.time, "monotonic", lambda: next(clock))
    recorder.span("outer", lambda: recorder.span("inner", lambda: None))
    assert {s["phase"]: s["wall"] for s in read(recorder)} == {"inner": 3.0, "outer": 7.0}


def test_a_span_of_what_raises_is_recorded(recorder):
    with pytest.raises(ZeroDivisionError):
        recorder.span("bad", lambda: 1 / 0)
    assert [s["phase"] for s in read(recorder)] == ["bad"] and len(recorder.inner) == 1


@pytest.mark.recipes
def test_a_trace_has_the_phases_of_both_processes():
    _, found = compile_time.trace_once(["short_conv", "--arch", "sm_90a"])
    names = {(p.process, p.phase) for p in found}
    assert names >= {("fusec", "import torch"), ("fusec", "capture"), ("fusec", "graph passes"), ("fusec", "schedule to barriers"),
                     ("fusec", "waiting for the build"), ("worker", "import cutlass"), ("worker", "warm-up"), ("worker", "build")}
    assert ("fusec", "import cutlass") not in names
    assert sum(p.cpu for p in found if (p.process, p.phase) == ("worker", "import torch")) < 0.1  # Tried, and not there.
