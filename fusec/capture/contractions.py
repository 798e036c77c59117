"""Contractions: einsum and matmul in all their spellings, linear, outer products, one-dimensional convolution, attention.

A narrow result is rounded once, from an fp32 accumulator. More than two operands of an einsum are contracted from left to right, as
torch does without a path optimiser, each intermediate rounded to the operands' dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy

from ..ir.scalar import Lit
from .builder import Builder, Value, plain
from .registry import Result, alias, op

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def einsum(b: Builder, inputs: Sequence[str], args: Sequence[Value], output: str, dtype: str) -> Value:
    """The sum of products by letters; a letter of extent one beside a larger one is broadcast."""
    words, values = list(inputs), list(args)
    while len(values) > 1:
        later = set("".join(words[2:])) | set(output)
        stay = "".join(dict.fromkeys(c for c in words[0] + words[1] if c in later))
        last = len(values) == 2
        words[:2], values[:2] = [output if last else stay], [_pair(b, words[:2], values[:2], output if last else stay, dtype)]
    return _single(b, words[0], values[0], output, dtype)


def _single(b: Builder, word: str, x: Value, output: str, dtype: str) -> Value:
    """One operand: sum what does not stay, then reorder."""
    x = b.reduce("sum", [x], [i for i, c in enumerate(word) if c not in output], dtype) if set(word) - set(output) else x
    word = "".join(c for c in word if c in output)
    return b.permute(x, [word.index(c) for c in output])


def _pair(b: Builder, words: Sequence[str], args: Sequence[Value], output: str, dtype: str) -> Value:
    """Two operands: letters that only one has are summed first, unit dims left out, then a product or a contraction."""
    size: dict[str, Any] = {}
    for word, x in zip(words, args):
        for c, n in zip(word, x.shape):
            size[c] = n if size.get(c, 1) == 1 else size[c]
    ready, kept = [], []
    for word, x, other in zip(words, args, reversed(words)):
        x = _single(b, word, x, "".join(c for c in word if c in other or c in output), x.dtype)
        word = "".join(c for c in word if c in other or c in output)
        units = [i for i, c in enumerate(word) if x.shape[i] == 1 and size[c] != 1]
        ready.append(b.squeeze(x, units))
        kept.append("".join(c for i, c in enumerate(word) if i not in units))
    summed = [c for c in dict.fromkeys("".join(kept)) if c not in output]
    if summed:
        present = "".join(c for c in output if c in kept[0] + kept[1])
        out = b.contract(ready, kept, present, dtype)
        return b.reshape(out, [size[c] if c in present else 1 for c in output])
    return b.map("mul", *(_aligned(b, w, x, output) for w, x in zip(kept, ready)), dtype=dtype)


def _aligned(b: Builder, word: str, x: Value, output: str) -> Value:
    """x with its letters in the order of the output, unit dims for those it lacks."""
    x = b.permute(x, [word.index(c) for c in output if c in word])
    shape = dict(zip([c for c in output if c in word], x.shape))
    return b.reshape(x, [shape.get(c, 1) for c in output])


@op(
    einsum=(
        "'ij,kj->ik', [x, y]",
        "'ij->i', [x]",
        "'ij,ij->ij', [x, y]",
        "'i,j->ij', [x[:, 0], y[0]]",
        "'...i,...i->...', [x, y]",
        "'bi,bj,bk->bik', [x, y, p]",
        "'ij,kj', [x, y]",
        "'ij,kj->ki', [x, y]",
        "'bij,bjk->bik', [x[None], y.T[None]]",
        "'bii->bi', [c[:, :, :4]]",
        "'ii', [x[:, :3]]",
    )
)
def _einsum(b: Builder, out: Result, equation: str, args: list[Value], path: Any = None) -> Value:
    left, arrow, right = equation.replace(" ", "").partition("->")
    words = left.split(",")
    once = "".join(sorted(c for c in set("".join(words)) - {"."} if "".join(words).count(c) == 1))
    words, args = (list(x) for x in zip(*(_without_twice(b, w, x) for w, x in zip(words, args))))
    spare = [c for c in LETTERS + LETTERS.upper() if c not in equation]
    ranks = [x.rank - len(w.replace("...", "")) for w, x in zip(words, args)]
    dots = "".join(spare[: max(ranks)])
    words = [w.replace("...", dots[len(dots) - r :]) for w, r in zip(words, ranks)]
    if not arrow:
        right = "..." + once
    result = einsum(b, words, args, right.replace("...", dots), out.dtype)
    return b.expand(result, out.shape)


def _without_twice(b: Builder, word: str, x: Value) -> tuple[str, Value]:
    """An operand of an einsum with the diagonal of dims of one letter in their place, as its last dim."""
    from .views import diagonal  # It takes windows from here.

    for letter in [c for c in dict.fromkeys(word) if c != "." and word.count(c) > 1]:
        lead, dots, tail = word.partition("...")
        places = [i for i, c in enumerate(lead) if c == letter] + [i - len(tail) for i, c in enumerate(tail) if c == letter]
        x = diagonal(b, x, 0, places[0], places[1])
        first = word.index(letter)
        second = word.index(letter, first + 1)
        word = word[:first] + word[first + 1 : second] + word[second + 1 :] + letter
    return word, x


def matmul(b: Builder, x: Value, y: Value, dtype: str) -> Value:
    """x @ y of any ranks, as torch.matmul."""
    if x.rank == 1 and y.rank == 1:
        return einsum(b, ["k", "k"], [x, y], "", dtype)
    batch = LETTERS[: max(x.rank, y.rank, 2) - 2]
    xs = "z" if x.rank == 1 else batch[len(batch) - x.rank + 2 :] + "yz"
    ys = "z" if y.rank == 1 else batch[len(batch) - y.rank + 2 :] + "zx"
    return einsum(b, [xs, ys], [x, y], batch + ("y" if x.rank > 1 else "") + ("x" if y.rank > 1 else ""), dtype)


@op(
    matmul=("x, y.T", "x[0], y[0]", "x, y[0]", "x[0], y.T", "x[None], y.T", "x[None], y.T.expand(2, 4, 3)"),
    mm="x, y.T",
    bmm="x[None], y.T[None]",
    mv="x, y[0]",
    dot="x[0], y[0]",
    vdot="x[0], y[0]",
)
def _matmul(b: Builder, out: Result, x: Value, y: Value) -> Value:
    return matmul(b, x, y, out.dtype)


alias(linalg_matmul="matmul")


@op(inner=("x, y", "x[0], y[0]"))
def _inner(b: Builder, out: Result, x: Value, y: Value) -> Value:
    xs, ys = LETTERS[: x.rank - 1], LETTERS[10 : 10 + y.rank - 1]
    return einsum(b, [xs + "z", ys + "z"], [x, y], xs + ys, out.dtype)


@op(linalg_vecdot="x, y")
def _vecdot(b: Builder, out: Result, x: Value, y: Value, dim: int) -> Value:
    if x.rank == y.rank == 1:
        return matmul(b, x, y, out.dtype)
    product = b.map("mul", x, y, dtype=out.dtype)  # Eager multiplies and sums: the product is rounded.
    return b.reduce("sum", [product], [dim % product.rank], out.dtype)


@op(outer="x[0], y[0]", ger="x[0], y[0]")
def _outer(b: Builder, out: Result, x: Value, y: Value) -> Value:
    return einsum(b, ["i", "j"], [x, y], "ij", out.dtype)


@op(tensordot="x, y, [1], [1]")
def _tensordot(b: Builder, out: Result, x: Value, y: Value, dims_x: list[int], dims_y: list[int]) -> Value:
    xs, ys = list(LETTERS[: x.rank]), list(LETTERS[10 : 10 + y.rank])
    for i, j in zip(dims_x, dims_y):
        ys[j] = xs[i]
    keep = [c for i, c in enumerate(xs) if i not in [d % x.rank for d in dims_x]]
    keep += [c for j, c in enumerate(ys) if j not in [d % y.rank for d in dims_y]]
    return einsum(b, ["".join(xs), "".join(ys)], [x, y], "".join(keep), out.dtype)


@op(linear=("x, y", "x, y, p[:, 0]", "x[0], y", "x[None], y, p[:, 0]"))
def _linear(b: Builder, out: Result, x: Value, weight: Value, bias: Value | None) -> Value:
    batch = LETTERS[: x.rank - 1]
    product = einsum(
        b,
        [batch + "z", "yz" if weight.rank == 2 else "z"],
        [x, weight],
        batch + ("y" if weight.rank == 2 else ""),
        "f32" if bias is not None else out.dtype,
    )
    return b.map("add", product, bias, dtype=out.dtype) if bias is not None else product


@op(
    addmm=("x[:, :3], x, y.T", "x[:, :3], x, y.T, beta=0.5, alpha=2.0"),
    baddbmm="x[None, :, :3], x[None], y.T[None]",
    addmv="x[:, 0], x, y[0]",
    addbmm="x[:, :3], x[None], y.T[None]",
)
def _addmm(b: Builder, out: Result, base: Value, x: Value, y: Value, beta: float, alpha: float) -> Value:
    product = matmul(b, x, y, "f32")
    if b.source.startswith("aten.addbmm"):
        product = b.reduce("sum", [product], [0], "f32")
    if alpha != 1:
        product = b.map("mul", product, Lit(float(alpha)), dtype="f32")
    if beta != 1:
        return b.map("add_scaled", product, base, Lit(float(beta)), dtype=out.dtype)
    return b.map("add", base, product, dtype=out.dtype)


# ---- convolution --------------------------------------------------------------------------------------------------------------


def windows(b: Builder, x: Value, width: int, stride: int = 1, dilation: int = 1) -> Value:
    """[..., L] -> [..., positions, width]: each window a range of the last dim."""
    length = x.shape[-1]
    if not isinstance(length, int):
        raise b.unsupported("windows along a dim whose size is known at the call only")
    positions = (length - dilation * (width - 1) - 1) // stride + 1
    if positions == 1 and width * dilation <= length + dilation - 1:
        return b.unsqueeze(b.slice(x, -1, 0, width, dilation), -2)
    taps = [b.slice(x, -1, k * dilation, positions, stride) for k in range(width)]
    return (
        b.stack(taps, -1)
        if width <= positions
        else b.stack([b.slice(x, -1, p * stride, width, dilation) for p in range(positions)], -2)
    )


def padded(b: Builder, x: Value, dim: int, before: int, after: int, value: float = 0.0) -> Value:
    """x with constants before and after along one dim; negative counts cut."""
    dim %= x.rank
    length = x.shape[dim]
    cut = plain(sympy.sympify(length) + min(before, 0) + min(after, 0))
    x = b.slice(x, dim, max(-before, 0), cut)
    ends = [b.fill(value, x.shape[:dim] + (n,) + x.shape[dim + 1 :], x.dtype) if n > 0 else None for n in (before, after)]
    return b.join([p for p in (ends[0], x, ends[1]) if p is not None], dim)


@op(
    conv1d__default=(
        "c, taps[:4, :1], None, [1], [0], [1], 4",
        "c, taps.repeat(1, 1, 2)[:4, :1], x[0], [1], [0], [1], 4",
        "c, taps[:, :2], None, [2], [2], [1], 2",
        "c, taps[:5, :, :2], None, [1], [0], [2], 1",
        "x, taps[:3, :1, :2], None, [1], [1], [1], 3",
    )
)
def _conv1d(
    b: Builder,
    out: Result,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Value:
    batched = x if x.rank == 3 else b.unsqueeze(x, 0)
    wins = windows(b, padded(b, batched, 2, padding[0], padding[0]), weight.shape[2], stride[0], dilation[0])
    n, channels, length, width = wins.shape
    assert isinstance(channels, int) and isinstance(weight.shape[0], int)
    dtype = "f32" if bias is not None else out.dtype
    if groups == channels == weight.shape[0]:
        y = einsum(b, ["nclk", "ck"], [wins, b.reshape(weight, (channels, width))], "ncl", dtype)
    elif groups == 1:
        y = einsum(b, ["nclk", "dck"], [wins, weight], "ndl", dtype)
    else:
        w = b.reshape(weight, (groups, weight.shape[0] // groups, channels // groups, width))
        y = einsum(b, ["ngclk", "gdck"], [b.reshape(wins, (n, groups, channels // groups, length, width)), w], "ngdl", dtype)
        y = b.reshape(y, (n, weight.shape[0], length))
    if bias is not None:
        y = b.map("add", y, b.reshape(bias, bias.shape + (1,)), dtype=out.dtype)
    return b.reshape(y, out.shape)


@op(
    scaled_dot_product_attention=(
        "x[None], y[None], p[None]",
        "x[None], y[None], p[None], is_causal=True",
        "x[None], y[None], p[None], m[None, :, :3]",
        "x[None], y[None], p[None], scale=0.3",
        "c, c[:1], c[1:], enable_gqa=True",
    )
)
def _attention(
    b: Builder, out: Result, q: Value, k: Value, v: Value, mask: Any, dropout: float, causal: bool, scale: Any, gqa: bool
) -> Value:
    if gqa:
        k, v = (_repeat_heads(b, x, q) for x in (k, v))
    if causal:
        rows, columns = b.iota(q.shape[-2]), b.iota(k.shape[-2])
        mask = b.map("ge", b.unsqueeze(rows, 1), columns, dtype="bool")
    width = q.shape[-1]
    if not isinstance(width, int) or dropout:
        raise b.unsupported("attention with dropout, or heads of unknown width")
    scores = matmul(b, q, b.permute(k, [*range(k.rank - 2), k.rank - 1, k.rank - 2]), "f32")
    scores = b.map("mul", scores, Lit(float(scale) if scale is not None else width**-0.5), dtype="f32")
    if mask is not None:
        scores = (
            b.map("select", mask, scores, Lit(float("-inf")), dtype="f32")
            if mask.dtype == "bool"
            else b.map("add", scores, mask, dtype="f32")
        )
    dims = [scores.rank - 1]
    e = b.map("exp", b.map("sub", scores, b.reduce("max", [scores], dims, "f32", True), dtype="f32"), dtype="f32")
    return matmul(b, b.map("div", e, b.reduce("sum", [e], dims, "f32", True), dtype="f32"), v, out.dtype)


def _repeat_heads(b: Builder, x: Value, q: Value) -> Value:
    """[..., heads of x, keys, width] with each head as often as q has groups."""
    heads, wanted = x.shape[-3], q.shape[-3]
    if not isinstance(heads, int) or not isinstance(wanted, int):
        raise b.unsupported("grouped heads of unknown number")
    spread = b.expand(b.unsqueeze(x, x.rank - 2), x.shape[:-2] + (wanted // heads,) + x.shape[-2:])
    return b.reshape(spread, x.shape[:-3] + (wanted,) + x.shape[-2:])
