"""The graph over named axes: the level that fusion and scheduling work on.

A value is a function of its axes. Views are gone: a reference binds the producer's axes to the consumer's. Every access to global
memory is explicit: Load and Store name a tensor and give, per dim, where they read or write.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Union

from ..errors import Loc
from .axis import Axis
from .scalar import Lit
from .tensor import Argument, Size


@dataclass(frozen=True, slots=True)
class Index:
    """A coordinate: an axis of the reader plus an offset, or the offset alone (axis None)."""

    axis: str | None
    offset: int = 0

    def __str__(self) -> str:
        if self.axis is None:
            return str(self.offset)
        return f"{self.axis}+{self.offset}" if self.offset else self.axis


@dataclass(frozen=True, slots=True)
class Ref:
    """A value read at other coordinates than its own: `bind` gives (axis of the value, Index) where it is not the axis itself."""

    value: str
    bind: tuple[tuple[str, Index], ...] = ()

    def index(self, axis: str) -> Index:
        """Where the reader reads the value along one of the value's axes."""
        return dict(self.bind).get(axis, Index(axis))

    def __str__(self) -> str:
        inner = ", ".join(f"{a}={i}" for a, i in self.bind)
        return f"{self.value}[{inner}]" if inner else self.value


@dataclass(frozen=True, slots=True)
class Digit:
    """One term of a dim's coordinate: (an axis coordinate, or a scalar integer value) times a step."""

    source: Union[Index, Ref]
    step: int = 1


DimIndex = tuple[Digit, ...]
"""A coordinate along one dim of a tensor: the sum of its digits; () is 0."""


@dataclass(frozen=True, slots=True)
class Load:
    """tensor[index]; elements where the bool `where` is false are 0 and are not read.

    `version`: how many Stores to the same tensor precede this read as written (0: the caller's bytes). A read of a later version
    through the same index was forwarded before this level; any other makes a kernel boundary.
    """

    tensor: str
    index: tuple[DimIndex, ...]
    where: Ref | None = None
    version: int = 0


@dataclass(frozen=True, slots=True)
class Map:
    """fn(args), rounded to the node's dtype. An axis of the node that an arg lacks is a broadcast."""

    fn: str
    args: tuple[Union[Ref, Lit, Size], ...]


@dataclass(frozen=True, slots=True)
class ReduceForm:
    """The order of a reduction, a part of its meaning: factors of the reduced axes from the innermost loop outwards.

    steps: (how, axis, extent, stride): `serial` folds ascending in one carry, `tree` combines neighbours pairwise (a butterfly),
    stride is the distance of neighbours along the axis in elements. Positions beyond the axis' extent hold the identity.
    """

    steps: tuple[tuple[str, str, int, int], ...]

    def __str__(self) -> str:
        return " ".join(f"{how}({axis}:{extent}@{stride})" for how, axis, extent, stride in self.steps)


@dataclass(frozen=True, slots=True)
class Reduce:
    """The fold of the args over `axes`, by a row of the monoid table; `form` is its order, None until it is chosen."""

    monoid: str
    args: tuple[Ref, ...]
    axes: tuple[Axis, ...]
    form: ReduceForm | None = None


@dataclass(frozen=True, slots=True)
class Join:
    """Ranges of one axis of the node: (start, length, ref); the ref's value is read at coordinate (axis − start)."""

    axis: str
    parts: tuple[tuple[int, int, Ref], ...]


@dataclass(frozen=True, slots=True)
class Iota:
    """The coordinate along the node's only axis."""


@dataclass(frozen=True, slots=True)
class Store:
    """tensor[index] = arg at every point of the node's axes, except where the bool `where` is false."""

    tensor: str
    index: tuple[DimIndex, ...]
    arg: Ref
    where: Ref | None = None


Op = Union[Load, Map, Reduce, Join, Iota, Store]


@dataclass(frozen=True, slots=True)
class Node:
    """A value over its axes (for a Store: an effect over its domain)."""

    name: str
    op: Op
    axes: tuple[Axis, ...]
    dtype: str
    loc: Loc = Loc()

    @property
    def domain(self) -> tuple[Axis, ...]:
        """The iteration space: the axes, then the reduced ones."""
        return self.axes + (self.op.axes if isinstance(self.op, Reduce) else ())


@dataclass(frozen=True, slots=True)
class Graph:
    """One function over named axes.

    tensors: every argument and every fresh output. nodes: definition before use, Stores in the order written. outputs: names of the
    fresh output tensors in the order returned (`=argument` for an argument that is returned). mutated: arguments written in place.
    """

    name: str
    axes: tuple[Axis, ...]
    arguments: tuple[Argument, ...]
    fresh: tuple[Argument, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...]
    structure: str = "tensor"
    rows: str | None = None
    numerics: str = "default"

    @property
    def table(self) -> dict[str, Node]:
        return {n.name: n for n in self.nodes}

    @property
    def tensors(self) -> dict[str, Argument]:
        return {t.name: t for t in self.arguments + self.fresh}

    @property
    def mutated(self) -> tuple[str, ...]:
        stored = {n.op.tensor for n in self.nodes if isinstance(n.op, Store)}
        return tuple(a.name for a in self.arguments if a.name in stored)

    def axis(self, name: str) -> Axis:
        return next(a for a in self.axes if a.name == name)

    def readers(self, name: str) -> tuple[Node, ...]:
        return tuple(n for n in self.nodes if any(r.value == name for r in refs(n.op)))

    def with_nodes(self, nodes: tuple[Node, ...]) -> "Graph":
        return replace(self, nodes=nodes)


def refs(op: Op) -> Iterator[Ref]:
    """Every reference an op makes: operands, predicates, and index values of loads and stores."""
    if isinstance(op, (Load, Store)):
        for dim in op.index:
            for digit in dim:
                if isinstance(digit.source, Ref):
                    yield digit.source
        if op.where is not None:
            yield op.where
    if isinstance(op, Store):
        yield op.arg
    if isinstance(op, (Map, Reduce)):
        for arg in op.args:
            if isinstance(arg, Ref):
                yield arg
    if isinstance(op, Join):
        for _, _, ref in op.parts:
            yield ref


def operands(op: Op) -> Iterator[Ref]:
    """The references to per-element values: all but the indices of loads and stores."""
    indices = {id(d.source) for dim in getattr(op, "index", ()) for d in dim}
    for ref in refs(op):
        if id(ref) not in indices:
            yield ref
