"""residual add in place, RMSNorm, e4m3 and scale

Grid rows, 192 threads a block.
Shared memory, 56 bytes:
         0  sSum: 6 x f32
        32  sTop: 6 x f32
"""
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int64
from cutlass.cute.nvgpu import CacheEvictionPriority
from cutlass.memory import SmemAllocator

THREADS = 192
ONCE = CacheEvictionPriority.EVICT_FIRST  # of what is not needed again
SMEM_BYTES = 56


@cute.jit
def fma(a, b, c):
    """a * b + c, rounded once."""
    return cute.math.fma(a, b, c)


@cute.jit
def mul(a, b):
    """a * b, rounded: never contracted into a following addition."""
    return cute.math.mul(a, b, rounding=cute.math.RoundingMode.NEAREST_EVEN)


@cute.jit
def maximum(a, b):
    """The larger one; NaN if either is."""
    return cute.arch.fmax(a, b, nan=True)


@cute.jit
def round_bf16(x):
    """x rounded to bf16, packed: the conversion of a single value is slow."""
    pair = cute.make_rmem_tensor((2,), Float32)
    pair.fill(x)
    return pair.load().to(BFloat16).to(Float32)[0]


@cute.jit
def lane_sum(value, step: cutlass.Constexpr, lanes: cutlass.Constexpr):
    """The sum over `lanes` lanes, `step` apart: neighbours first, every lane gets it."""
    offset = step
    while cutlass.const_expr(offset < step * lanes):
        value = value + cute.arch.shuffle_sync_bfly(value, offset=offset)
        offset = offset * 2
    return value


@cute.jit
def lane_max(value, step: cutlass.Constexpr, lanes: cutlass.Constexpr):
    """The maximum over `lanes` lanes, `step` apart: every lane gets it; NaN if one is."""
    offset = step
    while cutlass.const_expr(offset < step * lanes):
        value = maximum(value, cute.arch.shuffle_sync_bfly(value, offset=offset))
        offset = offset * 2
    return value


@cute.jit
def flat(tensor):
    """A tensor by 64-bit element offsets from its first element."""
    return cute.make_tensor(tensor.iterator, cute.make_layout(2**62))


@cute.jit
def shared(base, offset: cutlass.Constexpr, dtype: cutlass.Constexpr, count: cutlass.Constexpr):
    """`count` elements at a byte offset of the planned shared memory."""
    return cute.make_tensor(cute.recast_ptr(base + offset, dtype=dtype), cute.make_layout(count))


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


@cute.kernel
def norm_quant_kernel(
    x: cute.Tensor, residual: cute.Tensor, weight: cute.Tensor, output: cute.Tensor, scale: cute.Tensor,
):
    thread, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    warp = cute.arch.warp_idx()
    base = SmemAllocator().allocate(SMEM_BYTES, byte_alignment=128)
    sSum, sTop = shared(base, 0, Float32, 6), shared(base, 32, Float32, 6)
    mScale = flat(scale)
    lane = thread & 31
    rX, rRes = cute.make_rmem_tensor((8, 1), Float32), cute.make_rmem_tensor((8, 1), Float32)
    rWt = cute.make_rmem_tensor((8, 1), Float32)
    load(tile(x, Int64(row) * x.stride[0] + thread * 8, 8, (8, 1), (1, 1536)), rX, ONCE)
    gResidual = tile(residual, Int64(row) * residual.stride[0] + thread * 8, 8, (8, 1), (1, 1536))
    load(gResidual, rRes)
    load(tile(weight, thread * 8, 8, (8, 1), (1, 1536)), rWt)
    squares = Float32(0.0)

    # norm+1: residual += x; norm+2: variance
    for c in cutlass.range_constexpr(1):
        for j in cutlass.range_constexpr(8):
            rRes[j, c] = round_bf16(rRes[j, c] + rX[j, c])
            squares = fma(rRes[j, c], rRes[j, c], squares)
    store(rRes, gResidual)
    squares = lane_sum(squares, 1, 32)
    if lane == 0:
        sSum[warp] = squares
    cute.arch.sync_threads()  # sum: partial of each warp, write → read

    rSquaresParts = cute.make_rmem_tensor((6,), Float32)
    cute.autovec_copy(tile(sSum, 0, 1, (6,), (1,)), rSquaresParts)
    squares = rSquaresParts[0]
    for w in cutlass.range_constexpr(5):
        squares = squares + rSquaresParts[w + 1]
    scale_2 = cute.math.rsqrt(fma(squares, Float32(0.0006510416666666666), Float32(1e-06)))
    rY = cute.make_rmem_tensor((8, 1), Float32)
    peak = Float32(0.0)
    for c in cutlass.range_constexpr(1):
        for j in cutlass.range_constexpr(8):
            rY[j, c] = round_bf16(mul(round_bf16(mul(rRes[j, c], scale_2)), rWt[j, c]))
            peak = maximum(peak, cute.math.abs(rY[j, c]))
    peak = lane_max(peak, 1, 32)
    if lane == 0:
        sTop[warp] = peak
    cute.arch.sync_threads()  # top: partial of each warp, write → read

    rPeakParts = cute.make_rmem_tensor((6,), Float32)
    cute.autovec_copy(tile(sTop, 0, 1, (6,), (1,)), rPeakParts)
    peak = rPeakParts[0]
    for w in cutlass.range_constexpr(5):
        peak = maximum(peak, rPeakParts[w + 1])

    # norm+5
    step = maximum(peak, Float32(1e-10)) / 448.0
    for c in cutlass.range_constexpr(1):
        for j in cutlass.range_constexpr(8):
            rY[j, c] = rY[j, c] / step
    store(rY, tile(output, Int64(row) * 1536 + thread * 8, 8, (8, 1), (1, 1536)))
    if thread == 0:
        mScale[Int64(row)] = step


@cute.jit
def launch(x: cute.Tensor, residual: cute.Tensor, weight: cute.Tensor, output: cute.Tensor, scale: cute.Tensor, stream):
    """The kernel on a stream."""
    norm_quant_kernel(x, residual, weight, output, scale).launch(
        grid=(x.shape[0], 1, 1), block=(THREADS, 1, 1), smem=SMEM_BYTES, stream=stream)


norm_quant_kernel.set_name_prefix("fusec_norm_quant", remove_cutlass_symbol=True)
