"""What memory can do: the kernels touch what they should. Needs Triton, and a GPU or TRITON_INTERPRET=1."""
import os

import pytest
import torch

pytest.importorskip("triton")
if not (torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"):
    pytest.skip("Triton needs a GPU, or TRITON_INTERPRET=1", allow_module_level=True)

from benchmarks import probe  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def test_the_slots_of_rows_that_take_part_are_rewritten():
    state = torch.randn(6, 2, 30, 40, device=DEVICE)
    want = state.clone()
    want[[4, 2]] *= 1.0001
    probe.slots(state, torch.tensor([4, -1, 2], device=DEVICE))()
    assert torch.allclose(state, want) and torch.equal(state[[0, 1, 3, 5]], want[[0, 1, 3, 5]])


@pytest.mark.parametrize("dtype, written", [(torch.bfloat16, 2), (torch.float32, 2), (torch.bfloat16, 1), (torch.float16, 4)])
@pytest.mark.parametrize("order", ["THSD", "STHD", "TSHD"])
def test_the_splits_in_use_are_read_and_the_first_block_is_written(dtype, written, order, monkeypatch):
    made, empty = [], torch.empty
    partial = torch.randn(3, 2, 20, 512, device=DEVICE).to(dtype)
    laid_out = partial.permute(*("THSD".index(n) for n in order)).contiguous().permute(*(order.index(n) for n in "THSD"))
    assert torch.equal(laid_out, partial)
    counts = torch.tensor([20, 5, 1], dtype=torch.int32, device=DEVICE)
    for token, count in enumerate(counts.tolist()):
        laid_out[token, :, count:] = float("nan")  # Sums are not of these.
    monkeypatch.setattr(torch, "empty", lambda *a, **k: made.append(empty(*a, **k)) or made[-1])
    probe.parts(laid_out, counts, written)()
    first = 16384 // (512 * partial.element_size())
    want = torch.stack([partial[t, :, :min(n, first)].float().sum(1) for t, n in enumerate(counts.tolist())])
    assert made[0].element_size() == written
    got, want = made[0].view(3, 2, 512).float(), want.to(made[0].dtype).float()
    assert torch.allclose(got, want, rtol=1e-2, atol=2e-2 if written > 1 else 1)


def test_copies_and_an_empty_kernel_run():
    for call in (*probe.copies(1_000_000, 2, DEVICE), probe.empty(torch.empty(1, device=DEVICE))):
        call()
