"""Atoms: the pieces that dimensions are made of, and the links along which pieces of one dim follow those of another.

An atom has an extent and may be split in two (outer, inner); united atoms are one. A link says that the coordinate along `whole`
is the coordinate along `part` plus an offset (or the offset alone): equal extents make a rename, a smaller part a range. Links copy
the split structure both ways and never unite. Everything here is local to the axes pass, which throws it away when it is done.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd
from typing import Union

import sympy

Size = Union[int, sympy.Expr]
Sub = tuple[int, Union[int, None], int]
"""(leaf of the whole, leaf of the part or None, offset)."""


class DoesNotNest(Exception):
    """Two ways of cutting one dim that have no common refinement along which coordinates stay single digits."""


def quotient(a: Size, b: Size) -> Size | None:
    """a / b where that is exact for every value of the symbols, else None."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if a % b == 0 else None
    ratio = sympy.cancel(sympy.sympify(a) / sympy.sympify(b))
    coefficient, rest = ratio.as_coeff_Mul()
    if not coefficient.is_Integer or not sympy.denom(sympy.together(rest)).is_number:
        return None
    return int(ratio) if ratio.is_Integer else ratio


def times(a: Size, b: Size) -> Size:
    """a * b, as an integer where it is one."""
    product = sympy.sympify(a) * sympy.sympify(b)
    return int(product) if product.is_Integer else product


def common(a: Size, b: Size) -> int:
    """A common divisor of two extents as far as integers show it."""
    def number(x: Size) -> int:
        return x if isinstance(x, int) else int(sympy.sympify(x).as_coeff_Mul()[0])
    return gcd(number(a), number(b))


@dataclass(slots=True)
class Link:
    """whole = part + offset. `lenient`: cuts that do not nest are no error (any sum of digits is an index of an argument)."""

    whole: int
    part: int | None
    offset: int = 0
    lenient: bool = False
    subs: list[Sub] = field(default_factory=list)
    broken: bool = False


