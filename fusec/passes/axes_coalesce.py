"""Which atoms become one axis: renames are united as registers are coalesced, and every class gets a name.

Two leaves that a rename links become one class unless a value or an iteration space would then hold the class twice. Reads come
before selections, large values before small ones, then source order. What is not united stays a bind of a reference.
"""
from __future__ import annotations

from collections.abc import Iterable

import sympy

from ..errors import UnsupportedOp
from ..ir.axis import Axis
from ..ir.dtype import BYTES
from ..ir.tensor import Input, Shape, leaf_names
from .axes_model import Hop, Model, Write
from .names import Names

SYMBOL_SIZE = 64
"""What a dynamic extent counts for when sizes are compared: any number does, as long as it is the same everywhere."""


class Classes:
    """Union-find over leaves with the sets of iteration spaces each class occurs in."""

    def __init__(self, domains: Iterable[list[int]]) -> None:
        self.parents: dict[int, int] = {}
        self.spaces: dict[int, set[int]] = {}
        for number, leaves in enumerate(domains):
            for leaf in leaves:
                self.spaces.setdefault(leaf, set()).add(number)

    def find(self, leaf: int) -> int:
        while self.parents.get(leaf, leaf) != leaf:
            leaf = self.parents[leaf]
        return leaf

    def unite(self, a: int, b: int) -> bool:
        """One class of two, unless an iteration space has both."""
        a, b = sorted((self.find(a), self.find(b)))
        if a == b:
            return True
        if self.spaces.get(a, set()) & self.spaces.get(b, set()):
            return False
        self.parents[b] = a
        self.spaces.setdefault(a, set()).update(self.spaces.pop(b, set()))
        return True


def coalesce(model: Model, live: list[str], writes: list[Write]) -> Classes:
    """Unite the renames among live values, by (tier, bytes of the value read, source order)."""
    atoms = model.atoms
    domains = [_leaves(model, v.axes + v.reduced) for v in (model.values[n] for n in live)]
    domains += [_leaves(model, w.axes) for w in writes]
    classes = Classes(domains)
    hops = [h for n in live for h in _hops(model, n)] + [h for w in writes for h in [w.read, *_picks(w.place[-1])]]
    hops += model.same + [h for w in writes for h in w.place]
    order = sorted(range(len(hops)), key=lambda i: (hops[i].tier, -_bytes(model, hops[i].source), i))
    for i in order:
        for link in hops[i].links:
            for s, o, offset in link.subs:
                if o is not None and offset == 0 and atoms.extent(s) == atoms.extent(o):
                    classes.unite(s, o)
    _unite_symbols(model, domains, classes)
    return classes


def _unite_symbols(model: Model, domains: list[list[int]], classes: Classes) -> None:
    """Values that no read connects still have the same rows: dims of one symbol become one axis wherever they can."""
    first: dict[str, int] = {}
    for leaf in (leaf for domain in domains for leaf in domain):
        extent = model.atoms.extent(leaf)
        if not isinstance(extent, int):
            classes.unite(first.setdefault(str(extent), leaf), leaf)


def _hops(model: Model, name: str) -> list[Hop]:
    """The hops a value adds itself: its reads, or (of a view) its last steps."""
    value = model.values[name]
    base = getattr(value.node.op, "arg", None)
    known = {id(h) for h in model.values[base].hops} if value.hops and isinstance(base, str) else set()
    own = [h for h in value.hops if id(h) not in known]
    return [x for h in [*value.reads.values(), *value.joined.values(), *own] for x in [h, *_picks(h)]]


def _picks(hop: Hop) -> list[Hop]:
    if hop.pick is None:
        return []
    return [h for h in (hop.pick.hop if hop.pick.index else None, hop.pick.where_hop) if h is not None]


def _leaves(model: Model, atoms: list[int]) -> list[int]:
    return [leaf for a in atoms for leaf in model.atoms.leaves(a)]


def _bytes(model: Model, name: str) -> int:
    node = model.values[name].node
    return volume(node.shape) * BYTES[node.dtype]


def volume(shape: Shape) -> int:
    total = 1
    for extent in shape:
        total *= extent if isinstance(extent, int) else SYMBOL_SIZE
    return total


# ---- names ---------------------------------------------------------------------------------------------------------------------

class AxisTable:
    """class -> Axis, named at first use.

    The name that an argument's dim is declared by, else `rows` for the rows' symbol, else `<tensor>_<dim>` of the largest argument
    (then the first output) that has the class as a whole dim, else `<tensor>_<dim>_<piece>`, else a, a_1, …
    """

    def __init__(self, model: Model, classes: Classes, writes: list[Write], names: Names) -> None:
        self.model, self.classes, self.names = model, classes, names
        self.hints = _hints(model, classes, writes)
        self.declared = _declared(model, classes)
        self.axes: dict[int, Axis] = {}

    def named(self, name: str) -> Axis:
        return next(a for a in self.axes.values() if a.name == name)

    def of(self, leaf: int) -> Axis:
        root = self.classes.find(leaf)
        if root not in self.axes:
            extent = self.model.atoms.extent(root)
            if not isinstance(extent, (int, sympy.Symbol)):
                raise UnsupportedOp(f"a dim of size {extent} that does not come apart into the sizes of arguments", None,
                                    "keep the dynamic dims of the arguments apart")
            usual = "rows" if str(extent) == self.model.graph.rows else self.hints.get(root, "a")
            wanted = self.declared.get(root, usual)
            self.axes[root] = Axis(self.names.unused(wanted), extent)
        return self.axes[root]


def _declared(model: Model, classes: Classes) -> dict[int, str]:
    """The names of declared dims; the first argument that has a class says what it is called."""
    found: dict[int, str] = {}
    inputs = {v.node.op.tensor: v.dims for v in model.values.values() if isinstance(v.node.op, Input)}
    for argument in model.graph.arguments:
        for atom, factors in zip(inputs.get(argument.name, ()), argument.factors):
            leaves = model.atoms.leaves(atom)
            for leaf, name in zip(leaves, leaf_names([model.atoms.extent(x) for x in leaves], factors)):
                if name:
                    found.setdefault(classes.find(leaf), name)
    return found


def _hints(model: Model, classes: Classes, writes: list[Write]) -> dict[int, str]:
    whole: dict[int, str] = {}
    pieces: dict[int, str] = {}
    inputs = {v.node.op.tensor: v.dims for v in model.values.values() if isinstance(v.node.op, Input)}
    arguments = sorted((a for a in model.graph.arguments if a.name in inputs), key=lambda a: -volume(a.shape))
    tensors = [(a.name, inputs[a.name]) for a in arguments]
    for tensor, dims in tensors + [(w.tensor, w.dims) for w in writes if w.tensor not in inputs]:
        for dim, atom in enumerate(dims):
            leaves = model.atoms.leaves(atom)
            for piece, leaf in enumerate(leaves):
                name = f"{tensor}_{dim}" + (f"_{piece}" if len(leaves) > 1 else "")
                (whole if len(leaves) == 1 else pieces).setdefault(classes.find(leaf), name)
    return {**pieces, **whole}
