"""The DSL's numeric types on numpy arrays over [blocks, threads]: promotion, wrapping, rounding, and what was never written.

A run-time value is an instance of its type. `v` broadcasts over (blocks, threads); narrow floats are held exactly in fp32. `undef`
marks the lanes whose value stems from a register that was not written (None: no lane), `product` the factors of a product that a
sum may still be contracted with, `divisor` what the source promised the value to be a multiple of.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from .rounding import ROUND, decode, encode, fma

Array = NDArray[Any]


class EmulationError(Exception):
    """The source leaves the subset, or breaks a rule of the DSL: what it would not compile."""


def either(*masks: Array | None) -> Array | None:
    """The union of undefined lanes."""
    found = [m for m in masks if m is not None]
    if not found:
        return None
    return found[0] if len(found) == 1 else np.logical_or(found[0], found[1]) if len(found) == 2 else either(
        np.logical_or(found[0], found[1]), *found[2:])


class NumericMeta(type):
    """Types are compared and printed by name; `Float32.inf`, `Int32.width` are facts of the type."""

    def __repr__(cls) -> str:
        return cls.__name__

    @property
    def inf(cls) -> float:
        return float("inf")

    @property
    def mlir_type(cls) -> Any:
        return cls

    @property
    def nan(cls) -> float:
        return float("nan")


class Numeric(metaclass=NumericMeta):
    """A scalar of the thread. Constructing one converts, as the DSL's types do."""

    __slots__ = ("v", "undef", "product", "divisor")
    short: ClassVar[str] = ""
    width: ClassVar[int] = 0
    is_float: ClassVar[bool] = False
    signed: ClassVar[bool] = True
    held: ClassVar[Any] = None

    v: Array
    undef: Array | None
    product: tuple[Array, Array] | None
    divisor: int

    def __init__(self, x: Any) -> None:
        if isinstance(x, Numeric):
            self.v, self.undef = convert(x.v, type(x), type(self)), x.undef
        elif isinstance(x, (bool, int, float)):
            self.v, self.undef = constant(x, type(self)), None
        else:
            raise EmulationError(f"{type(x).__name__} does not convert to {type(self).__name__}")
        if self.is_float and self.width < 16 and not isinstance(x, (int, float)):
            raise EmulationError(f"a single value does not convert to {type(self).__name__}: use a vector")
        self.product, self.divisor = None, 1

    @classmethod
    def of(cls, v: Array, undef: Array | None = None) -> Any:
        """A value from an array that is of this type already."""
        made = object.__new__(cls)
        made.v, made.undef, made.product, made.divisor = v, undef, None, 1
        return made

    @property
    def dtype(self) -> Any:
        return type(self)

    @property
    def value(self) -> Any:
        """The number of a value that all lanes share (launch sizes)."""
        return np.asarray(self.v).reshape(-1)[0].item()

    def to(self, dtype: Any) -> Any:
        return dtype(self)

    def ir_value(self, *, loc: Any = None, ip: Any = None) -> Any:
        """Itself: operations of the compiler take it as it is."""
        return self

    def bitcast(self, dtype: Any) -> Any:
        """The same bits as another type of that width."""
        if self.width != dtype.width:
            raise EmulationError(f"bitcast from {type(self).__name__} to {dtype.__name__}")
        return dtype.of(from_bits(to_bits(np.asarray(self.v), type(self)), dtype), self.undef)

    def __bool__(self) -> bool:
        raise EmulationError("a run-time value where Python needs a bool: const_expr, assert or a helper without @cute.jit")

    def __index__(self) -> int:
        raise EmulationError("a run-time value where Python needs an index")

    __hash__ = object.__hash__

    def __neg__(self) -> Any:
        made = self.of(np.negative(self.v), self.undef)
        if self.product is not None:
            made.product = (np.negative(self.product[0]), self.product[1])
        return made

    def __invert__(self) -> Any:
        return self.of(np.invert(self.v), self.undef)

    def __abs__(self) -> Any:
        return self.of(np.abs(self.v), self.undef)


class Integer(Numeric):
    """Integers wrap at their width."""

    __slots__ = ()


class Float(Numeric):
    """Floats; those below fp32 are rounded after each operation."""

    __slots__ = ()
    is_float = True
    held = np.float32


def _type(name: str, base: type, short: str, width: int, held: Any, signed: bool = True) -> Any:
    return NumericMeta(name, (base,), {"__slots__": (), "short": short, "width": width, "held": held, "signed": signed,
                                       "__doc__": f"{name} of the DSL."})


