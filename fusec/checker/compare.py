"""The rules by which a kernel's numbers are held against the model's, element by element."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import Loc
from .report import Compared, Difference
from .ulp import MANTISSA, is_nan, same_bits, ulp_distance

RTOL, ATOL, SHARE = 2e-5, 1e-6, 1e-3
"""What fp32 values may differ by, and the share of a production build's elements that may lie outside of it."""
UNIT = 2.0 ** -22
"""What one fp32 function may be off by, relative to its value: two ulps (C2); it shows where values all but cancel."""

Place = Callable[[tuple[int, ...]], tuple[str, Loc, int | None]]
"""Coordinates of an element -> the value it is, the value's location, and its row."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is compared: its name in the report, where it comes from, its dims' names, and the build it was seen in.

    place: told per element where one tensor holds several values (a pool that several statements write)."""

    name: str
    loc: Loc
    dims: tuple[str, ...]
    where: str
    row: int | None = None
    place: Place | None = None

    def difference(self, at: tuple[int, ...], kernel: Tensor, model: Tensor, excess: float, rule: str,
                   ulps: int | None) -> Difference:
        value, loc, row = self.place(at) if self.place else (self.name, self.loc, at[self.row] if self.row is not None else None)
        return Difference(value, loc, row, tuple(zip(self.dims, at, strict=True)), _number(kernel), _number(model), excess, rule,
                          self.where, ulps)


def _number(x: Tensor) -> float | int | bool:
    return x.to(torch.float64).item() if x.dtype in MANTISSA else x.item()


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.float64)


def _verdict(subject: Subject, rule: str, kernel: Tensor, model: Tensor, excess: Tensor, ulps: Tensor | None = None,
             may: float = 0.0, hard: Tensor | None = None) -> Compared:
    """excess: what of the rule each element uses up; more than 1 is outside. may: the share that may lie outside, as long as no
    element is outside of `hard` (bool)."""
    bad = excess > 1
    outside = int(bad.sum())
    broken = bad if hard is None else bad & hard
    first = broken if bool(broken.any()) else bad
    ok = outside == 0 or (hard is not None and not bool(hard.any()) and outside <= may * excess.numel())

    def pick(flat: int) -> Difference:
        at = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), excess.shape)) if excess.dim() else ()
        return subject.difference(at, kernel[at], model[at], float(excess[at]), rule, None if ulps is None else int(ulps[at]))

    worst = pick(int(excess.flatten().argmax())) if excess.numel() and bool((excess > 0).any()) else None
    found = pick(int(first.flatten().nonzero()[0])) if outside else None
    return Compared(subject.name, subject.loc, subject.where, rule, excess.numel(), outside, worst, found, ok)


def _mismatch(subject: Subject, rule: str, kernel: Tensor, model: Tensor) -> Compared | None:
    """Other shapes or types are a finding of their own."""
    if kernel.shape == model.shape and (kernel.dtype == model.dtype or model.dtype == torch.float64):
        return None
    text = f"kernel {kernel.dtype} {tuple(kernel.shape)}, model {model.dtype} {tuple(model.shape)}"
    found = Difference(subject.name, subject.loc, None, (), float("nan"), float("nan"), float("inf"), text, subject.where)
    count = kernel.numel()
    return Compared(subject.name, subject.loc, subject.where, f"{rule}: {text}", count, count, found, found, False)


def exactly(subject: Subject, kernel: Tensor, model: Tensor, among: Tensor | None = None) -> Compared:
    """Bit for bit (NaN like NaN): integers, bools, and values that are only moved. among: bool, which elements count."""
    rule = "bit for bit"
    wrong = _mismatch(subject, rule, kernel, model)
    if wrong:
        return wrong
    differs = ~same_bits(kernel, model.to(kernel.dtype))
    if among is not None:
        differs &= among
    excess = torch.where(differs, float("inf"), 0.0)
    return _verdict(subject, rule, kernel, model, excess)


def codes(subject: Subject, kernel: Tensor, model: Tensor, reach: Callable[[], Tensor], known: Tensor | None = None) -> Compared:
    """Integers: bit for bit, or as far as the floats that they are made of may be off; reach is computed only if some differ.

    known: bool, elements that hold the same bits as those of a check build that was found right."""
    found = exactly(subject, kernel, model, None if known is None else ~known)
    if found.ok or kernel.shape != model.shape or kernel.dtype == torch.bool:
        return found
    gap = (_wide(kernel) - _wide(model)).abs()
    gap = gap if known is None else gap.masked_fill(known, 0.0)
    excess = torch.where(gap > reach(), float("inf"), 0.0)
    return _verdict(subject, "bit for bit, or as fp32 rounds what was a float", kernel, model, excess)


def within_one_ulp(subject: Subject, kernel: Tensor, model: Tensor, among: Tensor | None = None) -> Compared:
    """A value at a written rounding: at most one number of its type away. among: bool, which elements count."""
    rule = "within 1 ulp"
    wrong = _mismatch(subject, rule, kernel, model)
    if wrong:
        return wrong
    far = ulp_distance(kernel, model.to(kernel.dtype))
    return _verdict(subject, rule, kernel, model, _only(_ulps(far, kernel, model), among), far)


