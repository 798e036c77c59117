"""The levels of a check, and running a graph interpreted: in place in the tensors given, into poisoned outputs."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError, FusecError
from ..ir.axis import Extent
from ..ir.graph import Graph
from ..ir.interpret import run_graph
from ..ir.reference import TORCH_DTYPE
from ..ir.sizes import solve
from ..ir.tensor import Argument
from .storage import poison

LEVELS = ("graph", "kernel", "emulate", "gpu")
Execute = Callable[[Graph, Mapping[str, Tensor]], dict[str, Tensor]]
"""(graph, its arguments by name) -> its fresh outputs by name; arguments that it stores to change in place."""


def check_level(level: str) -> str:
    """The level; FusecError for an unknown one."""
    if level not in LEVELS:
        raise FusecError(f"level: expected one of {', '.join(LEVELS)}, found {level!r}")
    return level


def sizes(arguments: tuple[Argument, ...], tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """The extents behind the symbols of the arguments' shapes, by name; of products of them (`2*rows`) too."""
    pairs = ((str(e), given) for a in arguments for e, given in zip(a.shape, tensors[a.name].shape, strict=True)
             if not isinstance(e, int))
    try:
        return solve(pairs)
    except ValueError as error:
        raise ArgumentError(f"the sizes of the arguments do not agree: {error}") from None


def shape_of(argument: Argument, known: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(_size(e, known) for e in argument.shape)


def _size(extent: Extent | Any, known: Mapping[str, int]) -> int:
    if isinstance(extent, int):
        return extent
    return known[str(extent)] if str(extent) in known else int(extent.subs({s: known[str(s)] for s in extent.free_symbols}))


def poisoned(graph: Graph, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Fresh outputs of a graph for these arguments, every element 777.0."""
    known, device = sizes(graph.arguments, tensors), device_of(tensors)
    return {t.name: poison(torch.empty(shape_of(t, known), dtype=TORCH_DTYPE[t.dtype], device=device)) for t in graph.fresh}


def device_of(tensors: Mapping[str, Tensor]) -> torch.device:
    """The device that the tensors lie on; the CPU where there are none. As a context it is where new tensors go."""
    return next((t.device for t in tensors.values()), torch.device("cpu"))


def interpreted(graph: Graph, tensors: Mapping[str, Tensor], precision: str = "f32") -> dict[str, Tensor]:
    """The graph itself, in fp32 or (the model) with fp64 in the place of fp32."""
    out = poisoned(graph, tensors)
    with device_of(tensors):
        run_graph(graph, {**tensors, **out}, precision=precision)
    return out


def model(graph: Graph, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The graph with fp64 in the place of fp32 and every narrower rounding kept."""
    return interpreted(graph, tensors, "f64")
