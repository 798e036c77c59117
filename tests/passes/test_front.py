"""The front passes keep the meaning: interpreted after each pass, a captured step does what the function does eagerly."""
from __future__ import annotations


import pytest
import torch

from fusec.capture.export import capture
from fusec.ir.structure import leaves
from fusec.ir.graph import Graph, Index, Reduce, Store, refs
from fusec.ir.interpret import run_graph
from fusec.ir.print_graph import format_graph
from fusec.ir.tensor import TensorGraph
from fusec.ir.verify import verify
from fusec.passes.axes import assign_axes
from fusec.passes.contract_products import contract_products
from fusec.passes.cut_ranges import cut_ranges
from fusec.passes.fold_reductions import fold_reductions
from fusec.passes.front import to_graph
from fusec.passes.simplify import simplify
from fusec.passes.simplify_tensors import simplify_tensors

from .steps import STEPS

CAPTURED: dict[str, TensorGraph] = {}


def captured(name: str) -> TensorGraph:
    if name not in CAPTURED:
        fn, make = STEPS[name]
        torch.manual_seed(1)
        CAPTURED[name] = capture(fn, make(17))
    return CAPTURED[name]


def levels(graph: TensorGraph) -> dict[str, Graph]:
    """The graph after every pass, under default numerics, and whole under strict."""
    made = {"axes": verify(assign_axes(simplify_tensors(graph)))} if not _needs_cuts(graph) else {}
    made["cut"] = verify(assign_axes(cut_ranges(simplify_tensors(graph))))
    made["simplify"] = verify(simplify(made["cut"]))
    made["fold"] = verify(fold_reductions(made["simplify"]))
    made["contract"] = verify(contract_products(made["fold"]))
    made["strict"] = to_graph(graph, "strict")
    return made


def _needs_cuts(graph: TensorGraph) -> bool:
    return graph.name in ("rope_from_computed_table", "pool_cast_whole")


def close(have: torch.Tensor, want: torch.Tensor, what: str) -> None:
    exact = want.dtype == torch.float32
    rtol, atol = (2e-5, 1e-5) if exact else (2e-2, 1e-2)
    torch.testing.assert_close(have.float(), want.float(), rtol=rtol, atol=atol, equal_nan=True, msg=lambda m: f"{what}: {m}")


def agrees(name: str, graph: Graph, rows: int, precision: str = "f32") -> None:
    """Runs the function and the graph on the same inputs; compares outputs and every argument."""
    fn, make = STEPS[name]
    torch.manual_seed(rows)
    given = make(rows)
    eager = {k: v.clone() for k, v in given.items()}
    out = [x for x in leaves(fn(**eager)) if isinstance(x, torch.Tensor)]
    mine = {k: v.clone() for k, v in given.items()}
    run_graph(graph, mine, precision)
    for tensor, want in zip([o for o in graph.outputs if o[0] != "!"], out, strict=True):
        close(mine[tensor.lstrip("=")], want, f"{tensor} at {rows} rows")
    for argument, want in eager.items():
        close(mine[argument], want, f"{argument} at {rows} rows")


@pytest.mark.parametrize("name", STEPS)
def test_every_level_does_what_the_function_does(name: str) -> None:
    for level, graph in levels(captured(name)).items():
        for rows in (17, 1) if level != "contract" else (3, 0):
            agrees(name, graph, rows)
        assert format_graph(graph) == format_graph(graph.with_nodes(graph.nodes)), level


@pytest.mark.parametrize("name", ["cut_by_slices", "several_tokens", "add_norm_quant"])
def test_the_model_keeps_narrow_roundings(name: str) -> None:
    agrees(name, to_graph(captured(name)), 5, "f64")


@pytest.mark.parametrize("name", ["cut_by_slices", "cut_by_chunk", "cut_by_view"])
def test_one_row_cut_in_any_way_shares_the_heads(name: str) -> None:
    """The three spellings give the same axes: one for the part, one for heads shared with the state, one for the key."""
    graph = to_graph(captured(name))
    window = next(n for n in graph.nodes if isinstance(n.op, Store) and n.op.tensor == "window")
    state = next(n for n in graph.nodes if isinstance(n.op, Store) and n.op.tensor == "state")
    assert [a.extent for a in window.axes[1:]] == [3, 2, 8, 3]
    assert window.axes[2] == state.axes[1] and window.axes[3] == state.axes[3]
    binds = {b for n in graph.nodes for r in refs(n.op) for b in r.bind if b[0] == state.axes[3].name}
    assert binds == {(state.axes[3].name, Index(state.axes[2].name))}, "only the value is exchanged"


def test_uneven_parts_need_no_exchange() -> None:
    graph = to_graph(captured("cut_unevenly"))
    assert sum(isinstance(n.op, Store) and n.op.tensor == "window" for n in graph.nodes) == 3
    heads = next(n for n in graph.nodes if isinstance(n.op, Store) and n.op.tensor == "state").axes[1]
    assert all(heads in n.axes for n in graph.nodes if isinstance(n.op, Store))
    assert all(at.axis is None or at.offset or "window" in axis or "weight" in axis
               for n in graph.nodes for r in refs(n.op) for axis, at in r.bind)


def test_the_output_does_not_wait_for_the_update() -> None:
    """<h + d k, q> is distributed: no dot reads what the state ends as."""
    graph = to_graph(captured("cut_by_view"))
    stored = next(n.op.arg.value for n in graph.nodes if isinstance(n.op, Store) and n.op.tensor == "state")
    assert not any(isinstance(n.op, Reduce) for n in graph.readers(stored))
    strict = to_graph(captured("cut_by_view"), "strict")
    assert any(isinstance(n.op, Reduce) for n in strict.readers(
        next(n.op.arg.value for n in strict.nodes if isinstance(n.op, Store) and n.op.tensor == "state")))
    assert not any(getattr(n.op, "fn", "") == "fma" for n in strict.nodes)


@pytest.mark.slow
def test_names_do_not_depend_on_the_process(request: pytest.FixtureRequest) -> None:
    import subprocess
    import sys
    code = ("from tests.passes.test_front import captured; from fusec.passes.front import to_graph;"
            "from fusec.ir.print_graph import format_graph; print(format_graph(to_graph(captured('scan_with_conv'))), end='')")
    texts = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=request.config.rootpath,
                            env={"PYTHONHASHSEED": seed, "PATH": "/usr/bin:/bin"}, check=True).stdout for seed in ("1", "2")]
    assert texts[0] == texts[1] == format_graph(to_graph(captured("scan_with_conv")))


