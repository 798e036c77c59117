"""What is timed: the shipped recipes at which sizes and rows, and their inputs as sets that replays find cold.

Importing this module needs neither torch nor a GPU.
"""
from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from fusec.runtime.artifact import Artifact

COLD_BYTES = 100_000_000
"""What one round over all sets touches at least, where MOST_SETS sets suffice: twice the second-level cache of an H200."""
MOST_SETS = 256
CHOSEN = ((12, 1), (12, 4), (12, 32), (12, 256), (96, 1), (96, 8), (96, 32))
EVERY = tuple((heads, rows) for heads, every in ((96, (1, 4, 8, 32, 128)), (48, (1, 4, 32, 128)), (32, (1, 4, 32, 128)),
                                                 (24, (1, 4, 32, 64)), (12, (1, 4, 32, 256))) for rows in every)
"""(heads, rows) of the KDA step: those of every run, and the grid that serving engines test theirs on."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One compilation: a function of a recipe file at sizes of its example.

    pool: the paged state that the step streams, and the index that picks its slots; None where nothing is paged.
    """

    recipe: str
    function: str
    sizes: tuple[tuple[str, int | str], ...] = ()
    pool: tuple[str, str] | None = None

    @property
    def label(self) -> str:
        """The sizes as text: `H=12 state=bf16`."""
        return " ".join(f"{n}={v}" for n, v in self.sizes)

    def fused(self) -> Any:
        """The decorated function."""
        return getattr(importlib.import_module(f"fusec.recipes.{self.recipe}"), self.function)


@dataclass(frozen=True, slots=True)
class Case:
    """A subject at a number of rows."""

    subject: Subject
    rows: int


def kda(heads: int, state: str) -> Subject:
    return Subject("kimi_k3_decode", "kda_decode", (("H", heads), ("state", state)), ("state", "state_indices"))


GLA = Subject("gla_decode", "gla_decode", (), ("pool", "idx"))
CONV = Subject("short_conv", "short_conv")
NORM = Subject("rmsnorm", "add_rmsnorm_quant")
FUNCTIONS = ("kda_decode", "gla_decode", "short_conv", "add_rmsnorm_quant")


def cases(every: bool = False, only: Iterable[str] = ()) -> list[Case]:
    """The cases of a run: `every` takes the whole grid of the KDA step; `only` names functions, none meaning all."""
    found = [Case(kda(h, state), rows) for state in ("fp32", "bf16") for h, rows in (EVERY if every else CHOSEN)]
    found += [Case(GLA, rows) for rows in (1, 8, 64, 256, 4096)]
    found += [Case(CONV, rows) for rows in (1, 8, 64, 256, 4096, 65536)]
    found += [Case(NORM, rows) for rows in (1, 8, 64, 256, 4096, 16384)]
    wanted = set(only)
    return [c for c in found if not wanted or c.subject.function in wanted]


def subjects(found: Iterable[Case]) -> list[Subject]:
    """What must be compiled for these cases, each once."""
    return list(dict.fromkeys(c.subject for c in found))


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
    return Inputs(parts, [poisoned(artifact, case.rows, device) for _ in parts], artifact.graph.mutated)


def row_dims(artifact: Artifact) -> dict[str, int | None]:
    """The dim of each argument that counts rows, None where there is none."""
    rows = artifact.graph.rows
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


def moved(artifact: Artifact, rows: int) -> int:
    """Bytes that the step must read and write at a number of rows (exactly linear in it)."""
    from fusec.passes.traffic import bytes_moved
    graph = artifact.graph

    def at(n: int) -> int:
        sizes: Mapping[str, int] = {**artifact.sizes, str(graph.rows): n}
        return bytes_moved(graph, sizes)

    two = at(2)
    return two + (rows - 2) * (at(3) - two)
