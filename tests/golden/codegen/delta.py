"""one step of a delta rule on a paged state

k = REG2 × LANE8 × VEC4, v = WARP4 × REG2 × LANE4
"""
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int64
from cutlass.cute.nvgpu import CacheEvictionPriority
from cutlass.memory import SmemAllocator

THREADS = 128
ONCE = CacheEvictionPriority.EVICT_FIRST  # of what is not needed again
SMEM_BYTES = 512
MIN_BLOCKS = 2
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
def lane_sum(value, step: cutlass.Constexpr, lanes: cutlass.Constexpr):
    """The sum over `lanes` lanes, `step` apart: neighbours first, every lane gets it."""
    offset = step
    while cutlass.const_expr(offset < step * lanes):
        value = value + cute.arch.shuffle_sync_bfly(value, offset=offset)
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
def delta_step_kernel(
    k: cute.Tensor, g: cute.Tensor, v: cute.Tensor, slots: cute.Tensor, state: cute.Tensor, output: cute.Tensor,
):
    thread, _, _ = cute.arch.thread_idx()
    row, head, _ = cute.arch.block_idx()
    warp = cute.arch.warp_idx()
    base = SmemAllocator().allocate(SMEM_BYTES, byte_alignment=128)
    sKey, sDecay = shared(base, 0, Float32, 64), shared(base, 256, Float32, 64)
    mK, mG, mSlots = flat(k), flat(g), flat(slots)
    lane_k = thread & 7
    lane_v = (thread >> 3) & 3
    own_v = warp * 8 + lane_v

    # step+3: pool[slots]
    index = mSlots[Int64(row)]
    live = index >= 0
    index = cutlass.max(index, Int64(0))
    slot = Int64(index)
    rH = cute.make_rmem_tensor((4, 2, 2), Float32)
    rH.fill(0.0)
    if live:
        # step+3
        gState = tile(state, slot * state.stride[0] + (head * 2048 + own_v * 64 + lane_k * 4), 4, (4, 2, 2),
            (1, 32, 256))
        cute.autovec_copy(gState, rH, l1c_evict_priority=ONCE)
    if thread < 64:
        k_own = Float32(mK[Int64(row) * 192 + (head * 64 + thread)])
        g_own = mG[Int64(row) * 192 + (head * 64 + thread)]
        # step+4: decay = exp(g)
        g_own = cute.math.exp(g_own)
        sKey[thread] = k_own
        sDecay[thread] = g_own
    rValue = cute.make_rmem_tensor((2,), Float32)
    load(tile(v, Int64(row) * 96 + (head * 32 + own_v), 1, (2,), (4,)), rValue)
    cute.arch.sync_threads()  # key, decay: write → read

    rKey, rDecay = cute.make_rmem_tensor((4, 2), Float32), cute.make_rmem_tensor((4, 2), Float32)
    cute.autovec_copy(tile(sKey, lane_k * 4, 4, (4, 2), (1, 32)), rKey)
    cute.autovec_copy(tile(sDecay, lane_k * 4, 4, (4, 2), (1, 32)), rDecay)
    rDot = cute.make_rmem_tensor((2,), Float32)
    rDot.fill(0.0)

    # step+5: h = h * decay; step+6
    for r in cutlass.range_constexpr(2):
        for c in cutlass.range_constexpr(2):
            for j in cutlass.range_constexpr(4):
                rH[j, c, r] = mul(rH[j, c, r], rDecay[j, c])
                rDot[r] = fma(rH[j, c, r], rKey[j, c], rDot[r])

    # step+6
    for i in cutlass.range_constexpr(2):
        rDot[i] = lane_sum(rDot[i], 1, 8)
    rOut = cute.make_rmem_tensor((2,), Float32)
    rOut.fill(0.0)
    for r in cutlass.range_constexpr(2):
        rDot[r] = rValue[r] - rDot[r]

    # step+7
    for r in cutlass.range_constexpr(2):
        for c in cutlass.range_constexpr(2):
            for j in cutlass.range_constexpr(4):
                rH[j, c, r] = fma(rDot[r], rKey[j, c], rH[j, c, r])
                rOut[r] = fma(rH[j, c, r], rKey[j, c], rOut[r])
    if live:
        # step+8
        gState_2 = tile(state, slot * state.stride[0] + (head * 2048 + own_v * 64 + lane_k * 4), 4, (4, 2, 2),
            (1, 32, 256))
        cute.autovec_copy(rH, gState_2, l1c_evict_priority=ONCE)
    for i in cutlass.range_constexpr(2):
        rOut[i] = lane_sum(rOut[i], 1, 8)
    if lane_k == 0:
        store(rOut, tile(output, Int64(row) * 96 + (head * 32 + own_v), 1, (2,), (4,)))


@cute.jit
def launch(
    k: cute.Tensor, g: cute.Tensor, v: cute.Tensor, slots: cute.Tensor, state: cute.Tensor, output: cute.Tensor, stream,
):
    """The kernel on a stream."""
    delta_step_kernel(k, g, v, slots, state, output).launch(
        grid=(k.shape[0], 3, 1), block=(THREADS, 1, 1), smem=SMEM_BYTES, min_blocks_per_mp=MIN_BLOCKS,
        preferred_smem_carveout=CARVEOUT, stream=stream)


delta_step_kernel.set_name_prefix("fusec_delta_step", remove_cutlass_symbol=True)
