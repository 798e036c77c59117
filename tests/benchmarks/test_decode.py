"""The benchmark on a machine without a GPU: it refuses, and whatever needs none is right."""
import json
import os
import subprocess
import sys
import types

import pytest
import torch
from click.testing import CliRunner

from benchmarks import candidates, cases, decode, grid, peers, prepare, render, timing

from . import small
from .test_render import MADE


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_it_refuses_without_a_gpu():
    done = CliRunner().invoke(decode.main, ["--only", "short_conv"])
    assert done.exit_code == 2
    assert done.stderr == "no CUDA device: nothing to time\n"


@pytest.mark.parametrize("arguments, said", [
    (["--only", "nothing"], "kda_decode"), (["--group", "nothing"], "recurrences"),
    (["--only", "gla_decode", "--group", "splits"], "no function of --only belongs to a group of --group"),
    (["--archs", "sm_1"], "sm_100a"),
    (["--compile-only", "--archs", "sm_90a"], "--store"),
    (["--peers", "/nowhere/at/all.py"], "/nowhere/at/all.py"),
])
def test_arguments_that_do_not_fit_are_refused(arguments, said):
    done = CliRunner().invoke(decode.main, arguments)
    assert done.exit_code == 2
    assert said in done.stderr


def test_the_command_that_compiles_has_the_subjects_sizes():
    assert prepare.command(grid.kda(96, "bf16"), ["sm_90a", "sm_100a"])[3:] == [
        "compile", "kimi_k3_decode:kda_decode", "--arch", "sm_90a,sm_100a", "-D", "H=96", "-D", "state=bf16", "--json"]


def test_what_is_compiled_is_told_and_what_fails_is_returned(monkeypatch):
    def run(command, **more):
        bad = "short_conv:short_conv" in command
        return types.SimpleNamespace(returncode=int(bad), stderr="no luck\n" if bad else "")

    monkeypatch.setattr(prepare.subprocess, "run", run)
    told = []
    failed = prepare.compile_all([grid.CONV, grid.GLA, grid.KIMI_LINEAR], ["sm_90a"], told.append, told.append)
    assert failed == {grid.CONV: "no luck"}
    assert {t for t in told if isinstance(t, cases.Subject)} == {grid.GLA, grid.KIMI_LINEAR}
    assert "kimi_linear_decode : compiled" in told and "short_conv : failed" in told


@pytest.fixture
def without_a_device(monkeypatch):
    """A run up to what it measures: everything compiles but short_conv."""
    def compile_all(subjects, archs, say, done=lambda subject: None):
        for subject in subjects:
            if subject != grid.CONV:
                done(subject)
        return {s: "no luck\nat all" for s in subjects if s == grid.CONV}

    monkeypatch.setattr(decode, "device_arch", lambda: "sm_90a")
    monkeypatch.setattr(prepare, "compile_all", compile_all)
    monkeypatch.setattr(cases.Subject, "fused",
                        lambda self: types.SimpleNamespace(compile=lambda arch, **sizes: (self, arch, sizes)))
    monkeypatch.setattr(peers, "load", lambda file, functions, names: ([], [f"vllm: not there for {len(list(functions))}"]))


def test_a_run_writes_what_it_measured(tmp_path, monkeypatch, without_a_device):
    seen = types.SimpleNamespace()

    def measure(found, arch, artifacts, given, compiled):
        seen.found, seen.artifacts, seen.compiled = found, artifacts, compiled
        return {**MADE, "left_out": []}

    monkeypatch.setattr(decode, "measure", measure)
    files = ["--json", str(tmp_path / "r.json"), "--markdown", str(tmp_path / "r.md")]
    done = CliRunner().invoke(decode.main, [*files, "--note", "a note", "--only", "short_conv", "--only", "mamba2_decode"])
    assert done.exit_code == 1 and "short_conv : no luck" in done.stderr
    assert seen.artifacts == {s: (s, "sm_90a", dict(s.sizes)) for s in (grid.mamba2("fp32"), grid.mamba2("bf16"))}
    assert {c.subject.name for c in seen.found} == {"short_conv", "mamba2_decode"} and not seen.compiled
    data = json.loads((tmp_path / "r.json").read_text())
    assert data == {**MADE, "left_out": ["vllm: not there for 3", "short_conv : not compiled: no luck"]}
    assert (tmp_path / "r.md").read_text() == render.markdown(data)


