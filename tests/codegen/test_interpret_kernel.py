"""The kernel interpreter against torch, and each law it enforces by a kernel that breaks it."""
from __future__ import annotations

import dataclasses

import pytest
import torch

from fusec.errors import InternalError
from fusec.ir.interpret_kernel import run_kernel
from fusec.ir.kernel import (
    Barrier, Compute, Copy, Declare, Global, Guard, KernelSpec, LaneReduce, Launch, Less, Parameter, Statement)
from fusec.ir.plan import SmemPlan

from .specs import CASES, conv, conv_inputs, delta, delta_inputs, el, lin, norm, norm_inputs


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_agrees_with_torch(name: str, rows: int) -> None:
    build, inputs, reference = CASES[name]
    if rows == 0 and name == "delta":
        pytest.skip("its inputs need a row")
    ours, theirs = inputs(rows), inputs(rows)
    run_kernel(build(), ours)
    reference(theirs)
    for key, want in theirs.items():
        found = ours[key].double()
        rtol = {torch.bfloat16: 2**-7, torch.float8_e4m3fn: 2**-3}.get(want.dtype, 2e-5)
        torch.testing.assert_close(found, want.double(), rtol=rtol, atol=1e-5)


def without(spec, kind):
    return dataclasses.replace(spec, body=tuple(s for s in spec.body if not isinstance(s, kind)))


def change(spec, match, **fields):
    def visit(s: Statement) -> Statement:
        if isinstance(s, Guard):
            s = dataclasses.replace(s, body=tuple(map(visit, s.body)))
        return dataclasses.replace(s, **fields) if match(s) else s
    return dataclasses.replace(spec, body=tuple(map(visit, spec.body)))


def is_store(s: Statement, tensor: str) -> bool:
    return isinstance(s, Copy) and isinstance(s.target, Global) and s.target.tensor == tensor


@pytest.mark.parametrize("law, spec, inputs", [
    ("race: shared buffer key", without(delta(), Barrier), delta_inputs),
    ("race: shared buffer sum", without(norm(), Barrier), norm_inputs),
    ("race: tensor output is written", change(delta(), lambda s: isinstance(s, Guard) and s.when == (Less(lin(lane_k=1), 1),),
                                              when=()), delta_inputs),
    ("is not one of tensor window", change(conv(), lambda s: isinstance(s, Guard), when=()), conv_inputs),
    ("not aligned", change(norm(), lambda s: isinstance(s, Copy) and s.source == Global("weight", lin(thread=8, c=1536)),
                           source=Global("weight", lin(4, thread=8))), norm_inputs),
    ("a lane reduction under a condition that differs", dataclasses.replace(norm(), body=tuple(
        Guard((Less(lin(thread=1), 7),), (s,)) if isinstance(s, LaneReduce) else s for s in norm().body)), norm_inputs),
    ("a barrier under a condition that differs", dataclasses.replace(norm(), body=tuple(
        Guard((Less(lin(thread=1), 64),), (s,)) if isinstance(s, Barrier) else s for s in norm().body)), norm_inputs),
    ("read before it is written", without(norm(), Copy), norm_inputs),
    ("used before it is declared", without(conv(), Compute), conv_inputs),
    ("run-time value", change(norm(), lambda s: is_store(s, "scale"), source=el("y", "lane", 0)), norm_inputs),
])
def test_laws(law: str, spec, inputs) -> None:
    if "declared" in law:
        spec = dataclasses.replace(conv(), body=(Compute((), (conv().body[1].body[7].body[0],)),))
    with pytest.raises(InternalError, match=law):
        run_kernel(spec, inputs(3))


def test_bytes_between_pages_and_untouched_slots_stay() -> None:
    t = delta_inputs(4)
    whole = torch.as_strided(t["state"], (6, t["state"].stride(0)), (t["state"].stride(0), 1))
    before = whole.clone()
    run_kernel(delta(), t)
    live = t["slots"][t["slots"] >= 0]
    dead = [i for i in range(6) if i not in live.tolist()]
    assert torch.equal(whole[dead], before[dead]) and torch.equal(whole[:, -12:], before[:, -12:])
    assert not torch.equal(whole[live, :-12], before[live, :-12])


def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    one, many = delta_inputs(5), delta_inputs(5)
    run_kernel(delta(), one)
    monkeypatch.setattr("fusec.ir.interpret_kernel.LANES_AT_ONCE", 256)
    run_kernel(delta(), many)
    assert all(torch.equal(one[k], many[k]) for k in one)


def two_blocks(*body: Statement) -> KernelSpec:
    x = Parameter("x", "f32", (64,), (1,), 4)
    first = Declare("a", (), "f32", 1.0)
    return KernelSpec("two", "two blocks", "sm_90a", (x,), Launch(((2,), (), ()), 32), SmemPlan(), (first, *body))


@pytest.mark.parametrize("body", [
    (Copy(el("a"), Global("x", lin(thread=1))),),
    (Copy(Global("x", lin(thread=1)), el("a")), Copy(el("a"), Global("x", lin(thread=1, block_x=32)))),
    (Copy(Global("x", lin(thread=1)), el("a")), Barrier(("no help across blocks",)),
     Copy(el("a"), Global("x", lin(thread=1, block_x=32)))),
    (Copy(el("a"), Global("x", lin(thread=1, block_x=32))), Copy(Global("x", lin(31, thread=-1, block_x=32)), el("a"))),
    (Copy(Global("x", lin(block_x=32)), el("a")), Copy(el("a"), Global("x", lin(block_x=32, thread=1)))),
])
def test_races_in_global_memory(body: tuple[Statement, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    for lanes in (32, 64):  # One chunk a block, and one for both.
        monkeypatch.setattr("fusec.ir.interpret_kernel.LANES_AT_ONCE", lanes)
        with pytest.raises(InternalError, match="race: tensor x"):
            run_kernel(two_blocks(*body), {"x": torch.zeros(64)})
        run_kernel(two_blocks(*body), {"x": torch.zeros(64)}, check_races=False)


def test_what_a_barrier_orders() -> None:
    body = (Copy(Global("x", lin(block_x=32)), el("a")), Barrier(("x: read → write",)),
            Copy(el("a"), Global("x", lin(block_x=32, thread=1))),
            Barrier(("x: write → read",)), Copy(Global("x", lin(31, thread=-1, block_x=32)), el("a")))
    x = torch.arange(64.0)
    run_kernel(two_blocks(*body), {"x": x})
    assert torch.equal(x, torch.tensor([0.0, 32.0]).repeat_interleave(32))
