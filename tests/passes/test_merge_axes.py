"""Axes that nothing tells apart become one; whatever tells them apart keeps them."""
from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fusec.ir.axis import Axis
from fusec.ir.graph import Digit, Graph, Index, Iota, Join, Load, Map, Node, Reduce, Ref, Store
from fusec.ir.interpret import run_graph
from fusec.ir.verify import verify
from fusec.passes.merge_axes import merge_axes

from .graphs import ROWS, at, tensor

A, B = Axis("x_1_0", 2), Axis("x_1_1", 4)


def pieces(step: int = 4, offset: int = 0) -> tuple[Digit, ...]:
    return Digit(Index("x_1_0"), step), Digit(Index("x_1_1", offset), 1)


def graph(*more: Node, load: tuple[Digit, ...] = pieces(), store: tuple[Digit, ...] = pieces(),
          over: tuple[Axis, ...] = ()) -> Graph:
    """y = 2 x over rows and both axes, or a sum over some of them."""
    r, full = ROWS.extent, (ROWS, A, B)
    left = tuple(a for a in full if a not in over)
    nodes = (
        Node("value", Load("x", (*at("rows"), load)), full, "f32"),
        *more,
        Node("y", Reduce("sum", (Ref("value"),), over) if over else Map("add", (Ref("value"), Ref("value"))), left, "f32"),
        Node("out", Store("o", (*at("rows"), store), Ref("y")), left, "f32"),
    )
    fresh = (tensor("o", "f32", (r, 8), (8, 1)),)
    return Graph("step", (ROWS, A, B), (tensor("x", "f32", (r, 16), (16, 1)),), fresh, nodes, ("o",), "tensor", "rows")


def run(g: Graph) -> torch.Tensor:
    torch.manual_seed(2)
    memory = {"x": torch.randn(3, 16), "o": torch.full((3, 8), 777.0)}
    run_graph(verify(g), memory)
    return memory["o"]


def test_pieces_of_a_dim_become_one_axis_of_its_name():
    before = graph(load=pieces(offset=3))
    after = merge_axes(before)
    assert [str(a) for a in after.axes] == ["rows:rows", "x_1:8"]
    assert after.table["value"].op.index[1] == (Digit(Index("x_1", 3), 1),)
    assert torch.equal(run(after), run(before))


def test_a_sum_over_both_becomes_a_sum_over_one():
    before = graph(store=(), over=(A, B))
    after = merge_axes(before)
    assert [str(a) for a in after.table["y"].op.axes] == ["x_1:8"]
    torch.testing.assert_close(run(after)[:, 0], run(before)[:, 0])


def test_constants_along_both_become_one():
    point = Node("point", Map("neg", (Ref("value", (("x_1_0", Index(None, 1)), ("x_1_1", Index(None, 2)))),)), (ROWS,), "f32")
    before = graph(point)
    y = replace(before.table["y"], op=Map("add", (Ref("value"), Ref("point"))))
    before = before.with_nodes(tuple(y if n.name == "y" else n for n in before.nodes))
    after = merge_axes(before)
    assert after.table["point"].op.args[0].bind == (("x_1", Index(None, 6)),)
    assert torch.equal(run(after), run(before))


@pytest.mark.parametrize("apart", [
    graph(store=(Digit(Index("x_1_1"), 1),), over=(A,)),
    graph(store=(Digit(Index("x_1_0"), 4),), over=(B,)),
    graph(load=pieces(step=8)),
    graph(store=(Digit(Index("x_1_0"), 1), Digit(Index("x_1_1"), 2))),
    graph(Node("i", Iota(), (B,), "i64"), Node("z", Map("add", (Ref("value"), Ref("i"))), (ROWS, A, B), "f32")),
    graph(Node("z", Map("neg", (Ref("value", (("x_1_0", Index(None, 1)),)),)), (ROWS, B), "f32")),
    graph(Node("j", Join("x_1_0", tuple((i, 1, Ref("value", (("x_1_0", Index(None, 1 - i)),))) for i in (0, 1))),
               (ROWS, A, B), "f32")),
], ids=["sum over the first", "sum over the second", "gaps in memory", "the other order in memory", "a position along one",
        "one at a constant", "joined along one"])
def test_axes_that_something_tells_apart_stay(apart):
    assert [str(a) for a in merge_axes(verify(apart)).axes] == ["rows:rows", "x_1_0:2", "x_1_1:4"]


def test_a_dynamic_axis_stays():
    r = ROWS.extent
    both = (Digit(Index("rows"), 8), Digit(Index("a"), 1))
    a = Axis("a", 8)
    nodes = (Node("value", Load("x", (both,)), (ROWS, a), "f32"), Node("out", Store("o", (both,), Ref("value")), (ROWS, a), "f32"))
    flat = (tensor("x", "f32", (8 * r,), (1,)), tensor("o", "f32", (8 * r,), (1,)))
    before = Graph("flat", (ROWS, a), flat[:1], flat[1:], nodes, ("o",), "tensor", "rows")
    assert merge_axes(before) == before
