"""The command line: tables, JSON, stages, errors and their exit codes."""
import json
import subprocess
import sys

import pytest
import torch

from fusec import cli, cli_check, cli_load

HEAD = "import torch\nimport fusec\n\n\ndef make(rows, device, C=32):\n    return dict(x=torch.randn(rows, C, device=device))\n\n\n"
FIELDS = {"function", "label", "sizes", "name", "arch", "ops", "grid", "threads", "smem_bytes",
          "registers", "spills", "barriers", "bytes_moved", "floor_us", "key", "seconds"}


@pytest.fixture
def run(capsys):
    def run(*arguments):
        code = cli.run(list(map(str, arguments)))
        captured = capsys.readouterr()
        return code, captured.out, captured.err
    return run


@pytest.fixture
def step(tmp_path):
    def write(body, name="step.py", head=HEAD):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(head + body)
        return path
    return write


DOUBLE = "@fusec.fuse(example=make)\ndef double_it(x):\n    return x * 2.0 + 1.0\n"
HALVE = "\n\n@fusec.fuse(example=make)\ndef halve_it(x):\n    return x * 0.5\n"


def test_compile_prints_json_by_its_schema_for_every_function_and_architecture(run, step):
    path = step(DOUBLE + HALVE, "a b/ü 核/it's.py")
    code, out, err = run("compile", path, "--json", "-D", "C=40", "--rows", "5")
    assert code == 0, err
    found = json.loads(out)
    assert set(found) == {"kernels", "notes", "refused"} and all(set(k) == FIELDS for k in found["kernels"])
    assert [(k["function"], k["arch"]) for k in found["kernels"]] == [
        ("double_it", "sm_100a"), ("double_it", "sm_90a"), ("halve_it", "sm_100a"), ("halve_it", "sm_90a")]
    one = found["kernels"][1]
    assert one["bytes_moved"] == 2 * 5 * 40 * 4 and one["floor_us"] == pytest.approx(1600 / 3.98e6, abs=1e-3) and one["spills"] == 0
    assert one["registers"] > 0 and one["seconds"] > 0 and one["ops"] == 2 and one["smem_bytes"] == 0 and len(one["key"]) == 32
    assert len({k["key"] for k in found["kernels"]}) == 4
    again = json.loads(run("compile", f"{path}:double_it", "--json", "-D", "C=40", "--arch", "sm_90a")[1])["kernels"]
    assert [k["seconds"] for k in again] == [0] and again[0]["key"] == one["key"] and again[0]["registers"] == one["registers"]


def test_the_floor_where_nothing_was_measured_is_that_of_the_peak(run, step):
    code, out, err = run("compile", step(DOUBLE), "--json", "-D", "C=4096", "--rows", "64", "--arch", "sm_103a,sm_120a")
    assert code == 0, err
    found = json.loads(out)
    moved = 2 * 64 * 4096 * 4
    assert [(k["arch"], k["floor_us"], k["spills"]) for k in found["kernels"]] == [
        ("sm_103a", round(moved / 8e6, 3), 0), ("sm_120a", round(moved / 1.79e6, 3), 0)]
    assert "floor on sm_120a: 1.79 TB/s, peak by its data sheet" in found["notes"]


