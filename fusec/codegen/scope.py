"""What rendering knows about the names of a KernelSpec: the identifier of each in the emitted file, what it holds, its range."""
from __future__ import annotations

import builtins
import itertools
import keyword
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..errors import InternalError
from ..ir.dtype import register
from ..ir.kernel import (
    Apply, Assign, Compute, Coordinate, Copy, Declare, Digit, Elem, KernelSpec, Let, Linear, Repeat, Round, Statement, TensorSize,
    Value, walk)
from ..ir.scalar import COMPOSITES, Lit
from .device_library import library
from .spell import ALWAYS_FLOAT, BOOL, FLOAT, INTEGER, TYPES

BLOCK = ("block_x", "block_y", "block_z")
RESERVED = frozenset({"THREADS", "SMEM_BYTES", "MIN_BLOCKS", "CARVEOUT", "ONCE", "ONCE_BELOW", "CacheEvictionPriority", "cutlass",
                      "cute", "stream", "launch", "base", "blocks", "SmemAllocator", "self", "_"}
                     ) | frozenset(TYPES.values())
"""Names that emitted files use on their own account."""
LIMIT = 2**31
Range = tuple[int, int]


class Namer:
    """Hands out identifiers, each once, in the order asked."""

    def __init__(self) -> None:
        words = set(keyword.kwlist) | set(dir(builtins)) | set(library()) | set(COMPOSITES)
        self.used = words | RESERVED

    def __call__(self, wanted: str) -> str:
        name = re.sub(r"\W", "_", wanted).lstrip("0123456789") or "x"
        candidate, number = name, 2
        while candidate in self.used:
            candidate, number = f"{name}_{number}", number + 1
        self.used.add(candidate)
        return candidate


@dataclass(frozen=True, slots=True)
class Scope:
    """The names of one kernel.

    identifiers: (category, name of the spec) -> identifier; categories are int, register, shared, global, tensor. kinds: what a
    register or an integer holds: f32, i32, i64, bool, or py for a loop variable; of memory its element type. dtypes, shapes: of
    declared registers. bounds: smallest value of an integer and the one past its largest. fresh: hands out an unused identifier.
    """

    identifiers: dict[tuple[str, str], str] = field(default_factory=dict)
    kinds: dict[tuple[str, str], str] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    bounds: dict[str, Range] = field(default_factory=dict)
    fresh: Namer = field(default_factory=lambda: Namer())
    aliases: frozenset[str] = frozenset()
    warp: str | None = None

    def name(self, category: str, spec_name: str) -> str:
        """The identifier; InternalError for a name that the spec never introduces."""
        found = self.identifiers.get((category, spec_name))
        if found is None:
            raise InternalError(f"{category} {spec_name} is used and never introduced")
        return found

    def loop_names(self, count: int) -> tuple[str, ...]:
        """Variables for `count` nested loops of their own: i, or i0, i1, …; none is called like a value that such a loop reads."""
        held = {name for key, name in self.identifiers.items() if self.kinds.get(key) != "py"}
        names = [f"i{n}" for n in range(count)] if count > 1 else ["i"] * count
        return tuple(next(name for k in itertools.count() if (name := n + "_" * k) not in held) for n in names)

    def range(self, value: Linear) -> Range | None:
        """The bounds of an expression; None where a variable has none."""
        low = high = value.const
        for t in value.terms:
            bounds = self.bounds.get(t.var)
            if bounds is None or t.stride is not None:
                return None
            ends = (t.coef * bounds[0], t.coef * (bounds[1] - 1))
            low, high = low + min(ends), high + max(ends)
        return low, high + 1


def camel(name: str) -> str:
    """`k_own` → `KOwn`: what follows the letter of the memory a tensor lies in."""
    return "".join(part[:1].upper() + part[1:] for part in re.split(r"\W+|_+", name) if part) or "X"


