"""Each rewrite on the smallest graph that it changes: before, after, and where it must keep its hands off."""
from __future__ import annotations

import math

import pytest
import sympy
import torch

from fusec.capture import capture
from fusec.ir.graph import Graph, Map, Reduce
from fusec.ir.interpret import run_graph
from fusec.ir.scalar import Lit
from fusec.ir.tensor import Join, Slice, TensorGraph
from fusec.passes.contract_products import contract_products
from fusec.passes.fold_reductions import fold_reductions
from fusec.passes.front import to_graph
from fusec.passes.simplify_tensors import simplify_tensors

from .tensor_graphs import Builder

R = sympy.Symbol("R")


def ops(graph: Graph) -> list[str]:
    """What is computed, in order: functions and monoids."""
    return [n.op.fn if isinstance(n.op, Map) else n.op.monoid for n in graph.nodes if isinstance(n.op, (Map, Reduce))]


def kinds(graph: TensorGraph) -> list[str]:
    return [type(n.op).__name__ for n in graph.nodes]


# ---- casts and constants -------------------------------------------------------------------------------------------------------

def test_widening_casts_vanish_and_rounding_ones_stay() -> None:
    b = Builder(rows=R)
    x = b.arg("x", (R, 6), "bf16")
    up = b.map("identity", x, dtype="f32")
    down = b.map("identity", b.map("exp", up), dtype="bf16")
    again = b.map("identity", b.map("identity", down, dtype="f32"), dtype="bf16")
    graph = to_graph(b.graph(b.map("neg", again, dtype="bf16")))
    maps = [(n.op.fn, n.dtype) for n in graph.nodes if isinstance(n.op, Map)]
    assert maps == [("exp", "f32"), ("identity", "bf16"), ("neg", "bf16")]


def test_f16_to_bf16_rounds() -> None:
    b = Builder()
    graph = to_graph(b.graph(b.map("identity", b.arg("x", (6,), "f16"), dtype="bf16")))
    assert ops(graph) == ["identity"]


def test_integer_conversions_stay() -> None:
    b = Builder()
    graph = to_graph(b.graph(b.map("identity", b.arg("x", (6,), "i32"), dtype="f32")))
    assert ops(graph) == ["identity"]


def test_an_index_is_not_widened() -> None:
    b = Builder(rows=R)
    pool, idx = b.arg("pool", (9, 4)), b.arg("idx", (R,), "i32")
    assert ops(to_graph(b.graph(b.gather(pool, 0, b.map("identity", idx, dtype="i64"))))) == []


def _read_and_write(raw: bool) -> Graph:
    b = Builder(rows=R)
    pool, idx = b.arg("pool", (9, 4)), b.arg("idx", (R,), "i64")
    wrapped = b.map("select", b.map("lt", idx, 0, dtype="bool"), b.map("add", idx, 9), idx, dtype="i64")
    old = b.gather(pool, 0, idx if raw else wrapped)
    b.mutations.append(("pool", b.update(pool, b.map("exp", old), 0, wrapped)))
    return to_graph(b.graph())


def test_an_index_used_as_it_is_needs_no_wrapping() -> None:
    assert ops(_read_and_write(raw=True)) == ["exp"]
    assert ops(_read_and_write(raw=False)) == ["lt", "add", "select", "exp"]


def test_constants_fold_in_fp32() -> None:
    b = Builder()
    x, c = b.arg("x", (6,)), b.map("mul", b.fill(0.1, (1,)), 3.0)
    graph = to_graph(b.graph(b.map("add", x, c)), "strict")
    node = next(n for n in graph.nodes if isinstance(n.op, Map))
    assert isinstance(node.op, Map) and node.op.args[1] == Lit(0.30000001192092896)


def test_equal_values_are_one_but_zeros_of_two_signs_are_two() -> None:
    b = Builder()
    x = b.arg("x", (6,))
    same = b.map("mul", b.map("exp", x), b.map("exp", x))
    zeros = b.map("add", b.map("max", x, 0.0), b.map("max", x, -0.0))
    graph = to_graph(b.graph(same, zeros), "strict")
    assert ops(graph).count("exp") == 1 and ops(graph).count("max") == 2


