"""What a graph says about its arguments, as far as making inputs needs it: rows, pools, the indices that pick from them."""
from __future__ import annotations

from dataclasses import dataclass

from ..ir.graph import Graph, Load, Ref, Store, refs
from ..ir.tensor import Argument


@dataclass(frozen=True, slots=True)
class Facts:
    """rows: (argument, dim) pairs of the rows' class. pools: argument -> the dim that an index picks from.
    indices: integer argument -> the (pool, dim) pairs that it picks from. mutated: arguments written in place."""

    arguments: tuple[Argument, ...]
    rows: tuple[tuple[str, int], ...]
    pools: dict[str, int]
    indices: dict[str, tuple[tuple[str, int], ...]]
    mutated: tuple[str, ...]

    def row_dim(self, name: str) -> int | None:
        """The dim of an argument that is rows, None without one."""
        return next((d for n, d in self.rows if n == name), None)

    def argument(self, name: str) -> Argument:
        return next(a for a in self.arguments if a.name == name)

    @property
    def paged(self) -> tuple[str, ...]:
        """Pools that are updated in place."""
        return tuple(n for n in self.pools if n in self.mutated)


def facts(graph: Graph) -> Facts:
    """The facts of a graph over named axes."""
    rows = tuple((a.name, d) for a in graph.arguments for d, e in enumerate(a.shape)
                 if not isinstance(e, int) and str(e) == graph.rows)
    picks: dict[str, dict[tuple[str, int], None]] = {}
    pools: dict[str, int] = {}
    for node in graph.nodes:
        if not isinstance(node.op, (Load, Store)) or node.op.tensor not in {a.name for a in graph.arguments}:
            continue
        for dim, digits in enumerate(node.op.index):
            for digit in digits:
                if isinstance(digit.source, Ref):
                    pools[node.op.tensor] = dim
                    for name in _integers(graph, digit.source.value):
                        picks.setdefault(name, {})[node.op.tensor, dim] = None
    return Facts(graph.arguments, rows, pools, {n: tuple(p) for n, p in picks.items()}, graph.mutated)


def _integers(graph: Graph, value: str) -> set[str]:
    """The arguments that an integer value is computed from."""
    op = graph.table[value].op
    found = {op.tensor} if isinstance(op, Load) else set()
    return found.union(*(_integers(graph, r.value) for r in refs(op)))
