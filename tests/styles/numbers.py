"""Bits and widths: the bytes of fp8 caches, packed scales, integers of every width, constants of float64, numbers put where a mask
says."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from .record import BF16, normal, record, slots

STEPS: dict[str, Any] = {}
step = record(STEPS)
E4M3 = torch.float8_e4m3fn


@step(lambda n: dict(x=normal(n, 60, scale=100.0), i=torch.randint(100000, 2000000, (n, 60), dtype=torch.int32)))
def conversions(x, i):
    e = (x * 8).to(torch.int32)
    wide = i.long()
    bytes_ = x.clamp(-128, 127).to(torch.int8) >> 1, i.to(torch.uint8) + 250
    square = (i + 1).float() * (i + 2).float()
    return torch.where(x > 0, e, e + 3) & 7, wide * wide + wide, i.to(torch.int16).long() * 70000, square, bytes_


@step(lambda n: dict(x=normal(n, 64, dtype=BF16)))
def bits_of_narrow_floats(x):
    return x.view(torch.int16) & 0x7F80, x.to(torch.float16).view(torch.int16), x.to(torch.float8_e5m2).view(torch.uint8) >> 2


@step(lambda n: dict(k=normal(n, 8, 64, dtype=BF16), cache=torch.randint(0, 120, (n + 5, 4, 8, 64), dtype=torch.uint8),
                     slot=slots(n, 3 * n + 20), scale=torch.tensor(0.3)))
def fp8_bytes_written(k, cache, slot, scale):
    q = (k.float() / scale).clamp(-448, 448).to(E4M3)
    cache[slot // 4, slot % 4] = q.view(torch.uint8)


@step(lambda n: dict(k=normal(n, 8, 60, dtype=BF16), cache=torch.randint(0, 120, (n + 5, 8, 60), dtype=torch.uint8), slot=slots(n)))
def fp8_bytes_read_and_written(k, cache, slot):
    numbers = cache.view(E4M3)
    old = numbers[slot].float()
    numbers[slot] = (old * 0.5 + k.float()).to(E4M3)
    return old


@step(lambda n: dict(x=normal(n, 8, 32)))
def scales_packed_in_words(x):
    least = x.abs().amax(-1).clamp_min(1e-10) / 448
    exponent = torch.ceil(torch.log2(least)).to(torch.int32) + 127
    return exponent.to(torch.uint8).view(torch.int32), x * torch.exp2(127.0 - exponent.float())[..., None]


@step(lambda n: dict(words=torch.randint(-(2**31), 2**31 - 1, (n, 16), dtype=torch.int32), x=normal(n, 64)))
def words_taken_apart(words, x):
    return x * words.view(torch.uint8).float()


@step(lambda n: dict(x=normal(n, 4, 64), pos=torch.arange(3, 3 + n)))
def frequencies_in_float64(x, pos):
    inv = (1.0 / (10000 ** (torch.arange(0, 64, 2, dtype=torch.float64) / 64))).to(torch.float32)
    angle = (pos[:, None].float() * inv)[:, None]
    a, b = x.chunk(2, -1)
    c, s = angle.cos(), angle.sin()
    return torch.cat((a * c - b * s, b * c + a * s), -1) * torch.tensor(math.sqrt(0.5)).double()


@step(lambda n: dict(x=normal(n, 48), h=normal(n, 48, dtype=BF16)))
def numbers_of_numpy(x, h):
    c = torch.tensor(np.sqrt(2.0))
    return x * np.float64(0.3) - c, h * c, torch.where(x > c, x, c)


@step(lambda n: dict(o=normal(n, 4, 48), lse=torch.where(normal(n, 4) > 0.5, math.inf, normal(n, 4)), live=torch.arange(n) != 1))
def numbers_put_by_masks(o, lse, live):
    lse[lse == math.inf] = -math.inf
    o = o.clone()
    o[o.abs() < 0.1] = 0
    o[~live] = 1.5
    return o * lse.exp()[..., None]


@step(lambda n: dict(x=normal(n, 64)))
def codes_by_comparisons(x):
    size = x.abs()
    code = (size > 0.25).int() + (size >= 0.75).int() + (size > 1.25).int() - (size > 3).int()
    code = code | ((x < 0).int() << 3)
    odd = (x > 1) ^ (size > 2)
    return (code[:, ::2] | (code[:, 1::2] << 4)).to(torch.uint8), odd, (odd.float() + (x > 1).float()) / 3


@step(lambda n: dict(x=normal(n, 4, 48), y=normal(n, 4, 48), lse=normal(n, 4), live=torch.arange(n) != 1))
def what_masks_select(x, y, lse, live):
    x[live] = y[live] * 2 + 1
    x[lse < 0] *= 0.5
    lse[lse > 1] -= 1.0
    return (x * lse.exp()[..., None]).to(torch.bfloat16)


@step(lambda n: dict(x=normal(n, 48), kept=torch.rand(n, 48) > 0.5, index=torch.arange(n) - 1, count=torch.arange(n) % 2,
                     codes=torch.randint(0, 255, (n, 48), dtype=torch.uint8)))
def masks_added_and_multiplied(x, kept, index, count, codes):
    skip = (index < 0) + (count == 0)
    x = x * (1 - skip.float())[:, None]
    between = (x > -1) * (x < 1)
    kept |= between
    return torch.where(~between | kept, x, 0.0), kept.amax(-1), ((~codes) >> 4).float(), 1 << (codes & 7).int(), 2 ** x.bfloat16()


@step(lambda n: dict(x=normal(n, 4), s=normal(n, 4, 6), edges=torch.tensor([-1.5, -0.5, 0.0, 0.5, 1.5])))
def one_place_several_times(x, s, edges):
    return s[:, [1, 1]] * x[:, :2, None], s[:, [0, 0, 0]].sum(1), torch.bucketize(x, edges), x * edges[0]


@step(lambda n: dict(x=normal(n, 6), window=normal(n, 4, 6), state=normal(n, 5, 6)))
def written_then_shifted(x, window, state):
    window[:, 0] = x
    window[:, 1:] = window[:, :-1].clone()
    state[:, [0, 2]] = torch.stack([x, -x], 1)
    state[:, 0].add_(x)
    return window.sum(1)


@step(lambda n: dict(x=normal(n, 6, 2), y=normal(n, 6, 6)))
def halves_swapped_and_moved(x, y):
    pairs = torch.stack([x[..., 1::2], x[..., ::2]], -1).flatten(-2)
    turned = torch.cat([-y[..., 1:], y[..., :1]], -1)
    return torch.roll(pairs, 1, 1), torch.nn.functional.pad(pairs, (1, 0))[..., :-1], turned.repeat_interleave(2, 1)[:, 1:]
