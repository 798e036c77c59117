"""The benchmark on a machine without a GPU: it refuses, and whatever needs none is right."""
import json
import sys
import types

import pytest
import torch
from click.testing import CliRunner

from benchmarks import agree, cases, decode, peers, prepare, render

MADE = {
    "device": {"name": "Some GPU", "driver": "1.2", "multiprocessors": 132, "memory": 1, "arch": "sm_90a"},
    "versions": {"fusec": "0", "torch": "1"}, "notes": ["a note"], "left_out": ["vllm: not there"],
    "kernels": [{"function": "kda_decode", "sizes": "H=12", "key": "k", "arch": "sm_90a", "threads": 256, "registers": 128,
                 "spills": 0, "smem_bytes": 2352, "variants": 1}],
    "rows": [
        {"function": "kda_decode", "sizes": "H=12", "state": "fp32", "rows": 1, "bytes": 1_000_000, "sets": 4,
         "us": {"fusec": 4.0, "probe": 2.0, "peer": 8.0}, "troubles": {}},
        {"function": "kda_decode", "sizes": "H=12", "state": "fp32", "rows": 4096, "bytes": 4_000_000_000, "sets": 2,
         "us": {"fusec": 1000.0, "probe": 1000.0}, "troubles": {"peer": "not recorded"}},
        {"function": "short_conv", "sizes": "", "state": "", "rows": 1, "bytes": 3200, "sets": 256, "us": {"probe": 2.0},
         "troubles": {"fusec": "output 0: 5 of 6 elements differ"}},
    ],
}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_it_refuses_without_a_gpu():
    done = CliRunner().invoke(decode.main, ["--only", "short_conv"])
    assert done.exit_code == 2
    assert done.stderr == "no CUDA device: nothing to time\n"


@pytest.mark.parametrize("arguments, said", [
    (["--only", "nothing"], "kda_decode"),
    (["--archs", "sm_1"], "sm_100a"),
    (["--compile-only", "--archs", "sm_90a"], "--store"),
    (["--peers", "/nowhere/at/all.py"], "/nowhere/at/all.py"),
])
def test_arguments_that_do_not_fit_are_refused(arguments, said):
    done = CliRunner().invoke(decode.main, arguments)
    assert done.exit_code == 2
    assert said in done.stderr


def test_every_function_is_a_shipped_recipe_and_the_grid_has_its_sizes():
    every = cases.cases(every=True)
    assert {c.subject.function for c in every} == set(cases.FUNCTIONS)
    assert sum(c.subject.function == "kda_decode" for c in every) == 2 * 21
    for subject in cases.subjects(every):
        assert subject.fused().reference.__name__ == subject.function
    assert {c.subject.function for c in cases.cases(only=["gla_decode"])} == {"gla_decode"}


def test_the_command_that_compiles_has_the_subjects_sizes():
    assert prepare.command(cases.kda(96, "bf16"), ["sm_90a", "sm_100a"])[3:] == [
        "compile", "kimi_k3_decode:kda_decode", "--arch", "sm_90a,sm_100a", "-D", "H=96", "-D", "state=bf16", "--json"]


@pytest.mark.parametrize("bytes_moved, sets", [(1, 256), (1_000_000, 200), (150_000_000, 2), (10**10, 2)])
def test_a_round_touches_enough(bytes_moved, sets):
    assert cases.set_count(bytes_moved) == sets


@pytest.fixture(scope="module")
def paged():
    """The GLA step, captured and not built, with three sets of two rows."""
    return _inputs(cases.Subject("gla_decode", "gla_decode", (("H", 2), ("K", 12), ("V", 20)), ("pool", "idx")), 2, 3)


@pytest.fixture(scope="module")
def quantised():
    """The norm, captured and not built, with two sets of three rows."""
    return _inputs(cases.Subject("rmsnorm", "add_rmsnorm_quant", (("D", 64),)), 3, 2)


def _inputs(subject, rows, sets):
    from fusec.api import capture_graph, make_artifact
    fused = subject.fused()
    example = fused.inputs(**dict(subject.sizes))
    artifact = make_artifact(fused.reference, capture_graph(fused.reference, example), example, None, (), None)
    return artifact, cases.make_inputs(cases.Case(subject, rows), artifact, sets, "cpu")


