"""The device functions as text: read from their files without importing them, found by name with all that they call."""
from __future__ import annotations

import ast
import functools
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources

MODULES = ("values", "lanes", "memory")
"""In the order in which emitted files hold their functions: callees first."""


@dataclass(frozen=True, slots=True)
class DeviceFunction:
    """Source text (decorators included), device functions it calls, and the import lines its text needs beyond cutlass and cute."""

    name: str
    text: str
    calls: frozenset[str]
    imports: frozenset[tuple[str, str]]


def _functions(module: str) -> Iterable[DeviceFunction]:
    text = resources.files("fusec.codegen.device").joinpath(f"{module}.py").read_text(encoding="utf-8")
    tree = ast.parse(text)
    lines = text.splitlines()
    imported = {a.name: n.module for n in tree.body if isinstance(n, ast.ImportFrom) and n.module and not n.level for a in n.names}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            found = frozenset((imported[n], n) for n in names if n in imported)
            yield DeviceFunction(node.name, "\n".join(lines[first - 1:node.end_lineno]), frozenset(names), found)


@functools.cache
def library() -> dict[str, DeviceFunction]:
    """Every device function by name, in the order of emission."""
    return {f.name: f for module in MODULES for f in _functions(module)}


def closure(names: Iterable[str]) -> list[DeviceFunction]:
    """The named functions and all that they call, callees first. KeyError for a name there is none of."""
    wanted, queue = set(), list(names)
    while queue:
        name = queue.pop()
        if name not in wanted:
            wanted.add(name)
            queue += [n for n in library()[name].calls if n in library() and n != name]
    return [f for f in library().values() if f.name in wanted]
