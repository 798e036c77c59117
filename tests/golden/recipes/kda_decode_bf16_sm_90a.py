"""kda_decode

grid: rows x state_1; 256 threads
anchor: state_in [state_2=REG4·WARP8@32·LANE4@8, state_3=REG2·LANE8@1·VEC8]
threads 0..191: conv_state_in, x_in, window, taps, sum, silu, y, store_conv_state_0, store_conv_state_1
threads 192..192: raw_beta_in, beta
threads 192..255: raw_gate_in, dt_bias_in, gate, mul_2, sigmoid, mul_3, decay, norm_weight_in, output_gate_in, sigmoid_1
"""
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int64
from cutlass.cute.nvgpu import CacheEvictionPriority
from cutlass.memory import SmemAllocator

THREADS = 256
ONCE_BELOW = 792  # blocks: a larger grid marks nothing for early eviction
SMEM_BYTES = 2352
MIN_BLOCKS = 2
CARVEOUT = 3  # per cent of the unified memory


@cute.jit
def fma(a, b, c):
    """a * b + c, rounded once."""
    return cute.math.fma(a, b, c)


@cute.jit
def mul(a, b):
    """a * b, rounded: never contracted into a following addition."""
    return cute.math.mul(a, b, rounding=cute.math.RoundingMode.NEAREST_EVEN)


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
def sigmoid(x):
    """1 / (1 + exp(-x)); exp may reach infinity, whose reciprocal is 0: no NaN for any finite x."""
    return cute.math.rcp(1.0 + cute.math.exp(-x), approx=True)


@cute.jit
def silu(x):
    """x / (1 + exp(-x)); the denominator is at least 1, so its approximate reciprocal neither overflows nor vanishes
    early."""
    return mul(x, cute.math.rcp(1.0 + cute.math.exp(-x), approx=True))