def test_division_by_a_power_of_two_only() -> None:
    for divisor, fn in ((8.0, "mul"), (-0.25, "mul"), (3.0, "div"), (0.0, "div"), (math.inf, "div"), (2.0 ** -149, "div")):
        b = Builder()
        assert ops(to_graph(b.graph(b.map("div", b.arg("x", (6,)), divisor)), "strict")) == [fn], divisor


def test_a_broadcast_axis_sinks_to_its_reader() -> None:
    b = Builder(rows=R)
    x, y = b.arg("x", (R, 3, 1)), b.arg("y", (R, 3, 4))
    graph = to_graph(b.graph(b.map("mul", b.map("exp", b.expand(x, (R, 3, 4))), y)))
    node = next(n for n in graph.nodes if isinstance(n.op, Map) and n.op.fn == "exp")
    assert [a.extent for a in node.axes] == [R, 3]


# ---- reductions and products ---------------------------------------------------------------------------------------------------

def test_a_product_that_is_only_summed_is_a_dot() -> None:
    b = Builder(rows=R)
    x, w = b.arg("x", (R, 6)), b.arg("w", (6,))
    assert ops(to_graph(b.graph(b.reduce("sum", b.map("mul", x, w), dims=(1,))))) == ["dot"]
    assert ops(to_graph(b.graph(b.reduce("sum", b.map("mul", x, w), dims=(1,))), "strict")) == ["mul", "sum"]


def test_a_rounded_product_is_not_taken_into_the_dot() -> None:
    b = Builder(rows=R)
    x, w = b.arg("x", (R, 6), "bf16"), b.arg("w", (6,), "bf16")
    assert ops(to_graph(b.graph(b.reduce("sum", b.map("mul", x, w), dims=(1,))))) == ["mul", "sum"]


def _delta(dtype: str, uses_reduction: bool = True) -> TensorGraph:
    b = Builder(rows=R)
    h, k, q, v = b.arg("h", (R, 3, 4)), b.arg("k", (R, 4)), b.arg("q", (R, 4)), b.arg("v", (R, 3))
    d = b.map("sub", v, b.einsum("rvk,rk->rv", h, k)) if uses_reduction else v
    new = b.map("add", h, b.map("mul", b.unsqueeze(d, -1), b.unsqueeze(k, 1)))
    new = b.map("identity", new, dtype=dtype) if dtype != "f32" else new
    b.mutations.append(("h", b.map("identity", new, dtype="f32") if dtype != "f32" else new))
    return b.graph(b.einsum("rvk,rk->rv", new, q))


def test_a_dot_after_an_update_is_distributed() -> None:
    assert ops(to_graph(_delta("f32"))) == ["dot", "sub", "fma", "dot", "dot", "fma"]


def test_it_is_not_distributed_over_a_rounding_nor_without_a_wait() -> None:
    assert ops(to_graph(_delta("bf16"))).count("dot") == 2
    assert ops(to_graph(_delta("f32", uses_reduction=False))).count("dot") == 1
    assert ops(to_graph(_delta("f32"), "strict")).count("dot") == 2


def contracted(*, fn: str, swap: bool = False, dtype: str = "f32", twice: bool = False) -> list[str]:
    b = Builder()
    x, y, z = b.arg("x", (6,), dtype), b.arg("y", (6,), dtype), b.arg("z", (6,), dtype)
    product = b.map("mul", x, y)
    total = b.map(fn, z, product) if swap else b.map(fn, product, z)
    return ops(to_graph(b.graph(*([total, product] if twice else [total]))))


def test_contraction() -> None:
    assert contracted(fn="add") == ["fma"] == contracted(fn="add", swap=True)
    assert contracted(fn="sub") == ["neg", "fma"] == contracted(fn="sub", swap=True)
    assert contracted(fn="add", dtype="bf16") == ["mul", "add"], "a rounded product is a value of its own"
    assert contracted(fn="add", twice=True) == ["mul", "add"], "a product with two uses is computed once"


def test_a_constant_factor_takes_the_sign() -> None:
    b = Builder()
    x, z = b.arg("x", (6,)), b.arg("z", (6,))
    graph = to_graph(b.graph(b.map("sub", z, b.map("mul", x, 0.5))))
    node = next(n for n in graph.nodes if isinstance(n.op, Map))
    assert ops(graph) == ["fma"] and isinstance(node.op, Map) and node.op.args[0] == Lit(-0.5)


