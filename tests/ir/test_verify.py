"""Every law of the named graph, broken once: the check names the law and prints the graph at the op."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import sympy

from fusec.errors import InternalError
from fusec.ir import verify as laws
from fusec.ir.axis import Axis
from fusec.ir.graph import Digit, Graph, Index, Join, Load, Map, Node, Op, Reduce, Ref, Store
from fusec.ir.tensor import Argument

ROWS, C, T, W = Axis("rows", sympy.Symbol("R")), Axis("c", 6), Axis("t", 3), Axis("w", 4)


def at(*axes: str) -> tuple[tuple[Digit, ...], ...]:
    return tuple((Digit(Index(a)),) for a in axes)


def good() -> Graph:
    """A window and a new column joined, multiplied by taps and summed; the window moves on."""
    r = ROWS.extent
    nodes = (
        Node("old", Load("window", at("rows", "c", "t")), (ROWS, C, T), "f32"),
        Node("new", Load("x", at("rows", "c")), (ROWS, C), "f32"),
        Node("full", Join("w", ((0, 3, Ref("old", (("t", Index("w")),))), (3, 1, Ref("new")))), (ROWS, C, W), "f32"),
        Node("taps", Load("weight", at("c", "w")), (C, W), "f32"),
        Node("y", Reduce("dot", (Ref("full"), Ref("taps")), (W,)), (ROWS, C), "f32"),
        Node("z", Map("exp", (Ref("y"),)), (ROWS, C), "f32"),
        Node("s0", Store("window", at("rows", "c", "t"), Ref("full", (("w", Index("t", 1)),))), (ROWS, C, T), "f32"),
        Node("s1", Store("out", at("rows", "c"), Ref("z")), (ROWS, C), "f32"),
    )
    arguments = (Argument("x", "f32", (r, 6), (None, 1)), Argument("window", "f32", (r, 6, 3), (None, 3, 1)),
                 Argument("weight", "f32", (6, 4), (4, 1)))
    return Graph("conv", (ROWS, C, T, W), arguments, (Argument("out", "f32", (r, 6), (6, 1)),), nodes, ("out",))


def change(which: str, **fields: object) -> Callable[[Graph], Graph]:
    def apply(graph: Graph) -> Graph:
        return graph.with_nodes(tuple(replace(n, **fields) if n.name == which else n for n in graph.nodes))  # type: ignore[arg-type]
    return apply


def op(name: str, new: Op) -> Callable[[Graph], Graph]:
    return change(name, op=new)


BROKEN: dict[str, tuple[str, Callable[[Graph], Graph]]] = {
    "names": ("stands for two things", change("z", name="x")),
    "identifier": ("is no identifier", lambda g: replace(g, axes=g.axes + (Axis("a b", 2),))),
    "order": ("before it is defined", lambda g: g.with_nodes((g.nodes[2],) + g.nodes[:2] + g.nodes[3:])),
    "store as value": ("before it is defined", op("s1", Store("out", at("rows", "c"), Ref("s0")))),
    "twice": ("has an axis twice", change("z", axes=(ROWS, C, C))),
    "diagonal": ("along one axis twice", op("z", Map("exp", (Ref("full", (("w", Index("c")),)),)))),
    "undeclared": ("not an axis of the graph", lambda g: replace(g, axes=g.axes[:3])),
    "other extent": ("not an axis of the graph", change("z", axes=(ROWS, Axis("c", 5)))),
    "unbound": ("not bound to axes of its reader", op("z", Map("exp", (Ref("full"),)))),
    "bind of nothing": ("binds an axis that its value lacks", op("z", Map("exp", (Ref("y", (("w", Index(None, 0)),)),)))),
    "beyond": ("out of range", op("s0", Store("window", at("rows", "c", "t"), Ref("full", (("w", Index("t", 2)),))))),
    "constant beyond": ("out of range", op("z", Map("exp", (Ref("full", (("w", Index(None, 4)),)),)))),
    "part too long": ("out of range", op("full", Join("w", ((0, 4, Ref("old", (("t", Index("w")),))),)))),
    "gap": ("do not follow each other", op("full", Join("w", ((0, 2, Ref("old", (("t", Index("w")),))), (3, 1, Ref("new")))))),
    "short join": ("does not cover its axis", op("full", Join("w", ((0, 3, Ref("old", (("t", Index("w")),))),)))),
    "rank": ("is not indexed by its dims", op("s1", Store("out", at("rows"), Ref("z")))),
    "tensor": ("is not indexed by its dims", op("new", Load("nothing", at("rows", "c")))),
    "reach": ("reaches 6 in a dim of 6", op("new", Load("x", ((Digit(Index("rows")),), (Digit(Index("c", 1)),))))),
    "float index": ("not an integer", op("s1", Store("out", ((Digit(Index("rows")),), (Digit(Ref("y")),)), Ref("z")))),
    "predicate": ("predicate is not bool", op("s1", Store("out", at("rows", "c"), Ref("z"), Ref("y")))),
    "load axes": ("axes of an access", op("taps", Load("weight", ((), (Digit(Index("w")),))))),
    "operands": ("wrong number of operands", op("z", Map("exp", (Ref("y"), Ref("y"))))),
    "monoid": ("wrong number of operands", op("y", Reduce("dot", (Ref("full"),), (W,)))),
    "integer composite": ("composite function gives an integer", change("z", op=Map("square", (Ref("y"),)), dtype="i32")),
    "sum of bools": ("add gives a bool", change("z", op=Map("add", (Ref("y"), Ref("y"))), dtype="bool")),
    "dtype": ("a dtype is unknown", change("z", dtype="f12")),
    "fold of nothing": ("folds an axis that no operand has", op("y", Reduce("sum", (Ref("new"),), (W,)))),
    "no output": ("is not written once", lambda g: g.with_nodes(g.nodes[:-1])),
    "wrong output": ("neither fresh nor an argument", lambda g: replace(g, outputs=("=nothing",))),
}


def test_the_good_graph_passes() -> None:
    assert laws.verify(good()) == good()


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_law_is_named(case: str) -> None:
    message, break_it = BROKEN[case]
    graph = break_it(good())
    with pytest.raises(InternalError, match=message) as caught:
        laws.verify(graph, "some_pass")
    assert "after some_pass" in str(caught.value) and "graph conv" in str(caught.value)


def test_every_check_can_fail() -> None:
    failing = set()
    for _, break_it in BROKEN.values():
        for check in laws.CHECKS:
            try:
                check(break_it(good()), "")
            except InternalError:
                failing.add(check)
                break
            except (KeyError, AssertionError):  # A later check may rely on an earlier one.
                continue
    assert failing == set(laws.CHECKS)
