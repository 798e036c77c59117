"""Which dims are one axis, and which of those classes is the rows: by how the function uses them, never by their size.

Works on the tensor graph of a static probe. Every dim is a list of atoms; operations unite the atoms of dims that must be equal.
The rows' class is that of the outermost non-unit dim of the index values of paged gathers and updates, of those that all results
have where there are such; without an index, of the outermost non-unit dim that all outputs share with some argument (outermost in
the arguments, where those have it otherwise).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..errors import CaptureError, Loc
from ..ir.scalar import Lit
from ..ir.tensor import (
    Contract,
    Expand,
    Factor,
    Gather,
    Input,
    Iota,
    Join,
    Map,
    Permute,
    Reduce,
    Reshape,
    Slice,
    TensorGraph,
    TensorNode,
    Update,
    leaf_names,
)
from .nodes import operands

Dims = list[list[int]]
REMEDY = "name the rows with dynamic_shapes={'argument': {dim: torch.export.Dim('rows')}}, one dim of them is enough"


@dataclass(slots=True)
class Atoms:
    """Union-find over pieces of dims; a piece may be cut in two (outer, inner), seen by all that have it."""

    extents: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    halves: dict[int, tuple[int, int]] = field(default_factory=dict)

    def dim(self, extent: int) -> list[int]:
        """A fresh dim: no atom where the extent is one."""
        if extent == 1:
            return []
        self.extents.append(extent)
        self.parents.append(len(self.parents))
        return [len(self.parents) - 1]

    def find(self, atom: int) -> int:
        while self.parents[atom] != atom:
            atom = self.parents[atom]
        return atom

    def leaves(self, atoms: Iterable[int]) -> list[int]:
        """Representatives of the pieces, outermost first."""
        out: list[int] = []
        for atom in atoms:
            root = self.find(atom)
            out += self.leaves(self.halves[root]) if root in self.halves else [root]
        return out

    def unify(self, xs: Sequence[int], ys: Sequence[int]) -> None:
        """The same elements row-major under two shapes: unite piece by piece from the innermost; stop where they do not nest."""
        while True:
            left, right = self.leaves(xs), self.leaves(ys)
            while left and right and self.extents[left[-1]] == self.extents[right[-1]]:
                a, b = sorted((left.pop(), right.pop()))
                self.parents[b] = a
            if not left or not right:
                return
            a, b = left[-1], right[-1]
            big, small = (a, b) if self.extents[a] > self.extents[b] else (b, a)
            if self.extents[big] % self.extents[small]:
                return
            outer, inner = self.dim(self.extents[big] // self.extents[small]), self.dim(self.extents[small])
            self.halves[big] = (outer[0], inner[0])


@dataclass(slots=True)
class Classes:
    """The dims of every value as atoms, and what the graph does with them.

    paged: index values of gathers and updates that depend on an argument. picked: dims that an index picks from, as (value, dim).
    """

    graph: TensorGraph
    atoms: Atoms = field(default_factory=Atoms)
    dims: dict[str, Dims] = field(default_factory=dict)
    paged: list[tuple[str, TensorNode]] = field(default_factory=list)
    picked: list[tuple[str, int]] = field(default_factory=list)
    fixed: list[list[int]] = field(default_factory=list)
    given: set[str] = field(default_factory=set)

    def leaves(self, value: str, dim: int) -> list[int]:
        return self.atoms.leaves(self.dims[value][dim])

    def outermost(self, value: str) -> int | None:
        """The class of the outermost non-unit dim of a value."""
        return next((leaf for d in self.dims[value] for leaf in self.atoms.leaves(d)), None)

    def members(self, root: int) -> list[tuple[str, int]]:
        """(argument, dim) of every argument dim that contains the class."""
        return [(a.name, d) for a in self.graph.arguments for d in range(len(a.shape)) if root in self.leaves(a.name, d)]

    def all_of(self, value: str) -> list[int]:
        return [leaf for d in self.dims[value] for leaf in self.atoms.leaves(d)]


def classes(graph: TensorGraph) -> Classes:
    """The classes of a static graph (all extents ints)."""
    c = Classes(graph)
    for node in graph.nodes:
        own: Dims = [c.atoms.dim(n) for n in node.shape if isinstance(n, int)]
        c.dims[node.name] = own
        if isinstance(node.op, Input) or any(o in c.given for o in operands(node.op)):
            c.given.add(node.name)
        _unify(c, node, own)
    for argument, final in graph.mutations:
        _each(c, c.dims[argument], c.dims[final])
    return c


def _unify(c: Classes, node: TensorNode, own: Dims) -> None:
    op = node.op
    if isinstance(op, Map):
        for arg in op.args:
            if isinstance(arg, str):
                _align(c, c.dims[arg], own)
    elif isinstance(op, Reduce):
        _reduce(c, op, own)
    elif isinstance(op, Contract):
        _contract(c, op, own)
    elif isinstance(op, Permute):
        _each(c, [c.dims[op.arg][d] for d in op.order], own)
    elif isinstance(op, Reshape):
        c.atoms.unify([a for d in c.dims[op.arg] for a in d], [a for d in own for a in d])
    elif isinstance(op, Expand):
        _align(c, c.dims[op.arg], own)
    elif isinstance(op, Slice):
        c.fixed.append(c.dims[op.arg][op.dim])
        _each(c, [d for i, d in enumerate(c.dims[op.arg]) if i != op.dim], [d for i, d in enumerate(own) if i != op.dim])
        if (part := _whole_part(c, node, op)) is not None:
            _each(c, [c.dims[part][op.dim]], [own[op.dim]])
    elif isinstance(op, (Gather, Update)):
        _indexed(c, node, op, own)
    elif isinstance(op, Join):
        for part in op.parts:
            c.fixed.append(c.dims[part][op.dim])
            _each(c, [d for i, d in enumerate(c.dims[part]) if i != op.dim], [d for i, d in enumerate(own) if i != op.dim])
        c.fixed.append(own[op.dim])


def _whole_part(c: Classes, node: TensorNode, op: Slice) -> str | None:
    """The part of a join that a range of it is."""
    join, start = c.graph.table[op.arg].op, 0
    for part in join.parts if isinstance(join, Join) and join.dim == op.dim and op.step == 1 else ():
        length = c.graph.table[part].shape[op.dim]
        if (start, length) == (op.start, node.shape[op.dim]):
            return part
        assert isinstance(length, int)
        start += length
    return None


def _each(c: Classes, xs: Sequence[list[int]], ys: Sequence[list[int]]) -> None:
    for x, y in zip(xs, ys):
        if x and y:
            c.atoms.unify(x, y)


def _align(c: Classes, arg: Dims, own: Dims) -> None:
    """Right-aligned; unit dims broadcast."""
    _each(c, list(reversed(arg)), list(reversed(own)))


def _reduce(c: Classes, op: Reduce, own: Dims) -> None:
    rank = max(len(c.dims[a]) for a in op.args)
    whole: Dims = [[] for _ in range(rank)]
    for a in op.args:
        for i, d in enumerate(reversed(c.dims[a])):
            if d and whole[-1 - i]:
                c.atoms.unify(d, whole[-1 - i])
            whole[-1 - i] = whole[-1 - i] or d
    c.fixed += [whole[d] for d in op.dims]
    _each(c, [d for i, d in enumerate(whole) if i not in op.dims], own)


def _contract(c: Classes, op: Contract, own: Dims) -> None:
    letters: dict[str, list[int]] = dict(zip(op.output, own))
    for word, arg in zip(op.inputs, op.args):
        for letter, d in zip(word, c.dims[arg]):
            _each(c, [letters.setdefault(letter, d)], [d])
            if letter not in op.output:
                c.fixed.append(d)


def _indexed(c: Classes, node: TensorNode, op: Gather | Update, own: Dims) -> None:
    source = op.arg if isinstance(op, Gather) else op.target
    if isinstance(op, Update):
        _each(c, c.dims[source], own)
    if op.index is None:
        assert isinstance(op, Update)
        _align(c, c.dims[op.value], own)
        return
    index = c.dims[op.index]
    part = own if isinstance(op, Gather) else c.dims[op.value]
    rest = [d for i, d in enumerate(c.dims[source]) if i != op.dim]
    _each(c, rest[: op.dim] + index + rest[op.dim :], part)
    if op.where is not None:
        _align(c, c.dims[op.where], index)
    if op.index in c.given or len(c.leaves(source, op.dim)) < 2:
        c.picked.append((source, op.dim))
    else:
        c.fixed.append(c.dims[source][op.dim])  # A diagonal: the sizes of all its dims decide where it stands.
    _pair(c, op.index, c.dims[source][op.dim])
    if op.index in c.given:
        c.paged.append((op.index, node))


def _pair(c: Classes, index: str, dim: list[int]) -> None:
    """An index into merged dims that counts along one of them (arange · stride + …) shares that dim's class."""
    table = c.graph.table
    leaves = c.atoms.leaves(dim)
    strides = {leaf: _product(c.atoms.extents[x] for x in leaves[i + 1 :]) for i, leaf in enumerate(leaves)}
    for value, factor in _terms(table, index, 1):
        for leaf, stride in strides.items():
            if factor == stride and [c.atoms.extents[a] for a in c.dims[value][0]] == [c.atoms.extents[leaf]]:
                c.atoms.unify(c.dims[value][0], [leaf])


