"""Receipts, with a device that only says what a real one would."""
from dataclasses import replace

import pytest
import torch

from fusec.checker import check
from fusec.checker.device import verdict
from fusec.checker.receipts import Wanted, listed, make, read, show, write
from fusec.errors import FusecError


def step(x, w):
    return (x * w).to(torch.bfloat16)


class Fake:
    arch, name, driver = "sm_90a", "a device", "590.1"

    def __init__(self, sanitizers):
        self.sanitizers = sanitizers

    def check(self):
        return [check(step, dict(x=torch.rand(rows, 8) + 0.5, w=torch.rand(8)), case=f"{rows} rows") for rows in (2, 3)]

    def sanitize(self, tool):
        return self.sanitizers.get(tool, "clean")

    def times(self):
        return {"fusec": 3.21, "probe": 3.0}


def test_a_receipt_says_what_ran_and_is_found_by_its_identity(tmp_path):
    receipt, reports = make("step", "0123456789abcdef" * 2, dict(rows=2), Fake({"initcheck": "not run: no tool"}))
    assert receipt.ok and receipt.cases == ("2 rows", "3 rows") and receipt.elements > 20 and len(reports) == 2
    assert receipt.times_us == {"fusec": 3.21, "probe": 3.0} and receipt.sanitizer["initcheck"].startswith("not run")
    path = write(receipt, tmp_path / "receipts")
    assert path.name == "step-sm_90a-0123456789abcdef-590.1.json" and read(path.parent) == [receipt]
    wanted = [Wanted("step", arch, receipt.identity) for arch in ("sm_90a", "sm_100a")] + [Wanted("f", "sm_90a", "", "refused")]
    told = []
    assert show(listed(wanted, read(path.parent)), told.append) == 2
    assert [line.split()[0] for line in told] == ["ok", "missing", "missing"] and "refused" in told[2]
    assert listed(wanted[:1], [replace(receipt, ok=False)])[0][1] is None


def test_an_objection_of_a_sanitizer_makes_it_wrong(tmp_path):
    receipt, _ = make("step", "0" * 32, {}, Fake({"racecheck": "RACECHECK SUMMARY: 1 hazard displayed"}))
    assert not receipt.ok and "WRONG" in str(receipt)
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(FusecError, match="expected a receipt"):
        read(tmp_path)


@pytest.mark.parametrize("text, said", [
    ("ok\n========= ERROR SUMMARY: 0 errors\n", "clean"),
    ("========= ERROR SUMMARY: 3 errors\n", "ERROR SUMMARY: 3 errors"),
    ("========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n", "clean"),
    ("Traceback\nRuntimeError: no device\n", "no summary: RuntimeError: no device"),
])
def test_what_a_sanitizer_says(text, said):
    assert verdict(text) == said
