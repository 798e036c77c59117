"""Named barriers, asynchronous copies and dependent launches: what they order, and each fault at its line."""
import pytest
import torch

from fusec.emulate import EmulationError, check_subset

from .support import line_of, run

BASE = "base = SmemAllocator().allocate(1024, byte_alignment=128)\nsA = shared(base, 0, Float32, 64)\n"


def given(n=64):
    return {"x": torch.arange(float(n)), "out": torch.full((n,), 777.0)}


def kinds(report):
    return {f.kind for f in report.findings}


def at(report, kind):
    return {f.line for f in report.findings if f.kind == kind}


# ---- named barriers -------------------------------------------------------------------------------------------------------------

ROLES = BASE + """me = thread % 64
if thread < 64:
    for t in cutlass.range_constexpr(3):
        v = x[me] + Float32(t)
        if cutlass.const_expr(t > 0):
            cute.arch.barrier(barrier_id=2, number_of_threads=128)
        sA[me] = v
        cute.arch.barrier_arrive(barrier_id=1, number_of_threads=128)
else:
    total = Float32(0.0)
    for t in cutlass.range_constexpr(3):
        cute.arch.barrier(barrier_id=1, number_of_threads=128)
        total = total + sA[63 - me]
        if cutlass.const_expr(t < 2):
            cute.arch.barrier_arrive(barrier_id=2, number_of_threads=128)  # empty
    out[me] = total
"""


def test_producers_and_consumers_meet_at_named_barriers():
    t = given()
    report, _ = run(ROLES, t, threads=128)
    assert report.ok, report
    assert torch.equal(t["out"], 3 * t["x"].flip(0) + 3)
    assert report.counts["barriers"] == 5


@pytest.mark.parametrize("old, new, kind, piece", [
    ("        cute.arch.barrier(barrier_id=1, number_of_threads=128)\n", "", "shared-race", "total = total + sA"),
    ("            cute.arch.barrier(barrier_id=2, number_of_threads=128)\n", "            pass\n", "shared-race", "sA[me] = v"),
    ("        cute.arch.barrier_arrive(barrier_id=1, number_of_threads=128)\n", "", "deadlock", "barrier_id=1"),
    ("            cute.arch.barrier_arrive(barrier_id=2, number_of_threads=128)  # empty\n", "            pass\n", "deadlock",
     "barrier_id=2"),
    ("barrier_id=1, number_of_threads=128)\n        total", "barrier_id=1, number_of_threads=64)\n        total",
     "divergent-barrier", "barrier(barrier_id=1"),
    ("if thread < 64:", "if thread < 48:", "divergent-barrier", "barrier_arrive(barrier_id=1"),
])
def test_a_fault_at_a_named_barrier_is_found_at_its_line(old, new, kind, piece):
    assert old in ROLES
    report, source = run(ROLES.replace(old, new), given(), threads=128)
    assert kind in kinds(report), report
    assert line_of(source, piece) in at(report, kind) | {f.other_line for f in report.findings}, report


def test_a_barrier_without_a_count_is_of_the_whole_block():
    body = BASE + "sA[thread] = x[thread]\ncute.arch.barrier(barrier_id=3)\nout[thread] = sA[63 - thread]"
    t = given()
    assert run(body, t)[0].ok and torch.equal(t["out"], t["x"].flip(0))
    report, source = run(body.replace("cute.arch.barrier(", "if thread < 32:\n    cute.arch.barrier("), given())
    assert line_of(source, "cute.arch.barrier(") in at(report, "divergent-barrier"), report


def test_a_barrier_of_one_warp_orders_its_lanes_alone():
    body = BASE + "sA[thread] = x[thread]\nif thread < 32:\n    cute.arch.barrier(barrier_id=1, number_of_threads=32)\n" \
                  "else:\n    cute.arch.barrier(barrier_id=2, number_of_threads=32)\nout[thread] = sA[{}]"
    assert run(body.format("thread ^ 31"), given())[0].ok
    assert "shared-race" in kinds(run(body.format("thread ^ 32"), given())[0])


def test_arriving_orders_nothing_for_the_one_who_arrives():
    body = BASE + "sA[thread] = x[thread]\nif thread < 32:\n    cute.arch.barrier_arrive(barrier_id=1, number_of_threads=64)\n" \
                  "else:\n    cute.arch.barrier(barrier_id=1, number_of_threads=64)\n" \
                  "if thread {} 32:\n    out[thread] = sA[thread ^ 32]"
    assert run(body.format(">="), given())[0].ok
    assert "shared-race" in kinds(run(body.format("<"), given())[0])


