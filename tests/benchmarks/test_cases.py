"""What is timed: the grid, inputs as sets, bytes; every function's inputs fit what is compiled, and its graph agrees with eager."""
import pytest
import torch

from benchmarks import agree, candidates, cases, criteria, grid
from fusec.checker.levels import interpreted
from fusec.runtime.artifact import Artifact

from . import small

REDUCTIONS = tuple(n for n in grid.FUNCTIONS if small.subject(n).splits)


def test_every_function_is_a_shipped_recipe_and_the_grid_has_its_sizes():
    every = grid.cases(every=True)
    assert {c.subject.name for c in every} == set(grid.FUNCTIONS) == set(small.SIZES)
    assert sum(c.group == "kda" for c in every) == 2 * 21
    for subject in grid.subjects(every):
        assert subject.fused().reference.__name__ == subject.function
        assert {n for n, _ in subject.sizes} <= set(subject.fused().sizes())
        assert subject.splits is None or {"H", "S", "D"} <= {n for n, _ in subject.sizes}
    assert len({(c.subject.name, c.label, c.rows) for c in every}) == len(every)


def test_a_run_can_be_cut_by_group_and_by_function():
    assert {c.subject.name for c in grid.cases(only=["gla_decode"])} == {"gla_decode"}
    assert {c.group for c in grid.cases(groups=["rows", "splits"])} == {"rows", "splits"}
    assert [c for c in grid.cases(only=["gla_decode"], groups=["splits"])] == []
    assert {c.group for c in grid.cases()} == set(grid.GROUPS)
    assert {c.subject.recipe for c in grid.cases(only=["kda_decode"])} == {"kimi_k3_decode"}


def test_criteria_name_functions_of_the_grid_and_find_rows():
    named = {f for c in criteria.CRITERIA for f in (getattr(c, "functions", ()) or (c.function, c.other))}
    assert named <= set(grid.FUNCTIONS)
    assert set(criteria.RECURRENCES) == {c.subject.name for c in grid.cases(groups=["recurrences"])}
    assert set(criteria.REDUCTIONS) == {c.subject.name for c in grid.cases(groups=["splits"])}
    for case in grid.cases():
        if case.subject.name in criteria.RECURRENCES or case.group == "splits":
            assert case.subject.floor == "probe"
        elif case.group == "rows":
            assert case.subject.floor == "copy"
    v4 = {(c.label, c.tokens) for c in grid.cases(only=["reduce_unrotate_quant"]) if c.tokens == 128}
    assert len(v4) == 2 and v4 <= {(c.label, c.tokens) for c in grid.cases(only=["reduce_natural"])}


@pytest.mark.parametrize("bytes_moved, sets", [(1, 256), (1_000_000, 200), (150_000_000, 2), (10**10, 2)])
def test_a_round_touches_enough(bytes_moved, sets):
    assert cases.set_count(bytes_moved) == sets


def test_sets_share_pools_and_have_rows_and_slots_of_their_own():
    inputs = small.inputs("gla_decode", 2, 3)
    assert len(inputs.sets) == len(inputs.outputs) == 3 and inputs.mutated == ("pool",)
    assert {s["pool"].data_ptr() for s in inputs.sets} == {inputs.sets[0]["pool"].data_ptr()}
    slots = [slot for s in inputs.sets for slot in s["idx"].tolist()]
    assert len(set(slots)) == 6 and 0 not in slots and max(slots) < inputs.sets[0]["pool"].shape[0]
    assert all(s["q"].shape == (2, 2, 12) for s in inputs.sets)
    assert len({s["q"].data_ptr() for s in inputs.sets}) == 3
    assert all(o.shape == (2, 2, 20) and bool((o == 776).all()) for o in inputs.outputs)