def _product(xs: Iterable[int]) -> int:
    total = 1
    for x in xs:
        total *= x
    return total


def _terms(table: dict[str, TensorNode], value: str, factor: int) -> list[tuple[str, int]]:
    """The ranges that an index is a sum of, each with its factor."""
    op = table[value].op
    if isinstance(op, Iota):
        return [(value, factor)]
    if isinstance(op, (Reshape, Expand, Permute)):
        return _terms(table, op.arg, factor)
    if isinstance(op, Map) and op.fn in ("add", "identity"):
        return [t for a in op.args if isinstance(a, str) for t in _terms(table, a, factor)]
    if isinstance(op, Map) and op.fn == "mul" and isinstance(op.args[1], Lit) and isinstance(op.args[0], str):
        return _terms(table, op.args[0], factor * int(op.args[1].value))
    return []


def called(c: Classes, factors: Mapping[str, Sequence[Sequence[Factor]]]) -> dict[int, str]:
    """What the classes are called by the declared dims of arguments; the first that has one says it."""
    found: dict[int, str] = {}
    for a in c.graph.arguments:
        for d, declared in enumerate(factors.get(a.name, ())):
            leaves = c.leaves(a.name, d)
            for leaf, name in zip(leaves, leaf_names([c.atoms.extents[x] for x in leaves], declared)):
                if name:
                    found.setdefault(leaf, name)
    return found


