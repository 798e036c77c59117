"""After this pass nothing reads a tensor that was updated in part: reads are the written value where it was written, else the old.

    t[i, j] = v; u = t[i]      ->      u[r, k] = select(j[r] == k, v[r], t[i[r], k])

What is written through the index that it is read through belongs to the reader's own row (live rows have distinct slots), and so
does what is written and read through entries of one table by rows; positions that may differ are compared. A read that may meet
what other rows write is refused, at the read.
"""
from __future__ import annotations

from dataclasses import replace
from itertools import product

from ..errors import FusionError
from ..ir.tensor import Expand, Gather, Input, Iota, Join, Permute, Reshape, Shape, Slice, TensorGraph, TensorNode, Update
from .atoms import Size as Extent
from .digits import Core, core, digits
from .entries import entry
from .make_nodes import Maker
from .picks import Coordinate, Named, Reading, element, positions, reading
from .simplify_tensors import drop_dead, operand_names, renamed, simplify_tensors

VIEWS = (Reshape, Permute, Slice, Expand, Join)
MOST_WRITES = 16
"""How many elements that are written one by one (tokens of a row) a read may be compared with."""


def select_written(graph: TensorGraph) -> TensorGraph:
    """The same function without reads of updated tensors; updates remain as what arguments end as.

    Raises FusionError for a read that may see what another row wrote.
    """
    if not any(isinstance(n.op, Update) for n in graph.nodes):
        return graph
    reads = _Reads(graph)
    for node in graph.nodes:
        reads.visit(node)
    outputs = tuple(o if o[0] in "=!" or not reads.shows(o) else reads.whole(reads.table[o], o) for o in graph.outputs)
    if not reads.changed:
        return graph
    return simplify_tensors(drop_dead(replace(reads.ordered(graph), outputs=outputs)))