def test_moved_is_what_the_step_moves():
    state, vectors = 2 * 12 * 20 * 4, 2 * (12 * 2 * 2 + 12 * 4 + 20 * 2 * 2)
    assert cases.moved(small.artifact("gla_decode"), small.case("gla_decode", 7)) == 7 * (2 * state + vectors + 8)
    quantised = small.artifact("add_rmsnorm_quant")
    assert cases.moved(quantised, small.case("add_rmsnorm_quant", 4096)) == 4096 * (64 * 7 + 4) + 64 * 2


def test_moved_of_a_reduction_is_what_its_tokens_use():
    artifact, heads, dim = small.artifact("reduce_natural"), 2, 64
    each = heads * (dim * 2 + 4)
    for full, used in ((True, 5 * 20), (False, 2 + 6 + 10 + 14 + 18)):
        case = small.case("reduce_natural", 5, full=full)
        assert cases.used_splits(case) == used
        assert cases.moved(artifact, case) == used * each + 5 * 4 + 5 * heads * (dim * 2 + 4)
    # Twice as many tokens in a row, results in fp8 and packed exponents, two tables of 32 numbers at each token's position.
    v4 = small.case("reduce_unrotate_quant", 3, full=True)
    assert v4.tokens == 6 and cases.used_splits(v4) == 6 * 4
    assert small.case("reduce_max_sum", 1, full=True).subject.splits.scalars == 2


@pytest.mark.parametrize("name", REDUCTIONS)
def test_tokens_of_every_set_use_the_same_splits_in_all(name):
    case, inputs = small.case(name, 4), small.inputs(name, 4, 3)
    splits = dict(case.subject.sizes)["S"]
    for part in inputs.sets:
        counts = cases.counts(case, part)
        assert counts.dtype == torch.int32 and counts.shape == (case.tokens,)
        assert counts.sum() == cases.used_splits(case) and 1 <= counts.min() and counts.max() <= splits
        view = case.subject.splits.view(part["partial"], case.tokens)
        assert view.shape == (case.tokens, *(dict(case.subject.sizes)[n] for n in "HSD")) and view.stride(-1) == 1
        assert view.data_ptr() == part["partial"].data_ptr()


@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_reduction_reads_just_the_splits_that_are_counted(name):
    """What the view and the counts leave out changes nothing, what they name last does."""
    case, inputs = small.case(name, 3), small.inputs(name, 3, 1)
    artifact, first = small.artifact(name), inputs.sets[0]
    view, counts = case.subject.splits.view(first["partial"], case.tokens), cases.counts(case, first)
    want = [t.float().clone() for t in agree.leaves(artifact.reference(**first))]
    token = int(counts.argmin())
    view[token, :, int(counts[token]):] = float("nan")
    for got, w in zip(agree.leaves(artifact.reference(**first)), want):
        assert torch.equal(got.float(), w)
    view[token, :, int(counts[token]) - 1] = 100.0
    assert not torch.equal(agree.leaves(artifact.reference(**first))[0].float(), want[0])


@pytest.mark.parametrize("name", grid.FUNCTIONS)
def test_inputs_of_every_function_fit_and_the_graph_agrees_with_eager(name, monkeypatch):
    """The calls that are timed pass the contract of the compiled function, and are those that it was compiled for."""
    artifact = small.artifact(name)

    def graph_alone(arguments):
        found = interpreted(artifact.graph, {n: t for n, t in arguments.items() if isinstance(t, torch.Tensor)}, "f64")
        return tuple(found[n] for n in artifact.graph.outputs)

    def forbidden(*args):
        raise AssertionError("captured anew")

    monkeypatch.setattr(Artifact, "_launches", lambda self, *args: ())
    monkeypatch.setattr(artifact, "_recapture", forbidden)
    monkeypatch.setattr(artifact, "device_type", "cpu")
    for rows in (1, 3):
        case, inputs = small.case(name, rows), small.inputs(name, rows, 2)
        assert candidates.differing(case, artifact, inputs, graph_alone) == ""
        for part, outputs in zip(inputs.sets, inputs.outputs):
            assert artifact(**part, out=outputs) is not None
