"""What the tests of the emulator share: bits, the interpreter with exact functions, small kernels around a body."""
from __future__ import annotations

import re
import textwrap

import numpy as np
import pytest
import torch

from fusec.checker.facts import facts
from fusec.checker.levels import interpreted, shape_of, sizes
from fusec.checker.masks import MASK, SEEN, ownership
from fusec.emulate import Report, emulate
from fusec.emulate.functions import EXACT
from fusec.ir.interpret_kernel import run_kernel
from fusec.ir.kernel import KernelSpec
from fusec.ir.reference import PRIMITIVE_MEANING
from fusec.passes.bind_loads import bind_loads
from fusec.passes.mask_loads import mask_loads


def bits(t: torch.Tensor) -> torch.Tensor:
    """The storage of a tensor as bytes."""
    return torch.empty(0, dtype=torch.uint8).set_(t.untyped_storage()).clone()


def same_numbers(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bit for bit, except that any NaN is as good as another."""
    if not a.is_floating_point():
        return torch.equal(a, b)
    a, b = a.float(), b.float()
    return bool((((a == b) & (a.signbit() == b.signbit())) | (a.isnan() & b.isnan())).all())


def _exactly(name):
    def apply(x):
        with np.errstate(all="ignore"):
            return torch.from_numpy(np.asarray(EXACT[name](x.double().numpy()), np.float32))
    return apply


def interpret(spec: KernelSpec, tensors: dict[str, torch.Tensor]) -> None:
    """The kernel interpreter with the emulator's elementary functions: then both levels must agree bit for bit.

    (torch's own differ in the last bit between its vectorised and its scalar code, that is, with strides and sizes.)
    """
    names = [*EXACT, "rcp_approx"]
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            if name in PRIMITIVE_MEANING:
                patch.setitem(PRIMITIVE_MEANING, name, _exactly({"rcp_approx": "rcp"}.get(name, name)))
        run_kernel(spec, tensors)


HEAD = """import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Boolean, Float16, Float32, Int32, Int64, Uint8, Uint32
from cutlass.memory import SmemAllocator


@cute.jit
def shared(base, offset: cutlass.Constexpr, dtype: cutlass.Constexpr, count: cutlass.Constexpr):
    return cute.make_tensor(cute.recast_ptr(base + offset, dtype=dtype), cute.make_layout(count))


@cute.jit
def tile(tensor, offset, width: cutlass.Constexpr, shape: cutlass.Constexpr, stride: cutlass.Constexpr):
    return cute.make_tensor(tensor.iterator + cute.assume(offset, divby=width), cute.make_layout(shape, stride=stride))


@cute.kernel
def body_kernel({names}):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
"""
TAIL = """

@cute.jit
def launch({names}, stream):
    body_kernel({names}).launch(grid=({blocks}, 1, 1), block=({threads}, 1, 1), smem={smem}{cluster}, stream=stream)
"""


def kernel(text: str, names: str = "x, out", threads: int = 64, blocks: int = 1, smem: int = 1024, cluster: int = 1) -> str:
    """A source file with this kernel body; its first lines may be imports and functions, up to a line of dashes."""
    before, mark, text = text.rpartition("----\n")
    body = textwrap.indent(textwrap.dedent(text).strip("\n"), "    ")
    group = f", cluster=({cluster}, 1, 1)" if cluster > 1 else ""
    tail = TAIL.format(names=names, threads=threads, blocks=blocks, smem=smem, cluster=group)
    return before + HEAD.format(names=names) + body + tail


def line_of(source: str, piece: str) -> int:
    """The number of the first line that holds a piece of text."""
    return next(i for i, line in enumerate(source.splitlines(), 1) if piece in line)


def run(text: str, tensors: dict[str, torch.Tensor], **options) -> tuple[Report, str]:
    """The report on a kernel body, and its source."""
    shape = {k: options.pop(k) for k in ("threads", "blocks", "smem", "cluster") if k in options}
    source = kernel(text, ", ".join(tensors), **shape)
    return emulate(source, tensors, **options), source


EXPLAINED = (
    # Swaps that mean the same: (the line, the line it changes places with, why).
    (r"= (Float32|Int32|Int64|Boolean)\(", r"if ", "the initial value of a register that is read under that condition alone"),
    (r"load_part\(|r\w+\[.* = |for \w+ in cutlass.range_constexpr", r"load_part\(|r\w+\[.* = |for \w+ in cutlass.range_constexpr",
     "different elements of a fragment"),
    (r"\w+ = select\(lt, ", r"if lane < \d+:", "the initial value of the masked one is never used by a lane beyond the axis"),
    (r"(\w+) = lane_sum\(\1, ", r"= lane_sum\(", "two butterflies of one sum: another order, and the result is rounded to bf16"),
    (r"cutlass.max\(\w+, (Int64\()?0", r"Int64\(", "slots of rows that take no part are used under their predicate alone"),
    (r"\w+ = m\w+\[", r"\w+_size = cute.math.abs\(", "the factor beside a reciprocal is a power of two and divided out again; "
     "where it matters, beyond 2^64, is tests/passes/test_share_reciprocals.py"),
    (r"for turn in cutlass.range_constexpr", r"(max_\d+) = maximum\(\1, \w+\)", "a softmax subtracts the larger of two maxima, and "
     "the other one is that in these inputs"),
    (r"cute.autovec_copy\(r\w+, tile\(s", r"sync_threads\(\)  # \w+: read → overwrite$", "a barrier for other memory: what is "
     "written here is read behind a later one"),
)


BOUNDED = re.compile(r"Int64\((warp|thread|\w+_lane|\w+_r|\w+_turn)\) \* \d+ in 32 bits")
ROWS = re.compile(r"Int64\(\w+\) \* (\d+) in 32 bits")


IDENTITY = (re.compile(r"if (lane|thread) < \d+:"), re.compile(r"(\w+) = (maximum\(\1, \w+\)|\1 \+ \w+)"))
"""A lane beyond a masked axis takes part in its reduction: where the mask cannot reach beyond the axis it adds the identity."""


def fits(what: str, blocks_per_row: int) -> bool:
    """Products that need no 64 bits: of a thread's number inside of its block, or of a turn's; of a row with no more than the row's
    blocks, since a grid has fewer than 2**31 blocks."""
    rows = ROWS.fullmatch(what)
    return bool(BOUNDED.fullmatch(what)) or rows is not None and int(rows[1]) <= blocks_per_row


def larger(graph, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors with integers that pick nothing, such as lengths, a thousand times as large, and fp32 numbers 64 times: only
    there a maximum that is subtracted before an exponential matters."""
    indices = facts(graph).indices
    for a in graph.arguments:
        if a.name not in indices and a.dtype in ("i32", "i64", "f32"):
            tensors[a.name] *= 64 if a.dtype == "f32" else 1000
    return tensors


def unread_is_nan(graph, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors with NaN in every float that the function does not read: what a predicate keeps out shows if it is read."""
    floats = tuple(a.name for a in graph.arguments if tensors[a.name].is_floating_point())
    derived, _ = ownership(mask_loads(bind_loads(graph)), floats)
    known = sizes(graph.arguments, tensors)
    marks = [a for a in derived.arguments if a.name.startswith((MASK, SEEN))]
    masks = {a.name: torch.zeros(shape_of(a, known), dtype=torch.uint8) for a in marks}
    interpreted(derived, {**tensors, **masks})
    for name in floats:
        if SEEN + name in masks:
            tensors[name][masks[SEEN + name] == 0] = torch.nan
    return tensors


def unexplained(source: str, verdicts, blocks_per_row: int = 1) -> list[str]:
    """Survivors that nothing explains."""
    lines, found = source.splitlines(), []
    for v in verdicts:
        here = lines[v.mutant.line - 1]
        there = lines[int(v.mutant.what.rsplit(" ", 1)[1]) - 1] if v.mutant.kind == "swap" else ""
        known = any(v.mutant.kind == "swap" and re.search(a, here) and re.search(b, there) for a, b, _ in EXPLAINED)
        body = next((line.strip() for line in lines[v.mutant.line:] if not line.strip().startswith("#")), "")
        known |= v.mutant.kind == "predicate" and bool(IDENTITY[0].fullmatch(here.strip()) and IDENTITY[1].fullmatch(body))
        known |= v.mutant.kind == "product" and fits(v.mutant.what, blocks_per_row)
        if not v.caught and not v.reason and not known:
            found.append(f"{v}    {here.strip()} <> {there.strip()}")
    return found
