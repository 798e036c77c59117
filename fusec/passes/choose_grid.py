"""After this pass it is known which axes are the grid: every block owns its part of every store, and no block needs another's.

Laws (FusionError, with the location, where one cannot hold):
- an axis of dynamic extent is on the grid;
- a grid axis is in the domain of every Store, and never reduced or read at another coordinate than the reader's own;
- a tensor written in place is read only where the same block writes it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import FusionError, Loc
from ..ir.axis import Axis, Extent
from ..ir.dtype import BYTES, INTS
from ..ir.graph import Graph, Index, Load, Map, Node, Reduce, Ref, Store, operands
from ..ir.overlap import apart
from ..ir.scalar import Lit
from ..ir.tensor import Size

SMALL_BLOCK = 2048  # Elements: below this a block takes parallel axes back from the grid.
REPEATED = 1.5  # Times the work: beyond, blocks do not share out an axis whose positions need the same values.
LARGE_BLOCK = 32768  # Elements: above this a block gives part of a parallel axis to the grid.
FREE = 1 << 40  # What a stride that is known at run time only counts as.


@dataclass(frozen=True, slots=True)
class Grid:
    """(axis, blocks along it, elements of it in a block), outermost first; axes not named here are whole in every block.

    cluster: the last axis where its blocks are one cluster, else nothing. Not every store has that axis.
    """

    axes: tuple[tuple[str, int | str, int], ...]
    cluster: str = ""

    @property
    def peers(self) -> int:
        """Blocks of a cluster."""
        return int(self.axes[-1][1]) if self.cluster else 1

    def local(self, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        """What a block holds of these axes: grid axes of one element are gone, split ones are shorter."""
        parts = {name: size for name, _, size in self.axes}
        return tuple(Axis(a.name, parts.get(a.name, a.extent)) for a in axes if parts.get(a.name) != 1)


def choose_grid(graph: Graph, held: frozenset[str]) -> Grid:
    """The grid of the one kernel that computes `graph`; `held` axes stay within a thread. Raises FusionError."""
    free = _parallel(graph, held)
    for axis in _used(graph):
        if axis.dynamic and axis.name not in free:
            rows = "every output and every updated tensor must have the rows of the batch as an axis"
            raise FusionError(
                f"axis {axis.name} has a size that is known at the call only, but not every result has it as an axis of its own",
                _culprit(graph, axis.name),
                rows if axis.name == graph.rows else f"{rows}; any other axis needs a size: static=, -D {axis.name}=…, an example",
            )
    free = _owned_blocks(graph, free)
    dynamic: list[tuple[str, int | str, int]] = [(a.name, str(a.extent), 1) for a in _used(graph) if a.dynamic]
    static = [a for a in _by_contiguity(graph) if a.name in free and not a.dynamic]
    kept: list[str] = []
    while static and len(kept) < len(static) and _largest(graph, free, kept) < SMALL_BLOCK:
        kept.append(static[len(kept)].name)
    kept += _shared(graph, free, kept, [a for a in static if a.name not in kept])
    split = _split(graph, free, kept)
    grid: list[tuple[str, int | str, int]] = [
        (a.name, a.size, 1) for a in reversed(static) if a.name not in kept and a.name not in dict(split)
    ]
    grid += [(name, graph.axis(name).size // part, part) for name, part in split]
    return Grid(tuple(dynamic + grid))


def _used(graph: Graph) -> tuple[Axis, ...]:
    seen = {a.name: a for n in graph.nodes for a in n.domain}
    return tuple(a for a in graph.axes if a.name in seen)


def _parallel(graph: Graph, held: frozenset[str]) -> frozenset[str]:
    stores = [n for n in graph.nodes if isinstance(n.op, Store)]
    if not stores:
        raise FusionError("there is nothing to compute: the function updates nothing, and what it returns are arguments as they "
                          "are, or constants", hint="return a result, or update an argument in place")
    free = set.intersection(*({a.name for a in n.axes} for n in stores)) - held
    table = graph.table
    for node in graph.nodes:
        if isinstance(node.op, Reduce):
            free -= {a.name for a in node.op.axes}
        for ref in operands(node.op):
            own = {a.name for a in table[ref.value].axes}
            free -= {a for a, i in ref.bind if a in own and i != Index(a)}
    return frozenset(free)


def _culprit(graph: Graph, axis: str) -> Loc | None:
    for node in graph.nodes:
        if isinstance(node.op, Reduce) and any(a.name == axis for a in node.op.axes):
            return node.loc
    return next((n.loc for n in graph.nodes if isinstance(n.op, Store) and all(a.name != axis for a in n.axes)), None)


def _signature(graph: Graph, op: Load | Store, free: frozenset[str]) -> tuple[frozenset[tuple[str, int]], ...]:
    """Per dim, what of the coordinate depends on the block: grid axes and the slots that index values name."""
    out: list[frozenset[tuple[str, int]]] = []
    for dim, extent in zip(op.index, graph.tensors[op.tensor].shape, strict=True):
        found: set[tuple[str, int]] = set()
        for digit in dim:
            if isinstance(digit.source, Ref):
                found.add((_slots(graph, digit.source.value, extent, free) or f"{digit.source}", digit.step))
            elif digit.source.axis in free:
                found.add((f"{digit.source}", digit.step))
        out.append(frozenset(found))
    return tuple(out)


def _slots(graph: Graph, value: str, extent: Extent, free: frozenset[str]) -> str | None:
    """The table that an index into a dim of `extent` is an entry of, by rows of the grid; None where it is of none, or of several.

    Distinct live rows have distinct slots (C10), so entries of two rows never meet, whichever columns they stand in.
    """
    node = graph.table[value]
    if isinstance(node.op, Load):
        index = enumerate(node.op.index)
        rows = sorted((str(d.source), i) for i, dim in index for d in dim if isinstance(d.source, Index) and d.source.axis in free)
        rows = rows or _line(graph, node.op, free)
        return f"{node.op.tensor} by {rows}" if rows else None
    below = _entry(graph, node.op, extent) if isinstance(node.op, Map) and node.dtype in INTS else None
    return _slots(graph, below, extent, free) if below is not None else None


def _line(graph: Graph, op: Load, free: frozenset[str]) -> list[tuple[str, int]]:
    """The line of a table that is named by an own slot of each row, as `_slots` tells them: its entries are that row's slots."""
    first = op.index[0] if op.index else ()
    source = first[0].source if len(first) == 1 and first[0].step == 1 else None
    slots = _slots(graph, source.value, graph.tensors[op.tensor].shape[0], free) if isinstance(source, Ref) else None
    return [] if slots is None else [(slots, 0)]


