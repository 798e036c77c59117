"""W07, C10: query, key and value are columns of one projection, indices are a column of a table: no copy, no other kernel."""
import pytest
import torch

from fusec.checker import compiled
from fusec.checker.storage import clone
from fusec.checker.target import target

from .steps import delta_rule, right

HK, HV, D = 2, 4, 16
INDICES = [pytest.param(torch.int32, id="int32"), pytest.param(torch.int64, id="int64", marks=pytest.mark.slow)]


def projected(qkv, decay, beta, pool, table):
    """qkv [B, (2·HK + HV)·D] is cut here, the slot is the first column of the table [B, 5]."""
    batch = qkv.shape[0]
    q, k, v = torch.split(qkv, [HK * D, HK * D, HV * D], dim=-1)
    q, k = (t.view(batch, HK, D).repeat_interleave(HV // HK, dim=1) for t in (q, k))
    return delta_rule(q, k, v.view(batch, HV, D), decay, beta, pool, table[:, 0])


def rest(batch, slots=9):
    return dict(decay=-torch.rand(batch, HV, D), beta=torch.rand(batch, HV), pool=torch.randn(slots, HV, D, D))


def table(batch, dtype, slots=9):
    found = torch.full((batch, 5), 77, dtype=dtype)  # The other columns name pages that this pool does not have.
    found[:, 0] = torch.randperm(slots)[:batch]
    return found


@pytest.mark.parametrize("index", INDICES)
def test_cut_inside_of_the_function(index, level):
    def make(batch):
        return dict(qkv=torch.randn(batch, (2 * HK + HV) * D).bfloat16(), table=table(batch, index), **rest(batch))
    goal = target(projected, make(4))
    for batch in (1, 7):
        right(goal, make(batch), level)
    strides = {a.name: a.strides for a in goal.stages.need("graph").arguments}
    assert strides["qkv"] == (None, 1) and strides["table"][0] is None and not goal.layouts


@pytest.mark.parametrize("index", INDICES)
def test_cut_by_the_caller(index, level, device):
    """Views of one storage as arguments: the kernel that dense tensors were captured for takes them as they lie."""
    def make(batch, dense):
        qkv = torch.randn(batch, 3 * HV * D).bfloat16()
        q, k, v = (t.view(batch, HV, D) for t in qkv.split(HV * D, dim=-1))
        made = dict(q=q, k=k, v=v, slots=table(batch, index)[:, 0], **rest(batch))
        return {n: t.contiguous() for n, t in made.items()} if dense else made
    goal = target(delta_rule, make(4, True))
    for batch in (1, 7):
        right(goal, make(batch, False), level)
    assert not goal.layouts, "no other capture, so no other kernel"
    given = make(7, False)
    mine, dense = clone(given, device), {n: t.clone() for n, t in clone(given, device).items()}
    step = compiled(goal, given, level)
    assert torch.equal(step(**mine)[0], step(**dense)[0]) and torch.equal(mine["pool"], dense["pool"])