def test_the_table_holds_a_row_per_kernel_when_piped(run, step, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    code, out, _ = run("compile", step(DOUBLE), "--arch", "sm_90a")
    lines = out.splitlines()
    assert code == 0 and lines[0].split()[:2] == ["function", "arch"] and lines[1].split()[:2] == ["double_it", "sm_90a"]
    assert "\x1b" not in out and "TB/s" in out


@pytest.mark.parametrize("stage", ["graph", "axes", "regions", "schedule", "kernel", "smem", "source"])
def test_each_stage_prints(run, step, stage):
    code, out, err = run("inspect", step(DOUBLE), "--stage", stage, "--arch", "sm_90a")
    assert code == 0 and out.strip(), err
    if stage == "source":
        compile(out, "source", "exec")
        assert "double_it+" in out


def test_inspect_prints_every_stage_that_needs_no_build(run, step):
    code, out, _ = run("inspect", step(DOUBLE))
    assert code == 0 and [line for line in out.splitlines() if line.startswith("# ----")] == [
        f"# ---- {s} of double_it, sm_100a" for s in ("graph", "axes", "regions", "schedule", "kernel", "smem", "source")]


def test_ptx_and_resources_come_from_the_build(run, step):
    path = step(DOUBLE)
    assert ".target sm_90a" in run("inspect", path, "--stage", "ptx", "--arch", "sm_90a")[1]
    assert "registers: " in run("inspect", path, "--stage", "resources", "--arch", "sm_90a")[1]


def test_explain_says_what_the_grid_is(run, step):
    code, out, _ = run("explain", step(DOUBLE))
    assert code == 0 and "double_it: 2 operations in one kernel for sm_100a" in out and "one block per" in out


def test_explain_goes_on_after_a_function_that_is_refused(run, step):
    body = "@fusec.fuse(example=make)\ndef sorted_rows(x):\n    return torch.linalg.svd(x)[1]\n\n\n"
    code, out, err = run("explain", step(body + DOUBLE), "--arch", "sm_90a,sm_100a")
    assert code == 2 and err.count("step.py:11:") == 2 and "Traceback" not in err
    for arch in ("sm_90a", "sm_100a"):
        assert f"sorted_rows: no kernel for {arch}" in out and f"double_it: 2 operations in one kernel for {arch}" in out


def test_explain_says_which_leading_dim_keeps_the_examples_size(run, step):
    body = "@fusec.fuse(example=lambda rows, device: dict(x=torch.randn(rows, 8)))\ndef summed(x):\n    return x.sum(0)\n"
    code, out, err = run("explain", step(body))
    assert code == 0 and "dim 0 of x is 4 in every call, as in the example: what varies is dim 1" in out, err
    assert "in every call" not in run("explain", step(DOUBLE))[1]


def test_shipped_recipes_are_found_from_anywhere(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("gla_decode", "recipes/gla_decode.py", "fusec/recipes/gla_decode.py", "gla_decode:gla_decode"):
        code, out, err = run("inspect", name, "--stage", "graph")
        assert code == 0 and out.startswith("tensor graph gla_decode"), err


@pytest.mark.parametrize("body, arguments, message", [
    (DOUBLE, ["--arch", "hopper"], "unknown architecture 'hopper'; known: sm_90a"),
    (DOUBLE, ["--arch", "sm_75"], "unknown architecture 'sm_75'"),
    (DOUBLE, ["--arch", ","], "expected one or more of sm_90a"),
    (DOUBLE, ["-D", "D=3"], "-D D: the example's sizes are double_it: C"),
    (DOUBLE, ["-D", "C"], "-D C: expected name=value"),
    (DOUBLE, ["--rows", "1"], "--rows"),
    (DOUBLE, ["--nonsense"], "No such option"),
    ("def double_it(x):\n    return x\n", [], "step.py: expected a function decorated with @fusec.fuse, found none"),
    ("@fusec.fuse\ndef double_it(x):\n    return x * 2\n", [], "double_it has no example inputs"),
    ("def f(:\n", [], "step.py:9:7: "),
    ("import nonexistent_module\n", [], "step.py:9: ModuleNotFoundError: No module named 'nonexistent_module'"),
    ("@fusec.fuse(example=make)\ndef f(x):\n    return torch.linalg.svd(x)[1]\n", [], "step.py:11:"),
    ("@fusec.fuse(example=make)\ndef f(x):\n    return x[x > 0]\n", [], "step.py:11:"),
    ("@fusec.fuse(example=lambda rows, device: dict(y=1))\ndef f(x):\n    return x\n", [], "example inputs of f: "),
    ("@fusec.fuse(example=lambda rows, device: dict(y=1))\ndef f(x):\n    return x\n", [], "step.py:9:"),
    ("def own(rows, device):\n    return dict(y=rows.z)\n\n\n@fusec.fuse(example=own)\ndef f(x): return x\n", [], "step.py:10:"),
    ("def own(rows, device):\n    return dict(y=[][rows])\n\n\n@fusec.fuse(example=own)\ndef f(x): return x\n", [], "step.py:9:"),
])
def test_a_users_error_is_exit_code_2_without_a_traceback(run, step, body, arguments, message):
    code, out, err = run("compile", step(body), *arguments)
    assert code == 2 and message in err and "Traceback" not in err + out, err


def test_a_size_goes_to_the_functions_that_know_it(run, step):
    other = "\n\n@fusec.fuse(example=lambda rows, device, K=8: dict(x=torch.randn(rows, K)))\ndef other(x):\n    return x + 1.0\n"
    code, out, err = run("inspect", step(DOUBLE + other), "--stage", "graph", "-D", "C=40", "-D", "K=24")
    assert code == 0 and "f32[rows, 40]" in out and "f32[rows, 24]" in out, err


def test_several_values_of_a_size_are_every_combination(run, step):
    make = "def make(rows, device, C=32, dtype='fp32'):\n    return dict(x=torch.randn(rows, C).to(dict(fp32=torch.float32, " \
           "bf16=torch.bfloat16)[dtype]))\n\n\n"
    other = "\n\n@fusec.fuse(example=lambda rows, device, K=8: dict(x=torch.randn(rows, K)))\ndef other(x):\n    return x + 1.0\n"
    path = step(DOUBLE + other, head="import torch\nimport fusec\n\n\n" + make)
    code, out, err = run("compile", path, "--json", "--arch", "sm_90a", "-D", "C=40,24", "-D", "dtype=bf16,fp32")
    found = json.loads(out)["kernels"]
    assert code == 0, err
    assert [k["label"] for k in found] == [*(f"double_it C={c} dtype={d}" for c in (40, 24) for d in ("bf16", "fp32")), "other"]
    assert [k["bytes_moved"] for k in found[:4]] == [2 * 4 * c * w for c in (40, 24) for w in (2, 4)]
    assert found[1]["sizes"] == {"C": 40, "dtype": "fp32"} and found[4]["sizes"] == {} and len({k["key"] for k in found}) == 5
    code, out, _ = run("check", f"{path}:double_it", "-D", "C=8,9", "--level", "kernel")
    assert code == 0 and [line.split(":")[0] for line in out.splitlines() if " ok " in line] == ["double_it C=8", "double_it C=9"]
    for wrong in ("C=", "C=4,,5", "=4"):
        assert run("inspect", path, "-D", wrong)[0] == 2


def test_check_compares_and_fails_with_1(run, step):
    code, out, err = run("check", step(DOUBLE), "--level", "kernel")
    assert code == 0 and out.startswith("double_it: ok at level kernel"), err
    code, _, err = run("check", step(DOUBLE), "--level", "gpu") if not torch.cuda.is_available() else (2, "", "CUDA device")
    assert code == 2 and "CUDA device" in err


def test_a_refused_function_does_not_keep_the_others_from_compiling(run, step):
    path = step("@fusec.fuse(example=make)\ndef f(x):\n    return x[x > 0]\n\n\n" + DOUBLE + HALVE.replace("(example=make)", ""))
    code, out, err = run("compile", path, "--json", "--arch", "sm_90a")
    found = json.loads(out)
    assert code == 2 and [k["function"] for k in found["kernels"]] == ["double_it"]
    assert "CaptureError" in err and "step.py:11:" in err
    for start in ("f: refused: ", "halve_it: left out"):
        assert any(n.startswith(start) for n in found["notes"])


def test_traceback_shows_on_request(run, step):
    code, _, err = run("compile", step(DOUBLE), "--arch", "hopper", "--traceback")
    assert code == 2 and "Traceback" in err and "TargetError" in err


def test_a_file_that_is_not_there_lists_the_recipes(run):
    code, _, err = run("compile", "nowhere/step.py")
    assert code == 2 and "shipped recipes: " in err and "gla_decode, kimi_k3_decode" in err


def test_python_dash_m_and_a_closed_pipe(step):
    command = [sys.executable, "-m", "fusec", "inspect", str(step(DOUBLE)), "--stage", "graph"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("tensor graph double_it")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()


PAGED = """def paged_example(rows, device):
    return dict(x=torch.randn(rows, 16), pool=torch.randn(6, 16), slots=torch.randperm(6)[:rows])


@fusec.fuse(example=paged_example)
def paged(x, pool, slots):
    h = pool[slots] * 0.5 + x
    pool[slots] = h
    return h.sum(-1)
"""


def test_saved_arguments_are_looked_into_level_by_level(run, step, tmp_path):
    g = torch.Generator().manual_seed(3)
    call = dict(x=torch.randn(2, 16, generator=g), pool=torch.randn(9, 16, generator=g), slots=torch.tensor([8, 0]))
    torch.save(call, tmp_path / "dump.pt")
    code, out, err = run("check", step(PAGED), "--inputs", str(tmp_path / "dump.pt"))
    assert code == 0 and out.startswith("paged: all levels agree") and "\n  emulate  agrees" in out, err
    code, out, err = run("check", step(PAGED), "--inputs", str(tmp_path / "dump.pt"), "--until", "h", "--level", "graph")
    assert code == 0 and out.startswith("h [") and "\n  graph " in out and "\n  kernel " not in out, err
    code, _, err = run("check", step(DOUBLE + PAGED), "--inputs", str(tmp_path / "dump.pt"))
    assert code == 2 and "--inputs: expected one function, found double_it, paged" in err


def test_emitted_files_are_checked_on_the_cpu(run, step):
    code, out, err = run("check", step(PAGED), "--level", "emulate", "--arch", "sm_100a")
    assert code == 0 and out.startswith("paged: ok at level emulate"), err


def test_receipts_are_listed_by_identity(run, step, tmp_path):
    folder = str(tmp_path / "receipts")
    code, out, err = run("receipts", step(PAGED), "--arch", "sm_90a", "--receipts", folder)
    assert code == 0 and out.startswith("missing paged sm_90a ") and "0 of 1 sources have a receipt" in out, err
    assert run("receipts", step(PAGED), "--arch", "sm_90a", "--receipts", folder, "--strict")[0] == 1
    from fusec.checker.receipts import Receipt, write
    chosen = cli.Chosen(cli_load.functions(str(step(PAGED)))[0], 4, {})
    identity = cli_check.identity(chosen.plan("sm_90a", "source", lambda text: None))
    receipt = Receipt("paged", "sm_90a", identity, "590.1", "a device", {}, {}, True, ("the example",), 9, None,
                      {"memcheck": "clean"}, {"fusec": 1.0, "probe": 0.9})
    write(receipt, tmp_path / "receipts")
    code, out, _ = run("receipts", step(PAGED), "--arch", "sm_90a", "--receipts", folder, "--strict")
    assert code == 0 and out.startswith("ok      paged sm_90a") and "driver 590.1" in out
    code, _, err = run("check", step(PAGED), "--receipt")
    assert code == 2 and "--receipt: expected --level gpu" in err


PRINTING = """
import torch
import fusec


def example(rows, device, state=torch.bfloat16):
    print("making", rows)
    return dict(x=torch.randn(rows, 8, device=device).to(state))


@fusec.fuse(example=example)
def twice(x):
    return x * 2


@fusec.fuse(example=example)
def searched(x):
    return torch.searchsorted(x[0], x)
"""


@pytest.mark.parametrize("function", ["", ":searched"])
def test_json_names_what_is_refused_and_is_all_that_is_printed(tmp_path, function):
    path = tmp_path / "printing.py"
    path.write_text(PRINTING)
    command = [sys.executable, "-m", "fusec", "compile", f"{path}{function}", "--arch", "sm_90a", "--json", "-D", "state=fp32"]
    ran = subprocess.run(command, capture_output=True, text=True)
    found = json.loads(ran.stdout)
    assert ran.returncode == 2 and len(found["kernels"]) == (not function) and "making" in ran.stderr
    (refusal,) = found["refused"]
    assert refusal["function"] == "searched" and refusal["type"] == "UnsupportedOp" and refusal["file"] == str(path)
    assert refusal["line"] == 18 and "searchsorted" in refusal["message"] and refusal["hint"]
