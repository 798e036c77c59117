"""KernelSpec → source text of one CuTe-DSL file. Text is decided here, over the spec; templates only place the pieces."""
from __future__ import annotations

import functools
import textwrap
from collections.abc import Iterator
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ..errors import InternalError
from ..ir.dtype import NARROW
from ..ir.kernel import (
    Assign, Barrier, Compute, Copy, Declare, Digit, Elem, Guard, KernelSpec, LaneReduce, Let, Origin, Repeat, Statement)
from ..ir.scalar import Lit
from ..ir.sizes import factors, plus
from ..target import parse
from .compose import composite_functions
from .copies import ONCE, Copies
from .device_library import closure
from .express import Expressions, Uses, conjunction, number
from .layout_text import WIDTH, block, comment, wrap
from .regroup import regroup
from .scope import BLOCK, analyse
from .spell import LANE_FOLDS

ALIGNMENT = 128
"""Bytes that the planned shared memory starts at a multiple of."""


BARRIERS = {
    "block": ("cute.arch.sync_threads()",),
    "cluster": ("cute.arch.cluster_arrive()", "cute.arch.cluster_wait()"),
    "arrive": ("cute.arch.cluster_arrive_relaxed()",),
    "wait": ("cute.arch.cluster_wait()",),
}
"""The calls of a barrier by its scope."""


@functools.cache
def environment() -> Environment:
    """The templates."""
    return Environment(loader=PackageLoader("fusec.codegen", "templates"), undefined=StrictUndefined, trim_blocks=True,
                       lstrip_blocks=True, keep_trailing_newline=False, autoescape=False)


def _fill(template: str, **data: Any) -> str:
    return environment().get_template(template).render(**data).rstrip("\n")


def render(spec: KernelSpec) -> str:
    """The emitted file of a kernel: stands alone, imports cutlass only, its entry is `launch(tensors…, stream)`.

    Equal specs give equal bytes. Raises InternalError for a spec that uses what it does not introduce.
    """
    return _File(spec).text()


def late_scalars(body: tuple[Statement, ...]) -> frozenset[str]:
    """Declared scalars whose first assignment lies under a condition or in a loop that their Declare is not in."""
    declared: dict[str, tuple[int, ...]] = {}
    first: dict[str, tuple[int, ...]] = {}
    _assignments(body, (), declared, first)
    return frozenset(name for name, path in declared.items() if first.get(name, path) != path)


def _assignments(body: tuple[Statement, ...], path: tuple[int, ...], declared: dict[str, tuple[int, ...]],
                 first: dict[str, tuple[int, ...]]) -> None:
    for number_, s in enumerate(body):
        inner = (*path, number_)
        if isinstance(s, Declare):
            declared[s.name] = path
        elif isinstance(s, Compute):
            for a in s.body:
                first.setdefault(a.target.name, inner if s.when else path)
        elif isinstance(s, Copy) and isinstance(s.target, Elem):
            first.setdefault(s.target.name, inner if s.when else path)
        elif isinstance(s, (Guard, Repeat)):
            _assignments(s.body, inner, declared, first)


