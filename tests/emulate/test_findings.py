"""Each kind of fault is found at its line, and its mended twin is clean."""
import pytest
import torch

from fusec.emulate import Placed, emulate

from .support import kernel, line_of, run


def given(**shapes):
    """x of small numbers, out poisoned."""
    return {"x": torch.arange(64.0), "out": torch.full((64,), 777.0), **shapes}


BASE = "base = SmemAllocator().allocate(1024, byte_alignment=128)\nsA = shared(base, 0, Float32, 64)\n"

FAULTS = {
    # kind: (body, the line's text, the mended body)
    "out-of-bounds": ("out[thread + 1] = x[thread]", "out[thread + 1]", "if thread < 63:\n    out[thread + 1] = x[thread]"),
    "misaligned": ("r = cute.make_rmem_tensor((4,), Float32)\nif thread < 12:\n"
                   "    cute.autovec_copy(tile(x, thread * 4 + 1, 4, (4,), (1,)), r)\n    out[thread] = r[0]", "tile(x, ",
                   "r = cute.make_rmem_tensor((4,), Float32)\nif thread < 12:\n"
                   "    cute.autovec_copy(tile(x, thread * 4 + 4, 4, (4,), (1,)), r)\n    out[thread] = r[0]"),
    "uninitialised-shared": (
        BASE + "if thread < 32:\n    sA[thread] = x[thread]\ncute.arch.sync_threads()\nout[thread] = sA[thread]",
        "out[thread] = sA", BASE + "sA[thread] = x[thread]\ncute.arch.sync_threads()\nout[thread] = sA[thread]"),
    "uninitialised-register": (
        "r = cute.make_rmem_tensor((2,), Float32)\nr[0] = x[thread]\nout[thread] = r[0] + r[1]", "out[thread] =",
        "r = cute.make_rmem_tensor((2,), Float32)\nr[0] = x[thread]\nunused = r[0] + r[1]\nout[thread] = r[0]"),
    "shared-race": (BASE + "sA[thread] = x[thread]\nout[thread] = sA[63 - thread]", "out[thread] = sA",
                    BASE + "sA[thread] = x[thread]\ncute.arch.sync_threads()\nout[thread] = sA[63 - thread]"),
    "global-race": ("out[thread] = x[thread]\nx[63 - thread] = Float32(0.0)", "x[63 - thread]",
                    "out[thread] = x[thread]\nx[thread] = Float32(0.0)"),
    "divergent-barrier": ("if thread < 32:\n    cute.arch.sync_threads()\nout[thread] = x[thread]", "sync_threads()",
                          "if x[0] == 0.0:\n    cute.arch.sync_threads()\nout[thread] = x[thread]"),
    "divergent-shuffle": ("v = x[thread]\nif thread < 16:\n    v = cute.arch.shuffle_sync_bfly(v, offset=1)\nout[thread] = v",
                          "shuffle_sync_bfly",
                          "v = x[thread]\nif thread < 32:\n    v = cute.arch.shuffle_sync_bfly(v, offset=1)\nout[thread] = v"),
    "shared-plan": ("base = SmemAllocator().allocate(2048)\nout[thread] = x[thread]", "allocate(2048)",
                    "base = SmemAllocator().allocate(1024)\nout[thread] = x[thread]"),
    "contraction": ("out[thread] = x[thread] * Float32(0.1) + x[1]", "out[thread] =",
                    "out[thread] = cute.math.mul(x[thread], Float32(0.1), rounding=cute.math.RoundingMode.NEAREST_EVEN) + x[1]"),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_is_found_at_its_line(kind):
    body, piece, _ = FAULTS[kind]
    report, source = run(body, given())
    assert kind in {f.kind for f in report.findings}, report
    assert line_of(source, piece) in {f.line for f in report.findings if f.kind == kind}, report
    assert not report.ok


@pytest.mark.parametrize("kind", FAULTS)
def test_its_mended_twin_is_clean(kind):
    report, _ = run(FAULTS[kind][2], given())
    assert report.ok, report


def test_both_lines_of_a_race_are_named():
    report, source = run(FAULTS["shared-race"][0], given())
    finding = report.findings[0]
    assert {finding.line, finding.other_line} == {line_of(source, "sA[thread] = x"), line_of(source, "out[thread] = sA")}
    assert "threads" in finding.detail and "no barrier" in finding.detail


def test_the_reference_line_is_named():
    report, _ = run("# step+7: out\nout[thread + 1] = x[thread]", given())
    assert report.findings[0].reference == "step+7"


def test_a_write_after_a_read_in_shared_memory_races():
    body = BASE + "sA[thread] = x[thread]\ncute.arch.sync_threads()\nv = sA[63 - thread]\n{}sA[thread] = v\nout[thread] = v"
    assert [f.kind for f in run(body.format(""), given())[0].findings] == ["shared-race"]
    assert run(body.format("cute.arch.sync_threads()\n"), given())[0].ok


def test_bytes_of_two_types_on_one_place_race():
    body = BASE + "sB = shared(base, 128, BFloat16, 64)\nsA[thread] = x[thread]\n{}sB[thread] = BFloat16(1.0)"
    report, _ = run(body.format(""), given())
    assert {f.kind for f in report.findings} == {"shared-race"}
    assert run(body.format("cute.arch.sync_threads()\n"), given())[0].ok


def test_halves_of_a_word_do_not_race():
    body = BASE + "sB = shared(base, 0, BFloat16, 64)\nsB[thread] = BFloat16(x[thread])\nout[thread] = Float32(sB[thread])"
    assert run(body, given())[0].ok


def test_two_blocks_on_one_element_race():
    report, _ = run("out[thread] = x[thread]", given(), blocks=2)
    assert {f.kind for f in report.findings} == {"global-race"} and "blocks 1 and 0" in str(report)
    assert run("out[thread] = x[thread]", given(), blocks=2, lanes=64)[0].findings, "also where they run in different chunks"


def test_races_between_blocks_are_kept_while_the_log_is_thinned():
    import numpy as np

    from fusec.emulate.races import BlockOwners
    owners, found = BlockOwners(8, limit=4), []
    for block in range(50):
        owners.add(np.arange(8), np.full(8, block), 1, False)
    assert owners.size <= 4 * 8
    owners.add(np.array([3]), np.array([2]), 2, True)
    owners.compare(lambda *race: found.append(race))
    assert [(line, other, unit) for line, other, unit, *_ in found] == [(2, 1, 3)] and found[0][3] == 2 != found[0][4]


def test_a_read_of_another_blocks_element_races():
    t = {"x": torch.zeros(128), "out": torch.zeros(128)}
    report, _ = run("x[block * 64 + thread] = Float32(1.0)\nout[block * 64 + thread] = x[thread]", t, blocks=2, lanes=64)
    assert {f.kind for f in report.findings} == {"global-race"}


def test_a_barrier_orders_one_block_only_where_it_went():
    body = BASE + "sA[thread] = x[thread]\nif block == 0:\n    cute.arch.sync_threads()\nout[block * 64 + thread] = sA[63 - thread]"
    report, _ = run(body, {"x": torch.arange(64.0), "out": torch.zeros(128)}, blocks=2)
    assert {f.kind for f in report.findings} == {"shared-race"} and "of block 1" in str(report)


def test_gaps_of_a_strided_tensor_belong_to_nobody():
    parent = torch.zeros(4, 64)
    t = {"x": parent[:, :32], "out": torch.zeros(128)}
    source = "v = Float32(1.0)\nif thread < {n}:\n    tile(x, Int64(block) * x.stride[0] + thread, 1, (1,), (1,))[0] = v"
    assert run(source.format(n=32), t, blocks=4)[0].ok
    report, _ = run(source.format(n=33), {**t, "x": torch.zeros(4, 64)[:, :32]}, blocks=4)
    assert {f.kind for f in report.findings} == {"out-of-bounds"}
    assert parent[:, 32:].eq(0).all() and parent[:, :32].eq(1).all()


def test_a_buffer_ends_where_its_view_does():
    body = "base = SmemAllocator().allocate(1024)\nsA = shared(base, 0, Float32, 60)\nsB = shared(base, 240, Float32, 4)\n" \
           "sB[thread & 3] = Float32(0.0)\ncute.arch.sync_threads()\ntile(sA, thread, 1, (1,), (1,))[0] = x[thread]"
    report, _ = run(body, given(), threads=64)
    assert "out-of-bounds" in {f.kind for f in report.findings}


def test_a_promise_of_alignment_that_the_base_breaks():
    storage = torch.zeros(68)
    body = "r = cute.make_rmem_tensor((4,), Float32)\nif thread < 16:\n" \
           "    cute.autovec_copy(tile(x, thread * 4, 4, (4,), (1,)), r)\n    out[thread] = r[0]"
    assert run(body, {"x": storage[4:], "out": torch.zeros(64)})[0].ok
    report, _ = run(body, {"x": Placed(torch.zeros(64), (1,), (1 << 41) + 16), "out": torch.zeros(64)})
    assert report.ok
    unaligned, _ = run(body, {"x": storage[1:65], "out": torch.zeros(64)})
    assert unaligned.ok, "without a promise about the base the accesses are narrow"
    assert {t.width for t in unaligned.traffic if not t.write} == {4}


def test_conflicts_and_sectors_are_counted():
    t = {"x": torch.zeros(64 * 32), "out": torch.zeros(64)}
    apart, _ = run("out[thread] = x[thread * 32]", t)
    dense, _ = run("out[thread] = x[thread]", t)
    assert apart.counts["sectors"] - dense.counts["sectors"] == 64 - 8
    body = "base = SmemAllocator().allocate(8192)\nsA = shared(base, 0, Float32, 2048)\nsA[thread * {n}] = x[thread]"
    for step, extra in ((1, 0), (2, 1), (32, 31), (33, 0)):
        report, _ = run(body.format(n=step) if step < 33 else body.format(n=33).replace("2048", "2112").replace("8192", "8448"),
                        t, smem=8448)
        assert report.counts["bank_conflicts"] == 2 * extra, step


def test_wide_shared_accesses_conflict_by_quarters_of_a_warp():
    body = "base = SmemAllocator().allocate(8192, byte_alignment=128)\nsA = shared(base, 0, Float32, 2048)\n" \
           "r = cute.make_rmem_tensor((4,), Float32)\nr.fill(1.0)\ncute.autovec_copy(r, tile(sA, thread * {n}, 4, (4,), (1,)))"
    for step, extra in ((4, 0), (8, 1), (16, 3)):
        report, _ = run(body.format(n=step), given(), smem=8192)
        assert report.counts["bank_conflicts"] == 2 * 4 * extra, step


def test_strides_beyond_32_bits_need_no_memory_between():
    data = torch.arange(4 * 64.0).view(4, 64)
    body = "out[block * 64 + thread] = tile(x, {}, 1, (1,), (1,))[0]"
    far = Placed(data, (2**31 + 64, 1))
    out = torch.zeros(256)
    report, _ = run(body.format("Int64(3 - block) * x.stride[0] + thread"), {"x": far, "out": out}, blocks=4)
    assert report.ok and torch.equal(out.view(4, 64), data.flip(0))
    report, _ = run(body.format("Int32(3 - block) * Int32(x.stride[0]) + thread"), {"x": far, "out": out}, blocks=4)
    assert {f.kind for f in report.findings} == {"out-of-bounds"}


def test_the_last_rows_of_very_many():
    rows, count = 30_000_000, 3
    data = torch.arange(count * 96.0).view(count, 96)
    placed = Placed(data, (96, 1), None, (rows + count, 96), (rows, 0))
    out = torch.zeros(count * 96)
    source = kernel("out[(block - 30000000) * 96 + thread] = tile(x, {}, 1, (1,), (1,))[0]", threads=96, blocks=rows + count)
    only = (range(rows, rows + count),)
    assert emulate(source.format("Int64(block) * 96 + thread"), {"x": placed, "out": out}, blocks=only).ok
    assert torch.equal(out, data.flatten())
    report = emulate(source.format("block * 96 + thread"), {"x": placed, "out": out}, blocks=only)
    assert {f.kind for f in report.findings} == {"out-of-bounds"}
