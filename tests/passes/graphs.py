"""Graphs made by hand, one per shape of step: what the back half is tested on without capture."""

from __future__ import annotations

import sympy

from fusec.ir.axis import Axis
from fusec.ir.graph import Digit, DimIndex, Graph, Index, Join, Load, Map, Node, Reduce, Ref, Store
from fusec.ir.scalar import Lit
from fusec.ir.tensor import Argument

ROWS = Axis("rows", sympy.Symbol("rows"))
SLOTS = sympy.Symbol("slots")


def at(*names: str) -> tuple[DimIndex, ...]:
    """One axis per dim."""
    return tuple((Digit(Index(n)),) for n in names)


def tensor(name: str, dtype: str, shape: tuple, strides: tuple, indexed: tuple[int, ...] = ()) -> Argument:
    return Argument(name, dtype, shape, strides, indexed)


def outer_product_state(keys: int = 96, values: int = 192, heads: int = 2, dtype: str = "f32") -> Graph:
    """h = pool[slot] * exp(g) + k vT, o = hT q: a [k, v] state in place."""
    h, k, v, r = Axis("head", heads), Axis("k", keys), Axis("v", values), ROWS.extent
    slot = (Digit(Ref("slot")),)
    row, col, full = (ROWS, h, k), (ROWS, h, v), (ROWS, h, k, v)
    arguments = tuple(tensor(n, "f32", (r, heads, keys), (None, keys, 1)) for n in ("q", "key", "g")) + (
        tensor("val", "f32", (r, heads, values), (None, values, 1)),
        tensor("pool", dtype, (SLOTS, heads, keys, values), (None, keys * values, values, 1), (0,)),
        tensor("idx", "i64", (r,), (None,)),
    )
    nodes = (
        Node("slot", Load("idx", at("rows")), (ROWS,), "i64"),
        Node("state", Load("pool", (slot, *at("head", "k", "v"))), full, dtype),
        Node("g_in", Load("g", at("rows", "head", "k")), row, "f32"),
        Node("decay", Map("exp", (Ref("g_in"),)), row, "f32"),
        Node("key_in", Load("key", at("rows", "head", "k")), row, "f32"),
        Node("val_in", Load("val", at("rows", "head", "v")), col, "f32"),
        Node("outer", Map("mul", (Ref("key_in"), Ref("val_in"))), full, "f32"),
        Node("h", Map("fma", (Ref("state"), Ref("decay"), Ref("outer"))), full, "f32"),
        Node("narrow", Map("identity", (Ref("h"),)), full, dtype),
        Node("update", Store("pool", (slot, *at("head", "k", "v")), Ref("narrow")), full, dtype),
        Node("q_in", Load("q", at("rows", "head", "k")), row, "f32"),
        Node("o", Reduce("dot", (Ref("q_in"), Ref("h")), (k,)), col, "f32"),
        Node("out", Store("output", at("rows", "head", "v"), Ref("o")), col, "f32"),
    )
    fresh = (tensor("output", "f32", (r, heads, values), (heads * values, values, 1)),)
    return Graph("outer_product_state", (ROWS, h, k, v), arguments, fresh, nodes, ("output",), "tensor", "rows")


def wide_row(columns: int = 7168) -> Graph:
    """residual += x; y = norm(residual) * weight; e4m3(y / scale), scale = amax(y) / 448: two dependent block reductions."""
    c, r = Axis("c", columns), ROWS.extent
    rc = (ROWS, c)
    nodes = (
        Node("x_in", Load("x", at("rows", "c")), rc, "bf16"),
        Node("res_in", Load("residual", at("rows", "c")), rc, "bf16"),
        Node("w", Load("weight", at("c")), (c,), "f32"),
        Node("res", Map("add", (Ref("x_in"), Ref("res_in"))), rc, "bf16"),
        Node("update", Store("residual", at("rows", "c"), Ref("res")), rc, "bf16"),
        Node("squares", Reduce("dot", (Ref("res"), Ref("res")), (c,)), (ROWS,), "f32"),
        Node("mean", Map("div", (Ref("squares"), Lit(float(columns)))), (ROWS,), "f32"),
        Node("shifted", Map("add", (Ref("mean"), Lit(1e-6))), (ROWS,), "f32"),
        Node("inv", Map("rsqrt", (Ref("shifted"),)), (ROWS,), "f32"),
        Node("n", Map("mul", (Ref("res"), Ref("inv"))), rc, "f32"),
        Node("y", Map("mul", (Ref("n"), Ref("w"))), rc, "f32"),
        Node("size", Map("abs", (Ref("y"),)), rc, "f32"),
        Node("peak", Reduce("max", (Ref("size"),), (c,)), (ROWS,), "f32"),
        Node("step", Map("div", (Ref("peak"), Lit(448.0))), (ROWS,), "f32"),
        Node("scale_", Map("max", (Ref("step"), Lit(1e-12))), (ROWS,), "f32"),
        Node("low", Map("div", (Ref("y"), Ref("scale_"))), rc, "f8e4m3"),
        Node("out", Store("output", at("rows", "c"), Ref("low")), rc, "f8e4m3"),
        Node("outs", Store("scale", ((Digit(Index("rows")),), ()), Ref("scale_")), (ROWS,), "f32"),
    )
    arguments = (
        tensor("x", "bf16", (r, columns), (None, 1)),
        tensor("residual", "bf16", (r, columns), (None, 1)),
        tensor("weight", "f32", (columns,), (1,)),
    )
    fresh = (tensor("output", "f8e4m3", (r, columns), (columns, 1)), tensor("scale", "f32", (r, 1), (1, 0)))
    return Graph("wide_row", (ROWS, c), arguments, fresh, nodes, ("output", "scale"), "tuple", "rows")


def shifting_window(channels: int = 200) -> Graph:
    """full = cat(window, x); window = full[1:]; y = silu(sum(full * weight)): a window that moves in place."""
    c, t3, t4, s, r = Axis("c", channels), Axis("t3", 3), Axis("t4", 4), Axis("s", 3), ROWS.extent
    nodes = (
        Node("x_in", Load("x", at("rows", "c")), (ROWS, c), "f32"),
        Node("win", Load("window", at("rows", "c", "t3")), (ROWS, c, t3), "f32"),
        Node("w", Load("weight", at("c", "t4")), (c, t4), "f32"),
        Node("full", Join("t4", ((0, 3, Ref("win", (("t3", Index("t4")),))), (3, 1, Ref("x_in")))), (ROWS, c, t4), "f32"),
        Node("update", Store("window", at("rows", "c", "s"), Ref("full", (("t4", Index("s", 1)),))), (ROWS, c, s), "f32"),
        Node("acc", Reduce("dot", (Ref("full"), Ref("w")), (t4,)), (ROWS, c), "f32"),
        Node("y", Map("silu", (Ref("acc"),)), (ROWS, c), "f32"),
        Node("out", Store("output", at("rows", "c"), Ref("y")), (ROWS, c), "f32"),
    )
    arguments = (
        tensor("x", "f32", (r, channels), (None, 1)),
        tensor("window", "f32", (r, channels, 3), (None, 3, 1)),
        tensor("weight", "f32", (channels, 4), (4, 1)),
    )
    fresh = (tensor("output", "f32", (r, channels), (channels, 1)),)
    return Graph("shifting_window", (ROWS, c, t3, t4, s), arguments, fresh, nodes, ("output",), "tensor", "rows")
