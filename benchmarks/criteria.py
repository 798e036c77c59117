"""What the measured times are judged by: one table, and whether each row of the results meets what is asked of it."""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Verdict:
    """One criterion on one row, as text that ends in what is needed, and whether it is met."""

    text: str
    ok: bool

    def __str__(self) -> str:
        return f"{self.text}: {'yes' if self.ok else 'no'}"


@dataclass(frozen=True, slots=True)
class Reaches:
    """Another's time over fusec's is at least `least`, where more than `above` bytes move."""

    functions: tuple[str, ...]
    against: str
    least: float
    above: int = 0

    def judge(self, row: Row, rows: Sequence[Row]) -> Verdict | None:
        if row["function"] not in self.functions or row["bytes"] <= self.above or self.against not in row["us"]:
            return None
        needs = f"of {_the(self.against)}{_at(row)} (needs {self.least:.2f})"
        if "fusec" not in row["us"]:
            return Verdict(f"{_title(row)}: not measured, {needs}", False)
        reached = row["us"][self.against] / row["us"]["fusec"]
        return Verdict(f"{_title(row)}: {reached:.3f} {needs}", reached >= self.least)


@dataclass(frozen=True, slots=True)
class Near:
    """fusec takes at most `more` µs beyond what `floors` take together, at sizes that begin so and up to so many tokens."""

    functions: tuple[str, ...]
    floors: tuple[str, ...]
    more: float
    sizes: str
    tokens: int

    def judge(self, row: Row, rows: Sequence[Row]) -> Verdict | None:
        fits = row["function"] in self.functions and row["sizes"].startswith(self.sizes) and row["tokens"] <= self.tokens
        if not fits or any(f not in row["us"] for f in self.floors):
            return None
        needs = f"beyond {' + '.join(self.floors)}{_at(row)} (needs {self.more:.2f} µs)"
        if "fusec" not in row["us"]:
            return Verdict(f"{_title(row)}: not measured, {needs}", False)
        beyond = row["us"]["fusec"] - sum(row["us"][f] for f in self.floors)
        return Verdict(f"{_title(row)}: {beyond:.2f} µs {needs}", beyond <= self.more)


@dataclass(frozen=True, slots=True)
class Beside:
    """A function takes at most `most` times what another takes at the same sizes and tokens."""

    function: str
    other: str
    most: float
    sizes: str
    tokens: int

    def judge(self, row: Row, rows: Sequence[Row]) -> Verdict | None:
        if row["function"] != self.function or not row["sizes"].startswith(self.sizes) or row["tokens"] != self.tokens:
            return None
        plain = next((r for r in rows if (r["function"], r["sizes"], r["tokens"]) == (self.other, row["sizes"], self.tokens)), None)
        if plain is None or "fusec" not in plain["us"]:
            return None
        needs = f"times {self.other}{_at(row)} (needs at most {self.most:.2f})"
        if "fusec" not in row["us"]:
            return Verdict(f"{_title(row)}: not measured, {needs}", False)
        factor = row["us"]["fusec"] / plain["us"]["fusec"]
        return Verdict(f"{_title(row)}: {factor:.3f} {needs}", factor <= self.most)


Criterion = Reaches | Near | Beside
RECURRENCES = ("gdn_decode", "gla_decode", "mamba2_decode", "lightning_decode", "mlstm_decode", "rwkv7_decode",
               "kimi_linear_decode")
ROWS = ("add_rmsnorm", "add_rmsnorm_quant", "swiglu", "swiglu_quant", "qk_norm_rope", "attention_residual", "merge_states")
PLAIN = ("reduce_natural", "mla_reduce")
REDUCTIONS = (*PLAIN, "reduce_base2", "reduce_max_sum", "reduce_grouped", "reduce_unrotate_quant")

CRITERIA: tuple[Criterion, ...] = (
    Reaches(RECURRENCES, "probe", 0.88, 50 * MB),
    Reaches(ROWS, "copy", 0.90, 50 * MB),
    Reaches(REDUCTIONS, "probe", 0.90, 30 * MB),
    Near(PLAIN, ("empty", "probe"), 1.5, "H=16 S=32 D=512", 8),
    Reaches(REDUCTIONS, "sglang-triton", 1.0),
    Reaches(REDUCTIONS, "torch.compile", 1.0),
    Beside("reduce_unrotate_quant", "reduce_natural", 1.10, "H=64 S=16 D=512", 128),
)


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    """Every criterion on every row that it speaks of, in the order of the table."""
    return list(_verdicts(rows))


def _verdicts(rows: Sequence[Row]) -> Iterator[Verdict]:
    for criterion in CRITERIA:
        for row in rows:
            verdict = criterion.judge(row, rows)
            if verdict is not None:
                yield verdict


def _title(row: Row) -> str:
    return f"{row['function']} {row['sizes']}".strip()


def _at(row: Row) -> str:
    count, unit = (row["tokens"], "token") if row["tokens"] != row["rows"] or row["group"] == "splits" else (row["rows"], "row")
    return f" at {count:,} {unit}{'s' if count != 1 else ''}"


def _the(name: str) -> str:
    return f"the {name}" if name in ("probe", "copy") else name
