"""Tensors with what lies around them: copies that keep shared storages and gaps, poison, and comparison of whole storages."""
from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

POISON = 777.0
CHUNK = 1 << 26
"""Bytes looked at together where a storage may be larger than memory allows to copy."""


def raw(t: Tensor) -> Tensor:
    """All bytes of a tensor's storage, as a view [n] u8."""
    return torch.empty(0, dtype=torch.uint8, device=t.device).set_(t.untyped_storage())


def key(t: Tensor) -> int:
    """Equal for tensors of one storage."""
    return t.untyped_storage().data_ptr() if t.untyped_storage().nbytes() else id(t.untyped_storage())


def view_of(storage: Tensor, like: Tensor) -> Tensor:
    """A tensor of the same dtype, offset, shape and strides as `like` over other bytes."""
    return torch.empty(0, dtype=like.dtype, device=storage.device).set_(
        storage.untyped_storage(), like.storage_offset(), like.shape, like.stride())


def clone(tensors: Mapping[str, Tensor], device: torch.device | str | None = None) -> dict[str, Tensor]:
    """Every tensor over a copy of its whole storage; tensors that share one still do, in the same bytes. Values that are not
    tensors stay as they are. `device`: where the copies lie, by default where each tensor lies."""
    copies: dict[int, Tensor] = {}
    out: dict[str, Tensor] = {}
    for name, t in tensors.items():
        if not isinstance(t, Tensor):
            out[name] = t
            continue
        t = t.detach()
        if key(t) not in copies:
            copies[key(t)] = raw(t).to(device or t.device, copy=True)
        out[name] = view_of(copies[key(t)], t)
    return out


def poison(t: Tensor) -> Tensor:
    """777.0 everywhere (the nearest number of the type; True in bools, a like pattern in integers); the tensor itself."""
    if t.dtype == torch.bool:
        return t.fill_(True)
    if t.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        return t.copy_(torch.full_like(t, POISON, dtype=torch.float32).clamp(max=torch.finfo(t.dtype).max).to(t.dtype))
    return t.fill_(POISON if t.is_floating_point() else 77)


def random_bytes(count: int, device: torch.device, seed: int) -> Tensor:
    """`count` bytes of a pattern that depends on the seed alone (not on the device).

    Read as any float type they hold no NaN: eager mode on the CPU changes the bits of NaNs that it only passes on.
    """
    generator = torch.Generator().manual_seed(seed)
    period = torch.randint(0, 256, (min(count, (1 << 20) + 7),), dtype=torch.uint8, generator=generator)
    period = torch.where(period & 0x7C == 0x7C, period ^ 0x40, period).to(device)
    turns = -(-count // max(period.numel(), 1))
    return period.repeat(turns)[:count] if count else period


def owned_bytes(tensors: Iterable[tuple[Tensor, Tensor]], storage: Tensor) -> Tensor:
    """[n] bool over a storage's bytes: True where one of the (tensor, bool mask of its shape) pairs has an element that is set."""
    owned = torch.zeros(storage.numel(), dtype=torch.bool, device=storage.device)
    for t, mask in tensors:
        size = t.element_size()
        for byte in range(size if t.numel() else 0):
            at = owned.as_strided(t.shape, [s * size for s in t.stride()], t.storage_offset() * size + byte)
            at[mask] = True
    return owned


def scramble(storage: Tensor, keep: Tensor, seed: int) -> None:
    """Every byte that is not to be kept becomes a random one, in place."""
    torch.where(keep, storage, random_bytes(storage.numel(), storage.device, seed), out=storage)


def changed(before: Tensor, after: Tensor, owned: Tensor | None) -> int | None:
    """The first byte that differs and that nobody owns; None where all is as it was."""
    for start in range(0, before.numel(), CHUNK):
        part = slice(start, start + CHUNK)
        wrong = before[part] != after[part]
        if owned is not None:
            wrong &= ~owned[part]
        if wrong.any():
            return start + int(wrong.nonzero()[0])
    return None
