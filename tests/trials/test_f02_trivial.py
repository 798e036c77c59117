"""F02: nothing is left after dead code is gone: a function that returns its input, a constant, a view, or only writes."""
import pytest
import torch

import fusec

from .steps import right


def identity(x):
    return x


def two_of_one(x):
    return x, x


def constant(x):
    return torch.full((4,), 2.5)


def constant_like(x):
    return torch.ones_like(x) * 0.5


def pure_view(x):
    return x.view(x.shape[0], 4, -1).transpose(1, 2)


def slice_of_it(x):
    return x[:, 3:9]


def nothing(x):
    return None


def unused_result(x, state):
    state.sum(-1)
    return x * 2.0


def only_writes(x, state):
    state.add_(x)


def writes_and_drops(x, state):
    new = state * 0.5 + x
    state.copy_(new)
    (new * 3).sum()


def writes_a_constant(x, state):
    state.fill_(0.25)
    return x + 1.0


def writes_what_was_there(x, state):
    state.copy_(state)
    return x + 1.0


def dead_branch(x, state):
    y = torch.exp(x)
    del y
    state.mul_(2.0)
    return state


WITH_STATE = [unused_result, only_writes, writes_and_drops, writes_a_constant, writes_what_was_there, dead_branch]
PLAIN = [identity, two_of_one, constant, constant_like, pure_view, slice_of_it, nothing]


@pytest.mark.parametrize("fn", PLAIN, ids=lambda f: f.__name__)
def test_it_works_or_says_why_not(fn, level):
    try:
        right(fn, dict(x=torch.randn(3, 16)), level)
    except fusec.FusecError as refusal:
        assert fn not in (slice_of_it, constant_like), f"this one is ordinary: {refusal}"
        assert len(str(refusal)) > 20


@pytest.mark.parametrize("fn", WITH_STATE, ids=lambda f: f.__name__)
def test_state_that_is_written_is_written(fn, level):
    report = right(fn, dict(x=torch.randn(3, 16), state=torch.randn(3, 16)), level)
    if fn not in (unused_result, writes_what_was_there):
        assert any(c.name == "state" for c in report.compared), "the write was taken for dead code"
