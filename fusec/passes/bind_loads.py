"""After this pass no reference binds a Load and no Store writes a Join: views of memory are reads at other places.

    q = x[part=0]  with x a Load   ->   q' = Load at part=0, read by its own axes
    Store(T, join(a, b))           ->   Store(T at a's range, a), Store(T at b's range, b)

Both only move where memory is read or written, so no value changes.
"""

from __future__ import annotations

from dataclasses import replace

from ..ir.axis import Axis
from ..ir.rewrite import drop_dead, map_refs
from ..ir.graph import Digit, Graph, Index, Join, Load, Map, Node, Reduce, Ref, Store, operands, refs
from .names import Names


REGISTER_EXTENT = 8  # The largest axis that a thread holds whole because its positions are picked one by one.


def bind_loads(graph: Graph) -> Graph:
    """The graph with binds on Loads and Stores of Joins rewritten as above."""
    graph = tidy_binds(_drop_unit_axes(_split_joined_stores(_drop_unit_axes(graph))))
    return drop_dead(tidy_binds(_clone_bound_loads(graph)))


def tidy_binds(graph: Graph) -> Graph:
    """Binds of axes that a value lacks, or that say nothing, are gone."""
    table = graph.table

    def tidy(ref: Ref) -> Ref:
        own = {a.name for a in table[ref.value].axes}
        return Ref(ref.value, tuple(b for b in ref.bind if b[0] in own and b[1] != Index(b[0])))

    return graph.with_nodes(tuple(replace(n, op=map_refs(n.op, tidy)) for n in graph.nodes))


def register_axes(graph: Graph) -> frozenset[str]:
    """Axes that a thread holds whole: joined axes, those of memory that a join alone reads, small axes read through an offset or
    under a joined axis' name."""
    found = {n.op.axis for n in graph.nodes if isinstance(n.op, Join)} | _of_parts(graph)
    while True:
        more = set(found)
        for node in graph.nodes:
            for ref in operands(node.op):
                for axis, index in ref.bind:
                    small = isinstance(graph.axis(axis).extent, int) and graph.axis(axis).size <= REGISTER_EXTENT
                    if index.axis is not None and small and (index.offset or index.axis in found):
                        more |= {axis, index.axis}
        if more == found:
            return frozenset(found)
        found = more


def _of_parts(graph: Graph) -> set[str]:
    """The axes along which Loads that nothing but one join reads are joined."""
    readers: dict[str, int] = {}
    for ref in (r for n in graph.nodes for r in refs(n.op)):
        readers[ref.value] = readers.get(ref.value, 0) + 1
    loads = {n.name for n in graph.nodes if isinstance(n.op, Load) and readers.get(n.name) == 1}
    joins = [n.op for n in graph.nodes if isinstance(n.op, Join)]
    return {a for op in joins for _, _, ref in op.parts if ref.value in loads for a, i in ref.bind if i.axis == op.axis}


class _Clone:
    """Replaces bound references to Loads by references to clones of the Load at the bound place."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.table = graph, graph.table
        self.axes = {a.name: a for a in graph.axes}
        self.clones: dict[tuple[str, tuple[tuple[str, Index], ...]], Node] = {}
        self.taken, self.held = set(self.table), register_axes(graph)

    def __call__(self, ref: Ref) -> Ref:
        node = self.table[ref.value]
        kept = tuple(b for b in ref.bind if b[0] in self.held)
        moved = tuple(sorted((b for b in ref.bind if b[0] not in self.held), key=lambda b: b[0]))
        if not moved or not isinstance(node.op, Load):
            return ref
        key = (ref.value, moved)
        if key not in self.clones:
            self.clones[key] = self._clone(node, dict(moved))
        return Ref(self.clones[key].name, kept)

    def joined(self, op: Join) -> Join:
        """The join of clones that are as long as their parts: along the joined axis itself they would read beyond the tensor.

        full = join a: 0..8 = x[c=a], 9..9 = y     ->     x' = Load over c':9; full = join a: 0..8 = x'[c'=a], 9..9 = y
        """
        parts = []
        for start, length, ref in op.parts:
            along = [a for a, i in ref.bind if i.axis == op.axis and a not in self.held]
            if isinstance(self.table[ref.value].op, Load) and len(along) == 1 and length != self.axes[op.axis].extent:
                own = self._axis(along[0], length)
                short = tuple((a, Index(own, i.offset) if a == along[0] else i) for a, i in ref.bind)
                found = self(Ref(ref.value, short))
                ref = Ref(found.value, (*found.bind, (own, Index(op.axis))))
            else:
                ref = self(ref)
            parts.append((start, length, ref))
        return replace(op, parts=tuple(parts))

    def _axis(self, base: str, extent: int) -> str:
        name, count = f"{base}_0", 0
        while name in self.axes or name in self.taken:
            name, count = f"{base}_{count + 1}", count + 1
        self.axes[name] = Axis(name, extent)
        return name

    def _clone(self, node: Node, bind: dict[str, Index]) -> Node:
        assert isinstance(node.op, Load)
        axes: list[Axis] = []
        for axis in node.axes:
            target = bind.get(axis.name, Index(axis.name)).axis
            if target is not None:
                axes.append(self.axes[target])
        name = f"{node.name}_at{len(self.clones)}"
        while name in self.taken:
            name += "_"
        self.taken.add(name)
        index = tuple(bind_dim(dim, bind) for dim in node.op.index)
        where = None if node.op.where is None else Ref(node.op.where.value, rebind(node.op.where, bind))
        return Node(name, replace(node.op, index=index, where=where), tuple(axes), node.dtype, node.loc)


def rebind(ref: Ref, bind: dict[str, Index]) -> tuple[tuple[str, Index], ...]:
    """The binds of a reference whose reader's axes are themselves bound by `bind`."""
    inner = dict(ref.bind)
    out = {a: _compose(i, bind) for a, i in inner.items()}
    out.update({a: i for a, i in bind.items() if a not in inner})
    return tuple(out.items())


