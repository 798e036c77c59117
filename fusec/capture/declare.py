"""Capture of a function that may declare its shapes: the example is checked against them, and its axes get their names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..ir.tensor import TensorGraph
from . import annotations, bind, export
from .locate import of_function


def capture(
    fn: Callable[..., Any], example: Mapping[str, Any], dynamic_shapes: Any = None, static: Mapping[str, Any] | None = None
) -> TensorGraph:
    """As export.capture, and CaptureError for an example that is not what the function's annotations say."""
    specs = annotations.declared(fn)
    if not specs:
        return export.capture(fn, example, dynamic_shapes, static)
    tensors = bind.bind(fn, example, static).tensors
    fixed = dict(dynamic_shapes.sizes) if isinstance(dynamic_shapes, annotations.FreeNames) else {}
    factors = annotations.factors(specs, tensors, fixed, of_function(inspect.unwrap(fn)))
    graph = export.capture(fn, example, dynamic_shapes, static, factors)
    symbols = {str(s) for a in graph.arguments for e in a.shape if not isinstance(e, int) for s in e.free_symbols}
    free = {n: tuple(tuple((f, None if f in symbols else k) for f, k in dim) for dim in dims) for n, dims in factors.items()}
    return replace(graph, arguments=tuple(replace(a, factors=free.get(a.name, ())) for a in graph.arguments))
