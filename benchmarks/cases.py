"""What one case of the benchmark is: a function at sizes and rows, its inputs as sets that replays find cold, the bytes it moves.

Importing this module needs neither torch nor a GPU.
"""
from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from fusec.runtime.artifact import Artifact

COLD_BYTES = 100_000_000
"""What one round over all sets touches at least, where MOST_SETS sets suffice: twice the second-level cache of an H200."""
MOST_SETS = 256
KEYS = 128
"""Of one split: that of the recipes of split-KV reduction."""


@dataclass(frozen=True, slots=True)
class Splits:
    """Where a split-KV reduction has its parts.

    order: of tokens, heads, splits and dims in the tensor `partial`; in the order THSD tokens may be two dims, and tokens and heads
    one. lengths: the arguments that hold the keys of a token. tokens: in a row. scalars: fp32 numbers beside each part.
    """

    order: str = "THSD"
    lengths: tuple[str, ...] = ("lengths",)
    tokens: int = 1
    scalars: int = 1
    partial: str = "partial"

    def view(self, partial: torch.Tensor, tokens: int) -> torch.Tensor:
        """The parts as [tokens, heads, splits, dims], without a copy."""
        if self.order == "THSD":
            return partial.view(tokens, -1, *partial.shape[-2:])
        return partial.permute(*(self.order.index(n) for n in "THSD"))


@dataclass(frozen=True, slots=True)
class Subject:
    """One compilation: a function of a recipe file at sizes of its example.

    pool: the paged state that the step streams, and the index that picks its slots; None where nothing is paged. splits: where the
    parts are whose number varies by token; then the sizes H, S and D must be given. title: its name in the results, if not the
    function's.
    """

    recipe: str
    function: str
    sizes: tuple[tuple[str, int | str], ...] = ()
    pool: tuple[str, str] | None = None
    splits: Splits | None = None
    title: str = ""

    @property
    def name(self) -> str:
        return self.title or self.function

    @property
    def label(self) -> str:
        """The sizes as text: `H=12 state=bf16`."""
        return " ".join(f"{n}={v}" for n, v in self.sizes)

    @property
    def floor(self) -> str:
        """What stands beside it: the `probe` streams what the step picks, a `copy` moves as many bytes."""
        return "probe" if self.pool or self.splits else "copy"

    def fused(self) -> Any:
        """The decorated function."""
        return getattr(importlib.import_module(f"fusec.recipes.{self.recipe}"), self.function)


@dataclass(frozen=True, slots=True)
class Case:
    """A subject at a number of rows.

    full: of split-KV reductions, whether every token has all splits; else the tokens' keys are spread evenly from none to all.
    group: the part of a run that it belongs to. empty: whether an empty kernel is timed beside it. compiled: whether torch.compile
    is, where the run asks for that.
    """

    subject: Subject
    rows: int
    group: str = ""
    full: bool = False
    empty: bool = False
    compiled: bool = False

    @property
    def label(self) -> str:
        """The sizes as text, and of split-KV reductions how many of the splits are used."""
        used = () if self.subject.splits is None else ("all splits" if self.full else "some splits",)
        return " ".join((*((self.subject.label,) if self.subject.sizes else ()), *used))

    @property
    def tokens(self) -> int:
        return self.rows * (self.subject.splits.tokens if self.subject.splits else 1)


