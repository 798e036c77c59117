"""What the emulator says a kernel computes, and how far a device may be from it: nothing where no function is approximate.

Elsewhere the emulator runs again with every approximate function as far off as its bound allows, up, down and at random; what an
element moves by in these runs, twice, and one unit in the last place of its type is what the device's may differ by.
"""
from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fusec.api import bind_example, capture_graph
from fusec.checker.ulp import MANTISSA, UNLIKE, bits, is_nan, same_bits, ulp_distance, ulp_of
from fusec.codegen.render import render
from fusec.emulate import emulate
from fusec.emulate.accuracy import Shift, bound
from fusec.emulate.functions import EXACT
from fusec.ir.kernel import KernelSpec
from fusec.ir.reference import TORCH_DTYPE
from fusec.passes import pipeline

from ..codegen.specs import CASES, products
from ..codegen.zoo import ZOO
from ..recipes.test_golden import CASES as GOLDEN

ROWS = (1, 5)
SEEDS = 8
FACTOR, SHARE = 2.0, 1e-3
"""How many times the movement seen in SEEDS + 2 runs is allowed, and the share of a tensor's elements that may lie further away
where a rounding in between was decided differently: those by no more than the tensor's largest movement allows."""


def row_sums(x: Tensor, w: Tensor, residual: Tensor) -> tuple[Tensor, ...]:
    """Reductions, a quotient, a square root, roundings: nothing approximate."""
    residual.add_(x)
    h = residual.float() * w
    length = torch.sqrt(h.square().sum(-1, keepdim=True) + 1e-6)
    return (h / length).to(x.dtype), h.sum(-1), h.amax(-1), h.mean(-1)


def delta_rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, state: Tensor, slots: Tensor) -> Tensor:
    """A recurrent step without a decay: products, sums and moves of paged state."""
    h = state[slots]
    u = beta[..., None] * (v.float() - torch.einsum("bhvk,bhk->bhv", h, k.float()))
    h = h + u[..., None] * k.float()[:, :, None, :]
    state[slots] = h
    return torch.einsum("bhvk,bhk->bhv", h, q.float()).to(v.dtype)


def row_inputs(rows: int) -> dict[str, Tensor]:
    return {"x": torch.randn(rows, 1000).bfloat16(), "w": torch.rand(1000) + 0.5, "residual": torch.randn(rows, 1000).bfloat16()}


def delta_inputs(rows: int) -> dict[str, Tensor]:
    return {"q": torch.randn(rows, 2, 64).bfloat16(), "k": torch.randn(rows, 2, 64).bfloat16() / 8,
            "v": torch.randn(rows, 2, 64).bfloat16(), "beta": torch.rand(rows, 2), "state": torch.randn(rows + 3, 2, 64, 64),
            "slots": torch.randperm(rows + 3)[:rows].int()}


ARITHMETIC = {"row_sums": (row_sums, row_inputs), "delta_rule": (delta_rule, delta_inputs)}


@dataclass(frozen=True, slots=True)
class Subject:
    """A kernel to compare: its spec, its file, its tensors for a number of rows, and which numbers of rows are run."""

    name: str
    spec: KernelSpec
    source: str
    inputs: Callable[[int], dict[str, Tensor]]
    rows: tuple[int, ...] = ROWS


def names() -> tuple[str, ...]:
    """Every subject: kernels written by hand, functions and types one by one, plain arithmetic, the golden recipes."""
    return (*(f"cases/{n}" for n in CASES), *(f"zoo/{n}" for n in (*ZOO, "products")), *(f"arithmetic/{n}" for n in ARITHMETIC),
            *(f"recipes/{n}" for n in GOLDEN))


def subject(name: str, arch: str = "sm_90a") -> Subject:
    """A subject by its name."""
    group, _, member = name.partition("/")
    if group == "cases":
        build, inputs, _ = CASES[member]
        return Subject(name, build(arch), render(build(arch)), lambda rows: inputs(rows, rows))
    if name == "zoo/products":
        return Subject(name, products(arch), render(products(arch)), lambda rows: _products(), (1,))
    if group == "zoo":
        build, one = ZOO[member]
        return Subject(name, build(arch), render(build(arch)), lambda rows: one(), (1,))
    if group == "arithmetic":
        fn, make = ARITHMETIC[member]
        return _compiled(name, fn, _seeded(make), arch)
    fused, sizes = GOLDEN[member]
    return _compiled(name, fused.reference, lambda rows: bind_example(fused.reference, fused.inputs(rows, **sizes)), arch)


def _products() -> dict[str, Tensor]:
    return {"x": torch.randn(384, generator=torch.Generator().manual_seed(1)), "y": torch.full((640,), 777.0)}