def _compose(index: Index, bind: dict[str, Index]) -> Index:
    if index.axis is None or index.axis not in bind:
        return index
    outer = bind[index.axis]
    return Index(outer.axis, outer.offset + index.offset)


def bind_dim(dim: tuple[Digit, ...], bind: dict[str, Index]) -> tuple[Digit, ...]:
    """A dim's coordinate with axes replaced as `bind` says."""
    out: list[Digit] = []
    for digit in dim:
        if isinstance(digit.source, Index):
            out.append(Digit(_compose(digit.source, bind), digit.step))
        else:
            out.append(Digit(Ref(digit.source.value, rebind(digit.source, bind)), digit.step))
    return tuple(out)


def _clone_bound_loads(graph: Graph) -> Graph:
    clone = _Clone(graph)
    nodes: list[Node] = []
    for node in graph.nodes:
        before = len(clone.clones)
        op = clone.joined(node.op) if isinstance(node.op, Join) else map_refs(node.op, clone)
        nodes.extend(list(clone.clones.values())[before:])
        nodes.append(replace(node, op=op))
    return replace(graph, nodes=tuple(nodes), axes=tuple(clone.axes.values()))


def _split_joined_stores(graph: Graph) -> Graph:
    axes, names = {a.name: a for a in graph.axes}, Names.of(graph)
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes.extend(_split_store(node, graph, axes, names) if isinstance(node.op, Store) else (node,))
    return replace(graph, nodes=tuple(nodes), axes=tuple(axes.values()))


def _split_store(node: Node, graph: Graph, axes: dict[str, Axis], names: Names) -> tuple[Node, ...]:
    """One Store per part of the joined value it writes; the Store itself where it writes something else."""
    assert isinstance(node.op, Store)
    joined = graph.table[node.op.arg.value].op
    if not isinstance(joined, Join):
        return (node,)
    at = node.op.arg.index(joined.axis)
    if at.axis is None or _one_run(node.op, graph, axes[at.axis]):
        return (node,)
    outer = {a: i for a, i in node.op.arg.bind if a != joined.axis}
    found: list[Node] = []
    for start, length, ref in joined.parts:
        low, high = max(start, at.offset), min(start + length, at.offset + axes[at.axis].size)
        if high <= low:
            continue
        axis = Axis(f"{at.axis}_{len(found)}", high - low)
        while axis.name in axes:
            axis = Axis(axis.name + "_", axis.extent)
        axes[axis.name] = axis
        moved = {at.axis: Index(axis.name, low - at.offset)}
        inner = {**outer, joined.axis: Index(axis.name, low - start)}
        where = None if node.op.where is None else Ref(node.op.where.value, rebind(node.op.where, moved))
        op = replace(
            node.op, index=tuple(bind_dim(d, moved) for d in node.op.index), arg=Ref(ref.value, rebind(ref, inner)), where=where
        )
        own = tuple(axis if a.name == at.axis else a for a in node.axes)
        part = replace(node, name=names.unused(f"{node.name}_{len(found)}"), op=op, axes=own)
        found.extend(_split_store(part, graph, axes, names))
    return tuple(found)


def _one_run(op: Store, graph: Graph, axis: Axis) -> bool:
    """Whether the positions of a joined axis are neighbours in memory and those of a further axis follow on: one run of both."""
    steps: dict[str, int] = {}
    for dim, stride in zip(op.index, graph.tensors[op.tensor].strides, strict=True):
        for digit in dim:
            if stride is not None and isinstance(digit.source, Index) and digit.source.axis is not None:
                steps[digit.source.axis] = digit.step * stride
    extent = axis.extent
    return steps.get(axis.name) == 1 and isinstance(extent, int) and extent <= REGISTER_EXTENT and extent in steps.values()


def _drop_unit_axes(graph: Graph) -> Graph:
    """Axes of extent one vanish: their coordinate is 0."""
    units = {a.name for a in graph.axes if a.extent == 1}
    if not units:
        return graph
    zero = {name: Index(None) for name in units}

    def zero_ref(ref: Ref) -> Ref:
        return Ref(ref.value, tuple((a, _compose(i, zero)) for a, i in ref.bind if a not in units))

    nodes: list[Node] = []
    for node in graph.nodes:
        op = map_refs(node.op, zero_ref)
        if isinstance(op, (Load, Store)):
            op = replace(op, index=tuple(_zero_dim(d, zero) for d in op.index))
        if isinstance(op, Reduce):
            op = replace(op, axes=tuple(a for a in op.axes if a.name not in units))
        if isinstance(op, Join) and op.axis in units:
            op = Map("identity", (op.parts[0][2],))
        nodes.append(replace(node, op=op, axes=tuple(a for a in node.axes if a.name not in units)))
    return replace(graph, nodes=tuple(nodes), axes=tuple(a for a in graph.axes if a.name not in units))


def _zero_dim(dim: tuple[Digit, ...], zero: dict[str, Index]) -> tuple[Digit, ...]:
    """A dim's coordinate with axes at 0, without digits that are 0."""
    digits = tuple(Digit(_compose(d.source, zero), d.step) if isinstance(d.source, Index) else d for d in dim)
    return tuple(d for d in digits if d.source != Index(None))
