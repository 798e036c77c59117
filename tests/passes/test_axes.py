"""Axes: how dims are cut and united, and what is refused, with a reason and the line."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch

from fusec.capture.export import capture
from fusec.errors import FusionError
from fusec.ir.graph import Index, Load, Store, refs
from fusec.ir.print_graph import format_graph
from fusec.passes.atoms import Atoms, DoesNotNest, Link, common, quotient
from fusec.passes.front import to_graph

from .tensor_graphs import Builder

R = sympy.Symbol("R")


def sizes(atoms: Atoms, *which: int) -> list[list[object]]:
    return [[atoms.extent(leaf) for leaf in atoms.leaves(a)] for a in which]


# ---- atoms ---------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("left, right, pieces", [
    ([24], [2, 3, 4], [[2, 3, 4]]),
    ([6, 4], [3, 8], [[3, 2], [4]]),
    ([6, 4], [2, 12], [[2, 3], [4]]),
    ([R, 6], [R * 6], [[R], [6]]),
    ([R * 2, 3], [R, 6], [[R, 2], [3]]),
    ([4, 6], [6, 4], None),
])
def test_unify(left: list[object], right: list[object], pieces: list[list[object]] | None) -> None:
    atoms = Atoms()
    xs, ys = [atoms.new(n) for n in left], [atoms.new(n) for n in right]
    if pieces is None:
        with pytest.raises(DoesNotNest):
            atoms.unify(xs, ys)
        return
    atoms.unify(xs, ys)
    assert sizes(atoms, *xs) == pieces
    assert [x for a in xs for x in atoms.leaves(a)] == [y for a in ys for y in atoms.leaves(a)]


def test_a_link_copies_cuts_both_ways_and_unites_nothing() -> None:
    atoms = Atoms()
    a, b, c = atoms.new(24), atoms.new(24), atoms.new(24)
    atoms.links = [Link(a, b), Link(b, c)]
    atoms.split(a, 4)
    atoms.split(c, 12)
    assert atoms.settle() == []
    assert sizes(atoms, a, b, c) == [[2, 3, 4]] * 3
    assert len({leaf for x in (a, b, c) for leaf in atoms.leaves(x)}) == 9


def test_a_range_follows_the_cuts_of_the_whole() -> None:
    atoms = Atoms()
    whole, part = atoms.new(48), atoms.new(16)
    link = Link(whole, part, 32)
    atoms.links = [link]
    atoms.split(part, 8)
    assert atoms.settle() == []
    assert sizes(atoms, whole, part) == [[6, 8], [2, 8]]
    assert [offset for _, _, offset in link.subs] == [4, 0]
    atoms.split(atoms.leaves(whole)[0], 2)
    assert atoms.settle() == []
    assert [(o is None, offset) for _, o, offset in link.subs] == [(True, 2), (False, 0), (False, 0)]


def test_a_range_across_cuts_is_broken() -> None:
    atoms = Atoms()
    whole, part = atoms.new(4), atoms.new(3)
    atoms.links = [Link(whole, part, 1)]
    atoms.split(whole, 2)
    assert len(atoms.settle()) == 1


def test_sizes_divide_exactly_or_not_at_all() -> None:
    assert quotient(R * 6, 3) == 2 * R and quotient(R * 6, R) == 6 and quotient(R, 2) is None and quotient(6, R) is None
    assert quotient(R * R, R) == R and common(R * 6, 4) == 2


# ---- graphs --------------------------------------------------------------------------------------------------------------------

def test_a_window_moves_by_an_offset() -> None:
    b = Builder(rows=R)
    x, window = b.arg("x", (R, 10)), b.arg("window", (R, 10, 3))
    full = b.join(-1, window, b.unsqueeze(x, -1))
    b.mutations.append(("window", b.slice(full, 2, 1, 3)))
    graph = to_graph(b.graph(b.reduce("sum", full, dims=(-1,))))
    store = next(n for n in graph.nodes if isinstance(n.op, Store) and n.op.tensor == "window")
    load = next(n for n in graph.nodes if isinstance(n.op, Load) and n.op.tensor == "window")
    assert isinstance(store.op, Store) and isinstance(load.op, Load)
    assert store.axes == load.axes and store.op.index == load.op.index, "stored where it was loaded"
    assert store.op.arg.bind[0][1] == Index(store.axes[2].name, 1)


def test_a_value_along_two_axes_is_loaded_twice() -> None:
    b = Builder(rows=R)
    x = b.arg("x", (R, 6))
    graph = to_graph(b.graph(b.map("mul", b.unsqueeze(x, -1), b.unsqueeze(x, -2))))
    loads = [n for n in graph.nodes if isinstance(n.op, Load)]
    assert len(loads) == 2 and loads[0].axes[1] != loads[1].axes[1]
    assert all(not r.bind for n in graph.nodes for r in refs(n.op))


def test_equal_reads_are_one_load() -> None:
    b = Builder(rows=R)
    x = b.arg("x", (R, 6))
    y = b.map("add", b.map("exp", b.reshape(x, (R, 2, 3))), b.reshape(b.map("neg", x), (R, 2, 3)))
    graph = to_graph(b.graph(y))
    assert sum(isinstance(n.op, Load) for n in graph.nodes) == 1


def test_unconnected_results_share_the_rows() -> None:
    b = Builder(rows=R)
    x, y = b.arg("x", (R, 6)), b.arg("y", (R, 3))
    graph = to_graph(b.graph(b.map("exp", x), b.map("neg", y)))
    assert [a.name for a in graph.axes if a.dynamic] == ["rows"]


def test_an_argument_returned_as_it_is_becomes_a_copy() -> None:
    b = Builder(rows=R)
    graph = to_graph(b.graph(b.arg("x", (R, 6)), b.fill(2.0, (3,))))
    tensors = {"x": torch.arange(12.0).reshape(2, 6)}
    from fusec.ir.interpret import run_graph
    run_graph(graph, tensors)
    assert torch.equal(tensors["out0"], tensors["x"]) and torch.equal(tensors["out1"], torch.full((3,), 2.0))


def test_a_predicate_guards_reads_and_writes() -> None:
    from fusec.ir.interpret import run_graph
    b = Builder(rows=R)
    pool, x, idx = b.arg("pool", (sympy.Symbol("S"), 4)), b.arg("x", (R, 4)), b.arg("idx", (R,), "i32")
    live = b.map("ge", idx, 0, dtype="bool")
    old = b.gather(pool, 0, idx, live)
    b.mutations.append(("pool", b.update(pool, b.map("add", old, x), 0, idx, live)))
    graph = to_graph(b.graph(old))
    pool_in = torch.randn(3, 4)
    tensors = {"pool": pool_in.clone(), "x": torch.ones(3, 4), "idx": torch.tensor([2, -1, 0], dtype=torch.int32)}
    run_graph(graph, tensors)
    assert torch.equal(tensors["pool"], pool_in + torch.tensor([[1.0], [0.0], [1.0]]))
    assert torch.equal(tensors["out"], torch.stack([pool_in[2], torch.zeros(4), pool_in[0]]))


# ---- refusals ------------------------------------------------------------------------------------------------------------------

def reads_elsewhere(pool, x, idx, other):
    pool[idx] = x
    return pool[other]



def returns_the_updated_pool(pool, x, idx):
    return pool.index_copy(0, idx, x) * 2


def mixes_sizes(x):
    return x.exp().view(-1, 3, 2, 2).sum(2).view(-1, 2, 3)


@pytest.mark.parametrize("fn, args, message, line", [
    (reads_elsewhere, dict(pool=(9, 4), x=(5, 4), idx=5, other=5), "just updated .at reads_elsewhere.1.", "return pool[other]"),
    (returns_the_updated_pool, dict(pool=(9, 4), x=(5, 4), idx=5), "just updated", "return pool.index_copy"),
    (mixes_sizes, dict(x=(5, 12)), "no common pieces", "return x.exp()"),
])
def test_refusals_name_the_line(fn: Callable[..., object], args: dict[str, Any], message: str, line: str) -> None:
    given = {k: torch.randn(v) if isinstance(v, tuple) else torch.randperm(9)[:v] for k, v in args.items()}
    with pytest.raises(FusionError, match=message) as caught:
        to_graph(capture(fn, given))
    assert line in str(caught.value) and "hint" in str(caught.value)


def test_text_is_readable() -> None:
    b = Builder("norm", rows=R)
    x = b.arg("x", (R, 8), "bf16")
    wide = b.map("identity", x, dtype="f32")
    mean = b.map("div", b.reduce("sum", b.map("square", wide), dims=(-1,), keep=True), 8.0)
    y = b.map("mul", wide, b.map("rsqrt", b.map("add", mean, 1e-5)), target="y")
    assert format_graph(to_graph(b.graph(b.map("identity", y, dtype="bf16")))) == """\
