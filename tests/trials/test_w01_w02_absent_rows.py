"""W01, W02: a row that takes no part reads and writes no state, for every dtype of it, and its output is what the function says."""
import pytest
import torch
import torch.nn.functional as F

import fusec
from fusec.checker import compiled
from fusec.checker.storage import clone
from fusec.checker.target import target

from .steps import delta_inputs, right


def step(q, k, v, decay, beta, pool, slots):
    """delta_rule with rows that take no part: those with a negative slot."""
    live = slots >= 0
    h = fusec.load_rows(pool, slots, where=live).float() * torch.exp(decay).unsqueeze(-2)
    found = torch.einsum("rhvk,rhk->rhv", h, k.float())
    h = h + ((v.float() - found) * beta.unsqueeze(-1)).unsqueeze(-1) * k.float().unsqueeze(-2)
    fusec.store_rows_(pool, slots, h, where=live)
    return torch.where(live.view(-1, 1, 1), torch.einsum("rhvk,rhk->rhv", h, q.float()), 0).to(v.dtype)


def masked(x, live, index, pool, out_gate):
    """The predicate is an argument of its own, the index of an absent row anything; read again after the write."""
    old = fusec.load_rows(pool, index, where=live)
    fusec.store_rows_(pool, index, old.float() * 0.5 + x, where=live)
    return fusec.load_rows(pool, index, where=live).float() * out_gate, old


def paged(x, table, seen, pool):
    """An index of two dims: the pages of each row's table, as many as the row has."""
    live = torch.arange(table.shape[1], device=table.device) < seen.unsqueeze(-1)
    return (fusec.load_rows(pool, table, where=live).float() * x.unsqueeze(1)).sum(1)


def conv_then_delta(x, window, weight, k, pool, slots):
    """A convolution over a paged window, SiLU, then a state; everything of a padded row is 0."""
    live = slots >= 0
    full = torch.cat([fusec.load_rows(window, slots, where=live), x.unsqueeze(-1)], -1)
    fusec.store_rows_(window, slots, full[..., 1:], where=live)
    y = F.silu((full.float() * weight).sum(-1))
    h = fusec.load_rows(pool, slots, where=live) * 0.9 + y.unsqueeze(-1) * k.float().unsqueeze(1)
    fusec.store_rows_(pool, slots, h, where=live)
    return torch.where(live.unsqueeze(-1), (h * k.float().unsqueeze(1)).sum(-1), 0.0)


PLACES = {"mixed": [3, -1, 0, -1], "first": [-1, 5, 2, 0], "last": [4, 0, 1, -1], "all": [-1] * 4, "none": [5, 0, 3, 1]}


@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_absent_rows_leave_every_slot_as_it_was(state, level, device):
    goal = target(step, delta_inputs(4, 6, H=1, state=state))
    run = compiled(goal, goal.example, level)
    for name, places in PLACES.items():
        slots = torch.tensor(places, dtype=torch.int64)
        given = dict(delta_inputs(4, 6, H=1, state=state), slots=slots)
        right(goal, given, level)
        mine = clone(given, device)
        out = run(**mine)[0].cpu()
        kept = [s for s in range(6) if s not in places]
        assert torch.equal(mine["pool"].cpu()[kept], given["pool"][kept]), name
        assert (out[slots < 0] == 0).all() and (out[slots >= 0].abs().amax((1, 2)) > 0).all(), name
        assert all(not torch.equal(mine["pool"][s].cpu(), given["pool"][s]) for s in places if s >= 0), name


