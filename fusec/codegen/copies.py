"""How a Copy is written: one tiled access where its loops are a slice of a fragment, loops of accesses elsewhere."""
from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import InternalError
from ..ir.kernel import Copy, Elem, For, Global, Linear, Place, Shared
from .express import Expressions, conjunction
from .scope import camel

SHORT = 60
"""A view whose text is shorter than this is not given a name."""

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


def _registers(s: Copy) -> Elem:
    place: Place = s.target if isinstance(s.target, Elem) else s.source
    if not isinstance(place, Elem):
        raise InternalError("a Copy moves between memory and registers")
    return place


def _variable(index: Linear) -> str | None:
    """The loop variable that an index is, exactly."""
    if len(index.terms) == 1 and not index.const and index.terms[0].coef == 1 and index.terms[0].stride is None:
        return index.terms[0].var
    return None


@dataclass(frozen=True, slots=True)
class Tile:
    """A slice of a fragment and where it lies in memory: `shape` and `stride` from the fragment's last dim outwards."""

    slice: str
    offset: Linear
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class Copies:
    """Writes the Copies of one kernel."""

    def __init__(self, express: Expressions) -> None:
        self.express, self.scope, self.uses = express, express.scope, express.uses
        self.views: dict[str, str] = {}

    def lines(self, s: Copy) -> Lines:
        """The statement as text."""
        loops = {f.var: f.extent for f in s.loops}
        conditional = any(self._mentions(c, loops) for c in s.when)
        tile = None if conditional else self._tile(s, loops)
        if tile is not None:
            before, where = self._tiled(s, tile)
            return Lines(before, self._condition(s), (self._move(s, where, tile.slice),))
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

    def _tile(self, s: Copy, loops: dict[str, int]) -> Tile | None:
        """The slice that the loops cover, None where they do not cover one."""
        e, place = _registers(s), _memory(s)
        shape = self.scope.shapes[e.name]
        if not e.index or (s.width == 1 and not loops) or self._memory_dtype(place) == "bool":
            return None
        strides = {var: 0 for var in loops}
        for t in place.offset.terms:
            if t.var in loops:
                if t.stride is not None:
                    return None
                strides[t.var] += t.coef
        dims, left = [], dict(loops)
        for position, (index, extent) in enumerate(zip(e.index, shape, strict=True)):
            var = _variable(index)
            if position == len(shape) - 1 and s.width > 1:
                if index != Linear() or s.width != extent:
                    return None
                dims.append(("", s.width, 1))
            elif var in left and left[var] == extent:
                dims.append(("", left.pop(var), strides[var]))
            elif not index.variables & set(loops):
                dims.append((self.express.linear(index).text, 0, 0))
            else:
                return None
        if left:
            return None
        dims.reverse()
        full = all(not fixed for fixed, _, _ in dims)
        name = self.scope.name("register", e.name)
        offset = Linear(tuple(t for t in place.offset.terms if t.var not in loops), place.offset.const)
        kept = [(extent, stride) for fixed, extent, stride in dims if not fixed]
        return Tile(name if full else f"{name}[{', '.join(fixed or 'None' for fixed, _, _ in dims)}]", offset,
                    tuple(extent for extent, _ in kept), tuple(stride for _, stride in kept))

    def _tiled(self, s: Copy, tile: Tile) -> tuple[tuple[str, ...], str]:
        """Lines that name the view, and its name; none and the view itself where that is short."""
        self.uses.helpers.add("tile")
        place = _memory(s)
        view = self._view(place, tile.offset, s.width, tile.shape, tile.stride)
        if view in self.views:
            return (), self.views[view]
        if len(view) < SHORT:
            return (), view
        letter, name = ("t", place.buffer) if isinstance(place, Shared) else ("g", place.tensor)
        self.views[view] = self.scope.fresh(letter + camel(name))
        return (f"{self.views[view]} = {view}",), self.views[view]

    def _view(self, place: Global | Shared, offset: Linear, width: int, shape: tuple[int, ...], stride: tuple[int, ...]) -> str:
        at = self.express.linear(offset, wide=isinstance(place, Global)).text
        one = ", " if len(shape) == 1 else ""
        dims = ", ".join(map(str, shape)) + one.rstrip()
        steps = ", ".join(map(str, stride)) + one.rstrip()
        return f"tile({self._base(place)}, {at}, {width}, ({dims}), ({steps}))"

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
        if same and not once:
            return f"cute.autovec_copy({source}, {target})"
        helper = ("load" if isinstance(s.target, Elem) else "store") + ("_once" if once else "")
        if memory == "f8e5m2" and isinstance(s.source, Elem):
            helper = "store_e5m2"
        self.uses.helpers.add(helper)
        return f"{helper}({source}, {target})"

    # ---- single accesses

    def _single(self, s: Copy) -> str:
        """The access of one point of the loops."""
        e, place = _registers(s), _memory(s)
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
            narrow = memory != held
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
        sizes = [math.prod(shape[position + 1:]) for position in range(len(shape))]
        at = Linear()
        for index, size in zip(e.index, sizes, strict=True):
            at = at + index.scaled(size)
        return self._move(s, where, f"tile({name}, {self.express.linear(at).text}, 1, ({s.width},), (1,))")

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
            return f"{self.express.element(e)} = load_one({where})"
        return f"store_one({self.express.value(e).text}, {where})"