graph norm (numerics default)
  axes rows:R, x_1:8
  argument x: bf16[R, 8] strides (8, 1)
  fresh out: bf16[R, 8] strides (8, 1)
  x_in[rows, x_1] bf16 = load x[rows, x_1]
  sum[rows] f32 = dot(x_in, x_in) over x_1
  add[rows] f32 = fma(sum, 0.125, 1e-05)
  rsqrt[rows] f32 = rsqrt(add)
  y[rows, x_1] f32 = mul(x_in, rsqrt)
  y_bf16[rows, x_1] bf16 = identity(y)
  for [rows, x_1]: store out[rows, x_1] = y_bf16
  return tensor (out)
"""




def test_a_view_of_an_argument_that_does_not_nest_cuts_nothing() -> None:
    """Channels 120 | 36 | 36 of a window seen as [6, 20] and [3, 12]: the part stays a sum of digits of the argument."""
    from fusec.passes.atoms import Atoms, Link
    atoms = Atoms()
    whole, part = atoms.new(192), atoms.new(120)
    atoms.split(whole, 12)
    atoms.split(part, 20)
    atoms.links.append(Link(whole, part, 0, lenient=True))
    assert atoms.settle() == [] and atoms.links[0].broken
    assert [atoms.extent(leaf) for leaf in atoms.leaves(whole) + atoms.leaves(part)] == [16, 12, 6, 20]
