"""Capture: a plain PyTorch function and an example of its arguments → a tensor graph, in three captures.

A static probe gives the axis classes; the second capture makes exactly the dims of the rows' class dynamic, and those that an index
alone picks from; a third, with one row, must give the same graph.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy
import torch

from ..errors import CaptureError, Loc
from ..ir.tensor import TensorGraph
from .annotations import Factors, FreeNames
from . import bind, one_row, rows, unread
from .importer import Importer
from .locate import of_function
from .trace import Like, Program, like, trace

HINT = 5  # Extent of a free dim that the example gives as 0 or 1.


@dataclass(frozen=True, slots=True)
class Free:
    """The dims whose size is known at the call only.

    extents: (argument, dim) -> expression over our symbols. indexed: dims of each argument that only an index picks from.
    """

    extents: dict[tuple[str, int], sympy.Expr]
    indexed: dict[str, tuple[int, ...]]
    rows: sympy.Symbol | None

    @property
    def symbols(self) -> list[sympy.Symbol]:
        return sorted({s for e in self.extents.values() for s in e.free_symbols}, key=str)

    def and_(self, extents: Mapping[tuple[str, int], sympy.Expr]) -> Free:
        """These and further dims."""
        return replace(self, extents={**self.extents, **extents})


def capture(
    fn: Callable[..., Any],
    example: Mapping[str, Any],
    dynamic_shapes: Any = None,
    static: Mapping[str, Any] | None = None,
    factors: Factors | None = None,
) -> TensorGraph:
    """The tensor graph of fn.

    example: argument names to tensors (of any device; their values are not looked at), containers of tensors, or constants;
    `static` gives further constants. dynamic_shapes: as torch.export takes it; None lets the use of the dims decide which are the
    rows, and any marked dim makes its whole class dynamic; FreeNames says which axes of declared shapes are dynamic. factors: what
    dims are declared as. Tensors in containers become arguments of their own (`states[1]` is `states_1`).

    Raises CaptureError for what cannot be captured and UnsupportedOp for an op that fusec does not know, with the line.
    """
    call = bind.bind(fn, example, static)
    loc = of_function(inspect.unwrap(fn))
    for name, tensor in call.tensors.items():
        bind.check_tensor(name, tensor, loc)
    examples = {n: like(t) for n, t in call.tensors.items()}
    step = Step(fn, call, examples, _name(fn), loc)
    fixed = Free({}, {}, None)
    traced = step.program(examples, fixed)
    probe = step.imported(traced, fixed, apart=True)
    check_aliases(call.tensors, probe, loc)
    if not probe.outputs and not probe.mutations:
        raise CaptureError(
            "the function returns nothing and writes to none of its arguments", loc, "return a tensor, or write in place"
        )
    by_name = dynamic_shapes is None or isinstance(dynamic_shapes, FreeNames)
    marks = dynamic_shapes if by_name else bind.flat_shapes(call, dynamic_shapes)
    free = step.with_longer(choose_free(probe, marks, examples, loc, factors), probe)
    free = step.with_unread(free, unread.unread(probe))
    if not free.extents:
        return step.imported(traced, free)
    program = step.program(_two_or_more(examples, free), free)
    graph = step.imported(program, free)
    if free.rows is None:
        return graph
    _check_one_row(step, step.imported(program, free, forwards=False), free)
    return replace(graph, rows=str(free.rows))


@dataclass(frozen=True, slots=True)
class Step:
    """A function with its bound example, ready to be captured at several sizes."""

    fn: Callable[..., Any]
    call: bind.Call
    examples: dict[str, Like]
    name: str
    loc: Loc

    def graph(self, examples: Mapping[str, Like], free: Free, forwards: bool = True) -> TensorGraph:
        return self.imported(self.program(examples, free), free, forwards)

    def imported(self, program: Program, free: Free, forwards: bool = True, apart: bool = False) -> TensorGraph:
        return Importer(program, self.name, free.extents, free.indexed, self.loc, forwards, apart).run()

    def program(self, examples: Mapping[str, Like], free: Free) -> Program:
        # torch takes every free size to be two or more; of rows that only offsets count it has to be told.
        sizes = set(free.extents.values())
        offsets_alone = free.rows is not None and free.rows not in sizes and free.rows + 1 in sizes
        dims = {s: torch.export.Dim(str(s), min=2 if s == free.rows and offsets_alone else None) for s in free.symbols}
        spec: dict[str, dict[int, Any]] = {}
        for (name, dim), extent in free.extents.items():
            symbol = _own(extent, free.rows)
            if len(extent.free_symbols) > 1:  # A size of its own for torch, which need not know that it is no less than the rows.
                spec.setdefault(name, {})[dim] = dims[symbol]
                continue
            factor = int(extent.coeff(symbol))
            more = int(extent - factor * symbol)
            size = dims[symbol] if factor == 1 else factor * dims[symbol]
            spec.setdefault(name, {})[dim] = size + more if more else size
        return trace(self.fn, self.call, examples, spec)

    def with_longer(self, free: Free, probe: TensorGraph) -> Free:
        """The free dims with those that hold more elements than there are rows, where the rows are not free without: any number
        more where only the first are read, else one."""
        found = rows.longer(rows.classes(probe), [k for k, e in free.extents.items() if e == free.rows])
        if free.rows is None or not found.first + found.offsets:
            return free
        taken = {str(s) for s in free.symbols} | set(self.examples)
        more = {(a, d): free.rows + _symbol(f"{a}_{d}_more", taken) for a, d in found.first}
        one = dict.fromkeys(found.offsets, free.rows + 1)
        return next((f for extents in ({}, more, {**one, **more}) if self._holds(f := free.and_(extents))), free.and_(one))

    def _holds(self, free: Free) -> bool:
        """Whether the function leaves these dims free."""
        try:
            self.program(_two_or_more(self.examples, free), free)
        except CaptureError:
            return False
        return True

    def with_unread(self, free: Free, names: tuple[str, ...]) -> Free:
        """The free dims with those of arguments that nothing is read of: what the function does with their shapes decides."""
        if not names:
            return free
        places = [*free.extents, *((n, d) for n in names for d in range(len(self.examples[n].shape)) if (n, d) not in free.extents)]
        found = self._sizes(free, places)
        tangled = unread.tangled(names, free.extents, found)
        if tangled:
            found = self._sizes(free, [p for p in places if p not in tangled])
        return free.and_(unread.extents(names, free.extents, found))

    def _sizes(self, free: Free, places: Sequence[tuple[str, int]]) -> dict[tuple[str, int], Any]:
        """What torch makes of every size when those at `places` may be any."""
        spec: dict[str, dict[int, Any]] = {}
        for name, dim in places:
            spec.setdefault(name, {})[dim] = torch.export.Dim.AUTO
        program = trace(self.fn, self.call, _two_or_more(self.examples, free), spec)
        return {(n, d): size for n, shape in program.shapes.items() for d, size in enumerate(shape)}


def _own(extent: sympy.Expr, rows: sympy.Symbol | None) -> sympy.Symbol:
    """The symbol of an extent that is made of one; of rows + more, `more`."""
    return next(iter(extent.free_symbols - {rows} or extent.free_symbols))


def _name(fn: Any) -> str:
    name = getattr(inspect.unwrap(fn), "__name__", type(fn).__name__)
    return name if name.isidentifier() else "step"


# ---- which dims are free ------------------------------------------------------------------------------------------------------


def choose_free(
    probe: TensorGraph, dynamic_shapes: Any, examples: Mapping[str, Like], loc: Loc, factors: Factors | None = None
) -> Free:
    """The free dims by class: those that are only picked from, and the rows (by the rule, as marked, or as named)."""
    c = rows.classes(probe)
    called = rows.called(c, factors or {})
    if dynamic_shapes is None:
        root = _rule(c, called, loc)
        wanted = [root] if root is not None else []
    elif isinstance(dynamic_shapes, FreeNames):
        named = [r for r, name in called.items() if name in dynamic_shapes.names]
        root = _main(c, named, loc)
        pools = rows.indexed_only(c, root)
        wanted = [r for r in named if r == root or r not in pools]
    else:
        wanted = _marked(c, dynamic_shapes, loc)
        root = _main(c, wanted, loc)
    picked = [r for r in rows.indexed_only(c, root) if r not in wanted]
    names = _symbols(c, root, wanted + picked, called)
    extents: dict[tuple[str, int], sympy.Expr] = {}
    if root is not None and root not in names and (ends := rows.offsets_of(c, root)):
        names[root] = _symbol("rows", {str(s) for s in names.values()} | set(examples))
        extents = dict.fromkeys(ends, names[root] + 1)
    for a in probe.arguments:
        for d in range(len(a.shape)):
            leaves = c.leaves(a.name, d)
            own = [x for x in leaves if x in names]
            if len(own) > 1:
                raise CaptureError(f"argument {a.name}: dim {d} holds two sizes that are free", loc, "pass them as two dims")
            if own:
                factor = rows._product(c.atoms.extents[x] for x in leaves if x != own[0])
                extents[a.name, d] = factor * names[own[0]]
    units = {(a, d) for a, d in _unit_pools(c, probe)}
    for a, d in sorted(units):
        extents[a, d] = _symbol(f"{a}_{d}", {str(s) for s in names.values()} | set(examples))
    indexed = {
        a.name: tuple(d for d in range(len(a.shape)) if (a.name, d) in units or any(x in picked for x in c.leaves(a.name, d)))
        for a in probe.arguments
    }
    return Free(extents, {n: d for n, d in indexed.items() if d}, names.get(root) if root is not None else None)


def _unit_pools(c: rows.Classes, probe: TensorGraph) -> list[tuple[str, int]]:
    """Dims of arguments that an index picks from and that the example gives one element."""
    return [(v, d) for v, d in c.picked if not c.dims[v][d] and v in {a.name for a in probe.arguments}]


def _symbol(name: str, taken: set[str]) -> sympy.Symbol:
    while name in taken:
        name += "_"
    return sympy.Symbol(name, integer=True, positive=True)


def _rule(c: rows.Classes, called: Mapping[int, str], loc: Loc) -> int | None:
    """The rows by how they are used; among several candidates what is declared as `rows`."""
    try:
        return rows.choose(c, loc)
    except CaptureError:
        named = [r for r, name in called.items() if name == "rows"]
        if len(named) != 1:
            raise
        return named[0]


def _symbols(c: rows.Classes, root: int | None, wanted: Sequence[int], called: Mapping[int, str]) -> dict[int, sympy.Symbol]:
    """What a class is called, else `rows` for the rows' class, `argument_dim` of its first member for any other."""
    names: dict[int, sympy.Symbol] = {}
    for r in wanted:
        members = c.members(r)
        if members:
            first = members[0]
            taken = {str(s) for s in names.values()} | {a.name for a in c.graph.arguments}
            names[r] = _symbol(called.get(r, "rows" if r == root else f"{first[0]}_{first[1]}"), taken)
    return names


