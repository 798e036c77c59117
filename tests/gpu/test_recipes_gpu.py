"""On a device: the four recipes, at every size and in every layout that a serving engine calls them with."""
from __future__ import annotations

import pytest
import torch

import fusec
from fusec.checker import cases, check, check_batch_mates, check_file_cases
from fusec.checker.facts import facts
from fusec.checker.storage import clone, owned_bytes, raw
from fusec.checker.target import target, written_graph
from fusec.recipes.gla_decode import gla_decode
from fusec.recipes.kimi_k3_decode import kda_decode
from fusec.recipes.rmsnorm import add_rmsnorm_quant
from fusec.recipes.short_conv import short_conv

pytestmark = pytest.mark.gpu

SIZES = [(96, r) for r in (1, 4, 8, 32, 128)] + [(48, r) for r in (1, 4, 32, 128)] + [(32, r) for r in (1, 4, 32, 128)] + [
    (24, r) for r in (1, 4, 32, 64)] + [(12, r) for r in (1, 4, 32, 256)]
"""(heads, rows) of the fused step in use: 21 of them."""

FULL = [pytest.param(kda_decode, dict(H=12), id="kda_decode fp32"),
        pytest.param(kda_decode, dict(H=12, state="bf16"), id="kda_decode bf16"),
        pytest.param(gla_decode, {}, id="gla_decode"), pytest.param(short_conv, {}, id="short_conv"),
        pytest.param(add_rmsnorm_quant, {}, id="add_rmsnorm_quant")]
SMALL = [pytest.param(kda_decode, dict(H=1, D=16), id="kda_decode fp32"),
         pytest.param(kda_decode, dict(H=1, D=16, state="bf16"), id="kda_decode bf16"),
         pytest.param(gla_decode, dict(H=1, K=16, V=32), id="gla_decode"), pytest.param(short_conv, dict(C=40), id="short_conv"),
         pytest.param(add_rmsnorm_quant, dict(D=256), id="add_rmsnorm_quant")]
PAGED = [p for p in FULL if p.values[0] in (kda_decode, gla_decode)]


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(5)
    yield
    torch.cuda.empty_cache()


@pytest.fixture(scope="module")
def goals():
    """Targets by recipe and sizes: captured and built once."""
    made = {}

    def get(fn, sizes):
        key = fn.reference.__name__, tuple(sorted(sizes.items()))
        if key not in made:
            example = fn.inputs(4, **sizes)
            goal = target(fn, example, example)
            made[key] = goal, facts(written_graph(goal.stages)), example
        return made[key]
    return get


@pytest.mark.parametrize("state", ["fp32", "bf16"])
@pytest.mark.parametrize("H, rows", SIZES)
def test_kda_decode_at_the_sizes_in_use(H, rows, state, goals):
    goal, _, _ = goals(kda_decode, dict(H=H, state=state))
    report = check(goal, kda_decode.inputs(rows, device="cuda", H=H, state=state), level="gpu")
    assert report.ok, str(report)
    assert not report.notes, report.notes


@pytest.mark.parametrize("fn, sizes", FULL)
def test_every_case_passes(fn, sizes):
    for report in check_file_cases(fn, "gpu", sizes=sizes):
        assert report.ok, str(report)


@pytest.mark.parametrize("rows", [65_535, 65_536, 70_000])
@pytest.mark.parametrize("fn, sizes", SMALL)
def test_very_many_rows(fn, sizes, rows, goals):
    goal, known, example = goals(fn, sizes)
    report = check(goal, cases.with_rows(known, clone(example, "cuda"), rows), level="gpu")
    assert report.ok, str(report)


@pytest.mark.parametrize("fn, sizes", FULL)
def test_bits_do_not_depend_on_the_mates(fn, sizes):
    for rows in (2, 7, 64):
        report = check_batch_mates(fn, fn.inputs(rows, device="cuda", **sizes), level="gpu")
        assert report.ok, str(report)


@pytest.mark.parametrize("fn, sizes", PAGED)
def test_far_slots_give_the_bits_of_near_ones(fn, sizes, goals):
    """Slots beyond 2^31 elements, of every pool that is updated, against the same rows in the example's pool."""
    goal, known, example = goals(fn, sizes)
    near = cases.renumbered(known, cases.with_rows(known, clone(example, "cuda"), 4, slots=8), seed=3)
    far = cases.far_slots(known, near, seed=3)
    assert all(torch.equal(near[name], far[name]) for name in known.indices)
    artifact = fusec.compile(fn.reference, example)
    first, second = clone(near), dict(far)
    wanted, found = artifact(**first), artifact(**second)
    assert torch.equal(wanted, found)
    for pool, dim in known.pools.items():
        if pool not in known.mutated:
            continue
        assert far[pool].stride(dim) * (far[pool].shape[dim] - 1) > 2 ** 31
        index = next(i for i, picked in known.indices.items() if (pool, dim) in picked)
        assert torch.equal(first[pool].index_select(dim, near[index].long()), second[pool].index_select(dim, far[index].long()))
        free = [s for s in range(far[pool].shape[dim]) if s not in far[index].tolist()]
        assert torch.equal(near[pool].index_select(dim, torch.tensor(free, device="cuda")),
                           second[pool].index_select(dim, torch.tensor(free, device="cuda")))


@pytest.mark.parametrize("fn, sizes", FULL)
def test_three_steps_in_a_row(fn, sizes, goals):
    """The state that one step leaves is what the next one starts from; against eager mode, and nothing else in memory moves."""
    goal, known, example = goals(fn, sizes)
    artifact = fusec.compile(fn.reference, example)
    mine = cases.spaced_slots(known, clone(cases.with_rows(known, example, 5), "cuda"))
    eager = clone(mine)
    for turn in range(3):
        fresh = cases.with_rows(known, example, 5, seed=90 + turn)
        moving = {n: t.to("cuda") for n, t in fresh.items() if n not in known.mutated and n not in known.indices}
        artifact(**{**mine, **moving})
        fn.reference(**{**eager, **moving})
    for name in known.mutated:
        a, b = mine[name].float(), eager[name].float()
        assert ((a - b).abs() <= 2e-2 * b.abs() + 2e-3).all(), name
        if name in known.pools:
            same = raw(mine[name]) == raw(eager[name])
            between = ~owned_bytes([(mine[name], torch.ones_like(mine[name], dtype=torch.bool))], raw(mine[name]))
            assert bool(same[between].all()), f"{name}: bytes between its slots"


@pytest.mark.parametrize("fn, sizes", FULL)
def test_repeated_calls_give_the_same_bits(fn, sizes):
    given = fn.inputs(33, device="cuda", **sizes)
    artifact = fusec.compile(fn.reference, fn.inputs(4, **sizes))
    ends = []
    for _ in range(20):
        mine = clone(given)
        out = artifact(**mine)
        ends.append([*(out if isinstance(out, tuple) else (out,)), *(mine[n] for n in artifact.graph.mutated)])
    assert all(torch.equal(raw(a), raw(b)) for end in ends[1:] for a, b in zip(ends[0], end, strict=True))
