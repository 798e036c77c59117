"""merge_states

grid: rows; 128 threads
anchor: part [v_1=REG4, v_2=WARP4@32·LANE8@4, v_3=REG4·LANE4@1·VEC8]
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
def merge_states_kernel(v: cute.Tensor, s: cute.Tensor, out0: cute.Tensor, out1: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    rows, _, _ = cute.arch.block_idx()
    warp = cute.arch.warp_idx()
    mOut1 = flat(out1)
    v_2_lane = (thread >> 2) & 7
    v_3_lane = thread & 3
    rSIn, rWeight = cute.make_rmem_tensor((4,), Float32), cute.make_rmem_tensor((4,), Float32)
    rGt, rPart = cute.make_rmem_tensor((4,), Boolean), cute.make_rmem_tensor((8, 4, 4), BFloat16)
    rSum, rOutBf16 = cute.make_rmem_tensor((8, 4), Float32), cute.make_rmem_tensor((8, 4), Float32)
    rPart.fill(0.0)
    rSum.fill(0.0)
    max_2, total = -Float32.inf, Float32(0.0)
    cute.autovec_copy(tile(s, Int64(rows) * s.stride[0] + (warp * 8 + v_2_lane), 1, (4,), (32,)), rSIn)

    # merge_states+2
    for v_1_r in cutlass.range_constexpr(4):
        max_2 = maximum(max_2, rSIn[v_1_r])

    # merge_states+3: top
    top = select(max_2 == -Float32.inf, Float32(0.0), max_2)

    # merge_states+4: weight; merge_states+5: total; merge_states+6
    for v_1_r in cutlass.range_constexpr(4):
        rWeight[v_1_r] = cute.math.exp2(rSIn[v_1_r] - top)
        total = total + rWeight[v_1_r]
        rGt[v_1_r] = rWeight[v_1_r] > 0.0

    # merge_states+6: part
    gV = tile(v, Int64(rows) * v.stride[0] + (warp * 1024 + v_2_lane * 128 + v_3_lane * 8), 8, (8, 4, 4), (1, 32, 4096))
    for v_1_r in cutlass.range_constexpr(4):
        if Boolean(rGt[v_1_r]):
            cute.autovec_copy(gV[None, None, v_1_r], rPart[None, None, v_1_r])

    # merge_states+7
    for v_1_r in cutlass.range_constexpr(4):
        for v_3_r in cutlass.range_constexpr(4):
            for v_3_v in cutlass.range_constexpr(8):
                rSum[v_3_v, v_3_r] = fma(rWeight[v_1_r], Float32(rPart[v_3_v, v_3_r, v_1_r]), rSum[v_3_v, v_3_r])

    # merge_states+7; merge_states+8
    select_2 = select(total > 0.0, total, Float32(1.0))
    select_size = cute.math.abs(select_2)
    select_factor = select(select_size < 5.421010862427522e-20, Float32(1.8446744073709552e+19),
        select(1.8446744073709552e+19 < select_size, Float32(5.421010862427522e-20), Float32(1.0)))
    select_rcp = cute.math.rcp(select_2 * select_factor)
    add = top + cute.math.log2(total)

    # merge_states+8
    for v_3_r in cutlass.range_constexpr(4):
        for v_3_v in cutlass.range_constexpr(8):
            rOutBf16[v_3_v, v_3_r] = rSum[v_3_v, v_3_r] * select_factor * select_rcp
    gOut0 = tile(out0, Int64(rows) * 4096 + (warp * 1024 + v_2_lane * 128 + v_3_lane * 8), 8, (8, 4), (1, 32))
    store(rOutBf16, gOut0)
    if v_3_lane == 0:
        mOut1[Int64(rows) * 32 + (warp * 8 + v_2_lane)] = add


@cute.jit
def launch(v: cute.Tensor, s: cute.Tensor, out0: cute.Tensor, out1: cute.Tensor, stream):
    """The kernel on a stream."""
    merge_states_kernel(v, s, out0, out1).launch(
        grid=(v.shape[0], 1, 1), block=(THREADS, 1, 1), min_blocks_per_mp=MIN_BLOCKS,
        preferred_smem_carveout=CARVEOUT, stream=stream)


merge_states_kernel.set_name_prefix("fusec_merge_states", remove_cutlass_symbol=True)
