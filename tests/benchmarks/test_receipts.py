"""Receipts of all recipes at once, with processes and a device that only say what real ones would."""
from dataclasses import replace

import pytest
from click.testing import CliRunner

from benchmarks import receipts
from fusec.checker import device
from fusec.checker.receipts import Receipt, read, write

MADE = Receipt("f", "sm_90a", "0" * 32, "590.1", "a device", {}, {"rows": 4}, True, ("1 row",), 10, None, {}, {})


def test_every_shipped_function_is_among_them():
    found = receipts.shipped()
    assert "kimi_k3_decode:kda_decode" in found and len(found) == len(set(found)) >= 33


@pytest.fixture
def run(monkeypatch, tmp_path):
    """A run over f, g and h, of which h fails; the sanitizer says of g that it is wrong."""
    def check_all(names, folder, work, at_once, deadline):
        for name in names:
            calls = receipts.place(work, name)
            calls.mkdir(parents=True)
            for n in (0, 10, 9):
                (calls / f"{n}.pt").write_text(name)
            if name != "r:h":
                made = replace(MADE, function=name[2:], identity=name[2:] * 32)
                (calls / "receipt").write_text(write(made, folder).name)
        return {"r:h": "BuildError"} if "r:h" in names else {}

    asked = []

    def sanitized(files, tool):
        asked.append((tool, [f"{f.parent.name}/{f.name}" for f in files]))
        return "ERROR SUMMARY: 1 error" if tool == "memcheck" and any("g" in f.parent.name for f in files) else "clean"

    monkeypatch.setattr(receipts, "check_all", check_all)
    monkeypatch.setattr(device, "sanitized", sanitized)
    monkeypatch.setattr(device, "times_of", lambda files: [{"fusec": 2.0, "probe": 1.0} for _ in files])
    options = ["--receipts", str(tmp_path), "--tools", "memcheck,racecheck"]
    return lambda *names: (CliRunner().invoke(receipts.main, [*options, *names]), read(tmp_path), asked)


def test_all_steps(run):
    done, found, asked = run("r:f", "r:g")
    f, g = found
    assert (f.ok, g.ok, done.exit_code) == (True, False, 1)
    left_out = dict.fromkeys(("synccheck", "initcheck"), "not run: left out")
    assert f.sanitizer == {"memcheck": "clean", "racecheck": "clean", **left_out}
    assert g.sanitizer["memcheck"] == "ERROR SUMMARY: 1 error" and f.times_us == {"fusec": 2.0, "probe": 1.0}
    assert ("racecheck", [f"r.{n}/{c}.pt" for n in "fg" for c in (0, 9, 10)]) in asked
    assert ("memcheck", [f"r.f/{c}.pt" for c in (0, 9, 10)]) in asked


def test_one_that_fails_leaves_the_others(run):
    done, found, _ = run("r:f", "r:h")
    assert [r.function for r in found] == ["f"] and found[0].ok and done.exit_code == 1
    assert "BuildError" in done.stderr and "1 of 2 receipts are ok" in done.stderr


def test_one_alone_is_enough(run):
    assert run("r:f")[0].exit_code == 0
    assert CliRunner().invoke(receipts.main, ["--tools", "guess"]).exit_code == 2
