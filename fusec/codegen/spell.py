"""How each scalar primitive is spelled in CuTe-DSL: one row each, for fp32 and for integers.

`{0}` stands for an operand. `level` is the precedence of the spelling, `operands` the least that each operand must have without
parentheses. A name that is a device function is copied into the emitted file. Checked in PTX: fma is fma.rn, mul stays mul.rn
beside an addition, max is one max.NaN, rcp_approx, rsqrt and exp2 are one approximation each; exp, log, log2, log1p, expm1, tanh,
sin, cos and erf are the DSL's accurate forms, within 2 ulp. A plain product may be contracted, by ptxas if not before. The last
product inside exp is with a power of two: contracting that one changes nothing.
"""
from __future__ import annotations

from dataclasses import dataclass

TERNARY, OR, AND, COMPARE, BITOR, BITXOR, BITAND, SHIFT, SUM, PRODUCT, UNARY, ATOM = range(12)


@dataclass(frozen=True, slots=True)
class Spelling:
    """One way to write a primitive. `kind`: what its result is ("same": what its operands are)."""

    text: str
    level: int = ATOM
    operands: tuple[int, ...] = ()
    helpers: tuple[str, ...] = ()
    kind: str = "same"

    @property
    def infix(self) -> bool:
        """Operands stand free: a bare literal beside a value takes its type."""
        return self.level != ATOM


def _infix(sign: str, level: int, kind: str = "same") -> Spelling:
    left = level if level != COMPARE else level + 1
    return Spelling("{0} " + sign + " {1}", level, (left, level + 1), (), kind)


def _call(text: str, *helpers: str, kind: str = "same") -> Spelling:
    return Spelling(text, ATOM, (), helpers, kind)


def _math(name: str, more: str = "") -> Spelling:
    return _call(f"cute.math.{name}({{0}}{more})")


FLOAT: dict[str, Spelling] = {
    "add": _infix("+", SUM), "sub": _infix("-", SUM), "neg": Spelling("-{0}", UNARY, (UNARY,)), "mul": _infix("*", PRODUCT),
    "mul_rn": _call("mul({0}, {1})", "mul"), "fma": _call("fma({0}, {1}, {2})", "fma"), "div": _infix("/", PRODUCT),
    "abs": _math("abs"), "rcp": _math("rcp"), "sqrt": _math("sqrt"), "floor": _math("floor"), "sign": _call("sign({0})", "sign"),
    "max": _call("maximum({0}, {1})", "maximum"), "min": _call("minimum({0}, {1})", "minimum"),
    "maxnum": _call("cute.arch.fmax({0}, {1})"),
    "rsqrt": _math("rsqrt"), "rcp_approx": _math("rcp", ", approx=True"), "exp2": _math("exp2"), "exp": _math("exp"),
    "log2": _math("log2"), "log": _math("log"), "log1p": _math("log1p"), "expm1": _math("expm1"), "tanh": _math("tanh"),
    "sin": _math("sin"), "cos": _math("cos"), "erf": _math("erf"),
    "lt": _infix("<", COMPARE, "bool"), "le": _infix("<=", COMPARE, "bool"), "gt": _infix(">", COMPARE, "bool"),
    "ge": _infix(">=", COMPARE, "bool"), "eq": _infix("==", COMPARE, "bool"), "ne": _infix("!=", COMPARE, "bool"),
    "select": _call("select({0}, {1}, {2})", "select"), "identity": Spelling("{0}", ATOM, (ATOM,)),
    "floordiv": _call("cute.math.floor({0} / {1})"), "mod": _call("floor_mod({0}, {1})", "floor_mod"),
    "bitcast_i32": _call("as_bits({0})", "as_bits", kind="i32"),
}

INTEGER: dict[str, Spelling] = {
    **{fn: FLOAT[fn] for fn in ("add", "sub", "neg", "mul", "lt", "le", "gt", "ge", "eq", "ne", "select", "identity")},
    "mul_rn": _infix("*", PRODUCT), "fma": Spelling("{0} * {1} + {2}", SUM, (PRODUCT, UNARY, PRODUCT)),
    "abs": _call("cutlass.max({0}, -{0})"), "max": _call("cutlass.max({0}, {1})"), "maxnum": _call("cutlass.max({0}, {1})"),
    "min": _call("cutlass.min({0}, {1})"), "sign": _call("cutlass.max(cutlass.min({0}, 1), -1)"),
    "floordiv": _infix("//", PRODUCT), "mod": _call("modulo({0}, {1})", "modulo"),
    "shl": _infix("<<", SHIFT), "shr": _infix(">>", SHIFT),
    "bitand": _infix("&", BITAND), "bitor": _infix("|", BITOR), "bitxor": _infix("^", BITXOR),
    "bitcast_f32": _call("as_float({0})", "as_float", kind="f32"), "bitcast_i32": Spelling("{0}", ATOM, (ATOM,)),
}

BOOL: dict[str, Spelling] = {
    "and": _infix("&", BITAND), "or": _infix("|", BITOR), "not": Spelling("not {0}", COMPARE, (UNARY,)),
    "eq": _infix("==", COMPARE), "ne": _infix("!=", COMPARE), "bitand": _infix("&", BITAND), "bitor": _infix("|", BITOR),
    "bitxor": _infix("!=", COMPARE), "max": _infix("|", BITOR), "min": _infix("&", BITAND), "select": FLOAT["select"],
    "identity": FLOAT["identity"],
}

ALWAYS_FLOAT = frozenset({"div", "rcp", "rcp_approx", "sqrt", "rsqrt", "exp2", "exp", "log2", "log", "log1p", "expm1", "tanh",
                          "sin", "cos", "erf"})
"""Primitives whose integer operands are converted to fp32 first, as eager PyTorch does."""

TYPES = {"f32": "Float32", "bf16": "BFloat16", "f16": "Float16", "f8e4m3": "Float8E4M3FN", "f8e5m2": "Float8E5M2", "i64": "Int64",
         "i32": "Int32", "i16": "Int16", "i8": "Int8", "u8": "Uint8", "bool": "Boolean"}
"""Element types as cutlass names them."""

LANE_FOLDS = {("add", "f32"): "lane_sum", ("add", "i32"): "lane_sum", ("add", "i64"): "lane_sum", ("max", "f32"): "lane_max",
              ("min", "f32"): "lane_min", ("mul", "f32"): "lane_product", ("mul_rn", "f32"): "lane_product",
              ("max", "i32"): "lane_largest", ("max", "i64"): "lane_largest", ("min", "i32"): "lane_smallest",
              ("min", "i64"): "lane_smallest", ("or", "bool"): "lane_any", ("and", "bool"): "lane_all"}
"""(scalar function, register dtype) -> the device function that folds it over lanes."""