@dataclass(slots=True)
class Atoms:
    """Union-find over atoms with splits. All lists are indexed by atom."""

    extents: list[Size] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    halves: dict[int, tuple[int, int]] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)

    def new(self, extent: Size) -> int:
        self.extents.append(extent)
        self.parents.append(len(self.parents))
        return len(self.parents) - 1

    def find(self, atom: int) -> int:
        while self.parents[atom] != atom:
            atom = self.parents[atom]
        return atom

    def extent(self, atom: int) -> Size:
        return self.extents[self.find(atom)]

    def leaves(self, atom: int | None) -> list[int]:
        """The unsplit atoms an atom consists of, from the outermost to the innermost; [] for None (a unit dim)."""
        if atom is None:
            return []
        root = self.find(atom)
        if root not in self.halves:
            return [root]
        outer, inner = self.halves[root]
        return self.leaves(outer) + self.leaves(inner)

    def split(self, leaf: int, inner: Size) -> None:
        """leaf -> (leaf / inner, inner), seen by everything that has the leaf."""
        root = self.find(leaf)
        outer = quotient(self.extents[root], inner)
        assert root not in self.halves and outer is not None and outer != 1 and inner != 1
        self.halves[root] = (self.new(outer), self.new(inner))

    def unite(self, a: int, b: int) -> None:
        """Two leaves of equal extent become one."""
        a, b = sorted((self.find(a), self.find(b)))
        if a != b:
            assert a not in self.halves and b not in self.halves
            self.parents[b] = a

    def unify(self, xs: list[int], ys: list[int]) -> None:
        """The same row-major elements under two shapes: common pieces from the innermost outwards, united.

        Raises DoesNotNest where the two shapes have no common refinement.
        """
        while True:
            left = [leaf for x in xs for leaf in self.leaves(x)]
            right = [leaf for y in ys for leaf in self.leaves(y)]
            while left and right and self.extent(left[-1]) == self.extent(right[-1]):
                self.unite(left.pop(), right.pop())
            if not left and not right:
                return
            if not left or not right:
                raise DoesNotNest
            self._refine(left[-1], right[-1])

    def _refine(self, a: int, b: int) -> None:
        """Split one of two leaves of unequal extent, or both, so that their inner pieces agree."""
        if (q := quotient(self.extent(a), self.extent(b))) is not None and q != 1:
            self.split(a, self.extent(b))
        elif (q := quotient(self.extent(b), self.extent(a))) is not None and q != 1:
            self.split(b, self.extent(a))
        elif (g := common(self.extent(a), self.extent(b))) > 1:
            for leaf in (a, b):
                if self.extent(leaf) != g:
                    self.split(leaf, g)
        else:
            raise DoesNotNest

    def settle(self) -> list[Link]:
        """Refine all links to a fixpoint; returns those that broke and are not lenient.

        A lenient link cuts nothing unless it and all that its cuts reach nest: a sum of digits is an index as well.
        """
        strict, refused = [k for k in self.links if not k.lenient], set[int]()
        while True:
            before = len(self.parents)
            if not self._nest(strict):
                return [link for link in strict if link.broken]
            for i, link in enumerate(self.links):
                if link.lenient and i not in refused and not self._try(link, strict):
                    refused.add(i)
            if len(self.parents) == before:
                return []

    def _nest(self, links: list[Link]) -> bool:
        """Refine these links to a fixpoint; whether all nest."""
        changed = True
        while changed:
            before = len(self.parents)
            for link in links:
                self._settle_one(link)
            changed = len(self.parents) != before
        return not any(link.broken for link in links)

    def _try(self, link: Link, strict: list[Link]) -> bool:
        """Refine a lenient link, unless its cuts come to nothing or break another: then nothing is cut and the link is broken."""
        saved = list(self.extents), list(self.parents), dict(self.halves)
        self._settle_one(link)
        cut = len(self.parents) != len(saved[1])
        if not link.broken and (not cut or self._nest(strict)):
            return True
        if cut:
            self.extents, self.parents, self.halves = saved
            self._nest(strict)
        link.subs, link.broken = [], True
        return False

    def _settle_one(self, link: Link) -> None:
        """Match the leaves of both sides of a link, splitting where one side is finer, until they correspond one to one."""
        link.broken = False
        while True:
            before = len(self.parents)
            try:
                link.subs = self._match(link)
            except DoesNotNest:
                link.subs, link.broken = [], True
                return
            if len(self.parents) == before:
                return

    def _match(self, link: Link) -> list[Sub]:
        """The correspondence of leaves from the innermost outwards; splits one leaf and stops where the cuts differ."""
        whole, part, offset = self.leaves(link.whole), self.leaves(link.part), link.offset
        subs: list[Sub] = []
        while part:
            s, o = whole[-1], part[-1]
            if len(whole) == 1 and len(part) == 1:
                return [(s, o, offset)] + subs
            if self.extent(s) == self.extent(o) and self._divides(self.extent(s), offset):
                subs.insert(0, (s, o, 0))
                offset = 0 if offset == 0 else offset // int(self.extent(s))
                whole, part = whole[:-1], part[:-1]
                continue
            if len(part) == 1 and self._inside(s, o, offset):
                size = int(self.extent(s))
                subs.insert(0, (s, o, offset % size))
                whole, part, offset = whole[:-1], [], offset // size
                continue
            self._split_apart(whole, part, offset)
            return []
        return self._digits(whole, offset) + subs

    @staticmethod
    def _divides(extent: Size, offset: int) -> bool:
        return offset == 0 or (isinstance(extent, int) and offset % extent == 0)

    def _inside(self, s: int, o: int, offset: int) -> bool:
        """Whether the whole range of `o` lies in one block of `s`."""
        size, length = self.extent(s), self.extent(o)
        return isinstance(size, int) and isinstance(length, int) and offset // size == (offset + length - 1) // size

    def _split_apart(self, whole: list[int], part: list[int], offset: int) -> None:
        """Split the innermost leaf of one side (or of both) where the other is finer."""
        s, o = whole[-1], part[-1]
        es, eo = self.extent(s), self.extent(o)
        if quotient(es, eo) not in (None, 1) and self._divides(eo, offset) and len(part) > 1:
            self.split(s, eo)
        elif quotient(eo, es) not in (None, 1) and self._divides(es, offset) and len(whole) > 1:
            self.split(o, es)
        else:
            g = gcd(common(es, eo), offset)
            if g <= 1:
                raise DoesNotNest
            for leaf in (s, o):
                if self.extent(leaf) != g:
                    self.split(leaf, g)

    def _digits(self, whole: list[int], number: int) -> list[Sub]:
        """A constant coordinate as digits along leaves."""
        subs: list[Sub] = []
        for leaf in reversed(whole):
            extent = self.extent(leaf)
            low = number % extent if isinstance(extent, int) else number
            subs.insert(0, (leaf, None, low))
            number = (number - low) // extent if isinstance(extent, int) else 0
        return subs

    def copy(self) -> "Atoms":
        """An independent copy, to try a split on."""
        links = [Link(k.whole, k.part, k.offset, k.lenient, list(k.subs), k.broken) for k in self.links]
        return Atoms(list(self.extents), list(self.parents), dict(self.halves), links)