# ---- the rows' class ----------------------------------------------------------------------------------------------------------


def choose(c: Classes, loc: Loc) -> int | None:
    """The rows' class, None where nothing says that there are rows.

    Raises CaptureError for several candidates, and for one whose extent in the example is below two.
    """
    by_index: dict[int, str] = {}
    for index, _ in c.paged:
        root = _along_results(c, index)
        if root is not None:
            by_index.setdefault(root, index)
    if c.paged and not by_index:
        _refuse_single(c, loc)
    found = _outer(c, list(by_index)) or _shared_by_outputs(c, loc)
    if not any(c.outermost(r) in found for r in _fresh(c) + [v for _, v in c.graph.mutations]):
        _refuse_added(c)
    if len(found) > 1:
        shared = [r for r in found if all(r in c.all_of(o) for o in _fresh(c))]
        found = shared if len(shared) == 1 else found
    if len(found) > 1 and _join(c, found):
        found = [c.atoms.find(found[0])]
    if len(found) > 1:
        raise CaptureError("several dims could be the rows: " + "; ".join(_members(c, r) for r in found), loc, REMEDY)
    for result in _fresh(c) if found else ():  # x * 2 beside table[codes] has no row in common with it but the batch.
        head = c.outermost(result)
        if head is not None and c.atoms.find(found[0]) not in c.all_of(result):
            _join(c, [c.atoms.find(found[0]), head])
    return c.atoms.find(found[0]) if found else None


