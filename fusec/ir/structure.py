"""What a function returns: the flat list of its leaves, and a text that says how they were packed.

"tensor", "tuple", "list", "none" and "dict:key,key" are flat. Anything else is "nested:" and a template in which * stands for the
next leaf; a namedtuple or a dataclass is a pair of "@module:name" and its fields there. A leaf that is a constant is written `!`
and its repr.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any

from ..errors import CaptureError, Loc

CONSTANT = (int, float, bool, str, type(None))
Rebuild = Callable[[Sequence[Any]], Any]


def leaves(tree: Any) -> list[Any]:
    """The leaves in order, those of namedtuples and dataclasses in the order of their fields; nothing at all has none."""
    return [] if tree is None else _leaves(tree)


def _leaves(tree: Any) -> list[Any]:
    parts = _parts(tree)
    return [tree] if parts is None else [leaf for x in parts for leaf in _leaves(x)]


def _parts(tree: Any) -> list[Any] | None:
    """What a container holds; None for a leaf."""
    fields = _fields(tree)
    if fields is not None:
        return list(fields.values())
    if isinstance(tree, dict):
        return list(tree.values())
    return list(tree) if isinstance(tree, (list, tuple)) else None


def _fields(tree: Any) -> dict[str, Any] | None:
    """The fields of a namedtuple or a dataclass."""
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return dict(zip(tree._fields, tree))
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        return {f.name: getattr(tree, f.name) for f in dataclasses.fields(tree)}
    return None


def describe(tree: Any, is_tensor: Callable[[Any], bool], loc: Loc) -> str:
    """The structure text; CaptureError for a result that is neither tensor nor constant nor a container of them."""
    for leaf in leaves(tree):
        if not is_tensor(leaf) and type(leaf) not in CONSTANT:
            raise CaptureError(f"the function returns a {type(leaf).__name__}", loc,
                               "return tensors, in tuples, lists, dicts, namedtuples or dataclasses")
    if tree is None:
        return "none"
    if is_tensor(tree):
        return "tensor"
    parts = _parts(tree)
    flat = parts is not None and _fields(tree) is None and all(_parts(x) is None for x in parts)
    if flat and isinstance(tree, dict) and all(isinstance(k, str) and k and "," not in k for k in tree):
        return "dict:" + ",".join(tree)
    if flat and not isinstance(tree, dict):
        return "list" if isinstance(tree, list) else "tuple"
    text = "nested:" + _template(tree, loc)
    try:
        rebuild(text, leaves(tree))
    except (ValueError, SyntaxError, TypeError) as error:
        raise CaptureError(f"the function returns a container that cannot be made again: {error}", loc,
                           "use plain dict keys, and dataclasses that take all of their fields") from None
    return text


def _template(tree: Any, loc: Loc) -> str:
    fields = _fields(tree)
    if fields is not None:
        return f"({_named(type(tree), loc)!r}, {_template(fields, loc)})"
    if isinstance(tree, list):
        return "[" + ", ".join(_template(x, loc) for x in tree) + "]"
    if isinstance(tree, tuple):
        return "(" + ", ".join(_template(x, loc) for x in tree) + ("," if len(tree) == 1 else "") + ")"
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{k!r}: {_template(v, loc)}" for k, v in tree.items()) + "}"
    return "'*'"


def _named(kind: type, loc: Loc) -> str:
    """Where a class is found again."""
    text = f"@{kind.__module__}:{kind.__qualname__}"
    try:
        found = _class(text)
    except (ImportError, AttributeError):
        found = None
    if found is not kind:
        raise CaptureError(f"the function returns a {kind.__name__}, a class that is not found under {text[1:]}", loc,
                           "define it at the top level of a module, or return a tuple")
    return text


def _class(text: str) -> Any:
    module, _, name = text[1:].partition(":")
    return reduce(getattr, name.split("."), importlib.import_module(module))


def rebuild(structure: str, values: Sequence[Any]) -> Any:
    """The function's result from its leaves in order."""
    return rebuilder(structure)(values)


def rebuilder(structure: str) -> Rebuild:
    """What makes the function's result of its leaves, with the text read once."""
    if structure.startswith("dict:"):
        keys = [k for k in structure.removeprefix("dict:").split(",") if k]
        return lambda values: dict(zip(keys, values))
    if structure.startswith("nested:"):
        template = _resolved(ast.literal_eval(structure.removeprefix("nested:")))
        return lambda values: _fill(template, iter(values))
    flat: dict[str, Rebuild] = {"tensor": lambda values: values[0], "tuple": tuple, "list": list, "none": lambda values: None}
    return flat[structure]


def _resolved(tree: Any) -> Any:
    """The template with classes in the place of their names."""
    if isinstance(tree, tuple) and tree and isinstance(tree[0], str) and tree[0].startswith("@"):
        return _class(tree[0]), _resolved(tree[1])
    if isinstance(tree, (list, tuple)):
        return type(tree)(_resolved(x) for x in tree)
    return {k: _resolved(v) for k, v in tree.items()} if isinstance(tree, dict) else tree


def _fill(tree: Any, values: Iterator[Any]) -> Any:
    if isinstance(tree, tuple) and tree and isinstance(tree[0], type):
        return tree[0](**_fill(tree[1], values))
    if isinstance(tree, (list, tuple)):
        return type(tree)(_fill(x, values) for x in tree)
    if isinstance(tree, dict):
        return {k: _fill(v, values) for k, v in tree.items()}
    return next(values)


def constant(output: str) -> Any:
    """The value of an output written `!repr`."""
    text = output[1:]
    return float(text) if text in ("inf", "-inf", "nan") else ast.literal_eval(text)