def test_sets_share_pools_and_have_rows_and_slots_of_their_own(paged):
    artifact, inputs = paged
    assert len(inputs.sets) == len(inputs.outputs) == 3 and inputs.mutated == ("pool",)
    assert {s["pool"].data_ptr() for s in inputs.sets} == {inputs.sets[0]["pool"].data_ptr()}
    slots = [slot for s in inputs.sets for slot in s["idx"].tolist()]
    assert len(set(slots)) == 6 and 0 not in slots and max(slots) < inputs.sets[0]["pool"].shape[0]
    assert all(s["q"].shape == (2, 2, 12) for s in inputs.sets)
    assert len({s["q"].data_ptr() for s in inputs.sets}) == 3
    assert all(o.shape == (2, 2, 20) and bool((o == 776).all()) for o in inputs.outputs)


def test_moved_is_what_the_step_moves(paged, quantised):
    artifact, _ = paged
    state, vectors = 2 * 12 * 20 * 4, 2 * (12 * 2 * 2 + 12 * 4 + 20 * 2 * 2)
    assert cases.moved(artifact, 7) == 7 * (2 * state + vectors + 8)
    assert cases.moved(quantised[0], 4096) == 4096 * (64 * 7 + 4) + 64 * 2


def _agrees(artifact, inputs, slots, call):
    return agree.differences(artifact.reference, call, inputs.sets[0], inputs.mutated, slots)


def test_the_reference_agrees_with_itself(paged, quantised):
    for artifact, inputs in (paged, quantised):
        slots = inputs.sets[0].get("idx")
        assert _agrees(artifact, inputs, slots, lambda k, a=artifact: a.reference(**k)) == []


def test_a_wrong_output_a_wrong_state_and_a_stray_write_are_told_apart(paged):
    artifact, inputs = paged
    slots = inputs.sets[0]["idx"]

    def wrong_output(k):
        return artifact.reference(**k) * 1.1

    def wrong_state(k):
        out = artifact.reference(**k)
        k["pool"][slots] *= 1.1
        return out

    def stray(k):
        out = artifact.reference(**k)
        k["pool"][0, 0, 0, 0] += 1e-6
        return out

    assert [d.split(":")[0] for d in _agrees(artifact, inputs, slots, wrong_output)] == ["output 0"]
    assert [d.split(":")[0] for d in _agrees(artifact, inputs, slots, wrong_state)] == ["pool"]
    assert _agrees(artifact, inputs, slots, stray) == ["pool: slots that no row owns were written"]
    assert _agrees(artifact, inputs, slots, lambda k: (artifact.reference(**k), inputs.outputs[0])[1])


def test_peers_come_from_a_file(tmp_path):
    file = tmp_path / "theirs.py"
    file.write_text("def load(names): return {n: (lambda k: n) for n in names if n != 'absent'}\n"
                    "COVERS = {'one': lambda heads, dtype: heads == 12}\n")
    found, left_out = peers.load(file, ("one", "two", "absent"))
    assert [p.name for p in found] == ["one", "two"] and left_out == ["absent: not loaded by theirs.py"]
    assert [found[0].covers(h, None) for h in (12, 96)] == [True, False] and found[1].covers(96, None)


def test_a_peer_that_is_not_installed_is_left_out():
    found, left_out = peers.load(None, ("flashinfer", "other"))
    assert "other: no installed package is known by that name; --peers FILE loads others" in left_out
    assert len(found) + len(left_out) == 2


def test_the_tables_hold_the_numbers():
    text = render.markdown(MADE)
    lines = text.splitlines()
    assert "| kda_decode | H=12 | 1 | 1 MB | 4.00 | 0.25 | 2.00 | 2.00 | 8.00 | 0.50 |" in lines
    assert "| kda_decode | H=12 | 4,096 | 4 GB | 1000.0 | 4.00 | 1000.0 | 1.00 | – | – |" in lines
    assert "| short_conv | – | 1 | 3.2 KB | – | – | 2.00 | – | – | – |" in lines
    assert "| kda_decode | fp32 | probe | 2 | 1.414 |" in lines and "| kda_decode | fp32 | peer | 1 | 0.500 |" in lines
    assert "- a note" in lines and "- vllm: not there" in lines
    assert "- short_conv  rows=1: fusec: output 0: 5 of 6 elements differ" in lines
    width = {line.count("|") for line in lines if line.startswith("| kda_decode | H=12 | 1")}
    assert width == {line.count("|") for line in lines if line.startswith("| function | sizes | rows")}


