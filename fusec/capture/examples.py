"""Example arguments from declared shapes: sizes by names of axes, tensors without memory to capture from, values to run with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import CaptureError, FusecError
from ..ir.reference import TORCH_DTYPE
from .annotations import ROWS, Declared, FreeNames, declared, dtype_named, free_names, loc_of, names

OTHER_INTEGERS = 8  # An integer that is no index is below it.


@dataclass(frozen=True, slots=True)
class Layouts:
    """tensors: (shape, dtype) by argument. constants: the other arguments. free: the axes that no size was given for."""

    tensors: dict[str, tuple[tuple[int, ...], torch.dtype]]
    constants: dict[str, Any]
    free: FreeNames


def known(fn: Callable[..., Any]) -> tuple[str, ...]:
    """What can be given for a function that declares shapes: sizes of axes, dtypes of arguments with several, constants."""
    specs = declared(fn)
    if not specs:
        return ()
    several = [n for n, s in specs.items() if len(s.dtypes) > 1]
    return tuple(dict.fromkeys([*names(specs), *several, *(n for n in inspect.signature(fn).parameters if n not in specs)]))


def check_known(fn: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Raises FusecError for a name that `known` does not have."""
    for name in given:
        if name not in known(fn):
            sizes = ", ".join(known(fn)) or "none: no axis is declared"
            raise FusecError(f"{fn.__name__}: {name}: the sizes that can be set are {sizes}", loc_of(fn))


def layouts(fn: Callable[..., Any], rows: int, given: Mapping[str, Any]) -> Layouts:
    """What the arguments of a function that declares shapes look like. given: as `known` names them; an axis that is not given is
    free, and has some size here: `rows` (or the first one) that many rows, others more.

    Raises FusecError for a value that does not fit and for a parameter that nothing is known of.
    """
    specs, loc = declared(fn), loc_of(fn)
    axes = names(specs)
    check_known(fn, given)
    for name in given:
        if name in axes and (type(given[name]) is not int or given[name] < 1):
            raise FusecError(f"{fn.__name__}: {name}: expected a size, found {given[name]!r}")
    free = [n for n in axes if n not in given]
    free.sort(key=lambda n: n != ROWS)
    sizes = {**{n: given[n] for n in axes if n in given}, **_examples(free, rows)}
    tensors = {n: (_shape(s, sizes, loc), TORCH_DTYPE[_dtype(fn, s, given)]) for n, s in specs.items()}
    return Layouts(tensors, _constants(fn, specs, given), free_names(specs, given))


def _examples(free: list[str], rows: int) -> dict[str, int]:
    """Sizes for the free axes: the rows, then different numbers above them (pools have more slots than there are rows)."""
    return {n: rows if i == 0 else rows + rows // 2 + 1 + i for i, n in enumerate(free)}


def _shape(spec: Declared, sizes: Mapping[str, int], loc: Any) -> tuple[int, ...]:
    shape = []
    for dim in spec.dims:
        n = 2 if dim.tree is None else dim.size(sizes)
        if n is None or n < 1:
            said = ", ".join(f"{x} = {sizes[x]}" for x in dim.names)
            raise CaptureError(f"argument {spec.name}: dim {dim.text} is {n} with {said}", loc, "give other sizes")
        shape.append(n)
    return tuple(shape)


def _dtype(fn: Callable[..., Any], spec: Declared, given: Mapping[str, Any]) -> str:
    if spec.name not in given or len(spec.dtypes) == 1:
        return spec.dtypes[0]
    found = dtype_named(str(given[spec.name]))
    if found not in spec.dtypes:
        raise FusecError(f"{fn.__name__}: {spec.name}: expected one of {', '.join(spec.dtypes)}, found {given[spec.name]!r}")
    return found


def _constants(fn: Callable[..., Any], specs: Mapping[str, Declared], given: Mapping[str, Any]) -> dict[str, Any]:
    """Values of the parameters without a declared shape: what is given, else the default. `-D bias=none` is None."""
    found = {}
    for p in inspect.signature(fn).parameters.values():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) or p.name in specs:
            continue
        if p.name in given:
            found[p.name] = given[p.name]
        elif p.default is p.empty:
            raise FusecError(
                f"{fn.__name__}: parameter {p.name} has neither a declared shape nor a value",
                loc_of(fn),
                f'annotate it, {p.name}: Float[Tensor, "rows D"], or give it a default or a value with static= or -D {p.name}=…',
            )
    return found


def grown(fn: Callable[..., Any], made: Layouts, slots: Mapping[str, tuple[str, int]], limits: Mapping[str, int]) -> dict[str, int]:
    """Sizes for free axes along which a written pool has fewer slots than an index has entries: those have to be distinct.

    slots: index -> the written (pool, dim) that it names slots of.
    """
    specs, found = declared(fn), dict[str, int]()
    for index, (pool, dim) in slots.items():
        if index not in made.tensors or pool not in specs:
            continue
        count, axis = int(torch.Size(made.tensors[index][0]).numel()), specs[pool].dims[dim].text
        have = made.tensors[pool][0][dim]
        if limits[index] < count and axis in made.free.names and axis != ROWS:
            found[axis] = max(found.get(axis, 0), -(-have * (count + 1) // max(limits[index], 1)))
    return found


def without_values(made: Layouts) -> dict[str, Any]:
    """Arguments to capture from."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return {**made.constants, **{n: torch.empty(shape, dtype=dtype) for n, (shape, dtype) in made.tensors.items()}}


def with_values(made: Layouts, device: Any, limits: Mapping[str, int]) -> dict[str, Any]:
    """Arguments to run with: normal numbers, indices below their limits and distinct where there are enough to choose from."""
    return {**made.constants, **{n: _filled(*layout, device, limits.get(n)) for n, layout in made.tensors.items()}}


def _filled(shape: tuple[int, ...], dtype: torch.dtype, device: Any, limit: int | None) -> torch.Tensor:
    count = int(torch.Size(shape).numel())
    if dtype == torch.bool:
        return torch.rand(shape, device=device) < 0.5
    if dtype.is_floating_point:
        return torch.randn(shape, device=device).to(dtype)
    if limit is not None and limit >= count:
        return torch.randperm(limit, device=device)[:count].reshape(shape).to(dtype)
    return torch.randint(0, limit or OTHER_INTEGERS, shape, device=device).to(dtype)
