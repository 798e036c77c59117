"""The interpreter of the named graph: stores after loads, narrow roundings, overrides, stopping, sizes."""
from __future__ import annotations

import pytest
import torch

from fusec.errors import ArgumentError
from fusec.ir.interpret import run_graph, symbol_sizes

from .test_verify import good


def inputs(rows: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(rows)
    return {"x": torch.randn(rows, 6), "window": torch.randn(rows, 6, 3), "weight": torch.randn(6, 4)}


def expected(t: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    full = torch.cat([t["window"], t["x"][..., None]], -1)
    return (full * t["weight"]).sum(-1).exp(), full[..., 1:]


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_loads_see_the_bytes_of_the_call(rows: int) -> None:
    t = inputs(rows)
    want, window = expected(t)
    values = run_graph(good(), t)
    torch.testing.assert_close(t["out"], want)
    assert torch.equal(t["window"], window), "moved in place although the join read it"
    assert values["full"].shape == (rows, 6, 4) and set(values) == {"old", "new", "full", "taps", "y", "z"}


def test_strides_of_the_caller_are_kept() -> None:
    t = inputs(4)
    storage = torch.full((4, 3, 12), 777.0)
    view = storage.transpose(1, 2)[:, ::2]
    view.copy_(t["window"])
    t["window"] = view
    _, window = expected({k: v.clone() for k, v in t.items()})
    run_graph(good(), t)
    assert torch.equal(storage.transpose(1, 2)[:, ::2], window) and (storage[:, :, 1::2] == 777).all()


def test_an_override_stands_for_the_value_from_there_on() -> None:
    t = inputs(3)
    values = run_graph(good(), t, overrides={"y": torch.zeros(3, 6)})
    assert torch.equal(t["out"], torch.ones(3, 6)) and not values["y"].any()


def test_until_stops_before_a_node_and_stores_nothing() -> None:
    t = inputs(3)
    before = t["window"].clone()
    assert set(run_graph(good(), t, until="y")) == {"old", "new", "full", "taps"}
    assert torch.equal(t["window"], before) and "out" not in t


def test_the_model_computes_in_fp64() -> None:
    t = inputs(3)
    values = run_graph(good(), t, "f64")
    full = torch.cat([inputs(3)["window"], inputs(3)["x"][..., None]], -1).double()
    assert values["y"].dtype == torch.float64 and torch.equal(values["y"], (full * t["weight"].double()).sum(-1))


@pytest.mark.parametrize("change, message", [
    ({"weight": torch.zeros(6, 5)}, "weight: expected"),
    ({"window": torch.zeros(4, 6, 3)}, "window: expected"),
    ({"x": torch.zeros(3, 6, 1)}, "x: expected 2 dims, got 3"),
    ({"x": None}, "x is missing"),
])
def test_sizes_are_checked(change: dict[str, torch.Tensor | None], message: str) -> None:
    t = {k: v for k, v in {**inputs(3), **change}.items() if v is not None}
    with pytest.raises(ArgumentError, match=message):
        symbol_sizes(good(), t)
