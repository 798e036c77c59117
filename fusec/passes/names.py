"""Names of values: the user's variables where there are any, else from the op; unique identifiers, the same in every process."""
from __future__ import annotations

import keyword

from ..ir.graph import Graph


class Names:
    """Hands out unique value names. `taken` starts as the names of tensors; axes reserve theirs as they get them."""

    def __init__(self, taken: frozenset[str]) -> None:
        self.taken = set(taken)

    @classmethod
    def of(cls, graph: Graph) -> Names:
        """Names beside those of a graph's values, tensors and axes."""
        return cls(frozenset(graph.tensors) | {n.name for n in graph.nodes} | {a.name for a in graph.axes})

    def value(self, target: str, fallback: str) -> str:
        """`target` if it is a free identifier, else target_1, target_2, …; without a target the same from `fallback`."""
        base = target if target.isidentifier() and not keyword.iskeyword(target) else fallback
        return self.unused(base)

    def unused(self, base: str) -> str:
        name, count = base, 0
        while name in self.taken or keyword.iskeyword(name):
            count += 1
            name = f"{base}_{count}"
        self.taken.add(name)
        return name
