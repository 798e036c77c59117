"""What a graph says about its arguments, as far as making inputs needs it: rows, pools, the indices that pick from them."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor

from ..ir.graph import Digit, Graph, Index, Load, Map, Ref, Store, refs
from ..ir.reference import apply
from ..ir.scalar import Lit
from ..ir.tensor import Argument, Shape, Size

Computed = Callable[[Tensor, Mapping[str, Tensor]], "Tensor | None"]
"""(values of an index argument, the arguments) -> the coordinates that the function makes of them; None if more goes into them."""


def rows_in(extent: object, rows: str | None) -> int:
    """How many elements of a dim belong to one row: 1 for `rows`, 2 for `2*rows`, 0 where the dim is not rows."""
    if rows is None or isinstance(extent, int):
        return 0
    factor, rest = extent.as_coeff_Mul()  # type: ignore[attr-defined]
    return int(factor) if str(rest) == rows else 0


def longer_than_rows(extent: object, rows: str | None) -> bool:
    """Whether a dim holds offsets: one element more than there are rows."""
    return rows is not None and str(extent) == f"{rows} + 1"


def no_shorter_than_rows(extent: object, rows: str | None) -> bool:
    """Whether the first elements of a dim belong to the rows, one to each, with any number of others behind them."""
    terms = str(extent).split(" + ")
    return rows in terms and not any(t.isdigit() for t in terms) and len(terms) == 2


def row_dim_of(shape: Shape, rows: str | None) -> int | None:
    """The first dim that is rows, or a multiple of them."""
    return next((d for d, e in enumerate(shape) if rows_in(e, rows)), None)


@dataclass(frozen=True, slots=True)
class Facts:
    """rows: (argument, dim) pairs of the rows' class, multiples of rows included. pools: argument -> the dim that an index picks
    from (where several do, the one of dynamic extent). indices: integer argument -> the (pool, dim) pairs that it picks from.
    mutated: arguments written in place. symbol: the rows' name. picks: what `capacity` evaluates. predicates: integer argument ->
    the `where` of each access through it, None for one without."""

    arguments: tuple[Argument, ...]
    rows: tuple[tuple[str, int], ...]
    pools: dict[str, int]
    indices: dict[str, tuple[tuple[str, int], ...]]
    mutated: tuple[str, ...]
    symbol: str | None = None
    picks: dict[str, tuple[tuple[str, int, int, Computed], ...]] = field(default_factory=dict)
    predicates: dict[str, tuple[Computed | None, ...]] = field(default_factory=dict)

    def row_dim(self, name: str) -> int | None:
        """The dim of an argument that is rows, None without one."""
        return next((d for n, d in self.rows if n == name), None)

    def per_row(self, name: str) -> int:
        """Elements along the dim that is rows that belong to one row: those of a row lie next to each other."""
        dim = self.row_dim(name)
        return 1 if dim is None else max(rows_in(self.argument(name).shape[dim], self.symbol), 1)

    @property
    def offsets(self) -> dict[str, int]:
        """Arguments with a dim of one element more than there are rows, and that dim."""
        return {a.name: d for a in self.arguments for d, e in enumerate(a.shape) if longer_than_rows(e, self.symbol)}

    @property
    def prefixes(self) -> dict[str, int]:
        """Arguments with a dim whose first elements belong to the rows, and that dim."""
        return {a.name: d for a in self.arguments for d, e in enumerate(a.shape) if no_shorter_than_rows(e, self.symbol)}

    def count(self, inputs: Mapping[str, Tensor]) -> int:
        """The rows of a batch; 0 where the function has none."""
        return next((inputs[n].shape[d] // self.per_row(n) for n, d in self.rows), 0)

    def capacity(self, index: str, inputs: Mapping[str, Tensor]) -> int:
        """The values 0, 1, … up to which an index argument picks inside of its pools, however the function computes with it."""
        whole = max(prod(inputs[pool].shape[d] for d in {d for p, d in self.indices[index] if p == pool})
                    for pool, _ in self.indices[index])
        values, most = torch.arange(whole), whole
        for pool, dim, beside, computed in self.picks.get(index, ()):
            at = computed(values, inputs)
            if at is not None:
                outside = ((at < 0) | (at + beside >= inputs[pool].shape[dim])).nonzero()
                most = min(most, int(outside[0]) if outside.numel() else whole)
            else:
                most = min(most, inputs[pool].shape[dim])
        return most

    def may_be_absent(self, index: str, inputs: Mapping[str, Tensor]) -> bool:
        """Whether −1 in an index argument says that its row takes no part: it makes every `where` false."""
        found = [p(torch.tensor([-1]), inputs) if p is not None else None for p in self.predicates.get(index, (None,))]
        return all(live is not None and not bool(live.any()) for live in found)

    @property
    def slots(self) -> dict[str, tuple[str, int]]:
        """Index arguments of pools that are written, by slots: (pool, dim)."""
        pairs = ((i, pair) for i, picked in self.indices.items() for pair in picked)
        return {i: (pool, dim) for i, (pool, dim) in pairs if pool in self.mutated and self.pools[pool] == dim}

    def argument(self, name: str) -> Argument:
        return next(a for a in self.arguments if a.name == name)

    @property
    def paged(self) -> tuple[str, ...]:
        """Pools that are updated in place."""
        return tuple(n for n in self.pools if n in self.mutated)


def facts(graph: Graph) -> Facts:
    """The facts of a graph over named axes."""
    rows = tuple((a.name, d) for a in graph.arguments for d, e in enumerate(a.shape) if rows_in(e, graph.rows))
    names = {a.name for a in graph.arguments}
    indices: dict[str, dict[tuple[str, int], None]] = {}
    picks: dict[str, list[tuple[str, int, int, Computed]]] = {}
    predicates: dict[str, list[Computed | None]] = {}
    pools: dict[str, int] = {}
    for node in graph.nodes:
        if not isinstance(node.op, (Load, Store)) or node.op.tensor not in names:
            continue
        pool, extents = node.op.tensor, {a.name: a.extent for a in node.axes}
        for dim, digits in enumerate(node.op.index):
            for digit in digits:
                if not isinstance(digit.source, Ref):
                    continue
                if pool not in pools or isinstance(graph.tensors[pool].shape[pools[pool]], int):
                    pools[pool] = dim
                for name in _integers(graph, digit.source.value):
                    indices.setdefault(name, {})[pool, dim] = None
                    made = _computed(graph, digit.source.value, name, digit.step)
                    picks.setdefault(name, []).append((pool, dim, _beside(digits, extents), made))
                    live = node.op.where
                    predicates.setdefault(name, []).append(None if live is None else _computed(graph, live.value, name, 1))
    return Facts(graph.arguments, rows, pools, {n: tuple(p) for n, p in indices.items()}, graph.mutated, graph.rows,
                 {n: tuple(p) for n, p in picks.items()}, {n: tuple(p) for n, p in predicates.items()})


def _beside(digits: tuple[Digit, ...], extents: Mapping[str, object]) -> int:
    """How far the axes' digits beside an index reach."""
    total = 0
    for digit in digits:
        if isinstance(digit.source, Index):
            extent = extents.get(digit.source.axis or "", 1)
            total += (digit.source.offset + (extent - 1 if isinstance(extent, int) else 0)) * digit.step
    return total


def _computed(graph: Graph, value: str, argument: str, step: int) -> Computed:
    table = graph.table

    def of(name: str, given: Tensor, inputs: Mapping[str, Tensor]) -> Tensor | None:
        op = table[name].op
        if isinstance(op, Load):
            return given if op.tensor == argument else None
        if not isinstance(op, Map):
            return None
        args: list[Tensor | Lit] = []
        for a in op.args:
            if isinstance(a, Size):
                found: Tensor | Lit | None = torch.tensor(inputs[a.tensor].shape[a.dim])
            else:
                found = of(a.value, given, inputs) if isinstance(a, Ref) else a
            if found is None:
                return None
            args.append(found)
        return apply(op.fn, args)

    def computed(given: Tensor, inputs: Mapping[str, Tensor]) -> Tensor | None:
        found = of(value, given, inputs)
        return None if found is None else found * step
    return computed


def _integers(graph: Graph, value: str) -> set[str]:
    """The arguments that an integer value is computed from."""
    op = graph.table[value].op
    found = {op.tensor} if isinstance(op, Load) else set()
    return found.union(*(_integers(graph, r.value) for r in refs(op)))
