"""What a function returns: the flat list of its leaves, and a text that says how they were packed.

"tensor", "tuple", "list", "none" and "dict:key,key" are flat. Anything deeper is "nested:" and a template in which * stands for the
next leaf. A leaf that is a constant is written `!` and its repr.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any

from ..errors import CaptureError, Loc

CONSTANT = (int, float, bool, str, type(None))


def leaves(tree: Any) -> list[Any]:
    """The leaves in order; a namedtuple counts as a tuple."""
    if isinstance(tree, (list, tuple)):
        return [leaf for x in tree for leaf in leaves(x)]
    if isinstance(tree, dict):
        return [leaf for x in tree.values() for leaf in leaves(x)]
    return [tree]


def describe(tree: Any, is_tensor: Any, loc: Loc) -> str:
    """The structure text; CaptureError for a result that is neither tensor nor constant nor a container of them."""
    for leaf in leaves(tree):
        if not is_tensor(leaf) and type(leaf) not in CONSTANT:
            raise CaptureError(f"the function returns a {type(leaf).__name__}", loc, "return tensors, in tuples, lists or dicts")
    if tree is None:
        return "none"
    if is_tensor(tree):
        return "tensor"
    flat = isinstance(tree, (list, tuple, dict)) and not any(
        isinstance(x, (list, tuple, dict)) for x in (tree.values() if isinstance(tree, dict) else tree)
    )
    if flat and isinstance(tree, dict) and all(isinstance(k, str) and "," not in k for k in tree):
        return "dict:" + ",".join(tree)
    if flat and not isinstance(tree, dict):
        return "list" if isinstance(tree, list) else "tuple"
    return "nested:" + _template(tree)


def _template(tree: Any) -> str:
    if isinstance(tree, list):
        return "[" + ", ".join(map(_template, tree)) + "]"
    if isinstance(tree, tuple):
        return "(" + ", ".join(map(_template, tree)) + ("," if len(tree) == 1 else "") + ")"
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{k!r}: {_template(v)}" for k, v in tree.items()) + "}"
    return "'*'"


def rebuild(structure: str, values: Sequence[Any]) -> Any:
    """The function's result from its leaves in order."""
    if structure == "none":
        return None
    if structure == "tensor":
        return values[0]
    if structure in ("tuple", "list"):
        return tuple(values) if structure == "tuple" else list(values)
    if structure.startswith("dict:"):
        return dict(zip([k for k in structure[5:].split(",") if k], values))
    return _fill(ast.literal_eval(structure.removeprefix("nested:")), iter(values))


def _fill(tree: Any, values: Iterator[Any]) -> Any:
    if isinstance(tree, list):
        return [_fill(x, values) for x in tree]
    if isinstance(tree, tuple):
        return tuple(_fill(x, values) for x in tree)
    if isinstance(tree, dict):
        return {k: _fill(v, values) for k, v in tree.items()}
    return next(values)


def constant(output: str) -> Any:
    """The value of an output written `!repr`."""
    text = output[1:]
    return float(text) if text in ("inf", "-inf", "nan") else ast.literal_eval(text)
