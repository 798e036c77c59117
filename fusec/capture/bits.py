"""The same bits as another dtype. A narrow float lives in a register as fp32, so that its bits are computed: exactly, NaN included.

A view back to the dtype that a value was viewed from is that value; through updates and other views too, so that a pool of bytes
that is viewed as fp8, written and stored is written where the index says and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..ir.dtype import BYTES, FLOATS
from ..ir.scalar import Lit
from ..ir.tensor import Join, Permute, Reshape, Slice, Update
from .builder import Builder, Value
from .registry import Result, op

SIGNED = {"i8", "i16", "i32"}


@dataclass(frozen=True, slots=True)
class Format:
    """A float of fewer than 32 bits: its exponent's distance from that of fp32, bits of its mantissa, whether it has infinities."""

    bias: int
    mantissa: int
    infinite: bool = True

    @property
    def shift(self) -> int:
        return 23 - self.mantissa

    @property
    def least(self) -> int:
        """The mantissa's unit in a subnormal number is 2 to the minus this."""
        return 126 - self.bias + self.mantissa

    @property
    def special(self) -> int:
        """The bits of the smallest that is no number, without the sign."""
        all_ones = (255 - 2 * self.bias) << self.mantissa
        return all_ones if self.infinite else all_ones + (1 << self.mantissa) - 1


FORMATS = {"f16": Format(112, 10), "f8e4m3": Format(120, 3, False), "f8e5m2": Format(112, 2)}


def _int(b: Builder, fn: str, *args: Any) -> Value:
    return b.map(fn, *(Lit(a) if isinstance(a, int) else a for a in args), dtype="i32")


def _choose(b: Builder, condition: Value, yes: Value, no: Value) -> Value:
    return b.map("select", condition, yes, no, dtype=yes.dtype)


def to_bits(b: Builder, x: Value) -> Value:
    """The bits of x as an i32, sign extended."""
    if x.dtype not in FLOATS:
        wide = b.cast(x, "i32")
        return _int(b, "sub", wide, _int(b, "shl", _int(b, "bitand", wide, 128), 1)) if x.dtype == "u8" else wide
    word = _int(b, "bitcast_i32", x)
    if x.dtype in ("f32", "bf16"):
        return word if x.dtype == "f32" else _int(b, "shr", word, 16)
    form = FORMATS[x.dtype]
    size = _int(b, "bitand", word, 0x7FFFFFFF)
    high = _int(b, "shr", size, form.shift)
    unit = b.map("mul", b.map("abs", x, dtype="f32"), Lit(2.0**form.least), dtype="f32")
    normal = _int(b, "sub", high, form.bias << form.mantissa)
    small = b.map("lt", size, Lit((form.bias + 1) << 23), dtype="bool")
    number = _choose(b, small, b.cast(unit, "i32"), normal)
    payload = _int(b, "bitor", _int(b, "bitand", high, (1 << form.mantissa) - 1), form.special)
    found = _choose(b, b.map("ge", size, Lit(0x7F800000), dtype="bool"), payload, number)
    return _int(b, "bitor", _int(b, "shl", _int(b, "shr", word, 31), 8 * BYTES[x.dtype] - 1), found)


def from_bits(b: Builder, bits: Value, dtype: str) -> Value:
    """What an i32 with sign extended bits is as `dtype`."""
    if dtype not in FLOATS:
        return b.cast(_int(b, "bitand", bits, 255) if dtype in ("u8", "bool") else bits, dtype)
    if dtype in ("f32", "bf16"):
        return b.map("bitcast_f32", bits if dtype == "f32" else _int(b, "shl", bits, 16), dtype=dtype)
    form = FORMATS[dtype]
    size = _int(b, "bitand", bits, (1 << (8 * BYTES[dtype] - 1)) - 1)
    high = _int(b, "shl", size, form.shift)
    normal = b.map("bitcast_f32", _int(b, "add", high, form.bias << 23), dtype="f32")
    small = b.map("mul", b.cast(size, "f32"), Lit(2.0**-form.least), dtype="f32")
    number = _choose(b, b.map("lt", size, Lit(1 << form.mantissa), dtype="bool"), small, normal)
    no_number = b.map("bitcast_f32", _int(b, "bitor", high, 0x7F800000), dtype="f32")
    found = _choose(b, b.map("ge", size, Lit(form.special), dtype="bool"), no_number, number)
    negative = b.map("lt", bits, Lit(0), dtype="bool")
    return b.cast(_choose(b, negative, b.map("neg", found, dtype="f32"), found), dtype)


