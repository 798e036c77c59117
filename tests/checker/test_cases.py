"""Inputs made for checks: the values must stay, and the memory must be as the case says."""
import pytest
import torch

import fusec
from fusec.checker import cases, check_batch_mates, check_file_cases
from fusec.checker.facts import facts
from fusec.checker.storage import key, random_bytes, raw
from fusec.checker.target import target, written_graph

from .graphs import D, inputs, step_graph

FACTS = facts(step_graph())


def test_what_the_graph_says_about_its_arguments():
    assert FACTS.rows == (("x", 0), ("idx", 0), ("window", 0))
    assert FACTS.pools == {"pool": 0} and FACTS.indices == {"idx": (("pool", 0),)}
    assert FACTS.mutated == ("window", "pool") and FACTS.paged == ("pool",)


@pytest.mark.parametrize("rows", [0, 1, 2, 5, 40])
def test_any_number_of_rows(rows):
    made = cases.with_rows(FACTS, inputs(), rows)
    assert made["x"].shape == (rows, D) and made["window"].shape == (rows, D, 3) and made["w"].shape == (D,)
    slots = made["pool"].shape[0]
    assert slots >= max(rows, 11) and len(set(made["idx"].tolist())) == rows and all(0 <= i < slots for i in made["idx"].tolist())
    assert made["x"].dtype == torch.bfloat16 and made["idx"].dtype == torch.int32
    if rows > 1:
        assert not torch.equal(made["x"][0], made["x"][1]) and 0.5 < made["x"].float().std() / inputs()["x"].float().std() < 2


def test_the_layout_of_the_example_is_kept():
    given = dict(inputs(), window=torch.randn(6, 3, D).to(torch.bfloat16).transpose(1, 2))
    assert cases.with_rows(FACTS, given, 4)["window"].stride() == (3 * D, 1, D)


def test_unaligned_rows_start_at_odd_places():
    given = inputs()
    made = cases.unaligned_rows(FACTS, given)
    for name in ("x", "window"):
        assert torch.equal(made[name], given[name]) and made[name].stride(0) % 2 and made[name].storage_offset() % 2
        assert made[name].stride()[1:] == given[name].stride()[1:]
    assert made["idx"] is given["idx"]


def test_slots_lie_apart_and_far():
    given = inputs()
    spaced = cases.spaced_slots(FACTS, given)
    assert spaced["pool"].stride(0) == D + 24 and torch.equal(spaced["pool"], given["pool"])
    far = cases.far_slots(FACTS, given, beyond=5000)
    assert torch.equal(far["pool"], given["pool"]) and 10 * far["pool"].stride(0) > 5000
    assert sorted(far["idx"].tolist()) != sorted(given["idx"].tolist()) or far["idx"].tolist() != given["idx"].tolist()


def test_pools_share_a_page():
    picks = {"idx": (("pool", 0), ("window", 0))}
    known = FACTS.__class__(FACTS.arguments, (("x", 0),), {"pool": 0, "window": 0}, picks, FACTS.mutated)
    given = inputs()
    made = cases.interleaved_pools(known, given)
    assert key(made["pool"]) == key(made["window"])
    for name in ("pool", "window"):
        assert torch.equal(made[name], given[name])
    step = made["pool"].stride(0) * 4
    assert step == made["window"].stride(0) * 2 and step >= 4 * D + 6 * D
    made["pool"].zero_()
    assert torch.equal(made["window"], given["window"]), "a slot of one pool overlaps one of the other"
    assert raw(made["pool"]).numel() >= step * 10


def test_rows_of_a_batch_keep_their_slots():
    given = inputs()
    picked = cases.rows_at(FACTS, given, [4, 1])
    assert torch.equal(picked["x"], given["x"][[4, 1]]) and torch.equal(picked["idx"], given["idx"][[4, 1]])
    assert torch.equal(picked["pool"], given["pool"]) and key(picked["pool"]) != key(given["pool"])


def test_indices_of_either_type_and_any_stride():
    made = cases.with_indices(FACTS, inputs(), torch.int64, 5)
    assert made["idx"].dtype == torch.int64 and made["idx"].stride() == (5,) and torch.equal(made["idx"].int(), inputs()["idx"])


def test_the_cases_that_apply():
    names = [n for n, _ in cases.variants(FACTS, inputs())]
    assert names[:4] == ["0 rows", "1 row", "2 rows", "5 rows"] and "unaligned rows" in names and "permuted slots" in names
    for _, make in cases.variants(FACTS, inputs()):
        first, again = make(), make()
        assert first.keys() == inputs().keys() and all(torch.equal(first[n], again[n]) for n in first)


def tokens(x, scale, key, pages, slot):
    """Rows grouped as tokens of two heads, slots that are pages of four."""
    heads = x.view(scale.shape[0], 2, 8) * scale[:, None, None]
    pages[slot // 4, slot % 4] = key * scale[:, None]
    return heads.sum(-1)


def token_inputs(rows=4):
    g = torch.Generator().manual_seed(rows)
    return dict(x=torch.randn(2 * rows, 8, generator=g), scale=torch.randn(rows, generator=g),
                key=torch.randn(rows, 8, generator=g), pages=torch.randn(3, 4, 8, generator=g),
                slot=torch.randperm(12, generator=g)[:rows])


def test_rows_may_be_grouped_and_slots_divided_into_pages():
    step = fusec.fuse(tokens, example=lambda rows, device: token_inputs(rows))
    known = facts(written_graph(target(step, token_inputs()).stages))
    assert known.per_row("x") == 2 and known.pools == {"pages": 0} and known.capacity("slot", token_inputs()) == 12
    for report in check_file_cases(step, rows=(3,)):
        assert report.ok, str(report)
    assert check_batch_mates(step, token_inputs(), level="graph").ok


def test_random_bytes_hold_no_nan():
    made = random_bytes(1 << 12, torch.device("cpu"), 1)
    for kind in (torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2):
        assert not made.view(kind).float().isnan().any()
    assert len(set(made.tolist())) > 150


def test_rows_are_absent_where_minus_one_says_so():
    def step(pool, slots, other, live):
        mine = slots >= 0
        h = fusec.load_rows(pool, slots, where=mine) * 0.5
        fusec.store_rows_(pool, slots, h, where=mine)
        return h + pool.new_zeros(()) + fusec.load_rows(live, other, where=other < 5)

    given = dict(pool=torch.randn(7, 8), slots=torch.tensor([3, 1, 6]), other=torch.tensor([0, 2, 1]), live=torch.randn(4, 8))
    known = facts(written_graph(target(step, given).stages))
    assert known.may_be_absent("slots", given) and not known.may_be_absent("other", given)
    made = cases.absent(known, given)
    assert made["slots"].tolist() == [-1, 1, -1] and made["other"] is given["other"]
    assert {"absent rows", "all rows absent"} <= {name for name, _ in cases.variants(known, given)}
    assert "absent rows" not in {name for name, _ in cases.variants(FACTS, inputs())}