def test_strict_graphs_pass_unchanged() -> None:
    graph = to_graph(_delta("f32"), "strict")
    assert fold_reductions(graph) is graph and contract_products(graph) is graph


# ---- the tensor graph ----------------------------------------------------------------------------------------------------------

def test_a_slice_of_a_join_is_its_part() -> None:
    b = Builder()
    x, y = b.arg("x", (3, 2)), b.arg("y", (3, 4))
    both = b.join(1, x, y)
    graph = simplify_tensors(b.graph(b.slice(both, 1, 2, 4), b.slice(both, 1, 3, 2), b.slice(both, 1, 1, 2)))
    assert graph.outputs[0] == y and graph.table[graph.outputs[1]].op == Slice(y, 1, 1)
    assert isinstance(graph.table[graph.outputs[2]].op, Slice) and kinds(graph).count("Join") == 1


def test_a_read_of_what_was_written_is_the_value() -> None:
    b = Builder()
    pool, x, idx = b.arg("pool", (9, 4)), b.arg("x", (3, 4)), b.arg("idx", (3,), "i64")
    new = b.update(pool, x, 0, idx)
    b.mutations.append(("pool", new))
    graph = simplify_tensors(b.graph(b.gather(new, 0, idx)))
    assert graph.outputs == (x,) and "Gather" not in kinds(graph)


def test_only_the_last_of_several_writes_through_one_index_is_left() -> None:
    b = Builder()
    pool, x, idx = b.arg("pool", (9, 4)), b.arg("x", (3, 4)), b.arg("idx", (3,), "i64")
    first = b.update(pool, x, 0, idx)
    b.mutations.append(("pool", b.update(first, b.map("exp", b.gather(first, 0, idx)), 0, idx)))
    graph = simplify_tensors(b.graph())
    assert kinds(graph).count("Update") == 1 and graph.table[graph.mutations[0][1]].op.target == pool  # type: ignore[union-attr]


def test_views_compose() -> None:
    b = Builder()
    x = b.arg("x", (4, 6))
    there = b.reshape(b.permute(b.permute(x, (1, 0)), (1, 0)), (2, 2, 6))
    graph = simplify_tensors(b.graph(b.reshape(there, (4, 6)), b.slice(b.slice(x, 1, 1, 4), 1, 2, 2)))
    assert graph.outputs[0] == x and graph.table[graph.outputs[1]].op == Slice(x, 1, 3)


def test_joins_flatten_and_neighbours_meet() -> None:
    b = Builder()
    x, y = b.arg("x", (4, 6)), b.arg("y", (4, 1))
    inner = b.join(1, b.slice(x, 1, 0, 2), b.slice(x, 1, 2, 3))
    graph = simplify_tensors(b.graph(b.join(1, inner, y)))
    node = graph.table[graph.outputs[0]]
    assert isinstance(node.op, Join) and [graph.table[p].op for p in node.op.parts][0] == Slice(x, 1, 0)


@pytest.mark.parametrize("fn, dropped", [
    (lambda x: x.clamp(-448.0, 448.0).to(torch.float8_e4m3fn), True),
    (lambda x: x.clamp(max=448.0).clamp(min=-448.0).to(torch.float8_e4m3fn), True),
    (lambda x: x.clamp(-448.0, 440.0).to(torch.float8_e4m3fn), False),
    (lambda x: x.clamp(0.0, 448.0).to(torch.float8_e4m3fn), False),
    (lambda x: x.clamp(-57344.0, 57344.0).to(torch.float8_e5m2), False),
    (lambda x: x.clamp(-448.0, 448.0).bfloat16(), False),
])
def test_a_cast_that_saturates_needs_no_bound(fn, dropped):
    x = torch.tensor([[0.3, 447.9, 464.0, 1e4, float("inf"), float("nan"), -1e4, float("-inf")]]).repeat(2, 1)
    graph = to_graph(capture(fn, dict(x=x)))
    assert dropped == (not any(isinstance(n.op, Map) and n.op.fn in ("clamp", "max", "min") for n in graph.nodes))
    memory = {"x": x, graph.outputs[0]: torch.zeros_like(fn(x))}
    run_graph(graph, memory)
    assert torch.equal(memory[graph.outputs[0]].float().nan_to_num(1.5), fn(x).float().nan_to_num(1.5))
