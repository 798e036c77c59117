"""Element types by their short names, and what a register holds for each.

Every float lives in a register as fp32 and every rounding to a narrower type is explicit; integers as i32 or i64; bool as bool.
"""
from __future__ import annotations

BYTES = {"f32": 4, "bf16": 2, "f16": 2, "f8e4m3": 1, "f8e5m2": 1, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u8": 1, "bool": 1}
FLOATS = frozenset({"f32", "bf16", "f16", "f8e4m3", "f8e5m2"})
NARROW = FLOATS - {"f32"}
SATURATES = {"f8e4m3": 448.0}
"""Types that a cast gives their largest number for what lies beyond it, infinities included, and that number."""
INTS = frozenset({"i64", "i32", "i16", "i8", "u8"})


def register(dtype: str) -> str:
    """The dtype a register holds for an element type: f32 for all floats, i32 for narrow ints."""
    if dtype in FLOATS:
        return "f32"
    return "i32" if dtype in {"i16", "i8", "u8"} else dtype


def ends(dtype: str) -> tuple[float | int | bool, float | int | bool]:
    """The lowest and the highest value of an element type: -inf and inf of floats, False and True of bools."""
    if dtype in FLOATS:
        return float("-inf"), float("inf")
    if dtype == "bool":
        return False, True
    bits = 8 * BYTES[dtype]
    return (0, (1 << bits) - 1) if dtype == "u8" else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def wrapped(number: int, dtype: str) -> int:
    """An integer as an integer type holds it: modulo the number of its values."""
    low, high = (int(end) for end in ends(dtype))
    return (number - low) % (high - low + 1) + low
