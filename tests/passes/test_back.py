"""The back half on graphs made by hand: the kernel, run on the CPU, is the graph; and each pass keeps its law."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fusec.errors import FusionError, ResourceError
from fusec.ir.graph import Digit, Load, Ref
from fusec.ir.interpret_kernel import run_kernel
from fusec.ir.kernel import Barrier, Compute, Copy, KernelSpec, Shared, walk
from fusec.passes.back import to_kernel
from fusec.passes.plan_smem import plan_smem

from .graphs import outer_product_state, shifting_window, wide_row


def barriers(spec: KernelSpec) -> list[Barrier]:
    return [s for s in spec.body if isinstance(s, Barrier)]


def run_state(keys: int, values: int, heads: int, dtype: str, rows: int) -> KernelSpec:
    _, spec = to_kernel(outer_product_state(keys, values, heads, dtype), "sm_90a")
    gen, torch_dtype = torch.Generator().manual_seed(keys + rows), {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]

    def rand(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=gen)

    t = {
        "q": rand(rows, heads, keys),
        "key": rand(rows, heads, keys),
        "g": -rand(rows, heads, keys).abs(),
        "val": rand(rows, heads, values),
        "pool": rand(rows + 3, heads, keys, values).to(torch_dtype),
        "idx": torch.randperm(rows + 3, generator=gen)[:rows],
        "output": torch.full((rows, heads, values), 777.0),
    }
    before, live = t["pool"].clone(), t["idx"]
    h = before[live].double() * t["g"].double().exp()[..., None] + t["key"].double()[..., None] * t["val"].double()[..., None, :]
    run_kernel(spec, t)
    torch.testing.assert_close(t["output"].double(), torch.einsum("rhk,rhkv->rhv", t["q"].double(), h), rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(
        t["pool"][live].double(), h.to(torch_dtype).double(), rtol=2e-5 if dtype == "f32" else 2**-7, atol=1e-6
    )
    rest = [i for i in range(rows + 3) if i not in live.tolist()]
    assert torch.equal(t["pool"][rest], before[rest])
    return spec


@pytest.mark.parametrize(
    ("keys", "values", "heads", "dtype", "rows"),
    [(96, 192, 2, "f32", 3), (64, 64, 1, "bf16", 2), (48, 60, 3, "f32", 2), (100, 100, 1, "f32", 1), (16, 8, 2, "f32", 5)],
)
def test_state_in_place(keys: int, values: int, heads: int, dtype: str, rows: int) -> None:
    run_state(keys, values, heads, dtype, rows)


def test_wide_row() -> None:
    for columns in (7168, 1000):
        _, spec = to_kernel(wide_row(columns), "sm_90a")
        gen = torch.Generator().manual_seed(columns)
        t = {
            "x": torch.randn(3, columns, generator=gen).bfloat16(),
            "residual": torch.randn(3, columns, generator=gen).bfloat16(),
            "weight": torch.randn(columns, generator=gen),
            "output": torch.zeros(3, columns).to(torch.float8_e4m3fn),
            "scale": torch.full((3, 1), 777.0),
        }
        residual = t["residual"] + t["x"]
        y = residual.double() * torch.rsqrt(residual.double().square().mean(-1, keepdim=True) + 1e-6) * t["weight"]
        run_kernel(spec, t)
        assert torch.equal(t["residual"], residual)
        torch.testing.assert_close(t["scale"].double(), y.abs().amax(-1, keepdim=True) / 448, rtol=2e-5, atol=0)
        want = (y.float() / t["scale"]).to(torch.float8_e4m3fn)
        assert (t["output"].float() != want.float()).float().mean() < 1e-3
        several = spec.launch.threads > 32
        assert several == (columns == 7168), "a warp holds the short row"
        assert len(barriers(spec)) == 2 * several, "one barrier per dependent block reduction"


def test_shifting_window() -> None:
    _, spec = to_kernel(shifting_window(), "sm_90a")
    gen = torch.Generator().manual_seed(0)
    t = {
        "x": torch.randn(3, 200, generator=gen),
        "window": torch.randn(3, 200, 3, generator=gen),
        "weight": torch.randn(200, 4, generator=gen),
        "output": torch.full((3, 200), 777.0),
    }
    full = torch.cat([t["window"], t["x"][..., None]], -1)
    run_kernel(spec, t)
    torch.testing.assert_close(t["output"], torch.nn.functional.silu((full * t["weight"]).sum(-1)))
    assert torch.equal(t["window"], full[..., 1:])
    assert not barriers(spec) and not spec.smem.buffers, "every thread shifts what it alone has read"


def test_the_window_is_read_once() -> None:
    _, spec = to_kernel(shifting_window(), "sm_90a")
    reads = [s for s in walk(spec.body) if isinstance(s, Copy) and getattr(s.source, "tensor", "") == "window"]
    assert len(reads) == 1


def test_a_large_state_with_a_parallel_axis_is_split_over_the_grid() -> None:
    schedule, _ = to_kernel(outer_product_state(256, 256, 1), "sm_90a")
    assert ("v", 2, 128) in schedule.grid
    run_state(256, 256, 1, "f32", 1)


def test_reading_an_updated_pool_through_another_index_is_refused() -> None:
    graph = outer_product_state()
    other = replace(graph.table["state"], op=Load("pool", ((Digit(Ref("slot"), 2),), *graph.table["state"].op.index[1:])))
    nodes = tuple(other if n.name == "state" else n for n in graph.nodes)
    with pytest.raises(FusionError, match="pool is updated in place and read through another index"):
        to_kernel(graph.with_nodes(nodes), "sm_90a")


def test_a_dynamic_axis_that_is_reduced_is_refused() -> None:
    graph = wide_row(64)
    summed = replace(graph.table["squares"], axes=(), op=replace(graph.table["squares"].op, axes=graph.axes))
    with pytest.raises(FusionError, match="axis rows has a size that is known at the call only"):
        to_kernel(graph.with_nodes(tuple(summed if n.name == "squares" else n for n in graph.nodes)), "sm_90a")


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from(["f32", "bf16", "f8e4m3"]), st.integers(1, 600), st.integers(0, 8), st.integers(0, 8)),
        min_size=1,
        max_size=8,
    )
)
def test_smem_plan_never_overlaps_live_buffers(rows: list[tuple[str, int, int, int]]) -> None:
    body: list[Copy] = []
    spans = {f"b{i}": (min(a, b), max(a, b)) for i, (_, _, a, b) in enumerate(rows)}
    for now in range(9):
        for name, span in spans.items():
            if now in span:
                from fusec.ir.kernel import Elem, Linear

                body.append(Copy(Elem("x"), Shared(name, Linear())))
    sizes = {f"b{i}": (dtype, count) for i, (dtype, count, _, _) in enumerate(rows)}
    for limit in (1 << 20, 4096):
        try:
            plan = plan_smem(tuple(body), sizes, limit)
        except ResourceError:
            continue
        assert plan.total <= limit
        for a in plan.buffers:
            assert a.offset % 16 == 0
            for b in plan.buffers:
                alive = a.first <= b.last and b.first <= a.last
                apart = a.offset + a.bytes <= b.offset or b.offset + b.bytes <= a.offset
                assert a.name == b.name or not alive or apart


def test_products_are_spelled_so_that_they_cannot_contract() -> None:
    graph = outer_product_state()
    plain = replace(graph.table["h"], op=replace(graph.table["h"].op, fn="add", args=(Ref("state"), Ref("outer"))))
    _, spec = to_kernel(graph.with_nodes(tuple(plain if n.name == "h" else n for n in graph.nodes)), "sm_90a")
    text = str([s for s in walk(spec.body) if isinstance(s, Compute)])
    assert "mul_rn" in text and "'mul'" not in text
