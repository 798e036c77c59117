"""One call: from tensors to a launch. Checks run once per combination of layouts; a warm call looks its plan up and goes.

A plan is what was found out for one combination of shapes, strides, dtypes, device and alignment: which loaded kernels run, in
which order they take the tensors, what is allocated, which pairs of tensors must be seen apart. Only that last test depends on the
addresses of a call; where the ranges of two tensors do not touch it is two comparisons.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import ArgumentError
from ..ir.graph import Graph
from ..ir.structure import constant, leaves, rebuilder
from . import contract
from .overlap import View

Loaded = Callable[..., Any]
"""A loaded kernel: takes its tensors in the order of its parameters and launches on torch's current stream."""


@dataclass(slots=True)
class Plan:
    """How calls of one combination of layouts run. Tensors are numbered: the arguments in order, then the fresh outputs.

    launches: (loaded kernel, numbers of its tensors). allocations: (shape, dtype) of each fresh output. apart: pairs to be seen
    apart, the first one written. returned: numbers of the tensors returned. detach: some argument would carry a gradient elsewhere.
    """

    device: torch.device
    launches: tuple[tuple[Loaded, tuple[int, ...]], ...]
    allocations: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    apart: tuple[tuple[int, int, int, int], ...]
    names: tuple[str, ...]
    views: Mapping[str, View]
    returned: tuple[int, ...]
    pack: Callable[[list[torch.Tensor]], Any]
    graph: Graph
    detach: bool
    seen: dict[tuple[int, int, int], None] = field(default_factory=dict)

    def run(self, tensors: list[torch.Tensor], outputs: Sequence[torch.Tensor]) -> Any:
        """Launch on tensors that the plan was made for; `outputs` are the caller's, or () for fresh ones."""
        everything = [*tensors, *outputs]
        start = [t.data_ptr() for t in everything] if self.apart else []
        for i, j, before, after in self.apart:
            if before < start[j] - start[i] < after:
                self._look_closer(i, j, start[j] - start[i])
        if not outputs:
            everything.extend(torch.empty(shape, dtype=dtype, device=self.device) for shape, dtype in self.allocations)
        if self.launches:
            if self.device.type == "cuda" and torch.cuda.current_device() != self.device.index:
                with torch.cuda.device(self.device):
                    self._launch(everything)
            else:
                self._launch(everything)
        return self.pack([everything[i] for i in self.returned])

    def _launch(self, everything: list[torch.Tensor]) -> None:
        plain = [t.detach() for t in everything] if self.detach else everything
        for loaded, order in self.launches:
            loaded(*[plain[i] for i in order])

    def _look_closer(self, i: int, j: int, distance: int) -> None:
        if (i, j, distance) not in self.seen:
            contract.check_apart(self.names[i], self.names[j], self.views, distance)
            if len(self.seen) < 4096:
                self.seen[i, j, distance] = None


def pairs(views: Mapping[str, View], names: Sequence[str], written: Sequence[str]) -> tuple[tuple[int, int, int, int], ...]:
    """(i, j, before, after): tensor i is written; where j's start less i's lies between `before` and `after`, bytes may be shared.

    Names without a view are fresh outputs: they share nothing.
    """
    found = []
    for i, a in enumerate(names):
        for j, b in enumerate(names):
            known = a in written and a != b and a in views and b in views and not (b in written and j < i)
            if known and not views[a].empty and not views[b].empty:
                found.append((i, j, -views[b].extent, views[a].extent))
    return tuple(found)


def packer(graph: Graph) -> Callable[[list[torch.Tensor]], Any]:
    """How the outputs are returned: from the list of the tensors among them to what the function returns."""
    make = rebuilder(graph.structure)
    if not any(o.startswith("!") for o in graph.outputs):
        return make
    fixed = [(o.startswith("!"), constant(o) if o.startswith("!") else None) for o in graph.outputs]

    def pack(found: list[torch.Tensor]) -> Any:
        rest = iter(found)
        return make([value if known else next(rest) for known, value in fixed])
    return pack


def unpack_outputs(graph: Graph, out: Any, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """{fresh output: the caller's tensor} from `out`, which has the structure that the function returns; else an ArgumentError.

    What the function returns as a constant may be anything there.
    """
    structure, names = graph.structure, graph.outputs
    if structure.startswith("dict:"):
        keys = structure.removeprefix("dict:").split(",")
        if not isinstance(out, dict) or set(out) != set(keys):
            raise ArgumentError(f"out: expected a dict of {', '.join(keys)}, given {_kind(out)}")
        given = [out[k] for k in keys]
    elif structure in ("tuple", "list"):
        if not isinstance(out, (tuple, list)) or len(out) != len(names):
            raise ArgumentError(f"out: expected a {structure} of {len(names)} tensors, given {_kind(out)}")
        given = list(out)
    elif structure == "none":
        raise ArgumentError("out: expected none, as the function returns nothing")
    elif structure == "tensor":
        given = [out[0] if isinstance(out, (tuple, list)) and len(out) == 1 else out]
    else:
        given = leaves(out)
        if len(given) != len(names):
            raise ArgumentError(f"out: expected {len(names)} tensors packed as the function packs them, given {_kind(out)}")
    found = {}
    for name, value in zip(names, given):
        if name.startswith("!"):
            continue
        tensor = contract.check_kind(f"out ({name})", value)
        if name.startswith("="):
            if tensor is not tensors[name[1:]]:
                raise ArgumentError(f"out: the function returns its argument {name[1:]} there; expected that same tensor")
        else:
            found[name] = tensor
    return found


def _kind(value: Any) -> str:
    if isinstance(value, dict):
        return f"a dict of {', '.join(map(str, value))}"
    return f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, (tuple, list)) else "")


def returned(graph: Graph, names: Sequence[str]) -> tuple[int, ...]:
    """The numbers of the tensors that the function returns."""
    return tuple(names.index(o.removeprefix("=")) for o in graph.outputs if not o.startswith("!"))


def check_grid(grid: Sequence[Sequence[int | str]], sizes: Mapping[str, int]) -> bool:
    """Whether there is anything to launch; ArgumentError for a grid that the hardware does not take."""
    blocks = []
    for factors in grid:
        product = 1
        for f in factors:
            product *= f if isinstance(f, int) else sizes[f]
        blocks.append(product)
    for given, limit, letter in zip(blocks, (2**31 - 1, 65535, 65535), "xyz"):
        if given > limit:
            raise ArgumentError(f"grid {letter}: at most {limit} blocks, {given} needed for sizes {dict(sizes)}")
    return 0 not in blocks