def _marked(c: rows.Classes, dynamic_shapes: Mapping[str, Any], loc: Loc) -> list[int]:
    """The classes of the dims that dynamic_shapes marks, in the order of the arguments."""
    arguments = [a.name for a in c.graph.arguments]
    unknown = [n for n in dynamic_shapes if n not in arguments]
    if unknown:
        raise CaptureError(
            f"dynamic_shapes names {', '.join(map(repr, unknown))}", loc, f"the tensor arguments are {', '.join(arguments)}"
        )
    found: list[int] = []
    for name in arguments:
        dims = dynamic_shapes.get(name) or {}
        pairs = dims.items() if isinstance(dims, Mapping) else enumerate(dims)
        for d, mark in pairs:
            if mark is None or isinstance(mark, int) or mark is torch.export.Dim.STATIC:
                continue
            rank = len(c.dims[name])
            if not -rank <= d < rank:
                raise CaptureError(f"dynamic_shapes: argument {name} has no dim {d}", loc, f"it has {rank} dims")
            leaves = c.leaves(name, d % rank)
            if not leaves:
                raise CaptureError(
                    f"argument {name}: dim {d} is marked dynamic and its extent in the example is below two",
                    loc,
                    "give an example with two or more",
                )
            found.append(rows.between(c, leaves[0]))
    return list(dict.fromkeys(found))


