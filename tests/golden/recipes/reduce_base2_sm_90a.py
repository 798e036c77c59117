"""reduce_base2

grid: rows x partial_2; 128 threads
anchor: part [partial_0=REG8·LANE4@8, partial_3=REG2·WARP4@32·LANE8@1·VEC8]
"""
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Boolean, Float32, Int64
from cutlass.cute.nvgpu import CacheEvictionPriority

THREADS = 128
MIN_BLOCKS = 4
CARVEOUT = 2  # per cent of the unified memory


@cute.jit
def fma(a, b, c):
    """a * b + c, rounded once."""
    return cute.math.fma(a, b, c)


@cute.jit
def select(condition, yes, no):
    """`yes` where the condition holds, else `no`."""
    return yes if condition else no


@cute.jit
def maximum(a, b):
    """The larger one; NaN if either is."""
    return cute.arch.fmax(a, b, nan=True)


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
def tile(tensor, offset, width: cutlass.Constexpr, shape: cutlass.Constexpr, stride: cutlass.Constexpr):
    """The elements from an offset on that is a multiple of `width`: accesses may be `width` elements wide."""
    return cute.make_tensor(tensor.iterator + cute.assume(offset, divby=width), cute.make_layout(shape, stride=stride))


@cute.jit
def store(source, target, priority: cutlass.Constexpr = CacheEvictionPriority.EVICT_NORMAL):
    """Registers to memory, rounded to its element type."""
    held = cute.make_rmem_tensor(source.shape, target.element_type)
    held.store(source.load().to(target.element_type))
    cute.autovec_copy(held, target, l1c_evict_priority=priority)