def _along_results(c: Classes, index: str) -> int | None:
    """The outermost class of an index that all results run along; the outermost of all where there is none.

    Positions [3, rows] of a rotary embedding have rows inside.
    """
    whole = [v for _, v in c.graph.mutations if not _written_at(c, v)]
    results = [set(leaves) for r in _fresh(c) or whole if (leaves := c.all_of(r))]
    inside = (leaf for leaf in c.all_of(index) if results and all(leaf in r for r in results))
    return next(inside, c.outermost(index))


def _written_at(c: Classes, final: str) -> bool:
    """Whether what an argument holds after the call was written to places that an index names."""
    op = c.graph.table[final].op
    return isinstance(op, Update) and op.index is not None or isinstance(op, (Reshape, Permute)) and _written_at(c, op.arg)


def _outer(c: Classes, roots: list[int]) -> list[int]:
    """Without those that pick from what another candidate runs along: heads of a row are not rows."""
    inner = set()
    for index, node in c.paged:
        source = node.op.arg if isinstance(node.op, Gather) else node.op.target
        root = c.outermost(index)
        if root is not None and any(r != root and r in c.all_of(source) for r in roots):
            inner.add(root)
    return [r for r in roots if r not in inner] or roots


def _members(c: Classes, root: int) -> str:
    text = ", ".join(f"dim {d} of {a}" for a, d in c.members(root)) or "a dim of no argument"
    return f"{text} (extent {c.atoms.extents[root]} in the example)"


def _fresh(c: Classes) -> list[str]:
    """The values returned, an argument that is returned unwritten among them."""
    written = {a for a, _ in c.graph.mutations}
    return [o.lstrip("=") for o in c.graph.outputs if o[0] != "!" and o[1:] not in written]


def _refuse_single(c: Classes, loc: Loc) -> None:
    """All index tensors of paged accesses hold one element: with a dim, that is a one-row example; without, there are no rows."""
    for index, node in c.paged:
        if len(c.graph.table[index].shape) > 0:
            names = ", ".join(sorted(_arguments_of(c, index))) or index
            raise CaptureError(
                f"argument {names}: expected an example of two rows or more, found shape {list(c.graph.table[index].shape)}",
                node.loc or loc,
                "a one-row example does not tell rows from constants: "
                "capture with at least two rows, the kernel then takes any number",
            )


ADDING = ("aten.index_add", "aten.index_put", "aten.scatter_add", "aten._unsafe_index_put")


def _refuse_added(c: Classes) -> None:
    """CaptureError where values are added at indices that lead an argument: those are rows, and every element would need all of
    them. Without this another dim would be taken for the rows, and their number would be a constant."""
    table = c.graph.table
    for node in c.graph.nodes:
        if not isinstance(node.op, Reduce) or not node.source.startswith(ADDING):
            continue
        chosen = table[node.op.args[0]].op  # select(index == place, value, 0)
        masks = [a for a in chosen.args if isinstance(a, str) and table[a].dtype == "bool"] if isinstance(chosen, Map) else []
        root = c.outermost(node.op.args[0]) if 0 in node.op.dims else None
        if root is None or not any(m in c.given for m in masks):
            continue
        leading = [a.name for a in c.graph.arguments if c.outermost(a.name) == root]
        if leading:
            raise CaptureError(
                f"adds what the rows hold at indices that may repeat: dim 0 of {', '.join(leading)} is added up",
                node.loc,
                "let each row read what it is the sum of (x[index].sum(1)), or name other rows with dynamic_shapes; "
                "dynamic_shapes={} fixes every size",
            )


