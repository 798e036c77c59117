"""Clusters: their barrier, the shared memory of the other blocks, and each fault at its line."""
import pytest
import torch

from fusec.emulate import EmulationError, check_subset, emulate, launch
from fusec.emulate.lockstep import Clusters
from fusec.emulate.mutants import mutants
from fusec.emulate.strands import Team

from .support import kernel, line_of, run

REMOTE = """from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import dsl_user_op


@dsl_user_op
def load_remote(pointer, *, loc=None, ip=None):
    return llvm.load(pointer.dtype.mlir_type, pointer.to_llvm_ptr(loc=loc, ip=ip), loc=loc, ip=ip)


@dsl_user_op
def store_remote(pointer, value, *, loc=None, ip=None):
    llvm.store(value.ir_value(loc=loc, ip=ip), pointer.to_llvm_ptr(loc=loc, ip=ip), loc=loc, ip=ip)


----
"""
BASE = REMOTE + """base = SmemAllocator().allocate(1024, byte_alignment=128)
sA = shared(base, 0, Float32, 64)
rank = cute.arch.block_idx_in_cluster()
"""
MEET = "cute.arch.cluster_arrive()\ncute.arch.cluster_wait()\n"

PULL = BASE + """sA[thread] = x[block * 64 + thread]
cute.arch.cluster_arrive()  # written
cute.arch.cluster_wait()  # for the others
total = Float32(0.0)
for r in cutlass.range_constexpr(4):
    total = total + Float32(load_remote(cute.arch.map_dsmem_ptr(sA.iterator + thread, r)))
cute.arch.cluster_arrive()  # read
cute.arch.cluster_wait()  # until all have read
out[block * 64 + thread] = total
"""
PUSH = BASE + """cute.arch.cluster_arrive_relaxed()  # running
cute.arch.cluster_wait()  # all run
if thread < 4:
    store_remote(cute.arch.map_dsmem_ptr(sA.iterator + rank, thread), x[block])
cute.arch.cluster_arrive()  # pushed
cute.arch.cluster_wait()  # by all
out[block * 64 + thread] = sA[0] + sA[1] + sA[2] + sA[3]
"""
SHAPE = {"cluster": 4, "blocks": 8}


WAY_OF = launch.way_of


@pytest.fixture(params=["as chosen", "strands"], autouse=True)
def way(request, monkeypatch):
    """Both ways to run clusters find the same."""
    if request.param == "strands":
        monkeypatch.setattr(launch, "way_of", lambda source: Team)


def given(n=512):
    return {"x": torch.arange(float(n)), "out": torch.full((n,), 777.0)}


def kinds(report):
    return {f.kind for f in report.findings}


def test_blocks_read_each_others_shared_memory():
    t = given()
    report, source = run(PULL, t, **SHAPE)
    assert report.ok, report
    assert torch.equal(t["out"].view(2, 4, 64), t["x"].view(2, 4, 64).sum(1, keepdim=True).expand(2, 4, 64))
    assert report.counts["blocks"] == 8 and check_subset(source) == []


def test_blocks_write_each_others_shared_memory():
    t = given()
    report, _ = run(PUSH, t, **SHAPE)
    assert report.ok, report
    assert t["out"][:256].eq(6).all() and t["out"][256:].eq(22).all()


@pytest.mark.parametrize("body, old, new, kind, piece", [
    (PULL, "cute.arch.cluster_arrive()  # written\ncute.arch.cluster_wait()  # for the others\n", "", "cluster",
     "total + Float32(load_remote"),
    (PULL, "cluster_arrive()  # written", "cluster_arrive_relaxed()", "cluster", "total + Float32(load_remote"),
    (PULL, "cute.arch.cluster_wait()  # for the others\n", "", "cluster", "total + Float32(load_remote"),
    (PULL, "cute.arch.cluster_wait()  # for the others\n", "", "divergent-barrier", "cluster_arrive()  # read"),
    (PULL, "cute.arch.cluster_arrive()  # read\ncute.arch.cluster_wait()  # until all have read\n", "", "cluster",
     "total + Float32(load_remote"),
    (PULL, "cute.arch.cluster_wait()  # until all have read\n", "", "divergent-barrier", "cluster_arrive()  # read"),
    (PULL, "cute.arch.cluster_arrive()  # read\n", "", "deadlock", "cluster_wait()  # until all"),
    (PULL, "cute.arch.cluster_arrive()  # read\n", "if thread < 40:\n    cute.arch.cluster_arrive()\n", "divergent-barrier",
     "cluster_arrive()\n"),
    (PUSH, "cute.arch.cluster_arrive_relaxed()  # running\ncute.arch.cluster_wait()  # all run\n", "", "cluster",
     "store_remote(cute"),
    (PUSH, "cute.arch.cluster_arrive()  # pushed\ncute.arch.cluster_wait()  # by all\n", "", "cluster", "store_remote(cute"),
    (PUSH, "cluster_arrive()  # pushed", "cluster_arrive_relaxed()", "cluster", "out[block * 64"),
    (PUSH, "iterator + rank, thread", "iterator + thread, thread", "cluster", "store_remote(cute"),
    (PUSH, "iterator + rank, thread", "iterator + rank, thread + 1", "out-of-bounds", "store_remote(cute"),
    (PUSH, "iterator + rank, thread", "iterator + rank + 61, thread", "out-of-bounds", "store_remote(cute"),
])
def test_a_fault_is_found_at_its_line(body, old, new, kind, piece):
    assert old in body
    report, source = run(body.replace(old, new), given(), **SHAPE)
    lines = {n for f in report.findings if f.kind == kind for n in (f.line, f.other_line)}
    first = source.count("\n", 0, source.index("def body_kernel"))
    wanted = next(i for i, line in enumerate((source + "\n").splitlines(True), 1) if i > first and piece in line)
    assert wanted in lines, report


