"""The tensor graph: what capture gives, functional, in positional dims, over a small closed set of primitives.

Operands of a Map are right-aligned and broadcast as in PyTorch. A mutation is an Update that yields the new version of its
target; the graph's `mutations` say which value each argument ends as. Composite ops were expanded by the importer's op table;
casts that eager performs are Maps of `identity` with the new dtype, and every Map rounds its result to its dtype.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Union

from ..errors import Loc
from .axis import Extent
from .scalar import Lit

Shape = tuple[Extent, ...]


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a dim of an argument, known at the call: an i64 operand of a Map."""

    tensor: str
    dim: int


Operand = Union[str, Lit, Size]
"""A value by name, a constant, or a size."""


@dataclass(frozen=True, slots=True)
class Input:
    """An argument tensor, as it is when the function is called."""

    tensor: str


@dataclass(frozen=True, slots=True)
class Map:
    """fn(args) elementwise, computed in fp32 (or in integers), rounded once to the node's dtype."""

    fn: str
    args: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Reduce:
    """The fold of `args` over `dims` (non-negative, of the aligned operands); the dims vanish from the shape."""

    monoid: str
    args: tuple[str, ...]
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Contract:
    """einsum of the args: `inputs` has one letter string per operand, `output` the letters that stay. Accumulates in fp32."""

    args: tuple[str, ...]
    inputs: tuple[str, ...]
    output: str


@dataclass(frozen=True, slots=True)
class Permute:
    """dim i of the result is dim order[i] of the operand."""

    arg: str
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Reshape:
    """The same elements in row-major order under the node's shape (view, reshape, flatten, squeeze, unsqueeze)."""

    arg: str


@dataclass(frozen=True, slots=True)
class Expand:
    """Unit dims repeated to the node's shape; leading dims may be new."""

    arg: str


@dataclass(frozen=True, slots=True)
class Slice:
    """Elements start, start + step, … of one dim, as many as the node's shape says."""

    arg: str
    dim: int
    start: int
    step: int = 1


@dataclass(frozen=True, slots=True)
class Gather:
    """arg[..., index, ...]: the dim is replaced by the dims of the integer value `index`; elements without `where` are 0."""

    arg: str
    dim: int
    index: str
    where: str | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """The target with target[..., index, ...] = value on one dim (or, without index, everywhere), except where `where` is false.

    `where` is a bool value shaped like the index. `copy_`, `index_copy_`, `index_put_` and `t[idx] = v` are this.
    """

    target: str
    value: str
    dim: int = 0
    index: str | None = None
    where: str | None = None


@dataclass(frozen=True, slots=True)
class Join:
    """Disjoint ranges of one dim, together all of it: part i covers the next shape(part i)[dim] elements (cat, select_scatter)."""

    parts: tuple[str, ...]
    dim: int


@dataclass(frozen=True, slots=True)
class Iota:
    """0, 1, 2, … along the only dim."""


@dataclass(frozen=True, slots=True)
class Fill:
    """The same constant everywhere."""

    value: Lit


TensorOp = Union[Input, Map, Reduce, Contract, Permute, Reshape, Expand, Slice, Gather, Update, Join, Iota, Fill]


@dataclass(frozen=True, slots=True)
class TensorNode:
    """A value of the tensor graph. `source` is the captured op's name (`aten.silu.default`), for messages."""

    name: str
    op: TensorOp
    shape: Shape
    dtype: str
    loc: Loc = Loc()
    source: str = ""


Factor = tuple[str, Union[int, None]]
"""One factor of a declared dim: its name ('' for a number) and size (None: known at the call only)."""


def leaf_names(extents: Sequence[object], factors: Sequence[Factor]) -> list[str]:
    """A name for each piece that a dim was cut into, outermost first, from the factors it was declared as; '' where none fits.

    [3, 1536] of 3·H·D with H = 12, D = 128 -> ["", "H_D"]
    """
    rest = [f for f in factors if f[1] != 1]
    names = []
    for extent in extents:
        taken, product = [rest.pop(0)] if rest else [], 1
        while taken and isinstance(extent, int):
            product *= taken[-1][1] or extent + 1
            if product >= extent or not rest:
                break
            taken.append(rest.pop(0))
        if not taken or product != (extent if isinstance(extent, int) else 1):
            return [""] * len(extents)
        names.append("_".join(name for name, _ in taken if name))
    return names if not rest else [""] * len(extents)


@dataclass(frozen=True, slots=True)
class Argument:
    """A tensor argument of the function.

    strides: in elements, an int where it is part of the contract and None where it is free (64-bit, read at the call): the stride
    of a dim of dynamic extent is free, that of a unit dim is irrelevant (0), all others are static.
    `indexed`: dims whose extent is dynamic only because an index picks from them (pools).
    `factors`: per dim what it was declared as (`3*H*D`), () where nothing is declared: names for axes, no part of the meaning.
    """

    name: str
    dtype: str
    shape: Shape
    strides: tuple[int | None, ...]
    indexed: tuple[int, ...] = ()
    factors: tuple[tuple[Factor, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class TensorGraph:
    """A captured function.

    nodes: in order of execution. mutations: (argument, value it ends as), in the order written. outputs: values returned, in order;
    `structure` says how they are returned: "tensor", "tuple", "list", "none" or "dict:key,key".
    rows: the symbol of the rows' class, None where nothing is dynamic. An output that is an argument itself (returned after an
    in-place update) is named `=argument`.
    """

    name: str
    arguments: tuple[Argument, ...]
    nodes: tuple[TensorNode, ...]
    mutations: tuple[tuple[str, str], ...]
    outputs: tuple[str, ...]
    structure: str = "tensor"
    rows: str | None = None

    @property
    def table(self) -> dict[str, TensorNode]:
        return {n.name: n for n in self.nodes}
