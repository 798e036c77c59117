"""W03: slot times stride leaves 32 bits, so a busy server reads and writes other requests' memory."""
import pytest
import torch

from fusec.checker import compiled

from .steps import conv_step, delta_inputs, delta_rule


def twin(fn, far, near, pools, index, level, slots):
    """The same rows in a small pool and in a far one, bit for bit; neighbours of the far slots stay as they were."""
    small = compiled(fn, near, level)
    expected = small(**near)
    given = compiled(fn, near, level)(**far)
    for a, b in zip(expected, given, strict=True):
        assert torch.equal(a, b)
    for name in pools:
        for row, slot in enumerate(slots):
            assert torch.equal(near[name][near[index][row]], far[name][slot]), f"{name}: slot {slot}"


@pytest.mark.parametrize("edge", [2 ** 31, pytest.param(2 ** 32, marks=pytest.mark.gpu)])
def test_a_slot_that_lies_across_an_edge_of_32_bits(edge, level, device):
    """The last slot begins below 2^31 or 2^32 elements and ends beyond; of the storage between only its margins are touched."""
    near = delta_inputs(2, 2, 1, state=torch.bfloat16, device=device)
    near["slots"] = torch.tensor([1, 0], device=device)
    size = near["pool"][0].numel()
    slots, margin = 3, 64
    stride = (edge - size // 2) // (slots - 1) // 8 * 8
    storage = torch.empty((slots - 1) * stride + size + margin, dtype=torch.bfloat16, device=device)
    pool = storage.as_strided((slots, *near["pool"].shape[1:]), (stride, *near["pool"].stride()[1:]))
    assert 2 * stride < edge < 2 * stride + size
    used = [2, 0]
    pool[1] = 9.5
    pool[used] = near["pool"][near["slots"]]
    before, after = storage[2 * stride - margin:2 * stride], storage[2 * stride + size:]
    before.fill_(5.0)
    after.fill_(6.0)
    far = dict(near, pool=pool, slots=torch.tensor(used, device=device))
    twin(delta_rule, far, near, ["pool"], "slots", level, used)
    assert (before == 5.0).all() and (after == 6.0).all() and (pool[1] == 9.5).all()


@pytest.mark.gpu
def test_slots_far_beyond_32_bits():
    near = delta_inputs(4, 4, 2, state=torch.bfloat16, device="cuda")
    near["slots"] = torch.tensor([2, 0, 3, 1], device="cuda")
    stride, used = 2 ** 32 // 6 // 256 * 256 + 256, [3, 6, 7, 2]  # 3 strides lie beyond 2^31, 6 beyond 2^32.
    storage = torch.zeros(7 * stride + near["pool"][0].numel(), dtype=torch.bfloat16, device="cuda")
    pool = storage.as_strided((8, *near["pool"].shape[1:]), (stride, *near["pool"].stride()[1:]))
    pool[used] = near["pool"][near["slots"]]
    before = int((storage != 0).sum())
    far = dict(near, pool=pool, slots=torch.tensor(used, device="cuda"))
    twin(delta_rule, far, near, ["pool"], "slots", "gpu", used)
    assert abs(int((storage != 0).sum()) - before) < 16, "something else was written"


@pytest.mark.gpu
def test_a_dense_pool_of_17_gigabytes():
    near = delta_inputs(5, 5, 32, 128, 128, device="cuda")
    used = [4095, 4096, 8191, 8192, 8297]
    pool = torch.full((8300, 32, 128, 128), 3.25, device="cuda")
    near["slots"] = torch.tensor([1, 4, 0, 2, 3], device="cuda")
    pool[used] = near["pool"][near["slots"]]
    far = dict(near, pool=pool, slots=torch.tensor(used, device="cuda"))
    twin(delta_rule, far, near, ["pool"], "slots", "gpu", used)
    for slot in {s + d for s in used for d in (-1, 1)} - set(used):
        assert (pool[slot] == 3.25).all(), slot


@pytest.mark.gpu
def test_a_convolution_pool_beyond_two_billion_elements():
    channels, used = 12288, [58253, 58254, 58255, 59999, 7]
    near = dict(x=torch.randn(5, channels, device="cuda").bfloat16(), weight=0.3 * torch.randn(channels, 4, device="cuda"),
                window=torch.randn(5, channels, 3, device="cuda").bfloat16(), slots=torch.tensor([4, 1, 0, 3, 2], device="cuda"))
    window = torch.full((60000, channels, 3), 1.5, dtype=torch.bfloat16, device="cuda")
    window[used] = near["window"][near["slots"]]
    far = dict(near, window=window, slots=torch.tensor(used, device="cuda"))
    twin(conv_step, far, near, ["window"], "slots", "gpu", used)
    for slot in {s + d for s in used for d in (-1, 1)} - set(used) - {60000}:
        assert (window[slot] == 1.5).all(), slot
