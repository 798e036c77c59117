"""Inputs for a check: any number of rows, unaligned rows, permuted and far slots, other pools, pools interleaved in pages.

Pure functions from a dict of arguments to a dict of arguments of new storage; values are drawn from those of the example, so that
their scale stays what the function is made for. Arguments that are not tensors go through unchanged.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from math import gcd
from typing import Any

import torch
from torch import Tensor

from .facts import Facts
from .storage import random_bytes

Inputs = dict[str, Any]
SPARE = 3
"""Slots of a pool beyond the rows, where the example has no more: some stay untouched."""


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def dense_like(t: Tensor, shape: tuple[int, ...]) -> Tensor:
    """An empty tensor of that shape whose dims lie in memory in the order of `t`'s, without gaps; what `t` repeats it repeats."""
    order = [d for d in sorted(range(t.dim()), key=lambda d: (-t.stride(d), d)) if t.stride(d) or t.shape[d] < 2]
    strides, step = [0] * t.dim(), 1
    for dim in reversed(order):
        strides[dim] = step
        step *= max(shape[dim], 1)
    return torch.empty_strided(shape, strides, dtype=t.dtype, device=t.device)


def put(out: Tensor, values: Tensor) -> Tensor:
    """The tensor with the values in it; along a dim that it repeats the first ones."""
    once = tuple(slice(0, 1) if n > 1 and s == 0 else slice(None) for n, s in zip(out.shape, out.stride()))
    out[once].copy_(values.expand(out.shape)[once])
    return out


