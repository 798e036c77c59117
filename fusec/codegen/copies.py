"""How a Copy is written: one tiled access where its loops are a slice of a fragment, loops of accesses elsewhere."""
from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import InternalError
from ..ir.kernel import Copy, Elem, For, Global, Linear, Place, Shared
from .express import Expressions, conjunction
from .scope import camel

SHORT = 80
"""A view whose text is shorter than this is not given a name."""

ONCE = "ONCE"
"""The constant of an emitted file that says: not needed again."""

VECTOR_ONLY = frozenset({"f8e4m3", "f8e5m2"})
"""Element types that convert in vectors only."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Text of a statement: lines before it, the headers that nest (outermost first) and the body under them."""

    before: tuple[str, ...]
    heads: tuple[str, ...]
    body: tuple[str, ...]


def _memory(s: Copy) -> Global | Shared:
    place = s.source if isinstance(s.source, (Global, Shared)) else s.target
    if isinstance(place, Elem):
        raise InternalError("a Copy moves between memory and registers")
    return place


def _peer(place: Global | Shared) -> Linear | None:
    """The rank of the block whose shared memory it is, None for the own."""
    return place.peer if isinstance(place, Shared) else None


def _registers(s: Copy) -> Elem:
    place: Place = s.target if isinstance(s.target, Elem) else s.source
    if not isinstance(place, Elem):
        raise InternalError("a Copy moves between memory and registers")
    return place


def _variable(index: Linear, step: int = 1) -> str | None:
    """The loop variable that an index is, times `step`."""
    if len(index.terms) == 1 and not index.const and index.terms[0].coef == step and index.terms[0].stride is None:
        return index.terms[0].var
    return None


Dims = tuple[tuple[int, int], ...]
"""(extent, stride) per dim, innermost first."""


@dataclass(frozen=True, slots=True)
class Tile:
    """What a copy covers: `registers` is the fragment, a slice or a part of it; `shape` and `stride` say where it is in memory.
    `at`: the slice of the view that the point of the loops around the copy has, '' where it is the whole view."""

    registers: str
    offset: Linear
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    at: str = ""


@dataclass(frozen=True, slots=True)
class Dim:
    """A dim of a fragment in a copy: its index there, None for all of it; then its extent, its stride in memory and its loop."""

    text: str
    extent: int = 0
    step: int = 0
    var: str = ""


def _layout(dims: Dims) -> str:
    """Shape and stride as two tuples."""
    one = "," if len(dims) == 1 else ""
    return f"({', '.join(str(n) for n, _ in dims)}{one}), ({', '.join(str(step) for _, step in dims)}{one})"