def value_kind(scope: Scope, value: Value) -> str:
    """f32, i32, i64 or bool; float or int for a bare literal."""
    if isinstance(value, Lit):
        return "bool" if isinstance(value.value, bool) else "float" if isinstance(value.value, float) else "int"
    if isinstance(value, Elem):
        held = scope.kinds.get(("register", value.name)) or scope.kinds.get(("int", value.name))
        if held is None:
            raise InternalError(f"register {value.name} is used and never introduced")
        return "i32" if held == "py" else held
    if isinstance(value, Round):
        return register(value.dtype)
    if isinstance(value, (Coordinate, TensorSize)):
        return "i64" if isinstance(value, TensorSize) else "i32"
    return _apply_kind(scope, value)


def operand_kind(fn: str, kinds: list[str]) -> str:
    """What the operands of a primitive are converted to."""
    if fn in ALWAYS_FLOAT or "f32" in kinds or "float" in kinds:
        return "f32"
    if "i64" in kinds:
        return "i64"
    if all(k == "bool" for k in kinds):
        return "bool" if fn in BOOL else "i32"
    return "i32"


def _apply_kind(scope: Scope, value: Apply) -> str:
    kinds = [value_kind(scope, a) for a in value.args]
    if value.fn in COMPOSITES:
        return composite_kind(value.fn)
    if value.fn == "select":
        return operand_kind("select", kinds[1:])
    kind = operand_kind(value.fn, kinds)
    table = {"f32": FLOAT, "bool": BOOL}.get(kind, INTEGER)
    if value.fn not in table:
        raise InternalError(f"no spelling of {value.fn} on {kind}")
    return kind if table[value.fn].kind == "same" else table[value.fn].kind


def composite_kind(fn: str) -> str:
    """What a composite of fp32 arguments gives."""
    scope = Scope()
    body = COMPOSITES[fn].body
    while not isinstance(body, Lit):
        name = getattr(body, "fn", None)
        if name is None:
            return "f32"
        if name == "select":
            body = body.args[1]  # type: ignore[union-attr]
            continue
        if name in COMPOSITES:
            return composite_kind(name)
        if name not in FLOAT:
            return "bool" if name in BOOL else "i32"
        return "f32" if FLOAT[name].kind == "same" else FLOAT[name].kind
    return register("f32") if isinstance(body.value, float) else value_kind(scope, body)


def _introduce(scope: Scope, namer: Namer, s: Statement) -> None:
    if isinstance(s, Let):
        if ("int", s.name) not in scope.identifiers:
            scope.identifiers["int", s.name] = namer(s.name)
        wide = isinstance(s.value, Elem) or (isinstance(s.value, Linear) and _is_wide(scope, s.value))
        scope.kinds["int", s.name] = "i64" if wide else "i32"
        bounds = _let_range(scope, s)
        if bounds is not None:
            scope.bounds[s.name] = bounds
    elif isinstance(s, Declare):
        scope.identifiers["register", s.name] = namer("r" + camel(s.name) if s.shape else s.name)
        scope.kinds["register", s.name], scope.dtypes[s.name] = register(s.dtype), s.dtype
        scope.shapes[s.name] = s.shape
    elif isinstance(s, (Copy, Compute)):
        for loop in s.loops:
            _loop(scope, namer, loop.var, loop.extent)
        for a in s.body if isinstance(s, Compute) else ():
            _local(scope, namer, a)
    elif isinstance(s, Repeat):
        scope.identifiers.setdefault(("int", s.var), namer(s.var))
        scope.kinds["int", s.var] = "i32"
        if isinstance(s.count, Lit):
            scope.bounds[s.var] = 0, int(s.count.value)


