"""Arguments of which nothing is read but, perhaps, their shape: which of their sizes follow others, and which do not matter.

No value says how the dims of such an argument belong together with other dims, so torch is asked: captured once more with all of
them free, each dim comes back as a constant (the function needs that size), as the size of another dim (`torch.ones(x.shape[0], 1)`
beside a value with the rows), or free: then a call may bring any.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sympy

from ..ir.tensor import TensorGraph
from .nodes import operands

Extents = Mapping[tuple[str, int], sympy.Expr]


def unread(graph: TensorGraph) -> tuple[str, ...]:
    """The arguments whose elements are neither read nor written, in order."""
    read = {o for n in graph.nodes for o in operands(n.op)} | {v for pair in graph.mutations for v in pair} | set(graph.outputs)
    return tuple(a.name for a in graph.arguments if a.name not in read)


def renames(free: Extents, found: Mapping[tuple[str, int], Any]) -> dict[sympy.Symbol, sympy.Expr]:
    """torch's symbols as expressions over ours, from the dims whose size is free already."""
    out: dict[sympy.Symbol, sympy.Expr] = {}
    for place, ours in free.items():
        theirs = sympy.sympify(found[place])
        if len(theirs.free_symbols) == 1:
            symbol = next(iter(theirs.free_symbols))
            if theirs.coeff(symbol) * symbol == theirs:
                out.setdefault(symbol, ours / theirs.coeff(symbol))
    return out


def tangled(names: tuple[str, ...], free: Extents, found: Mapping[tuple[str, int], Any]) -> set[tuple[str, int]]:
    """Dims of unread arguments that make up a free size together with others, all but the outermost: they are constants.

    q.shape[0] · q.shape[1] = 2 · rows says that q has rows and 2.
    """
    out: set[tuple[str, int]] = set()
    for place in free:
        symbols = sympy.sympify(found[place]).free_symbols
        inner = [p for p, size in found.items() if p[0] in names and symbols & sympy.sympify(size).free_symbols]
        out |= set(inner[1:]) if len(symbols) > 1 else set()
    return out


def extents(names: tuple[str, ...], free: Extents, found: Mapping[tuple[str, int], Any]) -> dict[tuple[str, int], sympy.Expr]:
    """The expression for each dim of the unread arguments that is no constant; a size of its own is named `argument_dim`.

    found: what torch makes of every (argument, dim), an int or a sympy expression.
    """
    known, out = renames(free, found), {}
    taken = {str(s) for e in free.values() for s in e.free_symbols} | {name for name, _ in found}
    for (name, dim), size in found.items():
        theirs = sympy.sympify(size)
        if name not in names or len(theirs.free_symbols) != 1:
            continue
        symbol = next(iter(theirs.free_symbols))
        if symbol not in known:
            own = f"{name}_{dim}"
            while own in taken:
                own += "_"
            taken.add(own)
            known[symbol] = sympy.Symbol(own, integer=True, positive=True)
        ours = theirs.subs(symbol, known[symbol])
        root = next(iter(ours.free_symbols))
        if ours.coeff(root) * root == ours and ours.coeff(root).is_Integer:
            out[name, dim] = ours
    return out