@cute.kernel
def reduce_base2_kernel(
    partial: cute.Tensor, lse: cute.Tensor, lengths: cute.Tensor, out0: cute.Tensor, out1: cute.Tensor,
):
    thread, _, _ = cute.arch.thread_idx()
    block_x, _, _ = cute.arch.block_idx()
    warp = cute.arch.warp_idx()
    mLse, mLengths, mOut1 = flat(lse), flat(lengths), flat(out1)
    partial_2 = block_x & 15
    rows = block_x >> 4
    partial_0_lane = (thread >> 3) & 3
    partial_3_lane = thread & 7
    rLseIn, rPosition = cute.make_rmem_tensor((8,), Float32), cute.make_rmem_tensor((8,), Int64)
    rPositionHere, rLt = cute.make_rmem_tensor((8,), Int64), cute.make_rmem_tensor((8,), Boolean)
    rLtHere, rPart = cute.make_rmem_tensor((8,), Boolean), cute.make_rmem_tensor((8, 2, 8), BFloat16)
    rSelect, rWeight = cute.make_rmem_tensor((8,), Float32), cute.make_rmem_tensor((8,), Float32)
    rGt, rOut = cute.make_rmem_tensor((8,), Boolean), cute.make_rmem_tensor((8, 2), Float32)
    rDivF16 = cute.make_rmem_tensor((8, 2), Float32)
    rPart.fill(0.0)
    rOut.fill(0.0)
    max_2, sum_2 = -Float32.inf, Float32(0.0)
    lengths_in = mLengths[Int64(rows) * lengths.stride[0]]
    for partial_0_r in cutlass.range_constexpr(8):
        rLseIn[partial_0_r] = (
            mLse[Int64(partial_0_r) * 4 * lse.stride[0] + Int64(partial_0_lane) * lse.stride[0] + Int64(
            rows) * lse.stride[1] + partial_2])

    # used+3
    for partial_0_r in cutlass.range_constexpr(8):
        rPosition[partial_0_r] = Int64(partial_0_r * 4 + partial_0_lane)
        rPositionHere[partial_0_r] = Int64(partial_0_r * 4 + partial_0_lane)
    count_i64 = Int64((lengths_in + 128 - 1) // 128)
    for partial_0_r in cutlass.range_constexpr(8):
        rLt[partial_0_r] = rPosition[partial_0_r] < count_i64
        rLtHere[partial_0_r] = rPositionHere[partial_0_r] < count_i64

    # reduce_base2+3: part
    for partial_0_r in cutlass.range_constexpr(8):
        for partial_3_r in cutlass.range_constexpr(2):
            if Boolean(rLtHere[partial_0_r]):
                cute.autovec_copy(tile(partial, Int64(partial_0_r) * 4 * partial.stride[0]
                    + Int64(partial_0_lane) * partial.stride[0] + Int64(rows) * partial.stride[1]
                    + (partial_2 * 512 + partial_3_r * 256 + warp * 64 + partial_3_lane * 8), 8, (8,), (1,)),
                    rPart[None, partial_3_r, partial_0_r])

    # reduce_base2+4; weigh+2
    for partial_0_r in cutlass.range_constexpr(8):
        rSelect[partial_0_r] = select(Boolean(rLt[partial_0_r]), rLseIn[partial_0_r], -Float32.inf)
        max_2 = maximum(max_2, rSelect[partial_0_r])

    # weigh+2
    max_2 = lane_max(max_2, 8, 4)

    # weigh+3: top
    top = select(max_2 == -Float32.inf, Float32(0.0), max_2)

    # weigh+4: weight; weigh+5; combine+2
    for partial_0_r in cutlass.range_constexpr(8):
        rWeight[partial_0_r] = cute.math.exp2(rSelect[partial_0_r] - top)
        sum_2 = sum_2 + rWeight[partial_0_r]
        rGt[partial_0_r] = rWeight[partial_0_r] > 0.0

    # combine+3: out
    for partial_0_r in cutlass.range_constexpr(8):
        for partial_3_r in cutlass.range_constexpr(2):
            for partial_3_v in cutlass.range_constexpr(8):
                rOut[partial_3_v, partial_3_r] = fma(rWeight[partial_0_r],
                    select(Boolean(rGt[partial_0_r]), Float32(rPart[partial_3_v, partial_3_r, partial_0_r]),
                    Float32(0.0)), rOut[partial_3_v, partial_3_r])
    for i0 in cutlass.range_constexpr(2):
        for i1 in cutlass.range_constexpr(8):
            rOut[i1, i0] = lane_sum(rOut[i1, i0], 8, 4)

    # weigh+5
    sum_2 = lane_sum(sum_2, 8, 4)

    # combine+4; reduce_base2+5
    select_1 = select(sum_2 > 0.0, sum_2, Float32(1.0))
    select_1_size = cute.math.abs(select_1)
    select_1_factor = select(select_1_size < 5.421010862427522e-20, Float32(1.8446744073709552e+19),
        select(1.8446744073709552e+19 < select_1_size, Float32(5.421010862427522e-20), Float32(1.0)))
    select_1_rcp = cute.math.rcp(select_1 * select_1_factor)
    add_1 = top + cute.math.log2(sum_2)

    # reduce_base2+5
    for partial_3_r in cutlass.range_constexpr(2):
        for partial_3_v in cutlass.range_constexpr(8):
            rDivF16[partial_3_v, partial_3_r] = rOut[partial_3_v, partial_3_r] * select_1_factor * select_1_rcp
    if partial_0_lane == 0:
        gOut0 = tile(out0, Int64(rows) * 8192 + (partial_2 * 512 + warp * 64 + partial_3_lane * 8), 8, (8, 2), (1, 256))
        store(rDivF16, gOut0)
    if thread == 0:
        mOut1[Int64(rows) * 16 + partial_2] = add_1


@cute.jit
def launch(partial: cute.Tensor, lse: cute.Tensor, lengths: cute.Tensor, out0: cute.Tensor, out1: cute.Tensor, stream):
    """The kernel on a stream."""
    reduce_base2_kernel(partial, lse, lengths, out0, out1).launch(
        grid=(partial.shape[1] * 16, 1, 1), block=(THREADS, 1, 1), min_blocks_per_mp=MIN_BLOCKS,
        preferred_smem_carveout=CARVEOUT, stream=stream)


reduce_base2_kernel.set_name_prefix("fusec_reduce_base2", remove_cutlass_symbol=True)
