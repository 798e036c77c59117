"""Capture of a function that may declare its shapes: the example is checked against them, and its axes get their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from ..ir.tensor import TensorGraph
from . import annotations, bind, export
from .annotations import ROWS, Declared
from .trace import like


def capture(
    fn: Callable[..., Any], example: Mapping[str, Any], dynamic_shapes: Any = None, static: Mapping[str, Any] | None = None
) -> TensorGraph:
    """As export.capture, and CaptureError for an example that is not what the function's annotations say. One row will do as an
    example where `rows` is declared."""
    specs = annotations.declared(fn)
    if not specs:
        return export.capture(fn, example, dynamic_shapes, static)
    tensors = bind.bind(fn, example, static).tensors
    fixed = dict(dynamic_shapes.sizes) if isinstance(dynamic_shapes, annotations.FreeNames) else {}
    loc = annotations.loc_of(fn)
    sizes = annotations.check(specs, tensors, fixed, loc)
    if sizes.get(ROWS) == 1 and ROWS not in fixed:
        sizes = {**sizes, ROWS: export.HINT}
        tensors = _enlarged(specs, tensors, sizes)
        example = {**example, **{n: t for n, t in tensors.items() if n in specs}}
    factors = annotations.factors(specs, tensors, fixed, loc)
    graph = export.capture(fn, example, dynamic_shapes, static, factors)
    symbols = {str(s) for a in graph.arguments for e in a.shape if not isinstance(e, int) for s in e.free_symbols}
    free = {n: tuple(tuple((f, None if f in symbols else k) for f, k in dim) for dim in dims) for n, dims in factors.items()}
    return replace(graph, arguments=tuple(replace(a, factors=free.get(a.name, ())) for a in graph.arguments))


def _enlarged(
    specs: Mapping[str, Declared], tensors: Mapping[str, torch.Tensor], sizes: Mapping[str, int]
) -> dict[str, torch.Tensor]:
    """Tensors of the same layouts with more rows, without memory: torch would take one row for a constant."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    found = dict(tensors)
    for name, spec in specs.items():
        grown = {d: dim.size(sizes) for d, dim in enumerate(spec.dims) if ROWS in dim.names}
        if name in tensors and grown:
            layout = export.resized(like(tensors[name]), {d: n for d, n in grown.items() if n is not None})
            with FakeTensorMode():
                found[name] = torch.empty_strided(layout.shape, layout.strides, dtype=layout.dtype, device=layout.device)
    return found