def _arguments_of(c: Classes, value: str) -> set[str]:
    table = c.graph.table
    op = table[value].op
    if isinstance(op, Input):
        return {op.tensor}
    return set().union(*(_arguments_of(c, o) for o in operands(op)))


def _shared_by_outputs(c: Classes, loc: Loc) -> list[int]:
    """The classes that all outputs share with some argument, outermost in one of them and not inside of one another."""
    results = [r for r in _fresh(c) + [r for a, v in c.graph.mutations for r in _replacing(c, a, v)] if c.all_of(r)]
    inputs = {leaf for a in c.graph.arguments for leaf in c.all_of(a.name)}
    if not results:
        return []
    _join_heads(c, results)
    shared = set.intersection(*(set(c.all_of(r)) for r in results)) & inputs
    first = [next(leaf for leaf in c.all_of(r) if leaf in shared) for r in results] if shared else []
    leading = [root for a in c.graph.arguments if (root := c.outermost(a.name)) in shared and root is not None]
    candidates = list(dict.fromkeys(first + leading))
    found = [r for r in candidates if not any(_encloses(c, other, r, results) for other in candidates if other != r)]
    if found:
        _refuse_unit(c, found[0], results, loc)
    return found


def _replacing(c: Classes, argument: str, final: str) -> list[str]:
    """What an argument holds after the call, of the elements that are replaced: buffer[:n] = … keeps the others."""
    op = c.graph.table[final].op
    if not isinstance(op, Join):
        return [final]
    kept = [p for p in op.parts if isinstance(part := c.graph.table[p].op, Slice) and part.arg == argument]
    return [p for p in op.parts if p not in kept] if kept else [final]


def _join_heads(c: Classes, results: Sequence[str]) -> None:
    """Outermost dims of results that no op brings together are the rows of all of them, where they can be.

    q · w and k · w of q and k [rows, …] have no row in common but the batch. Each leads an argument, none stands inside of a value
    that another leads, and the example has as many of each; a call with as many of each no longer is refused.
    """
    _join(c, list(dict.fromkeys(root for r in results if (root := c.outermost(r)) is not None)))


def _join(c: Classes, heads: Sequence[int]) -> bool:
    """Make one class of several that no op brings together, if they may all be the rows; whether they are one then."""
    leading = {c.outermost(a.name) for a in c.graph.arguments}
    together = any(sum(h in all_ for h in heads) > 1 for n in c.graph.nodes if (all_ := set(c.all_of(n.name))))
    if set(heads) <= leading and not together and len({c.atoms.extents[h] for h in heads}) == 1:
        for other in heads[1:]:
            c.atoms.unify([heads[0]], [other])
        return True
    return False


def _encloses(c: Classes, outer: int, inner: int, results: Sequence[str]) -> bool:
    """Whether one class stands outside of another in the arguments that have both; where none has, in the results.

    Results [groups, rows, …] of arguments [rows, heads, …] have rows.
    """
    for values in ([a.name for a in c.graph.arguments], results):
        both = [all_ for v in values if outer in (all_ := c.all_of(v)) and inner in all_]
        if both:
            return all(all_.index(outer) < all_.index(inner) for all_ in both)
    return False


def _refuse_unit(c: Classes, root: int, results: Sequence[str], loc: Loc) -> None:
    """One row in the example, perhaps: all results lead with a unit dim, and so does an argument with the candidate behind it."""
    table = c.graph.table
    leading = [a for a in c.graph.arguments if len(a.shape) > 1 and a.shape[0] == 1 and root in c.all_of(a.name)]
    if leading and all(len(table[r].shape) > 1 and table[r].shape[0] == 1 for r in results):
        raise CaptureError(
            f"argument {leading[0].name}: expected an example of two rows or more, found shape {list(leading[0].shape)}",
            loc,
            "capture with at least two rows; if the first dim is not the rows, " + REMEDY,
        )


