"""Where values are rounded and widened: by the store that rounds anyway, and behind the barrier that the load need not hold up."""
from __future__ import annotations

import pytest
import torch

from fusec.capture import capture
from fusec.ir.interpret_kernel import run_kernel
from fusec.ir.kernel import Barrier, Compute, Copy, Declare, Elem, Global, KernelSpec, Round, walk
from fusec.passes.back import to_kernel
from fusec.passes.front import to_graph
from fusec.passes.round_once import registers_read

BF16 = torch.bfloat16


def kernel(fn, given, arch="sm_90a") -> KernelSpec:
    return to_kernel(to_graph(capture(fn, given)), arch)[1]


def rounded(spec: KernelSpec) -> list[str]:
    """The registers that are rounded where they are computed."""
    return [a.target.name for s in walk(spec.body) if isinstance(s, Compute) for a in s.body if isinstance(a.value, Round)]


def runs_as(fn, given, spec) -> None:
    theirs = {n: t.clone() for n, t in given.items()}
    expected = fn(**theirs)
    ours = {n: t.clone() for n, t in given.items()}
    out = torch.empty_like(expected)
    name = next(p.name for p in spec.parameters if p.name not in given)
    run_kernel(spec, ours | {name: out})
    assert torch.equal(out.view(torch.uint8), expected.view(torch.uint8))


def test_a_store_rounds_by_itself():
    def scaled(x):
        return (x * 1.7).to(BF16)
    given = dict(x=torch.randn(3, 512))
    spec = kernel(scaled, given)
    assert not rounded(spec)
    runs_as(scaled, given, spec)


def test_what_is_read_on_is_rounded_where_it_is_computed():
    def twice(x):
        y = (x * 1.7).to(BF16)
        return torch.stack([y, y * 3.0])
    given = dict(x=torch.randn(3, 512))
    spec = kernel(lambda x: twice(x).transpose(0, 1).contiguous(), given)
    assert len(rounded(spec)) == 1
    runs_as(lambda x: twice(x).transpose(0, 1).contiguous(), given, spec)


def test_a_store_of_another_type_is_no_rounding():
    def through(x):
        return (x * 1.7).to(BF16).float()
    given = dict(x=torch.randn(3, 512))
    spec = kernel(through, given)
    assert len(rounded(spec)) == 1
    runs_as(through, given, spec)


def handed_over(x, state, idx):
    """x [R, K], state [S, 48, K] in place at idx [R]: every row of the state needs what other threads make of x."""
    n = x.float() * torch.rsqrt(x.float().square().sum(-1, keepdim=True) + 1.0)
    h = state[idx].float() * n.unsqueeze(1)
    state[idx] = h.to(state.dtype)
    return h.sum(-1)


@pytest.mark.parametrize("dtype, held", [(BF16, "bf16"), (torch.float16, "f16")])
def test_what_is_loaded_ahead_of_a_barrier_is_widened_behind_it(dtype, held):
    given = dict(x=torch.randn(3, 4000), state=torch.randn(5, 8, 4000).to(dtype), idx=torch.tensor([3, 0, 4]))
    spec = kernel(handed_over, given)
    order = list(walk(spec.body))
    load = next(s for s in order if isinstance(s, Copy) and isinstance(s.source, Global) and s.source.tensor == "state")
    assert isinstance(load.target, Elem)
    name, barriers = load.target.name, [i for i, s in enumerate(order) if isinstance(s, Barrier)]
    first = next(i for i, s in enumerate(order) if isinstance(s, Compute) and name in registers_read(s))
    assert any(order.index(load) < b < first for b in barriers)
    assert next(s for s in order if isinstance(s, Declare) and s.name == name).dtype == held
    theirs = {n: t.clone() for n, t in given.items()}
    expected = handed_over(**theirs)
    ours, out = {n: t.clone() for n, t in given.items()}, torch.empty_like(expected)
    run_kernel(spec, ours | {next(p.name for p in spec.parameters if p.name not in given): out})
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(ours["state"], theirs["state"])


def test_nothing_stands_between_the_resident_loads_and_the_barrier():
    from fusec.recipes.kimi_k3_decode import kda_decode
    spec = kernel(kda_decode.reference, kda_decode.inputs(4, H=2, state="bf16"))
    at = next(i for i, s in enumerate(spec.body) if isinstance(s, Barrier))
    before = next(s for s in reversed(spec.body[:at]) if not isinstance(s, Declare))
    assert isinstance(before, Copy) and isinstance(before.source, Global) and before.source.tensor == "state"


def weighed(x, score):
    """x [R, S, D] where score [R, S] is positive: the mask is computed from what is loaded."""
    weight = torch.exp(score)
    return (weight[..., None] * torch.where(weight[..., None] > 1.0, x, 0.0).float()).sum(1)


@pytest.mark.parametrize("dtype, held", [(BF16, "bf16"), (torch.float16, "f16"), (torch.float32, "f32")])
def test_what_is_loaded_under_a_computed_condition_is_widened_outside_of_it(dtype, held):
    given = dict(x=torch.randn(3, 4, 512).to(dtype), score=torch.randn(3, 4))
    spec = kernel(weighed, given)
    load = next(s for s in walk(spec.body) if isinstance(s, Copy) and isinstance(s.source, Global) and s.source.tensor == "x")
    assert load.when and isinstance(load.target, Elem)
    assert next(s for s in walk(spec.body) if isinstance(s, Declare) and s.name == load.target.name).dtype == held
    expected = weighed(**given)
    out = torch.empty_like(expected)
    run_kernel(spec, given | {next(p.name for p in spec.parameters if p.name not in given): out})
    torch.testing.assert_close(out, expected, rtol=2e-5, atol=1e-5)
