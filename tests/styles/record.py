"""Recording functions with their example arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

BF16 = torch.bfloat16
Make = Callable[[int], dict[str, Any]]


def normal(*shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> torch.Tensor:
    return (scale * torch.randn(*shape)).to(dtype)


def slots(rows: int, spare: int = 4, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Distinct slots of `rows` rows among `spare` more."""
    return torch.randperm(rows + spare)[:rows].to(dtype)


def record(steps: dict[str, tuple[Callable[..., Any], Make]]) -> Callable[[Make], Callable[..., Any]]:
    """A decorator that takes the maker of the arguments and records the function with it."""

    def step(make: Make) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def keep(fn: Callable[..., Any]) -> Callable[..., Any]:
            steps[fn.__name__] = fn, make
            return fn

        return keep

    return step
