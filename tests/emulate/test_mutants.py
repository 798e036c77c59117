"""Planted faults: every mutant of a rendered kernel that changes its meaning is noticed; survivors are listed, with the reason."""
import pytest
import torch

from fusec.codegen.render import render
from fusec.emulate.judge import Case, far, high, judge
from fusec.emulate.mutants import mutants

from ..codegen.specs import CASES
from .support import kernel, unexplained
from .test_async import RING, ROLES
from .test_clusters import PULL

def verdicts(name, arch):
    spec, inputs, _ = CASES[name]
    built = spec(arch)
    source = render(built)
    cases = [lambda: Case(inputs(5)), lambda: far(built.parameters, inputs(3, 1)),
             lambda: high(built.parameters, inputs(3, 1), built.launch.grid[0])]
    return source, judge(source, cases, built.parameters, arch)


@pytest.mark.mutants
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("name", CASES)
def test_every_mutant_is_noticed_or_explained(name, arch):
    source, found = verdicts(name, arch)
    assert len(found) > 10
    assert unexplained(source, found) == []


def test_each_kind_is_planted_and_noticed():
    _, found = verdicts("delta", "sm_90a")
    assert {v.mutant.kind for v in found} == {"barrier", "buffer", "swap", "product", "predicate"}
    caught = {(v.mutant.kind, v.caught.split(":")[0].split(" ")[0]) for v in found}
    assert {("barrier", "shared-race"), ("buffer", "out-of-bounds"), ("product", "out-of-bounds")} <= caught
    assert any(kind == "predicate" for kind, _ in caught)


def test_mutants_are_single_changes():
    source = kernel("base = SmemAllocator().allocate(1024)\nsA = shared(base, 0, Float32, 64)\nsA[thread] = x[thread]\n"
                    "cute.arch.sync_threads()\nif thread < 5:\n    out[thread] = sA[thread + 1]")
    kinds = [m.kind for m in mutants(source)]
    assert kinds.count("barrier") == 1 and kinds.count("buffer") == 1 and kinds.count("predicate") == 1
    assert len({m.source for m in mutants(source)}) == len(kinds)


FRAGMENT = "r = cute.make_rmem_tensor((2,), Float32)\nr.fill(0.0)\n"


@pytest.mark.parametrize("body, proven", [
    ("v = x[thread]\nif thread < 5:\n    v = v + 1.0\nif thread < 5:\n    out[thread] = v", True),
    ("v = x[thread]\nif x[thread] >= 0.0:\n    v = v + 1.0\nout[thread] = v", True),
    (FRAGMENT + "if thread < 5:\n    r[0] = x[thread]\nif thread < 5:\n    out[thread] = r[0]", True),
    (FRAGMENT + "if thread < 9:\n    r[0] = x[thread] * 0.0\nif thread < 12:\n    out[thread] = r[0]", False),
])
def test_a_predicate_is_proven_to_mean_nothing_only_where_it_does(body, proven):
    def inputs():
        return Case({"x": torch.arange(64.0), "out": torch.zeros(64)})
    first = next(v for v in judge(kernel(body), [inputs]) if v.mutant.kind == "predicate")
    assert not first.caught and bool(first.reason) == proven


@pytest.mark.parametrize("body, shape, kinds", [
    (RING, {}, {"barrier", "wait", "predicate", "swap"}), (ROLES, {"threads": 128}, {"barrier", "predicate", "swap"}),
    (PULL, {"cluster": 4, "blocks": 8}, {"barrier"})])
def test_dropped_waits_and_barriers_of_all_kinds_are_noticed(body, shape, kinds):
    def inputs():
        return Case({"x": torch.arange(512.0), "out": torch.zeros(512)})
    found = judge(kernel(body, **shape), [inputs])
    assert kinds <= {v.mutant.kind for v in found}
    assert [str(v) for v in found if v.mutant.kind in ("barrier", "wait") and not v.caught] == []


def test_a_dropped_wait_of_a_dependent_launch_is_noticed():
    def inputs():
        return Case({"x": torch.arange(64.0), "out": torch.zeros(64)}, dependent=("x",))
    verdict, = judge(kernel("cute.arch.griddepcontrol_wait()\nout[thread] = x[thread]"), [inputs])
    assert verdict.mutant.kind == "wait" and verdict.caught == "dependent"
