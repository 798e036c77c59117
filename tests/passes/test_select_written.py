"""Reads of what was just written in part, and picks from computed values: one kernel that does what eager does, or a refusal."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fusec.capture import capture
from fusec.errors import FusionError
from fusec.ir.interpret_kernel import run_kernel
from fusec.ir.reference import TORCH_DTYPE
from fusec.passes.back import to_kernel
from fusec.passes.front import to_graph

from .test_steps_as_kernels import close, own_memory, tensors_of

Example = dict[str, torch.Tensor]
n = torch.randn


def pages(rows: int, width: int) -> Example:
    return dict(idx=torch.randperm(9)[:rows], pos=torch.randint(0, width, (rows,)))


def append_and_attend(cache, query, key, idx, pos):
    cache[idx, :, pos] = key
    keys = cache[idx]
    live = torch.arange(6) <= pos[:, None]
    weight = torch.einsum("rhd,rhsd->rhs", query, keys).masked_fill(~live[:, None], float("-inf")).softmax(-1)
    return torch.einsum("rhs,rhsd->rhd", weight, keys)


def ring(ring, x, pos, weight):
    rows = ring.shape[0]
    ring[torch.arange(rows), pos] = x
    order = (pos[:, None] + torch.arange(-3, 1)) % 5
    taps = ring.gather(1, order[:, :, None].expand(-1, -1, 4))
    return (taps * weight).sum(1), ring.mean(1), (ring.transpose(1, 2) * 2).sum(-1)


def swapped(state):
    state[:, [0, 2]] = state[:, [2, 0]]
    return state.sum(-1)


def one_hot(i, x):
    return x * torch.zeros(i.shape[0], 5).scatter_(1, i[:, None], 1.0)


def read_of_a_written_slot(pool, new, idx, pos):
    pool[idx] = new.tanh()
    return pool[idx, pos]


def read_of_a_clamped_slot(pool, new, slots, which):
    pool[slots, which] = new
    return pool[slots, torch.where(which < 0, 0, which)] * 2


def picks(x, i):
    chosen = x.log_softmax(-1).gather(1, i)
    return chosen, x.tanh()[torch.arange(x.shape[0]), i[:, 0]], (x > 0).gather(1, i)


def picks_at_sums(cs, idx, at, x):
    """Columns from a computed one on: of a picked window, of a computed value, at every second place, across two dims."""
    window = cs[idx]
    near = at[:, None] + torch.arange(3)
    flat = x.exp().flatten(1)
    return (window[:, :, 0].gather(1, near), flat.gather(1, near), window.flatten(1).gather(1, at[:, None] * 2 + torch.arange(3)),
            flat.gather(1, at[:, None]))


def orders(score):
    return score.masked_fill(score < score.topk(3)[0][:, -1:], float("-inf")).softmax(-1), score.argmin(-1)


def order_of_integers(code):
    return (*code.topk(3), code.sort(descending=True).indices)


def diagonals(square):
    return square.exp().diagonal(1, 1, 2).sum(-1) + torch.einsum("bii->b", square)


def circular_convolution(x, state, weight, length, idx):
    width, size = weight.shape[1], state.shape[-1]
    window = state[idx]
    order = (torch.arange(1 - width, 0) + length[:, None]).remainder(size)[:, None].expand(-1, x.shape[1], -1)
    taps = torch.cat([window.gather(2, order), x[..., None]], -1)
    state[idx, :, length.remainder(size)] = x
    return (taps * weight).sum(-1)


def attended(query, ctx, pos, first=0):
    score = torch.einsum("rhd,rtd->rht", query, ctx)
    live = torch.arange(first, ctx.shape[1] + first) <= pos[:, None]
    return torch.einsum("rht,rtd->rhd", score.masked_fill(~live[:, None], float("-inf")).softmax(-1), ctx)


def append_through_the_table(cache, query, key, table, pos):
    cache[table.gather(1, pos[:, None]).squeeze(1)] = key
    return attended(query, cache[table], pos)


def two_tokens_through_the_table(cache, query, key, table, pos):
    cache[table.gather(1, pos[:, None] + torch.arange(2))] = torch.stack([key, key * 2], 1)
    return attended(query, cache[table], pos, -1)


def pages_of_a_table(cache, query, key, table, pos):
    size = cache.shape[1]
    cache[table[torch.arange(query.shape[0]), pos // size].long(), pos % size] = key
    return attended(query, cache[table.long()].flatten(1, 2), pos)


def flat_pages(cache, query, key, table, pos):
    size = cache.shape[1]
    slot = table.take_along_dim((pos // size)[:, None], 1)[:, 0] * size + pos % size
    cache.view(-1, key.shape[-1])[slot] = key
    return attended(query, cache[table].flatten(1, 2), pos)


def tokens_of_a_request(cache, query, key, tokens, request, pos):
    cache[tokens[request, pos]] = key
    return attended(query, cache[tokens[request]], pos)


def moved_between_slots(cache, key, table):
    cache[table[:, 1]] = cache[table[:, 0]] * 0.5 + key
    return cache[table[:, 2]] + cache[table[:, 1]]


def paged(rows: int, columns: int, *page: int, dtype: torch.dtype = torch.int64) -> Example:
    table = torch.randperm(24)[:rows * columns].view(rows, columns).to(dtype)
    table[1] -= 24
    return dict(cache=n(24, *page, 4), query=n(rows, 2, 4), key=n(rows, 4), table=table, pos=torch.tensor([1, 4, 3, 0])[:rows])


STEPS: dict[str, tuple[Callable[..., Any], Callable[[int], Example]]] = {
    "append_and_attend": (append_and_attend, lambda r: dict(cache=n(9, 2, 6, 4), query=n(r, 2, 4), key=n(r, 2, 4), **pages(r, 6))),
    "append_through_the_table": (append_through_the_table, lambda r: paged(r, 6)),
    "two_tokens_through_the_table": (two_tokens_through_the_table, lambda r: paged(r, 6)),
    "pages": (pages_of_a_table, lambda r: paged(r, 3, 2, dtype=torch.int32)),
    "flat_pages": (flat_pages, lambda r: paged(r, 3, 2)),
    "tokens_of_a_request": (tokens_of_a_request, lambda r: dict(
        {k: v for k, v in paged(r, 6).items() if k != "table"}, request=torch.tensor([2, 0, -1, 1]),
        tokens=torch.randperm(24).view(4, 6))),
    "moved_between_slots": (moved_between_slots, lambda r: {k: v for k, v in paged(r, 3).items() if k not in ("query", "pos")}),
    "ring": (ring, lambda r: dict(ring=n(r, 5, 4), x=n(r, 4), pos=torch.randint(0, 5, (r,)), weight=n(4, 4))),
    "swapped": (swapped, lambda r: dict(state=n(r, 5, 4))),
    "one_hot": (one_hot, lambda r: dict(i=torch.randint(0, 5, (r,)), x=n(r, 5))),
    "read_of_a_written_slot": (read_of_a_written_slot, lambda r: dict(pool=n(9, 6, 4), new=n(r, 6, 4), **pages(r, 6))),
    "read_of_a_clamped_slot": (read_of_a_clamped_slot, lambda r: dict(
        pool=n(9, 6, 4), new=n(r, 4), slots=torch.randperm(9)[:r], which=torch.tensor([2, -1, 0, -3])[:r])),
    "picks_at_sums": (picks_at_sums, lambda r: dict(cs=n(9, 8, 2), idx=torch.randperm(9)[:r], at=torch.tensor([5, 0, 4, 2])[:r],
                                                    x=n(r, 4, 2))),
    "orders": (orders, lambda r: dict(score=n(r, 8))),
    "order_of_integers": (order_of_integers, lambda r: dict(code=-(1 << 40) - torch.randperm(r * 8).view(r, 8))),
    "diagonals": (diagonals, lambda r: dict(square=n(r, 6, 6))),
    "circular_convolution": (circular_convolution, lambda r: dict(x=n(r, 12), state=n(9, 12, 6), weight=n(12, 4),
                                                                  idx=torch.randperm(9)[:r], length=torch.randint(0, 20, (r,)))),
    "picks": (picks, lambda r: dict(x=torch.where(n(r, 6) > 1, -0.0, n(r, 6)), i=torch.randint(0, 6, (r, 2)))),
}


@pytest.mark.parametrize("name", STEPS)
def test_step_as_a_kernel(name: str) -> None:
    fn, make = STEPS[name]
    torch.manual_seed(2)
    example = make(4)
    graph = to_graph(capture(fn, {k: own_memory(v) for k, v in example.items()}))
    _, spec = to_kernel(graph, "sm_90a")
    ours, theirs = ({k: own_memory(v) for k, v in example.items()} for _ in range(2))
    want = list(tensors_of(fn(**theirs)))
    for fresh, like in zip(graph.fresh, want, strict=True):
        ours[fresh.name] = torch.full(like.shape, 1 if like.dtype == torch.bool else 77).to(TORCH_DTYPE[fresh.dtype])
    run_kernel(spec, ours)
    for fresh, like in zip(graph.fresh, want, strict=True):
        close(ours[fresh.name], like)
    for k in example:
        close(ours[k], theirs[k])


def other_rows(bank, rows, which, x):
    bank[rows, which] = x
    return bank.sum(1) + x[:, 0, None]


def test_a_read_of_what_other_rows_write_is_refused_at_the_read() -> None:
    example = dict(bank=n(3, 5, 4), rows=torch.tensor([2, 0, 1]), which=torch.tensor([1, 1, 3]), x=n(3, 4))
    with pytest.raises(FusionError, match="this reads bank, which was just updated .at other_rows.1.") as caught:
        to_graph(capture(other_rows, example))
    assert "return bank.sum(1)" in str(caught.value)


def another_rows_entries(cache, key, table):
    cache[table[:, 0]] = key
    return cache[table[0]]


def what_is_no_entry(cache, key, table):
    cache[table[:, 0]] = key
    return cache[table // 2]


def counted_from_elsewhere(cache, key, table):
    cache[torch.where(table < 0, table + 3, table)[:, 0]] = key
    return cache[table[:, 0]]


@pytest.mark.parametrize("fn", [another_rows_entries, what_is_no_entry, counted_from_elsewhere])
def test_what_is_no_entry_of_the_own_row_is_refused(fn: Callable[..., Any]) -> None:
    given = dict(cache=n(9, 4), key=n(3, 4), table=torch.randperm(9).view(3, 3))
    with pytest.raises(FusionError, match="this reads cache, which was just updated"):
        to_graph(capture(fn, given, {"key": {0: "rows"}}))
