"""The differential debugger: a fault planted into a pass is named at the level and the source line where it was made."""
from dataclasses import replace

import pytest
import torch

import fusec
from fusec.checker import check, diagnose, until
from fusec.ir.graph import Index, Ref
from fusec.ir.kernel import LaneReduce
from fusec.ir.rewrite import map_refs
from fusec.passes import axes, back, front


def step(x, w, pool, slots):
    y = (x * w).to(torch.bfloat16)
    h = pool[slots] * 0.5 + y.unsqueeze(-1)
    m = h.sum(-1)
    n = m * torch.rsqrt(m.square().mean(-1, keepdim=True) + 1e-6)
    pool[slots] = h
    return n.to(torch.bfloat16)


def inputs(rows=3, seed=0):
    g = torch.Generator().manual_seed(seed)
    return dict(x=torch.randn(rows, 16, generator=g), w=torch.randn(16, generator=g), pool=torch.randn(6, 16, 16, generator=g),
                slots=torch.randperm(6, generator=g)[:rows])


def line(difference):
    return difference.loc.frames[0].offset


def test_a_right_function_agrees_at_every_level():
    found = diagnose(step, inputs())
    assert found.ok and [s.level for s in found.steps][:4] == ["eager", "graph", "kernel", "emulate"], str(found)


def test_a_wrong_axis_in_the_graph_is_named_at_its_line(monkeypatch):
    def wrong(graph):
        """m summed over the other axis of h, and whoever reads it along the axis that is left."""
        made = assign(graph)
        m = next(n for n in made.nodes if n.loc.target == "m")
        own, summed = next(a for a in m.axes if not a.dynamic), m.op.axes[0]
        other = replace(m, op=replace(m.op, axes=(own,)), axes=tuple(summed if a == own else a for a in m.axes))

        def bind(ref):
            return Ref(ref.value, ((summed.name, Index(own.name)),)) if ref.value == m.name else ref
        return made.with_nodes(tuple(other if n is m else replace(n, op=map_refs(n.op, bind)) for n in made.nodes))

    assign = axes.assign_axes
    monkeypatch.setattr(axes, "assign_axes", wrong)
    monkeypatch.setattr(front, "assign_axes", wrong)
    found = diagnose(step, inputs(), level="graph")
    assert found.level == "axes" and line(found.first) == 3 and found.first.loc.target == "m", str(found)
    assert "named axes" in str(found) and "captured graph" in str(found) and "m = h.sum(-1)" in str(found)


def test_a_lost_rounding_is_named_at_its_line(monkeypatch):
    def lost(graph):
        return graph.with_nodes(tuple(replace(n, dtype="f32") if n.loc.target == "y" else n for n in graph.nodes))

    monkeypatch.setattr(front, "GRAPH_PASSES", (*front.GRAPH_PASSES, ("lossy", lost)))
    found = diagnose(step, inputs())
    assert found.level == "graph" and line(found.first) == 1 and found.first.row is not None, str(found)


def test_a_missing_fold_in_the_kernel_is_named_at_its_line(monkeypatch):
    real = back.to_kernel

    def without(body):
        found, dropped = [], False
        for s in body:
            if isinstance(s, LaneReduce) and not dropped:
                dropped = True
                continue
            found.append(s)
        return tuple(found)

    def to_kernel(*args):
        schedule, spec = real(*args)
        return schedule, replace(spec, body=without(spec.body))

    monkeypatch.setattr(back, "to_kernel", to_kernel)
    found = diagnose(step, inputs(), level="kernel")
    assert found.level == "kernel" and line(found.first) in (3, 4) and found.first.row == 0, str(found)


def test_until_shows_a_value_at_every_level():
    text = until(step, inputs(), "m")
    assert "m [rows" in text.replace("row:", "rows:") or text.startswith("m"), text
    assert "step+3" in text and "m = h.sum(-1)" in text
    for level in ("model", "graph", "kernel", "emulate"):
        assert f"\n  {level}" in text
    assert until(step, inputs(), "step+1", level="graph").splitlines()[0].count("bf16") == 1
    with pytest.raises(fusec.FusecError, match="--until nope: expected a value of step.*\n*.*values: "):
        until(step, inputs(), "nope", level="graph")


def test_a_law_that_the_emitted_file_breaks_is_shown_with_both_lines(monkeypatch):
    from fusec.codegen import render as module
    real = module.render
    monkeypatch.setattr(module, "render", lambda spec: real(spec).replace("(pool, ", "(pool, 4096 + ", 1))
    report = check(step, inputs(), level="emulate")
    assert not report.ok and report.laws, str(report)
    assert len(report.laws) == 2 and "out-of-bounds: load of byte" in report.laws[0], report.laws
    assert "emitted line" in report.laws[0] and "step+2: h = pool[slots]" in report.laws[0]
    assert report.laws[0].splitlines()[1] in str(report)
