"""W15: tensor-scalar, 0-dim and mixed-dtype promotion: outputs have eager's dtype and eager's values."""
import pytest
import torch

from .steps import both, right

BF16, F16 = torch.bfloat16, torch.float16
ROWS, D = 5, 12


def values(dtype, seed=0, rows=ROWS):
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(rows, D, generator=generator) > 0.5
    if not dtype.is_floating_point:
        return torch.randint(-300, 300, (rows, D), generator=generator).to(dtype)
    return torch.randn(rows, D, generator=generator).to(dtype)


def of(fn, *dtypes, extra=(), name=""):
    """A case: fn(x, y, …) with operands of these dtypes [R, D], then `extra` tensors as they are."""
    return pytest.param(fn, dtypes, extra, id=name)


CASES = [
    of(lambda x: x * 0.1, BF16, name="bf16 times a number"),
    of(lambda x: x + 0.1, BF16, name="bf16 plus a number"),
    of(lambda x: 0.1 - x, F16, name="a number minus fp16"),
    of(lambda x: x / 3, BF16, name="bf16 over an int"),
    of(lambda x, y: x * y, BF16, extra=(torch.tensor(0.1),), name="bf16 times 0-dim fp32"),
    of(lambda x, y: x * y, BF16, extra=(torch.tensor([0.1]),), name="bf16 times fp32 of one element"),
    of(lambda x, y: x + y, torch.int32, BF16, name="int32 plus bf16"),
    of(lambda x, y: x + y, BF16, F16, name="bf16 plus fp16"),
    of(lambda x, y: x * y, BF16, torch.float32, name="bf16 times fp32"),
    of(lambda x, y: x * y, torch.bool, BF16, name="bool times bf16"),
    of(lambda x: x / 7, torch.int32, name="int32 over an int"),
    of(lambda x: x * 2.5, torch.int32, name="int32 times a number"),
    of(lambda x, y: x + y, torch.int32, torch.int64, name="int32 plus int64"),
    of(lambda x: x == 3.140625, BF16, name="bf16 equals a number it has"),
    of(lambda x: x == 3.14, BF16, name="bf16 equals a number it rounds"),
    of(lambda x: x > 0.1, BF16, name="bf16 above a number"),
    of(lambda x, y: x <= y, BF16, torch.float32, name="bf16 at most fp32"),
    of(lambda x, y: torch.maximum(x, y), BF16, torch.float32, name="maximum of bf16 and fp32"),
    of(lambda x, y: torch.where(x > 0, x, y), BF16, torch.float32, name="where of bf16 and fp32"),
    of(lambda x: torch.where(x > 0, x, 0.1), BF16, name="where of bf16 and a number"),
    of(lambda x: x.clamp(-0.3, 0.7), BF16, name="clamp of bf16"),
    of(lambda x: x.sum(-1), BF16, name="sum of bf16"),
    of(lambda x: x.mean(-1, keepdim=True), BF16, name="mean of bf16"),
    of(lambda x: x.sum(-1, dtype=torch.float32), BF16, name="sum of bf16 in fp32"),
    of(lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6), BF16, name="a norm written in bf16"),
    of(lambda x, w: x @ w, BF16, extra=(values(BF16, 1, D)[:, :8].clone(),), name="bf16 matmul"),
    of(lambda x: torch.exp(x) - 1.0, F16, name="exp of fp16"),
    of(lambda x: x.to(torch.float8_e4m3fn).float() * 0.1, torch.float32, name="through fp8"),
    of(lambda x, y: torch.add(x, y, alpha=0.3), BF16, BF16, name="add with alpha"),
    of(lambda x, y: torch.lerp(x, y, 0.3), torch.float32, torch.float32, name="lerp"),
    of(lambda x: (x.clamp(-5, 5), x.clamp(max=-1), x // -7, x % 300, torch.div(x, -3, rounding_mode="trunc")), torch.uint8,
       name="numbers that uint8 wraps"),
    of(lambda x: (x < 300, x >= -1, x == 255, x < 2 ** 40), torch.uint8, name="uint8 beside numbers that it wraps"),
    of(lambda x: (x // 300, x % 300, x < 300), torch.int8, name="int8 beside a number that it wraps"),
    of(lambda x: ((~x).int(), (~x) >> 4, (~x) > 100, (x ^ -2).float(), (x | -16).int()), torch.uint8,
       name="the complement of uint8"),
    of(lambda x, y: ((x + y).int(), (x * y).float(), (x + y).sum(-1), x + y == x, x * 0.5 * (x + y)), torch.bool, torch.bool,
       name="sums and products of bools are bools"),
    of(lambda x, y: ((x > -1) + (x < 1)).float() * torch.where((x > 0) * y, x, -x), torch.float32, torch.bool,
       name="sums of masks"),
    of(lambda x, y: (~(x * y) | (x + y), torch.maximum(x, y) & y, torch.minimum(x, y) ^ x, torch.add(x, y, alpha=True)), torch.bool,
       torch.bool, name="logic of sums and products of bools"),
    of(lambda x, y: (x.amax(-1), (x * y).amin(-1), (x + y).any(-1), x.max(-1, keepdim=True)[0]), torch.bool, torch.bool,
       name="extremes of bools"),
    of(lambda x, y: torch.maximum(x, y), torch.uint8, extra=(torch.tensor(-1),), name="uint8 beside a 0-dim int64"),
    of(lambda x: torch.maximum(x, torch.tensor(-1)), torch.uint8, name="uint8 beside a constant int64"),
    of(lambda x: (torch.nn.functional.relu6(x * 2 ** 24), torch.nn.functional.threshold(x + 2 ** 24, 2 ** 24, 2 ** 24 + 1)),
       torch.int32, name="activations of large integers"),
    of(lambda x: x + torch.tensor(300).to(torch.int8) * 1000 + torch.full((D,), 1000, device=x.device).to(torch.uint8).int(),
       torch.int32, name="constants that become narrow integers"),
    of(lambda x: x + torch.tensor(2 ** 40 + 5).to(torch.int32), torch.int64, name="a constant that becomes int32"),
    of(lambda x: x + torch.full((D,), 0.1, dtype=torch.bfloat16, device=x.device).float(), torch.float32,
       name="a constant of bf16"),
    of(lambda x: (x.any(-1), x.clamp(max=1).all(-1)), torch.uint8, name="any and all of uint8"),
]


def with_names(fn, count):
    """fn with as many named parameters: a function takes its arguments by name."""
    return {1: lambda a: fn(a), 2: lambda a, b: fn(a, b), 3: lambda a, b, c: fn(a, b, c)}[count]


@pytest.mark.parametrize("fn, dtypes, extra", CASES)
def test_dtype_and_values_are_those_of_eager(fn, dtypes, extra, level, device):
    tensors = [*(values(d, i) for i, d in enumerate(dtypes)), *extra]
    if dtypes[0] == BF16:
        tensors[0][0, :4] = torch.tensor([3.14, 0.1, 3.140625, -0.0])
    given = dict(zip("abc", tensors))
    step = with_names(fn, len(tensors))
    right(step, given, level)
    (eager, _), (mine, _) = both(step, given, level, device)
    for found, wanted in zip(mine, eager, strict=True):
        assert found.dtype == wanted.dtype and found.shape == wanted.shape
        if not wanted.dtype.is_floating_point:
            assert torch.equal(found, wanted)
