"""Planted faults: every mutant of a rendered kernel that changes its meaning is noticed; survivors are listed, with the reason."""
import pytest

from fusec.codegen.render import render
from fusec.emulate.mutants import Case, far, high, judge, mutants

from ..codegen.specs import CASES
from .support import kernel

SURVIVORS = {
    # case: {what the mutated line says: why it means the same}
    "conv": {"load_part(gWindow, part(rTaps, 0, (3,), (1,)))": "swapped with the load of another element of the fragment"},
    "delta": {"index = cutlass.max(index, Int64(0))": "slots of rows that take no part are not used under their predicate"},
}


def verdicts(name, arch):
    spec, inputs, _ = CASES[name]
    built = spec(arch)
    source = render(built)
    cases = [lambda: Case(inputs(5)), lambda: far(built.parameters, inputs(3, 1)),
             lambda: high(built.parameters, inputs(3, 1), "rows")]
    return source, judge(source, cases, built.parameters, arch)


@pytest.mark.mutants
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("name", CASES)
def test_every_mutant_is_noticed_or_explained(name, arch):
    source, found = verdicts(name, arch)
    lines = source.splitlines()
    survivors = {lines[v.mutant.line - 1].strip(): str(v) for v in found if not v.caught}
    assert len(found) > 10
    assert set(survivors) == set(SURVIVORS.get(name, {})), "\n".join(survivors.values())


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