@pytest.mark.parametrize("arguments, code", [(["--only", "gla_decode"], 0), (["--group", "rows"], 1)])
def test_a_store_can_be_filled_without_measuring(tmp_path, without_a_device, arguments, code):
    done = CliRunner().invoke(decode.main, ["--compile-only", "--archs", "sm_90a", "--store", str(tmp_path), *arguments])
    assert done.exit_code == code


class Stand:
    """An artifact whose calls run the reference, times `off`."""

    kernels = (types.SimpleNamespace(key="k", arch="sm_90a", threads=32, resources={"registers": 1, "spills": 0}, smem_bytes=0),)

    def __init__(self, artifact, off=1.0):
        self.artifact, self.off = artifact, off

    def __getattr__(self, name):
        return getattr(self.artifact, name)

    def __call__(self, out, **arguments):
        found = self.artifact.reference(**arguments)
        for o, t in zip(out, found) if isinstance(out, tuple) else ((out, found),):
            o.copy_(t if self.off == 1.0 else t.float() * self.off)
        return out


@pytest.fixture
def on_the_cpu(monkeypatch):
    """Cases measured on the CPU: calls run, times are made up, and the probes say what they were made for."""
    made = []

    def probe_of(kind):
        def build(*arguments):
            made.append((kind, arguments))
            return [lambda: None] * arguments[1] if kind == "copies" else lambda: None
        return build

    probe = types.SimpleNamespace(**{kind: probe_of(kind) for kind in ("slots", "parts", "copies", "empty")})
    monkeypatch.setitem(sys.modules, "benchmarks.probe", probe)
    monkeypatch.setattr("benchmarks.probe", probe, raising=False)
    make = cases.make_inputs
    monkeypatch.setattr(cases, "make_inputs", lambda case, artifact, sets: make(case, artifact, sets, "cpu"))
    monkeypatch.setattr(cases, "MOST_SETS", 3)

    def side_by_side(candidates, cold):
        for calls in candidates.values():
            assert len(calls) == 3
            for call in calls:
                call()
        return {name: 2.0 for name in candidates}, {}

    monkeypatch.setattr(timing, "side_by_side", side_by_side)
    return made


def loaded(name, bind, function="kda_decode", **more):
    return peers.Loaded(function, name, peers.Peer(bind, **more))


def test_a_case_is_checked_and_timed_with_its_peers(on_the_cpu):
    kda = small.artifact("kda_decode")

    def right(arguments, outputs):
        return lambda: outputs[0].copy_(kda.reference(**arguments))

    def idle(arguments, outputs):
        return lambda: None

    def refuses(arguments, outputs):
        raise ValueError("not this size")

    given = [loaded("right", right), loaded("idle", idle), loaded("refuses", refuses), loaded("other", lambda a, o: None),
             loaded("elsewhere", right, "gla_decode")]
    row = decode._measured(small.case("kda_decode", 2), Stand(kda), given)
    assert row["us"] == {"fusec": 2.0, "probe": 2.0, "right": 2.0}
    assert set(row["troubles"]) == {"idle", "refuses"} and row["troubles"]["refuses"] == "ValueError: not this size"
    assert "output 0" in row["troubles"]["idle"] and "state" in row["troubles"]["idle"]
    assert (row["sets"], row["rows"], row["state"], row["group"]) == (3, 2, "bf16", "kda")
    (first, (state, index)), *rest = on_the_cpu
    assert first == "slots" and state.shape[1:] == (2, 16, 16) and index.shape == (2,) and len(rest) == 2


def test_a_wrong_kernel_is_not_timed(on_the_cpu):
    row = decode._measured(small.case("kda_decode", 2), Stand(small.artifact("kda_decode"), off=1.5), [])
    assert row["us"] == {"probe": 2.0} and row["troubles"]["fusec"].startswith("output 0: ")


