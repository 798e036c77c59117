"""W33: a clone is removed, a read moves behind an in-place write, two names of one buffer are taken for distinct."""
import pytest
import torch

import fusec
from fusec.checker import compiled
from fusec.checker.storage import clone

from .steps import both, right

S, D = 6, 16


def paged(rows=3, **more):
    return dict(x=torch.randn(rows, D), pool=torch.randn(S, D), slots=torch.randperm(S)[:rows], **more)


def old_value_cloned(x, pool, slots):
    old = pool[slots].clone()
    pool[slots] = old * 0.5 + x
    return (old * x).sum(-1)


def old_value_not_cloned(x, pool, slots):
    old = pool[slots]
    pool[slots] = old * 0.5 + x
    return (old * x).sum(-1)


def new_value_read_back(x, pool, slots):
    pool[slots] = pool[slots] * 0.5 + x
    return (pool[slots] * x).sum(-1)


def both_values(x, pool, slots):
    old = pool[slots]
    pool.index_copy_(0, slots, old.abs() + x)
    return pool.index_select(0, slots) - old


def twice(x, pool, slots):
    pool[slots] = pool[slots] + x
    pool[slots] = pool[slots] * 2.0
    return pool[slots].sum(-1)


def window_over_itself(x, window):
    window[:, :, :-1] = window[:, :, 1:].clone()
    window[:, :, -1] = x
    return window.sum(-1)


def window_copied(x, window):
    window.copy_(torch.cat([window[..., 1:], x.unsqueeze(-1)], -1))
    return window.prod(-1)


def window_rolled(x, window):
    new = torch.roll(window, -1, -1)
    new[..., -1] = x
    window.copy_(new)
    return new.amax(-1)


def arithmetic_in_place(x, total):
    before = total * 1.0
    total += x
    total *= 0.25
    return before - total


def view_then_write(x, total):
    head = total[:, :4]
    seen = head * 3.0
    head.copy_(x[:, :4])
    return seen + total[:, :4] + total[:, 4:8]


PAGED = [old_value_cloned, old_value_not_cloned, new_value_read_back, both_values, twice]
WINDOWS = [window_over_itself, window_copied, window_rolled]
PLAIN = [arithmetic_in_place, view_then_write]


@pytest.mark.parametrize("fn", PAGED + WINDOWS + PLAIN, ids=lambda f: f.__name__)
def test_reads_and_writes_keep_their_order(fn, level, device):
    if fn in PAGED:
        given = paged()
    else:
        given = dict(x=torch.randn(3, D), **({"window": torch.randn(3, D, 4)} if fn in WINDOWS else {"total": torch.randn(3, D)}))
    right(fn, given, level)
    (eager, after), (mine, changed) = both(fn, given, level, device)
    assert torch.allclose(mine[0], eager[0], rtol=1e-5, atol=1e-6)
    for name in after:
        assert torch.allclose(changed[name].float(), after[name].float(), rtol=1e-5, atol=1e-6)


def add_into(x, y, total):
    total += x * y
    return total.sum(-1)


def test_one_tensor_passed_twice_is_right_where_it_is_only_read(level, device):
    x, total = torch.randn(3, D), torch.randn(3, D)
    step = compiled(add_into, dict(x=x, y=torch.randn(3, D), total=total), level)
    mine = clone(dict(x=x, y=x, total=total), device)
    out = step(**mine)[0]
    assert torch.allclose(out.cpu(), (total + x * x).sum(-1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("alias", ["x", "y"])
def test_an_example_that_shares_what_is_written_is_refused(alias):
    given = dict(x=torch.randn(3, D), y=torch.randn(3, D), total=torch.randn(3, D))
    given[alias] = given["total"]
    with pytest.raises(fusec.FusecError, match="alias|share|overlap"):
        fusec.compile(add_into, given, arch="sm_90a")


@pytest.mark.gpu
def test_a_call_that_shares_what_is_written_is_refused_and_changes_nothing():
    given = {n: torch.randn(3, D, device="cuda") for n in ("x", "y", "total")}
    artifact = fusec.compile(add_into, {n: t.cpu() for n, t in given.items()})
    whole = torch.randn(7, D, device="cuda")
    before = whole.clone()
    with pytest.raises(fusec.ArgumentError, match="alias|share"):
        artifact(x=whole[:3], y=given["y"], total=whole[:3])
    with pytest.raises(fusec.ArgumentError, match="alias|share"):
        artifact(x=whole[2:5], y=given["y"], total=whole[:3])
    with pytest.raises(fusec.ArgumentError, match="alias|share"):
        artifact(**given, out=given["total"].view(-1)[:3])
    assert torch.equal(whole, before)
    artifact(x=whole[::2][:3], y=given["y"], total=whole[1::2][:3])


@pytest.mark.parametrize("level", ["graph", "kernel"])
def test_a_check_of_tensors_that_share_memory_is_refused(level):
    def step(a, b, x):
        a.mul_(0.5).add_(x)
        return a + b

    wide, apart = torch.randn(3, 16), dict(a=torch.randn(3, 8), b=torch.randn(3, 8), x=torch.randn(3, 8))
    for a, b in ((wide[:, :8], wide[:, :8]), (wide[:, :8], wide[:, 4:12])):
        with pytest.raises(fusec.FusecError, match="arguments a and b alias"):
            fusec.check(step, dict(a=a, b=b, x=apart["x"]), apart, level=level)
    report = fusec.check(step, dict(a=wide[:, :8], b=wide[:, 8:], x=apart["x"]), apart, level=level)
    assert report.ok, str(report)