@dataclass(frozen=True, slots=True)
class Longer:
    """Dims of arguments with more elements than there are rows, of which ranges as long as the rows are taken or replaced.

    first: only the first elements, table[:x.shape[0]]: there may be any number more. offsets: one element more than there are rows,
    offsets[1:].
    """

    first: tuple[tuple[str, int], ...]
    offsets: tuple[tuple[str, int], ...]


def longer(c: Classes, free: Sequence[tuple[str, int]]) -> Longer:
    """free: dims of arguments that are the rows."""
    roots = {leaf for name, dim in free for leaf in c.leaves(name, dim)}
    places = [(a.name, d) for a in c.graph.arguments for d in range(len(a.shape)) if (a.name, d) not in free]
    starts: dict[tuple[str, int], set[int]] = {}
    for part, whole, start in _ranges(c):
        if len(part) == len(whole) == 1 and part[0] in roots:
            for place in places:
                if c.leaves(*place) == whole:
                    starts.setdefault(place, set()).add(start)
    count = {c.atoms.extents[root] for root in roots}
    one_more = [p for p in starts if {c.atoms.extents[leaf] - 1 for leaf in c.leaves(*p)} == count]
    return Longer(tuple(p for p, s in starts.items() if s == {0}), tuple(one_more))


def offsets_of(c: Classes, root: int) -> list[tuple[str, int]]:
    """Dims of arguments that are the offsets of as many rows as a class has: their ranges [:-1] and [1:] are both that class."""
    if root in {leaf for d in c.fixed for leaf in c.atoms.leaves(d)}:
        return []
    return [p for leaf, found in _between(c).items() if found == root for p in c.members(leaf) if c.leaves(*p) == [leaf]]


def between(c: Classes, leaf: int) -> int:
    """The class of what lies between offsets; of anything else, the class itself."""
    return _between(c).get(leaf, leaf)


def _between(c: Classes) -> dict[int, int]:
    """Classes of dims of which [:-1] and [1:] are taken, with the class that both of them are."""
    starts: dict[tuple[int, int], set[int]] = {}
    for part, whole, start in _ranges(c):
        if len(part) == len(whole) == 1 and c.atoms.extents[whole[0]] == c.atoms.extents[part[0]] + 1:
            starts.setdefault((whole[0], part[0]), set()).add(start)
    return {whole: part for (whole, part), found in starts.items() if found == {0, 1}}


def _ranges(c: Classes) -> Iterator[tuple[list[int], list[int], int]]:
    """(the range's classes, those of the dim that it is of, where it starts) of ranges that are taken, of first ones replaced."""
    for node in c.graph.nodes:
        op = node.op
        if isinstance(op, Slice) and op.step == 1:
            yield c.leaves(node.name, op.dim), c.leaves(op.arg, op.dim), op.start
        if isinstance(op, Join) and len(op.parts) == 2 and isinstance(rest := c.graph.table[op.parts[1]].op, Slice):
            if rest.dim == op.dim and c.graph.table[op.parts[0]].shape[op.dim] == rest.start:
                yield c.leaves(op.parts[0], op.dim), c.leaves(rest.arg, op.dim), 0


def indexed_only(c: Classes, rows: int | None) -> list[int]:
    """Classes of dims that an index picks from and nothing else depends on: pools and tables, whose size is free."""
    results = {leaf for o in c.graph.outputs if o[0] not in "=!" for leaf in c.all_of(o)}
    positions = {leaf for n in c.graph.nodes if isinstance(n.op, Iota) for leaf in c.all_of(n.name)}
    fixed = {leaf for d in c.fixed for leaf in c.atoms.leaves(d)}
    found = []
    for value, dim in c.picked:
        leaves = c.leaves(value, dim)
        if leaves and leaves[0] not in results | positions | fixed | {rows} and c.members(leaves[0]):
            found.append(leaves[0])
    return list(dict.fromkeys(found))
