"""Eager mode as a GPU has it: each elementwise op on narrow floats is computed in fp32 and rounded once.

On the CPU some of PyTorch's kernels round more often than that, depending on where in a vector an element lies (rsqrt of bf16
rounds the square root as well), round a mean's sum before they divide it, or narrow a Python number before they add it. A cube is
the one that both round within. Where a
function leaves an order open, topk(sorted=False), it is the sorted one, which a kernel has too.
"""
from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

NARROW = (torch.bfloat16, torch.float16)
MIXED = frozenset({"add", "sub", "rsub", "mul", "div", "pow", "addcmul", "addcdiv", "lerp", "maximum", "minimum", "fmax", "fmin"})
"""Ops whose tensors are all brought to the dtype of the result before anything is computed; other ops may take masks."""
AS_IT_IS = frozenset({"where", "masked_fill", "copy", "_to_copy", "clone", "fill", "zeros_like", "ones_like", "detach", "alias"})
BESIDES = frozenset({"mean", "prod", "_log_softmax"})
NUMBERS_ROUNDED = frozenset({"pow", "remainder", "fmod"})
"""Ops that bring their Python numbers to the dtype of the result as well, as they do on a GPU."""
BYTES = (torch.float8_e4m3fn, torch.float8_e5m2)
MOVES = frozenset({"index_copy", "index_select", "index_put", "_index_put_impl", "gather", "scatter", "roll", "flip", "where"})
"""Ops that move elements and look at none: some of them the CPU does not have for fp8, and has for bytes."""


class _Attention(TorchFunctionMode):
    """Attention as one op: what the CPU has for narrow floats rounds the scores and the weights as well, by the way it takes."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = args, kwargs or {}
        if func is not scaled_dot_product_attention or not _narrow(tree_leaves(given)):
            return func(*given[0], **given[1])
        wide = tree_map_only(Tensor, lambda t: t.to(torch.float32) if t.dtype in NARROW else t, given)
        query = args[0] if args else given[1]["query"]
        return func(*wide[0], **wide[1]).to(query.dtype)


class SingleRounding(TorchDispatchMode):
    """While entered, elementwise ops, means and attention of bf16 and fp16 CPU tensors round once, topk is sorted, and fp8 can be
    moved."""

    def __enter__(self) -> Any:
        self._attention = _Attention()
        self._attention.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._attention.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.split("::")[1]
        if name == "topk":
            args, kwargs = args[:4], {k: v for k, v in kwargs.items() if k != "sorted"}
        plain = name[:-1] if name.endswith("_") and not name.startswith("_") else name
        tensor = [str(r.type) for r in func._schema.returns] == ["Tensor"]
        wanted = tensor and (torch.Tag.pointwise in func.tags or plain in BESIDES)
        if plain in MOVES and _only_bytes(func, args, kwargs):
            return _moved(func, plain != name, args, kwargs)
        if not wanted or plain in AS_IT_IS or not _narrow(args) or "out" in kwargs:
            return func(*args, **kwargs)
        if plain != name:
            functional = getattr(getattr(torch.ops.aten, plain, None), func._overloadname, None)
            if functional is None:
                return func(*args, **kwargs)
            return args[0].copy_(_widened(functional, plain, args, kwargs, args[0].dtype))
        return _widened(func, plain, args, kwargs, None)


def _only_bytes(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether all that is moved is fp8 of one kind, numbers among it left out."""
    kinds = {t.dtype for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.is_floating_point()}
    numbers = any(str(a.type) == "number" for a in func._schema.arguments)
    return len(kinds) == 1 and kinds <= set(BYTES) and not numbers


def _moved(func: Any, in_place: bool, args: Any, kwargs: Any) -> Any:
    """func, which moves elements, on the bytes of fp8 tensors."""
    def as_bytes(t: Tensor) -> Tensor:
        return t.view(torch.uint8) if t.dtype in BYTES else t

    kinds = {t.dtype for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.dtype in BYTES}
    found = func(*tree_map_only(Tensor, as_bytes, args), **tree_map_only(Tensor, as_bytes, kwargs))
    return args[0] if in_place else found.view(kinds.pop()) if found.dtype == torch.uint8 else found


def _narrow(args: Any) -> bool:
    return any(isinstance(a, Tensor) and a.dtype in NARROW and a.device.type == "cpu" for a in args)


def _widened(func: Any, name: str, args: Any, kwargs: Any, dtype: torch.dtype | None) -> Any:
    """func with narrow tensors as fp32, and its result rounded to the dtype that it gives without that."""
    result = func(*tree_map_only(Tensor, lambda t: t.to("meta"), args), **kwargs)
    if not isinstance(result, Tensor) or result.dtype not in NARROW:
        return func(*args, **kwargs)

    if name == "pow" and isinstance(args[1], (int, float)) and args[1] == 3:
        return _widened(torch.ops.aten.mul.Tensor, "mul", (_widened(func, name, (args[0], 2), {}, None), args[0]), {}, dtype)

    def widen(t: Tensor) -> Tensor:
        if name in MIXED:
            return t.to(result.dtype).to(torch.float32)
        return t.to(torch.float32) if t.dtype in NARROW else t

    kwargs = {k: v for k, v in kwargs.items() if k != "dtype"}
    if name in NUMBERS_ROUNDED:
        args = tuple(torch.tensor(a, dtype=result.dtype).item() if isinstance(a, float) else a for a in args)
    return func(*tree_map_only(Tensor, widen, args), **kwargs).to(result.dtype if dtype is None else dtype)
