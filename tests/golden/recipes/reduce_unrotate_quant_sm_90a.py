"""reduce_unrotate_quant

grid: rows x partial_1 x out0_0 x out1_3; 128 threads
anchor: part [partial_3=REG4·LANE4@8, partial_4_0=WARP4@32, partial_4_1=REG2, cos_1=LANE8@1·REG4, partial_4_3=VEC2]
threads 0..0: shl_1, bitor, shl_2, bitor_1, shl_3, packed, store_out1
"""
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Boolean, Float32, Int32, Int64
from cutlass.cute.nvgpu import CacheEvictionPriority
from cutlass.memory import SmemAllocator

THREADS = 128
SMEM_BYTES = 16
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
def as_float(x):
    """The fp32 number with these 32 bits."""
    return Int32(x).bitcast(Float32)


@cute.jit
def as_bits(x):
    """The 32 bits of an fp32 number."""
    return Float32(x).bitcast(Int32)


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
def store(source, target, priority: cutlass.Constexpr = CacheEvictionPriority.EVICT_NORMAL):
    """Registers to memory, rounded to its element type."""
    held = cute.make_rmem_tensor(source.shape, target.element_type)
    held.store(source.load().to(target.element_type))
    cute.autovec_copy(held, target, l1c_evict_priority=priority)


