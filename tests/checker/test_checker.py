"""A checker that cannot fail is worthless: every error planted here must be found, and named."""
from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import fusec
from fusec.api import capture_graph
from fusec.checker.method import Question, check
from fusec.checker.levels import interpreted
from fusec.checker.report import Report
from fusec.ir.axis import Axis
from fusec.ir.graph import Digit, Index, Ref
from fusec.ir.scalar import Lit

from .graphs import D, inputs, step, step_graph, with_node, with_op

GRAPH = step_graph()


def eager(t):
    return dict(zip(("out", "scale", "count"), step(t["x"], t["w"], t["idx"], t["window"], t["pool"])))


def ask(fault=lambda g: g, after=lambda tensors, outputs: None, function=eager, given=None, production=True) -> Report:
    """A report on a kernel that is the graph with a fault planted, and after whose run `after` may damage what it left."""
    def build(graph, tensors):
        out = interpreted(fault(graph), tensors)
        after(tensors, out)
        return out

    run = (lambda t: build(GRAPH, t)) if production else None
    compared, notes, located = check(Question("step", GRAPH, function, build, run), given or inputs())
    return Report("step", "graph", compared, notes, "", located)


def test_the_right_kernel_passes():
    report = ask()
    assert report.ok and report and report.first is None
    assert {c.where for c in report.compared} == {"the function in eager mode", "check build", "production build"}
    assert report.worst is not None and 0 < report.worst.excess < 1
    assert "step: ok at level graph" in str(report)


