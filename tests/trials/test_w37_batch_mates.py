"""W37, C12: the same row gives the same bits alone, with 31 mates, and at any place among them."""
import torch

from fusec.checker import compiled
from fusec.checker.storage import clone
from fusec.checker.target import target

from .steps import delta_inputs, delta_rule, rmsnorm


def rows_of(given, rows, whole):
    return {n: t if n in whole else t[rows] for n, t in given.items()}


def bits(t):
    return t.contiguous().view(torch.uint8)


def placed(goal, given, whole, level, device):
    """Row 0 alone against itself at three places among 31 mates; the outputs and what is stored in place."""
    step = compiled(goal, goal.example, level)
    alone = clone(rows_of(given, [0], whole), device)
    first = [t.clone() for t in step(**alone)]
    for at in (0, 17, 31):
        order = [i for i in range(1, 32)]
        order.insert(at, 0)
        many = clone(rows_of(given, order, whole), device)
        found = step(**many)
        for a, b in zip(first, found):
            assert torch.equal(bits(a[0]), bits(b[at])), f"as row {at} of 32"
        for name in whole:
            if name == "pool":
                slot = int(given["slots"][0])
                assert torch.equal(bits(alone[name][slot]), bits(many[name][slot]))


def test_a_recurrence(level, device):
    placed(target(delta_rule, delta_inputs(4, 6, 1, 20, 12)), delta_inputs(32, 40, 1, 20, 12), ("pool",), level, device)


def test_a_long_reduction(level, device):
    def make(rows):
        return dict(x=torch.randn(rows, 4096).bfloat16(), weight=torch.randn(4096))
    placed(target(rmsnorm, make(4)), make(32), ("weight",), level, device)