def drawn(t: Tensor, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """A tensor of that shape with elements drawn from `t`'s, laid out as `t` is but without gaps.

    Floats are varied a little, so that no two rows are the same. An empty `t` draws from a normal distribution (integers: zeros).
    """
    out, flat = dense_like(t, shape), t.detach().reshape(-1)
    if not out.numel():
        return out
    if not flat.numel():
        source = torch.randn(shape, generator=generator) if t.is_floating_point() else torch.zeros(shape)
        return put(out, source.to(t.dtype))
    pick = torch.randint(0, flat.numel(), shape, generator=generator).to(t.device)
    if not t.is_floating_point():
        return put(out, flat[pick])
    vary = 1 + 0.05 * torch.randn(shape, generator=generator).to(t.device)
    return put(out, (flat.to(torch.float32)[pick] * vary).to(t.dtype))


def _resized(facts: Facts, name: str, t: Tensor, rows: int | None, slots: int | None) -> tuple[int, ...]:
    shape = list(t.shape)
    dim = facts.row_dim(name)
    if dim is not None and rows is not None:
        shape[dim] = rows * facts.per_row(name)
    if name in facts.prefixes and rows is not None:
        shape[facts.prefixes[name]] = rows + SPARE
    if name in facts.offsets and rows is not None:
        shape[facts.offsets[name]] = rows + 1
    if name in facts.pools and slots is not None and not isinstance(facts.argument(name).shape[facts.pools[name]], int):
        shape[facts.pools[name]] = slots
    return tuple(shape)


def with_rows(facts: Facts, example: Mapping[str, Any], rows: int, seed: int = 0, slots: int | None = None) -> Inputs:
    """`rows` rows with slots of their own in any order, in pools of `slots` (by default the example's, or enough)."""
    generator, out = _generator(seed), dict(example)
    pool = slots or max([rows + SPARE, *(min(example[p].shape[d] for p, d in picked) for picked in facts.indices.values())])
    for name, t in example.items():
        free = facts.row_dim(name) is not None or any(name in kind for kind in (facts.pools, facts.offsets, facts.prefixes))
        if not isinstance(t, Tensor) or not free:
            continue
        shape = _resized(facts, name, t, rows, max(pool, rows))
        out[name] = drawn(t, shape, generator)
    return renumbered(facts, out, seed + 1)


def renumbered(facts: Facts, inputs: Mapping[str, Any], seed: int, first: int = 0) -> Inputs:
    """The same with other slots: distinct ones in random order, none below `first`."""
    generator, out = _generator(seed), dict(inputs)
    chosen: dict[int, Tensor] = {}
    for name in facts.indices:
        t, free = inputs[name], facts.capacity(name, inputs) - first
        if t.numel() > free:
            chosen.setdefault(t.numel(), torch.randint(0, max(free, 1), (t.numel(),), generator=generator))
        order = chosen.setdefault(t.numel(), torch.randperm(free, generator=generator)[: t.numel()])
        out[name] = put(dense_like(t, tuple(t.shape)), (order + first).view(t.shape).to(t.device))
    return out


def with_indices(facts: Facts, inputs: Mapping[str, Any], dtype: torch.dtype | None, step: int = 1) -> Inputs:
    """Index arguments as int32 or int64 (None: as they are), as a column of a table `step` wide."""
    out = dict(inputs)
    for name in facts.indices:
        t = inputs[name]
        table = torch.full((*t.shape, step), -7, dtype=dtype or t.dtype, device=t.device)
        table[..., step // 2] = t.to(dtype or t.dtype)
        out[name] = table[..., step // 2]
    return out


def absent(facts: Facts, inputs: Mapping[str, Any], every: int = 2) -> Inputs:
    """The first row and each `every`-th after it take no part: −1 in the index arguments where that says so."""
    out = dict(inputs)
    for name in facts.indices:
        if facts.may_be_absent(name, inputs):
            t = inputs[name]
            gone = torch.arange(t.numel(), device=t.device).view(t.shape) % every == 0
            out[name] = t.masked_fill(gone, -1)
    return out


def _relaid(t: Tensor, strides: list[int], offset: int, storage: Tensor) -> Tensor:
    """The values of `t` in other bytes."""
    out = torch.empty(0, dtype=t.dtype, device=t.device).set_(storage.untyped_storage(), offset, t.shape, strides)
    return put(out, t) if t.numel() else out


def _bytes(count: int, device: torch.device, seed: int = 5) -> Tensor:
    return random_bytes(-(-count // 16) * 16, device, seed).clone()


def _outermost(t: Tensor, dim: int) -> bool:
    return all(t.stride(d) < t.stride(dim) or t.shape[d] == 1 for d in range(t.dim()) if d != dim) or t.shape[dim] <= 1


def _span(t: Tensor, dim: int) -> int:
    """Elements from the first to the last of one position along `dim`, the last included."""
    return 1 + sum((t.shape[d] - 1) * t.stride(d) for d in range(t.dim()) if d != dim and t.numel())


def strided(t: Tensor, dim: int, stride: int, offset: int = 0) -> Tensor:
    """The values of `t` with another stride along one dim, from `offset` elements into a storage of random bytes on."""
    strides = list(t.stride())
    strides[dim] = stride
    count = offset + max(t.shape[dim] - 1, 0) * stride + _span(t, dim)
    return _relaid(t, strides, offset, _bytes(count * t.element_size(), t.device))


def unaligned_rows(facts: Facts, inputs: Mapping[str, Any], offset: int = 3, gap: int = 5) -> Inputs:
    """Each argument with rows as a column slice of a wider matrix: from an odd offset on, rows an odd number of elements further
    apart. Arguments whose rows are not outermost, or hold one element, stay."""
    out = dict(inputs)
    for name, dim in facts.rows:
        t = inputs[name]
        span = _span(t, dim)
        if facts.argument(name).strides[dim] is None and span > 1 and _outermost(t, dim):
            wide = span + gap + (span + gap + 1) % 2
            out[name] = strided(t, dim, wide, offset)
    return out


def spaced_slots(facts: Facts, inputs: Mapping[str, Any], gap: int = 24) -> Inputs:
    """Each pool with `gap` elements of somebody else's between its slots."""
    out = dict(inputs)
    for name, dim in facts.pools.items():
        if _outermost(inputs[name], dim):
            out[name] = strided(inputs[name], dim, _span(inputs[name], dim) + gap)
    return out


def far_slots(facts: Facts, inputs: Mapping[str, Any], beyond: int = 2 ** 31, seed: int = 3) -> Inputs:
    """Each pool with slots so far apart that the last ones lie beyond `beyond` elements; the rows use the far ones too.

    The storage is as large as that (8.6 GB in fp32), and only the slots' bytes are written.
    """
    out = renumbered(facts, inputs, seed)
    for name, dim in facts.pools.items():
        t = inputs[name]
        if name not in facts.mutated:
            continue
        stride = -(-beyond // max(t.shape[dim] // 2, 1) // 16) * 16 + 16
        strides = list(t.stride())
        strides[dim] = stride
        count = (t.shape[dim] - 1) * stride + _span(t, dim)
        out[name] = _relaid(t, strides, 0, torch.empty(count * t.element_size(), dtype=torch.uint8, device=t.device))
    return out


def interleaved_pools(facts: Facts, inputs: Mapping[str, Any], pad: int = 16) -> Inputs:
    """The pools that are updated in place as views of one storage: a page holds one slot of each, then `pad` bytes of nobody's."""
    out, names = dict(inputs), [n for n in facts.paged if _outermost(inputs[n], facts.pools[n])]
    if len(names) < 2:
        return out
    spans = {n: _span(inputs[n], facts.pools[n]) * inputs[n].element_size() for n in names}
    starts, page = {}, 0
    for name in names:
        starts[name] = page
        page += -(-spans[name] // 16) * 16
    page += pad
    slots = max(inputs[n].shape[facts.pools[n]] for n in names)
    storage = _bytes(page * slots, inputs[names[0]].device)
    for name in names:
        t = inputs[name]
        size, strides = t.element_size(), list(t.stride())
        assert page % size == 0 and gcd(16, size) == size
        strides[facts.pools[name]] = page // size
        out[name] = _relaid(t, strides, starts[name] // size, storage)
    return out


def taken(t: Tensor, dim: int, rows: list[int]) -> Tensor:
    """Some positions of a dim, of tensors of any type."""
    index = torch.tensor(rows, device=t.device)
    if t.dtype.itemsize == 1 and t.dtype != torch.bool:
        return t.view(torch.uint8).index_select(dim, index).view(t.dtype)
    return t.index_select(dim, index)


def rows_at(facts: Facts, inputs: Mapping[str, Any], rows: list[int]) -> Inputs:
    """The batch that consists of these rows of a batch, in this order; pools stay the same (as copies).

    Where an argument holds offsets, one more than there are rows, the rows are neighbours."""
    out: Inputs = {}
    for name, t in inputs.items():
        dim = facts.row_dim(name)
        if not isinstance(t, Tensor):
            out[name] = t
        elif name in facts.offsets:
            picked = taken(t, facts.offsets[name], list(range(rows[0], rows[-1] + 2)))
            out[name] = put(dense_like(t, tuple(picked.shape)), picked)
        elif name in facts.prefixes:
            at = facts.prefixes[name]
            picked = taken(t, at, rows + list(range(facts.count(inputs), t.shape[at])))
            out[name] = put(dense_like(t, tuple(picked.shape)), picked)
        elif dim is None:
            out[name] = t.clone() if name in facts.mutated else t
        else:
            each = facts.per_row(name)
            picked = taken(t, dim, [r * each + i for r in rows for i in range(each)])
            out[name] = put(dense_like(t, tuple(picked.shape)), picked)
    return out


def variants(facts: Facts, example: Mapping[str, Any], rows: tuple[int, ...] = (0, 1, 2, 5), seed: int = 11
             ) -> list[tuple[str, Callable[[], Inputs]]]:
    """(name, maker) of the cases that each function has to pass, as far as they apply to it. Makers are pure and made at will."""
    few = max([r for r in rows if r] or [1])
    cases: list[tuple[str, Callable[[], Inputs]]] = [
        (f"{r} row{'s' * (r != 1)}", lambda r=r: with_rows(facts, example, r, seed + r)) for r in (rows if facts.rows else ())]
    if facts.rows:
        cases.append(("unaligned rows", lambda: unaligned_rows(facts, with_rows(facts, example, few, seed))))
    if facts.indices:
        base = lambda: with_rows(facts, example, few, seed, slots=few + 9)  # noqa: E731
        cases += [("another pool size", base), ("permuted slots", lambda: renumbered(facts, base(), seed + 5)),
                  ("spaced slots", lambda: spaced_slots(facts, base())),
                  ("indices as a column of a table", lambda: with_indices(facts, base(), None, 3))]
        if any(facts.may_be_absent(name, example) for name in facts.indices):
            cases += [("absent rows", lambda: absent(facts, base())), ("all rows absent", lambda: absent(facts, base(), 1))]
        if len(facts.paged) > 1:
            cases.append(("pools interleaved in pages", lambda: interleaved_pools(facts, base())))
    return cases if cases else [("the example", lambda: dict(example))]
