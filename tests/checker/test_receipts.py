"""Receipts, with a device that only says what a real one would."""
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from fusec.checker import check
from fusec.checker.device import verdict
from fusec.checker.replay import DONE, save, tensors_of
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
    assert listed(wanted[:1], [replace(receipt, times_us={})])[0][1] is None  # What an interrupted run leaves.
    newer, older = replace(receipt, driver="580.159.04"), replace(receipt, driver="580.9")
    assert listed(wanted[:1], [newer, older])[0][1] == newer


def test_an_objection_of_a_sanitizer_makes_it_wrong(tmp_path):
    receipt, _ = make("step", "0" * 32, {}, Fake({"racecheck": "RACECHECK SUMMARY: 1 hazard displayed"}))
    assert not receipt.ok and "WRONG" in str(receipt)
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(FusecError, match="expected a receipt"):
        read(tmp_path)


@pytest.mark.parametrize("text, said", [
    (f"{DONE} 3\n========= ERROR SUMMARY: 0 errors\n", "clean"),
    ("RuntimeError: no device\n========= ERROR SUMMARY: 0 errors\n",
     "no errors, but the calls were not all made: RuntimeError: no device"),
    ("========= Error: Device not supported. Please refer to the list\nRuntimeError: error 999\n",
     "not run: the sanitizer does not support this device"),
    ("========= ERROR SUMMARY: 3 errors\n", "ERROR SUMMARY: 3 errors"),
    (f"========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n{DONE} 1\n", "clean"),
    ("Traceback\nRuntimeError: no device\n", "no summary: RuntimeError: no device"),
])
def test_what_a_sanitizer_says(text, said):
    assert verdict(text) == said


def test_saved_calls_hold_tensors_as_they_lie(tmp_path):
    """Shared storages, also of two types, offsets and strides; the kernel's order; the object byte for byte."""
    page = torch.arange(64, dtype=torch.uint8)
    wide = torch.empty(0, dtype=torch.float32).set_(page.untyped_storage(), 2, (3, 2), (4, 1))
    narrow = torch.empty(0, dtype=torch.bfloat16).set_(page.untyped_storage(), 1, (4,), (2,))
    own = torch.randn(3, 5).to(torch.float8_e4m3fn)
    (tmp_path / "k.o").write_bytes(b"an object\x00")
    kernel = SimpleNamespace(entry="f", object=tmp_path / "k.o", parameters=[SimpleNamespace(name=n) for n in "cab"])
    path = save(tmp_path / "0.pt", kernel, {"a": wide, "b": narrow, "c": own}, 12)
    call = torch.load(path, weights_only=True)
    assert bytes(call["object"].tolist()) == b"an object\x00" and (call["entry"], call["bytes"]) == ("f", 12)
    c, a, b = tensors_of(call, "cpu")
    assert a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() != c.untyped_storage().data_ptr()
    for mine, given in ((a, wide), (b, narrow), (c, own)):
        assert (mine.dtype, mine.shape, mine.stride(), mine.storage_offset()) == (
            given.dtype, given.shape, given.stride(), given.storage_offset())
        assert torch.equal(mine.view(torch.uint8) if mine is c else mine.float().nan_to_num(),
                           given.view(torch.uint8) if mine is c else given.float().nan_to_num())