Float32 = _type("Float32", Float, "f32", 32, np.float32)
Float16 = _type("Float16", Float, "f16", 16, np.float32)
BFloat16 = _type("BFloat16", Float, "bf16", 16, np.float32)
Float8E4M3FN = _type("Float8E4M3FN", Float, "f8e4m3", 8, np.float32)
Float8E5M2 = _type("Float8E5M2", Float, "f8e5m2", 8, np.float32)
Int8 = _type("Int8", Integer, "i8", 8, np.int8)
Int16 = _type("Int16", Integer, "i16", 16, np.int16)
Int32 = _type("Int32", Integer, "i32", 32, np.int32)
Int64 = _type("Int64", Integer, "i64", 64, np.int64)
Uint8 = _type("Uint8", Integer, "u8", 8, np.uint8, False)
Uint16 = _type("Uint16", Integer, "u16", 16, np.uint16, False)
Uint32 = _type("Uint32", Integer, "u32", 32, np.uint32, False)
Uint64 = _type("Uint64", Integer, "u64", 64, np.uint64, False)
Boolean = _type("Boolean", Integer, "bool", 1, np.bool_)

SIGNED = {Uint8: Int8, Uint16: Int16, Uint32: Int32, Uint64: Int64}
"""What a pointer to such integers points to: types of memory have no sign, and are read as if they had one."""

TYPES = {t.short: t for t in (Float32, Float16, BFloat16, Float8E4M3FN, Float8E5M2, Int8, Int16, Int32, Int64, Uint8, Uint16,
                              Uint32, Uint64, Boolean)}


def size_of(dtype: Any) -> int:
    """Bytes of an element in memory."""
    return int(max(dtype.width // 8, 1))


UNSIGNED: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def from_bits(bits: Array, dtype: Any) -> Array:
    """Elements in memory (unsigned integers of their size) as register values."""
    if dtype is Boolean:
        return np.not_equal(bits, 0)
    return decode(bits, dtype.short) if dtype.is_float else bits.view(dtype.held)


def to_bits(v: Array, dtype: Any) -> Array:
    """Register values of that type as elements in memory."""
    if dtype is Boolean:
        return v.astype(np.uint8)
    return encode(v, dtype.short) if dtype.is_float else np.ascontiguousarray(v, dtype.held).view(UNSIGNED[size_of(dtype)])


# ---- conversion -----------------------------------------------------------------------------------------------------------------

def constant(x: bool | int | float, dtype: Any) -> Array:
    """A Python number as a value of a type: integers wrap, floats round once."""
    if dtype is Boolean:
        return np.asarray(bool(x))
    if dtype.is_float:
        return np.asarray(ROUND[dtype.short](np.asarray(x, np.float32)))
    bits = int(x) & ((1 << dtype.width) - 1)
    if dtype.signed and bits >> (dtype.width - 1):
        bits -= 1 << dtype.width
    return np.asarray(bits, dtype.held)


def convert(v: Array, source: Any, target: Any) -> Array:
    """Values of one type as another's."""
    if source is target:
        return v
    if target is Boolean:
        return np.not_equal(v, 0)
    if target.is_float:
        wide = v if source.is_float else np.asarray(v).astype(np.float32)
        exact = source.is_float and target is Float32
        return wide if exact else np.asarray(ROUND[target.short](wide))
    if source.is_float:
        return _truncated(v, target)
    return np.asarray(v).astype(target.held)


def _truncated(v: Array, target: Any) -> Array:
    """Float to integer as cvt.rzi does it: toward zero, saturating, NaN to 0."""
    info = np.iinfo(target.held)
    wide = np.nan_to_num(np.trunc(np.asarray(v, np.float64)), nan=0.0, posinf=np.inf, neginf=-np.inf)
    inside = np.clip(wide, float(info.min), float(info.max))
    top = wide >= float(info.max)
    return np.where(top, target.held(info.max), np.where(top, 0, inside).astype(target.held))


def as_numeric(x: Any) -> Any:
    """A Python number as the DSL types it: bool, Int32 (Int64 where it does not fit), Float32."""
    if isinstance(x, Numeric):
        return x
    if isinstance(x, bool):
        return Boolean(x)
    if isinstance(x, int):
        return Int32(x) if -2**31 <= x < 2**31 else Int64(x)
    if isinstance(x, float):
        return Float32(x)
    raise EmulationError(f"{type(x).__name__} is not a number")


def common(a: Any, b: Any, arithmetic: bool) -> Any:
    """The type in which two operands meet, by the DSL's promotion rules."""
    if a is b:
        return Int32 if arithmetic and a is Boolean else a
    if a.is_float != b.is_float:
        other, wide = (a, b) if b.is_float else (b, a)
        if other.width > 32:
            raise EmulationError(f"{other.__name__} beside {wide.__name__} is Float64: convert explicitly")
        return Float32 if other.width > wide.width else wide
    if a.is_float:
        if a.width == b.width == 16:
            return Float16
        if a.width == b.width or max(a.width, b.width) < 16:
            raise EmulationError(f"implicit promotion of {a.__name__} and {b.__name__}: cast explicitly")
        return a if a.width > b.width else b
    if a.signed != b.signed:
        unsigned, signed = (a, b) if b.signed else (b, a)
        return unsigned if unsigned.width >= signed.width else signed
    return a if a.width >= b.width else b


# ---- operators ------------------------------------------------------------------------------------------------------------------

# `//` rounds down, `%` has the sign of the number that is divided.
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "floordiv": np.floor_divide, "mod": np.fmod}
_BITS: dict[str, Callable[[Any, Any], Any]] = {
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "lshift": np.left_shift, "rshift": np.right_shift}
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal}

