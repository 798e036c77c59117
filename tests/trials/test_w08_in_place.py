"""W08: an update lands in a temporary; the caller's state never moves, and every single step still looks right."""
import pytest
import torch

from fusec.checker import compiled
from fusec.checker.storage import clone, owned_bytes, raw

from .steps import delta_inputs, delta_rule, right


def every_other_slot(slots, H, V, K, dtype):
    storage = torch.randn(2 * slots, H, V, K).to(dtype)
    return storage, storage[::2]


def every_other_head(slots, H, V, K, dtype):
    storage = torch.randn(slots, 2 * H, V, K).to(dtype)
    return storage, storage[:, ::2]


def heads_outermost(slots, H, V, K, dtype):
    storage = torch.randn(H, slots, V, K).to(dtype)
    return storage, storage.permute(1, 0, 2, 3)


def transposed_state(slots, H, V, K, dtype):
    storage = torch.randn(slots, H, K, V).to(dtype)
    return storage, storage.transpose(2, 3)


VIEWS = [every_other_slot, every_other_head, heads_outermost, transposed_state]


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)], ids=["fp32", "bf16"])
@pytest.mark.parametrize("view", VIEWS, ids=lambda v: v.__name__)
def test_three_steps_change_the_callers_bytes_and_nothing_else(view, dtype, level, device):
    slots, H, V, K = 7, 2, 8, 16
    storage, pool = view(slots, H, V, K, dtype)
    given = dict(delta_inputs(3, slots, H, K, V), pool=pool)
    right(delta_rule, given, level)

    mine = clone(given, device)
    address, before = mine["pool"].data_ptr(), raw(mine["pool"]).clone()
    eager = clone(given, device)
    step = compiled(delta_rule, given, level)
    for turn in range(3):
        fresh = {n: t.to(device) for n, t in delta_inputs(3, slots, H, K, V).items() if n not in ("pool", "slots")}
        out = step(**{**mine, **fresh})[0]
        wanted = delta_rule(**{**eager, **fresh})
        assert (out.float() - wanted.float()).abs().max() <= 2e-2 * wanted.float().abs().max(), f"step {turn}"
    assert mine["pool"].data_ptr() == address
    assert torch.allclose(mine["pool"].float(), eager["pool"].float(), rtol=2e-2, atol=2e-3)
    changed = raw(mine["pool"]) != before
    assert bool(changed.any())
    live = torch.zeros(slots, dtype=torch.bool)
    live[given["slots"]] = True
    owned = owned_bytes([(mine["pool"], live.to(device).view(-1, 1, 1, 1).expand(pool.shape))], raw(mine["pool"]))
    assert not bool((changed & ~owned).any()), "bytes that no live row owns have changed"
    assert bool((changed & owned).any())
