"""width-4 depthwise convolution, SiLU

grid rows, one channel a thread
"""
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int64

THREADS = 224


@cute.jit
def fma(a, b, c):
    """a * b + c, rounded once."""
    return cute.math.fma(a, b, c)


@cute.jit
def mul(a, b):
    """a * b, rounded: never contracted into a following addition."""
    return cute.math.mul(a, b, rounding=cute.math.RoundingMode.NEAREST_EVEN)


@cute.jit
def flat(tensor):
    """A tensor by 64-bit element offsets from its first element."""
    return cute.make_tensor(tensor.iterator, cute.make_layout(2**62))


@cute.jit
def tile(tensor, offset, width: cutlass.Constexpr, shape: cutlass.Constexpr, stride: cutlass.Constexpr):
    """The elements from an offset on that is a multiple of `width`: accesses may be `width` elements wide."""
    return cute.make_tensor(tensor.iterator + cute.assume(offset, divby=width), cute.make_layout(shape, stride=stride))


@cute.jit
def part(registers, offset: cutlass.Constexpr, shape: cutlass.Constexpr, stride: cutlass.Constexpr):
    """Some elements of a fragment."""
    return cute.make_tensor(registers.iterator + offset, cute.make_layout(shape, stride=stride))


@cute.jit
def load_part(source, target):
    """Memory to some elements of a fragment, one by one from the access on."""
    held = cute.make_rmem_tensor(target.shape, source.element_type)
    cute.autovec_copy(source, held)
    for i in cutlass.range_constexpr(cute.size(target)):
        target[i] = target.element_type(held[i])


@cute.jit
def store_part(source, target):
    """Some elements of a fragment to memory, one by one up to the access."""
    held = cute.make_rmem_tensor(source.shape, target.element_type)
    for i in cutlass.range_constexpr(cute.size(source)):
        held[i] = target.element_type(source[i])
    cute.autovec_copy(held, target)


@cute.jit
def silu(x):
    """x / (1 + exp(-x)); the denominator is at least 1, so its approximate reciprocal neither overflows nor vanishes
    early."""
    return mul(x, cute.math.rcp(1.0 + cute.math.exp(-x), approx=True))


@cute.kernel
def short_conv_kernel(x: cute.Tensor, window: cute.Tensor, weight: cute.Tensor, output: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    mX, mOutput = flat(x), flat(output)
    if thread < 200:
        rTaps = cute.make_rmem_tensor((4,), Float32)
        # short_conv+2: window
        load_part(tile(window, Int64(row) * window.stride[0] + thread * 3, 1, (3,), (1,)), part(rTaps, 0, (3,), (1,)))
        rTaps[3] = Float32(mX[Int64(row) * x.stride[0] + thread])
        rWeights = cute.make_rmem_tensor((4,), Float32)
        cute.autovec_copy(tile(weight, thread * 4, 4, (4,), (1,)), rWeights)
        # short_conv+3: y = …
        acc = mul(rTaps[0], rWeights[0])
        for i in cutlass.range_constexpr(3):
            acc = fma(rTaps[i + 1], rWeights[i + 1], acc)
        # short_conv+4
        acc = silu(acc)
        mOutput[Int64(row) * 200 + thread] = BFloat16(acc)
        store_part(part(rTaps, 1, (3,), (1,)), tile(window, Int64(row) * window.stride[0] + thread * 3, 1, (3,), (1,)))


@cute.jit
def launch(x: cute.Tensor, window: cute.Tensor, weight: cute.Tensor, output: cute.Tensor, stream):
    """The kernel on a stream."""
    short_conv_kernel(x, window, weight, output).launch(
        grid=(x.shape[0], 1, 1), block=(THREADS, 1, 1), stream=stream)


short_conv_kernel.set_name_prefix("fusec_short_conv", remove_cutlass_symbol=True)
