"""Faults planted into an emitted source, one at a time: what the emulator must notice (judge.py).

Kinds: a barrier deleted, a wait of an asynchronous copy or a dependent launch deleted, a shared buffer shrunk, two neighbouring
statements that depend on each other swapped, a 64-bit product made 32-bit, a predicate dropped. Only the kernel function is
touched, and the launch's shared memory.
"""
from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .rewrite import RUNTIME, is_kernel

@dataclass(frozen=True, slots=True)
class Mutant:
    """A changed source. line: of the original; what: the change in words; proof: a source that runs clean only where the change
    means nothing ('': none is known)."""

    kind: str
    line: int
    what: str
    source: str
    proof: str = ""


# ---- planting -------------------------------------------------------------------------------------------------------------------

def mutants(source: str) -> Iterator[Mutant]:
    """All mutants of a source, in the order of its lines within each kind."""
    tree = ast.parse(source)
    for plant in (_barriers, _waits, _buffers, _swaps, _products, _predicates):
        yield from plant(tree)


def _kernel(tree: ast.Module) -> ast.FunctionDef:
    return next(n for n in tree.body if isinstance(n, ast.FunctionDef) and is_kernel(n))


def _changed(tree: ast.Module, find: Callable[[ast.Module], Any], change: Callable[[Any], None]) -> str:
    """The text of a copy of the tree in which `change` was applied to what `find` finds."""
    made = copy.deepcopy(tree)
    change(find(made))
    return ast.unparse(ast.fix_missing_locations(made))


def _bodies(tree: ast.Module) -> list[list[ast.stmt]]:
    """All statement lists of the kernel, outermost first."""
    found: list[list[ast.stmt]] = []
    for node in ast.walk(_kernel(tree)):
        for name in ("body", "orelse"):
            body = getattr(node, name, None)
            if isinstance(body, list) and body:
                found.append(body)
    return found


BARRIERS = ("sync_threads", "barrier", "barrier_arrive", "cluster_arrive", "cluster_arrive_relaxed", "cluster_wait")
WAITS = ("cp_async_wait_group", "mbarrier_wait", "griddepcontrol_wait")


def _is_barrier(s: ast.stmt) -> bool:
    return isinstance(s, ast.Expr) and _called(s.value) in BARRIERS


def _is_wait(s: ast.stmt) -> bool:
    return isinstance(s, ast.Expr) and _called(s.value) in WAITS


def _called(e: ast.AST) -> str:
    if not isinstance(e, ast.Call):
        return ""
    return e.func.attr if isinstance(e.func, ast.Attribute) else e.func.id if isinstance(e.func, ast.Name) else ""


def _dropped(tree: ast.Module, kind: str, chosen: Callable[[ast.stmt], bool]) -> Iterator[Mutant]:
    for b, body in enumerate(_bodies(tree)):
        for i, s in enumerate(body):
            if chosen(s):
                def drop(found: list[ast.stmt], i: int = i) -> None:
                    found[i] = ast.Pass()
                yield Mutant(kind, s.lineno, "deleted", _changed(tree, lambda t, b=b: _bodies(t)[b], drop))  # type: ignore[misc]


def _barriers(tree: ast.Module) -> Iterator[Mutant]:
    yield from _dropped(tree, "barrier", _is_barrier)


def _waits(tree: ast.Module) -> Iterator[Mutant]:
    yield from _dropped(tree, "wait", _is_wait)


def _buffers(tree: ast.Module) -> Iterator[Mutant]:
    def calls(t: ast.Module) -> list[ast.Call]:
        return [n for n in ast.walk(_kernel(t)) if isinstance(n, ast.Call) and _called(n) == "shared"]

    def shrink(call: ast.Call) -> None:
        call.args[-1] = ast.BinOp(call.args[-1], ast.Sub(), ast.Constant(1))
    for i, call in enumerate(calls(tree)):
        text = _changed(tree, lambda t, i=i: calls(t)[i], shrink)  # type: ignore[misc]
        yield Mutant("buffer", call.lineno, f"{ast.unparse(call)} one element shorter", text)

    def total(t: ast.Module) -> ast.Assign | None:
        return next((n for n in t.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "SMEM_BYTES"), None)

    def less(node: ast.Assign) -> None:
        node.value = ast.BinOp(node.value, ast.Sub(), ast.Constant(16))
    size = total(tree)
    if size is not None:
        yield Mutant("buffer", size.lineno, "shared memory 16 bytes smaller", _changed(tree, total, less))


def _names(node: ast.AST) -> set[str]:
    """Names in a statement, counters of its own unrolled loops aside."""
    counters = {n.target.id for n in ast.walk(node) if isinstance(n, ast.For) and isinstance(n.target, ast.Name)}
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} - counters - {"_"}


def _base(e: ast.expr) -> ast.expr:
    """The tensor that a view is made of: `sY` of `tile(sY, …)`, `rX` of `rX[None, i]`."""
    while isinstance(e, (ast.Call, ast.Subscript)):
        if isinstance(e, ast.Call) and not e.args:
            break
        e = e.value if isinstance(e, ast.Subscript) else e.args[0]
    return e