class _Reads(Maker):
    """Rewrites readers one by one. `wholes`: what stands for all of an updated value."""

    def __init__(self, graph: TensorGraph) -> None:
        super().__init__(graph)
        self.wholes: dict[str, str] = {}
        self.changed = False

    def shows(self, name: str) -> bool:
        """Whether a value is an updated tensor, or a view of one."""
        op = self.table[name].op
        return isinstance(op, Update) or isinstance(op, VIEWS) and any(map(self.shows, operand_names(op)))

    def visit(self, node: TensorNode) -> None:
        """A reader with its operands replaced. Views are no readers: perhaps they only say how an argument ends."""
        op = node.op
        if isinstance(op, VIEWS):
            return
        if isinstance(op, Gather) and self.shows(op.arg):
            index, where = (n if n is None or not self.shows(n) else self.whole(node, n) for n in (op.index, op.where))
            assert index is not None
            made = self.gathered(node, replace(op, index=index, where=where))
            if where is not None:  # What is not picked is 0, also where it was written.
                behind = len(node.shape) - op.dim - len(self.shape(where))
                mask = self.reshape(where, self.shape(where) + (1,) * behind)
                made = self.map(node, "select", (mask, made, self.zero(node.dtype)), node.dtype)
            self.table[node.name] = replace(node, op=Reshape(made))
            return
        target = op.target if isinstance(op, Update) else None
        new = {o: self.whole(node, o) for o in operand_names(op) if o != target and self.shows(o)}
        if new:
            self.table[node.name] = replace(node, op=renamed(op, lambda n: new.get(n, n)))

    # ---- reads ------------------------------------------------------------------------------------------------------------------

    def whole(self, reader: TensorNode, name: str) -> str:
        """All of a value that shows an updated tensor."""
        self.changed = True
        if name not in self.wholes:
            node, op = self.table[name], self.table[name].op
            update, shown = self._below(name)
            if update is not None:
                self.wholes[name] = self.read(reader, update, shown, None)
            elif isinstance(op, VIEWS):
                new = {o: self.whole(reader, o) for o in operand_names(op) if self.shows(o)}
                self.wholes[name] = self.add(node, renamed(op, lambda n: new.get(n, n)), node.shape)
        return self.wholes[name]

    def _below(self, name: str) -> tuple[TensorNode | None, Shape]:
        """The update that a value is, or is a reshape of, and the value's shape."""
        node = self.table[name]
        below = self.table[node.op.arg] if isinstance(node.op, Reshape) else node
        return (below if isinstance(below.op, Update) else None), node.shape

    def gathered(self, reader: TensorNode, how: Gather) -> str:
        """What an index picks from a value that shows an updated tensor; only what memory holds is guarded by `where`."""
        self.changed = True
        name, dim, rank = how.arg, how.dim, len(self.shape(how.index))
        node, op = self.table[name], self.table[name].op
        if not self.shows(name):
            return self.gather(reader, name, dim, how.index, how.where)
        update, shown = self._below(name)
        if update is not None:
            return self.read(reader, update, shown, how)
        if isinstance(op, (Slice, Join)) and op.dim != dim:
            parts = {o: self.gathered(reader, replace(how, arg=o)) for o in operand_names(op)}
            moved = replace(op, dim=op.dim + rank - 1 if op.dim > dim else op.dim)
            shape = node.shape[:dim] + self.shape(how.index) + node.shape[dim + 1:]
            return self.add(node, renamed(moved, lambda n: parts[n]), shape)
        if isinstance(op, Permute):
            source = op.order[dim]
            order: list[int] = []
            for d in op.order:
                order += range(source, source + rank) if d == source else [d if d < source else d + rank - 1]
            return self.permute(self.gathered(reader, replace(how, arg=op.arg, dim=source)), tuple(order))
        return self.gather(reader, self.whole(reader, name), dim, how.index, how.where)

    def read(self, reader: TensorNode, update: TensorNode, shown: Shape, how: Gather | None) -> str:
        """All of an updated tensor, or what an index picks of it, viewed under a shape."""
        op = update.op
        assert isinstance(op, Update)
        old = self.reshape(op.target, shown)
        if how is not None:
            old = self.gathered(reader, replace(how, arg=old))
        elif self.shows(old):
            old = self.whole(reader, old)
        dim, index = (None, None) if how is None else (how.dim, how.index)
        found = reading(self, update.shape, shown, dim, index, self._argument_shape(op.target))
        written = None if found is None else self._written(reader, update, op, found, self.reshape(old, found.shape))
        if written is None:
            raise self._refusal(reader, update)
        return self.reshape(written, self.shape(old))

    def _argument_shape(self, name: str) -> Shape:
        """The shape that a target had before it was viewed with dims merged, to index several at once."""
        op = self.table[name].op
        while isinstance(op, (Update, Reshape)):
            name = op.target if isinstance(op, Update) else op.arg
            op = self.table[name].op
        return self.shape(name)

    def _refusal(self, reader: TensorNode, update: TensorNode) -> FusionError:
        name = update.name
        while not isinstance(self.table[name].op, Input) and operand_names(self.table[name].op):
            name = operand_names(self.table[name].op)[0]
        return FusionError(f"this reads {name}, which was just updated (at {update.loc.short}), and may see what other rows write",
                           reader.loc, "read before the update, or through the index that was written, or other entries of its "
                           "table: what other rows write takes a second kernel")

    # ---- what was written -------------------------------------------------------------------------------------------------------

    def _written(self, reader: TensorNode, update: TensorNode, op: Update, how: Reading, old: str) -> str | None:
        """The old value over the result's dims, and the written one where it was written; None where that is another row's."""
        if op.index is None:
            return self._replaced(update, op, how, old)
        common, lead = how.pieces, self.shape(op.index)
        own = [i for i, d in enumerate(common.first) if d == op.dim]
        named = digits(self, op.index, tuple(common.extents[i] for i in own)) if own else []
        if named is None:
            return None
        write = {i: Named(v, tuple(range(len(lead) - len(self.shape(v)), len(lead)))) for i, v in zip(own, named)}
        pinned, tests = self._pinned(write, how)
        free = [p for p, n in enumerate(lead) if n != 1 and p not in pinned]
        along = {*pinned.values(), *(a for i, a in enumerate(how.at) if i not in write)}
        shared = any(not isinstance(n, int) and d not in along for d, n in enumerate(how.shape))  # By rows that wrote none of it.
        if shared or any(not isinstance(lead[p], int) for p in free):
            return None
        steps = list(product(*(range(int(str(lead[p]))) for p in free)))
        if len(steps) > MOST_WRITES:
            return None
        for step in steps:
            made = self._one_write(reader, op, how, old, write, pinned, tests, dict(zip(free, step)))
            if made is None:
                return None
            old = made
        return old

    def _replaced(self, update: TensorNode, op: Update, how: Reading, old: str) -> str | None:
        """An update of everything that `where` allows: only read as it stands."""
        if any(isinstance(a, Named) for a in how.at) or op.where is None:
            return None
        mask, value = (self.reshape(self.expand(n, update.shape), how.shape) for n in (op.where, op.value))
        return self.map(update, "select", (mask, value, old), update.dtype)

    def _pinned(self, write: dict[int, Named], how: Reading) -> tuple[dict[int, int], list[int]]:
        """(dim of the index -> dim of the result that it must be, pieces along which positions have to be compared)"""
        pinned: dict[int, int] = {}
        tests = []
        for i, at in write.items():
            extent = how.pieces.extents[i]
            pairs = self._same(core(self, at.value, extent), at, how.at[i], extent)
            if pairs is None or any(pinned.get(p, d) != d for p, d in pairs):
                tests.append(i)
            else:
                pinned.update(pairs)
        for i in tests:
            for p, d in self._own_rows(write[i], how.at[i], how.pieces.extents[i]):
                pinned.setdefault(p, d)
        return pinned, tests

    def _own_rows(self, at: Named, read: Coordinate, extent: Extent) -> list[tuple[int, int]]:
        """(dim of the index, dim of the result) along the rows, where what is written and what is read are entries of one table."""
        if isinstance(read, int):
            return []
        mine, theirs = entry(self, at.value, extent), entry(self, read.value, extent)
        same = mine is not None and theirs is not None and mine.table == theirs.table
        return [(at.dims[mine.row], read.dims[theirs.row])] if same and mine is not None and theirs is not None else []

    def _same(self, mine: Core, at: Named, read: Coordinate, extent: Extent) -> list[tuple[int, int]] | None:
        """(dim of the index, dim of the result) of a coordinate that one value of distinct elements writes and reads."""
        if len(mine.dims) != 1:
            return None
        if isinstance(read, int):
            counts = isinstance(self.table[mine.value].op, Iota) and self.shape(mine.value) == (extent,)
            return [(at.dims[mine.dims[0]], read)] if counts else None
        theirs = core(self, read.value, extent)
        return [(at.dims[mine.dims[0]], read.dims[theirs.dims[0]])] if theirs.value == mine.value else None

    def _one_write(self, reader: TensorNode, op: Update, how: Reading, old: str, write: dict[int, Named], pinned: dict[int, int],
                   tests: list[int], step: dict[int, int]) -> str | None:
        """select(positions agree, value, old) for one element along the dims of the index that are not the reader's."""
        rank, masks = len(how.shape), []
        for i in tests:
            wanted = self._at_step(write[i].value, write[i].dims, pinned, step, rank)
            have = positions(self, reader, how.at[i], how.shape, rank)
            masks.append(self.map(reader, "eq", (wanted, have), "bool"))
        if op.where is not None:
            masks.append(self._at_step(op.where, tuple(range(len(self.shape(op.where)))), pinned, step, rank))
        value = self._value(reader, op, how, pinned, step)
        if value is None:
            return None
        if not masks:
            return self.expand(value, how.shape)
        mask = masks[0]
        for more in masks[1:]:
            mask = self.map(reader, "and", (mask, more), "bool")
        return self.map(reader, "select", (mask, value, old), self.table[old].dtype)

    def _at_step(self, value: str, dims: tuple[int, ...], pinned: dict[int, int], step: dict[int, int], rank: int) -> str:
        """A value over dims of the index, at one step of those that are not pinned, over the result's dims."""
        for d in reversed(range(len(dims))):
            if dims[d] not in pinned:
                value = self.element(value, d, step.get(dims[d], 0) if self.shape(value)[d] != 1 else 0)
        return self.placed(value, [pinned[p] for p in dims if p in pinned], rank)

    def _value(self, reader: TensorNode, op: Update, how: Reading, pinned: dict[int, int], step: dict[int, int]) -> str | None:
        """The written value at one step, read along its other dims as the reader does."""
        assert op.index is not None
        lead, common = self.shape(op.index), how.pieces
        shape: list[Extent] = []
        at: list[Coordinate] = []
        steps: dict[int, int] = {}  # Dims of the index that are not pinned.
        for d in range(len(self.shape(op.target))):
            if d == op.dim:
                for p, n in enumerate(lead):
                    if p not in pinned:
                        steps[len(at)] = step.get(p, 0)
                    at.append(pinned.get(p, 0))
                    shape.append(n)
                continue
            for i in (i for i, e in enumerate(common.first) if e == d):
                at.append(how.at[i])
                shape.append(common.extents[i])
        value = self.reshape(op.value, tuple(shape))
        for d in sorted(steps, reverse=True):
            value = self.element(value, d, steps[d])
        return element(self, reader, value, dict(enumerate(a for d, a in enumerate(at) if d not in steps)), how.shape)

