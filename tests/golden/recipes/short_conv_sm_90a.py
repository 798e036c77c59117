"""short_conv

grid: rows; 64 threads
anchor: weight_in [window_1=WARP2@32·LANE32@1·REG4, weight_1=VEC4]
"""
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int64
from cutlass.cute.nvgpu import CacheEvictionPriority

THREADS = 64
MIN_BLOCKS = 4
CARVEOUT = 2  # per cent of the unified memory


@cute.jit
def fma(a, b, c):
    """a * b + c, rounded once."""
    return cute.math.fma(a, b, c)


@cute.jit
def mul(a, b):
    """a * b, rounded: never contracted into a following addition."""
    return cute.math.mul(a, b, rounding=cute.math.RoundingMode.NEAREST_EVEN)


@cute.jit
def tile(tensor, offset, width: cutlass.Constexpr, shape: cutlass.Constexpr, stride: cutlass.Constexpr):
    """The elements from an offset on that is a multiple of `width`: accesses may be `width` elements wide."""
    return cute.make_tensor(tensor.iterator + cute.assume(offset, divby=width), cute.make_layout(shape, stride=stride))


@cute.jit
def load(source, target, priority: cutlass.Constexpr = CacheEvictionPriority.EVICT_NORMAL):
    """Memory to registers, widened to what the registers hold."""
    held = cute.make_rmem_tensor(target.shape, source.element_type)
    cute.autovec_copy(source, held, l1c_evict_priority=priority)
    target.store(held.load().to(target.element_type))


@cute.jit
def store(source, target, priority: cutlass.Constexpr = CacheEvictionPriority.EVICT_NORMAL):
    """Registers to memory, rounded to its element type."""
    held = cute.make_rmem_tensor(source.shape, target.element_type)
    held.store(source.load().to(target.element_type))
    cute.autovec_copy(held, target, l1c_evict_priority=priority)


@cute.jit
def part(registers, offset: cutlass.Constexpr, shape: cutlass.Constexpr, stride: cutlass.Constexpr):
    """Some elements of a fragment."""
    return cute.make_tensor(registers.iterator + offset, cute.make_layout(shape, stride=stride))


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
def short_conv_kernel(x: cute.Tensor, window: cute.Tensor, weight: cute.Tensor, out: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    rows, _, _ = cute.arch.block_idx()
    warp = cute.arch.warp_idx()
    lane = thread & 31
    rWindowIn, rXIn = cute.make_rmem_tensor((3, 4), Float32), cute.make_rmem_tensor((4,), Float32)
    rWeightIn, rFull = cute.make_rmem_tensor((4, 4), Float32), cute.make_rmem_tensor((4, 4), Float32)
    rSum, rSiluBf16 = cute.make_rmem_tensor((4,), Float32), cute.make_rmem_tensor((4,), Float32)
    rWindowIn.fill(0.0)
    rXIn.fill(0.0)
    rWeightIn.fill(0.0)
    rSum.fill(0.0)
    if warp * 128 + lane * 4 < 200:
        gWindow = tile(window, Int64(rows) * window.stride[0] + (warp * 384 + lane * 12), 4, (3, 4), (1, 3))
        load(gWindow, rWindowIn)
        # short_conv+2
        load(tile(x, Int64(rows) * x.stride[0] + (warp * 128 + lane * 4), 4, (4,), (1,)), rXIn)
        cute.autovec_copy(tile(weight, warp * 512 + lane * 16, 4, (4, 4), (1, 4)), rWeightIn)

    # short_conv+2: full
    for window_1_r in cutlass.range_constexpr(4):
        for weight_1_v in cutlass.range_constexpr(3):
            rFull[weight_1_v, window_1_r] = rWindowIn[weight_1_v, window_1_r]
    for window_1_r in cutlass.range_constexpr(4):
        rFull[3, window_1_r] = rXIn[window_1_r]

    # short_conv+4
    for window_1_r in cutlass.range_constexpr(4):
        for weight_1_v in cutlass.range_constexpr(4):
            rSum[window_1_r] = fma(rFull[weight_1_v, window_1_r], rWeightIn[weight_1_v, window_1_r], rSum[window_1_r])
    for window_1_r in cutlass.range_constexpr(4):
        rSiluBf16[window_1_r] = silu(rSum[window_1_r])
    if warp * 128 + lane * 4 < 200:
        store(rSiluBf16, tile(out, Int64(rows) * 200 + (warp * 128 + lane * 4), 4, (4,), (1,)))
        # short_conv+3
        gWindow_2 = tile(window, Int64(rows) * window.stride[0] + (warp * 384 + lane * 12), 4, (3, 4), (1, 3))
        store_part(part(rFull, 1, (3, 4), (1, 4)), gWindow_2)


@cute.jit
def launch(x: cute.Tensor, window: cute.Tensor, weight: cute.Tensor, out: cute.Tensor, stream):
    """The kernel on a stream."""
    short_conv_kernel(x, window, weight, out).launch(
        grid=(x.shape[0], 1, 1), block=(THREADS, 1, 1), min_blocks_per_mp=MIN_BLOCKS,
        preferred_smem_carveout=CARVEOUT, stream=stream)


short_conv_kernel.set_name_prefix("fusec_short_conv", remove_cutlass_symbol=True)
