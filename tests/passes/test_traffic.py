"""Bytes moved, against counts by hand."""
import sympy

from fusec.ir.axis import Axis
from fusec.ir.graph import Digit, Graph, Index, Load, Map, Node, Ref, Store
from fusec.ir.tensor import Argument
from fusec.passes.traffic import bytes_moved

R, C, T = Axis("r", sympy.Symbol("rows")), Axis("c", 8), Axis("t", 4)


def at(axis, offset=0, step=1):
    return (Digit(Index(axis, offset), step),)


def graph(*nodes):
    rows, slots = sympy.Symbol("rows"), sympy.Symbol("slots")
    arguments = (Argument("x", "bf16", (rows, 24), (None, 1)), Argument("pool", "f32", (slots, 8), (None, 1)),
                 Argument("idx", "i32", (rows,), (None,)))
    return Graph("f", (R, C, T), arguments, (), nodes, ())


def load(name, tensor, index, axes, dtype="bf16"):
    return Node(name, Load(tensor, index), axes, dtype)


SIZES = {"rows": 3, "slots": 5}


def test_equal_loads_count_once_disjoint_ones_add_and_overlaps_count_once():
    a = load("a", "x", (at("r"), at("c")), (R, C))
    assert bytes_moved(graph(a, load("b", "x", (at("r"), at("c")), (R, C))), SIZES) == 3 * 8 * 2
    assert bytes_moved(graph(a, load("b", "x", (at("r"), at("c", 8)), (R, C))), SIZES) == 3 * 16 * 2
    assert bytes_moved(graph(a, load("b", "x", (at("r"), at("c", 5)), (R, C))), SIZES) == 3 * 13 * 2
    assert bytes_moved(graph(load("a", "x", (at("r"), at("t", 0, 2)), (R, T)), load("b", "x", (at("r"), at("t", 0, 3)), (R, T))),
                       SIZES) == 3 * 6 * 2  # {0 2 4 6} and {0 3 6 9}


def test_paged_state_counts_its_rows_once_each_way():
    index = load("i", "idx", (at("r"),), (R,), "i32")
    pick = ((Digit(Ref("i")),), at("c"))
    old, again = load("h", "pool", pick, (R, C), "f32"), load("h2", "pool", pick, (R, C), "f32")
    new = Node("n", Map("neg", (Ref("h"),)), (R, C), "f32")
    store = Node("s", Store("pool", pick, Ref("n")), (R, C), "f32")
    assert bytes_moved(graph(index, old, again, new, store), SIZES) == 3 * 4 + 2 * 3 * 8 * 4


def test_joined_digits_are_one_coordinate_and_a_diagonal_is_not_a_square():
    both = (Digit(Index("c"), 1), Digit(Index("t"), 2))  # c + 2 t, c < 8, t < 4: 0 .. 13
    assert bytes_moved(graph(load("a", "x", (at("r"), both), (R, C, T))), SIZES) == 3 * 14 * 2
    assert bytes_moved(graph(load("a", "x", (at("r"), at("r")), (R,))), SIZES) == 3 * 2
