"""Scalar functions: the closed set of primitives, and composites defined over them in one row each.

A Map applies one of these functions elementwise. A primitive says what it is worth (issue slots); its torch meaning stands in
reference.py and its spelling in codegen/spell.py, one row each under the same name. A composite is an expression over
primitives: the emitter prints it as a helper function, the interpreters evaluate it, and nothing else has to know it.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Union


@dataclass(frozen=True, slots=True)
class Lit:
    """A constant: float, int or bool. Floats keep every bit, -0.0, inf and nan included."""

    value: float | int | bool


@dataclass(frozen=True, slots=True)
class Param:
    """The i-th argument of a composite function."""

    position: int


@dataclass(frozen=True, slots=True)
class Call:
    """A scalar function applied to expressions."""

    fn: str
    args: tuple["Scalar", ...]


Scalar = Union[Lit, Param, Call]


@dataclass(frozen=True, slots=True)
class Primitive:
    """A scalar function the target has: `arity` operands, about `cost` issue slots.

    `approximate`: worst error in ulp of fp32 against the exact function (0: correctly rounded or exact).
    """

    name: str
    arity: int
    cost: int = 1
    approximate: float = 0.0


@dataclass(frozen=True, slots=True)
class Composite:
    """A function over primitives and other composites, printed as a helper of that name."""

    name: str
    parameters: tuple[str, ...]
    body: Scalar
    doc: str = ""

    @property
    def arity(self) -> int:
        """Number of operands."""
        return len(self.parameters)


PRIMITIVES = {p.name: p for p in (
    Primitive("add", 2), Primitive("sub", 2), Primitive("neg", 1),
    Primitive("mul", 2),  # May stand where a contraction cannot change it; linearize writes mul_rn where one could.
    Primitive("mul_rn", 2),  # A product that no later stage contracts into an fma.
    Primitive("abs", 1),
    Primitive("fma", 3), Primitive("div", 2, 10), Primitive("rcp", 1, 8), Primitive("sqrt", 1, 10),
    Primitive("max", 2), Primitive("min", 2), Primitive("maxnum", 2), Primitive("floor", 1), Primitive("sign", 1, 2),
    Primitive("rsqrt", 1, 4, 2.0), Primitive("rcp_approx", 1, 4, 1.0), Primitive("exp2", 1, 4, 2.0), Primitive("exp", 1, 8, 2.0),
    Primitive("log2", 1, 12, 2.0), Primitive("log", 1, 20, 2.0), Primitive("log1p", 1, 20, 2.0), Primitive("expm1", 1, 20, 3.0),
    Primitive("tanh", 1, 16, 2.0), Primitive("sin", 1, 20, 2.0), Primitive("cos", 1, 20, 2.0), Primitive("erf", 1, 24, 2.0),
    Primitive("lt", 2), Primitive("le", 2), Primitive("gt", 2), Primitive("ge", 2), Primitive("eq", 2), Primitive("ne", 2),
    Primitive("and", 2), Primitive("or", 2), Primitive("not", 1), Primitive("select", 3),
    Primitive("identity", 1, 0),  # A rounding or conversion to the node's dtype, and nothing else.
    Primitive("floordiv", 2, 8), Primitive("mod", 2, 8), Primitive("shl", 2), Primitive("shr", 2),
    Primitive("bitand", 2), Primitive("bitor", 2), Primitive("bitxor", 2), Primitive("bitcast_i32", 1), Primitive("bitcast_f32", 1),
)}

GIVE_BOOLS = frozenset({"lt", "le", "gt", "ge", "eq", "ne", "and", "or", "not"})
"""Primitives whose result is a bool."""

COMPOSITES: dict[str, Composite] = {}


class Term:
    """A scalar expression under construction: `x * f.rsqrt(x + 1.0)` builds Calls. Used by definitions of composites only."""

    __slots__ = ("expr",)

    def __init__(self, expr: Scalar) -> None:
        self.expr = expr

    def _binary(self, fn: str, other: "Term | float | int", swap: bool = False) -> "Term":
        pair = (lift(other), self.expr) if swap else (self.expr, lift(other))
        return Term(Call(fn, pair))

    def __add__(self, o: "Term | float") -> "Term": return self._binary("add", o)
    def __radd__(self, o: "Term | float") -> "Term": return self._binary("add", o, True)
    def __sub__(self, o: "Term | float") -> "Term": return self._binary("sub", o)
    def __rsub__(self, o: "Term | float") -> "Term": return self._binary("sub", o, True)
    def __mul__(self, o: "Term | float") -> "Term": return self._binary("mul", o)
    def __rmul__(self, o: "Term | float") -> "Term": return self._binary("mul", o, True)
    def __truediv__(self, o: "Term | float") -> "Term": return self._binary("div", o)
    def __rtruediv__(self, o: "Term | float") -> "Term": return self._binary("div", o, True)
    def __neg__(self) -> "Term": return Term(Call("neg", (self.expr,)))


def lift(x: "Term | float | int") -> Scalar:
    """An expression from a term or a number."""
    return x.expr if isinstance(x, Term) else Lit(x)


class _Functions:
    """`f.name(args)`: a call of the scalar function `name`, which must exist with that arity."""

    def __getattr__(self, name: str) -> Callable[..., Term]:
        def call(*args: "Term | float | int") -> Term:
            assert arity(name) == len(args), f"{name} takes {arity(name)} arguments, not {len(args)}"
            return Term(Call(name, tuple(lift(a) for a in args)))
        return call


f = _Functions()


def arity(name: str) -> int:
    """Number of operands of a scalar function; KeyError for an unknown one."""
    row = PRIMITIVES.get(name) or COMPOSITES[name]
    return row.arity


def define(name: str, doc: str = "") -> Callable[[Callable[..., Term]], Composite]:
    """Decorator: record a composite scalar function by its expression over existing functions.

    Raises AssertionError at import for a name taken, an unknown function or a wrong number of arguments.
    """
    def record(build: Callable[..., Term]) -> Composite:
        assert name not in PRIMITIVES and name not in COMPOSITES, f"scalar function {name} is defined twice"
        parameters = build.__code__.co_varnames[:build.__code__.co_argcount]
        assert not {*parameters} & {*PRIMITIVES, *COMPOSITES}, f"scalar function {name}: a parameter is named like a function"
        body = lift(build(*(Term(Param(i)) for i in range(len(parameters)))))
        row = Composite(name, parameters, body, doc or (build.__doc__ or ""))
        COMPOSITES[name] = row
        return row
    return record


def cost(name: str) -> int:
    """Issue slots of a scalar function, composites as the sum over their expression."""
    def of(e: Scalar) -> int:
        return cost(e.fn) + sum(of(a) for a in e.args) if isinstance(e, Call) else 0
    return PRIMITIVES[name].cost if name in PRIMITIVES else of(COMPOSITES[name].body)


@define("sigmoid", "1 / (1 + exp(-x)); exp may reach infinity, whose reciprocal is 0: no NaN for any finite x.")
def _sigmoid(x: Term) -> Term:
    return f.rcp_approx(1.0 + f.exp(-x))


@define("silu", "x / (1 + exp(-x)); the denominator is at least 1, so its approximate reciprocal neither overflows nor vanishes "
        "early.")
def _silu(x: Term) -> Term:
    return x * f.rcp_approx(1.0 + f.exp(-x))


@define("square")
def _square(x: Term) -> Term:
    return x * x


@define("relu")
def _relu(x: Term) -> Term:
    return f.max(x, 0.0)


@define("softplus", "log(1 + exp(beta x)) / beta, and x itself where beta x > threshold.")
def _softplus(x: Term, beta: Term, threshold: Term) -> Term:
    scaled = x * beta
    return f.select(f.gt(scaled, threshold), x, f.log1p(f.exp(f.min(scaled, threshold))) / beta)
