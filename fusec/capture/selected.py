"""What a mask selects, computed with and put back: x[m] = y[m] * 2. Its size depends on values, so it stays as wide as it was; only
elementwise functions know it, and only what the same mask selects meets it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import Loc
from .builder import Builder, Value, broadcast
from .ops import OPS
from .registry import Result

ELEMENTWISE = tuple(f"{__package__}.{kind}" for kind in ("pointwise", "promote"))
"""Where functions of single elements have their rows."""
COPIES = frozenset("clone contiguous detach alias lift_fresh_copy _to_copy to type_as copy silu gelu sigmoid softplus relu".split())
HINT = "use torch.where: what a mask selects can be computed with elementwise and put back by the same mask, no more"


@dataclass(frozen=True, slots=True)
class Selected:
    """The elements of `whole` where `mask` holds, whose dims are the first of whole's; `loc` is where they were selected."""

    whole: Value
    mask: Value
    loc: Loc


def is_mask(index: Any) -> bool:
    return isinstance(index, Value) and index.dtype == "bool"


def selects(target: str, arguments: list[Any]) -> bool:
    """Whether an op selects by a mask alone, or has operands that were so selected."""
    if target == "aten.index.Tensor" and len(arguments[1]) == 1 and is_mask(arguments[1][0]):
        return True
    return any(isinstance(a, Selected) for a in arguments)


def build(b: Builder, target: str, dtype: str, arguments: list[Any]) -> Any:
    """What an op gives, a Selected or, where it puts them back, a Value. Raises UnsupportedOp for what is not elementwise."""
    name = target.split(".")[1]
    if name == "index":
        return Selected(arguments[0], arguments[1][0], b.loc)
    if name in ("index_put", "_unsafe_index_put"):
        return _put(b, *arguments[:4])
    chosen = [a for a in arguments if isinstance(a, Selected)]
    mask, row = chosen[0].mask, OPS.get(target)
    known = row is not None and (row.build.__module__ in ELEMENTWISE or name in COPIES)
    if row is None or not known or any(s.mask != mask for s in chosen):
        raise b.unsupported("of what a mask selects", HINT)
    rank = chosen[0].whole.rank - mask.rank
    given = [_aligned(b, a, mask.rank, rank) for a in arguments]
    shape = broadcast([a.shape for a in given if isinstance(a, Value)])
    found = row.build(b, Result(shape, dtype), *given)
    return Selected(found, mask, chosen[0].loc)


def _aligned(b: Builder, a: Any, mask_rank: int, rank: int) -> Any:
    """An operand beside elements of `rank` dims that stand in the dims of a mask."""
    if isinstance(a, Selected):
        return a.whole
    if isinstance(a, Value) and a.rank > rank:
        return b.reshape(a, (1,) * mask_rank + a.shape[a.rank - rank :])
    return a


def _put(b: Builder, x: Any, indices: list[Any], value: Any, accumulate: bool) -> Value:
    if not (isinstance(x, Value) and isinstance(value, Selected) and len(indices) == 1 and indices[0] == value.mask) or accumulate:
        raise b.unsupported("of what a mask selects", HINT)
    mask = b.reshape(value.mask, value.mask.shape + (1,) * (x.rank - value.mask.rank))
    return b.update(x, b.map("select", mask, b.cast(value.whole, x.dtype), x, dtype=x.dtype))
