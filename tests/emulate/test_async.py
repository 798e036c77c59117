"""Named barriers, asynchronous copies and dependent launches: what they order, and each fault at its line."""
import pytest
import torch

from fusec.emulate import EmulationError

from .support import line_of, run

BASE = "base = SmemAllocator().allocate(1024, byte_alignment=128)\nsA = shared(base, 0, Float32, 64)\n"


def given(n=64):
    return {"x": torch.arange(float(n)), "out": torch.full((n,), 777.0)}


def kinds(report):
    return {f.kind for f in report.findings}


def at(report, kind):
    return {f.line for f in report.findings if f.kind == kind}


# ---- named barriers ----------------------------------------------------------------------------------------------------------------

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
