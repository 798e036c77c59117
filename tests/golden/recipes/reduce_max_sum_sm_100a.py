"""reduce_max_sum

grid: rows x partial_2; 128 threads
anchor: part [partial_1=REG4·LANE4@8, partial_3=REG4·WARP4@32·LANE8@1·VEC4]
"""
import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64
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
def reduce_max_sum_kernel(
    partial: cute.Tensor, top: cute.Tensor, total: cute.Tensor, lengths: cute.Tensor, sink: cute.Tensor,
    out: cute.Tensor,
):
    thread, _, _ = cute.arch.thread_idx()
    block_x, _, _ = cute.arch.block_idx()
    warp = cute.arch.warp_idx()
    mLengths, mSink = flat(lengths), flat(sink)
    partial_2 = block_x & 15
    rows = block_x >> 4
    partial_1_lane = (thread >> 3) & 3
    partial_3_lane = thread & 7
    rTopIn, rTotalIn = cute.make_rmem_tensor((4,), Float32), cute.make_rmem_tensor((4,), Float32)
    rPosition, rPositionHere = cute.make_rmem_tensor((4,), Int64), cute.make_rmem_tensor((4,), Int64)
    rMul, rLt = cute.make_rmem_tensor((4,), Float32), cute.make_rmem_tensor((4,), Boolean)
    rLtHere, rPart = cute.make_rmem_tensor((4,), Boolean), cute.make_rmem_tensor((4, 4, 4), Float32)
    rSelect, rWeight = cute.make_rmem_tensor((4,), Float32), cute.make_rmem_tensor((4,), Float32)
    rGt, rOut1Part = cute.make_rmem_tensor((4,), Boolean), cute.make_rmem_tensor((4, 4), Float32)
    rDivBf16 = cute.make_rmem_tensor((4,), Float32)
    rPart.fill(0.0)
    rOut1Part.fill(0.0)
    max_2, keys = -Float32.inf, Float32(0.0)
    lengths_in = mLengths[Int64(rows) * lengths.stride[0]]
    sink_in = mSink[partial_2]
    gTop = tile(top, Int64(rows) * top.stride[0] + (partial_1_lane * 16 + partial_2), 1, (4,), (64,))
    cute.autovec_copy(gTop, rTopIn)
    gTotal = tile(total, Int64(rows) * total.stride[0] + (partial_1_lane * 16 + partial_2), 1, (4,), (64,))
    cute.autovec_copy(gTotal, rTotalIn)

    # used+3; reduce_max_sum+6
    for partial_1_r in cutlass.range_constexpr(4):
        rPosition[partial_1_r] = Int64(partial_1_r * 4 + partial_1_lane)
        rPositionHere[partial_1_r] = Int64(partial_1_r * 4 + partial_1_lane)
        rMul[partial_1_r] = rTopIn[partial_1_r] * 0.10411754627697264

    # used+2: count; used+3
    count = (cutlass.min(lengths_in, Int32(2048)) + 128 - 1) // 128
    count_i64 = Int64(count)

    # used+3
    for partial_1_r in cutlass.range_constexpr(4):
        rLt[partial_1_r] = rPosition[partial_1_r] < count_i64
        rLtHere[partial_1_r] = rPositionHere[partial_1_r] < count_i64

    # reduce_max_sum+5: part
    gPartial = tile(partial, Int64(rows) * partial.stride[0]
        + (partial_1_lane * 8192 + partial_2 * 512 + warp * 32 + partial_3_lane * 4), 4, (4, 4, 4), (1, 128, 32768))
    for partial_1_r in cutlass.range_constexpr(4):
        if Boolean(rLtHere[partial_1_r]):
            cute.autovec_copy(gPartial[None, None, partial_1_r], rPart[None, None, partial_1_r])

    # reduce_max_sum+6; weigh+2
    for partial_1_r in cutlass.range_constexpr(4):
        rSelect[partial_1_r] = select(Boolean(rLt[partial_1_r]), rMul[partial_1_r], -Float32.inf)
        max_2 = maximum(max_2, rSelect[partial_1_r])

    # weigh+2
    max_2 = lane_max(max_2, 8, 4)

    # weigh+3: top; reduce_max_sum+8
    top_1 = select(max_2 == -Float32.inf, Float32(0.0), max_2)
    exp2 = cute.math.exp2(fma(sink_in, Float32(1.4426950408889634), -top_1))

    # weigh+4: weight; reduce_max_sum+7; reduce_max_sum+7: keys
    for partial_1_r in cutlass.range_constexpr(4):
        rWeight[partial_1_r] = cute.math.exp2(rSelect[partial_1_r] - top_1)
        rGt[partial_1_r] = rWeight[partial_1_r] > 0.0
        keys = keys + select(Boolean(rGt[partial_1_r]), rWeight[partial_1_r] * rTotalIn[partial_1_r], Float32(0.0))

    # combine+3: out
    for partial_1_r in cutlass.range_constexpr(4):
        for partial_3_r in cutlass.range_constexpr(4):
            for partial_3_v in cutlass.range_constexpr(4):
                rOut1Part[partial_3_v, partial_3_r] = fma(rWeight[partial_1_r],
                    select(Boolean(rGt[partial_1_r]), rPart[partial_3_v, partial_3_r, partial_1_r], Float32(0.0)),
                    rOut1Part[partial_3_v, partial_3_r])
    for i0 in cutlass.range_constexpr(4):
        for i1 in cutlass.range_constexpr(4):
            rOut1Part[i1, i0] = lane_sum(rOut1Part[i1, i0], 8, 4)

    # reduce_max_sum+7: keys
    keys = lane_sum(keys, 8, 4)

    # reduce_max_sum+8; combine+4
    add_1 = keys + exp2
    select_2 = select(add_1 > 0.0, add_1, Float32(1.0))
    select_2_size = cute.math.abs(select_2)
    select_2_factor = select(select_2_size < 5.421010862427522e-20, Float32(1.8446744073709552e+19),
        select(1.8446744073709552e+19 < select_2_size, Float32(5.421010862427522e-20), Float32(1.0)))
    select_2_rcp = cute.math.rcp(select_2 * select_2_factor)

    # combine+3: out; reduce_max_sum+8
    for partial_3_v in cutlass.range_constexpr(4):
        out_1 = select(partial_1_lane < 1, rOut1Part[partial_3_v, 0],
            select(partial_1_lane < 2, rOut1Part[partial_3_v, 1],
            select(partial_1_lane < 3, rOut1Part[partial_3_v, 2], rOut1Part[partial_3_v, 3])))
        rDivBf16[partial_3_v] = out_1 * select_2_factor * select_2_rcp

    # reduce_max_sum+8
    gOut = tile(out, Int64(rows) * 8192 + (partial_2 * 512 + partial_1_lane * 128 + warp * 32 + partial_3_lane * 4), 4,
        (4,), (1,))
    store(rDivBf16, gOut)


@cute.jit
def launch(
    partial: cute.Tensor, top: cute.Tensor, total: cute.Tensor, lengths: cute.Tensor, sink: cute.Tensor,
    out: cute.Tensor, stream,
):
    """The kernel on a stream."""
    reduce_max_sum_kernel(partial, top, total, lengths, sink, out).launch(
        grid=(partial.shape[0] * 16, 1, 1), block=(THREADS, 1, 1), min_blocks_per_mp=MIN_BLOCKS,
        preferred_smem_carveout=CARVEOUT, stream=stream)


reduce_max_sum_kernel.set_name_prefix("fusec_reduce_max_sum", remove_cutlass_symbol=True)
