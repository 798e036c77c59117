"""Device functions about single values: copied into emitted files by name, linted and tested here."""
import cutlass.cute as cute
from cutlass import BFloat16, Float8E4M3FN, Float8E5M2, Float16, Float32, Int32


@cute.jit
def fma(a, b, c):
    """a * b + c, rounded once."""
    return cute.math.fma(a, b, c)


@cute.jit
def mul(a, b):
    """a * b, rounded: never contracted into a following addition."""
    return cute.math.mul(a, b, rounding=cute.math.RoundingMode.NEAREST_EVEN)


@cute.jit
def select(condition, yes, no):
    """`yes` where the condition holds, else `no`."""
    return yes if condition else no


@cute.jit
def maximum(a, b):
    """The larger one; NaN if either is."""
    return cute.arch.fmax(a, b, nan=True)


@cute.jit
def minimum(a, b):
    """The smaller one; NaN if either is."""
    return cute.arch.fmin(a, b, nan=True)


@cute.jit
def sign(x):
    """-1, 0 or 1; 0 for NaN."""
    return select(x > 0.0, Float32(1.0), select(x < 0.0, Float32(-1.0), Float32(0.0)))


@cute.jit
def floor_mod(a, b):
    """The remainder with the sign of b, exact where the quotient is small."""
    return fma(-cute.math.floor(a / b), b, a)


@cute.jit
def modulo(a, b):
    """The remainder of integers with the sign of b, where `%` has that of a."""
    rest = a % b
    return select((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)


@cute.jit
def round_bf16(x):
    """x rounded to bf16, packed: the conversion of a single value is slow."""
    pair = cute.make_rmem_tensor((2,), Float32)
    pair.fill(x)
    return pair.load().to(BFloat16).to(Float32)[0]


@cute.jit
def round_f16(x):
    """x rounded to fp16, packed: the conversion of a single value is slow."""
    pair = cute.make_rmem_tensor((2,), Float32)
    pair.fill(x)
    return pair.load().to(Float16).to(Float32)[0]


@cute.jit
def round_e4m3(x):
    """x rounded to e4m3, which saturates at 448."""
    pair = cute.make_rmem_tensor((2,), Float32)
    pair.fill(x)
    return pair.load().to(Float8E4M3FN).to(Float32)[0]


@cute.jit
def as_float(x):
    """The fp32 number with these 32 bits."""
    return Int32(x).bitcast(Float32)


@cute.jit
def as_bits(x):
    """The 32 bits of an fp32 number."""
    return Float32(x).bitcast(Int32)


@cute.jit
def round_e5m2(x):
    """x rounded to e5m2, infinite from 61440 on."""
    pair = cute.make_rmem_tensor((2,), Float32)
    pair.fill(x)
    near = pair.load().to(Float8E5M2).to(Float32)[0]
    return select(cute.math.abs(x) < 61440.0, near, select(x == x, cute.math.copysign(Float32.inf, x), x))