@cute.kernel
def reduce_unrotate_quant_kernel(
    partial: cute.Tensor, lse: cute.Tensor, sink: cute.Tensor, topk_lengths: cute.Tensor, lengths: cute.Tensor,
    cos: cute.Tensor, sin: cute.Tensor, out0: cute.Tensor, out1: cute.Tensor,
):
    thread, _, _ = cute.arch.thread_idx()
    block_x, _, _ = cute.arch.block_idx()
    warp = cute.arch.warp_idx()
    base = SmemAllocator().allocate(SMEM_BYTES, byte_alignment=128)
    sExponent = shared(base, 0, Int32, 4)
    mSink, mTopkLengths, mLengths, mCos = flat(sink), flat(topk_lengths), flat(lengths), flat(cos)
    mSin, mOut1 = flat(sin), flat(out1)
    out1_3 = block_x & 7
    out0_0 = (block_x >> 3) & 7
    partial_1 = (block_x >> 6) & 1
    rows = block_x >> 7
    partial_3_lane = (thread >> 3) & 3
    cos_1_lane = thread & 7
    lane = thread & 31

    # reduce_unrotate_quant+10
    lengths_in = mLengths[Int64(rows) * lengths.stride[0]]

    # reduce_unrotate_quant+10: position; reduce_unrotate_quant+12
    position_2 = lengths_in - 2 + partial_1
    lt_1 = position_2 < 0
    select_2 = select(lt_1, position_2 + Int64(cos.shape[0]), Int64(position_2))
    select_3 = select(lt_1, position_2 + Int64(sin.shape[0]), Int64(position_2))

    # reduce_unrotate_quant+12
    select_2_at = Int64(select_2)
    select_3_at = Int64(select_3)
    rLseIn, rLt = cute.make_rmem_tensor((4,), Float32), cute.make_rmem_tensor((4,), Boolean)
    rLtHere, rPart = cute.make_rmem_tensor((4,), Boolean), cute.make_rmem_tensor((2, 4, 2, 4), BFloat16)
    rSelect, rJoin1IsHere = cute.make_rmem_tensor((4,), Float32), cute.make_rmem_tensor((2,), Boolean)
    rWeight, rGt = cute.make_rmem_tensor((4,), Float32), cute.make_rmem_tensor((4,), Boolean)
    rOutPart, rDiv = cute.make_rmem_tensor((2, 4, 2), Float32), cute.make_rmem_tensor((2, 2), Float32)
    rJoin31, rJoin2 = cute.make_rmem_tensor((2, 2), Float32), cute.make_rmem_tensor((2, 2), Float32)
    rClampF8e4m3 = cute.make_rmem_tensor((2, 2), Float32)
    rPart.fill(0.0)
    rOutPart.fill(0.0)
    max_2, sum_2, max_1 = -Float32.inf, Float32(0.0), -Float32.inf
    topk_lengths_in = mTopkLengths[Int64(rows) * topk_lengths.stride[0] + partial_1]
    sink_in = mSink[out0_0 * 8 + out1_3]
    gLse = tile(lse, Int64(rows) * lse.stride[0] + (partial_1 * 1024 + out0_0 * 128 + out1_3 * 16 + partial_3_lane), 1,
        (4,), (4,))
    cute.autovec_copy(gLse, rLseIn)
    cos_in = mCos[select_2_at * cos.stride[0] + (cos_1_lane * 4 + partial_3_lane)]
    sin_in = mSin[select_3_at * sin.stride[0] + (cos_1_lane * 4 + partial_3_lane)]

    # unrotate+3; used+3
    neg_sin_in = -sin_in
    count_i64 = Int64((topk_lengths_in + 128 - 1) // 128)

    # used+3
    for partial_3_r in cutlass.range_constexpr(4):
        rLt[partial_3_r] = partial_3_r * 4 + partial_3_lane < count_i64
        rLtHere[partial_3_r] = partial_3_r * 4 + partial_3_lane < count_i64

    # reduce_unrotate_quant+5: part
    gPartial = tile(partial, Int64(rows) * partial.stride[0]
        + (partial_1 * 524288 + out0_0 * 65536 + out1_3 * 8192 + partial_3_lane * 512 + warp * 128 + cos_1_lane * 8),
        8, (2, 4, 2, 4), (1, 2, 64, 2048))
    for partial_3_r in cutlass.range_constexpr(4):
        if Boolean(rLtHere[partial_3_r]):
            cute.autovec_copy(gPartial[None, None, None, partial_3_r], rPart[None, None, None, partial_3_r])

    # reduce_unrotate_quant+6; weigh+2
    for partial_3_r in cutlass.range_constexpr(4):
        rSelect[partial_3_r] = select(Boolean(rLt[partial_3_r]), rLseIn[partial_3_r], -Float32.inf)
        max_2 = maximum(max_2, rSelect[partial_3_r])

    # reduce_unrotate_quant+12
    for partial_4_1_r in cutlass.range_constexpr(2):
        rJoin1IsHere[partial_4_1_r] = Int32(partial_4_1_r) < 1
    join_2_is_here = warp < 3

    # weigh+2
    max_2 = lane_max(max_2, 8, 4)

    # weigh+3: top; reduce_unrotate_quant+7
    top = select(max_2 == -Float32.inf, Float32(0.0), max_2)
    exp = cute.math.exp(sink_in - top)

    # weigh+4: weight; weigh+5; combine+2
    for partial_3_r in cutlass.range_constexpr(4):
        rWeight[partial_3_r] = cute.math.exp(rSelect[partial_3_r] - top)
        sum_2 = sum_2 + rWeight[partial_3_r]
        rGt[partial_3_r] = rWeight[partial_3_r] > 0.0

    # combine+3: out
    for partial_3_r in cutlass.range_constexpr(4):
        for partial_4_1_r in cutlass.range_constexpr(2):
            for cos_1_r in cutlass.range_constexpr(4):
                for partial_4_3_v in cutlass.range_constexpr(2):
                    rOutPart[partial_4_3_v, cos_1_r, partial_4_1_r] = fma(rWeight[partial_3_r],
                        select(Boolean(rGt[partial_3_r]), Float32(
                        rPart[partial_4_3_v, cos_1_r, partial_4_1_r, partial_3_r]), Float32(0.0)),
                        rOutPart[partial_4_3_v, cos_1_r, partial_4_1_r])
    for i0 in cutlass.range_constexpr(2):
        for i1 in cutlass.range_constexpr(4):
            for i2 in cutlass.range_constexpr(2):
                rOutPart[i2, i1, i0] = lane_sum(rOutPart[i2, i1, i0], 8, 4)

    # weigh+5
    sum_2 = lane_sum(sum_2, 8, 4)

    # reduce_unrotate_quant+7; combine+4
    add_1 = sum_2 + exp
    select_1 = select(add_1 > 0.0, add_1, Float32(1.0))
    select_1_size = cute.math.abs(select_1)
    select_1_factor = select(select_1_size < 5.421010862427522e-20, Float32(1.8446744073709552e+19),
        select(1.8446744073709552e+19 < select_1_size, Float32(5.421010862427522e-20), Float32(1.0)))
    select_1_rcp = cute.math.rcp(select_1 * select_1_factor)

    # combine+3: out; combine+4
    for partial_4_1_r in cutlass.range_constexpr(2):
        for partial_4_3_v in cutlass.range_constexpr(2):
            out = select(partial_3_lane < 1, rOutPart[partial_4_3_v, 0, partial_4_1_r],
                select(partial_3_lane < 2, rOutPart[partial_4_3_v, 1, partial_4_1_r],
                select(partial_3_lane < 3, rOutPart[partial_4_3_v, 2, partial_4_1_r],
                rOutPart[partial_4_3_v, 3, partial_4_1_r])))
            rDiv[partial_4_3_v, partial_4_1_r] = out * select_1_factor * select_1_rcp

    # unrotate+3
    for partial_4_1_r in cutlass.range_constexpr(2):
        rJoin31[0, partial_4_1_r] = fma(rDiv[0, partial_4_1_r], cos_in, rDiv[1, partial_4_1_r] * sin_in)
        rJoin31[1, partial_4_1_r] = fma(neg_sin_in, rDiv[0, partial_4_1_r], rDiv[1, partial_4_1_r] * cos_in)

    # reduce_unrotate_quant+12; quantise+2
    for partial_4_1_r in cutlass.range_constexpr(2):
        for partial_4_3_v in cutlass.range_constexpr(2):
            rJoin2[partial_4_3_v, partial_4_1_r] = select(join_2_is_here, rDiv[partial_4_3_v, partial_4_1_r],
                select(Boolean(rJoin1IsHere[partial_4_1_r]), rDiv[partial_4_3_v, partial_4_1_r],
                rJoin31[partial_4_3_v, partial_4_1_r]))
            max_1 = maximum(max_1, cute.math.abs(rJoin2[partial_4_3_v, partial_4_1_r]))

    # quantise+2
    max_1 = lane_max(max_1, 1, 32)

    # quantise+2: bits; quantise+3: exponent; quantise+4: inverse
    bits = as_bits(maximum(max_1, Float32(1e-10)) / 448.0)
    exponent = (bits >> 23) + Int32(bits & 8388607 != 0)
    inverse = as_float(254 - exponent << 23)

    # quantise+5
    for partial_4_1_r in cutlass.range_constexpr(2):
        for partial_4_3_v in cutlass.range_constexpr(2):
            rClampF8e4m3[partial_4_3_v, partial_4_1_r] = rJoin2[partial_4_3_v, partial_4_1_r] * inverse
    if lane == 0:
        # quantise+3: exponent
        sExponent[warp] = exponent

    # reduce_unrotate_quant+16: codes
    gOut0 = tile(out0, Int64(out0_0) * out0.stride[0] + Int64(rows) * 8192
        + (partial_1 * 4096 + out1_3 * 512 + warp * 128 + cos_1_lane * 8 + partial_3_lane * 2), 2, (2, 2), (1, 64))
    store(rClampF8e4m3, gOut0)
    exponent_s, exponent_s_2, exponent_s_3, exponent_s_4 = Int32(0), Int32(0), Int32(0), Int32(0)
    packed = Int32(0)
    cute.arch.sync_threads()  # exponent_shared: write → read

    if thread == 0:
        exponent_s = sExponent[1]
        exponent_s_2 = sExponent[0]
        exponent_s_3 = sExponent[2]
        exponent_s_4 = sExponent[3]
        # reduce_unrotate_quant+15; reduce_unrotate_quant+15: packed
        bitor_1 = exponent_s_2 | exponent_s << 8 | exponent_s_3 << 16
        packed = bitor_1 | exponent_s_4 << 24
        # reduce_unrotate_quant+17
        mOut1[Int64(out0_0) * out1.stride[0] + Int64(rows) * 16 + (partial_1 * 8 + out1_3)] = packed


@cute.jit
def launch(
    partial: cute.Tensor, lse: cute.Tensor, sink: cute.Tensor, topk_lengths: cute.Tensor, lengths: cute.Tensor,
    cos: cute.Tensor, sin: cute.Tensor, out0: cute.Tensor, out1: cute.Tensor, stream,
):
    """The kernel on a stream."""
    reduce_unrotate_quant_kernel(partial, lse, sink, topk_lengths, lengths, cos, sin, out0, out1).launch(
        grid=(partial.shape[0] * 2 * 8 * 8, 1, 1), block=(THREADS, 1, 1), smem=SMEM_BYTES,
        min_blocks_per_mp=MIN_BLOCKS, preferred_smem_carveout=CARVEOUT, stream=stream)


reduce_unrotate_quant_kernel.set_name_prefix("fusec_reduce_unrotate_quant", remove_cutlass_symbol=True)