def test_an_arrival_that_nobody_completes():
    body = "if thread < 32:\n    cute.arch.barrier_arrive(barrier_id=1, number_of_threads=64)\nout[thread] = x[thread]"
    report, source = run(body, given())
    assert at(report, "divergent-barrier") == {line_of(source, "barrier_arrive")}, report


def test_races_in_global_memory_between_warps_and_between_blocks():
    body = "{}x[thread ^ 32] = Float32(1.0)\nif thread < 32:\n    cute.arch.barrier(barrier_id=1, number_of_threads=32)\n"
    assert "global-race" in kinds(run(body.format("out[thread] = x[thread]\n"), given())[0])
    assert run(body.format("out[thread] = x[thread]\ncute.arch.sync_threads()\n"), given())[0].ok
    report, _ = run(body.format(""), given(), blocks=2)
    assert kinds(report) == {"global-race"} and "blocks 1 and 0" in str(report)


@pytest.mark.parametrize("call, message", [
    ("barrier(barrier_id=16)", r"range \[0..15\]"), ("barrier(barrier_id=1, number_of_threads=40)", "multiple of warp size"),
    ("barrier_arrive(barrier_id=1)", "needs pass number_of_threads")])
def test_what_the_dsl_refuses_of_barriers_is_refused(call, message):
    with pytest.raises(EmulationError, match=message):
        run(f"cute.arch.{call}\nout[thread] = x[thread]", given())


def test_a_refusal_in_a_strand_names_its_line():
    with pytest.raises(EmulationError, match=r"line 2\d: .*tan"):
        run("cute.arch.barrier(barrier_id=1)\nout[thread] = cute.math.tan(x[thread])", given())


def test_a_value_that_a_warp_shares():
    t = given()
    body = "role = cute.arch.make_warp_uniform(thread // 32)\nif role == 1:\n    out[thread] = x[thread]"
    assert run(body, t)[0].ok and torch.equal(t["out"][32:], t["x"][32:]) and t["out"][:32].eq(777).all()


# ---- asynchronous copies ---------------------------------------------------------------------------------------------------------

ATOM = BASE + """atom = cute.make_copy_atom(cute.nvgpu.cpasync.CopyG2SOp(), Float32, num_bits_per_copy=32)
def_x = tile(x, thread, 1, (1,), (1,))
cute.copy(atom, def_x, tile(sA, thread, 1, (1,), (1,)))
"""
COMMIT, WAIT, SYNC = "cute.arch.cp_async_commit_group()\n", "cute.arch.cp_async_wait_group(0)\n", "cute.arch.sync_threads()\n"


@pytest.mark.parametrize("lanes", [8192, 64])
def test_a_copy_is_there_after_wait_and_barrier(lanes):
    t = given()
    report, source = run(ATOM + COMMIT + WAIT + SYNC + "out[thread] = sA[63 - thread]", t, lanes=lanes)
    assert report.ok and report.counts["waits"] == 1, report
    assert torch.equal(t["out"], t["x"].flip(0))
    assert check_subset(source) == []
    assert run(ATOM + COMMIT + WAIT + "out[thread] = sA[thread]", given())[0].ok, "a thread sees its own copies after its wait"


@pytest.mark.parametrize("strands", ["", "cute.arch.barrier(barrier_id=5)\n"])
@pytest.mark.parametrize("between, read, what", [
    (COMMIT + SYNC, "63 - thread", "is read"), (COMMIT, "thread", "is read"), (WAIT + SYNC, "thread", "is read"),
    (COMMIT + WAIT, "63 - thread", "no wait and barrier"), (COMMIT + SYNC + WAIT, "63 - thread", "no wait and barrier"),
    (WAIT + COMMIT + SYNC, "63 - thread", "is read"), (COMMIT + WAIT.replace("0", "1") + SYNC, "63 - thread", "is read")])
def test_a_copy_read_before_its_wait_is_found(between, read, what, strands):
    report, source = run(strands + ATOM + between + f"out[thread] = sA[{read}]", given())
    found = [f for f in report.findings if f.kind == "async"]
    assert found, report
    assert (found[0].line, found[0].other_line) == (line_of(source, "out[thread] ="), line_of(source, "cute.copy(atom")), report
    assert what in found[0].detail or strands and "is read" in found[0].detail, "one warp runs before the other"


def test_a_copy_overwritten_before_its_wait_is_found():
    report, source = run(ATOM + COMMIT + "sA[thread] = Float32(1.0)\n" + WAIT + SYNC + "out[thread] = sA[thread]", given())
    assert line_of(source, "sA[thread] = Float32") in at(report, "async") and "overwritten" in str(report)


