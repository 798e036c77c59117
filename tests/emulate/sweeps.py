"""Kernels of one elementary function each, over the whole range of its operand: measured against fp64, in units in the last place.

Every form that emulate/accuracy.py has a bound for is swept, those too that no primitive is spelled as.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fusec.checker.ulp import UNLIKE, is_nan, same_bits, ulp_distance, ulp_of
from fusec.codegen.render import render
from fusec.emulate.accuracy import BOUNDS
from fusec.emulate.functions import EXACT
from fusec.ir.kernel import Assign, Compute, Copy, Declare, Global, KernelSpec, Launch, Let, Parameter
from fusec.ir.plan import SmemPlan

from ..codegen.specs import ap, el, lin

THREADS, POINTS = 128, 1 << 20
LARGEST = 2.0 ** 128
"""What stands for an infinity in differences: the number after fp32's last."""
TINY = float(np.finfo(np.float32).tiny)
USED = {"exp": (-104.0, 89.0), "exp2": (-150.0, 128.5), "expm1": (-20.0, 89.0), "log": (0.5, 2.0), "log2": (0.5, 2.0),
        "log10": (0.5, 2.0), "log1p": (-1.0, 2.0), "tanh": (-10.0, 10.0), "sin": (-100.0, 100.0), "cos": (-100.0, 100.0),
        "erf": (-4.5, 4.5)}
"""Where half of a function's points lie, evenly; the other half are evenly spaced bit patterns: all exponents, infinities, NaN."""
SPECIALS = (0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1.0, -1.0, TINY, -TINY, 2.0 ** -149,
            float(np.finfo(np.float32).max))


@dataclass(frozen=True, slots=True)
class Sweep:
    """A form of a function: its key in accuracy.BOUNDS and how it is written of x (and y). meaning: in fp64."""

    name: str
    text: str
    meaning: Callable[..., Any]

    @property
    def base(self) -> str:
        return self.name.partition(".")[0]


def _sweep(name: str) -> Sweep:
    base, _, form = name.partition(".")
    option = {"": "", "approx": ", approx=True", "full": ", full=True"}[form]
    if base == "div":
        return Sweep(name, f"cute.math.div(x_2, y_2{option})" if form else "x_2 / y_2", np.divide)
    return Sweep(name, f"cute.math.{base}(x_2{option})", EXACT[base])


SWEEPS = {name: _sweep(name) for name in BOUNDS}


def spec(arch: str = "sm_90a") -> KernelSpec:
    """out = x / y: each sweep's source is this one's with another expression."""
    def at(name: str) -> Global:
        return Global(name, lin(row=THREADS, thread=1))
    body = (Let("row", lin(block_x=1)), Declare("x", (), "f32"), Declare("y", (), "f32"), Declare("z", (), "f32"),
            Copy(at("x"), el("x")), Copy(at("y"), el("y")), Compute((), (Assign(el("z"), ap("div", el("x"), el("y"))),)),
            Copy(el("z"), at("out")))
    parameters = tuple(Parameter(n, "f32", ("rows", THREADS), (THREADS, 1), 4) for n in ("x", "y", "out"))
    return KernelSpec("sweep", "one function", arch, parameters, Launch((("rows",), (), ()), THREADS), SmemPlan(), body)


def source(sweep: Sweep, arch: str = "sm_90a") -> str:
    """The emitted file of a sweep."""
    text = render(spec(arch))
    assert text.count("x_2 / y_2") == 1
    return text.replace("x_2 / y_2", sweep.text)


def inputs(sweep: Sweep, points: int = POINTS) -> dict[str, torch.Tensor]:
    """x, y and out for a sweep: [points / THREADS, THREADS] fp32."""
    random = np.random.default_rng(7)
    x = _patterns(points, random)
    if sweep.base in USED:
        low, high = USED[sweep.base]
        x[points // 2:] = random.uniform(low, high, points - points // 2)
    x[:len(SPECIALS)] = SPECIALS
    y = random.permutation(_patterns(points, random)) if sweep.base == "div" else np.ones(points, np.float32)
    if sweep.base == "div":
        half = points // 2
        x[half:], y[half:] = random.uniform(-8, 8, points - half), random.uniform(-8, 8, points - half)
    shape = (points // THREADS, THREADS)
    return {"x": torch.from_numpy(x).view(shape), "y": torch.from_numpy(y).view(shape), "out": torch.full(shape, 777.0)}


def _patterns(points: int, random: np.random.Generator) -> Any:
    """fp32 numbers whose bit patterns are evenly spaced, each moved at random within its step."""
    step = (1 << 32) // points
    patterns = np.arange(points, dtype=np.uint64) * np.uint64(step) + random.integers(0, step, points).astype(np.uint64)
    return patterns.astype(np.uint32).view(np.float32)


def measure(sweep: Sweep, given: Mapping[str, torch.Tensor], emulated: torch.Tensor, found: torch.Tensor) -> dict[str, Any]:
    """What a device made of a sweep's inputs beside the emulator's result and the exact one, as a row of the data.

    ulp: how many numbers lie between the device's and the emulator's; ulp_exact: from the exact result, in its spacing. Operands
    and results below the smallest normal number are counted apart.
    """
    x, y, got, want = (t.flatten() for t in (given["x"], given["y"], found, emulated))
    exact = _exactly(sweep, x, y)
    apart, limit = ulp_distance(got, want), BOUNDS[sweep.name]
    low = _subnormal(exact) | _subnormal(x) | _subnormal(y)
    numbers = ~is_nan(got) & ~is_nan(want) & ~low
    last = LARGEST * (1 - 2.0 ** -24)
    gap = (got.double().clamp(-LARGEST, LARGEST) - exact.clamp(-LARGEST, LARGEST)).abs()
    error = torch.where(numbers, gap / ulp_of(exact.clamp(-last, last), torch.float32), 0.0)
    counted = torch.where(numbers, apart, 0)
    at = int(counted.argmax())
    differ = ~same_bits(got, want)
    operands = (x, y) if sweep.base == "div" else (x,)
    return {
        "name": sweep.name, "bound_ulp": limit.ulp, "bound_absolute": limit.absolute, "source": limit.source, "points": x.numel(),
        "differ": int((differ & ~low).sum()), "ulp": int(counted[at]), "at": [repr(float(t[at])) for t in operands],
        "ulp_exact": round(float(error.max()), 3), "not_a_number": int((is_nan(got) != is_nan(want)).sum()),
        "outside": int(((apart > limit.ulp) & (gap > limit.absolute) & numbers).sum()),
        "subnormal": {"points": int(low.sum()), "differ": int((differ & low).sum()),
                      "ulp": int(torch.where(low & (apart < UNLIKE), apart, 0).max())}}


def _exactly(sweep: Sweep, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    with np.errstate(all="ignore"):
        operands = (x, y) if sweep.base == "div" else (x,)
        return torch.from_numpy(np.asarray(sweep.meaning(*(t.double().numpy() for t in operands)), np.float64))


def _subnormal(t: torch.Tensor) -> torch.Tensor:
    return (t.abs() < TINY) & (t != 0)


def holds(row: Mapping[str, Any]) -> bool:
    """Whether a row of the data lies within the bound that it is held against; exact functions give the emulator's very bits."""
    exact = row["bound_ulp"] < 1
    return bool(row["outside"] == 0 and row["not_a_number"] == 0 and not (exact and row["differ"]))