def _written(s: ast.stmt) -> set[str]:
    """Names that a statement writes: assigned ones, tensors stored to, targets of copies."""
    found: set[str] = set()
    for n in ast.walk(s):
        if isinstance(n, (ast.Assign, ast.AugAssign)):
            for t in n.targets if isinstance(n, ast.Assign) else [n.target]:
                while isinstance(t, ast.Subscript):
                    t = t.value
                found |= _names(t)
        elif isinstance(n, ast.Expr) and isinstance(n.value, ast.Call):
            call = n.value
            if isinstance(call.func, ast.Attribute) and call.func.attr in ("fill", "store"):
                found |= _names(call.func.value)
            elif call.args:
                found |= _names(_base(call.args[min(1, len(call.args) - 1)]))  # (source, target, …)
    return found


def _touches_shared(s: ast.stmt) -> bool:
    """Whether a statement may access shared memory; naming a piece of it does not."""
    if isinstance(s, ast.Assign) and _called(s.value) in ("tile", "shared"):
        return False
    return any(len(n) > 1 and n[0] == "s" and n[1].isupper() for n in _names(s))


def _dependent(first: ast.stmt, second: ast.stmt) -> bool:
    if _is_barrier(first) or _is_barrier(second):
        return _touches_shared(first) or _touches_shared(second)
    mine, other = _written(first), _written(second)
    return bool(mine & _names(second) or other & _names(first))


def _swaps(tree: ast.Module) -> Iterator[Mutant]:
    for b, body in enumerate(_bodies(tree)):
        for i, (first, second) in enumerate(zip(body, body[1:], strict=False)):
            if _dependent(first, second):
                def swap(found: list[ast.stmt], i: int = i) -> None:
                    found[i], found[i + 1] = found[i + 1], found[i]
                text = _changed(tree, lambda t, b=b: _bodies(t)[b], swap)  # type: ignore[misc]
                yield Mutant("swap", first.lineno, f"with line {second.lineno}", text)


def _wide(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and any(
        _called(n) == "Int64" or (isinstance(n, ast.Subscript) and isinstance(n.value, ast.Attribute) and n.value.attr == "stride")
        for n in ast.walk(node))


def _products(tree: ast.Module) -> Iterator[Mutant]:
    def products(t: ast.Module) -> list[ast.BinOp]:
        return [n for n in ast.walk(_kernel(t)) if isinstance(n, ast.BinOp) and _wide(n)]

    def narrow(node: ast.BinOp) -> None:
        for side in ("left", "right"):
            value = getattr(node, side)
            if _called(value) == "Int64":
                value = value.args[0]
            setattr(node, side, value if isinstance(value, ast.Constant) else ast.Call(ast.Name("Int32", ast.Load()), [value], []))

    def change(t: ast.Module, i: int) -> None:
        narrow(products(t)[i])
        t.body.insert(1, ast.ImportFrom("cutlass", [ast.alias("Int32")], 0))
    for i, node in enumerate(products(tree)):
        made = copy.deepcopy(tree)
        change(made, i)
        yield Mutant("product", node.lineno, f"{ast.unparse(node)} in 32 bits", ast.unparse(ast.fix_missing_locations(made)))


def _predicates(tree: ast.Module) -> Iterator[Mutant]:
    def ifs(t: ast.Module) -> list[ast.If | ast.IfExp]:
        return [n for n in ast.walk(_kernel(t)) if isinstance(n, (ast.If, ast.IfExp))]

    def always(node: ast.If | ast.IfExp) -> None:
        node.test = ast.Constant(True)
    for i, node in enumerate(ifs(tree)):
        proof = ""
        if isinstance(node, ast.If) and not node.orelse:
            spoilt = _spoilt(node, _known_before(tree, node.lineno))

            def spoil(found: Any, spoilt: list[ast.stmt] = spoilt) -> None:
                found.orelse = copy.deepcopy(spoilt)
            proof = _changed(tree, lambda t, i=i: ifs(t)[i], spoil)  # type: ignore[misc]
        text = _changed(tree, lambda t, i=i: ifs(t)[i], always)  # type: ignore[misc]
        yield Mutant("predicate", node.lineno, ast.unparse(node.test), text, proof)


def _known_before(tree: ast.Module, line: int) -> set[str]:
    """Names of the kernel that were assigned above a line."""
    return {n.id for n in ast.walk(_kernel(tree)) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n.lineno < line}


def _spoilt(node: ast.If, known: set[str]) -> list[ast.stmt]:
    """For the threads that do not go there: what the body writes becomes undefined. Where no effect depends on it, they may go."""
    whole, parts = set[str](), list[ast.expr]()
    for s in node.body:
        piece = _piece(s)
        if piece is not None and _names(_root(piece)) <= known:
            parts.append(piece)
        else:
            whole |= _written(s)
    taint = ast.Attribute(ast.Name(RUNTIME, ast.Load()), "taint", ast.Load())
    found: list[ast.stmt] = [ast.Assign([ast.Name(n, ast.Store())], ast.Call(taint, [ast.Name(n, ast.Load())], []))
                             for n in sorted(whole & known)]
    found += [ast.Expr(ast.Call(taint, [piece], [])) for piece in parts]
    return found or [ast.Pass()]


def _piece(s: ast.stmt) -> ast.expr | None:
    """The part of a fragment that a copy fills, `rX[None, i]` of `copy(gX, rX[None, i])`; None where more is written, or less."""
    call = s.value if isinstance(s, ast.Expr) else None
    if not isinstance(call, ast.Call) or isinstance(call.func, ast.Attribute) and call.func.attr in ("fill", "store"):
        return None
    target = call.args[1] if len(call.args) > 1 else None
    return target if isinstance(target, ast.Subscript) else None


def _root(e: ast.expr) -> ast.expr:
    while isinstance(e, ast.Subscript):
        e = e.value
    return e