class _File:
    """Renders one kernel: statements first, then what they turned out to need."""

    def __init__(self, spec: KernelSpec) -> None:
        self.spec, self.scope, self.uses = spec, analyse(spec), Uses()
        self.body = regroup(spec.body)
        self.express = Expressions(self.scope, self.uses)
        self.copies = Copies(self.express)
        self.late = late_scalars(self.body)
        self.said: tuple[Origin, ...] = ()

    # ---- the file

    def text(self) -> str:
        """The whole file, ending with a newline."""
        statements = self._sequence(self.body, 1)
        prologue = self._prologue()
        composites = [_fill("function.j2", name=f.name, parameters=f.parameters, doc=_doc(f.doc), body=_body(f.body))
                      for f in composite_functions(self.uses)]
        device = closure(self.uses.helpers)
        functions = [f.text for f in device] + composites
        tensors = [f"{self.scope.name('tensor', p.name)}: cute.Tensor" for p in self.spec.parameters]
        once = [f"{ONCE}: cutlass.Constexpr"] if self.switched else []
        launch = self._launch()
        imports = self._imports({i for f in device for i in f.imports}, [*functions, *statements, *launch])
        return _fill("file.py.j2", title=_doc(self.spec.title), summary=self._summary(), imports=imports, functions=functions,
                     constants=self._constants(), kernel_head=_definition(self.kernel, tensors + once), prologue=prologue,
                     statements=statements, launch_head=_definition("launch", [*tensors, "stream"]), launch_body=launch,
                     epilogue=self._epilogue()) + "\n"

    @property
    def switched(self) -> bool:
        """Whether the size of the grid decides if memory that passes once is marked so."""
        return ONCE in self.uses.names and self.spec.launch.once_below > 0

    @property
    def kernel(self) -> str:
        """The name of the kernel function."""
        return f"{self.spec.name}_kernel"

    def _summary(self) -> list[str]:
        """The head of the file: what the spec says, or grid, block and shared memory where it says nothing."""
        if self.spec.summary:
            return [w for line in self.spec.summary for w in textwrap.wrap(line, WIDTH, subsequent_indent="    ")]
        grid = " x ".join("·".join(str(f) for f in factors) for factors in self.spec.launch.grid if factors) or "1"
        lines = [f"Grid {grid}, {self.spec.launch.threads} threads a block."]
        if self.spec.smem.buffers:
            lines.append(f"Shared memory, {self.spec.smem.total} bytes:")
            lines += [f"    {b.offset:>6}  {self.scope.name('shared', b.name)}: {b.count} x {b.dtype}"
                      for b in self.spec.smem.buffers]
        return lines

    def _constants(self) -> list[str]:
        lines = [f"THREADS = {self.spec.launch.threads}"]
        if self.spec.launch.cluster > 1:
            lines.append(f"CLUSTER = {self.spec.launch.cluster}  # blocks")
        if ONCE in self.uses.names:
            lines.append(f"ONCE_BELOW = {self.spec.launch.once_below}  # blocks: a larger grid marks nothing for early eviction"
                         if self.switched else f"{ONCE} = CacheEvictionPriority.EVICT_FIRST  # of what is not needed again")
        if self.spec.smem.total:
            lines.append(f"SMEM_BYTES = {self.spec.smem.total}")
        if self.spec.launch.min_blocks > 1:
            share = parse(self.spec.arch).carveout(self.spec.launch.min_blocks, self.spec.smem.total)
            lines += [f"MIN_BLOCKS = {self.spec.launch.min_blocks}", f"CARVEOUT = {share}  # per cent of the unified memory"]
        return lines

    def _imports(self, device: set[tuple[str, str]], pieces: list[str]) -> list[str]:
        found = device | {("cutlass", t) for t in self.uses.types}
        if self.spec.smem.total:
            found.add(("cutlass.memory", "SmemAllocator"))
        if ONCE in self.uses.names:  # Also where no function that is copied names it.
            found.add(("cutlass.cute.nvgpu", "CacheEvictionPriority"))
        lines = ["import cutlass"] if any("cutlass." in p for p in pieces) else []
        lines.append("import cutlass.cute as cute")
        for module in sorted({m for m, _ in found}):
            lines += wrap(f"from {module} import {', '.join(sorted(n for m, n in found if m == module))}")
        return lines

    def _prologue(self) -> list[str]:
        """Indices, shared memory by the plan, flat views: what the statements use."""
        used = self.uses.names
        lines = ["thread, _, _ = cute.arch.thread_idx()"]
        blocks = [self.scope.name("int", b) for b in BLOCK]
        if used & set(blocks):
            lines.append(f"{', '.join(b if b in used else '_' for b in blocks)} = cute.arch.block_idx()")
        if self.scope.warp in used:
            lines.append(f"{self.scope.warp} = cute.arch.warp_idx()")
        if self.spec.smem.total:
            self.uses.helpers.add("shared")
            lines.append(f"base = SmemAllocator().allocate(SMEM_BYTES, byte_alignment={ALIGNMENT})")
            pieces = [(self.scope.name("shared", b.name), f"shared(base, {b.offset}, {self.uses.type(b.dtype)}, {b.count})")
                      for b in self.spec.smem.buffers]
            lines += _together(pieces, 2, WIDTH - 4)
        views = [(self.scope.name("global", p.name), self.scope.name("tensor", p.name)) for p in self.spec.parameters]
        flat = [(view, f"flat({tensor})") for view, tensor in views if view in used]
        return lines + _together(flat, 4, WIDTH - 4)

    def _size(self, factor: int | str) -> str:
        if isinstance(factor, int):
            return str(factor)
        for p in self.spec.parameters:
            if factor in p.shape:
                return f"{self.scope.name('tensor', p.name)}.shape[{p.shape.index(factor)}]"
        for p in self.spec.parameters:
            for dim, extent in enumerate(p.shape):
                split = factors(extent)
                if split is not None and split[1] == (factor,):
                    return f"({self.scope.name('tensor', p.name)}.shape[{dim}] // {split[0]})"
                if (made := plus(extent)) is not None and made[0] == factor:
                    return f"({self.scope.name('tensor', p.name)}.shape[{dim}] - {made[1]})"
        raise InternalError(f"grid size {factor} is not a size of any parameter")

    def _launch(self) -> list[str]:
        grid = [" * ".join(self._size(f) for f in factors) or "1" for factors in self.spec.launch.grid]
        if not self.switched:
            return self._call("", ", ".join(grid))
        several = [g for g in grid if g != "1"]
        lines = [f"blocks = {' * '.join(several) or '1'}", "if blocks < ONCE_BELOW:"]
        if len(several) == 1:
            grid = [g if g == "1" else "blocks" for g in grid]
        first = self._call(", CacheEvictionPriority.EVICT_FIRST", ", ".join(grid))
        last = self._call(", CacheEvictionPriority.EVICT_NORMAL", ", ".join(grid))
        return [*lines, *(f"    {line}" for line in first), "else:", *(f"    {line}" for line in last)]

    def _call(self, once: str, grid: str) -> list[str]:
        tensors = ", ".join(self.scope.name("tensor", p.name) for p in self.spec.parameters) + once
        call = f"{self.kernel}({tensors}).launch("
        calls = [call] if len(call) <= WIDTH - 4 else [f"{self.kernel}(", *textwrap.wrap(
            f"{tensors},", WIDTH - 8, initial_indent="    ", subsequent_indent="    "), ").launch("]
        more = ", smem=SMEM_BYTES" if self.spec.smem.total else ""
        if self.spec.launch.min_blocks > 1:
            more += ", min_blocks_per_mp=MIN_BLOCKS, preferred_smem_carveout=CARVEOUT"
        cluster = ", cluster=(CLUSTER, 1, 1)" if self.spec.launch.cluster > 1 else ""
        last = f"grid=({grid}), block=(THREADS, 1, 1){cluster}{more}, stream=stream)"
        return [*calls, *textwrap.wrap(last, WIDTH - 8, initial_indent="    ", subsequent_indent="    ")]

    def _epilogue(self) -> str:
        return f'{self.kernel}.set_name_prefix("fusec_{self.spec.name}", remove_cutlass_symbol=True)'

    # ---- statements

    def _sequence(self, body: tuple[Statement, ...], depth: int) -> list[str]:
        """Statements in order, with an empty line before each that opens with a comment and after each barrier."""
        lines: list[str] = []
        after_barrier = False
        for s, text in self._texts(body, depth):
            if text:
                apart = lines and depth == 1 and (after_barrier or text.lstrip().startswith("#"))
                lines += ["", text] if apart else [text]
                after_barrier = isinstance(s, Barrier)
        return lines

    def _texts(self, body: tuple[Statement, ...], depth: int) -> Iterator[tuple[Statement, str]]:
        """Each statement with its text; what is declared one after the other stands together, fragments before scalars."""
        fragments: list[Declare] = []
        scalars: list[str] = []
        for s in (*body, None):
            if isinstance(s, Declare):
                fragments += [s] if s.shape else []
                scalars += [found] if not s.shape and (found := self._scalar(s)) else []
                continue
            for text in [*self._fragments(fragments, depth), *([self._on_one_line(scalars, 4, depth)] if scalars else [])]:
                yield Declare("", (), ""), text
            fragments, scalars = [], []
            if s is not None:
                yield s, self.statement(s, depth)

    def _on_one_line(self, assignments: list[str], most: int, depth: int) -> str:
        """Assignments as tuples of at most so many."""
        pairs = [(name, value) for name, _, value in (a.partition(" = ") for a in assignments)]
        return self._nested("declare.j2", [], (), tuple(_together(pairs, most, WIDTH - 4 * depth)), depth)

    def _fragments(self, declared: list[Declare], depth: int) -> Iterator[str]:
        """Fragments two to a line, then what they are filled with."""
        if declared:
            yield self._on_one_line([self._declare(s) for s in declared], 2, depth)
        filled = [(self.scope.name("register", s.name), s.init) for s in declared if s.init is not None]
        if filled:
            lines = tuple(f"{name}.fill({number(init, self.uses).text})" for name, init in filled)
            yield self._nested("declare.j2", [], (), lines, depth)

    def statement(self, s: Statement, depth: int) -> str:
        """The text of a statement, indented; '' for one that needs none."""
        if isinstance(s, Let):
            return self._let(s, depth)
        if isinstance(s, Declare):
            return "\n".join(self._fragments([s], depth))
        if isinstance(s, Copy):
            found = self.copies.lines(s)
            return self._nested("copy.j2", self._comments((s.origin,)), found.heads, found.body, depth, found.before)
        if isinstance(s, Compute):
            return self._compute(s, depth)
        if isinstance(s, LaneReduce):
            return self._lane_reduce(s, depth)
        if isinstance(s, Barrier):
            fits = sum(map(len, s.reasons)) + 2 * len(s.reasons) + 40 < WIDTH
            *before, call = BARRIERS[s.scope]
            text = _fill("barrier.j2", call=call, reasons="; ".join(s.reasons), beside=bool(fits and s.reasons))
            return "\n".join(block([*([] if fits else comment("; ".join(s.reasons))), *before, text], depth))
        if isinstance(s, Guard):
            head = wrap(f"if {conjunction(self.express, s.when).text}:", WIDTH - 4 * depth)
            return self._compound("guard.j2", head, s.body, depth)
        count = self.express.value(s.count).text
        head = [f"for {self.scope.name('int', s.var)} in cutlass.range({count}, unroll=1):"]
        return self._compound("repeat.j2", head, s.body, depth)

    def _compound(self, template: str, head: list[str], body: tuple[Statement, ...], depth: int) -> str:
        known = dict(self.copies.views)
        inner = self._sequence(body, depth + 1) or block(["pass"], depth + 1)
        self.copies.views = known  # What was named inside is not seen outside.
        return _fill(template, head=block(head, depth), body=inner)

    def _comments(self, origins: tuple[Origin, ...]) -> list[str]:
        """The comment of a statement with these origins; what has just been said is not said again."""
        new = tuple(o for o in dict.fromkeys(origins) if o != Origin())
        if not new or new == self.said:
            return []
        self.said = new
        return comment("; ".join(": ".join(t for t in (", ".join(o.lines), o.note) if t) for o in new))

    def _nested(self, template: str, comments: list[str], heads: tuple[str, ...], body: tuple[str, ...], depth: int,
                before: tuple[str, ...] = ()) -> str:
        """Comments, lines before the headers, headers each one deeper than the last, the body under all of them."""
        lines = [w for line in before for w in _code(line, depth)]
        lines += [w for level, head in enumerate(heads) for w in _code(head, depth + level)]
        lines += [w for line in body for w in _code(line, depth + len(heads))]
        return _fill(template, comments=block(comments, depth), lines=lines)

    def _let(self, s: Let, depth: int) -> str:
        named = isinstance(s.value, Digit) or not isinstance(s.value, Elem)
        if named and s.name in self.scope.aliases and depth == 1:
            return ""
        text = f"{self.scope.name('int', s.name)} = {self.express.let(s, depth == 1).text}"
        return self._nested("let.j2", self._comments((s.origin,)), (), (text,), depth)

    def _declare(self, s: Declare) -> str:
        name = self.scope.name("register", s.name)
        one = "," if len(s.shape) == 1 else ""
        shape = ", ".join(map(str, reversed(s.shape))) + one
        return f"{name} = cute.make_rmem_tensor(({shape}), {self.uses.type(s.dtype)})"

    def _scalar(self, s: Declare) -> str:
        """The first assignment of a scalar; '' where the statements make it."""
        if s.init is None and s.name not in self.late:
            return ""
        zero: float | int | bool = {"bool": False}.get(s.dtype, 0)
        value = Lit(zero if s.init is None else bool(s.init) if s.dtype == "bool" else s.init)
        narrow = s.dtype in NARROW
        text = self.express.rounded(value, s.dtype) if narrow else self.express.lifted(number(value.value, self.uses), s.dtype)
        return f"{self.scope.name('register', s.name)} = {text}"

    def _compute(self, s: Compute, depth: int) -> str:
        heads = tuple(self.copies.loop(f) for f in s.loops)
        if s.when:
            found = conjunction(self.express, s.when)
            heads += (f"if cutlass.const_expr({found.text}):" if found.kind == "py" else f"if {found.text}:",)
        body = tuple(self._assign(a) for a in s.body)
        return self._nested("compute.j2", self._comments(tuple(a.origin for a in s.body)), heads, body, depth)

    def _assign(self, a: Assign) -> str:
        dtype = self.scope.dtypes.get(a.target.name, "")
        target = self.express.element(a.target)
        if dtype in NARROW or dtype in ("i16", "i8", "u8"):
            return f"{target} = {self.express.rounded(a.value, dtype)}"
        return f"{target} = {self.express.lifted(self.express.value(a.value), self.scope.kinds['register', a.target.name])}"

    def _lane_reduce(self, s: LaneReduce, depth: int) -> str:
        loops = self.scope.loop_names(len(s.shape))
        heads = tuple(f"for {v} in cutlass.range_constexpr({n}):" for v, n in zip(loops, s.shape, strict=True))
        index = f"[{', '.join(reversed(loops))}]" if loops else ""
        body = []
        for target in s.targets:
            kind = self.scope.kinds["register", target]
            helper = LANE_FOLDS.get((s.fn, kind))
            if helper is None:
                raise InternalError(f"no fold of {s.fn} on {kind} over lanes")
            self.uses.helpers.add(helper)
            cell = self.scope.name("register", target) + index
            body.append(f"{cell} = {helper}({cell}, {s.step}, {s.lanes})")
        return self._nested("lane_reduce.j2", self._comments((s.origin,)), heads, tuple(body), depth)