@pytest.mark.parametrize("name", ["reduce_natural", "reduce_base2", "reduce_max_sum", "reduce_grouped", "reduce_unrotate_quant"])
def test_a_reduction_is_timed_beside_the_splits_in_use_and_an_empty_kernel(on_the_cpu, name):
    case = small.case(name, 2, empty=True)
    row = decode._measured(case, Stand(small.artifact(name)), [])
    assert row["us"] == {"fusec": 2.0, "probe": 2.0, "empty": 2.0} and not row["troubles"]
    assert row["bytes"] == cases.moved(small.artifact(name), case) and row["tokens"] == case.tokens
    assert row["sizes"].endswith("some splits")
    probes = [arguments for kind, arguments in on_the_cpu if kind == "parts"]
    assert len(probes) == 3 and [kind for kind, _ in on_the_cpu].count("empty") == 3
    for view, counts, written in probes:
        assert view.shape[0] == counts.numel() == case.tokens and int(counts.sum()) == cases.used_splits(case)
        assert written == (1 if name in ("reduce_grouped", "reduce_unrotate_quant") else 2)


def test_a_peer_may_leave_outputs_to_others(on_the_cpu):
    artifact = small.artifact("reduce_natural")

    def without_logarithm(arguments, outputs):
        return lambda: outputs[0].copy_(artifact.reference(**arguments)[0])

    given = [loaded("part", without_logarithm, "reduce_natural", outputs=(0,)), loaded("all", without_logarithm, "reduce_natural")]
    row = decode._measured(small.case("reduce_natural", 2), Stand(artifact), given)
    assert set(row["us"]) == {"fusec", "probe", "part"} and "output 1" in row["troubles"]["all"]


@pytest.mark.parametrize("asked", [False, True])
def test_torch_compile_takes_part_where_it_is_asked_for(on_the_cpu, monkeypatch, asked):
    modes = []

    def compile(fn, fullgraph, dynamic):
        return lambda **arguments: (modes.append(torch.is_grad_enabled()), fn(**arguments))[1]

    monkeypatch.setattr(torch, "compile", compile)
    artifact = Stand(small.artifact("reduce_natural"))
    row = decode._measured(small.case("reduce_natural", 2, compiled=True), artifact, [], asked)
    assert (candidates.COMPILED in row["us"]) == asked and modes == [False] * 4 * asked
    assert candidates.COMPILED not in decode._measured(small.case("reduce_natural", 2), artifact, [], asked)["us"]


def test_torch_compile_that_fails_is_named(on_the_cpu, monkeypatch):
    def compile(fn, fullgraph, dynamic):
        raise AssertionError("no backend")

    monkeypatch.setattr(torch, "compile", compile)
    row = decode._measured(small.case("reduce_natural", 2, compiled=True), Stand(small.artifact("reduce_natural")), [], True)
    assert row["troubles"] == {"torch.compile": "AssertionError: no backend"} and row["us"]["fusec"] == 2.0


def test_rows_are_timed_beside_a_copy_and_the_whole_becomes_a_page(on_the_cpu, monkeypatch):
    monkeypatch.setattr(decode, "device", lambda arch: MADE["device"])
    found = [small.case("swiglu", 4), small.case("qk_norm_rope", 2), small.case("mlstm_decode", 2), small.case("short_conv", 2)]
    artifacts = {c.subject: Stand(small.artifact(c.subject.name)) for c in found[:3]}
    data = decode.measure(found, "sm_90a", artifacts, [], False)
    assert [r["us"] for r in data["rows"]] == [{"fusec": 2.0, "copy": 2.0}] * 2 + [{"fusec": 2.0, "probe": 2.0}]
    assert data["groups"] == ["rows", "recurrences"] and not any(r["troubles"] for r in data["rows"])
    text = render.markdown(render.merged([data | {"notes": [], "left_out": []}]))
    assert "## Functions of rows" in text and "## Recurrences" in text and "| mlstm_decode | H=2 K=8 V=16 | 2 |" in text
    assert len(data["kernels"]) == 3


def test_a_recording_that_fails_is_named(monkeypatch):
    def recorded(calls, stream):
        if calls == ["bad"]:
            raise AssertionError("forbidden")
        return calls

    monkeypatch.setattr(timing, "recorded", recorded)
    graphs, failed = timing._graphs({"good": ["fine"], "bad": ["bad"]}, None)
    assert graphs == {"good": ["fine"]} and failed == {"bad": "not recorded: AssertionError: forbidden"}


def test_the_grid_and_its_command_line_need_no_torch():
    """`--help`, and a machine that only compiles, start without it."""
    script = "import sys; from benchmarks import cases, criteria, decode, grid; grid.cases(); sys.exit('torch' in sys.modules)"
    path = os.pathsep.join([str(prepare.ROOT), os.environ.get("PYTHONPATH", "")])
    assert subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": path}).returncode == 0
