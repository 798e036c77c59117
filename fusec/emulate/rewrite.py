"""The emitted file's syntax tree with run-time control flow made explicit; every line keeps its number.

Inside @cute.kernel and @cute.jit functions `if`, `while` and `for … in range(…)` are staged whatever their operands are, except
under const_expr and range_constexpr and over Python lists, as the DSL has it. A name that is assigned under run-time control keeps
its old value in the lanes that do not go there; one that was first assigned there does not exist afterwards.
"""
from __future__ import annotations

import ast
from dataclasses import dataclass, field

from .numeric import EmulationError

RUNTIME = "__emulator__"
"""The name under which rewritten code finds the functions of control.py."""


def rewrite(source: str) -> ast.Module:
    """The module to execute. Raises EmulationError, with the line, where the source breaks a rule of the DSL."""
    tree = ast.parse(source)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and any(_decorator(d) in ("jit", "kernel") for d in node.decorator_list):
            _Function(node).rewrite()
    return ast.fix_missing_locations(tree)


def is_kernel(node: ast.FunctionDef) -> bool:
    """Whether a function is decorated with @cute.kernel."""
    return any(_decorator(d) == "kernel" for d in node.decorator_list)


def _decorator(d: ast.expr) -> str:
    target = d.func if isinstance(d, ast.Call) else d
    return target.attr if isinstance(target, ast.Attribute) else ""


def _refuse(node: ast.AST, rule: str) -> EmulationError:
    return EmulationError(f"line {getattr(node, 'lineno', 0)}: {rule}")


def _called(node: ast.expr) -> str:
    """The last name of what is called, '' for anything else."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id if isinstance(node.func, ast.Name) else ""


def _runtime(name: str, *args: ast.expr) -> ast.expr:
    return ast.Call(ast.Attribute(ast.Name(RUNTIME, ast.Load()), name, ast.Load()), list(args), [])


def _lambda(body: ast.expr) -> ast.expr:
    return ast.Lambda(ast.arguments([], [], None, [], [], None, []), body)


class _Expressions(ast.NodeTransformer):
    """`and`, `or`, `not` and conditional expressions as calls; what const_expr holds stays Python."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if _called(node) == "const_expr":
            return node
        self.generic_visit(node)
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        found = node.values[-1]
        for value in reversed(node.values[:-1]):
            found = ast.copy_location(_runtime("both" if isinstance(node.op, ast.And) else "any_of", value, _lambda(found)), node)
        return found

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        return ast.copy_location(_runtime("negate", node.operand), node) if isinstance(node.op, ast.Not) else node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        self.generic_visit(node)
        return ast.copy_location(_runtime("choose", node.test, _lambda(node.body), _lambda(node.orelse)), node)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        if len(node.ops) > 1:
            raise _refuse(node, "a chain of comparisons")
        return node


