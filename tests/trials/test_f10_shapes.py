"""F10: every dim of every argument is checked before a launch, indices included, with what was expected and what was given."""
import pytest
import torch

import fusec
from fusec.checker.storage import clone

from .steps import delta_inputs, delta_rule

R, S, H, K = 3, 6, 2, 16


def with_lead(g, x, pool, slots):
    """g [1, R, H, K], x [R, H, K], pool [S, H, K] in place."""
    h = pool[slots] * torch.exp(g[0]) + x
    pool[slots] = h
    return h.sum(-1)


def given(rows=R):
    return dict(g=-torch.rand(1, rows, H, K), x=torch.randn(rows, H, K), pool=torch.randn(S, H, K), slots=torch.randperm(S)[:rows])


WRONG = {
    "g with its dims in another order": ("g", lambda t: t.transpose(0, 1).contiguous()),
    "g with a row too few": ("g", lambda t: t[:, :-1].clone()),
    "g without its leading dim": ("g", lambda t: t[0].clone()),
    "x with a head too few": ("x", lambda t: t[:, :1].clone()),
    "x with half a row": ("x", lambda t: t[..., :8].clone()),
    "x of another dtype": ("x", lambda t: t.to(torch.float16)),
    "an index too few": ("slots", lambda t: t[:-1].clone()),
    "indices as floats": ("slots", lambda t: t.to(torch.float32)),
    "indices with two dims": ("slots", lambda t: t.unsqueeze(-1)),
    "a pool with another inner size": ("pool", lambda t: torch.randn(S, H, 2 * K)),
    "a pool without heads": ("pool", lambda t: torch.randn(S, K)),
    "a pool of another dtype": ("pool", lambda t: t.to(torch.bfloat16)),
}


def expect(call, name):
    with pytest.raises(fusec.ArgumentError) as caught:
        call()
    text = str(caught.value)
    assert f"argument {name}" in text and "expected" in text and "given" in text, text


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_argument_is_named(case):
    """Through the checker, which takes what a call takes."""
    name, spoil = WRONG[case]
    good = given()
    bad = dict(good, **{name: spoil(good[name])})
    before = clone(bad)
    with pytest.raises(fusec.ArgumentError) as caught:
        fusec.check(with_lead, bad, good)
    text = str(caught.value)
    others = {"g", "x", "slots"} if "few" in case else {name}
    assert any(f"argument {n}" in text for n in others) and "expected" in text and "given" in text, text
    assert all(torch.equal(before[n], bad[n]) for n in bad)


@pytest.mark.gpu
@pytest.mark.parametrize("case", WRONG)
def test_a_call_is_refused_before_anything_changes(case):
    name, spoil = WRONG[case]
    good = given()
    artifact = fusec.compile(with_lead, good)
    mine = clone(dict(good, **{name: spoil(good[name])}), "cuda")
    before = clone(mine)
    with pytest.raises(fusec.ArgumentError) as caught:
        artifact(**mine)
    assert "expected" in str(caught.value) and "given" in str(caught.value)
    assert all(torch.equal(before[n], mine[n]) for n in mine)


def test_a_missing_argument_is_named():
    good = given()
    with pytest.raises(fusec.ArgumentError, match="slots"):
        fusec.check(with_lead, {n: t for n, t in good.items() if n != "slots"}, good)


@pytest.mark.parametrize("lost", ["beta", "decay"])
def test_a_head_is_missing(lost):
    good = delta_inputs(R, S)
    bad = dict(good, **{lost: good[lost][:, :1].clone()})
    with pytest.raises(fusec.ArgumentError, match=f"argument {lost}: expected .*given"):
        fusec.check(delta_rule, bad, good)