def _entry(graph: Graph, op: Map, extent: Extent) -> str | None:
    """The entry that a cast or the wrap select(i < 0, i + extent, i) passes on; None for another Map: i // 2 is another's slot."""
    if op.fn == "identity" and isinstance(op.args[0], Ref):
        return op.args[0].value if graph.table[op.args[0].value].dtype in INTS else None
    test, moved, entry = op.args if op.fn == "select" else (None, None, None)
    if not isinstance(test, Ref) or not isinstance(moved, Ref) or not isinstance(entry, Ref):
        return None
    lower, added = graph.table[test.value].op, graph.table[moved.value].op
    if not isinstance(lower, Map) or not isinstance(added, Map):
        return None
    by = added.args[-1]
    whole = graph.tensors[by.tensor].shape[by.dim] if isinstance(by, Size) else by.value if isinstance(by, Lit) else None
    wraps = (lower.fn, lower.args) == ("lt", (entry, Lit(0))) and (added.fn, added.args[0]) == ("add", entry) and whole == extent
    return entry.value if wraps else None


def unnamed(graph: Graph, first: Load | Store, second: Load | Store, free: frozenset[str]) -> frozenset[str]:
    """Grid axes along which two accesses may meet from different blocks: those that no dim with like coordinates names.

    An index value names the axes it varies over: distinct live rows have distinct slots (C10).
    """
    named: set[str] = set()
    signatures = zip(_signature(graph, first, free), _signature(graph, second, free), first.index, strict=True)
    for one, other, dim in signatures:
        if one == other:
            for digit in dim:
                value = digit.source
                named |= {a.name for a in graph.table[value.value].axes} if isinstance(value, Ref) else {str(value.axis)}
    return free - named