@cute.kernel
def kda_decode_kernel(
    x: cute.Tensor, weight: cute.Tensor, conv_state: cute.Tensor, raw_gate: cute.Tensor, raw_beta: cute.Tensor,
    A_log: cute.Tensor, dt_bias: cute.Tensor, state_indices: cute.Tensor, state: cute.Tensor, output_gate: cute.Tensor,
    norm_weight: cute.Tensor, out: cute.Tensor, ONCE: cutlass.Constexpr,
):
    thread, _, _ = cute.arch.thread_idx()
    block_x, _, _ = cute.arch.block_idx()
    warp = cute.arch.warp_idx()
    base = SmemAllocator().allocate(SMEM_BYTES, byte_alignment=128)
    sDecay, sNormWeightIn = shared(base, 0, Float32, 128), shared(base, 512, Float32, 128)
    sSigmoid1, sY = shared(base, 1024, Float32, 128), shared(base, 1536, BFloat16, 384)
    sBeta, sSum3Warps = shared(base, 2304, Float32, 1), shared(base, 2320, Float32, 8)
    mRawBeta, mALog, mStateIndices = flat(raw_beta), flat(A_log), flat(state_indices)
    state_1 = block_x % 12
    rows = block_x // 12
    weight_0_warp = warp >> 1
    state_3_warp = warp & 1
    lane = thread & 31
    thread_from_192 = thread - 192
    warp_from_6 = thread_from_192 >> 5
    state_2_lane = (thread >> 3) & 3
    state_3_lane = thread & 7
    state_indices_in = mStateIndices[Int64(rows) * state_indices.stride[0]]
    state_indices_in_at = Int64(state_indices_in)
    A_log_in = mALog[state_1]
    rConvStateIn, rXIn = cute.make_rmem_tensor((2, 3), Float32), cute.make_rmem_tensor((2,), Float32)
    rTaps = cute.make_rmem_tensor((2, 4), Float32)
    if thread < 192:
        # kda_decode+8
        gConvState = tile(conv_state, state_indices_in_at * conv_state.stride[0]
            + (weight_0_warp * 1536 + state_1 * 128 + state_3_warp * 64 + lane * 2), 2, (2, 3), (1, 4608))
        load(gConvState, rConvStateIn)
        gX = tile(x, Int64(rows) * x.stride[0] + (weight_0_warp * 1536 + state_1 * 128 + state_3_warp * 64 + lane * 2),
            2, (2,), (1,))
        load(gX, rXIn)
        # kda_decode+10: taps
        gWeight = tile(weight, weight_0_warp * 6144 + state_1 * 128 + state_3_warp * 64 + lane * 2, 2, (2, 4),
            (1, 1536))
        cute.autovec_copy(gWeight, rTaps)
    rRawGateIn, rDtBiasIn = cute.make_rmem_tensor((2,), Float32), cute.make_rmem_tensor((2,), Float32)
    rNormWeightIn, rOutputGateIn = cute.make_rmem_tensor((2,), Float32), cute.make_rmem_tensor((2,), Float32)
    if thread >= 192:
        gRawGate = tile(raw_gate, Int64(rows) * raw_gate.stride[1] + (state_1 * 128 + warp_from_6 * 64 + lane * 2), 2,
            (2,), (1,))
        load(gRawGate, rRawGateIn)
        # kda_decode+19
        cute.autovec_copy(tile(dt_bias, state_1 * 128 + warp_from_6 * 64 + lane * 2, 2, (2,), (1,)), rDtBiasIn)
        cute.autovec_copy(tile(norm_weight, warp_from_6 * 64 + lane * 2, 2, (2,), (1,)), rNormWeightIn)
        gOutputGate = tile(output_gate, Int64(rows) * output_gate.stride[0]
            + (state_1 * 128 + warp_from_6 * 64 + lane * 2), 2, (2,), (1,))
        load(gOutputGate, rOutputGateIn)
    raw_beta_in, beta = Float32(0.0), Float32(0.0)
    if thread == 192:
        raw_beta_in = Float32(mRawBeta[Int64(rows) * raw_beta.stride[1] + state_1])
        # kda_decode+21: beta
        beta = sigmoid(raw_beta_in)
    rWindow, rSum = cute.make_rmem_tensor((2, 4), Float32), cute.make_rmem_tensor((2,), Float32)
    rY = cute.make_rmem_tensor((2,), Float32)
    rSum.fill(0.0)
    if thread < 192:
        # kda_decode+8: window
        for weight_1_r in cutlass.range_constexpr(3):
            for state_3_v in cutlass.range_constexpr(2):
                rWindow[state_3_v, weight_1_r] = rConvStateIn[state_3_v, weight_1_r]
        for state_3_v in cutlass.range_constexpr(2):
            rWindow[state_3_v, 3] = rXIn[state_3_v]
        # kda_decode+11
        for weight_1_r in cutlass.range_constexpr(4):
            for state_3_v in cutlass.range_constexpr(2):
                rSum[state_3_v] = fma(rWindow[state_3_v, weight_1_r], rTaps[state_3_v, weight_1_r], rSum[state_3_v])
        # kda_decode+11: y
        for state_3_v in cutlass.range_constexpr(2):
            rY[state_3_v] = silu(rSum[state_3_v])
    rGate, rSigmoid1 = cute.make_rmem_tensor((2,), Float32), cute.make_rmem_tensor((2,), Float32)
    if thread >= 192:
        # kda_decode+19: gate
        for state_3_v in cutlass.range_constexpr(2):
            rGate[state_3_v] = rRawGateIn[state_3_v] + rDtBiasIn[state_3_v]
        # kda_decode+32
        for state_2_v in cutlass.range_constexpr(2):
            rSigmoid1[state_2_v] = sigmoid(rOutputGateIn[state_2_v])

    # kda_decode+20
    exp = cute.math.exp(A_log_in)
    rDecay = cute.make_rmem_tensor((2,), Float32)
    if thread >= 192:
        # kda_decode+20: decay
        for state_3_v in cutlass.range_constexpr(2):
            rDecay[state_3_v] = cute.math.exp(sigmoid(mul(exp, rGate[state_3_v])) * -5.0)
        cute.autovec_copy(rDecay, tile(sDecay, warp_from_6 * 64 + lane * 2, 2, (2,), (1,)))
        cute.autovec_copy(rNormWeightIn, tile(sNormWeightIn, warp_from_6 * 64 + lane * 2, 2, (2,), (1,)))
        # kda_decode+32
        cute.autovec_copy(rSigmoid1, tile(sSigmoid1, warp_from_6 * 64 + lane * 2, 2, (2,), (1,)))
    if thread < 192:
        # kda_decode+11: y
        store(rY, tile(sY, weight_0_warp * 128 + state_3_warp * 64 + lane * 2, 2, (2,), (1,)))
    if thread == 192:
        # kda_decode+21: beta
        sBeta[0] = beta
    if thread < 192:
        # kda_decode+9
        gConvState_2 = tile(conv_state, state_indices_in_at * conv_state.stride[0]
            + (weight_0_warp * 1536 + state_1 * 128 + state_3_warp * 64 + lane * 2), 2, (2, 2), (1, 4608))
        store_part(part(rConvStateIn, 2, (2, 2), (1, 2)), gConvState_2)
        gConvState_3 = tile(conv_state, state_indices_in_at * conv_state.stride[0]
            + (weight_0_warp * 1536 + state_1 * 128 + state_3_warp * 64 + lane * 2 + 9216), 2, (2,), (1,))
        store(rXIn, gConvState_3)
    rStateIn, rYS = cute.make_rmem_tensor((8, 4, 2), BFloat16), cute.make_rmem_tensor((8, 2), Float32)
    rYS2, rDecayS = cute.make_rmem_tensor((8, 2), Float32), cute.make_rmem_tensor((8, 2), Float32)
    rYS3, rNormWeightInS = cute.make_rmem_tensor((4,), Float32), cute.make_rmem_tensor((4,), Float32)
    rSigmoid1S, rH = cute.make_rmem_tensor((4,), Float32), cute.make_rmem_tensor((8, 4, 2), Float32)
    rDotRaw, rDot1BaseRaw = cute.make_rmem_tensor((4,), Float32), cute.make_rmem_tensor((4,), Float32)
    rK, rDelta = cute.make_rmem_tensor((8, 2), Float32), cute.make_rmem_tensor((4,), Float32)
    rO, rH1Bf16 = cute.make_rmem_tensor((4,), Float32), cute.make_rmem_tensor((8, 4, 2), Float32)
    rSum3Parts, rMul6Bf16 = cute.make_rmem_tensor((8,), Float32), cute.make_rmem_tensor((4,), Float32)
    rDotRaw.fill(0.0)
    rDot1BaseRaw.fill(0.0)
    sum_1, sum_2, dot_1_step_raw_raw, sum_3_part = Float32(0.0), Float32(0.0), Float32(0.0), Float32(0.0)
    sum_3 = Float32(0.0)

    # kda_decode+24
    gState = tile(state, state_indices_in_at * state.stride[0]
        + (state_1 * 16384 + warp * 512 + state_2_lane * 128 + state_3_lane * 8), 8, (8, 4, 2), (1, 4096, 64))
    cute.autovec_copy(gState, rStateIn, l1c_evict_priority=ONCE)
    cute.arch.sync_threads()  # y_shared: write → read

    load(tile(sY, state_3_lane * 8, 8, (8, 2), (1, 64)), rYS)
    load(tile(sY, state_3_lane * 8 + 128, 8, (8, 2), (1, 64)), rYS2)
    cute.autovec_copy(tile(sDecay, state_3_lane * 8, 4, (8, 2), (1, 64)), rDecayS)
    load(tile(sY, warp * 4 + state_2_lane + 256, 1, (4,), (32,)), rYS3)
    beta_s = sBeta[0]
    cute.autovec_copy(tile(sNormWeightIn, warp * 4 + state_2_lane, 1, (4,), (32,)), rNormWeightInS)
    cute.autovec_copy(tile(sSigmoid1, warp * 4 + state_2_lane, 1, (4,), (32,)), rSigmoid1S)

    # kda_decode+15; kda_decode+16; kda_decode+28
    for state_3_r in cutlass.range_constexpr(2):
        for state_3_v in cutlass.range_constexpr(8):
            sum_1 = fma(rYS[state_3_v, state_3_r], rYS[state_3_v, state_3_r], sum_1)
            sum_2 = fma(rYS2[state_3_v, state_3_r], rYS2[state_3_v, state_3_r], sum_2)
            dot_1_step_raw_raw = fma(rYS2[state_3_v, state_3_r], rYS[state_3_v, state_3_r], dot_1_step_raw_raw)

    # kda_decode+24: h; kda_decode+25; kda_decode+28
    for state_3_r in cutlass.range_constexpr(2):
        for state_2_r in cutlass.range_constexpr(4):
            for state_3_v in cutlass.range_constexpr(8):
                rH[state_3_v, state_2_r, state_3_r] = Float32(
                    rStateIn[state_3_v, state_2_r, state_3_r]) * rDecayS[state_3_v, state_3_r]
                rDotRaw[state_2_r] = fma(rH[state_3_v, state_2_r, state_3_r], rYS2[state_3_v, state_3_r],
                    rDotRaw[state_2_r])
                rDot1BaseRaw[state_2_r] = fma(rH[state_3_v, state_2_r, state_3_r], rYS[state_3_v, state_3_r],
                    rDot1BaseRaw[state_2_r])

    # kda_decode+25
    for i in cutlass.range_constexpr(4):
        rDotRaw[i] = lane_sum(rDotRaw[i], 1, 8)
        rDot1BaseRaw[i] = lane_sum(rDot1BaseRaw[i], 1, 8)

    # kda_decode+15
    sum_1 = lane_sum(sum_1, 1, 8)
    sum_2 = lane_sum(sum_2, 1, 8)
    dot_1_step_raw_raw = lane_sum(dot_1_step_raw_raw, 1, 8)

    # kda_decode+15; kda_decode+16; kda_decode+25; kda_decode+28
    mul_1 = cute.math.rsqrt(sum_1 + 1e-06) * 0.08838834764831845
    rsqrt_1 = cute.math.rsqrt(sum_2 + 1e-06)
    neg_rsqrt_1 = -rsqrt_1
    dot_1_step = dot_1_step_raw_raw * mul_1 * rsqrt_1

    # kda_decode+16: k
    for state_3_r in cutlass.range_constexpr(2):
        for state_3_v in cutlass.range_constexpr(8):
            rK[state_3_v, state_3_r] = rYS2[state_3_v, state_3_r] * rsqrt_1

    # kda_decode+25: delta; kda_decode+28; kda_decode+31
    for state_2_r in cutlass.range_constexpr(4):
        rDelta[state_2_r] = fma(neg_rsqrt_1, rDotRaw[state_2_r], rYS3[state_2_r]) * beta_s
        rO[state_2_r] = round_bf16(fma(rDot1BaseRaw[state_2_r], mul_1, rDelta[state_2_r] * dot_1_step))
        sum_3_part = fma(rO[state_2_r], rO[state_2_r], sum_3_part)

    # kda_decode+27
    for state_3_r in cutlass.range_constexpr(2):
        for state_2_r in cutlass.range_constexpr(4):
            for state_3_v in cutlass.range_constexpr(8):
                rH1Bf16[state_3_v, state_2_r, state_3_r] = fma(rDelta[state_2_r], rK[state_3_v, state_3_r],
                    rH[state_3_v, state_2_r, state_3_r])

    # kda_decode+31
    sum_3_part = lane_sum(sum_3_part, 8, 4)
    if state_2_lane == 0 and state_3_lane == 0:
        sSum3Warps[warp] = sum_3_part

    # kda_decode+27
    store(rH1Bf16, gState, ONCE)
    cute.arch.sync_threads()  # sum_3_warps: write → read

    cute.autovec_copy(tile(sSum3Warps, 0, 1, (8,), (1,)), rSum3Parts)

    # kda_decode+31
    for turn in cutlass.range_constexpr(8):
        sum_3 = sum_3 + rSum3Parts[turn]
    rsqrt_2 = cute.math.rsqrt(fma(sum_3, Float32(0.0078125), Float32(1e-05)))

    # kda_decode+32
    for state_2_r in cutlass.range_constexpr(4):
        rMul6Bf16[state_2_r] = rO[state_2_r] * rsqrt_2 * rNormWeightInS[state_2_r] * rSigmoid1S[state_2_r]
    if state_3_lane == 0:
        gOut = tile(out, Int64(rows) * 1536 + (state_1 * 128 + warp * 4 + state_2_lane), 1, (4,), (32,))
        store(rMul6Bf16, gOut)