def _grouped(b: Builder, bits: Value, narrow: int, wide: int) -> Value:
    """Neighbours along the last dim as one word, the first the lowest."""
    count = wide // narrow
    size = bits.shape[-1]
    if not isinstance(size, int):
        raise b.unsupported("narrow elements as wider ones along a dim whose size is known at the call only")
    rows = b.reshape(bits, (*bits.shape[:-1], size // count, count))
    parts = [b.select(rows, -1, i) for i in range(count)]
    word = parts[-1]
    for part in reversed(parts[:-1]):
        low = _int(b, "bitand", part, (1 << (8 * narrow)) - 1)
        word = _int(b, "bitor", _int(b, "shl", word, 8 * narrow), low)
    return word


def _apart(b: Builder, bits: Value, wide: int, narrow: int) -> Value:
    """Each word as its parts along the last dim, the lowest first, their signs extended."""
    parts = [_int(b, "shr", _int(b, "shl", bits, 32 - 8 * narrow * (i + 1)), 32 - 8 * narrow) for i in range(wide // narrow)]
    stacked = b.stack(parts, bits.rank)
    size = bits.shape[-1]
    return b.reshape(stacked, (*bits.shape[:-1], size * (wide // narrow)))


def viewed(b: Builder, x: Value, dtype: str) -> Value:
    """The bits of x as another dtype."""
    back = _back(b, x, dtype)
    if back is not None:
        return back
    old, new = BYTES[x.dtype], BYTES[dtype]
    bits = to_bits(b, x)
    bits = bits if old == new else _grouped(b, bits, old, new) if old < new else _apart(b, bits, old, new)
    found = from_bits(b, bits, dtype)
    if old == new:
        b.viewed.setdefault(found.name, x)
    return found


def _back(b: Builder, x: Value, dtype: str) -> Value | None:
    """x as the dtype that it, or what it shows and was updated, was viewed from; None where it was viewed from no such thing."""
    source = b.viewed.get(x.name)
    if source is not None:
        return source if source.dtype == dtype else None
    node = b.node(x).op
    if isinstance(node, Update) and node.index is not None:
        target = _back(b, b.values[node.target], dtype)
        if target is None:
            return None
        where = None if node.where is None else b.values[node.where]
        return b.update(target, viewed(b, b.values[node.value], dtype), node.dim, b.values[node.index], where)
    if isinstance(node, (Reshape, Permute, Slice)):
        below = _back(b, b.values[node.arg], dtype)
        if below is None:
            return None
        if isinstance(node, Slice):
            return b.slice(below, node.dim, node.start, x.shape[node.dim], node.step)
        return b.permute(below, node.order) if isinstance(node, Permute) else b.reshape(below, x.shape)
    if isinstance(node, Join):
        parts = [b.values[p] for p in node.parts]
        found = [_back(b, p, dtype) for p in parts]
        if any(f is not None for f in found):
            return b.join([viewed(b, p, dtype) if f is None else f for p, f in zip(parts, found)], node.dim)
    return None


@op(
    view__dtype=(
        "x.float(), torch.int32",
        "i.to(torch.int32), torch.float32",
        "h, torch.int16",
        "n.to(torch.float16), torch.int16",
        "n.to(torch.float8_e4m3fn), torch.uint8",
        "n.to(torch.float8_e5m2), torch.int8",
        "(i - 3).to(torch.int16) * 5000, torch.bfloat16",
        "(i - 3).to(torch.int16) * 9000, torch.float16",
        "(j * 40 + i).to(torch.uint8), torch.float8_e4m3fn",
        "(j * 40 + i - 130).to(torch.int8), torch.float8_e5m2",
        "(j * 40 + i).to(torch.uint8), torch.int8",
        "(j * 40 + i).to(torch.uint8), torch.int32",
        "x.float(), torch.uint8",
        "x.float(), torch.bfloat16",
        "h, torch.float32",
    )
)
def _view(b: Builder, out: Result, x: Value, dtype: Any) -> Value:
    sizes = BYTES[x.dtype], BYTES[out.dtype]
    if max(sizes) > 4:
        raise b.unsupported(
            f"the bits of {x.dtype} as {out.dtype}", "between elements of at most four bytes only; view an argument before the call"
        )
    return viewed(b, x, out.dtype)
