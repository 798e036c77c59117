"""Which dims follow the rows where no index says so: arguments that are not read, results that do not lead with the rows."""

import pytest
import torch

import fusec
from fusec.capture import capture
from fusec.errors import ArgumentError, CaptureError

from .steps import normal


def shapes(graph):
    return {a.name: [str(n) for n in a.shape] for a in graph.arguments}


def test_an_argument_that_is_not_read_may_have_any_size():
    graph = capture(lambda x, spare, y: x + y, dict(x=normal(3, 6), spare=normal(3, 6), y=normal(3, 6)))
    assert shapes(graph) == {"x": ["rows", "6"], "spare": ["spare_0", "spare_1"], "y": ["rows", "6"]}
    assert graph.arguments[1].strides == (None, None)


def ones_of_shape(x, state, index):
    return state[index].sum(-1) * torch.ones(x.shape[0], 1)


def filled(x, y):
    out = torch.empty_like(x)
    out[:, 0], out[:, 1:] = y[:, 1], y[:, :-1] * 2
    return out


def sizes_of(x, y):
    rows, heads, width = x.shape
    return y.view(rows, heads, width) * 2


def test_an_argument_whose_shape_alone_is_used_follows_what_its_shape_is_used_for():
    graph = capture(ones_of_shape, dict(x=normal(3, 6), state=normal(9, 5, 4), index=torch.tensor([1, 2, 4])))
    assert shapes(graph)["x"] == ["rows", "x_1"] and shapes(graph)["index"] == ["rows"]
    assert shapes(capture(filled, dict(x=normal(3, 6), y=normal(3, 6)))) == {"x": ["rows", "6"], "y": ["rows", "6"]}
    assert shapes(capture(sizes_of, dict(x=normal(3, 2, 6), y=normal(6, 6)))) == {"x": ["rows", "2", "6"], "y": ["2*rows", "6"]}


def by_groups(x, weight):
    """[rows, heads, d] -> [heads / 2, rows, 2 d]"""
    return (x * weight[:, None]).unflatten(1, (-1, 2)).movedim(1, 0).flatten(2)


def test_results_by_groups_have_the_rows_of_the_arguments():
    graph = capture(by_groups, dict(x=normal(3, 8, 4), weight=normal(8)))
    assert shapes(graph) == {"x": ["rows", "8", "4"], "weight": ["8"]}


def test_arguments_that_disagree_on_what_is_outermost_are_an_error_that_names_both():
    with pytest.raises(CaptureError, match="several dims could be the rows: dim 0 of x.*; dim 1 of x") as error:
        capture(lambda x, y: x + y.T, dict(x=normal(3, 4), y=normal(4, 3)))
    assert "dynamic_shapes" in error.value.hint


def test_an_outer_product_has_the_rows_that_lead_its_result():
    assert shapes(capture(lambda a, b: a[:, None] * b, dict(a=normal(3), b=normal(4)))) == {"a": ["rows"], "b": ["4"]}


def lengths(x, offsets):
    return x * (offsets[1:] - offsets[:-1])[:, None]


def test_offsets_are_one_more_than_the_rows():
    offsets = torch.arange(4)
    assert shapes(capture(lengths, dict(x=normal(3, 6), offsets=offsets))) == {"x": ["rows", "6"], "offsets": ["rows + 1"]}
    first = capture(lambda offsets, x: lengths(x, offsets.long()), dict(offsets=offsets.int(), x=normal(3, 6)))
    assert shapes(first) == {"offsets": ["rows + 1"], "x": ["rows", "6"]}
    assert shapes(capture(lambda x, w: x * w[:, 1:], dict(x=normal(3, 6), w=normal(3, 7))))["w"] == ["rows", "7"]


def between_offsets(parts, offsets):
    """The sum of the parts of every row, at most 3 of them: parts [all, D], offsets [rows + 1] -> [rows, D]."""
    place = offsets[:-1, None] + torch.arange(3)
    live = place < offsets[1:, None]
    return torch.where(live[..., None], parts[torch.where(live, place, 0).long()], 0.0).sum(1)