def test_a_block_of_the_cluster_that_does_not_come():
    body = BASE + "if rank > 0:\n    cute.arch.cluster_arrive()\n    cute.arch.cluster_wait()\nout[block * 64 + thread] = x[thread]"
    report, source = run(body, given(), **SHAPE)
    assert kinds(report) == {"divergent-barrier"} and "192 of 256" in str(report), report
    assert report.findings[0].line == line_of(source, "cluster_arrive()")


def test_blocks_that_wait_at_different_barriers_are_stuck():
    body = BASE + "if thread < 32:\n    cute.arch.cluster_arrive()\n    cute.arch.cluster_wait()\ncute.arch.sync_threads()\n" \
                  "if thread >= 32:\n    cute.arch.cluster_arrive()\n    cute.arch.cluster_wait()\nout[thread] = x[thread]"
    report, source = run(body, given(), **SHAPE)
    assert kinds(report) == {"deadlock", "divergent-barrier"}, report
    assert {f.line for f in report.findings} == {line_of(source, "cluster_wait()"), line_of(source, "sync_threads()")}


def test_the_cluster_barrier_orders_global_memory_inside_of_the_cluster():
    body = BASE + "v = x[(block ^ 1) * 64 + thread]\n{}x[block * 64 + thread] = v"
    t = given()
    want = t["x"].view(4, 2, 64).flip(1).flatten()
    report, _ = run(body.format(MEET), t, **SHAPE)
    assert report.ok and torch.equal(t["x"], want), report
    report, _ = run(body.format(""), given(), **SHAPE)
    assert kinds(report) == {"global-race"} and "of one cluster" in str(report)
    report, _ = run(body.replace("block ^ 1", "block ^ 4").format(MEET), given(), **SHAPE)
    assert kinds(report) == {"global-race"} and "of one cluster" not in str(report)


def test_shared_memory_of_a_peer_that_nobody_wrote():
    report, source = run(PULL.replace("sA[thread] =", "if thread < 32:\n    sA[thread] ="), given(), **SHAPE)
    assert kinds(report) == {"uninitialised-shared"}
    assert report.findings[0].line == line_of(source, "total + Float32(load_remote")


def test_where_a_block_is_in_its_cluster():
    text = kernel("""rank = cute.arch.block_idx_in_cluster()
a, b, c = cute.arch.block_in_cluster_idx()
bx, by, bz = cute.arch.block_idx()
p, q, r = cute.arch.cluster_idx()
cx, cy, _ = cute.arch.block_in_cluster_dim()
gx, gy, _ = cute.arch.cluster_dim()
good = rank == a + b * cx
good = good and bx == p * cx + a
good = good and by == q * cy + b
good = good and gx * cx == 4
good = good and gy * cy == 6
good = good and cute.arch.cluster_size() == 6
if thread == 0:
    out[by * 4 + bx] = Float32(rank + 1) if good else Float32(0.0)
""").replace("grid=(1, 1, 1)", "grid=(4, 6, 1), cluster=(2, 3, 1)")
    out = torch.zeros(24)
    report = emulate(text, {"x": torch.zeros(1), "out": out})
    assert report.ok and report.counts["blocks"] == 24, report
    tile = torch.tensor([[1.0, 2], [3, 4], [5, 6]])
    assert torch.equal(out.view(6, 4), tile.repeat(2, 2))


def test_whole_clusters_run():
    source = kernel(PULL, **SHAPE)
    t = given()
    assert emulate(source, t, blocks=(range(4, 8),)).ok and t["out"][:256].eq(777).all() and t["out"][256:].ne(777).all()
    with pytest.raises(EmulationError, match="as a whole"):
        emulate(source, given(), blocks=(range(3, 8),))


@pytest.mark.parametrize("shape, message", [({"cluster": 3, "blocks": 8}, "divide"), ({"cluster": 16, "blocks": 16}, "at most 8")])
def test_clusters_that_cannot_be_launched(shape, message):
    with pytest.raises(EmulationError, match=message):
        run(PULL, given(), **shape)


def test_a_tensor_cannot_lie_in_another_block():
    with pytest.raises(EmulationError, match="dsmem"):
        run(BASE + "r = cute.make_tensor(cute.arch.map_dsmem_ptr(sA.iterator, 0), cute.make_layout(64))", given(), **SHAPE)


@pytest.mark.parametrize("body", [PULL, PUSH])
def test_lockstep_and_strands_judge_mutants_alike(body, monkeypatch):
    source = kernel(body, **SHAPE)
    for mutant in [m for m in mutants(source) if m.kind != "swap"]:  # Statements that are swapped need not run at all.
        found = []
        for chosen in (Clusters, Team):
            monkeypatch.setattr(launch, "way_of", lambda source, chosen=chosen: chosen)
            tensors = given()
            found.append((kinds(emulate(mutant.source, tensors)), tensors["out"]))
        assert bool(found[0][0]) == bool(found[1][0]), mutant  # What a race leads to depends on the order.
        assert found[0][0] or torch.equal(found[0][1], found[1][1]), mutant


def test_kernels_of_clusters_run_in_lockstep_unless_they_meet_under_a_condition():
    assert WAY_OF(kernel(PUSH, **SHAPE)) is Clusters
    assert WAY_OF(kernel(PUSH + "if thread < 32:\n    cute.arch.cluster_arrive()\n", **SHAPE)) is Team
    assert WAY_OF(kernel(PUSH + "cute.arch.barrier(barrier_id=1, number_of_threads=64)\n", **SHAPE)) is Team