@cute.jit
def launch(
    x: cute.Tensor, weight: cute.Tensor, conv_state: cute.Tensor, raw_gate: cute.Tensor, raw_beta: cute.Tensor,
    A_log: cute.Tensor, dt_bias: cute.Tensor, state_indices: cute.Tensor, state: cute.Tensor, output_gate: cute.Tensor,
    norm_weight: cute.Tensor, out: cute.Tensor, stream,
):
    """The kernel on a stream."""
    blocks = x.shape[0] * 12
    if blocks < ONCE_BELOW:
        kda_decode_kernel(
            x, weight, conv_state, raw_gate, raw_beta, A_log, dt_bias, state_indices, state, output_gate, norm_weight,
            out, CacheEvictionPriority.EVICT_FIRST,
        ).launch(
            grid=(blocks, 1, 1), block=(THREADS, 1, 1), smem=SMEM_BYTES, min_blocks_per_mp=MIN_BLOCKS,
            preferred_smem_carveout=CARVEOUT, stream=stream)
    else:
        kda_decode_kernel(
            x, weight, conv_state, raw_gate, raw_beta, A_log, dt_bias, state_indices, state, output_gate, norm_weight,
            out, CacheEvictionPriority.EVICT_NORMAL,
        ).launch(
            grid=(blocks, 1, 1), block=(THREADS, 1, 1), smem=SMEM_BYTES, min_blocks_per_mp=MIN_BLOCKS,
            preferred_smem_carveout=CARVEOUT, stream=stream)


kda_decode_kernel.set_name_prefix("fusec_kda_decode", remove_cutlass_symbol=True)
