"""A step written by hand as a Graph: what the checker's own tests plant errors into.

y = bf16(x · w); the window moves on by x; h = 0.9 · pool[idx] + y, stored at idx; o = bf16(h / rms(h)), scale = sum(y),
n = idx + 1.
"""
from __future__ import annotations

from dataclasses import replace

import sympy
import torch

from fusec.errors import Frame, Loc
from fusec.ir.axis import Axis
from fusec.ir.graph import Digit, Graph, Index, Join, Load, Map, Node, Ref, Reduce, Store
from fusec.ir.scalar import Lit
from fusec.ir.tensor import Argument

ROWS, SLOTS, D = sympy.Symbol("rows", positive=True, integer=True), sympy.Symbol("slots", positive=True, integer=True), 24
r, d, t = Axis("r", ROWS), Axis("d", D), Axis("t", 3)


def at(line: int, target: str = "") -> Loc:
    return Loc((Frame("step", "/nowhere/step.py", 100 + line, 4, line),), target)


def own(*axes: str) -> tuple[tuple[Digit, ...], ...]:
    return tuple((Digit(Index(a)),) for a in axes)


def step_graph() -> Graph:
    paged = ((Digit(Ref("idx_v")),), *own("d"))
    nodes = (
        Node("x_v", Load("x", own("r", "d")), (r, d), "bf16", at(1)),
        Node("w_v", Load("w", own("d")), (d,), "f32", at(1)),
        Node("idx_v", Load("idx", own("r")), (r,), "i32", at(1)),
        Node("old", Load("window", own("r", "d", "t")), (r, d, t), "bf16", at(2)),
        Node("y", Map("mul", (Ref("x_v"), Ref("w_v"))), (r, d), "bf16", at(3, "y")),
        Node("full", Join("t", ((0, 2, Ref("old", (("t", Index("t", 1)),))), (2, 1, Ref("x_v")))), (r, d, t), "bf16", at(4)),
        Node("s_window", Store("window", own("r", "d", "t"), Ref("full")), (r, d, t), "bf16", at(4)),
        Node("h0", Load("pool", paged), (r, d), "f32", at(5)),
        Node("h1", Map("mul", (Ref("h0"), Lit(0.9))), (r, d), "f32", at(6)),
        Node("h", Map("add", (Ref("h1"), Ref("y"))), (r, d), "f32", at(6, "h")),
        Node("s_pool", Store("pool", paged, Ref("h")), (r, d), "f32", at(7)),
        Node("m", Reduce("dot", (Ref("h"), Ref("h")), (d,)), (r,), "f32", at(8, "m")),
        Node("inv", Map("rsqrt", (Ref("m"),)), (r,), "f32", at(8)),
        Node("o", Map("mul", (Ref("h"), Ref("inv"))), (r, d), "bf16", at(9, "o")),
        Node("total", Reduce("sum", (Ref("y"),), (d,)), (r,), "f32", at(10, "total")),
        Node("n", Map("add", (Ref("idx_v"), Lit(1))), (r,), "i32", at(11)),
        Node("s_out", Store("out", own("r", "d"), Ref("o")), (r, d), "bf16", at(12)),
        Node("s_total", Store("scale", own("r"), Ref("total")), (r,), "f32", at(12)),
        Node("s_n", Store("count", own("r"), Ref("n")), (r,), "i32", at(12)),
    )
    arguments = (
        Argument("x", "bf16", (ROWS, D), (None, 1)), Argument("w", "f32", (D,), (1,)), Argument("idx", "i32", (ROWS,), (None,)),
        Argument("window", "bf16", (ROWS, D, 3), (None, 3, 1)), Argument("pool", "f32", (SLOTS, D), (None, 1), (0,)))
    fresh = (Argument("out", "bf16", (ROWS, D), (D, 1)), Argument("scale", "f32", (ROWS,), (1,)),
             Argument("count", "i32", (ROWS,), (1,)))
    return Graph("step", (r, d, t), arguments, fresh, nodes, ("out", "scale", "count"), "tuple", "rows")


def step(x, w, idx, window, pool):
    """The same in PyTorch."""
    y = (x * w).to(torch.bfloat16)
    window.copy_(torch.cat([window[..., 1:], x.unsqueeze(-1)], -1))
    h = pool[idx] * 0.9 + y
    pool[idx] = h
    o = (h * torch.rsqrt(h.square().sum(-1, keepdim=True))).to(torch.bfloat16)
    return o, y.float().sum(-1), idx + 1


def inputs(rows: int = 6, slots: int = 11, seed: int = 0) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=g)

    return dict(x=normal(rows, D).to(torch.bfloat16), w=normal(D), idx=torch.randperm(slots, generator=g)[:rows].to(torch.int32),
                window=normal(rows, D, 3).to(torch.bfloat16), pool=normal(slots, D))


def with_node(graph: Graph, name: str, **fields) -> Graph:
    """The graph with fields of one node replaced: how errors are planted."""
    assert name in graph.table
    return graph.with_nodes(tuple(replace(n, **fields) if n.name == name else n for n in graph.nodes))


def with_op(graph: Graph, name: str, **fields) -> Graph:
    return with_node(graph, name, op=replace(graph.table[name].op, **fields))