def some_parts(*lengths):
    return dict(parts=normal(9, 4), offsets=torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0).int())


@pytest.mark.parametrize("marks", [None, {"offsets": {0: torch.export.Dim("tokens")}}])
def test_rows_that_only_offsets_count(marks):
    first = some_parts(2, 0, 3, 1)
    assert shapes(capture(between_offsets, first, marks)) == {"parts": ["parts_0", "4"], "offsets": ["rows + 1"]}
    for given in (first, some_parts(3), some_parts(1, 0, 2, 3, 0, 1)):
        report = fusec.check(between_offsets, given, first, level="kernel")
        assert report.ok, str(report)
    with pytest.raises(ArgumentError, match="at least 1"):
        fusec.check(between_offsets, dict(some_parts(3), offsets=torch.zeros(0, dtype=torch.int32)), first, level="kernel")


def test_rows_that_only_offsets_count_and_no_result_has():
    def put(offsets, out):
        out[offsets[:-1].long()] = (offsets[1:] - offsets[:-1])[:, None].float() * 0.5

    def given(*lengths):
        return dict(offsets=torch.tensor([0, *lengths]).cumsum(0).int(), out=normal(12, 4))

    for some in (given(1, 2, 3), given(4)):
        report = fusec.check(put, some, given(2, 2, 1, 1), level="emulate")
        assert report.ok, str(report)


def test_a_table_of_which_the_first_rows_are_read_has_any_number_more():
    def scaled(x, table):
        return x * table[: x.shape[0]]

    for more in (1, 6):
        assert shapes(capture(scaled, dict(x=normal(3, 6), table=normal(3 + more, 6))))["table"] == ["rows + table_0_more", "6"]

    def kept(x, table):
        table[: x.shape[0]] = x * 2
        return table[: x.shape[0]].sum(-1)

    first = dict(x=normal(3, 6), table=normal(9, 6))
    assert shapes(capture(kept, first))["table"] == ["rows + table_0_more", "6"]
    report = fusec.check(kept, dict(x=normal(5, 6), table=normal(7, 6)), first, level="kernel")
    assert report.ok, str(report)
    with pytest.raises(ArgumentError, match="rows [+] table_0_more at least 5, given"):
        fusec.check(scaled, dict(x=normal(5, 6), table=normal(4, 6)), first, level="kernel")
    with pytest.raises(CaptureError, match="fixes the size"):
        capture(lambda x, table: x * table[2 : x.shape[0] + 2], dict(x=normal(3, 6), table=normal(9, 6)))


def test_indices_that_nothing_brings_together_are_those_of_the_same_rows():
    def written(slot, k, cache, positions, table, q):
        cache[slot] = k
        q.mul_(table[positions])

    def arguments(n):
        return dict(slot=torch.randperm(9)[:n], k=normal(n, 4), cache=normal(9, 4), positions=torch.arange(n), table=normal(7, 6),
                    q=normal(n, 6))

    found = shapes(capture(written, arguments(3)))
    assert [found[name][0] for name in ("slot", "k", "positions", "q")] == ["rows"] * 4
    report = fusec.check(written, arguments(5), arguments(3), level="kernel")
    assert report.ok, str(report)


def looked_up(x, codes, table):
    return x * 2, table[codes.long()]


def picked(x, codes, table):
    return x * 2, x.new_zeros(x.shape[0], 1) + table[0], codes.gather(1, (codes[:, :2] > 9).long())


def stored(x, codes, table):
    table[codes[:, 0].long()] = x[:, 0]
    return codes * 2


@pytest.mark.parametrize("fn", [looked_up, picked, stored], ids=lambda f: f.__name__)
def test_results_that_share_nothing_but_the_batch_have_its_rows(fn):
    def arguments(n):
        return dict(x=normal(n, 12), codes=torch.randperm(16)[:n, None].to(torch.uint8).repeat(1, 5), table=normal(16))

    found = shapes(capture(fn, arguments(3)))
    assert found["x"][0] == found["codes"][0] == "rows"
    report = fusec.check(fn, arguments(5), arguments(3), level="kernel")
    assert report.ok, str(report)