def test_a_copy_over_what_others_still_read_races():
    body = BASE + "sA[thread] = x[thread]\ncute.arch.sync_threads()\nv = sA[63 - thread]\n{}" + ATOM[len(BASE):] + COMMIT + WAIT \
        + SYNC + "out[thread] = v + sA[thread]"
    report, source = run(body.format(""), given())
    assert at(report, "shared-race") == {line_of(source, "cute.copy(atom")}, report
    assert run(body.format(SYNC), given())[0].ok


RING = """base = SmemAllocator().allocate(1024, byte_alignment=128)
sRing = shared(base, 0, Float32, 192)
atom = cute.make_copy_atom(cute.nvgpu.cpasync.CopyG2SOp(cute.nvgpu.cpasync.LoadCacheMode.ALWAYS), Float32, num_bits_per_copy=32)
for step in cutlass.range_constexpr(2):
    cute.copy(atom, tile(x, step * 64 + thread, 1, (1,), (1,)), tile(sRing, step * 64 + thread, 1, (1,), (1,)))
    cute.arch.cp_async_commit_group()
total = Float32(0.0)
for step in cutlass.range(8, unroll=1):
    cute.arch.cp_async_wait_group(1)
    cute.arch.sync_threads()  # ring
    ahead = step + 2
    if ahead < 8:
        cute.copy(atom, tile(x, ahead * 64 + thread, 1, (1,), (1,)), tile(sRing, ahead % 3 * 64 + thread, 1, (1,), (1,)))
    cute.arch.cp_async_commit_group()
    total = total + sRing[step % 3 * 64 + 63 - thread]
out[thread] = total
"""


def test_a_ring_of_three_stages():
    t = {"x": torch.arange(512.0), "out": torch.zeros(64)}
    report, _ = run(RING, t)
    assert report.ok, report
    assert torch.equal(t["out"], t["x"].view(8, 64).sum(0).flip(0))


@pytest.mark.parametrize("old, new, kind", [
    ("wait_group(1)", "wait_group(2)", "async"), ("    cute.arch.sync_threads()  # ring\n", "", "async"),
    ("ahead % 3", "step % 3", "async"), ("ahead % 3 * 64", "(ahead + 2) % 3 * 64", "shared-race")])
def test_a_ring_that_is_wrong(old, new, kind):
    assert old in RING
    report, _ = run(RING.replace(old, new), {"x": torch.arange(512.0), "out": torch.zeros(64)})
    assert kind in kinds(report), report


def test_groups_are_each_threads_own():
    body = ATOM + "if thread < 32:\n    cute.arch.cp_async_commit_group()\n" + WAIT + SYNC + "out[thread] = sA[thread]"
    report, _ = run(body, given())
    assert kinds(report) == {"async"} and "thread 32 " in str(report) and report.findings[0].count == 32


def test_a_copy_from_outside_is_found():
    body = ATOM.replace("tile(x, thread,", "tile(x, thread + 1,") + COMMIT + WAIT + "out[thread] = sA[thread]"
    report, source = run(body, given())
    assert at(report, "out-of-bounds") == {line_of(source, "cute.copy(atom")}


@pytest.mark.parametrize("old, new, message", [
    ("num_bits_per_copy=32", "num_bits_per_copy=16", "32, 64 or 128"), ("wait_group(0)", "wait_group(thread)", "Python int"),
    ("CopyG2SOp()", "CopyG2SOp(cute.nvgpu.cpasync.LoadCacheMode.GLOBAL)", "128 past L1"),
    ("cute.copy(atom, def_x, tile(sA", "cute.copy(atom, def_x, tile(out", "from global to shared")])
def test_what_is_refused_of_copies(old, new, message):
    with pytest.raises(EmulationError, match=message):
        run((ATOM + COMMIT + WAIT + "out[thread] = sA[thread]").replace(old, new), given())


# ---- dependent launches ----------------------------------------------------------------------------------------------------------

def test_dependent_launches_are_counted_and_early_reads_found():
    body = "a = out[thread]\ncute.arch.griddepcontrol_wait()\ncute.arch.griddepcontrol_launch_dependents()\n" \
           "out[thread] = x[thread] + a"
    report, _ = run(body, given(), dependent=["x"])
    assert report.ok and report.counts["dependent_waits"] == report.counts["launches_of_dependents"] == 1
    assert run(body, given())[0].ok
    report, source = run(body, given(), dependent=["x", "out"])
    assert at(report, "dependent") == {line_of(source, "a = out")}, report
    report, _ = run("if thread < 32:\n    cute.arch.griddepcontrol_wait()\nout[thread] = x[thread]", given(), dependent=["x"])
    assert kinds(report) == {"dependent"} and "thread 32 " in str(report)
