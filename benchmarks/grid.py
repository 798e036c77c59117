"""What a run times: every function at which sizes and rows, in groups that can be run apart.

Rows are chosen so that the larger ones move more than what a criterion asks for, and no case needs more than a few gigabytes.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence

from .cases import Case, Splits, Subject

CHOSEN = ((12, 1), (12, 4), (12, 32), (12, 256), (96, 1), (96, 8), (96, 32))
EVERY = tuple((heads, rows) for heads, every in ((96, (1, 4, 8, 32, 128)), (48, (1, 4, 32, 128)), (32, (1, 4, 32, 128)),
                                                 (24, (1, 4, 32, 64)), (12, (1, 4, 32, 256))) for rows in every)
"""(heads, rows) of the KDA step: those of every run, and the grid that serving engines test theirs on."""


def kda(heads: int, state: str) -> Subject:
    return Subject("kimi_k3_decode", "kda_decode", (("H", heads), ("state", state)), ("state", "state_indices"))


def gdn(state: str) -> Subject:
    return Subject("gated_deltanet_decode", "gdn_decode", (("state", state),), ("state", "cache_indices"))


def mamba2(state: str) -> Subject:
    return Subject("mamba2_decode", "mamba2_decode", (("state", state),), ("ssm_state", "indices"))


GLA = Subject("gla_decode", "gla_decode", (), ("pool", "idx"))
LIGHTNING = Subject("lightning_decode", "lightning_decode", (), ("kv_cache", "slot_id"))
MLSTM = Subject("mlstm_decode", "mlstm_decode", (), ("memory", "idx"))
RWKV7 = Subject("rwkv7_decode", "rwkv7_decode", (), ("state", "idx"))
KIMI_LINEAR = Subject("kimi_linear_decode", "kda_decode", (), ("state", "slots"), title="kimi_linear_decode")

CONV = Subject("short_conv", "short_conv")
NORM = Subject("rmsnorm", "add_rmsnorm")
NORM_QUANT = Subject("rmsnorm", "add_rmsnorm_quant")
SWIGLU = Subject("swiglu", "swiglu")
SWIGLU_QUANT = Subject("swiglu", "swiglu_quant")
ROPE = Subject("qk_norm_rope", "qk_norm_rope")
RESIDUAL = Subject("attention_residual", "attention_residual")
MERGE = Subject("merge_states", "merge_states")


def reduction(function: str, heads: int, splits: int, where: Splits, recipe: str = "split_kv_reduce") -> Subject:
    return Subject(recipe, function, (("H", heads), ("S", splits), ("D", 512)), splits=where)


NATURAL = reduction("reduce_natural", 16, 32, Splits())
NATURAL_V4 = reduction("reduce_natural", 64, 16, Splits())
MLA = reduction("mla_reduce", 16, 32, Splits(), "kimi_k3_decode")
BASE2 = reduction("reduce_base2", 16, 32, Splits("STHD"))
MAX_SUM = reduction("reduce_max_sum", 16, 16, Splits("TSHD", scalars=2))
GROUPED = reduction("reduce_grouped", 16, 16, Splits(lengths=("lengths", "topk_lengths")))
V4 = reduction("reduce_unrotate_quant", 64, 16, Splits(lengths=("topk_lengths",), tokens=2), "deepseek_v4_decode")
SMALL = (1, 2, 4, 8)
"""Tokens of a reduction that an empty kernel is timed beside."""

ROWS: dict[str, tuple[tuple[Subject, tuple[int, ...]], ...]] = {
    "recurrences": (
        (gdn("fp32"), (1, 8, 32, 256)), (gdn("bf16"), (1, 32, 256)), (GLA, (1, 8, 64, 256, 4096)),
        (mamba2("fp32"), (1, 8, 32, 128)), (mamba2("bf16"), (1, 16, 128)), (LIGHTNING, (1, 8, 32, 128)),
        (MLSTM, (1, 8, 128)), (RWKV7, (1, 8, 64, 512)), (KIMI_LINEAR, (1, 32, 256)),
    ),
    "rows": (
        (CONV, (1, 8, 64, 256, 4096, 65536)), (NORM, (1, 64, 2048, 16384)), (NORM_QUANT, (1, 8, 64, 256, 4096, 16384)),
        (SWIGLU, (1, 64, 8192, 32768)), (SWIGLU_QUANT, (1, 64, 8192, 32768)), (ROPE, (1, 64, 4096, 16384)),
        (RESIDUAL, (1, 64, 512, 4096)), (MERGE, (1, 64, 2048, 8192)),
    ),
    "splits": (
        (NATURAL, (1, 2, 4, 8, 32, 128, 512)), (NATURAL_V4, (128, 512)), (MLA, (1, 8, 128, 512)), (BASE2, (1, 8, 128, 512)),
        (MAX_SUM, (1, 8, 128, 512)), (GROUPED, (1, 8, 256, 1024)), (V4, (1, 64, 256)),
    ),
}
"""Every group but that of the KDA step: subjects and their rows (of V4 two tokens each)."""
FULL = {NATURAL: (1, 2, 4, 8, 128), MLA: (1,), NATURAL_V4: (128,), V4: (64,)}
"""Rows at which a reduction is also timed with every token using all splits."""
COMPILED = {NATURAL: (1, 8, 128), NATURAL_V4: (128,), MLA: (128,), V4: (64,)}
"""Rows at which torch.compile is timed beside a reduction, where the run asks for it: each takes some seconds to compile."""
GROUPS = ("kda", *ROWS)


def cases(every: bool = False, only: Iterable[str] = (), groups: Iterable[str] = ()) -> list[Case]:
    """The cases of a run. every: the whole grid of the KDA step. only, groups: names of functions and of groups; none means all."""
    found = [Case(kda(h, state), rows, "kda") for state in ("fp32", "bf16") for h, rows in (EVERY if every else CHOSEN)]
    for group, subjects in ROWS.items():
        for subject, rows in subjects:
            found += [_case(subject, n, group, full) for full in (False, True)
                      for n in (FULL.get(subject, ()) if full else rows)]
    names, parts = set(only), set(groups)
    return [c for c in found if (not names or c.subject.name in names) and (not parts or c.group in parts)]


def _case(subject: Subject, rows: int, group: str, full: bool) -> Case:
    return Case(subject, rows, group, full, empty=subject.splits is not None and rows in SMALL,
                compiled=rows in COMPILED.get(subject, ()) and not full)


FUNCTIONS = tuple(dict.fromkeys(c.subject.name for c in cases()))


def subjects(found: Sequence[Case]) -> list[Subject]:
    """What must be compiled for these cases, each once."""
    return list(dict.fromkeys(c.subject for c in found))