class Copies:
    """Writes the Copies of one kernel."""

    def __init__(self, express: Expressions) -> None:
        self.express, self.scope, self.uses = express, express.scope, express.uses
        self.views: dict[str, str] = {}

    def lines(self, s: Copy) -> Lines:
        """The statement as text."""
        loops = {f.var: f.extent for f in s.loops}
        named = {var for var in loops if any(self._mentions(c, {var: 1}) for c in s.when)}
        tile = self._tile(s, loops, named)
        if tile is not None:
            before, where = self._tiled(s, tile)
            heads = tuple(self.loop(f) for f in s.loops if f.var in named) + self._condition(s)
            return Lines(before, heads, (self._move(s, where + tile.at, tile.registers),))
        heads = tuple(self.loop(f) for f in s.loops) + self._condition(s)
        return Lines((), heads, (self._single(s),))

    def loop(self, f: For) -> str:
        """The header of an unrolled loop."""
        return f"for {self.scope.name('int', f.var)} in cutlass.range_constexpr({f.extent}):"

    def _mentions(self, c: object, loops: dict[str, int]) -> bool:
        value = getattr(c, "value", None)
        if isinstance(value, Linear):
            return bool(value.variables & set(loops))
        parts = [*getattr(c, "args", ()), *getattr(c, "index", ())]
        return any(bool(p.variables & set(loops)) if isinstance(p, Linear) else self._mentions(p, loops) for p in parts)

    def _condition(self, s: Copy) -> tuple[str, ...]:
        if not s.when:
            return ()
        found = conjunction(self.express, s.when)
        return (f"if cutlass.const_expr({found.text}):" if found.kind == "py" else f"if {found.text}:",)

    # ---- tiles

    def _tile(self, s: Copy, loops: dict[str, int], named: set[str]) -> Tile | None:
        """What the loops cover, None where that is no one view: a run-time stride, or a register index of several variables.

        named: loops that conditions speak of. They stay loops, and each of their points is a slice of the view.
        """
        e, place = _registers(s), _memory(s)
        if not e.index or (s.width == 1 and not loops) or self._memory_dtype(place) == "bool" or _peer(place) is not None:
            return None
        if any(t.var in loops and t.stride is not None for t in place.offset.terms) or s.width > self.scope.shapes[e.name][-1]:
            return None
        memory = {var: sum(t.coef for t in place.offset.terms if t.var in loops and t.var == var) for var in loops}
        offset = Linear(tuple(t for t in place.offset.terms if t.var not in loops), place.offset.const)
        whole = self._slice(e, s.width, loops, memory)
        if named:
            return None if whole is None else self._points(e, whole, offset, named)
        if whole is not None:
            name, inner = self.scope.name("register", e.name), [d.text for d in whole]
            dims = [d for d in whole if d.extent]
            registers = name if set(inner) == {"None"} else f"{name}[{', '.join(inner)}]"
            return Tile(registers, offset, tuple(d.extent for d in dims), tuple(d.step for d in dims))
        order = tuple(reversed(loops))
        dims_ = (((s.width, 1),) if s.width > 1 else ()) + tuple((loops[var], memory[var]) for var in order)
        name = self._register_view(e, s.width, loops, order)
        return Tile(name, offset, tuple(n for n, _ in dims_), tuple(step for _, step in dims_))

    def _points(self, e: Elem, whole: list[Dim], offset: Linear, named: set[str]) -> Tile | None:
        """The tile with the point of the named loops in it; None where no dim is left to it."""
        inner = [self.scope.name("int", d.var) if d.var in named else d.text for d in whole]
        at = [text for d, text in zip(whole, inner, strict=True) if d.extent]
        dims = [d for d in whole if d.extent]
        if "None" not in at:
            return None
        registers = f"{self.scope.name('register', e.name)}[{', '.join(inner)}]"
        return Tile(registers, offset, tuple(d.extent for d in dims), tuple(d.step for d in dims), f"[{', '.join(at)}]")

    def _slice(self, e: Elem, width: int, loops: dict[str, int], memory: dict[str, int]) -> list[Dim] | None:
        """The dims of the fragment, innermost first, where the loops run over whole ones."""
        shape, left = self.scope.shapes[e.name], dict(loops)
        dims: list[Dim] = []
        for position in reversed(range(len(shape))):
            index, extent, last = e.index[position], shape[position], position == len(shape) - 1
            step = width if last else 1
            var = _variable(index, step)
            if index == Linear() and last and width == extent > 1:
                dims.append(Dim("None", extent, 1))
            elif var is not None and left.get(var, 0) * step == extent and (step == 1 or memory[var] == step):
                dims.append(Dim("None", extent, 1 if step > 1 else memory[var], var if step == 1 else ""))
                left.pop(var)
            elif not index.variables & set(loops) and not (last and width > 1):
                dims.append(Dim(self.express.linear(index).text))
            else:
                return None
        return None if left else dims

    def _register_view(self, e: Elem, width: int, loops: dict[str, int], order: tuple[str, ...]) -> str:
        """A view of a fragment whose loops cover a part of it."""
        shape, at = self.scope.shapes[e.name], Linear()
        for position, index in enumerate(e.index):
            at = at + index.scaled(math.prod(shape[position + 1:]))
        steps = {var: sum(t.coef for t in at.terms if t.var == var) for var in loops}
        start = Linear(tuple(t for t in at.terms if t.var not in loops), at.const)
        dims = (((width, 1),) if width > 1 else ()) + tuple((loops[var], steps[var]) for var in order)
        self.uses.helpers.add("part")
        return f"part({self.scope.name('register', e.name)}, {self.express.linear(start).text}, {_layout(dims)})"

    def _tiled(self, s: Copy, tile: Tile) -> tuple[tuple[str, ...], str]:
        """Lines that name the view, and its name; none and the view itself where that is short."""
        self.uses.helpers.add("tile")
        place = _memory(s)
        view = self._view(place, tile.offset, max(s.width, s.vector), tile.shape, tile.stride)
        if view in self.views:
            return (), self.views[view]
        if len(view) < SHORT and not tile.at:
            return (), view
        letter, name = ("t", place.buffer.removesuffix("_shared")) if isinstance(place, Shared) else ("g", place.tensor)
        self.views[view] = self.scope.fresh(letter + camel(name))
        return (f"{self.views[view]} = {view}",), self.views[view]

    def _view(self, place: Global | Shared, offset: Linear, width: int, shape: tuple[int, ...], stride: tuple[int, ...]) -> str:
        at = self.express.linear(offset, wide=isinstance(place, Global)).text
        return f"tile({self._base(place)}, {at}, {width}, {_layout(tuple(zip(shape, stride, strict=True)))})"

    def _base(self, place: Global | Shared) -> str:
        return self.scope.name("shared", place.buffer) if isinstance(place, Shared) else self.scope.name("tensor", place.tensor)

    def _memory_dtype(self, place: Global | Shared) -> str:
        key = ("shared", place.buffer) if isinstance(place, Shared) else ("global", place.tensor)
        return self.scope.kinds[key]

    def _move(self, s: Copy, where: str, registers: str) -> str:
        """A call that moves between a view of memory and a fragment or a slice of one."""
        e, memory = _registers(s), self._memory_dtype(_memory(s))
        same = self.scope.dtypes[e.name] == memory
        once = s.hint == "evict_first" and isinstance(_memory(s), Global)
        source, target = (where, registers) if isinstance(s.target, Elem) else (registers, where)
        some = registers.startswith("part(")
        if same and not some:
            self.uses.names |= {ONCE} if once else set()
            return f"cute.autovec_copy({source}, {target}{f', l1c_evict_priority={ONCE}' if once else ''})"
        helper = ("load" if isinstance(s.target, Elem) else "store") + ("_part" if some else "")
        if memory == "f8e5m2" and isinstance(s.source, Elem):
            helper = "store_e5m2"
        if memory == "u8" and isinstance(s.target, Elem):
            helper = "load_unsigned"
        self.uses.helpers.add(helper)
        if once and helper in ("load", "store"):
            self.uses.names.add(ONCE)
            return f"{helper}({source}, {target}, {ONCE})"
        return f"{helper}({source}, {target})"

    # ---- single accesses

    def _single(self, s: Copy) -> str:
        """The access of one point of the loops."""
        e, place = _registers(s), _memory(s)
        peer = _peer(place)
        if peer is not None:
            self.uses.helpers.add("push")
            where = f"{self._base(place)}, {self.express.linear(place.offset).text}, {self.express.linear(peer).text}"
            return f"push({self._stored(e, self._memory_dtype(place))}, {where})"
        if s.width > 1 or self._memory_dtype(place) in VECTOR_ONLY:
            return self._neighbours(s)
        at = self.express.linear(place.offset, wide=isinstance(place, Global)).text
        if isinstance(place, Global):
            self.uses.helpers.add("flat")
            self.uses.names.add(self.scope.name("global", place.tensor))
        key = ("shared", place.buffer) if isinstance(place, Shared) else ("global", place.tensor)
        cell = f"{self.scope.name(*key)}[{at}]"
        memory, held = self._memory_dtype(place), self.scope.dtypes.get(e.name) or self.scope.kinds["register", e.name]
        if isinstance(s.target, Elem):
            cell = f"{self.uses.type('u8')}({cell})" if memory == "u8" else cell  # What memory holds has a sign there.
            narrow = memory != held or held == "bool"  # In memory a Boolean is a byte.
            return f"{self.express.element(e)} = " + (f"{self.uses.type(held)}({cell})" if narrow else cell)
        return f"{cell} = {self._stored(e, memory)}"

    def _stored(self, e: Elem, memory: str) -> str:
        held = self.scope.dtypes.get(e.name) or self.scope.kinds["register", e.name]
        return self.express.element(e) if held == memory else self.express.rounded(e, memory)

    def _neighbours(self, s: Copy) -> str:
        """One access of several neighbours inside loops, or a single element of a type that converts in vectors only."""
        e, place = _registers(s), _memory(s)
        if not e.index:
            return self._scalar_through_fragment(s)
        self.uses.helpers.add("tile")
        where = self._view(place, place.offset, s.width, (s.width,), (1,))
        shape = self.scope.shapes[e.name]
        name = self.scope.name("register", e.name)
        if e.index[-1] == Linear() and shape[-1] == s.width:
            fixed = "".join(f", {self.express.linear(i).text}" for i in reversed(e.index[:-1]))
            return self._move(s, where, f"{name}[None{fixed}]" if fixed else name)
        return self._move(s, where, self._register_view(e, s.width, {}, ()))

    def _scalar_through_fragment(self, s: Copy) -> str:
        """A scalar register to or from an element type that converts in vectors only."""
        e, place = _registers(s), _memory(s)
        if s.width > 1:
            raise InternalError(f"scalar register {e.name} in an access of {s.width} neighbours")
        dtype = self._memory_dtype(place)
        self.uses.helpers.add("tile")
        where = self._view(place, place.offset, 1, (1,), (1,))
        helper = "load_one" if isinstance(s.target, Elem) else "store_one_e5m2" if dtype == "f8e5m2" else "store_one"
        self.uses.helpers.add(helper)
        if isinstance(s.target, Elem):
            return f"{self.express.element(e)} = {helper}({where})"
        return f"{helper}({self.express.value(e).text}, {where})"

