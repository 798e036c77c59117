"""Nodes of the named graph from values with classes: references get their binds, reads of arguments become Loads.

A coordinate is followed from an atom of the root, hop by hop, to the axes of the reader.
"""
from __future__ import annotations

from typing import Union

from ..errors import FusionError, InternalError, Loc
from ..ir import graph as g
from ..ir.axis import Axis
from ..ir.scalar import Lit
from ..ir.tensor import Contract, Fill, Input, Iota, Join, Map, Reduce, TensorNode
from .axes_coalesce import AxisTable
from .axes_index import Picked, index_digits
from .axes_joins import emit_join
from .axes_model import Hop, Model, Value, Write
from .axes_reduce import reduce_node
from .names import Names


Coordinate = Union[g.Index, Picked]


class Emitter:
    """Builds the nodes of the named graph in order; Loads are made where they are first read."""

    def __init__(self, model: Model, axes: AxisTable, names: Names) -> None:
        self.model, self.axes, self.names = model, axes, names
        self.nodes: list[g.Node] = []
        self.table: dict[str, g.Node] = {}
        self.emitted: dict[str, str] = {}
        self.loads: dict[object, str] = {}

    # ---- coordinates ------------------------------------------------------------------------------------------------------------

    def axis(self, leaf: int) -> Axis:
        return self.axes.of(leaf)

    def own(self, atoms: list[int]) -> tuple[Axis, ...]:
        return tuple(self.axis(leaf) for a in atoms for leaf in self.model.atoms.leaves(a))

    def follow(self, leaf: int, hops: list[Hop], loc: Loc) -> Coordinate:
        """Where the reader at the end of `hops` reads along one leaf of the root."""
        offset = 0
        for i, hop in enumerate(hops):
            if hop.pick is not None and hop.pick.atom is not None and leaf in self.model.atoms.leaves(hop.pick.atom):
                return Picked(hop.pick, tuple(hops[i + 1:]), leaf)
            sub = next((s for link in hop.links for s in link.subs if s[0] == leaf), None)
            if sub is None:
                raise InternalError("a dim of a value is lost on the way to its reader", loc.short)
            offset += sub[2]
            if sub[1] is None:
                return g.Index(None, offset)
            leaf = sub[1]
        return g.Index(self.axis(leaf).name, offset)

    def digits(self, atom: int | None, hops: list[Hop], loc: Loc) -> list[tuple[Coordinate, int]]:
        """(coordinate, step) of one whole dim of an argument, outermost digit first."""
        if atom is None:
            return []
        atoms = self.model.atoms
        if not hops:
            return self._steps(atoms.leaves(atom), hops, loc)
        hop = hops[0]
        if hop.pick is not None and hop.pick.atom is not None and atoms.find(hop.pick.atom) == atoms.find(atom):
            return [(Picked(hop.pick, tuple(hops[1:]), None), 1)]
        link = next((k for k in hop.links if atoms.find(k.whole) == atoms.find(atom)), None)
        if link is None:  # Cut or merged by a view: follow its pieces.
            return self._steps(atoms.leaves(atom), hops, loc)
        return self.digits(link.part, hops[1:], loc) + [(g.Index(None, link.offset), 1)]

    def _steps(self, leaves: list[int], hops: list[Hop], loc: Loc) -> list[tuple[Coordinate, int]]:
        out: list[tuple[Coordinate, int]] = []
        step: int | None = 1
        for leaf in reversed(leaves):
            if step is None:
                raise FusionError("a dim of an argument is split by a size known at the call only", loc)
            out.insert(0, (self.follow(leaf, hops, loc), step))
            extent = self.model.atoms.extent(leaf)
            step = step * extent if isinstance(extent, int) else None
        return out

    def dim_index(self, atom: int | None, hops: list[Hop], loc: Loc) -> g.DimIndex:
        """The index along one dim of a tensor: zero constants dropped, constants summed into one digit."""
        digits: list[g.Digit] = []
        constant = 0
        for coordinate, step in self.digits(atom, hops, loc):
            parts = index_digits(self, coordinate, loc) if isinstance(coordinate, Picked) else (g.Digit(coordinate),)
            for digit in parts:
                if isinstance(digit.source, g.Ref):
                    digits.append(g.Digit(digit.source, digit.step * step))
                    continue
                constant += digit.source.offset * digit.step * step
                if digit.source.axis is not None:
                    digits.append(g.Digit(g.Index(digit.source.axis), digit.step * step))
        if constant and len(digits) == 1 and isinstance(digits[0].source, g.Index) and digits[0].step == 1:
            return (g.Digit(g.Index(digits[0].source.axis, constant)),)
        return tuple(digits) + ((g.Digit(g.Index(None, constant)),) if constant else ())

    # ---- references -------------------------------------------------------------------------------------------------------------

    def value_ref(self, name: str, read: Hop, rest: tuple[Hop, ...], loc: Loc) -> g.Ref:
        """A value as the reader behind `read` and `rest` sees it."""
        value = self.model.values[name]
        hops = value.hops + [read, *rest]
        root = self.model.values[value.root]
        if isinstance(root.node.op, Input):
            return g.Ref(self.load(root, hops, value.node, loc))
        if isinstance(root.node.op, Fill):
            if value.root not in self.emitted:
                self.value(root)
            return g.Ref(self.emitted[value.root])
        if isinstance(root.node.op, Iota):
            return g.Ref(self.positions(root, hops, loc))
        if value.root not in self.emitted:
            raise InternalError(f"{name} is read before it is computed", loc.short)
        bind, have = [], set(self.nodes_axes(self.emitted[value.root]))
        for axis, leaf in ((self.axis(leaf), leaf) for a in root.axes for leaf in self.model.atoms.leaves(a)):
            where = self.follow(leaf, hops, loc)
            if not isinstance(where, g.Index):
                raise FusionError(f"a computed value is read at places that an index picks: {name}", loc,
                                  "gather from the argument itself, before computing")
            if axis in have and where != g.Index(axis.name):
                bind.append((axis.name, where))
        return g.Ref(self.emitted[value.root], tuple(bind))

    def operand(self, name: str, read: Hop, loc: Loc) -> g.Ref | Lit:
        root = self.model.values[self.model.values[name].root].node.op
        return root.value if isinstance(root, Fill) else self.value_ref(name, read, (), loc)

    def load(self, root: Value, hops: list[Hop], view: TensorNode, loc: Loc) -> str:
        """The Load that reads an argument through `hops`, made at its first use."""
        assert isinstance(root.node.op, Input)
        tensor = root.node.op.tensor
        index = tuple(self.dim_index(a, hops, loc) for a in root.dims)
        where = self._where(hops, loc)
        key = (tensor, index, where)
        if key not in self.loads:
            axes = self._index_axes(index, where)
            self.loads[key] = self.add(g.Load(tensor, index, where), axes, root.node.dtype, view.loc, f"{tensor}_in", view)
        return self.loads[key]

    def _where(self, hops: list[Hop], loc: Loc) -> g.Ref | None:
        found = [(hop.pick, tuple(hops[i + 1:])) for i, hop in enumerate(hops) if hop.pick and hop.pick.where]
        if len(found) > 1:
            raise FusionError("two predicated reads of one tensor inside each other", loc, "combine the predicates with &")
        for pick, rest in found:
            assert pick.where is not None and pick.where_hop is not None
            return self.value_ref(pick.where, pick.where_hop, rest, loc)
        return None

    def _index_axes(self, index: tuple[g.DimIndex, ...], where: g.Ref | None) -> tuple[Axis, ...]:
        """The axes an index depends on, in order of appearance."""
        table = {a.name: a for a in self.axes.axes.values()}
        seen: dict[str, None] = {}

        def of_ref(ref: g.Ref) -> None:
            for axis in self.table[ref.value].axes:
                if (at := ref.index(axis.name).axis) is not None:
                    seen.setdefault(at)
        for dim in index:
            for digit in dim:
                if isinstance(digit.source, g.Ref):
                    of_ref(digit.source)
                elif digit.source.axis is not None:
                    seen.setdefault(digit.source.axis)
        if where is not None:
            of_ref(where)
        return tuple(table[name] for name in seen)

    # ---- nodes ------------------------------------------------------------------------------------------------------------------

    def add(self, op: g.Op, axes: tuple[Axis, ...], dtype: str, loc: Loc, fallback: str, named: TensorNode | None) -> str:
        name = self.names.value(named.loc.target if named is not None else "", fallback)
        self.table[name] = g.Node(name, op, axes, dtype, loc)
        self.nodes.append(self.table[name])
        return name

    def value(self, value: Value) -> None:
        """Emit a computed value."""
        node, op = value.node, value.node.op
        emit = getattr(self, "_" + type(op).__name__.lower(), None)
        if emit is None:
            raise InternalError(f"the axes pass cannot emit {type(op).__name__}", node.name)
        self.emitted[node.name] = emit(value, op)

    def _simple(self, value: Value, op: g.Op, word: str) -> str:
        return self.add(op, self.own(value.axes), value.node.dtype, value.node.loc, word, value.node)

    def _map(self, value: Value, op: Map) -> str:
        args = tuple(self.operand(a, value.reads[i], value.node.loc) if isinstance(a, str) else a for i, a in enumerate(op.args))
        word = f"{args[0].value}_{value.node.dtype}" if op.fn == "identity" and isinstance(args[0], g.Ref) else op.fn
        return self._simple(value, g.Map(op.fn, args), word)

    def _fill(self, value: Value, op: Fill) -> str:
        return self.add(g.Map("identity", (op.value,)), (), value.node.dtype, value.node.loc, "constant", value.node)

    def positions(self, root: Value, hops: list[Hop], loc: Loc) -> str:
        """The coordinate that an iota is, at the reader's own axes: cheaper to make again than to exchange."""
        index = self.dim_index(root.dims[0], hops, loc)
        key = (root.node.dtype, index)
        if key not in self.loads:
            self.loads[key] = self._sum_digits(root.node, index)
        return self.loads[key]

    def _sum_digits(self, node: TensorNode, index: g.DimIndex) -> str:
        """The sum of digits as a value."""
        total = ""
        for digit in reversed(index):
            assert isinstance(digit.source, g.Index)
            term = self._digit_value(node, digit.source, digit.step)
            if total:
                axes = self.nodes_axes(term) + self.nodes_axes(total)
                term = self.add(g.Map("add", (g.Ref(term), g.Ref(total))), axes, node.dtype, node.loc, "position", None)
            total = term
        return total or self.add(g.Map("identity", (Lit(0),)), (), node.dtype, node.loc, "position", None)

    def _digit_value(self, node: TensorNode, at: g.Index, step: int) -> str:
        if at.axis is None:
            return self.add(g.Map("identity", (Lit(at.offset * step),)), (), node.dtype, node.loc, "position", None)
        axes = (self.axes.named(at.axis),)
        term = self.add(g.Iota(), axes, node.dtype, node.loc, "position", None)
        for fn, operand in (("add", at.offset), ("mul", step)):
            if operand != (0 if fn == "add" else 1):
                term = self.add(g.Map(fn, (g.Ref(term), Lit(operand))), axes, node.dtype, node.loc, "position", None)
        return term

    def nodes_axes(self, name: str) -> tuple[Axis, ...]:
        return self.table[name].axes

    def _reduce(self, value: Value, op: Reduce) -> str:
        args = tuple(self._ref(a, value.reads[i], value.node.loc) for i, a in enumerate(op.args))
        return reduce_node(self, value, op.monoid, args)

    def _ref(self, name: str, read: Hop, loc: Loc) -> g.Ref:
        return self.value_ref(name, read, (), loc)

    def _contract(self, value: Value, op: Contract) -> str:
        """A contraction: products of all but the last two operands first, then a dot; without summed letters a product only.

        einsum(a, b, c) -> dot(a · b, c)
        """
        node = value.node
        refs = [self._ref(a, value.reads[i], node.loc) for i, a in enumerate(op.args)]
        reduced = self.own(value.reduced)
        last = 1 if not reduced else 2
        while len(refs) > max(last, 1):
            axes = self._union(refs[0], refs[1], self.own(value.axes + value.reduced))
            final = not reduced and len(refs) == 2
            product = g.Map("mul", (refs[0], refs[1]))
            name = self.add(product, axes, node.dtype if final else "f32", node.loc, "mul", node)
            if final:
                return name
            refs = [g.Ref(name), *refs[2:]]
        if not reduced:
            return self._simple(value, g.Map("identity", (refs[0],)), "identity")
        return reduce_node(self, value, "dot" if len(refs) == 2 else "sum", tuple(refs))

    def _union(self, a: g.Ref, b: g.Ref, domain: tuple[Axis, ...]) -> tuple[Axis, ...]:
        used = {ref.index(axis.name).axis for ref in (a, b) for axis in self.nodes_axes(ref.value)}
        return tuple(x for x in domain if x.name in used)

    def _join(self, value: Value, op: Join) -> str:
        return emit_join(self, value, op)

    def store(self, write: Write) -> None:
        """tensor[place] = value."""
        axes = self.own(write.axes)
        index = tuple(self.dim_index(a, write.place, write.loc) for a in write.dims)
        where = self._where(write.place, write.loc)
        arg = self._ref(write.value, write.read, write.loc)
        dtype = self.table[arg.value].dtype
        name = self.names.value("", f"store_{write.tensor}")
        self.nodes.append(g.Node(name, g.Store(write.tensor, index, arg, where), axes, dtype, write.loc))