def _main(c: rows.Classes, wanted: Sequence[int], loc: Loc) -> int | None:
    """Which marked class is the rows: the one that the rule would take, else the first."""
    if len(wanted) < 2:
        return wanted[0] if wanted else None
    pools = rows.indexed_only(c, None)
    rest = [r for r in wanted if r not in pools] or list(wanted)
    try:
        chosen = rows.choose(c, loc)
    except CaptureError:
        chosen = None
    return chosen if chosen in rest else rest[0]


# ---- sizes of the other captures ----------------------------------------------------------------------------------------------


def resized(x: Like, sizes: Mapping[int, int]) -> Like:
    """The same layout with other extents: strides that nest outside a changed dim grow with it."""
    strides = list(x.strides)
    for d, size in sizes.items():
        old, inner = x.shape[d], x.strides[d]
        if old and size > old:
            for e in range(len(strides)):
                if e != d and strides[e] >= old * inner and strides[e] > 0 and x.shape[e] > 1 and old * inner > 0:
                    strides[e] = -(-strides[e] * size // old)
    return Like(tuple(sizes.get(d, n) for d, n in enumerate(x.shape)), tuple(strides), x.dtype, x.device)


def _two_or_more(examples: Mapping[str, Like], free: Free) -> dict[str, Like]:
    """The examples with every free dim of extent 0 or 1 made larger: torch would take those for constants."""
    out = {}
    for name, x in examples.items():
        small = {d: HINT for d, n in enumerate(x.shape) if (name, d) in free.extents and n < 2}
        out[name] = resized(x, small) if small else x
    return out


def _check_one_row(step: Step, graph: TensorGraph, free: Free) -> None:
    """CaptureError where one row is another function."""
    assert free.rows is not None
    examples, at_one = {}, {k: e.subs({free.rows: 1}) for k, e in free.extents.items()}
    for name, x in step.examples.items():
        sizes = {d: int(e) for (a, d), e in at_one.items() if a == name and e.is_number}
        examples[name] = resized(x, sizes) if sizes else x
    others = Free({k: e for k, e in at_one.items() if not e.is_number}, free.indexed, None)
    try:
        one = step.graph(_two_or_more(examples, others), others, forwards=False)
    except CaptureError as error:
        raise CaptureError(
            f"with one row the function is not captured: {error.message}", error.loc or step.loc, error.hint
        ) from error
    different = one_row.first_difference(graph, one, {free.rows: sympy.Integer(1)})
    if different is not None:
        what = different if isinstance(different, str) else f"{different.source or 'a value'} {list(different.shape)}"
        loc = step.loc if isinstance(different, str) else different.loc
        raise CaptureError(
            f"with one row the function computes something else: {what} differs",
            loc,
            "let no row depend on the others, do not branch on the number of rows, and squeeze dims by number",
        )


# ---- examples that share memory -----------------------------------------------------------------------------------------------


def _span(t: torch.Tensor) -> tuple[int, int]:
    """The bytes from the first to the last element."""
    size = t.element_size()
    start = t.storage_offset() * size
    return start, start + (sum((n - 1) * s for n, s in zip(t.shape, t.stride())) + 1) * size


def check_aliases(tensors: Mapping[str, torch.Tensor], graph: TensorGraph, loc: Loc) -> None:
    """CaptureError where an argument that is written shares memory with another, or with itself."""
    from torch._subclasses.fake_tensor import FakeTensor

    written = {n for n, _ in graph.mutations}
    for name in written:
        t = tensors[name]
        if any(s == 0 and n > 1 for n, s in zip(t.shape, t.stride())):
            raise CaptureError(
                f"argument {name} is written and has a dim of stride 0", loc, "pass a tensor whose elements are distinct in memory"
            )
        for other, u in tensors.items():
            if other == name or isinstance(t, FakeTensor) or not t.numel() or not u.numel() or t.is_meta or u.is_meta:
                continue
            if t.untyped_storage().data_ptr() == u.untyped_storage().data_ptr() and overlap(t, u):
                raise CaptureError(
                    f"arguments {name} and {other} share memory, and {name} is written",
                    loc,
                    "pass tensors that do not overlap: the order of reads and writes would decide the result",
                )


def overlap(t: torch.Tensor, u: torch.Tensor) -> bool:
    """Whether two views of one storage may share an element: exact for layouts of one common page, else by their spans."""
    a, b = _span(t), _span(u)
    if a[1] <= b[0] or b[1] <= a[0]:
        return False
    page_a, page_b = (max((s * x.element_size() for n, s in zip(x.shape, x.stride()) if n > 1), default=0) for x in (t, u))
    if page_a and page_a == page_b:
        return not _apart(t, u, page_a)
    return True


def _apart(t: torch.Tensor, u: torch.Tensor, page: int) -> bool:
    """Both are rows of equal pages, and within a page their bytes do not meet."""
    inside = []
    for x in (t, u):
        size = x.element_size()
        start, length = (x.storage_offset() * size) % page, 0
        rest = [(n, s * size) for n, s in zip(x.shape, x.stride()) if n > 1 and s * size != page]
        length = sum((n - 1) * s for n, s in rest) + size
        if start + length > page:
            return False
        inside.append((start, start + length))
    return inside[0][1] <= inside[1][0] or inside[1][1] <= inside[0][0]
