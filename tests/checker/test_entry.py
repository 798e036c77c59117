"""`fusec.check` as a user calls it."""
import pytest
import torch

import fusec
from fusec.api import capture_graph, make_artifact
from fusec.checker import check_batch_mates, compiled


def step(x, w, pool, slots, scale=2.0):
    y = (x * w * scale).to(torch.bfloat16)
    h = pool[slots] * 0.5 + y
    pool[slots] = h
    return h.sum(-1), y


def inputs(rows=3, **more):
    torch.manual_seed(rows)
    return dict(x=torch.randn(rows, 16), w=torch.randn(16), pool=torch.randn(7, 16), slots=torch.randperm(7)[:rows], **more)


def test_a_report_says_what_was_compared_and_where_it_was_worst():
    report = fusec.check(step, inputs())
    assert report.ok and report.first is None and report.worst is not None and bool(report)
    text = str(report)
    assert text.startswith("step: ok at level graph") and "worst:" in text and "test_entry.py" in text


def test_the_inputs_stay_as_they_are():
    given = inputs()
    before = {n: t.clone() for n, t in given.items()}
    fusec.check(step, given, level="kernel")
    assert all(torch.equal(before[n], given[n]) for n in given)


def test_inputs_may_be_a_tuple_and_hold_constants():
    given = inputs()
    assert fusec.check(step, (*given.values(), 3.0)).ok
    assert fusec.check(step, dict(given, scale=0.25)).ok


def test_one_row_or_none_with_an_example():
    for rows in (0, 1):
        assert fusec.check(step, inputs(rows), inputs(), level="kernel").ok
    with pytest.raises(fusec.CaptureError, match="two rows"):
        fusec.check(step, inputs(1))


def test_an_artifact_knows_its_axes():
    example = inputs()
    artifact = make_artifact(step, capture_graph(step, {**example, "scale": 2.0}), {**example, "scale": 2.0}, None, (), None)
    for rows in (0, 1, 5):
        assert fusec.check(artifact, inputs(rows)).ok


def test_a_decorated_function_knows_its_example():
    @fusec.fuse(example=lambda rows, device: inputs(rows))
    def decorated(x, w, pool, slots):
        return step(x, w, pool, slots)

    assert fusec.check(decorated, inputs(1)).ok


def test_what_cannot_be_checked_is_refused():
    with pytest.raises(fusec.FusecError, match="level: expected one of graph, kernel"):
        fusec.check(step, inputs(), level="cpu")
    with pytest.raises(fusec.FusecError, match="all floating inputs are zero"):
        fusec.check(step, {n: torch.zeros_like(t) for n, t in inputs().items()})
    with pytest.raises(fusec.FusecError, match="expected a function"):
        fusec.check(3, inputs())
    with pytest.raises(fusec.ArgumentError, match="slots"):
        fusec.check(step, {n: t for n, t in inputs().items() if n != "slots"})
    with pytest.raises(fusec.ArgumentError, match="argument w: expected shape .16., given .8."):
        fusec.check(step, dict(inputs(), w=torch.randn(8)), inputs())
    if not torch.cuda.is_available():
        with pytest.raises(fusec.TargetError, match="expected a CUDA device"):
            fusec.check(step, inputs(), level="gpu")


def test_a_compiled_form_can_be_called_at_any_level():
    for level in ("graph", "kernel"):
        given, eager = inputs(), inputs()
        h, y = compiled(step, given, level)(**given)
        wanted = step(**eager)
        assert torch.allclose(h, wanted[0], rtol=1e-5, atol=1e-6) and torch.equal(y, wanted[1])
        assert torch.allclose(given["pool"], eager["pool"], rtol=1e-6)


def test_batch_mates_can_be_told_apart():
    """A row that looks at its mates is found: the mean over the batch reaches every row."""
    def alone(x, w):
        return x * w

    assert check_batch_mates(alone, dict(x=torch.randn(5, 8), w=torch.randn(8)), level="kernel").ok

    from fusec.checker.mates import compare_mates
    from fusec.checker.target import target, written_graph
    given = dict(x=torch.randn(5, 8), w=torch.randn(8))
    graph = written_graph(target(alone, given).stages)
    report = compare_mates("alone", graph, lambda t: {"out": t["x"] * t["w"] + t["x"].mean(0)}, given, "graph")
    assert not report.ok and report.first.rule == "bit for bit" and "of 5" in report.first.where


def test_batch_mates_of_arguments_that_repeat_themselves():
    """Along the rows and along another dim; what is repeated stays so in the batches that are made of it."""
    def scaled(x, w):
        return x * w

    for w in (torch.randn(1, 8).expand(5, 8), torch.randn(5, 1).expand(5, 8)):
        report = check_batch_mates(scaled, dict(x=torch.randn(5, 8), w=w), level="kernel")
        assert report.ok, str(report)


def codes(x):
    scale = x.float().abs().amax(-1, keepdim=True).clamp(min=1e-8) / 127.0
    q = torch.round(x.float() / scale).clamp(-128, 127).to(torch.int8)
    return q, (q[:, ::2].to(torch.int32) & 0xF) | (q[:, 1::2].to(torch.int32) << 4)


def test_a_code_whose_number_lies_between_two_in_fp32_may_be_either():
    from fusec.checker.method import Question, check
    x = torch.linspace(-4, 4, 160).view(2, 80).to(torch.bfloat16)
    x[:, :4] = torch.tensor([6.53125, 3.265625, -3.265625, 0.0])  # 63.5 in exact arithmetic, just below it in fp32.
    assert int(codes(x)[0][0, 1]) == 63 and fusec.check(codes, dict(x=x), level="kernel").ok

    graph = capture_graph(codes, dict(x=x)).need("graph")
    run = dict(zip(graph.outputs, codes(x.float() + 0.003)))  # A tenth of a code.
    compared, _, _ = check(Question("codes", graph, None, None, lambda t: run), dict(x=x))
    wrong = [c for c in compared if not c.ok]
    assert len(wrong) == 2 and all(2 < c.outside < 40 and "bit for bit" in c.rule for c in wrong)


def test_without_rows_eager_mode_may_not_run():
    report = fusec.check(lambda x: x.view(x.shape[0], 4, -1).sum(-1), dict(x=torch.empty(0, 8)), dict(x=torch.randn(3, 8)))
    assert report.ok and "eager mode" in report.notes[0]
