"""What the axes pass knows about each value before axes have names: its dims as atoms, and the hops that views and reads are.

A hop says where the values it starts from are read: each of their atoms at an atom of the reader plus an offset (Links), or at the
value of an index tensor (Pick). A view is a chain of hops down to its root: a computed value or an argument.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import gcd

from ..errors import FusionError, InternalError, Loc, UnsupportedOp
from ..ir.tensor import (
    Contract, Expand, Fill, Gather, Input, Iota, Join, Map, Permute, Reduce, Reshape, Slice, TensorGraph, TensorNode, Update,
)
from .atoms import Atoms, DoesNotNest, Link, Size
from .simplify_tensors import operand_names

VIEWS = (Permute, Reshape, Expand, Slice, Gather)
Dims = list[int | None]
"""One atom per dim; None for a unit dim."""


@dataclass(slots=True)
class Pick:
    """`atom` is read at the value of the integer tensor `index`, whose dims follow the reader by `hop`; `where` likewise."""

    atom: int | None
    index: str
    hop: "Hop"
    where: str | None = None
    where_hop: "Hop | None" = None


@dataclass(slots=True)
class Hop:
    """One step from a value to its reader. tier: 0 where the two share their axes if at all possible, 1 where they need not."""

    links: list[Link]
    tier: int = 0
    source: str = ""
    pick: Pick | None = None


@dataclass(slots=True)
class Value:
    """A node of the tensor graph with atoms.

    hops: from its root to it, of a view. reads: by operand position, from the operand to a computed value; joined: of a Join, the
    links from its joined dim to that of each part. reduced: atoms that a reduction folds.
    """

    node: TensorNode
    dims: Dims
    root: str
    hops: list[Hop] = field(default_factory=list)
    reads: dict[int, Hop] = field(default_factory=dict)
    joined: dict[int, Hop] = field(default_factory=dict)
    reduced: list[int] = field(default_factory=list)

    @property
    def axes(self) -> list[int]:
        return [a for a in self.dims if a is not None]


@dataclass(slots=True)
class Write:
    """A store as the function writes it: tensor[place] = value over `axes`; `place` are the hops from the argument to the store."""

    tensor: str
    value: str
    axes: list[int]
    read: Hop
    place: list[Hop]
    loc: Loc
    dims: Dims = field(default_factory=list)


class CutsDoNotNest(FusionError):
    """Two views cut one dim at places that do not nest; `readers` are the nodes that read across the other's cuts.

    radix: for each reader the pieces that the dim is cut into, outermost first (0: of a size known at the call).
    """

    def __init__(self, what: str, readers: list[TensorNode], radix: list[tuple[int, ...]], loc: Loc) -> None:
        super().__init__(f"two views cut a dim of {what} at places that do not nest", loc,
                         "view the sizes as products of common factors, or slice at multiples of one size")
        self.readers, self.radix = readers, radix


class StepDoesNotNest(FusionError):
    """A slice takes every n-th element of a dim that does not consist of groups of n, or that another view cuts elsewhere."""

    def __init__(self, node: TensorNode, what: str) -> None:
        super().__init__(what, node.loc, "view the dim as [size / step, step] and select")
        self.node = node


class Model:
    """Atoms, values and links of the live nodes of one tensor graph, built node by node in order."""

    def __init__(self, graph: TensorGraph, live: frozenset[str]) -> None:
        self.graph, self.atoms = graph, Atoms()
        self.same: list[Hop] = []
        self.owners: list[tuple[Link, TensorNode | None, str]] = []
        self.current: TensorNode | None = None
        self.values: dict[str, Value] = {}
        for node in graph.nodes:
            if node.name in live:
                self._check_not_updated(node)
                self.current = node
                self.values[node.name] = self._value(node)
        self.current = None

    # ---- small helpers ----------------------------------------------------------------------------------------------------------

    def fresh(self, extent: Size) -> int | None:
        return None if extent == 1 else self.atoms.new(extent)

    def hop(self, pairs: Sequence[tuple[int | None, int | None, int]], tier: int, loc: Loc, what: str,
            lenient: bool = False) -> Hop:
        """Links for (atom of the value, atom of the reader, offset); unit dims have none."""
        links = [Link(whole, part, offset, lenient) for whole, part, offset in pairs if whole is not None]
        self.atoms.links.extend(links)
        self.owners.extend((link, self.current, what) for link in links)
        return Hop(links, tier, what)

    def read(self, operand: str, own: Dims, loc: Loc, tier: int = 0) -> Hop:
        """A right-aligned read of an operand by a node over `own`: unit dims of the operand broadcast."""
        dims = self.values[operand].dims
        pairs = [(a, b, 0) for a, b in zip(reversed(dims), reversed(own)) if b is not None]
        return self.hop(pairs[::-1], tier, loc, operand, self._is_argument(operand))

    def _is_argument(self, name: str) -> bool:
        return isinstance(self.values[name].node.op, Input)

    def _view(self, node: TensorNode, dims: Dims, extra: list[Hop] | None = None) -> Value:
        assert isinstance(node.op, VIEWS)
        base = self.values[node.op.arg]
        return Value(node, dims, base.root, base.hops + (extra or []))

    def _check_not_updated(self, node: TensorNode) -> None:
        for operand in operand_names(node.op):
            update = self.graph.table[operand]
            if isinstance(update.op, Update):
                raise FusionError(f"{node.source or 'this'} reads a tensor that was just updated (at {update.loc.short}), and not "
                                  "through the index that was written", node.loc,
                                  "read before the update, or use the value that was stored; otherwise it takes a second kernel")

    # ---- one node ---------------------------------------------------------------------------------------------------------------

    def _value(self, node: TensorNode) -> Value:
        op = node.op
        if isinstance(op, (Input, Fill, Iota, Update)):
            return Value(node, [self.fresh(n) for n in node.shape], node.name)
        rule = getattr(self, "_" + type(op).__name__.lower(), None)
        if rule is None:
            raise InternalError(f"the axes pass has no rule for {type(op).__name__}", node.name)
        value = rule(node, op)
        assert isinstance(value, Value)
        return value

    def _map(self, node: TensorNode, op: Map) -> Value:
        own = [self.fresh(n) for n in node.shape]
        reads = {i: self.read(a, own, node.loc) for i, a in enumerate(op.args) if isinstance(a, str)}
        return Value(node, own, node.name, reads=reads)

    def _reduce(self, node: TensorNode, op: Reduce) -> Value:
        shapes = [self.values[a].node.shape for a in op.args]
        rank = max(map(len, shapes))
        full = [next((s[len(s) - rank + d] for s in shapes if len(s) - rank + d >= 0 and s[len(s) - rank + d] != 1), 1)
                for d in range(rank)]
        own = [self.fresh(n) for n in full]
        reads = {i: self.read(a, own, node.loc) for i, a in enumerate(op.args)}
        kept = [a for d, a in enumerate(own) if d not in op.dims]
        if len(kept) != len(node.shape):
            raise InternalError("a Reduce keeps the dims it does not fold", node.name)
        return Value(node, kept, node.name, reads=reads, reduced=[a for d in op.dims if (a := own[d]) is not None])

    def _contract(self, node: TensorNode, op: Contract) -> Value:
        letters: dict[str, int | None] = {}
        for arg, names in zip(op.args, op.inputs):
            for letter, extent in zip(names, self.values[arg].node.shape):
                if letters.get(letter) is None:
                    letters[letter] = self.fresh(extent)
        reads = {}
        for i, (arg, names) in enumerate(zip(op.args, op.inputs)):
            if len(set(names)) != len(names):
                raise UnsupportedOp("a letter stands twice in one operand of a contraction", node.loc, "take the diagonal first")
            pairs = [(a, letters[c], 0) for a, c in zip(self.values[arg].dims, names) if letters[c] is not None]
            reads[i] = self.hop(pairs, 0, node.loc, arg, self._is_argument(arg))
        own = [letters[c] for c in op.output]
        return Value(node, own, node.name, reads=reads,
                     reduced=[a for c, a in letters.items() if c not in op.output and a is not None])

    def _permute(self, node: TensorNode, op: Permute) -> Value:
        dims = self.values[op.arg].dims
        return self._view(node, [dims[i] for i in op.order])

    def _reshape(self, node: TensorNode, op: Reshape) -> Value:
        base = self.values[op.arg]
        own = [self.fresh(n) for n in node.shape]
        source, extra = list(base.dims), []
        if self._is_argument(op.arg):  # Each view of an argument is cut on its own.
            source = [self.fresh(n) for n in base.node.shape]
            extra = [self.hop([(a, b, 0) for a, b in zip(base.dims, source)], 0, node.loc, op.arg, True)]
        try:
            self.atoms.unify([a for a in source if a is not None], [a for a in own if a is not None])
        except DoesNotNest:
            raise FusionError(
                f"a view from {_shape(base.node.shape)} to {_shape(node.shape)} mixes dims whose sizes have no common pieces",
                node.loc, "view the sizes as products of common factors, or load the tensor in the target shape") from None
        return self._view(node, own, extra)

    def _expand(self, node: TensorNode, op: Expand) -> Value:
        base = self.values[op.arg]
        missing: Dims = [None] * (len(node.shape) - len(base.dims))
        dims = missing + base.dims
        return self._view(node, [a if a is not None else self.fresh(n) for a, n in zip(dims, node.shape)])

    def _slice(self, node: TensorNode, op: Slice) -> Value:
        base = self.values[op.arg]
        if op.step != 1:
            return self._strided(node, op)
        own = [self.fresh(n) for n in node.shape]
        pairs = [(a, b, op.start if d == op.dim else 0) for d, (a, b) in enumerate(zip(base.dims, own))]
        return self._view(node, own, [self.hop(pairs, 1, node.loc, op.arg, self._is_argument(op.arg))])

    def _strided(self, node: TensorNode, op: Slice) -> Value:
        """x[start::step] where the step divides the size: a select of the inner piece of [size / step, step]."""
        base = self.values[op.arg]
        extent, atom = base.node.shape[op.dim], base.dims[op.dim]
        if not isinstance(extent, int) or extent % op.step or not isinstance(node.shape[op.dim], int) or atom is None:
            raise StepDoesNotNest(node, f"a slice with step {op.step} of a dim of {extent}")
        count = node.shape[op.dim]
        assert isinstance(count, int)
        outer, inner = self.fresh(extent // op.step), self.fresh(op.step)
        try:
            self.atoms.unify([atom], [a for a in (outer, inner) if a is not None])
        except DoesNotNest:
            raise StepDoesNotNest(node, f"a slice with step {op.step} cuts a dim that another view cuts elsewhere") from None
        own = [self.fresh(n) for n in node.shape]
        pairs = [(a, b, 0) for d, (a, b) in enumerate(zip(base.dims, own)) if d != op.dim]
        pairs += [(outer, own[op.dim], op.start // op.step), (inner, None, op.start % op.step)]
        return self._view(node, own, [self.hop(pairs, 1, node.loc, op.arg, False)])

    def _gather(self, node: TensorNode, op: Gather) -> Value:
        base, index = self.values[op.arg], self.values[op.index]
        self._check_gatherable(node, op, self.values[base.root].node)
        own = [self.fresh(n) for n in node.shape]
        rank = len(index.dims)
        rest = base.dims[:op.dim] + base.dims[op.dim + 1:]
        kept = own[:op.dim] + own[op.dim + rank:]
        hop = self.hop([(a, b, 0) for a, b in zip(rest, kept)], 1, node.loc, op.arg, True)
        hop.pick = self.pick(base.dims[op.dim], op.index, op.where, own[op.dim:op.dim + rank], node.loc)
        return self._view(node, own, [hop])

    def _check_gatherable(self, node: TensorNode, op: Gather, root: TensorNode) -> None:
        if not isinstance(root.op, Input):
            raise FusionError("an index picks from a computed value, whose other elements live in other blocks", node.loc,
                              "index the arguments first and compute on what was picked")

    def pick(self, atom: int | None, index: str, where: str | None, own: Dims, loc: Loc) -> Pick:
        mask = self.read(where, own, loc) if where is not None else None
        return Pick(atom, index, self.read(index, own, loc), where, mask)

    def _join(self, node: TensorNode, op: Join) -> Value:
        own = [self.fresh(n) for n in node.shape]
        reads, joined, start = {}, {}, 0
        for i, part in enumerate(op.parts):
            value = self.values[part]
            length = value.node.shape[op.dim]
            if not isinstance(length, int):
                raise UnsupportedOp("parts of unknown size are joined", node.loc, "join along a dim of constant size")
            joined[i] = self.hop([(own[op.dim], value.dims[op.dim], start)], 1, node.loc, part)
            others = [(a, own[d], 0) for d, a in enumerate(value.dims) if d != op.dim]
            reads[i] = self.hop(others, 0, node.loc, part, self._is_argument(part))
            start += length
        return Value(node, own, node.name, reads=reads, joined=joined)


def _shape(shape: tuple[object, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def split_equal_ranges(atoms: Atoms) -> None:
    """Where all ranges taken of an atom are its equal parts (chunk, equal slices), cut it into [parts, length].

    Before: y = part + 128 · {0, 1, 2}   After: y = (n, e) with n constant and e = part. Ranges of unequal length, or not at
    multiples of it, stay ranges. A cut that some other view contradicts is not made.
    """
    refused: set[int] = set()
    while True:
        ranges: dict[int, set[tuple[int, int]]] = {}
        for link in atoms.links:
            for s, o, offset in link.subs:
                if o is not None and atoms.extent(o) != atoms.extent(s):
                    length = atoms.extent(o)
                    if isinstance(length, int):
                        ranges.setdefault(s, set()).add((length, offset))
        todo = [(s, lengths) for s, lengths in sorted(ranges.items()) if s not in refused and _equal(atoms.extent(s), lengths)]
        if not todo:
            return
        leaf, lengths = todo[0]
        trial = atoms.copy()
        trial.split(leaf, next(iter(lengths))[0])
        if trial.settle():
            refused.add(leaf)
            continue
        atoms.split(leaf, next(iter(lengths))[0])
        atoms.settle()


def _equal(extent: Size, ranges: set[tuple[int, int]]) -> bool:
    lengths = {length for length, _ in ranges}
    if len(lengths) != 1 or not isinstance(extent, int):
        return False
    length = lengths.pop()
    return extent % length == 0 and all(gcd(start, length) == length or start == 0 for _, start in ranges)
