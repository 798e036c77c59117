"""F09: Python values in nested helpers, configurations, defaults and keywords are folded as constants and are part of the key."""
import math
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch

from fusec.checker.entry import target
from fusec.runtime.identity import graph_key

from .steps import right


def shifted(x: int) -> int:
    return 1 << (12 - x)


class Settings(NamedTuple):
    eps: float = 1e-5
    width: int = 4


@dataclass(frozen=True)
class Model:
    scale: float
    settings: Settings = Settings()


MODEL = Model(0.5)
TABLE = {"norm": 2.0, "taps": (1.0, -0.5, 0.25)}


def nested(x, w):
    return x * float(shifted(9)) + w / math.sqrt(x.shape[-1])


def configured(x, w):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + MODEL.settings.eps) * w * MODEL.scale


def from_a_table(x, w):
    a, b, c = TABLE["taps"]
    return (x * a + w * b).abs() * c / TABLE["norm"]


def with_defaults(x, w, eps=1e-3, *, power=2, flag=None):
    y = (x.abs() + eps) ** power
    return y * w if flag is None else y


def arithmetic_of_sizes(x, w):
    half = x.shape[-1] // 2
    return x[:, :half] * w[half:] + float(half ** 2 % 7)


FUNCTIONS = [nested, configured, from_a_table, with_defaults, arithmetic_of_sizes]


def given():
    return dict(x=torch.randn(3, 16), w=torch.randn(16))


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda f: f.__name__)
def test_they_are_folded(fn, level):
    right(fn, given(), level)


@pytest.mark.parametrize("more", [dict(eps=0.5), dict(power=3), dict(flag=True), dict(eps=0.5, power=3, flag=False)], ids=str)
def test_other_values_of_keywords_are_other_functions(more, level):
    right(with_defaults, dict(given(), **more), level)


def key_of(fn, **more):
    return graph_key(target(fn, dict(given(), **more)).stages.graph, "sm_90a", "default", None)


def test_each_value_has_a_key_of_its_own():
    keys = [key_of(with_defaults), key_of(with_defaults, eps=0.5), key_of(with_defaults, power=3), key_of(with_defaults, flag=True)]
    assert len(set(keys)) == 4
    assert key_of(with_defaults, eps=1e-3) == keys[0]


def test_a_global_that_changes_changes_the_key(monkeypatch):
    before = key_of(configured)
    monkeypatch.setitem(globals(), "MODEL", Model(0.25))
    other = key_of(configured)
    monkeypatch.setitem(globals(), "MODEL", Model(0.5, Settings(1e-4)))
    assert len({before, other, key_of(configured)}) == 3


def test_closures_of_one_function_are_not_mixed_up():
    def make(scale):
        def step(x, w):
            return x * w * scale
        return step

    assert key_of(make(2.0)) != key_of(make(3.0)) and key_of(make(2.0)) == key_of(make(2.0))
