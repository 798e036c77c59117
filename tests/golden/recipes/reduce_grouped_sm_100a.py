"""reduce_grouped

grid: rows x sink_0; 128 threads
anchor: part [partial_1=REG4·LANE4@8, partial_2=REG2·WARP4@32·LANE8@1·VEC8]
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
def reduce_grouped_kernel(
    partial: cute.Tensor, lse: cute.Tensor, lengths: cute.Tensor, topk_lengths: cute.Tensor, sink: cute.Tensor,
    scale: cute.Tensor, out0: cute.Tensor, out1: cute.Tensor,
):
    thread, _, _ = cute.arch.thread_idx()
    block_x, _, _ = cute.arch.block_idx()
    warp = cute.arch.warp_idx()
    mLengths, mTopkLengths, mSink, mScale = flat(lengths), flat(topk_lengths), flat(sink), flat(scale)
    mOut1 = flat(out1)
    sink_0 = block_x & 15
    rows = block_x >> 4
    partial_1_lane = (thread >> 3) & 3
    partial_2_lane = thread & 7
    rLseIn, rPosition = cute.make_rmem_tensor((4,), Float32), cute.make_rmem_tensor((4,), Int64)
    rPositionHere, rLt = cute.make_rmem_tensor((4,), Int64), cute.make_rmem_tensor((4,), Boolean)
    rLtHere, rPart = cute.make_rmem_tensor((4,), Boolean), cute.make_rmem_tensor((8, 2, 4), BFloat16)
    rSelect, rWeight = cute.make_rmem_tensor((4,), Float32), cute.make_rmem_tensor((4,), Float32)
    rGt, rOut = cute.make_rmem_tensor((4,), Boolean), cute.make_rmem_tensor((8, 2), Float32)
    rClampF8e4m3 = cute.make_rmem_tensor((8, 2), Float32)
    rPart.fill(0.0)
    rOut.fill(0.0)
    max_2, sum_2 = -Float32.inf, Float32(0.0)
    lengths_in = mLengths[Int64(rows) * lengths.stride[0]]
    topk_lengths_in = mTopkLengths[Int64(rows) * topk_lengths.stride[0]]
    sink_in = mSink[sink_0]
    scale_in = mScale[0]

    # reduce_grouped+6
    gLse = tile(lse, Int64(rows) * 16 * lse.stride[0] + Int64(sink_0) * lse.stride[0] + partial_1_lane, 1, (4,), (4,))
    cute.autovec_copy(gLse, rLseIn)

    # used+3
    for partial_1_r in cutlass.range_constexpr(4):
        rPosition[partial_1_r] = Int64(partial_1_r * 4 + partial_1_lane)
        rPositionHere[partial_1_r] = Int64(partial_1_r * 4 + partial_1_lane)

    # used+2: count; used+3
    count = (cutlass.min(lengths_in, topk_lengths_in) + 128 - 1) // 128
    count_i64 = Int64(count)
    scale_in_size = cute.math.abs(scale_in)
    scale_in_factor = select(scale_in_size < 5.421010862427522e-20, Float32(1.8446744073709552e+19),
        select(1.8446744073709552e+19 < scale_in_size, Float32(5.421010862427522e-20), Float32(1.0)))
    scale_in_rcp = cute.math.rcp(scale_in * scale_in_factor)

    # used+3
    for partial_1_r in cutlass.range_constexpr(4):
        rLt[partial_1_r] = rPosition[partial_1_r] < count_i64
        rLtHere[partial_1_r] = rPositionHere[partial_1_r] < count_i64

    # reduce_grouped+5: part
    gPartial = tile(partial, Int64(rows) * 16 * partial.stride[0] + Int64(sink_0) * partial.stride[0]
        + (partial_1_lane * 512 + warp * 64 + partial_2_lane * 8), 8, (8, 2, 4), (1, 256, 2048))
    for partial_1_r in cutlass.range_constexpr(4):
        if Boolean(rLtHere[partial_1_r]):
            cute.autovec_copy(gPartial[None, None, partial_1_r], rPart[None, None, partial_1_r])

    # reduce_grouped+6; weigh+2
    for partial_1_r in cutlass.range_constexpr(4):
        rSelect[partial_1_r] = select(Boolean(rLt[partial_1_r]), rLseIn[partial_1_r], -Float32.inf)
        max_2 = maximum(max_2, rSelect[partial_1_r])

    # weigh+2
    max_2 = lane_max(max_2, 8, 4)

    # weigh+3: top; reduce_grouped+7
    top = select(max_2 == -Float32.inf, Float32(0.0), max_2)
    exp = cute.math.exp(sink_in - top)

    # weigh+4: weight; weigh+5; combine+2
    for partial_1_r in cutlass.range_constexpr(4):
        rWeight[partial_1_r] = cute.math.exp(rSelect[partial_1_r] - top)
        sum_2 = sum_2 + rWeight[partial_1_r]
        rGt[partial_1_r] = rWeight[partial_1_r] > 0.0

    # combine+3: out
    for partial_1_r in cutlass.range_constexpr(4):
        for partial_2_r in cutlass.range_constexpr(2):
            for partial_2_v in cutlass.range_constexpr(8):
                rOut[partial_2_v, partial_2_r] = fma(rWeight[partial_1_r],
                    select(Boolean(rGt[partial_1_r]), Float32(rPart[partial_2_v, partial_2_r, partial_1_r]),
                    Float32(0.0)), rOut[partial_2_v, partial_2_r])
    for i0 in cutlass.range_constexpr(2):
        for i1 in cutlass.range_constexpr(8):
            rOut[i1, i0] = lane_sum(rOut[i1, i0], 8, 4)

    # weigh+5
    sum_2 = lane_sum(sum_2, 8, 4)

    # reduce_grouped+7; combine+4; reduce_grouped+8
    add_1 = sum_2 + exp
    select_1 = select(add_1 > 0.0, add_1, Float32(1.0))
    select_1_size = cute.math.abs(select_1)
    select_1_factor = select(select_1_size < 5.421010862427522e-20, Float32(1.8446744073709552e+19),
        select(1.8446744073709552e+19 < select_1_size, Float32(5.421010862427522e-20), Float32(1.0)))
    select_1_rcp = cute.math.rcp(select_1 * select_1_factor)
    add_2 = top + cute.math.log(sum_2)

    # reduce_grouped+7: out; reduce_grouped+8
    for partial_2_r in cutlass.range_constexpr(2):
        for partial_2_v in cutlass.range_constexpr(8):
            out_1 = rOut[partial_2_v, partial_2_r] * select_1_factor * select_1_rcp * scale_in_factor * scale_in_rcp
            rClampF8e4m3[partial_2_v, partial_2_r] = out_1
    if partial_1_lane == 0:
        # reduce_grouped+8
        gOut0 = tile(out0, Int64(rows) * 8192 + (sink_0 * 512 + warp * 64 + partial_2_lane * 8), 8, (8, 2), (1, 256))
        store(rClampF8e4m3, gOut0)
    if thread == 0:
        mOut1[Int64(rows) * 16 + sink_0] = add_2


@cute.jit
def launch(
    partial: cute.Tensor, lse: cute.Tensor, lengths: cute.Tensor, topk_lengths: cute.Tensor, sink: cute.Tensor,
    scale: cute.Tensor, out0: cute.Tensor, out1: cute.Tensor, stream,
):
    """The kernel on a stream."""
    reduce_grouped_kernel(partial, lse, lengths, topk_lengths, sink, scale, out0, out1).launch(
        grid=(lengths.shape[0] * 16, 1, 1), block=(THREADS, 1, 1), min_blocks_per_mp=MIN_BLOCKS,
        preferred_smem_carveout=CARVEOUT, stream=stream)


reduce_grouped_kernel.set_name_prefix("fusec_reduce_grouped", remove_cutlass_symbol=True)