def _code(line: str, depth: int) -> list[str]:
    return [w for w in wrap("    " * depth + line)]


def _body(lines: tuple[str, ...]) -> list[str]:
    return [w for line in lines for w in wrap(line, WIDTH - 4)]


def _doc(text: str) -> str:
    """Text for a docstring: nothing in it ends the docstring, and its lines are not too long."""
    plain = text.replace("\\", "/").replace('"""', "'")
    return "\n    ".join(textwrap.wrap(plain, WIDTH - 10))


def _together(pairs: list[tuple[str, str]], most: int, width: int) -> list[str]:
    """(name, value) pairs as assignments of tuples: at most `most` in a line, and as many as fit."""
    lines: list[str] = []
    batch: list[tuple[str, str]] = []
    for pair in [*pairs, None]:
        more = [*batch, pair] if pair is not None else batch
        line = f"{', '.join(n for n, _ in more)} = {', '.join(v for _, v in more)}"
        if batch and (pair is None or len(more) > most or len(line) > width):
            lines.append(f"{', '.join(n for n, _ in batch)} = {', '.join(v for _, v in batch)}")
            batch = []
        if pair is not None:
            batch = [*batch, pair]
    return lines


def _definition(name: str, parameters: list[str]) -> list[str]:
    """A function's head: on one line where it fits, else its parameters on indented lines of their own."""
    one = f"def {name}({', '.join(parameters)}):"
    if len(one) <= WIDTH:
        return [one]
    lines, current = [f"def {name}("], "   "
    for p in parameters:
        if len(current) + len(p) + 2 > WIDTH:
            lines.append(current)
            current = "   "
        current += f" {p},"
    return [*lines, current, "):"]

