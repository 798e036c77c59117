"""Random tensor graphs: the named graph does what the tensor graph does, or is refused; no law is ever broken."""
from __future__ import annotations

import pytest
import torch

from fusec.errors import FusionError
from fusec.ir.interpret import run_graph
from fusec.ir.interpret_tensor import evaluate
from fusec.passes.front import to_graph

from .random_graphs import Random


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("first", range(0, 120, 20))
def test_random_graphs_keep_their_meaning(first: int, rows: bool) -> None:
    refused = 0
    for seed in range(first, first + 20):
        made = Random(seed, rows)
        graph = made.graph(16)
        values, shapes = evaluate(graph, {k: v.clone() for k, v in made.tensors.items()})
        for numerics in ("default", "strict"):
            try:
                named = to_graph(graph, numerics)
            except FusionError:
                refused += 1
                continue
            tensors = {k: v.clone() for k, v in made.tensors.items()}
            run_graph(named, tensors)
            wanted = list(zip(named.outputs, graph.outputs)) + [(a, v) for a, v in graph.mutations]
            for tensor, value in wanted:
                torch.testing.assert_close(tensors[tensor], values[value].expand(shapes[value]), rtol=1e-4, atol=1e-4,
                                           msg=lambda m, seed=seed, n=numerics: f"seed {seed} {n}: {m}")
    assert refused <= 8, "hardly any graph is refused"