def _seeded(make: Callable[[int], dict[str, Tensor]]) -> Callable[[int], dict[str, Tensor]]:
    def inputs(rows: int) -> dict[str, Tensor]:
        with torch.random.fork_rng([]):
            torch.manual_seed(3)
            return make(rows)
    return inputs


def _compiled(name: str, fn: Callable[..., Any], make: Callable[[int], Mapping[str, Tensor]], arch: str) -> Subject:
    stages = pipeline.compile(capture_graph(fn, make(4)).for_arch(arch, {}), arch, until="source")
    spec = stages.need("kernel")

    def inputs(rows: int) -> dict[str, Tensor]:
        tensors = dict(make(rows))
        known = {e: n for p in spec.parameters if p.name in tensors for e, n in zip(p.shape, tensors[p.name].shape)}
        fresh = {p.name: torch.full([known.get(e, e) for e in p.shape], 777.0).to(TORCH_DTYPE[p.dtype])
                 for p in spec.parameters if p.name not in tensors}
        return {p.name: {**tensors, **fresh}[p.name] for p in spec.parameters}
    return Subject(name, spec, stages.need("source"), inputs)


def approximate(source: str) -> tuple[str, ...]:
    """The approximate functions that an emitted file calls, in the forms that emulate/accuracy.py names."""
    return tuple(sorted({form for form in _forms(ast.parse(source)) if bound(*form.split(".")[:1]).ulp >= 1 or "." in form}))


def _forms(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("cute.math."):
            name = ast.unparse(node.func).rpartition(".")[2]
            form = next((f".{k.arg}" for k in node.keywords if k.arg in ("approx", "full", "fastmath")), "")
            if name in EXACT or name == "div":
                yield name + form


# ---- what is expected ------------------------------------------------------------------------------------------------------------

Expected = dict[str, tuple[Tensor, Tensor]]
"""Tensor -> (the emulator's bits, how far its elements move where approximate functions err: fp64)."""


def expected(one: Subject, rows: int) -> Expected:
    """The emulator's result and its movement. AssertionError where the kernel breaks a law."""
    exact = _emulated(one, rows, None)
    moving = approximate(one.source)
    runs = [_emulated(one, rows, j) for j in (Shift(1), Shift(-1), *range(SEEDS))] if moving else []
    found = {}
    for name, t in exact.items():
        moved = torch.zeros(t.shape, dtype=torch.float64)
        for run in runs:
            moved = torch.maximum(moved, (run[name].double() - t.double()).abs().nan_to_num(0.0, float("inf")))
        found[name] = t, moved
    return found


def _emulated(one: Subject, rows: int, jitter: int | Shift | None) -> dict[str, Tensor]:
    tensors = one.inputs(rows)
    report = emulate(one.source, tensors, arch=one.spec.arch, parameters=one.spec.parameters, counting=False, jitter=jitter)
    assert report.ok, f"{one.name}: {report}"
    return tensors


def compare(name: str, rows: int, want: Expected, found: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """A row of the data per tensor: how many elements have other bits, by how much, and how many lie outside of the envelope."""
    return [_compared(tensor, rows, exact, moved, found[tensor]) for tensor, (exact, moved) in want.items()]


def _compared(tensor: str, rows: int, want: Tensor, moved: Tensor, got: Tensor) -> dict[str, Any]:
    differ = ~same_bits(got, want)
    floats = want.dtype in MANTISSA
    apart = ulp_distance(got, want) if floats else (bits(got) - bits(want)).abs()
    unlike = is_nan(got) != is_nan(want)
    gap = (got.double() - want.double()).abs().nan_to_num(0.0, float("inf"))
    gap = gap.masked_fill(~differ, 0.0).masked_fill(unlike, float("inf"))
    unit = ulp_of(want.double(), want.dtype) if floats else torch.zeros_like(gap)
    outside = gap > FACTOR * moved + unit
    far = gap > FACTOR * (moved.max() if moved.numel() else 0.0) + unit
    return {"rows": rows, "tensor": tensor, "dtype": str(want.dtype).removeprefix("torch."), "elements": want.numel(),
            "differ": int(differ.sum()), "ulp": int(apart.masked_fill(apart >= UNLIKE, 0).max()) if want.numel() else 0,
            "absolute": _most(gap), "movement": _most(moved), "outside": int(outside.sum()), "far": int(far.sum())}


def _most(t: Tensor) -> float:
    return float(f"{t.max().item():.4g}") if t.numel() else 0.0


def holds(kernel: Mapping[str, Any]) -> bool:
    """Whether a kernel of the data is what its class promises: the emulator's bits, or within the envelope."""
    rows = kernel["tensors"]
    if not kernel["approximate"]:
        return all(r["differ"] == 0 for r in rows)
    return all(r["far"] == 0 and r["outside"] <= SHARE * r["elements"] for r in rows)
