"""Blocks that walk along an axis because they cannot hold what they load: results, walks, barriers between turns, refusals."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from fusec.capture import capture
from fusec.errors import InternalError, ResourceError
from fusec.ir.interpret_kernel import run_kernel
from fusec.ir.kernel import Barrier, Copy, Declare, Elem, Global, KernelSpec, Linear, Repeat, Shared, walk
from fusec.ir.verify_kernel import verify_kernel
from fusec.passes import place
from fusec.passes.back import to_kernel
from fusec.passes.front import to_graph
from fusec.passes.problem import Placement, Problem
from fusec.passes.walks import walks

from .steps import STEPS
from .test_steps_as_kernels import REFUSED
from .test_steps_as_kernels import test_step_as_a_kernel as run_as_a_kernel


def residual_norm(x, residual, weight):
    residual += x
    y = residual.float()
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6) * weight).to(torch.bfloat16)


def log_normaliser(x):
    return torch.logsumexp(x.float(), -1)


def retention(q, k, v, state, decay, weight, index):
    h = state[index] * decay[:, None, None] + k.unsqueeze(-1) * v.unsqueeze(-2)
    state[index] = h
    out = torch.einsum("bhk,bhkv->bhv", q, h).flatten(1)
    return F.rms_norm(out, (out.shape[-1],), weight, 1e-5)


def norm_softmax_peak(x, weight):
    y = x / x.square().mean(-1, keepdim=True).sqrt()
    z = (y * weight).softmax(-1)
    return z / z.amax(-1, keepdim=True)


def delta_rule(g, k, v, q, state):
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    h = state * g.exp()[..., None]
    h = h + k[..., None] * (v - (h * k[..., None]).sum(-2))[..., None, :]
    state.copy_(h)
    o = (h * q[..., None]).sum(-2)
    return o * torch.rsqrt(o.square().mean(-1, keepdim=True) + 1e-6)


def mixed_rows(rows, query):
    score = torch.einsum("d,nrd->nr", query, rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + 1e-6))
    return torch.einsum("nr,nrd->rd", score.softmax(0), rows)


def five_norms(x):
    for _ in range(5):
        x = (x * x) / x.amax(-1, keepdim=True)
    return x


def normal(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


CASES: dict[str, tuple[Callable, dict[str, torch.Tensor], int]] = {
    # function, arguments, walks
    "one reduction, no row at the end": (log_normaliser, dict(x=normal(3, 128256)), 2),
    "a norm over an updated row": (residual_norm, dict(
        x=normal(3, 98304, dtype=torch.bfloat16), residual=normal(4, 98304, dtype=torch.bfloat16)[:3],
        weight=normal(98304)), 2),
    "three dependent reductions": (norm_softmax_peak, dict(x=normal(2, 98304), weight=normal(98304)), 5),
    "states of all heads under one norm": (retention, dict(
        q=normal(3, 16, 64), k=normal(3, 16, 64), v=normal(3, 16, 128), state=normal(5, 16, 64, 128), decay=normal(16).sigmoid(),
        weight=normal(2048), index=torch.tensor([4, 0, 2])), 1),
    "along the axis that is read once": (delta_rule, dict(
        g=-normal(2, 256).abs(), k=normal(2, 256), v=normal(2, 256), q=normal(2, 256, 1)[..., 0], state=normal(2, 256, 256)), 1),
    "rows scored, then mixed": (mixed_rows, dict(rows=normal(12, 3, 7168), query=normal(7168)), 2),
}


def kernel(fn: Callable, inputs: dict[str, torch.Tensor]) -> tuple[tuple[str, ...], KernelSpec]:
    graph = to_graph(capture(fn, inputs))
    return graph.outputs, to_kernel(graph, "sm_90a")[1]


@pytest.mark.parametrize("name", CASES)
def test_a_walk_gives_what_eager_gives(name: str) -> None:
    fn, inputs, walks = CASES[name]
    outputs, spec = kernel(fn, inputs)
    loops = [s for s in walk(spec.body) if isinstance(s, Repeat)]
    assert len(loops) == walks and len({s.count for s in loops}) == 1
    theirs = {n: t.clone() for n, t in inputs.items()}
    expected = fn(**theirs)
    ours = {n: t.clone() for n, t in inputs.items()} | {outputs[0]: torch.empty_like(expected)}
    run_kernel(spec, ours)
    step = 2 ** -7 if expected.dtype == torch.bfloat16 else 2e-5
    torch.testing.assert_close(ours[outputs[0]], expected, rtol=step, atol=1e-5)
    for given in inputs:
        torch.testing.assert_close(ours[given], theirs[given], rtol=2e-5, atol=1e-6)


def test_what_is_handed_over_within_a_turn_is_ordered_against_the_next_one() -> None:
    """Warps' partial sums go through one buffer, turn after turn: written after what the turn before has read."""
    _, spec = kernel(*CASES["states of all heads under one norm"][:2])
    for loop in (s for s in walk(spec.body) if isinstance(s, Repeat)):
        events: list[tuple[str, str]] = []
        for s in list(walk(loop.body)) * 2:
            if isinstance(s, Barrier):
                events.append(("barrier", ""))
            elif isinstance(s, Copy) and isinstance(s.source, Shared):
                events.append(("read", s.source.buffer))
            elif isinstance(s, Copy) and isinstance(s.target, Shared):
                events.append(("write", s.target.buffer))
        for at, (what, buffer) in enumerate(events):
            if what == "write":
                since = events[max((i for i in range(at) if events[i][0] == "barrier"), default=-1) + 1:at]
                assert ("read", buffer) not in since