def test_the_terminal_shows_the_same(capsys):
    render.show(MADE)
    out = capsys.readouterr().out
    assert "Some GPU" in out and "4,096" in out and "kda_decode fp32 ÷ probe: geometric mean 1.414 over 2" in out


def test_rendering_a_file(tmp_path):
    source, target = tmp_path / "results.json", tmp_path / "gpu.md"
    source.write_text(json.dumps(MADE))
    assert CliRunner().invoke(render.main, [str(source), "-o", str(target)]).exit_code == 0
    assert target.read_text() == render.markdown(MADE)


def test_a_run_writes_what_it_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(decode, "device_arch", lambda: "sm_90a")
    monkeypatch.setattr(prepare, "compile_all", lambda subjects, archs, say: {cases.CONV: "no luck\nat all"})
    monkeypatch.setattr(peers, "load", lambda file, names: ([], ["vllm: not there"]))
    seen = types.SimpleNamespace(failed=None)

    def measure(found, arch, failed, given):
        seen.failed = failed
        return {**MADE, "left_out": []}

    monkeypatch.setattr(decode, "measure", measure)
    files = ["--json", str(tmp_path / "r.json"), "--markdown", str(tmp_path / "r.md")]
    done = CliRunner().invoke(decode.main, [*files, "--note", "a note"])
    assert done.exit_code == 1 and "short_conv : no luck" in done.stderr
    assert seen.failed == {cases.CONV: "no luck\nat all"}
    assert json.loads((tmp_path / "r.json").read_text()) == MADE
    assert (tmp_path / "r.md").read_text() == render.markdown(MADE)


class Stand:
    """An artifact whose calls run the reference, times `off`."""

    def __init__(self, artifact, off=1.0):
        self.artifact, self.off = artifact, off

    def __getattr__(self, name):
        return getattr(self.artifact, name)

    def __call__(self, out, **arguments):
        out.copy_(self.artifact.reference(**arguments) * self.off)
        return out


@pytest.fixture
def on_the_cpu(monkeypatch):
    """Cases measured on the CPU: calls run, times are made up."""
    probe = types.SimpleNamespace(slots=lambda state, index: lambda: None, copies=lambda moved, sets: [lambda: None] * sets)
    monkeypatch.setitem(sys.modules, "benchmarks.probe", probe)
    monkeypatch.setattr("benchmarks.probe", probe, raising=False)
    made = cases.make_inputs
    monkeypatch.setattr(cases, "make_inputs", lambda case, artifact, sets: made(case, artifact, sets, "cpu"))
    monkeypatch.setattr(cases, "MOST_SETS", 3)

    def side_by_side(candidates, cold):
        for calls in candidates.values():
            assert len(calls) == 3
            for call in calls:
                call()
        return {name: 2.0 for name in candidates}, {}

    from benchmarks import timing
    monkeypatch.setattr(timing, "side_by_side", side_by_side)


KDA = cases.Subject("kimi_k3_decode", "kda_decode", (("H", 2), ("D", 16), ("state", "bf16")), ("state", "state_indices"))


@pytest.fixture(scope="module")
def kda():
    return _inputs(KDA, 2, 1)[0]


def test_a_case_is_checked_and_timed_with_its_peers(on_the_cpu, kda):
    def right(k):
        k["output"].copy_(kda.reference(**{n: t for n, t in k.items() if n != "output"}))

    def idle(k):
        pass

    def refuses(k):
        raise ValueError("not this size")

    given = [peers.Peer("right", right, lambda heads, dtype: (heads, dtype) == (2, torch.bfloat16)),
             peers.Peer("idle", idle, lambda heads, dtype: True), peers.Peer("refuses", refuses, lambda heads, dtype: True),
             peers.Peer("other", idle, lambda heads, dtype: heads == 3)]
    row = decode._measured(cases.Case(KDA, 2), Stand(kda), given)
    assert row["us"] == {"fusec": 2.0, "probe": 2.0, "right": 2.0}
    assert set(row["troubles"]) == {"idle", "refuses"} and row["troubles"]["refuses"] == "ValueError: not this size"
    assert "output 0" in row["troubles"]["idle"] and "state" in row["troubles"]["idle"]
    assert (row["sets"], row["rows"], row["state"]) == (3, 2, "bf16")


def test_a_wrong_kernel_is_not_timed(on_the_cpu, kda):
    row = decode._measured(cases.Case(KDA, 2), Stand(kda, off=1.5), [])
    assert row["us"] == {"probe": 2.0} and row["troubles"]["fusec"].startswith("output 0: ")