def lengths(case: Case) -> list[int]:
    """How many keys each token of a split-KV reduction has, in no order: the same for each set, and none has no keys."""
    keys = int(dict(case.subject.sizes)["S"]) * KEYS
    return [keys if case.full else max(1, (2 * i + 1) * keys // (2 * case.tokens)) for i in range(case.tokens)]


def used_splits(case: Case) -> int:
    """Splits that the tokens of a set use, in all."""
    return sum(-(-n // KEYS) for n in lengths(case))


def set_count(bytes_moved: int) -> int:
    """Sets in a round, so that the round touches COLD_BYTES: what moves is read, written or both, so at least half is touched."""
    return max(2, min(MOST_SETS, -(-2 * COLD_BYTES // bytes_moved)))


@dataclass(frozen=True, slots=True)
class Inputs:
    """sets: arguments by name, one dict per set; sets share pools and weights, and each has slots and rows of its own.

    outputs: for each set, what to pass as `out=`. mutated: arguments that a call writes.
    """

    sets: Sequence[dict[str, torch.Tensor]]
    outputs: Sequence[Any]
    mutated: tuple[str, ...]


def make_inputs(case: Case, artifact: Artifact, sets: int, device: str = "cuda") -> Inputs:
    """Cut one large example into sets by its rows; each part is a tensor of its own, so that it is as aligned as any."""
    import torch
    torch.manual_seed(1)
    whole = case.subject.fused().inputs(case.rows * sets, device, **dict(case.subject.sizes))
    if case.subject.pool is not None:
        _leave_slot_zero(whole, *case.subject.pool)
    along = row_dims(artifact)
    parts = [{n: _part(t, along.get(n), i, sets) for n, t in whole.items()} for i in range(sets)]
    if case.subject.splits is not None:
        for part in parts:
            _give_lengths(part, case.subject.splits, lengths(case))
    return Inputs(parts, [poisoned(artifact, case.rows, device) for _ in parts], artifact.graph.mutated)


def row_dims(artifact: Artifact) -> dict[str, int | None]:
    """The dim of each argument that counts rows, None where there is none."""
    rows = str(artifact.graph.rows)
    found: dict[str, int | None] = {}
    for a in artifact.graph.arguments:
        dims = [d for d, n in enumerate(a.shape) if not isinstance(n, int) and rows in map(str, n.free_symbols)]
        found[a.name] = dims[0] if dims else None
    return found


def _part(t: torch.Tensor, dim: int | None, number: int, count: int) -> torch.Tensor:
    if dim is None:
        return t
    import torch
    each = t.shape[dim] // count
    part = t.narrow(dim, number * each, each)
    return part.clone(memory_format=torch.contiguous_format if t.is_contiguous() else torch.preserve_format)


def _leave_slot_zero(example: dict[str, Any], pool: str, index: str) -> None:
    """Whoever holds slot 0 gets one that nobody holds: some peers take slot 0 for a row without a request."""
    slots = example[index]
    taken = set(slots.tolist())
    free = next(s for s in range(1, example[pool].shape[0]) if s not in taken)
    slots[slots == 0] = free


def _give_lengths(part: dict[str, Any], splits: Splits, keys: list[int]) -> None:
    """The tokens get these numbers of keys, in an order of the set's own; where several arguments bound them, all say the same."""
    import torch
    drawn = torch.tensor(keys)[torch.randperm(len(keys))]
    for name in splits.lengths:
        part[name].copy_(drawn.view(part[name].shape))


def counts(case: Case, part: Mapping[str, Any]) -> torch.Tensor:
    """How many splits each token of a set uses, [tokens] int32."""
    import torch
    assert case.subject.splits is not None
    keys: torch.Tensor = part[case.subject.splits.lengths[0]]
    return ((keys.flatten() + KEYS - 1) // KEYS).to(torch.int32)


def poisoned(artifact: Artifact, rows: int, device: str) -> Any:
    """What `out=` takes, every value 777 (in fp8 what that becomes)."""
    import torch

    from fusec.ir.reference import TORCH_DTYPE
    made = {}
    for a in artifact.graph.fresh:
        shape = [n if isinstance(n, int) else int(n.subs({s: rows for s in n.free_symbols})) for n in a.shape]
        made[a.name] = torch.full(shape, 777.0, device=device).to(TORCH_DTYPE[a.dtype])
    given = [made[n] for n in artifact.graph.outputs]
    return given[0] if artifact.graph.structure == "tensor" else tuple(given)


def moved(artifact: Artifact, case: Case) -> int:
    """Bytes that the step must read and write; of parts that vary by token only those in use."""
    total = moved_by_rows(artifact, case.rows)
    if case.subject.splits is None:
        return total
    from fusec.ir.dtype import BYTES
    at = {n: int(v) for n, v in case.subject.sizes if n in "HSD"}
    graph, splits = artifact.graph, case.subject.splits
    part = at["H"] * (at["D"] * BYTES[graph.tensors[splits.partial].dtype] + 4 * splits.scalars)
    return total - (case.tokens * at["S"] - used_splits(case)) * part


def moved_by_rows(artifact: Artifact, rows: int) -> int:
    """The same with every part in use (exactly linear in the rows)."""
    from fusec.passes.traffic import bytes_moved
    graph = artifact.graph

    def at(n: int) -> int:
        sizes: Mapping[str, int] = {**artifact.sizes, str(graph.rows): n}
        return bytes_moved(graph, sizes)

    two = at(2)
    return two + (rows - 2) * (at(3) - two)
