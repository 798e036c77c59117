"""Views, joins and copies: ops that move no value but say where elements stand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy

from ..ir.scalar import Lit
from .builder import Builder, Extent, Value, broadcast, plain
from .contractions import padded, windows
from .registry import Result, op

FAR = 1 << 62


@op(
    clone="x",
    detach="x",
    alias="x",
    contiguous="x",
    lift_fresh_copy="x",
    lift="x",
    positive="x",
    resolve_conj="x",
    resolve_neg="x",
    view_as="x, y",
    expand_as="x[:1], y",
    reshape_as="x, y",
    view=("x, [4, 3]", "x, [-1]"),
    _unsafe_view="x, [12]",
    reshape="x, [2, 6]",
    flatten__using_ints="x",
    unflatten__int="x, 1, [2, 2]",
    ravel="x",
    squeeze="x[:1]",
    squeeze__dim="x[:1], 0",
    squeeze__dims="x[:1, :, None], [0, 2]",
    unsqueeze="x, 1",
    expand="x[:1], [2, 3, 4]",
    broadcast_to="x[:1], [2, 3, 4]",
    _reshape_alias="x, [12], [1]",
    atleast_1d="x",
    atleast_2d="x[0]",
    atleast_3d="x[None]",
)
def _same_elements(b: Builder, out: Result, x: Value, *_: Any) -> Value:
    """The result's shape says all: equal counts reshape, larger ones repeat."""
    grows = len(out.shape) >= x.rank and b.source.split(".")[1] in ("expand", "expand_as", "broadcast_to")
    return b.expand(x, out.shape) if grows else b.reshape(x, out.shape)


@op(
    _to_copy=(
        "x, dtype=torch.bfloat16",
        "x, dtype=torch.float16",
        "i, dtype=torch.float32",
        "m, dtype=torch.float32",
        "x * 3, dtype=torch.int32",
        "x, dtype=torch.bool",
        "x, dtype=torch.float8_e4m3fn",
    ),
    to__dtype="x, torch.bfloat16",
    to__dtype_layout="x, dtype=torch.bfloat16",
    to__other="x, h",
    type_as="x, h",
    _autocast_to_reduced_precision="x, False, True, torch.bfloat16, torch.bfloat16",
)
def _cast(b: Builder, out: Result, x: Value, *_: Any) -> Value:
    return b.cast(x, out.dtype)


@op(permute=("x, [1, 0]", "x[None], [-1, 0, 1]"), permute_copy="x, [1, 0]")
def _permute(b: Builder, out: Result, x: Value, order: list[int]) -> Value:
    return b.permute(x, order)


@op(transpose__int=("x, 0, 1", "x[None], -1, -2"), swapaxes="x, 0, 1", swapdims="x, 0, 1")
def _transpose(b: Builder, out: Result, x: Value, a: int, c: int) -> Value:
    order = list(range(x.rank))
    if order:
        order[a], order[c] = order[c], order[a]
    return b.permute(x, order)


@op(t="x", mT="x", numpy_T="x", adjoint="x")
def _t(b: Builder, out: Result, x: Value) -> Value:
    return b.permute(x, list(range(x.rank - 2)) + [x.rank - 1, x.rank - 2] if x.rank > 1 else list(range(x.rank)))


@op(movedim__int="x[None], 0, -1", movedim__intlist="x[None], [0, 1], [2, 0]", moveaxis__int="x[None], 0, -1")
def _movedim(b: Builder, out: Result, x: Value, source: Any, target: Any) -> Value:
    src = [d % x.rank for d in ([source] if isinstance(source, int) else source)]
    dst = [d % x.rank for d in ([target] if isinstance(target, int) else target)]
    rest = iter(d for d in range(x.rank) if d not in src)
    return b.permute(x, [src[dst.index(i)] if i in dst else next(rest) for i in range(x.rank)])


# ---- ranges -------------------------------------------------------------------------------------------------------------------