@dataclass(slots=True)
class _Function:
    """One staged function. `level`: how many run-time constructs enclose a statement; `at`: where each name was first set."""

    node: ast.FunctionDef
    level: int = 0
    at: dict[str, int] = field(default_factory=dict)
    temporaries: int = 0

    def rewrite(self) -> None:
        a = self.node.args
        for arg in (*a.posonlyargs, *a.args, *a.kwonlyargs):
            self.at[arg.arg] = 0
        self.node.body = self.block(self.node.body)

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        for s in body:
            for made in self.statement(s):
                out.append(ast.copy_location(made, s))
        return out

    def expression(self, e: ast.expr) -> ast.expr:
        return _Expressions().visit(e)  # type: ignore[no-any-return]

    def fresh(self) -> str:
        self.temporaries += 1
        return f"__t{self.temporaries}"

    def statement(self, s: ast.stmt) -> list[ast.stmt]:
        if isinstance(s, ast.Assign):
            return self.assignment(s)
        if isinstance(s, ast.AugAssign):
            load = ast.parse(ast.unparse(s.target), mode="eval").body
            for part in ast.walk(load):
                ast.copy_location(part, s)
            return self.assignment(ast.Assign([s.target], ast.BinOp(load, s.op, s.value)))
        if isinstance(s, ast.AnnAssign) and s.value is not None:
            return self.assignment(ast.Assign([s.target], s.value))
        if isinstance(s, ast.If):
            return self.static_if(s) if _called(s.test) == "const_expr" else self.branch(s)
        if isinstance(s, ast.For):
            return self.static_for(s) if self._is_static(s) else self.loop(s)
        if isinstance(s, ast.While):
            return self.static_while(s) if _called(s.test) == "const_expr" else self.run_time_while(s)
        if isinstance(s, (ast.Return, ast.Break, ast.Continue)) and self.level:
            raise _refuse(s, "UNSUP_EARLY_EXIT: early exit under a run-time condition")
        if isinstance(s, (ast.Expr, ast.Return)) and s.value is not None:
            s.value = self.expression(s.value)
        elif isinstance(s, ast.Assert):
            s.test = self.expression(s.test)
        elif not isinstance(s, (ast.Pass, ast.Return, ast.Expr, ast.Break, ast.Continue)):
            raise _refuse(s, f"{type(s).__name__} statements are outside of the subset")
        return [s]

    # ---- assignments

    def assignment(self, s: ast.Assign) -> list[ast.stmt]:
        value = self.expression(s.value)
        if len(s.targets) > 1:
            raise _refuse(s, "a chain of assignments")
        target = s.targets[0]
        if isinstance(target, ast.Name):
            return [self._named(target, value)]
        if isinstance(target, ast.Tuple):
            if not any(isinstance(e, ast.Name) and self._outer(e.id) for e in target.elts):
                for e in target.elts:
                    self._note(e)
                return [ast.Assign([target], value)]
            names = [self.fresh() for _ in target.elts]
            out: list[ast.stmt] = [ast.Assign([ast.Tuple([ast.Name(n, ast.Store()) for n in names], ast.Store())], value)]
            for name, e in zip(names, target.elts, strict=True):
                out += self.assignment(ast.copy_location(ast.Assign([e], ast.Name(name, ast.Load())), s))
            return out
        if isinstance(target, ast.Subscript):
            return [ast.Assign([self.expression(target)], value)]
        raise _refuse(s, "assignment to an attribute")

    def _outer(self, name: str) -> bool:
        return self.at.get(name, self.level) < self.level

    def _note(self, e: ast.expr) -> None:
        if isinstance(e, ast.Name):
            self.at.setdefault(e.id, self.level)

    def _named(self, target: ast.Name, value: ast.expr) -> ast.stmt:
        if self._outer(target.id):
            value = _runtime("assign", value, ast.Name(target.id, ast.Load()))
        self._note(target)
        return ast.Assign([target], value)

    # ---- Python-time control

    def _is_static(self, s: ast.For) -> bool:
        return _called(s.iter) not in ("range",)

    def static_if(self, s: ast.If) -> list[ast.stmt]:
        s.body, s.orelse = self.block(s.body), self.block(s.orelse)
        return [s]

    def static_for(self, s: ast.For) -> list[ast.stmt]:
        for e in s.target.elts if isinstance(s.target, ast.Tuple) else [s.target]:
            if isinstance(e, ast.Name):
                self.at[e.id] = self.level
        s.iter = self.expression(s.iter)
        s.body = self.block(s.body)
        return [s]

    def static_while(self, s: ast.While) -> list[ast.stmt]:
        s.body = self.block(s.body)
        return [s]

    # ---- run-time control

    def inner(self, body: list[ast.stmt]) -> tuple[list[ast.stmt], list[str]]:
        """A body one level deeper, and the names that end with it."""
        self.level += 1
        made = self.block(body) or [ast.Pass()]
        gone = [name for name, level in self.at.items() if level == self.level]
        for name in gone:
            del self.at[name]
        self.level -= 1
        return made, gone

    def _end(self, names: list[str]) -> list[ast.stmt]:
        return [ast.Assign([ast.Name(n, ast.Store())], _runtime("Undefined", ast.Constant(n)))
                for n in dict.fromkeys(names) if not n.startswith("__t")]

    def branch(self, s: ast.If) -> list[ast.stmt]:
        name = self.fresh()

        def method(which: str) -> ast.expr:
            return ast.Call(ast.Attribute(ast.Name(name, ast.Load()), which, ast.Load()), [], [])
        out: list[ast.stmt] = [ast.Assign([ast.Name(name, ast.Store())], _runtime("branch", self.expression(s.test)))]
        body, gone = self.inner(s.body)
        out.append(ast.If(method("enter"), body, []))
        if s.orelse:
            other, more = self.inner(s.orelse)
            out.append(ast.If(method("otherwise"), other, []))
            gone += more
        return [*out, ast.Expr(method("leave")), *self._end(gone)]

    def loop(self, s: ast.For) -> list[ast.stmt]:
        if not isinstance(s.target, ast.Name) or not isinstance(s.iter, ast.Call):
            raise _refuse(s, "a run-time loop over one counter")
        call = ast.Call(ast.Attribute(ast.Name(RUNTIME, ast.Load()), "loop", ast.Load()),
                        [self.expression(a) for a in s.iter.args], s.iter.keywords)
        self.at.pop(s.target.id, None)
        self.at[s.target.id] = self.level + 1
        body, gone = self.inner(s.body)
        return [ast.For(s.target, call, body, []), *self._end(gone)]

    def run_time_while(self, s: ast.While) -> list[ast.stmt]:
        name = self.fresh()
        test = ast.Call(ast.Attribute(ast.Name(name, ast.Load()), "test", ast.Load()), [self.expression(s.test)], [])
        body, gone = self.inner(s.body)
        return [ast.Assign([ast.Name(name, ast.Store())], _runtime("While")), ast.While(test, body, []), *self._end(gone)]
