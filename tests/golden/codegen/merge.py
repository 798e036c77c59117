"""parts merged by their log-sum-exp

Grid rows, 64 threads a block.
"""
import cutlass
import cutlass.cute as cute
from cutlass import BFloat16, Float32, Int64

THREADS = 64


@cute.jit
def fma(a, b, c):
    """a * b + c, rounded once."""
    return cute.math.fma(a, b, c)


@cute.jit
def mul(a, b):
    """a * b, rounded: never contracted into a following addition."""
    return cute.math.mul(a, b, rounding=cute.math.RoundingMode.NEAREST_EVEN)


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


@cute.kernel
def merge_kernel(partial: cute.Tensor, lse: cute.Tensor, counts: cute.Tensor, output: cute.Tensor, merged: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    mPartial, mLse, mCounts, mOutput = flat(partial), flat(lse), flat(counts), flat(output)
    mMerged = flat(merged)
    count = mCounts[Int64(row)]
    rAcc = cute.make_rmem_tensor((8,), Float32)
    rAcc.fill(0.0)
    peak, weight = -Float32.inf, Float32(0.0)
    for t in cutlass.range(count, unroll=1):
        rPart = cute.make_rmem_tensor((8,), BFloat16)
        rPart.fill(0.0)
        score = mLse[Int64(row) * lse.stride[0] + Int64(t)]
        # merge+4: part t
        for j in cutlass.range_constexpr(8):
            if thread * 8 + j < 500:
                rPart[j] = mPartial[Int64(row) * partial.stride[0] + Int64(t) * partial.stride[1] + (thread * 8 + j)]
        top = maximum(peak, score)
        shrink = select(peak == -Float32.inf, Float32(0.0), cute.math.exp(peak - top))
        share = select(score == -Float32.inf, Float32(0.0), cute.math.exp(score - top))
        weight = fma(weight, shrink, share)
        peak = top
        for j in cutlass.range_constexpr(8):
            rAcc[j] = fma(Float32(rPart[j]), share, mul(rAcc[j], shrink))
    for j in cutlass.range_constexpr(8):
        rAcc[j] = select(weight > 0.0, rAcc[j] / weight, Float32(0.0))
    for j in cutlass.range_constexpr(8):
        if thread * 8 + j < 500:
            mOutput[Int64(row) * 500 + (thread * 8 + j)] = rAcc[j]
    if thread == 0:
        weight = cute.math.log(weight) + peak
        mMerged[Int64(row)] = weight


@cute.jit
def launch(
    partial: cute.Tensor, lse: cute.Tensor, counts: cute.Tensor, output: cute.Tensor, merged: cute.Tensor, stream,
):
    """The kernel on a stream."""
    merge_kernel(partial, lse, counts, output, merged).launch(
        grid=(partial.shape[0], 1, 1), block=(THREADS, 1, 1), stream=stream)


merge_kernel.set_name_prefix("fusec_merge", remove_cutlass_symbol=True)