@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=["int32", "int64"])
def test_an_absent_rows_index_is_never_followed(index, level, device):
    """Numbers far outside of the pool, and slots of live rows: a column of a table, so strided."""
    garbage = [2**31 - 1, 1, -2**31, 77] if index == torch.int32 else [2**40, 1, -2**62, 77]
    table = torch.zeros(6, 3, dtype=index)
    table[:, 1] = torch.tensor([4, garbage[0], 1, garbage[1], garbage[2], garbage[3]], dtype=index)
    live = torch.tensor([True, False, True, False, False, False])
    given = dict(x=torch.randn(6, 5, 8), live=live, index=table[:, 1], pool=torch.randn(5, 5, 8).bfloat16(), out_gate=torch.rand(8))
    goal = target(masked, given)
    right(goal, given, level)
    if level == "kernel":
        right(goal, given, "emulate")
    mine = clone(given, device)
    out, old = (t.cpu() for t in compiled(goal, given, level)(**mine))
    assert (out[~live] == 0).all() and (old[~live] == 0).all()
    assert torch.equal(mine["pool"].cpu()[[0, 2, 3]], given["pool"][[0, 2, 3]])
    eager = clone(given)
    wanted = masked(**eager)
    assert torch.equal(eager["pool"][[0, 2, 3]], given["pool"][[0, 2, 3]]) and (wanted[0][~live] == 0).all()
    torch.testing.assert_close(mine["pool"].cpu(), eager["pool"], rtol=1e-2, atol=1e-3)


def test_an_index_of_two_dims(level):
    given = dict(x=torch.randn(3, 8), table=torch.tensor([[2, 0, -1], [-1, -1, -1], [1, 5, 4]]), seen=torch.tensor([2, 0, 3]),
                 pool=torch.randn(6, 8))
    right(paged, given, level)


def test_padded_rows_of_a_batch_are_zero_and_finite(level, device):
    """W02: what lay in the output's memory before is seen nowhere, through a reduction over the batch either."""
    live = 3
    slots = torch.full((8,), -1)
    slots[:live] = torch.randperm(9)[:live]
    given = dict(x=torch.randn(8, 24).bfloat16(), window=torch.randn(9, 24, 3).bfloat16(), weight=torch.randn(24, 4),
                 k=torch.randn(8, 16).bfloat16(), pool=torch.randn(9, 24, 16), slots=slots)
    goal = target(conv_then_delta, given)
    right(goal, given, level)
    given["x"][live:], given["k"][live:] = float("nan"), float("inf")
    poison = [torch.full((8, 24), float("nan"), device=device) for _ in range(4)]
    del poison
    mine = clone(given, device)
    out = compiled(goal, given, level)(**mine)[0]
    assert torch.isfinite(out.abs().amax()) and (out[live:] == 0).all()
    assert torch.isfinite(mine["pool"]).all() and torch.isfinite(mine["window"].float()).all()


def test_eager_mode_says_what_is_wrong():
    pool = torch.zeros(3, 4)
    for index, where, said in ((torch.tensor([0.0]), None, "int32 or int64"),
                               (torch.tensor([0]), torch.tensor([1]), "expected bool"),
                               (torch.tensor([0, 1]), torch.ones(3, dtype=torch.bool), "expected the shape of the index")):
        with pytest.raises(fusec.ArgumentError, match=said):
            fusec.load_rows(pool, index, where=where)
    assert fusec.store_rows_(pool, torch.tensor([1, 9]), 1.0 + pool[:2], where=torch.tensor([True, False])) is pool
    assert pool.sum(1).tolist() == [0, 4, 0]
    fp8 = torch.ones(3, 4).to(torch.float8_e4m3fn)
    assert fusec.load_rows(fp8, torch.tensor([-1, 2]), where=torch.tensor([False, True])).float().tolist() == [[0.0] * 4, [1.0] * 4]


def test_torch_export_of_others_keeps_the_mutation():
    """F07: captured by torch.export, not by us, the write is still one to the pool."""
    class Step(torch.nn.Module):
        def forward(self, pool, index, value):
            fusec.store_rows_(pool, index, value, where=index >= 0)
            return fusec.load_rows(pool, index, where=index >= 0)
    pool, index, value = torch.zeros(4, 3), torch.tensor([2, -1]), torch.ones(2, 3)
    program = torch.export.export(Step(), (pool, index, value))
    out = program.module()(pool, index, value)
    assert pool.sum(1).tolist() == [0, 0, 3, 0] and out.sum(1).tolist() == [3, 0]
    step, pool = torch.compile(Step(), fullgraph=True, backend="aot_eager"), torch.zeros(4, 3)
    assert step(pool, index, value).sum(1).tolist() == [3, 0] and pool.sum(1).tolist() == [0, 0, 3, 0]
