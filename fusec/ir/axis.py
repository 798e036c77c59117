"""Named axes: the identity of a dimension, the same for every value that has it."""
from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import sympy

Extent: TypeAlias = int | sympy.Symbol
"""Elements along an axis: a positive int, or a symbol where the size is known at the call only."""


@dataclass(frozen=True, slots=True, order=False)
class Axis:
    """An axis of a graph. Its name is its identity; the extent is an int or a symbol."""

    name: str
    extent: Extent

    @property
    def dynamic(self) -> bool:
        return not isinstance(self.extent, int)

    @property
    def size(self) -> int:
        """The extent of a static axis; an error for a dynamic one."""
        assert isinstance(self.extent, int), f"axis {self.name} is dynamic"
        return self.extent

    def __str__(self) -> str:
        return f"{self.name}:{self.extent}"


def volume(axes: tuple[Axis, ...]) -> int:
    """Product of the extents of static axes."""
    total = 1
    for axis in axes:
        total *= axis.size
    return total