QUICK = ("speculative_tokens", "ring_buffer", "two_tokens_of_a_window")


@pytest.fixture(autouse=True)
def no_clusters(monkeypatch) -> None:
    """One block does all of its work."""
    monkeypatch.setattr(place, "clusters", lambda problem, anchor: iter(()))


@pytest.fixture(params=[0, 1], ids=["cheapest", "next"])
def always_walked(request, monkeypatch) -> list[str]:
    """Every block walks, also one that could hold all it loads; the axes that were walked along."""
    axes: list[str] = []

    def walked(problem: Problem) -> tuple[Problem, Placement] | None:
        anchor = place.find_anchor(problem)
        held = max(place._held(problem, anchor), 1)
        found = [(w, p) for w in walks(problem, anchor, held, max(held // 2, 1)) if (p := place._cheapest(w, anchor)) is not None]
        found.sort(key=lambda f: f[1].cost)
        axes.extend(w.walk.axis for w, _ in found[:1])
        return found[request.param % len(found)] if found else None

    monkeypatch.setattr(place, "_placed", lambda problem, whole=place._placed: walked(problem) or whole(problem))
    return axes


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in STEPS if n not in REFUSED])
def test_a_step_gives_the_same_when_its_block_walks(name: str, always_walked: list[str]) -> None:
    run_as_a_kernel(name)
    assert always_walked or name not in QUICK


def test_a_register_of_one_turn_is_not_used_after_the_loop() -> None:
    _, spec = kernel(*CASES["along the axis that is read once"][:2])
    first = next(i for i, s in enumerate(spec.body) if isinstance(s, Repeat))
    inner = next(s for s in spec.body[first].body if isinstance(s, Declare))
    after = Copy(Elem(inner.name, (Linear(),) * len(inner.shape)), Global("state", Linear()))
    with pytest.raises(InternalError, match=f"register {inner.name} is used where it is not declared"):
        verify_kernel(replace(spec, body=(*spec.body[:first + 1], after, *spec.body[first + 1:])))


def test_more_walks_than_a_function_should_need_are_refused() -> None:
    with pytest.raises(ResourceError, match="a block must hold 393216 bytes of x") as error:
        kernel(five_norms, dict(x=normal(2, 98304).abs() + 1))
    assert "at most" in str(error.value)