FAULTS = {
    # (planted, the value that must be named, the line that must be named)
    "a dropped rounding": (lambda g: with_node(g, "y", dtype="f32"), "y", "step+3"),
    "an invented rounding": (lambda g: with_node(g, "h1", dtype="bf16"), "h1", "step+6"),
    "a rounding to another type": (lambda g: with_node(g, "y", dtype="f16"), "y", "step+3"),
    "another constant": (lambda g: with_op(g, "h1", args=(Ref("h0"), Lit(0.9001))), "h1", "step+6"),
    "another function": (lambda g: with_op(g, "h", fn="sub"), "h", "step+6"),
    "one operand too many read as another": (lambda g: with_op(g, "o", args=(Ref("h1"), Ref("inv"))), "o", "step+9"),
    "a coordinate off by one": (
        lambda g: with_op(g, "o", args=(Ref("h", (("d", Index(None, 3)),)), Ref("inv"))), "o", "step+9"),
    "a reduction that misses elements": (
        lambda g: with_op(g, "total", args=(Ref("y", (("d", Index("short")),)),), axes=(Axis("short", D - 1),)),
        "total", "step+10"),
    "a window that moves by two": (
        lambda g: with_op(g, "full", parts=((0, 1, Ref("old", (("t", Index("t", 2)),))), (1, 2, Ref("x_v")))), "window", "step+4"),
    "a window that does not move": (
        lambda g: with_op(g, "full", parts=((0, 2, Ref("old")), (2, 1, Ref("x_v")))), "window", "step+4"),
    "an integer off by one": (lambda g: with_op(g, "n", args=(Ref("idx_v"), Lit(2))), "count", "step+11"),
    "another slot written": (
        lambda g: with_op(g, "s_pool", index=((Digit(Index("r")),), (Digit(Index("d")),))), "pool", "step+6"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_error_is_named(fault):
    plant, value, line = FAULTS[fault]
    report = ask(plant)
    assert not report.ok and not report
    first = report.first
    assert first.value.startswith(value) and first.line == line, str(report)
    assert first.row is not None and first.kernel != first.model
    assert "WRONG" in str(report) and first.line in str(report)


def test_only_the_wrong_row_is_named():
    def damage(tensors, out):
        out["out"][4, 7] += 0.5

    report = ask(after=damage)
    assert report.first.row == 4 and ("d", 7) in report.first.coordinates and report.first.value.startswith("out")
    assert abs(report.first.kernel - report.first.model) == pytest.approx(0.5, rel=1e-2)


def test_a_stale_slot_write_is_named_with_its_row():
    given = inputs()

    def damage(tensors, out):
        tensors["pool"][given["idx"][2].long()] = given["pool"][given["idx"][2].long()]

    report = ask(after=damage, given=given)
    assert report.first.row == 2 and report.first.value.startswith("pool") and report.first.line == "step+6"


def test_one_ulp_of_flips_passes_and_two_do_not():
    def nudge(by):
        def damage(tensors, out):
            pattern = out["probe_y"].to(torch.bfloat16).view(torch.int16)
            pattern[1, 1] += by
            out["probe_y"].copy_(pattern.view(torch.bfloat16).float())
        return damage

    def only_check(by):
        def build(graph, tensors):
            out = interpreted(graph, tensors)
            nudge(by)(tensors, out)
            return out
        compared, _, _ = check(Question("step", GRAPH, None, build, None), inputs())
        return {c.name: c.ok for c in compared}

    assert only_check(1)["y"] and not only_check(2)["y"]
    # The model went on from the nudged value, the kernel did not: what is computed from it differs.
    assert not only_check(1)["pool"] or not only_check(1)["scale"]


def test_bytes_of_nobody_must_stay():
    given = inputs()
    storage = torch.randn(11, D + 8)
    given["pool"] = storage[:, 3:3 + D]
    given["pool"].copy_(inputs()["pool"])

    def gap(tensors, out):
        tensors["pool"].as_strided((1,), (1,), 1).fill_(1.0)

    free = next(s for s in range(11) if s not in given["idx"].tolist())

    def slot(tensors, out):
        tensors["pool"][free, 5] = 1.0

    for damage, word in ((gap, "in a gap"), (slot, f"element [{free}, 5]")):
        report = ask(after=damage, given=given)
        assert not report.ok and "no live row owns" in str(report.first) and word in str(report.first), str(report)
    assert ask(given=given).ok


def test_gaps_and_slots_of_nobody_are_poisoned_before_a_run():
    given, seen = inputs(), []

    def look(tensors, out):
        seen.append(tensors["pool"].clone())

    ask(after=look, given=given)
    free = [s for s in range(11) if s not in given["idx"].tolist()]
    assert not torch.equal(seen[0][free].view(torch.int32), given["pool"][free].view(torch.int32))


def test_an_output_that_was_never_written_is_found():
    report = ask(lambda g: g.with_nodes(tuple(n for n in g.nodes if n.name != "s_total")))
    assert not report.ok and report.first.kernel == 777.0 and report.first.value.startswith("scale")


def test_minus_zero_is_no_zero_where_values_are_moved():
    given = inputs()
    given["window"][3, 4, 2] = -0.0

    def damage(tensors, out):
        tensors["window"][3, 4, 1] = 0.0

    report = ask(after=damage, given=given)
    assert not report.ok and report.first.rule == "bit for bit" and report.first.row == 3
    assert ask(given=given).ok


def test_nan_and_infinity_are_compared_as_such():
    given = inputs()
    given["x"][1, 2], given["x"][2, 3] = float("nan"), float("inf")
    assert ask(given=given).ok

    def damage(tensors, out):
        out["scale"][1] = 0.0

    report = ask(after=damage, given=given)
    assert not report.ok and report.first.row == 1 and report.first.model != report.first.model


def test_a_function_that_was_captured_wrongly_is_found():
    def other(t):
        t = dict(t, w=t["w"] * 1.001)
        return eager(t)

    report = ask(function=other)
    assert not report.ok and report.first.where == "the function in eager mode"


def test_a_production_build_that_drops_a_rounding_is_found():
    right = lambda graph, tensors: interpreted(graph, tensors)  # noqa: E731
    wrong = lambda tensors: interpreted(with_node(GRAPH, "y", dtype="f32"), tensors)  # noqa: E731
    compared, notes, located = check(Question("step", GRAPH, eager, right, wrong), inputs())
    report = Report("step", "graph", compared, notes, "", located)
    assert not report.ok and {c.where for c in report.compared if not c.ok} == {"production build"}


def test_honest_flips_pass_in_a_production_build_and_others_do_not():
    """A value next to a midpoint may be rounded to either side; one far from any may not, although both are one ulp away."""
    given = inputs()
    given["x"][:] = given["x"].float().clamp(min=0.5).to(torch.bfloat16)
    given["w"][:] = 1.1
    given["x"][0, 0], given["w"][0] = 1.0, 1.0 + 2.0 ** -8 - 2.0 ** -22  # Just below the midpoint between 1 and 1 + 2^-7.

    def flipped(at):
        def run(tensors):
            moved = dict(tensors, w=tensors["w"].clone())
            moved["w"][at] = tensors["w"][at] + 2.0 ** -8 * (1.0 if at else 2.0 ** -8)
            return interpreted(GRAPH, moved)
        return run

    for at, ok in ((0, True), (9, False)):
        compared, _, _ = check(Question("step", GRAPH, eager, None, flipped(at)), given)
        assert all(c.ok for c in compared) == ok, [c for c in compared if not c.ok]


def test_every_rounding_has_a_probe_and_nothing_else():
    from fusec.checker.probes import roundings, with_probes
    assert [n.name for n in roundings(GRAPH)] == ["y", "o"]
    probed = with_probes(GRAPH)
    assert probed.outputs == ("out", "scale", "count", "probe_y", "probe_o")
    plain, more = inputs(), inputs()
    first, second = interpreted(GRAPH, plain), interpreted(probed, more)
    for name in ("out", "scale", "count"):
        assert torch.equal(first[name], second[name])
    assert torch.equal(plain["pool"], more["pool"]) and torch.equal(plain["window"], more["window"])
    assert torch.equal(second["probe_y"], (inputs()["x"] * inputs()["w"]).bfloat16().float())


def test_a_lossless_cast_is_no_rounding():
    from fusec.checker.probes import roundings
    wide = with_node(with_op(GRAPH, "o", fn="identity", args=(Ref("y"),)), "o", dtype="bf16")
    assert [n.name for n in roundings(wide)] == ["y"]
    narrower = replace(wide, nodes=tuple(replace(n, dtype="f8e4m3") if n.name == "o" else n for n in wide.nodes))
    assert [n.name for n in roundings(narrower)] == ["y", "o"]


def left_of_much(x, y):
    h = x * 1e4
    return (h + y) - h, ((h + y) - h).bfloat16() * 2


def variance(x, y):
    return (x + 20).square().mean(-1) - (x + 20).mean(-1).square() + y[:, 0]


@pytest.mark.parametrize("fn", [left_of_much, variance])
def test_what_is_left_where_terms_cancel_is_compared_as_fp32_can_have_it(fn):
    torch.manual_seed(0)
    given = (torch.randn(4, 128), torch.randn(4, 128))
    for level in ("graph", "kernel"):
        report = fusec.check(fn, given, level=level)
        assert report.ok, str(report)


def test_what_is_left_where_terms_cancel_is_still_compared():
    torch.manual_seed(0)
    graph = capture_graph(left_of_much, dict(x=torch.randn(4, 128), y=torch.randn(4, 128))).need("graph")
    given = dict(x=torch.randn(4, 128), y=torch.randn(4, 128))

    def wrong(tensors):
        found = interpreted(graph, tensors)
        found["out0"][2, 7] += 0.03
        return found
    compared, _, _ = check(Question("left", graph, None, None, wrong), given)
    assert [c.outside for c in compared if c.name.startswith("out0")] == [1]
    assert not all(c.ok for c in compared)
