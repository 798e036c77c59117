"""Eager mode with one rounding per op: each narrow op against fp32 rounded once, whatever vectors the CPU happens to use."""
import pytest
import torch
import torch.nn.functional as F

import fusec
from fusec.checker.single_rounding import SingleRounding

OPS = {
    "rsqrt": lambda x, y: torch.rsqrt(x),
    "add a number": lambda x, y: x + 0.1,
    "subtract from a number": lambda x, y: 0.1 - x,
    "multiply a number": lambda x, y: x * 0.1, "divide": lambda x, y: x / y,
    "alpha": lambda x, y: torch.add(x, y, alpha=0.3),
    "sigmoid": lambda x, y: torch.sigmoid(x), "silu": lambda x, y: F.silu(x), "softplus": lambda x, y: F.softplus(x),
    "power": lambda x, y: x ** 4, "prod": lambda x, y: x[:, :3].prod(-1), "log_softmax": lambda x, y: x.log_softmax(-1),
    "remainder": lambda x, y: torch.remainder(x, 0.75), "fmod": lambda x, y: torch.fmod(x, 0.75),
    "exp": lambda x, y: torch.exp(x), "lerp": lambda x, y: torch.lerp(x, y, 0.3), "mean": lambda x, y: x.mean(-1),
    "tanh": lambda x, y: torch.tanh(x),
}


def rounded_once(fn, x, y):
    """fn on fp32 operands, every op's result rounded to x's type; only for functions of one narrow op after exact ones."""
    return fn(x.float(), y.float()).to(x.dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", OPS)
def test_an_op_rounds_once(name, dtype):
    torch.manual_seed(1)
    x, y = torch.randn(7, 11).to(dtype), torch.randint(1, 9, (7, 11)).to(dtype)
    if name == "rsqrt":
        x = (torch.randint(1, 200, (7, 11)) * 0.5).to(dtype)
    with SingleRounding():
        found = OPS[name](x, y)
    assert found.dtype == dtype and torch.equal(found, rounded_once(OPS[name], x, y))


def test_a_chain_rounds_at_every_op():
    x = torch.randn(5, 9).to(torch.bfloat16)
    with SingleRounding():
        found = (x * 0.3 + 0.1) * 0.7
    wanted = ((x.float() * 0.3).bfloat16().float() + 0.1).bfloat16().float() * 0.7
    assert torch.equal(found, wanted.bfloat16())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_what_eager_rounds_within_an_op_is_rounded(dtype):
    """A cube is a product of the rounded square; a number beside a remainder has the tensor's type."""
    x = torch.randn(7, 11).to(dtype)
    with SingleRounding():
        cube, rest = x ** 3, torch.remainder(x, 0.7)
    assert torch.equal(cube, (x * x) * x)
    number = torch.tensor(0.7).to(dtype).item()
    assert torch.equal(rest, torch.remainder(x.float(), number).to(dtype))


def narrow_powers(x):
    cube = 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * torch.pow(x, 3.0))))
    return cube, F.log_softmax(x, -1), torch.logsumexp(x, -1), x[:, :4].prod(-1), torch.fmod(x, 0.7)


def test_a_step_of_narrow_powers_agrees():
    torch.manual_seed(2)
    report = fusec.check(narrow_powers, dict(x=torch.randn(40, 96).bfloat16()), level="graph")
    assert report.ok, str(report)


def test_in_place_ops_write_in_place():
    x = torch.randn(5, 9).to(torch.bfloat16)
    before, address = x.clone(), x.data_ptr()
    with SingleRounding():
        x.add_(0.1)
        x[:, 2:4].mul_(0.3)
    wanted = (before.float() + 0.1).bfloat16()
    wanted[:, 2:4] = (wanted[:, 2:4].float() * 0.3).bfloat16()
    assert x.data_ptr() == address and torch.equal(x, wanted)


def test_promotion_stays_what_it_is():
    x = torch.randn(3, 5).to(torch.bfloat16)
    with SingleRounding():
        assert (x * torch.randn(5)).dtype == torch.float32 and (x + torch.ones(5, dtype=torch.int32)).dtype == torch.bfloat16
        assert (x > 0.1).dtype == torch.bool and torch.where(x > 0, x, 0.1).dtype == torch.bfloat16
        assert torch.equal(x * torch.tensor(0.1), (x.float() * torch.tensor(0.1).bfloat16().float()).bfloat16())
        assert torch.equal(x.masked_fill(x > 0, 2.0), torch.where(x > 0, torch.tensor(2.0).bfloat16(), x))


def test_an_order_that_is_left_open_is_the_sorted_one():
    def router(logits):
        weight, ids = torch.topk(logits.sigmoid(), 8, dim=-1, sorted=False)
        return weight / weight.sum(-1, keepdim=True), ids
    torch.manual_seed(0)
    report = fusec.check(router, (torch.randn(5, 64),), level="kernel")
    assert report.ok, str(report)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_fp8_is_moved_as_bytes(dtype):
    x, pool, i = torch.randn(3, 8).to(dtype), torch.zeros(5, 8).to(dtype), torch.tensor([4, 0, 2])
    with SingleRounding():
        given = pool.index_copy_(0, i, x)
        assert given is pool and torch.equal(pool.index_select(0, i).float(), x.float()) and not pool[1].float().any()
        assert torch.equal(torch.gather(x, 1, torch.full((3, 1), 7)).float(), x[:, 7:].float())
        assert torch.equal(torch.where(torch.arange(8) > 3, x, pool[:3]).float()[:, 4:], x.float()[:, 4:])
        assert torch.equal(torch.where(torch.arange(8) > 3, x, torch.tensor(2.0)).float()[:, :4], torch.full((3, 4), 2.0))
        pool[i] = x.flip(1)
    assert torch.equal(pool[i].float(), x.float().flip(1)) and pool.dtype == dtype


def test_attention_rounds_once():
    q, k, v = (torch.randn(2, 4, n, 32).bfloat16() for n in (1, 9, 9))
    mask = torch.randn(2, 1, 1, 9).bfloat16()
    with SingleRounding():
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3)
    wide = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), attn_mask=mask.float(), scale=0.3)
    assert found.dtype == torch.bfloat16 and torch.equal(found, wide.bfloat16())


def test_attention_with_a_mask_passes_its_check():
    def step(q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.1)

    q, k, v = (torch.randn(3, 4, n, 32).bfloat16() for n in (1, 9, 9))
    report = fusec.check(step, (q, k, v, torch.randn(3, 1, 1, 9).bfloat16()), level="graph")
    assert report.ok, str(report)
