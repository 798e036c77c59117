"""Blocks of a cluster that share out an axis which some store lacks or which a reduction folds: results, barriers, who stores."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from fusec.capture import capture
from fusec.cli_stages import explain
from fusec.codegen.render import render
from fusec.errors import InternalError
from fusec.ir.interpret_kernel import run_kernel
from fusec.ir.kernel import Barrier, Copy, Digit, Global, Guard, KernelSpec, Less, Let, Linear, Shared, Statement, Term, walk
from fusec.passes import place
from fusec.passes.back import to_kernel
from fusec.passes.clusters import clusters
from fusec.passes.front import to_graph
from fusec.passes.pipeline import compile
from fusec.passes.problem import Placement, Problem

from .steps import STEPS
from .test_steps_as_kernels import REFUSED
from .test_steps_as_kernels import test_step_as_a_kernel as run_as_a_kernel
from .test_walks import CASES, normal


def shared_window(window, x, taps, state, v, index):
    """Two heads read one window of keys, which shifts: window [S, K, 3] and state [S, 2, K, V] at index [R]."""
    full = torch.cat([window[index], x.unsqueeze(-1)], -1)
    window[index] = full[..., 1:]
    k = F.silu((full * taps).sum(-1))
    h = state[index] * 0.5 + k[:, None, :, None] * v[:, :, None, :]
    state[index] = h
    return (h * k[:, None, :, None]).sum(-2)


def given() -> dict[str, torch.Tensor]:
    return dict(window=normal(5, 128, 3), x=normal(3, 128), taps=normal(128, 4), state=normal(5, 2, 128, 128), v=normal(3, 2, 128),
                index=torch.tensor([4, 0, 2]))


def kernel(fn, inputs: dict[str, torch.Tensor]) -> tuple[tuple[str, ...], KernelSpec]:
    graph = to_graph(capture(fn, {n: t.clone() for n, t in inputs.items()}))
    return graph.outputs, to_kernel(graph, "sm_90a")[1]


def runs_as(fn, inputs: dict[str, torch.Tensor], outputs: tuple[str, ...], spec: KernelSpec) -> None:
    theirs, ours = ({n: t.clone() for n, t in inputs.items()} for _ in range(2))
    expected = fn(**theirs)
    ours[outputs[0]] = torch.full_like(expected, 77)
    run_kernel(spec, ours)
    step = 2 ** -7 if expected.dtype == torch.bfloat16 else 2e-5
    torch.testing.assert_close(ours[outputs[0]], expected, rtol=step, atol=1e-4)
    for name in inputs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=2e-5, atol=1e-6)


@pytest.fixture
def always_shared(monkeypatch) -> list[int]:
    """Every block that can be is one of a cluster; the sizes of the clusters."""
    sizes: list[int] = []

    def shared(problem: Problem, found: tuple[Problem, Placement] | None) -> tuple[Problem, Placement] | None:
        anchor = place.find_anchor(problem)
        for one in clusters(problem, anchor):
            placed = place._cheapest(one, anchor)
            if placed is not None:
                sizes.append(one.grid.peers)
                return one, placed
        return found

    monkeypatch.setattr(place, "_shared_out", shared)
    return sizes


def barriers(spec: KernelSpec, scope: str) -> list[Barrier]:
    return [s for s in walk(spec.body) if isinstance(s, Barrier) and s.scope == scope]


QUICK = ("scan_with_conv", "two_householder_steps", "ring_buffer", "several_tokens")


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in STEPS if n not in REFUSED])
def test_a_step_gives_the_same_when_blocks_share_it(name: str, always_shared: list[int]) -> None:
    run_as_a_kernel(name)


@pytest.mark.parametrize("name", CASES)
def test_what_would_walk_is_shared_out(name: str, always_shared: list[int]) -> None:
    fn, inputs, _ = CASES[name]
    outputs, spec = kernel(fn, inputs)
    assert always_shared and spec.launch.cluster == always_shared[-1] > 1
    runs_as(fn, inputs, outputs, spec)


def first_block_only(body: tuple[Statement, ...], inside: bool = False) -> Iterator[tuple[Copy, bool]]:
    """Every store, and whether the first block of the cluster alone makes it."""
    for s in body:
        if isinstance(s, Guard):
            alone = any(isinstance(c, Less) and c.bound == 1 and {t.var for t in c.value.terms} & {"state_1"} for c in s.when)
            yield from first_block_only(s.body, inside or alone)
        elif isinstance(s, Copy) and isinstance(s.target, Global):
            yield s, inside


def test_one_block_stores_what_all_have_after_all_have_read(always_shared: list[int]) -> None:
    outputs, spec = kernel(shared_window, given())
    assert spec.launch.cluster == 2
    alone = {c.target.tensor: only for c, only in first_block_only(spec.body) if isinstance(c.target, Global)}
    assert alone.pop("window") and not any(alone.values())
    found = barriers(spec, "cluster")
    assert len(found) == 1 and found[0].reasons[-1] == "window: read → overwrite"
    assert not barriers(spec, "arrive"), "nobody writes into another block's shared memory"
    runs_as(shared_window, given(), outputs, spec)
    text = render(spec)
    assert "cluster=(CLUSTER, 1, 1)" in text and "CLUSTER = 2" in text and "cute.arch.cluster_wait()  # window: read" in text


def without(body: tuple[Statement, ...], scope: str) -> tuple[Statement, ...]:
    """The statements with barriers of the block in place of those of this scope, which order nothing between blocks."""
    out: list[Statement] = []
    for s in body:
        if isinstance(s, Barrier) and s.scope == scope:
            out += [replace(s, scope="block")] if scope == "cluster" else []
        elif isinstance(s, Guard):
            out.append(replace(s, body=without(s.body, scope)))
        else:
            out.append(s)
    return tuple(out)


def test_a_window_that_is_overwritten_too_early_is_a_race(always_shared: list[int]) -> None:
    outputs, spec = kernel(shared_window, given())
    with pytest.raises(InternalError, match="race: tensor window is written while another thread reads"):
        runs_as(shared_window, given(), outputs, replace(spec, body=without(spec.body, "cluster")))


def row_norm(x):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


def test_parts_are_pushed_into_every_block(always_shared: list[int]) -> None:
    inputs = dict(x=normal(3, 65536))
    outputs, spec = kernel(row_norm, inputs)
    pushes = [s for s in walk(spec.body) if isinstance(s, Copy) and isinstance(s.target, Shared) and s.target.peer is not None]
    assert len(pushes) == 1 and pushes[0].loops[0].extent == spec.launch.cluster
    assert [len(barriers(spec, s)) for s in ("arrive", "wait", "cluster")] == [1, 1, 1]
    runs_as(row_norm, inputs, outputs, spec)


@pytest.mark.parametrize("scope, law", [
    ("wait", "another block's shared memory is written before all blocks of the cluster run"),
    ("cluster", "no barrier of the cluster lies after another block's write")])
def test_parts_that_are_pushed_too_early_or_read_too_early(always_shared: list[int], scope: str, law: str) -> None:
    inputs = dict(x=normal(3, 65536))
    outputs, spec = kernel(row_norm, inputs)
    with pytest.raises(InternalError, match=law):
        runs_as(row_norm, inputs, outputs, replace(spec, body=without(spec.body, scope)))


def test_there_is_no_peer_beyond_the_cluster(always_shared: list[int]) -> None:
    inputs = dict(x=normal(3, 65536))
    outputs, spec = kernel(row_norm, inputs)

    def farther(s: Statement) -> Statement:
        if isinstance(s, Guard):
            return replace(s, body=tuple(farther(inner) for inner in s.body))
        if isinstance(s, Copy) and isinstance(s.target, Shared) and s.target.peer is not None:
            return replace(s, target=replace(s.target, peer=s.target.peer + Linear((), 1)))
        return s

    with pytest.raises(InternalError, match=f"there is no block of rank {spec.launch.cluster} in a cluster"):
        runs_as(row_norm, inputs, outputs, replace(spec, body=tuple(farther(s) for s in spec.body)))


def rolled(x, state):
    h = state + x
    state.copy_(torch.roll(h, 1, -1))
    return h.sum(-1)


def test_what_other_blocks_overwrite_is_read_first(always_shared: list[int]) -> None:
    inputs = dict(x=normal(3, 4096), state=normal(3, 4096))
    outputs, spec = kernel(rolled, inputs)
    order = [s for s in walk(spec.body) if isinstance(s, Copy) and isinstance(s.target, Global) or isinstance(s, Barrier)]
    met = next(i for i, s in enumerate(order) if isinstance(s, Barrier) and s.scope == "cluster")
    assert all(i > met for i, s in enumerate(order) if isinstance(s, Copy) and s.node.startswith("store_state"))
    runs_as(rolled, inputs, outputs, spec)


def test_an_axis_read_at_another_place_is_not_shared_out(monkeypatch) -> None:
    def neighbours(x):
        y = torch.exp(x.float())
        return (y + torch.roll(y, 1, -1)).sum(-1)

    graph = to_graph(capture(neighbours, dict(x=normal(3, 4096))))
    seen: list[str] = []

    def look(problem: Problem, found: tuple[Problem, Placement] | None) -> tuple[Problem, Placement] | None:
        seen.extend(c.grid.cluster for c in clusters(problem, place.find_anchor(problem)))
        return found

    monkeypatch.setattr(place, "_shared_out", look)
    to_kernel(graph, "sm_90a")
    assert seen == []


def test_a_block_of_enough_for_two_on_a_multiprocessor_stays_alone() -> None:
    _, spec = kernel(row_norm, dict(x=normal(3, 4096)))
    assert spec.launch.cluster == 1 and not barriers(spec, "cluster")


def test_ranks_are_the_innermost_part_of_the_grid(always_shared: list[int]) -> None:
    _, spec = kernel(row_norm, dict(x=normal(3, 65536)))
    assert spec.launch.grid[0][-1] == spec.launch.cluster
    first = next(s for s in spec.body if isinstance(s, Let) and s.value == Digit("block_x", 1, spec.launch.cluster))
    loads = [s.source for s in walk(spec.body) if isinstance(s, Copy) and isinstance(s.source, Global)]
    assert loads and all(Term(first.name, 65536 // spec.launch.cluster) in place.offset.terms for place in loads)


def test_explain_tells_what_a_cluster_shares(always_shared: list[int]) -> None:
    stages = compile(capture(shared_window, given()), "sm_90a", until="kernel")
    text = explain(stages, 9)
    axis, = (line.rpartition(" ")[2] for line in stages.need("kernel").summary if line.startswith("clusters: "))
    owned, = (line.partition(": ")[0] for line in text.splitlines() if line.startswith("  one cluster"))
    assert f"2 blocks of a cluster share out {axis}: " in text and axis not in owned
    assert "a barrier of the cluster: " in text