def _owned_blocks(graph: Graph, free: frozenset[str]) -> frozenset[str]:
    """The grid axes that can stay: of two accesses to a tensor that is written, either both are of the same block or they touch
    different elements. A static axis along which they meet is not on the grid; a dynamic one is a FusionError.
    """
    stores = [n for n in graph.nodes if isinstance(n.op, Store)]
    for node in graph.nodes:
        for store in stores:
            if not isinstance(node.op, (Load, Store)) or apart(graph, node, store):
                continue
            assert isinstance(store.op, Store)
            meet = unnamed(graph, node.op, store.op, free)
            if any(graph.axis(name).dynamic for name in meet):
                does = "read" if isinstance(node.op, Load) else "written"
                raise FusionError(
                    f"{store.op.tensor} is updated in place and {does} through another index: one block would need what "
                    "another writes",
                    node.loc,
                    "read and update it through the same index, or split the function in two",
                )
            free -= meet
    return free


def _by_contiguity(graph: Graph) -> tuple[Axis, ...]:
    """Axes from the one that is most contiguous in the largest memory access to the least, then the rest."""
    order: list[str] = []
    for node in sorted((n for n in graph.nodes if isinstance(n.op, (Load, Store))), key=lambda n: -_bytes(graph, n)):
        assert isinstance(node.op, (Load, Store))
        order += [name for _, name in sorted(strides(graph, node)) if name not in order]
    rest = [a.name for a in _used(graph) if a.name not in order]
    return tuple(graph.axis(name) for name in order + rest)


def strides(graph: Graph, node: Node) -> list[tuple[int, str]]:
    """(elements between neighbours, axis) of a Load or Store, for axes whose strides are known now."""
    assert isinstance(node.op, (Load, Store))
    found: dict[str, int] = {}
    for dim, stride in zip(node.op.index, graph.tensors[node.op.tensor].strides, strict=True):
        for digit in dim:
            if isinstance(digit.source, Index) and digit.source.axis is not None:
                step = FREE if stride is None else digit.step * stride
                found[digit.source.axis] = found.get(digit.source.axis, 0) + step
    return [(step, name) for name, step in found.items()]


def _bytes(graph: Graph, node: Node) -> int:
    total = BYTES[node.dtype]
    for axis in node.axes:
        total *= axis.extent if isinstance(axis.extent, int) else 1
    return total


def _largest(graph: Graph, free: frozenset[str], kept: list[str]) -> int:
    """Elements of a block's largest domain, counted once for each Load of it: all of them are held at once."""
    held: dict[frozenset[str], tuple[int, int]] = {}
    for node in graph.nodes:
        inner = [a for a in node.domain if a.name not in free or a.name in kept]
        size = 1
        for axis in inner:
            size *= axis.extent if isinstance(axis.extent, int) else 1
        key = frozenset(a.name for a in inner)
        loads = held.get(key, (0, 0))[1] + isinstance(node.op, Load)
        held[key] = (size, loads)
    return max((size * max(loads, 1) for size, loads in held.values()), default=1)


def _shared(graph: Graph, free: frozenset[str], kept: list[str], others: list[Axis]) -> list[str]:
    """Further axes that a block keeps, since blocks apart along them would each repeat what does not depend on them."""
    found: list[str] = []
    for axis in others:
        apart_, together = _work(graph, free, kept + found), _work(graph, free, [*kept, *found, axis.name])
        if apart_ * axis.size > REPEATED * together:
            found.append(axis.name)
    return found


def _work(graph: Graph, free: frozenset[str], kept: list[str]) -> int:
    """Elements of all domains of a block."""
    total = 0
    for node in graph.nodes:
        size = 1
        for axis in node.domain:
            if axis.name not in free or axis.name in kept:
                size *= axis.extent if isinstance(axis.extent, int) else 1
        total += size
    return total


def _split(graph: Graph, free: frozenset[str], kept: list[str]) -> list[tuple[str, int]]:
    """Parallel axes that a block holds only a part of, so that what it holds fits: the least contiguous first."""
    size, found = _largest(graph, free, kept), []
    for name in reversed(kept):
        extent = graph.axis(name).size
        for parts in range(1, extent + 1):
            if extent % parts == 0 and size // parts <= LARGE_BLOCK:
                break
        if parts > 1:
            found.append((name, extent // parts))
            size //= parts
        if size <= LARGE_BLOCK:
            break
    return found
