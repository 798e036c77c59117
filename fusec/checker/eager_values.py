"""Values of the function in eager mode by the source location they come from, and of the levels that capture made of it."""
from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..capture.locate import describe
from ..errors import Loc
from ..ir import interpret, interpret_tensor
from ..ir.graph import Graph, Map, Reduce
from ..ir.tensor import TensorGraph
from .report import Difference
from .single_rounding import SingleRounding
from .storage import clone
from .ulp import MANTISSA, is_nan, ulp_distance

By = dict[Loc, "Seen"]
VIEWS = ("__get__", "dim", "size", "stride", "__setitem__")


@dataclass(frozen=True, slots=True)
class Seen:
    """The last value that came from a location. dims: their names; row: which of them is rows, None where none is known to be."""

    name: str
    value: Tensor
    dtype: torch.dtype
    dims: tuple[str, ...]
    row: int | None


class _Record(TorchFunctionMode):
    """Keeps a copy of what each torch call of the function returns, by location."""

    def __init__(self, entry: Any) -> None:
        super().__init__()
        self.entry, self.found = entry, By()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and getattr(func, "__name__", "") not in VIEWS:
            frame, chain = sys._getframe(1), []
            while frame is not None and frame.f_code is not self.entry:
                chain.append((frame.f_code, frame.f_lasti, frame.f_lineno))
                frame = frame.f_back  # type: ignore[assignment]
            loc = describe(iter(chain))
            name = loc.target or getattr(func, "__name__", "?")
            with torch._C.DisableTorchFunction():
                held = result.detach().clone()
                held, dtype = held.float() if held.dtype.itemsize == 1 and held.is_floating_point() else held, held.dtype
            self.found[loc] = Seen(name, held, dtype, tuple(f"dim{d}" for d in range(held.dim())), None)
        return result


def eager_values(call: Callable[[], Any]) -> By:
    """What each torch call inside of `call` returned last, by its location; each elementwise op rounds once."""
    def entry() -> None:
        with torch.no_grad(), SingleRounding(), record:
            call()
    record = _Record(entry.__code__)
    entry()
    return record.found


def captured_values(graph: TensorGraph, tensors: Mapping[str, Tensor]) -> By:
    """The last value of each location of the captured graph."""
    values, shapes = interpret_tensor.evaluate(graph, tensors)
    found = By()
    for node in graph.nodes:
        held = values[node.name].expand(shapes[node.name])
        row = next((d for d, e in enumerate(node.shape) if str(e) == graph.rows), None)
        dims = tuple("row" if d == row else f"dim{d}" for d in range(len(node.shape)))
        found[node.loc] = Seen(node.name, held, interpret.reference.TORCH_DTYPE[node.dtype], dims, row)
    return found


def graph_values(graph: Graph, tensors: Mapping[str, Tensor]) -> By:
    """The last computed value of each location of a graph over named axes."""
    values = interpret.run_graph(graph, clone(tensors))
    found = By()
    for node in graph.nodes:
        if isinstance(node.op, (Map, Reduce)):
            row = next((d for d, a in enumerate(node.axes) if str(a.extent) == graph.rows), None)
            found[node.loc] = Seen(node.name, values[node.name], interpret.reference.TORCH_DTYPE[node.dtype],
                                   tuple(a.name for a in node.axes), row)
    return found


COARSE, FINE = (5e-2, 1e-2, 8), (1e-4, 1e-5, 1)
"""(rtol, atol, ulps of a narrow type): honest flips add up along the function, so what is far off is looked for first."""


def first_apart(wanted: By, found: By, where: str, sides: tuple[str, str]) -> Difference | None:
    """The first location, in the order of `wanted`, whose two values differ; None where all that can be compared agree."""
    for limits in (COARSE, FINE):
        for loc, mine, other in _pairs(wanted, found):
            at = _apart(mine, other, limits)
            if at is None:
                continue
            flat, ulps = at
            index = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), other.value.shape)) if other.value.dim() else ()
            name = loc.target or other.name
            return Difference(name, loc, index[other.row] if other.row is not None else None, tuple(zip(other.dims, index)),
                              other.value.flatten()[flat].item(), _like(mine, other)[flat].item(), float("inf"),
                              f"the value {sides[1]} has there", where, ulps, sides)
    return None


def _pairs(wanted: By, found: By) -> Iterator[tuple[Loc, Seen, Seen]]:
    for loc, mine in wanted.items():
        other = found.get(loc)
        if other is not None and loc.frames and mine.dtype == other.dtype and other.value.numel() and mine.value.numel():
            if mine.value.numel() % other.value.numel() == 0 or other.value.numel() % mine.value.numel() == 0:
                yield loc, mine, other


def _like(mine: Seen, other: Seen) -> Tensor:
    """The elements of `mine`, flat, as many as `other` has: a value that is broadcast is the same along some axes."""
    flat, count = mine.value.flatten(), other.value.numel()
    return flat if flat.numel() == count else flat.repeat(-(-count // flat.numel()))[:count]


def _apart(mine: Seen, other: Seen, limits: tuple[float, float, int]) -> tuple[int, int | None] | None:
    """(flat element, ulps) where two values differ; None where they agree in some order: named axes may lie in another."""
    a, b = _like(mine, other), other.value.flatten()
    wrong, ulps = _outside(a, b, mine.dtype, limits)
    if not bool(wrong.any()):
        return None
    ordered, _ = _outside(mine.value.flatten().sort().values, _like(other, mine).sort().values, mine.dtype, limits)
    if mine.value.shape != other.value.shape and not bool(ordered.any()):
        return None
    flat = int(wrong.nonzero()[0])
    return flat, None if ulps is None else int(ulps[flat])


def _outside(a: Tensor, b: Tensor, dtype: torch.dtype, limits: tuple[float, float, int]) -> tuple[Tensor, Tensor | None]:
    rtol, atol, most = limits
    if dtype not in MANTISSA:
        return a != b.to(a.dtype), None
    if dtype != torch.float32:
        far = ulp_distance(a.to(dtype), b.to(dtype))
        return (far > most) & ((a.double() - b.double()).abs() > atol), far
    gap = (a.double() - b.double()).abs()
    return ((gap > atol + rtol * a.double().abs()) & (a != b)) | (is_nan(a) ^ is_nan(b)), None
