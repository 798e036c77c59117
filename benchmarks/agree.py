"""Whether a call computes what the function computes: compared with eager PyTorch before anything is timed.

A gross check on the very tensors that are timed; `fusec check --level gpu` is the exact one.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from fusec.checker.target import leaves

SHARE = 1e-3
"""The share of the elements that may lie outside of the tolerance: a written rounding that two honest orders decide differently
moves a whole row of a state."""
FEW = 512
"""Elements that may lie outside where they are more than that share: what one such decision moves in a small tensor."""
TOLERANCE = {torch.float32: (1e-4, 1e-5), torch.bfloat16: (2.0 ** -7, 1e-4), torch.float16: (2.0 ** -10, 1e-5),
             torch.float8_e4m3fn: (0.126, 2.0 ** -8)}
LOOSE = (3e-2, 2e-2)


def differences(reference: Callable[..., Any], call: Callable[[dict[str, torch.Tensor]], Any],
                arguments: Mapping[str, Any], mutated: tuple[str, ...], slots: torch.Tensor | None,
                given: Mapping[str, tuple[float, float]] | None = None, outputs: tuple[int, ...] | None = None) -> list[str]:
    """What differs between a call and the reference on copies of the same arguments, as sentences; none where they agree.

    call: takes arguments and returns the outputs. slots: those that the rows own; what else a pool holds must stay, bit for bit.
    given: tolerances "out" and "state" in place of those by dtype. outputs: the numbers of those that count; None means all.
    """
    mine, theirs = _copies(arguments, mutated), _copies(arguments, mutated)
    with torch.no_grad():
        want, got = leaves(reference(**theirs)), leaves(call(mine))
    found = []
    for i, (w, g) in enumerate(zip(want, got)):
        if outputs is not None and i not in outputs:
            continue
        found += _differs(f"output {i}", g.reshape(w.shape), w, given["out"] if given else None)
    for name in mutated:
        w, g = theirs[name], mine[name]
        if slots is not None:
            rest = torch.ones(w.shape[0], dtype=torch.bool, device=w.device)
            rest[slots.long()] = False
            touched = _bits(g) != _bits(arguments[name])
            if bool(touched.flatten(1).any(1)[rest].any()):
                found.append(f"{name}: slots that no row owns were written")
            w, g = w[slots.long()], g[slots.long()]
        found += _differs(name, g, w, given["state"] if given else None)
    return found


def _copies(arguments: Mapping[str, Any], mutated: tuple[str, ...]) -> dict[str, Any]:
    return {n: t.clone() if n in mutated else t for n, t in arguments.items()}


def _bits(t: torch.Tensor) -> torch.Tensor:
    return t.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[t.element_size()])


def _differs(name: str, got: torch.Tensor, want: torch.Tensor, tolerance: tuple[float, float] | None) -> list[str]:
    rtol, atol = tolerance or TOLERANCE.get(want.dtype, (0.0, 0.0))
    g, w = got.double(), want.double()
    gap = (g - w).abs()
    same = (g == w) | (g.isnan() & w.isnan())  # Infinities are equal or wrong.
    outside = ~(same | w.isfinite() & (gap <= atol + rtol * w.abs()))
    wrong = int(outside.sum())
    # One code's worth of a scale moves every code under it: how far says nothing.
    codes = want.element_size() == 1 or not want.is_floating_point()
    far = 0 if codes else int((outside & ~(w.isfinite() & (gap <= LOOSE[1] + LOOSE[0] * w.abs() + (w.abs() * rtol)))).sum())
    if wrong <= max(SHARE * want.numel(), min(FEW, want.numel() // 100)) and not far:
        return []
    return [f"{name}: {wrong} of {want.numel()} elements differ by more than rtol {rtol:.2g}, atol {atol:.2g} "
            f"(largest difference {gap.nan_to_num(float('inf')).max().item():.3g})"]