contraction: list[Callable[[Array], None]] = []
"""Called with the lanes where a product meets a sum that the kernel compiler may contract, with another result."""


def _check_contraction(name: str, a: Any, b: Any, result: Array) -> None:
    for first, second, product in ((a, b, a.product), (b, a, b.product)):
        if product is None or not contraction:
            continue
        x, y = product
        if name == "sub" and first is a:
            joined = fma(x, y, -second.v)
        else:
            joined = fma(-x if name == "sub" else x, y, second.v)
        differ = (joined != result) & ~(np.isnan(joined) & np.isnan(result))
        if differ.any():
            contraction[-1](differ)


def arithmetic(name: str, a: Any, b: Any) -> Any:
    """An arithmetic operator of two values in their common type."""
    kind = common(type(a), type(b), True)
    if name == "truediv":
        kind = kind if kind.is_float else Float32
    x, y = convert(a.v, type(a), kind), convert(b.v, type(b), kind)
    v = np.divide(x, y) if name == "truediv" else _ARITHMETIC[name](x, y)
    if kind.is_float and kind is not Float32:
        v = ROUND[kind.short](v)
    made = kind.of(v, either(a.undef, b.undef))
    if kind is Float32 and name == "mul":
        made.product = (x, y)
    elif kind is Float32 and (a.product is not None or b.product is not None) and name in ("add", "sub"):
        _check_contraction(name, a, b, v)
    return made


def bitwise(name: str, a: Any, b: Any) -> Any:
    """A bit operator of integers; shifts keep the type of the left operand's promotion."""
    kind = common(type(a), type(b), False)
    if kind.is_float:
        raise EmulationError(f"{name} of floats")
    x, y = convert(a.v, type(a), kind), convert(b.v, type(b), kind)
    return kind.of(_BITS[name](x, y), either(a.undef, b.undef))


def compare(name: str, a: Any, b: Any) -> Any:
    """A comparison, as Boolean."""
    kind = common(type(a), type(b), False)
    v = _COMPARE[name](convert(a.v, type(a), kind), convert(b.v, type(b), kind))
    return Boolean.of(v, either(a.undef, b.undef))


def _method(rule: Callable[[str, Any, Any], Any], name: str, swap: bool = False) -> Callable[[Any, Any], Any]:
    def operate(self: Any, other: Any) -> Any:
        if not isinstance(other, (Numeric, bool, int, float)):
            return NotImplemented
        pair = (as_numeric(other), self) if swap else (self, as_numeric(other))
        return rule(name, *pair)
    return operate


for _name in (*_ARITHMETIC, "truediv"):
    setattr(Numeric, f"__{_name}__", _method(arithmetic, _name))
    setattr(Numeric, f"__r{_name}__", _method(arithmetic, _name, True))
for _name in _BITS:
    setattr(Numeric, f"__{_name}__", _method(bitwise, _name))
    setattr(Numeric, f"__r{_name}__", _method(bitwise, _name, True))
for _name in _COMPARE:
    setattr(Numeric, f"__{_name}__", _method(compare, _name))


def select(condition: Any, yes: Any, no: Any) -> Any:
    """`yes` where the condition holds, else `no`; both of one type (a Python number takes the other's)."""
    if isinstance(condition, (bool, int)):
        return yes if condition else no
    yes, no = same_type(yes, no)
    mask = np.asarray(condition.v, bool)
    undef = None
    if yes.undef is not None or no.undef is not None:
        undef = np.where(mask, False if yes.undef is None else yes.undef, False if no.undef is None else no.undef)
    return type(yes).of(np.where(mask, yes.v, no.v), either(undef, condition.undef))


def same_type(a: Any, b: Any) -> tuple[Any, Any]:
    """Both as values of one type; EmulationError where they differ, as the DSL refuses to join them."""
    if not isinstance(a, Numeric) and isinstance(b, Numeric):
        a = type(b)(a) if _literal_fits(a, type(b)) else as_numeric(a)
    if isinstance(a, Numeric) and not isinstance(b, Numeric):
        b = type(a)(b) if _literal_fits(b, type(a)) else as_numeric(b)
    a, b = as_numeric(a), as_numeric(b)
    if type(a) is not type(b):
        raise EmulationError(f"{type(a).__name__} on one path and {type(b).__name__} on the other")
    return a, b


def _literal_fits(x: Any, dtype: Any) -> bool:
    if isinstance(x, bool):
        return dtype is Boolean
    if isinstance(x, float):
        return dtype is Float32
    return dtype is Int32

