"""W06, C4: a window is what the function's slices say; nothing is off by one, whatever its length and the number of taps."""
import pytest
import torch

import fusec
from fusec.checker import compiled
from fusec.checker.storage import clone

from .steps import right


def update(x, state, weight):
    """x [R, C], state [R, C, L] newest last, weight [C, W], L at least W − 1 -> [R, C]; the whole buffer moves on by one."""
    full = torch.cat([state, x.unsqueeze(-1)], dim=-1)
    state.copy_(full[..., 1:])
    return (full[..., -weight.shape[-1]:] * weight).sum(-1)


def rolled(x, state, weight):
    """The same as it is often written: roll, then put the newest in."""
    state.copy_(torch.roll(state, shifts=-1, dims=-1))
    state[:, :, -1] = x
    return torch.sum(state[:, :, -weight.shape[1]:] * weight, dim=-1)


@pytest.mark.parametrize("taps, length", [
    (4, 3), (8, 9), *(pytest.param(*sizes, marks=pytest.mark.slow) for sizes in ((4, 4), (4, 7), (2, 1)))])
def test_each_tap_gives_the_input_of_its_time(taps, length, level, device):
    steps = taps + 2
    channels = taps  # A one-hot tap per channel.
    given = dict(x=torch.zeros(2, channels), state=torch.zeros(2, channels, length), weight=torch.eye(taps))
    mine = clone(given, device)
    step = compiled(update, dict(given, x=torch.randn(2, channels)), level)
    for t in range(1, steps + 1):
        mine["x"] = torch.full((2, channels), float(t), device=device)
        out = step(**mine)[0].cpu()
        wanted = [max(t - taps + 1 + i, 0) for i in range(taps)]
        assert out.tolist() == [wanted] * 2, f"after {t} inputs"
        assert mine["state"][0, 0].tolist() == [max(t - length + 1 + i, 0) for i in range(length)]


@pytest.mark.parametrize("length", [7, pytest.param(4, marks=pytest.mark.slow)])
def test_a_rolled_window(length, level):
    right(rolled, dict(x=torch.randn(3, 6), state=torch.randn(3, 6, length), weight=torch.randn(6, 4)), level)


def test_a_window_that_is_too_short_is_an_error_at_its_line():
    given = dict(x=torch.randn(2, 4), state=torch.randn(2, 4, 2), weight=torch.randn(4, 4))
    with pytest.raises(fusec.FusecError, match="test_w06_windows.py:16"):
        compiled(update, given)
