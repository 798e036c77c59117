"""Sizes of a kernel's tensors that are known at the call only: a symbol, a product such as `2*rows`, a sum such as `rows + 1`."""
from __future__ import annotations

import math
from collections.abc import Iterable, Mapping


def factors(size: int | str) -> tuple[int, tuple[str, ...]] | None:
    """(integer, symbols) whose product a size is; None for any other expression."""
    if isinstance(size, int):
        return size, ()
    parts = size.split("*")
    names = tuple(sorted(p for p in parts if p.isidentifier()))
    numbers = [int(p) for p in parts if p.isdigit()]
    return (math.prod(numbers), names) if len(names) + len(numbers) == len(parts) else None


def evaluate(size: int | str, values: Mapping[str, int]) -> int | None:
    """A sum of products of symbols; None where one of them has no value, and for any other expression."""
    total = 0
    for term in str(size).split(" + "):
        split = factors(term)
        if split is None or not set(split[1]) <= values.keys():
            return None
        total += split[0] * math.prod(values[name] for name in split[1])
    return total


def least(size: int | str, values: Mapping[str, int]) -> int:
    """What a sum of products of symbols is at least, whatever the terms without a value are; 0 for any other expression."""
    return sum(evaluate(term, values) or 0 for term in str(size).split(" + "))


def plus(size: int | str) -> tuple[str, int] | None:
    """The symbol and the number that a size such as `rows + 1` is the sum of; None for any other expression."""
    name, _, more = str(size).partition(" + ")
    return (name, int(more)) if name.isidentifier() and more.isdigit() else None


def solve(found: Iterable[tuple[int | str, int]]) -> dict[str, int]:
    """The value of every size and every symbol that (size, its value) pairs determine.

    Raises ValueError where two of them do not agree.
    """
    pairs = sorted(found, key=lambda pair: len(str(pair[0])))
    values: dict[str, int] = {}
    for size, value in pairs:
        split = factors(size)
        if isinstance(size, str) and values.setdefault(size, value) != value:
            raise ValueError(f"{size} is {values[size]} and {value}")
        if split is None:
            continue
        unknown = [name for name in split[1] if name not in values]
        known = split[0] * math.prod(values[name] for name in split[1] if name in values)
        if not unknown and known != value:
            raise ValueError(f"{size} is {known} and {value}")
        if len(unknown) == 1 and known:
            if value % known:
                raise ValueError(f"{size} is {value}, not a multiple of {known}")
            values[unknown[0]] = value // known
    for size, value in pairs:
        if (made := plus(size)) is not None and value >= made[1]:
            values.setdefault(made[0], value - made[1])
    for size, value in pairs:
        right = evaluate(size, values)
        if right is not None and right != value:
            raise ValueError(f"{size} is {right} and {value}")
        if value < least(size, values):
            raise ValueError(f"{size} is {least(size, values)} at least and {value}")
    return values
