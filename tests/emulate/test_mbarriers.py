"""Bulk copies that complete on mbarriers: what their waits order, and each fault at its line."""
import pytest
import torch

from fusec.emulate import EmulationError, check_subset
from fusec.emulate.judge import Case, judge

from .support import kernel, line_of, run

STREAM = """base = SmemAllocator().allocate(1024, byte_alignment=128)
full = shared(base, 0, Int64, 2)
sRing = shared(base, 128, Float32, 128)
load = cute.make_copy_atom(cute.nvgpu.cpasync.CopyBulkG2SOp(), Float32)
if thread == 0:
    for s in cutlass.range_constexpr(2):
        cute.arch.mbarrier_init(full.iterator + s, 1)
    cute.arch.mbarrier_init_fence()
    for s in cutlass.range_constexpr(2):
        cute.arch.mbarrier_arrive_and_expect_tx(full.iterator + s, 256)
        cute.copy(load, tile(x, s * 64, 4, 64, 1), tile(sRing, s * 64, 4, 64, 1), mbar_ptr=full.iterator + s)
cute.arch.sync_threads()  # initialised
total = Float32(0.0)
for c in cutlass.range_constexpr(5):
    cute.arch.mbarrier_wait(full.iterator + c % 2, c // 2 % 2)
    total = total + sRing[c % 2 * 64 + 63 - thread]
    cute.arch.sync_threads()  # read
    if cutlass.const_expr(c + 2 < 5):
        if thread == 0:
            cute.arch.mbarrier_arrive_and_expect_tx(full.iterator + c % 2, 256)
            cute.copy(load, tile(x, (c + 2) * 64, 4, 64, 1), tile(sRing, c % 2 * 64, 4, 64, 1), mbar_ptr=full.iterator + c % 2)
out[thread] = total
"""


def given():
    return {"x": torch.arange(320.0), "out": torch.zeros(64)}


def test_a_stream_of_bulk_copies():
    t = given()
    report, source = run(STREAM, t)
    assert report.ok and check_subset(source) == [], report
    assert torch.equal(t["out"], t["x"].view(5, 64).sum(0).flip(0)) and report.counts["waits"] == 10


@pytest.mark.parametrize("old, new, kind, piece", [
    ("    cute.arch.mbarrier_wait(full.iterator + c % 2, c // 2 % 2)\n", "", "async", "total = total + sRing"),
    ("c // 2 % 2)", "(c // 2 + 1) % 2)", "deadlock", "mbarrier_wait("),
    ("    cute.arch.sync_threads()  # read\n", "", "shared-race", "cute.copy(load, tile(x, (c + 2)"),
    ("cute.arch.sync_threads()  # initialised\n", "", "shared-race", "mbarrier_init(full"),
    ("mbarrier_init(full.iterator + s, 1)", "mbarrier_init(full.iterator + s, 2)", "deadlock", "mbarrier_wait("),
    ("expect_tx(full.iterator + c % 2, 256)", "expect_tx(full.iterator + c % 2, 128)", "deadlock", "mbarrier_wait("),
    ("if thread == 0:\n    for s", "if thread < 2:\n    for s", "divergent-barrier",
     "mbarrier_arrive_and_expect_tx(full.iterator + s"),
    ("        cute.arch.mbarrier_init(full.iterator + s, 1)\n", "        pass\n", "uninitialised-shared",
     "mbarrier_arrive_and_expect_tx(full.iterator + s"),
    ("shared(base, 0, Int64, 2)", "shared(base, 4, Int64, 2)", "misaligned", "mbarrier_init("),
    ("(c + 2) * 64, 4", "(c + 2) * 64 + 64, 4", "out-of-bounds", "cute.copy(load, tile(x, (c + 2)"),
])
def test_a_fault_is_found_at_its_line(old, new, kind, piece):
    assert old in STREAM
    report, source = run(STREAM.replace(old, new), given())
    assert line_of(source, piece) in {n for f in report.findings if f.kind == kind for n in (f.line, f.other_line)}, report


def test_dropped_waits_are_noticed():
    found = judge(kernel(STREAM), [lambda: Case(given())])
    dropped = [v for v in found if v.mutant.kind in ("wait", "barrier")]
    assert len(dropped) == 3 and all(v.caught for v in dropped), [str(v) for v in dropped]


@pytest.mark.parametrize("old, new, message", [
    (", mbar_ptr=full.iterator + s)", ")", "via the mbar_ptr"),
    ("s * 64, 4, 64, 1), tile(sRing", "s * 64, 4, 2, 1), tile(sRing", "copy of"),
    ("tile(x, s * 64, 4, 64, 1), tile(sRing, s * 64, 4, 64, 1)", "tile(x, s * 64, 4, 2, 1), tile(sRing, s * 64, 4, 2, 1)",
     "128-bits")])
def test_what_is_refused(old, new, message):
    assert old in STREAM
    with pytest.raises(EmulationError, match=message):
        run(STREAM.replace(old, new), given())
