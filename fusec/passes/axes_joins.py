"""Joins of the named graph: ranges of an axis; where the joined dim consists of several axes, joins inside joins."""
from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import FusionError, Loc
from ..ir import graph as g
from ..ir.axis import Axis
from ..ir.tensor import Input, Join
from .atoms import Link
from .axes_model import Hop, Value

if TYPE_CHECKING:
    from .axes_emit import Emitter

Ranges = dict[int, tuple[int, int]]
"""leaf of the joined dim -> (start, length) of a part along it."""


def emit_join(emitter: "Emitter", value: Value, op: Join) -> str:
    """The node of a join; returns its name.

    Raises FusionError where a part covers neither a range of one axis nor single points of several.
    """
    parts = [(_ranges(emitter, value, i), _part(emitter, value, i, part)) for i, part in enumerate(op.parts)]
    atom = value.dims[op.dim]
    return _nest(emitter, value, emitter.model.atoms.leaves(atom), emitter.own(value.axes), parts)


def _ranges(emitter: "Emitter", value: Value, position: int) -> Ranges:
    atoms = emitter.model.atoms
    ranges: Ranges = {}
    for link in value.joined[position].links:
        for s, o, offset in link.subs:
            length = 1 if o is None else atoms.extent(o)
            assert isinstance(length, int)
            ranges[s] = (offset, length)
    return ranges


def _part(emitter: "Emitter", value: Value, position: int, name: str) -> g.Ref:
    """The reference to a part: along the joined dim it is read at the join's own axis, from the start of the range on."""
    part = emitter.model.values[name]
    back = [Link(o, s, 0, subs=[(o, s, 0)]) for link in value.joined[position].links for s, o, _ in link.subs if o is not None]
    read = Hop(value.reads[position].links + back, 1, name)
    loc = value.node.loc
    root = emitter.model.values[part.root]
    if not isinstance(root.node.op, Input):
        return emitter.value_ref(name, read, (), loc)
    load = emitter.load(root, part.hops, part.node, loc)
    axes = {a.name for a in emitter.nodes_axes(load)}
    bind = []
    for atom in part.axes:
        for leaf in emitter.model.atoms.leaves(atom):
            own = emitter.axis(leaf).name
            where = emitter.follow(leaf, [read], loc)
            assert isinstance(where, g.Index)
            if own in axes and where != g.Index(own):
                bind.append((own, where))
    return g.Ref(load, tuple(bind))


def _nest(emitter: "Emitter", value: Value, leaves: list[int], axes: tuple[Axis, ...], parts: list[tuple[Ranges, g.Ref]]) -> str:
    """Join along the outermost axis that tells the parts apart, each of whose ranges may itself be a join along the next one."""
    atoms, node = emitter.model.atoms, value.node
    telling = [s for s in leaves if any(r[s] != (0, atoms.extent(s)) for r, _ in parts)]
    if not telling:
        return emitter.add(g.Map("identity", (parts[0][1],)), axes, node.dtype, node.loc, "identity", node)
    leaf, axis = telling[0], emitter.axis(telling[0])
    groups: dict[tuple[int, int], list[tuple[Ranges, g.Ref]]] = {}
    for ranges, ref in parts:
        groups.setdefault(ranges[leaf], []).append((ranges, ref))
    joined = []
    for (start, length), members in sorted(groups.items()):
        ref = members[0][1]
        if len(members) > 1:
            if length != 1:
                raise FusionError("parts of unequal sizes are joined along a dim that is viewed as several", node.loc,
                                  "join along each dim by itself")
            inner = [s for s in leaves if s != leaf]
            ref = g.Ref(_nest(emitter, value, inner, tuple(a for a in axes if a != axis), members))
        joined.append((start, length, ref))
    _check_disjoint([(s, n) for s, n, _ in joined], node.loc)
    return emitter.add(g.Join(axis.name, tuple(joined)), axes, node.dtype, node.loc, "join", node)


def _check_disjoint(ranges: list[tuple[int, int]], loc: Loc) -> None:
    end = 0
    for start, length in ranges:
        if start != end:
            raise FusionError("parts of unequal sizes are joined along a dim that is viewed as several", loc,
                              "join along each dim by itself")
        end = start + length