def _bound(value: Any, size: Extent, default: Any) -> Any:
    """A slice bound counted from the start, clamped to the size."""
    if value is None or (isinstance(value, int) and value >= FAR):
        return size if value is not None else default
    e = sympy.sympify(value)
    if e.is_negative:
        e = e + size
    if not e.is_number and plain(e) == size:
        return size
    if isinstance(size, int) and e.is_number:
        return min(max(int(e), 0), size)
    return plain(e)


def cut(b: Builder, x: Value, dim: int, start: Any, end: Any, step: int = 1) -> tuple[int, Extent]:
    """(first element, how many) of x[start:end:step] along a dim."""
    size = x.shape[dim]
    first, last = _bound(start, size, 0), _bound(end, size, size)
    if not isinstance(first, int):
        raise b.unsupported(f"a slice that starts at {first}, known at the call only", "slice from a constant position")
    if first > 0 and not isinstance(size, int) and last == size or not isinstance(last, int):
        length = plain(sympy.sympify(last) - first)
        if step != 1:
            raise b.unsupported("a slice with a step along a dim whose size is known at the call only")
        return first, length
    return first, max(-(-(last - first) // step), 0)


@op(slice__Tensor=("x, 1, 1, 3", "x, 1, -2, 9223372036854775807", "x, 1, 0, 4, 2", "x, 0, 0, 3", "x, 1"))
def _slice(b: Builder, out: Result, x: Value, dim: int, start: Any, end: Any, step: int) -> Value:
    dim %= x.rank
    first, length = cut(b, x, dim, start, end, step)
    return b.slice(x, dim, first, length, step)


@op(narrow="x, 1, 1, 2")
def _narrow(b: Builder, out: Result, x: Value, dim: int, start: int, length: int) -> Value:
    first, _ = cut(b, x, dim % x.rank, start, None)
    return b.slice(x, dim, first, length)


@op(select__int=("x, 1, 2", "x, 0, -1"))
def _select(b: Builder, out: Result, x: Value, dim: int, index: Any) -> Value:
    size = x.shape[dim]
    if not isinstance(index, int):
        raise b.unsupported(f"the element at {index}, known at the call only", "select at a constant position")
    if index < 0 and not isinstance(size, int):
        raise b.unsupported("an element counted from the end of a dim whose size is known at the call only")
    return b.select(x, dim, index % size if isinstance(size, int) else index)


def _pieces(b: Builder, x: Value, dim: int, lengths: Sequence[Extent]) -> tuple[Value, ...]:
    start, parts = 0, []
    for length in lengths:
        parts.append(b.slice(x, dim, start, length))
        if len(lengths) > 1 and not isinstance(length, int):
            raise b.unsupported("a split along a dim whose size is known at the call only", "split a dim of constant size")
        start += length if isinstance(length, int) else 0
    return tuple(parts)


@op(split__Tensor=("x, 2, 1; 1", "x, 3, 1; 1"))
def _split(b: Builder, out: Result, x: Value, size: int, dim: int) -> tuple[Value, ...]:
    n = x.shape[dim]
    lengths = [n] if n == size else [size] * (n // size) + [n % size] * (n % size > 0) if isinstance(n, int) else [size, n - size]
    return _pieces(b, x, dim, lengths)


@op(split_with_sizes="x, [1, 3], -1; 1", split__sizes="x, [1, 3], -1; 1")
def _split_sizes(b: Builder, out: Result, x: Value, sizes: list[Any], dim: int) -> tuple[Value, ...]:
    return _pieces(b, x, dim, sizes)


@op(chunk="x, 2, 1; 1")
def _chunk(b: Builder, out: Result, x: Value, chunks: int, dim: int) -> tuple[Value, ...]:
    n = x.shape[dim]
    return _split(b, out, x, -(-n // chunks) if isinstance(n, int) else n, dim)


@op(unbind__int=("x, 1; 2", "x, 0; 1"))
def _unbind(b: Builder, out: Result, x: Value, dim: int) -> tuple[Value, ...]:
    n = x.shape[dim]
    if not isinstance(n, int):
        raise b.unsupported("a dim whose size is known at the call only is taken apart", "unbind a dim of constant size")
    return tuple(b.select(x, dim, i) for i in range(n))


# ---- joins --------------------------------------------------------------------------------------------------------------------


@op(cat=("[x, y], 0", "[x, x[:, :1]], -1", "[x, h], 1"), concat="[x, y], 1", concatenate="[x, y], 1")
def _cat(b: Builder, out: Result, parts: list[Value], dim: int) -> Value:
    parts = [p for p in parts if p.shape != (0,)]
    return b.join([b.cast(p, out.dtype) for p in parts], dim % parts[0].rank)


@op(stack=("[x, y], 1", "[x, y, h], -1"))
def _stack(b: Builder, out: Result, parts: list[Value], dim: int) -> Value:
    return b.stack([b.cast(p, out.dtype) for p in parts], dim)


@op(hstack="[x, y]", vstack="[x, y]", dstack="[x, y]")
def _hstack(b: Builder, out: Result, parts: list[Value]) -> Value:
    kind = b.source.split(".")[1]
    wide = [_at_least(b, p, {"hstack": 1, "vstack": 2, "dstack": 3}[kind]) for p in parts]
    dim = {"hstack": min(1, wide[0].rank - 1), "vstack": 0, "dstack": 2}[kind]
    return b.join([b.cast(p, out.dtype) for p in wide], dim)


def _at_least(b: Builder, x: Value, rank: int) -> Value:
    """x as torch.atleast_nd makes it: unit dims in front up to two, one behind for the third."""
    while x.rank < min(rank, 2):
        x = b.unsqueeze(x, 0)
    return b.unsqueeze(x, 2) if rank == 3 and x.rank == 2 else x


@op(broadcast_tensors="[x, x[:1]]; 1")
def _broadcast_tensors(b: Builder, out: Result, parts: list[Value]) -> tuple[Value, ...]:
    shape = broadcast([p.shape for p in parts])
    return tuple(b.expand(p, shape) for p in parts)


@op(meshgrid="[x[0], y[:, 0]]; 1", meshgrid__indexing="[x[0], y[:, 0]], indexing='ij'; 0")
def _meshgrid(b: Builder, out: Result, parts: list[Value], indexing: str = "ij") -> tuple[Value, ...]:
    if indexing != "ij":
        raise b.unsupported("meshgrid with indexing='xy'", "use indexing='ij' and transpose")
    shape = tuple(p.shape[0] for p in parts)
    return tuple(b.expand(b.reshape(p, [n if j == i else 1 for j, n in enumerate(shape)]), shape) for i, p in enumerate(parts))


@op(repeat=("x, [2, 1]", "x, [2, 1, 3]"), tile="x, [2]")
def _repeat(b: Builder, out: Result, x: Value, times: list[int]) -> Value:
    times = [1] * (len(out.shape) - len(times)) + list(times)
    shape = (1,) * (len(times) - x.rank) + x.shape
    pairs = [(t, n) for t, n in zip(times, shape)]
    spread = b.reshape(x, [m for t, n in pairs for m in ((1, n) if t != 1 else (n,))])
    return b.reshape(b.expand(spread, [m for t, n in pairs for m in ((t, n) if t != 1 else (n,))]), out.shape)


@op(repeat_interleave__self_int=("x, 2, 0", "x, 3, -1", "x, 2"))
def _repeat_interleave(b: Builder, out: Result, x: Value, times: int, dim: int | None, size: Any) -> Value:
    x = b.reshape(x, (plain(sympy.prod([sympy.sympify(n) for n in x.shape])),)) if dim is None else x
    d = (dim or 0) % x.rank
    spread = b.expand(b.unsqueeze(x, d + 1), x.shape[: d + 1] + (times,) + x.shape[d + 1 :])
    return b.reshape(spread, out.shape)


@op(flip="x, [1]")
def _flip(b: Builder, out: Result, x: Value, dims: list[int]) -> Value:
    for dim in dims:
        n = x.shape[dim]
        if not isinstance(n, int) or n > 64:
            raise b.unsupported(f"a dim of {n} reversed", "at most 64 elements, of a size known at compile time")
        x = b.join([b.slice(x, dim, n - 1 - i, 1) for i in range(n)], dim % x.rank)
    return x


@op(roll=("x, [1], [1]", "x, [-1], [0]"))
def _roll(b: Builder, out: Result, x: Value, shifts: list[int], dims: list[int]) -> Value:
    for shift, dim in zip(shifts, dims):
        n = x.shape[dim]
        if not isinstance(n, int):
            raise b.unsupported("a roll along a dim whose size is known at the call only")
        shift %= n
        if shift:
            x = b.join([b.slice(x, dim, n - shift, shift), b.slice(x, dim, 0, n - shift)], dim % x.rank)
    if not dims:
        raise b.unsupported("a roll of the flattened tensor", "name the dims")
    return x


@op(unfold=("x, 1, 2, 1", "x, -1, 3, 1", "x, 0, 2, 1"))
def _unfold(b: Builder, out: Result, x: Value, dim: int, size: int, step: int) -> Value:
    d = dim % x.rank
    order = [i for i in range(x.rank) if i != d] + [d]
    wins = windows(b, b.permute(x, order), size, step)
    back = list(range(x.rank - 1))
    back.insert(d, x.rank - 1)
    return b.permute(wins, back + [x.rank])


@op(
    pad=(
        "x, [1, 2]",
        "x, [-1, 1, 1, 0], 'constant', 0.5",
        "x, [2, 1], 'reflect'",
        "x, [2, 1], 'replicate'",
        "x, [2, 1], 'circular'",
    ),
    constant_pad_nd="x, [1, 2], 2.0",
)
def _pad(b: Builder, out: Result, x: Value, pads: list[int], *rest: Any) -> Value:
    mode, value = rest if len(rest) == 2 else ("constant", rest[0])
    for i in range(len(pads) // 2):
        if mode != "constant":
            x = _repeated(b, x, x.rank - 1 - i, pads[2 * i], pads[2 * i + 1], mode)
            continue
        x = padded(b, x, -1 - i, pads[2 * i], pads[2 * i + 1], value or 0.0)
    return x


def _repeated(b: Builder, x: Value, dim: int, before: int, after: int, mode: str) -> Value:
    """x with elements of its own before and after along a dim: the nearest, the mirrored or those of the other end."""
    n = x.shape[dim]
    if not isinstance(n, int) or before + after > 64 or min(before, after) < 0:
        raise b.unsupported(f"padding of mode {mode!r} of a dim of {n} by {before} and {after}", "at most 64, of a constant size")
    places = [*range(-before, 0), *range(n, n + after)]
    source = {
        "replicate": lambda i: min(max(i, 0), n - 1),
        "reflect": lambda i: -i if i < 0 else 2 * (n - 1) - i,
        "circular": lambda i: i % n,
    }[mode]
    parts = [b.slice(x, dim, source(i), 1) for i in places]
    return b.join([*parts[:before], x, *parts[before:]], dim)


# ---- writes into a part -------------------------------------------------------------------------------------------------------


@op(select_scatter=("x, y[:, 0], 1, 2", "x, y[0], 0, -1"))
def _select_scatter(b: Builder, out: Result, x: Value, value: Value, dim: int, index: int) -> Value:
    n = x.shape[dim]
    if not isinstance(index, int) or not isinstance(n, int):
        raise b.unsupported("an element is replaced along a dim whose size is known at the call only")
    return replaced(b, x, b.unsqueeze(value, dim % x.rank), dim % x.rank, index % n, 1)


@op(
    slice_scatter=(
        "x, y[:, 1:3], 1, 1, 3",
        "x, y[1:], 0, 1, 9223372036854775807",
        "x, y[:, :2], 1, 0, 4, 2",
        "x, y[:, :2], 1, 1, 4, 2",
        "x, y",
    )
)
def _slice_scatter(b: Builder, out: Result, x: Value, value: Value, dim: int, start: Any, end: Any, step: int) -> Value:
    dim %= x.rank
    first, length = cut(b, x, dim, start, end, step)
    value = b.cast(value, x.dtype)
    if length == x.shape[dim]:
        return b.update(x, value)
    if step == 1:
        return replaced(b, x, value, dim, first, length)
    size = x.shape[dim]
    if isinstance(size, int) and length == size // step and size % step == 0 and first < step:
        return _one_of_each(b, x, value, dim, first, step)
    parts = [
        b.slice(value, dim, (i - first) // step, 1)
        if i >= first and (i - first) % step == 0 and (i - first) // step < length
        else b.slice(x, dim, i, 1)
        for i in range(_static(b, x.shape[dim]))
    ]
    return b.join(parts, dim)


def _one_of_each(b: Builder, x: Value, value: Value, dim: int, first: int, step: int) -> Value:
    """x with element `first` of each group of `step` along a dim replaced."""
    groups = b.reshape(x, (*x.shape[:dim], plain(x.shape[dim] / sympy.Integer(step)), step, *x.shape[dim + 1 :]))
    return b.reshape(replaced(b, groups, b.unsqueeze(value, dim + 1), dim + 1, first, 1), x.shape)


def _static(b: Builder, n: Extent) -> int:
    if not isinstance(n, int) or n > 64:
        raise b.unsupported(
            f"every other element of a dim of {n} is replaced", "at most 64 elements, of a size known at compile time"
        )
    return n


def replaced(b: Builder, x: Value, value: Value, dim: int, first: int, length: Extent) -> Value:
    """x with `length` elements from `first` along a dim replaced."""
    rest = plain(sympy.sympify(x.shape[dim]) - first - length)
    if rest != 0 and not isinstance(x.shape[dim], int):
        index = b.iota(length)
        return b.update(x, value, dim, b.map("add", index, Lit(first), dtype="i64") if first else index)
    parts = [b.slice(x, dim, 0, first)] if first else []
    parts.append(b.cast(value, x.dtype))
    if rest != 0:
        parts.append(b.slice(x, dim, first + length, rest))
    return b.join(parts, dim)


@op(copy=("x, y", "x, y[0]", "x, h"))
def _copy(b: Builder, out: Result, x: Value, value: Value, *_: Any) -> Value:
    return b.update(x, value)


def diagonal(b: Builder, x: Value, offset: int, d1: int, d2: int) -> Value:
    """x[i, i + offset] along two dims of constant size, as the last dim."""
    d1, d2 = d1 % x.rank, d2 % x.rank
    n, m = x.shape[d1], x.shape[d2]
    if not isinstance(n, int) or not isinstance(m, int):
        raise b.unsupported("a diagonal along a dim whose size is known at the call only")
    flat = b.permute(x, [d for d in range(x.rank) if d not in (d1, d2)] + [d1, d2])
    flat = b.reshape(flat, flat.shape[:-2] + (n * m,))
    length, first = max(min(n + min(offset, 0), m - max(offset, 0)), 0), max(-offset, 0) * m + max(offset, 0)
    index = b.map("mul", b.iota(length), Lit(m + 1), dtype="i64")
    return b.gather(flat, flat.rank - 1, b.map("add", index, Lit(first), dtype="i64") if first else index)


@op(diagonal=("x", "x, 1", "x, -1", "c, 0, 1, 2"), diagonal_copy="x")
def _diagonal(b: Builder, out: Result, x: Value, offset: int, d1: int, d2: int) -> Value:
    return diagonal(b, x, offset, d1, d2)


@op(diag_embed=("x", "x, 1, 0, 2", "x, -1"))
def _diag_embed(b: Builder, out: Result, x: Value, offset: int, d1: int, d2: int) -> Value:
    """x on the diagonal of a square: both its dims count along the last dim of x."""
    rank, n = x.rank + 1, out.shape[d1]
    rows, columns = b.unsqueeze(b.iota(n), 1), b.iota(n)
    shifted = b.map("add", rows, Lit(offset), dtype="i64") if offset else rows
    first = b.slice(padded(b, x, -1, max(-offset, 0), max(offset, 0)), -1, 0, n)
    on = b.map("eq", columns, shifted, dtype="bool")
    square = b.map("select", on, b.unsqueeze(first, -1), b.scalar(0, x.dtype), dtype=x.dtype)
    order = list(range(rank - 2))
    for place, d in sorted(((d1 % rank, rank - 2), (d2 % rank, rank - 1))):
        order.insert(place, d)
    return b.permute(square, order)