def _let_range(scope: Scope, s: Let) -> Range | None:
    if isinstance(s.value, Digit):
        outer = scope.bounds.get(s.value.source)
        if s.value.extent:
            return 0, s.value.extent
        return None if outer is None else (outer[0] // s.value.step, (outer[1] - 1) // s.value.step + 1)
    return scope.range(s.value) if isinstance(s.value, Linear) else None


def _is_wide(scope: Scope, value: Linear) -> bool:
    return any(t.stride is not None or scope.kinds.get(("int", t.var)) == "i64" for t in value.terms)


def _loop(scope: Scope, namer: Namer, var: str, extent: int) -> None:
    if ("int", var) not in scope.identifiers:
        scope.identifiers["int", var] = namer(var)
    scope.kinds["int", var] = "py"
    scope.bounds[var] = 0, max(extent, scope.bounds.get(var, (0, 0))[1])


def _local(scope: Scope, namer: Namer, a: Assign) -> None:
    """An assigned scalar without a Declare."""
    if ("register", a.target.name) in scope.identifiers:
        return
    if a.target.index:
        raise InternalError(f"fragment {a.target.name} is assigned and never declared")
    kind = value_kind(scope, a.value)
    scope.identifiers["register", a.target.name] = namer(a.target.name)
    scope.kinds["register", a.target.name] = {"float": "f32", "int": "i32"}.get(kind, kind)
    scope.shapes[a.target.name] = ()


def _aliases(spec: KernelSpec) -> dict[str, str]:
    """Top-level Lets that only name a block index or the warp: the index gets their name. index -> name."""
    found: dict[str, str] = {}
    for s in spec.body:
        if isinstance(s, Let) and isinstance(s.value, Linear) and not s.value.const and len(s.value.terms) == 1:
            term = s.value.terms[0]
            if term.var in BLOCK and term.coef == 1 and term.stride is None:
                found.setdefault(term.var, s.name)
        elif isinstance(s, Let) and s.value == Digit("thread", 32, 0):
            found.setdefault("warp", s.name)
    return found


def grid_bound(spec: KernelSpec, dim: int) -> int | None:
    """Blocks along a grid dim where it is static."""
    factors = spec.launch.grid[dim]
    return math.prod(f for f in factors if isinstance(f, int)) if all(isinstance(f, int) for f in factors) else None


def warp_digits(body: tuple[Statement, ...]) -> Iterator[Let]:
    """Lets outside of guards and loops that are a digit of the warp's number."""
    for s in body:
        if isinstance(s, Let) and isinstance(s.value, Digit) and s.value.source == "thread" and s.value.step >= 32:
            yield s


def analyse(spec: KernelSpec) -> Scope:
    """The scope of a kernel. InternalError where the spec uses a name that it never introduces."""
    namer, alias = Namer(), _aliases(spec)
    scope = Scope(fresh=namer)
    scope.identifiers["int", "thread"] = namer("thread")
    for p in spec.parameters:
        scope.identifiers["tensor", p.name] = namer(p.name)
    scope.kinds["int", "thread"], scope.bounds["thread"] = "i32", (0, spec.launch.threads)
    for dim, var in enumerate(BLOCK):
        name = namer(alias.get(var, var))
        for known in (var, alias.get(var, var)):
            scope.identifiers["int", known], scope.kinds["int", known] = name, "i32"
            limit = grid_bound(spec, dim)
            if limit is not None:
                scope.bounds[known] = 0, limit
    if any(True for _ in warp_digits(spec.body)):
        scope.identifiers["int", alias.get("warp", "warp ")] = namer(alias.get("warp", "warp"))
    for b in spec.smem.buffers:
        scope.identifiers["shared", b.name] = namer("s" + camel(b.name.removesuffix("_shared")))
        scope.kinds["shared", b.name] = b.dtype
    for p in spec.parameters:
        scope.identifiers["global", p.name] = namer("m" + camel(p.name))
        scope.kinds["global", p.name] = p.dtype
    for s in walk(spec.body):
        _introduce(scope, namer, s)
    warp = scope.identifiers.get(("int", alias.get("warp", "warp ")))
    return Scope(scope.identifiers, scope.kinds, scope.dtypes, scope.shapes, scope.bounds, namer, frozenset(alias.values()), warp)

