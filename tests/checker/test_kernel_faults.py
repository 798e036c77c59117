"""Faults planted into real kernels: each has to be noticed by the interpreter's laws or by the checker."""
from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fusec.checker.levels import poisoned
from fusec.checker.method import Question, check
from fusec.checker.probes import with_probes
from fusec.checker.target import folded, spec_for, target, written_graph
from fusec.errors import FusionError, InternalError
from fusec.ir.interpret_kernel import run_kernel
from fusec.ir.kernel import (
    Apply, Assign, Barrier, Compute, Copy, Declare, Global, Guard, KernelSpec, LaneReduce, Linear, Repeat, Round, Shared, Value,
    walk)
from fusec.ir.print_kernel import format_kernel
from fusec.recipes.gla_decode import gla_decode
from fusec.recipes.rmsnorm import add_rmsnorm_quant
from fusec.recipes.short_conv import short_conv

RECIPES = [(short_conv, dict(C=40)), (gla_decode, dict(H=2, K=12, V=24)), (add_rmsnorm_quant, dict(D=320))]
OTHER = {"add": "sub", "sub": "add", "mul": "add", "mul_rn": "add", "max": "min", "min": "max", "maxnum": "min", "exp": "exp2",
         "rsqrt": "sqrt"}


def value_faults(v: Value):
    """(what, other value) for every single fault inside an expression."""
    if isinstance(v, Round):
        yield "a rounding is dropped", v.value
        yield from (((what, replace(v, value=inner))) for what, inner in value_faults(v.value))
    if isinstance(v, Apply):
        if v.fn in OTHER:
            yield f"{v.fn} becomes {OTHER[v.fn]}", replace(v, fn=OTHER[v.fn])
        for i, arg in enumerate(v.args):
            for what, inner in value_faults(arg):
                yield what, replace(v, args=(*v.args[:i], inner, *v.args[i + 1:]))


def faults(body: tuple):
    """(what, other body) for every single fault in a list of statements; a fault may be several statements deep."""
    for i, s in enumerate(body):
        for what, other in statement_faults(s):
            yield what, (*body[:i], *other, *body[i + 1:])


def statement_faults(s):
    if isinstance(s, Copy):
        memory = [p for p in ("source", "target") if isinstance(getattr(s, p), (Global, Shared))]
        for place in memory:
            to = getattr(s, place)
            shifted = replace(to, offset=to.offset + Linear((), s.width))
            yield f"a copy's {place} is {s.width} further on", (replace(s, **{place: shifted}),)
        if isinstance(s.target, (Global, Shared)):
            yield f"a store to {getattr(s.target, 'tensor', getattr(s.target, 'buffer', ''))} is missing", ()
    elif isinstance(s, Compute):
        for i, a in enumerate(s.body):
            for what, value in value_faults(a.value):
                yield what, (replace(s, body=(*s.body[:i], replace(a, value=value), *s.body[i + 1:])),)
    elif isinstance(s, Assign):
        for what, value in value_faults(s.value):
            yield what, (replace(s, value=value),)
    elif isinstance(s, LaneReduce):
        yield "a reduction over lanes is missing", ()
        if s.lanes > 2:
            yield "a reduction covers half its lanes", (replace(s, lanes=s.lanes // 2),)
    elif isinstance(s, Barrier):
        yield "a barrier is missing", ()
    elif isinstance(s, (Guard, Repeat)):
        for what, other in faults(s.body):
            yield what, (replace(s, body=other),)


def held(spec: KernelSpec) -> dict[str, str]:
    """What each declared register holds: one of a narrow type rounds by itself."""
    return {s.name: s.dtype for s in walk(spec.body) if isinstance(s, Declare)}


def real(fault: str, before: KernelSpec, after: KernelSpec) -> bool:
    """Not a rounding into a register of that type, whose loss changes nothing."""
    if fault != "a rounding is dropped":
        return True
    types = held(before)
    pairs = zip(walk(before.body), walk(after.body), strict=True)
    lost = [x for a, b in pairs if a != b and isinstance(a, Compute) for x, y in zip(a.body, b.body, strict=True) if x != y]
    return all(types.get(x.target.name) in (None, "f32") for x in lost)


def prepared(fn, sizes):
    """(question without builds, check build's graph and kernel, production's, tensors)."""
    torch.manual_seed(2)
    example = fn.inputs(8, **sizes)
    if "idx" in example:
        example["idx"][0] -= example["pool"].shape[0]  # Negative indices wrap: that too is code with faults to be found.
    goal = target(fn, example, example)
    graph, final = written_graph(goal.stages), goal.stages.need("graph")
    checked = folded(with_probes(graph))
    specs = [(g, spec_for(goal, g, {**example, **poisoned(g, example)}, i)) for i, g in enumerate((checked, final))]
    return Question(goal.name, graph, None, None, None), *specs, example


def executed(spec: KernelSpec, graph):
    def run(mine):
        out = poisoned(graph, mine)
        run_kernel(spec, {**mine, **out})
        return out
    return run


def noticed(question: Question, tensors) -> bool:
    try:
        compared, _, _ = check(question, tensors)
    except InternalError:
        return True
    return not all(c.ok for c in compared)


def sampled(spec: KernelSpec, most: int):
    planted = [(what, replace(spec, body=body)) for what, body in faults(spec.body)]
    planted = [(what, wrong) for what, wrong in planted if real(what, spec, wrong)]
    assert len(planted) >= 8 and any("store" in what for what, _ in planted)
    return planted[::max(1, len(planted) // most)]  # A sample over the whole kernel: each costs a run.


HARMLESS = {"rsqrt = rsqrt(((sum / 320.0) - 1e-06))"}
"""An epsilon of the wrong sign moves a mean square near 1 by less than the fp32 tolerance."""


@pytest.mark.parametrize("fn, sizes", RECIPES, ids=["short_conv", "gla_decode", "add_rmsnorm_quant"])
def test_every_fault_in_a_production_build_is_noticed(fn, sizes):
    question, _, (graph, spec), tensors = prepared(fn, sizes)
    ask = lambda s: noticed(replace(question, production=executed(s, graph)), tensors)  # noqa: E731
    assert not ask(spec)
    missed = [(what, wrong) for what, wrong in sampled(spec, 30) if what != "a rounding is dropped" and not ask(wrong)]
    assert not [what for what, wrong in missed if not any(h in format_kernel(wrong) for h in HARMLESS)]


@pytest.mark.parametrize("fn, sizes", RECIPES, ids=["short_conv", "gla_decode", "add_rmsnorm_quant"])
def test_every_rounding_dropped_from_a_check_build_is_noticed(fn, sizes):
    question, (graph, spec), _, tensors = prepared(fn, sizes)

    def ask(wrong):
        def build(probed, mine):
            if probed.outputs != graph.outputs:
                raise FusionError("this kernel stores its roundings and nothing else")
            return executed(wrong, graph)(mine)
        return noticed(replace(question, check_build=build), tensors)

    assert not ask(spec)
    lost = [(what, replace(spec, body=body)) for what, body in faults(spec.body) if what == "a rounding is dropped"]
    lost = [wrong for what, wrong in lost if real(what, spec, wrong)]
    assert lost and all(ask(wrong) for wrong in lost)