def _only(excess: Tensor, among: Tensor | None) -> Tensor:
    return excess if among is None else excess.masked_fill(~among, 0.0)


Noise = Callable[[], Tensor]
"""Computed only where something is outside of the tolerance: how far fp32 itself may put each element off, fp64 of its shape."""


def rounded_within_one_ulp(subject: Subject, kernel: Tensor, model: Tensor, dtype: torch.dtype,
                           noise: Noise | None = None) -> Compared:
    """A probe (fp32) of a value that is written as rounded to `dtype`: a number of that type, at most one away from the model's.

    Where a sum's terms all but cancel, numbers that fp32 does not tell apart can be several of the type's apart.
    """
    rule = f"rounded to {str(dtype).removeprefix('torch.')}, within 1 ulp"
    wrong = _mismatch(subject, rule, kernel, model)
    if wrong:
        return wrong
    held = kernel.to(dtype)
    far = ulp_distance(held, model.to(dtype))
    exact = held.to(kernel.dtype)
    inexact = (exact != kernel) & ~(is_nan(exact) & is_nan(kernel))
    ulps = _ulps(far, kernel, model)
    if noise is not None and bool((ulps > 1).any()):
        ulps = _ulps(far, kernel, model, noise())
    return _verdict(subject, rule, kernel, model, ulps.masked_fill(inexact, float("inf")), far)


def _ulps(far: Tensor, kernel: Tensor, model: Tensor, more: Tensor | float = 0.0) -> Tensor:
    """Ulps apart, at most one where the two agree as fp32 values do."""
    alike = _gap(kernel, model) <= _allowed(model, more)
    return torch.where(alike, far.clamp(max=1), far).to(torch.float64)


def _gap(kernel: Tensor, model: Tensor) -> Tensor:
    """|kernel − model| in fp64: 0 for equals and two NaN, inf for one NaN and for unlike infinities."""
    k, m = _wide(kernel), _wide(model)
    gap = torch.where(k == m, 0.0, (k - m).abs())
    nan_k, nan_m = is_nan(kernel), is_nan(model)
    gap = gap.masked_fill(nan_k & nan_m, 0.0).masked_fill(nan_k ^ nan_m, float("inf"))
    return gap.nan_to_num(nan=float("inf"), posinf=float("inf"))


def _allowed(model: Tensor, more: Tensor | float = 0.0) -> Tensor:
    return ATOL + RTOL * _wide(model).abs().nan_to_num(0.0, 0.0, 0.0) + more


def within_tolerance(subject: Subject, kernel: Tensor, model: Tensor, among: Tensor | None = None,
                     noise: Noise | None = None) -> Compared:
    """fp32 values of a check build: rtol 2e-5, atol 1e-6, everywhere, and more only where terms cancel. among: bool, which elements
    count."""
    rule = f"within rtol {RTOL:g}, atol {ATOL:g}"
    wrong = _mismatch(subject, rule, kernel, model)
    if wrong:
        return wrong
    excess = _only(_gap(kernel, model) / _allowed(model), among)
    if noise is not None and bool((excess > 1).any()):
        excess = _only(_gap(kernel, model) / _allowed(model, noise()), among)
    return _verdict(subject, rule, kernel, model, excess)


def as_production(subject: Subject, kernel: Tensor, model: Tensor, reach: Callable[[], Tensor],
                  known: Tensor | None = None, noise: Noise | None = None) -> Compared:
    """Values without probes: 99.9 % within the fp32 tolerance, all within what flips of the written roundings can make.

    reach: computed only if something is outside of the tolerance: [shape] fp64, how far each element may honestly be away beyond
    it. known: bool, elements that hold the same bits as those of a check build that was found right.
    A tensor of fewer than a thousand elements per honest flip can have more than 0.1 % outside; as every one of them must then be
    explained by `reach`, which is 0 where no rounding is near a midpoint, it passes, and a wrong kernel does not.
    """
    rule = f"{100 * (1 - SHARE):g} % within rtol {RTOL:g}, atol {ATOL:g}, all within what one ulp at each written rounding can make"
    wrong = _mismatch(subject, rule, kernel, model)
    if wrong:
        return wrong
    gap, allowed = _gap(kernel, model), _allowed(model)
    excess = gap / allowed
    if known is not None:
        excess = torch.where(known, excess.clamp(max=1.0), excess)
    if noise is not None and bool((excess > 1).any()):
        allowed = _allowed(model, noise())
        excess = torch.minimum(excess, gap / allowed)
    if not bool((excess > 1).any()):
        return _verdict(subject, rule, kernel, model, excess)
    far = reach().to(torch.float64)
    hard = (gap > allowed + far) & (excess > 1)
    share = max(SHARE, SMALL / max(kernel.numel(), 1))
    return _verdict(subject, rule, kernel, model, excess, may=share, hard=hard)


SMALL = 512
"""Elements of a small tensor that one or two honest flips may reach, where 0.1 % of it would be less."""
