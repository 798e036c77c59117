"""Device functions about memory: copied into emitted files by name, linted and tested here."""
import cutlass
import cutlass.cute as cute
from cutlass import Float16, Float32, Int16, Uint8
from cutlass._mlir.dialects import llvm
from cutlass.cute.nvgpu import CacheEvictionPriority
from cutlass.cutlass_dsl import dsl_user_op

from .values import round_e5m2


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
def load_one(source):
    """A single element that converts in vectors only, widened."""
    held = cute.make_rmem_tensor(source.shape, source.element_type)
    cute.autovec_copy(source, held)
    return held.load().to(Float32)[0]


@cute.jit
def store_one(value, target):
    """A single element that converts in vectors only, rounded."""
    held = cute.make_rmem_tensor(target.shape, Float32)
    held[0] = value
    store(held, target)


@cute.jit
def store_e5m2(source, target):
    """Registers to e5m2 memory; infinities stay: e5m2 is the upper byte of fp16."""
    held = cute.make_rmem_tensor(source.shape, Uint8)
    for i in cutlass.range_constexpr(cute.size(source)):
        held[i] = Uint8(Float16(round_e5m2(source[i])).bitcast(Int16) >> 8)
    cute.autovec_copy(held, cute.recast_tensor(target, Uint8))


@cute.jit
def store_one_e5m2(value, target):
    """A single element to e5m2 memory."""
    held = cute.make_rmem_tensor(target.shape, Float32)
    held[0] = value
    store_e5m2(held, target)


@cute.jit
def part(registers, offset: cutlass.Constexpr, shape: cutlass.Constexpr, stride: cutlass.Constexpr):
    """Some elements of a fragment."""
    return cute.make_tensor(registers.iterator + offset, cute.make_layout(shape, stride=stride))


@cute.jit
def load_part(source, target):
    """Memory to some elements of a fragment, one by one from the access on."""
    held = cute.make_rmem_tensor(target.shape, source.element_type)
    cute.autovec_copy(source, held)
    for i in cutlass.range_constexpr(cute.size(target)):
        target[i] = target.element_type(held[i])


@cute.jit
def load_unsigned(source, target):
    """Bytes of memory, whose tensors do not say that they have no sign, to registers, one by one from the access on."""
    held = cute.make_rmem_tensor(target.shape, source.element_type)
    cute.autovec_copy(source, held)
    for i in cutlass.range_constexpr(cute.size(target)):
        target[i] = target.element_type(Uint8(held[i]))


@cute.jit
def store_part(source, target):
    """Some elements of a fragment to memory, one by one up to the access."""
    held = cute.make_rmem_tensor(source.shape, target.element_type)
    for i in cutlass.range_constexpr(cute.size(source)):
        held[i] = target.element_type(source[i])
    cute.autovec_copy(held, target)


@dsl_user_op
def store_at(pointer, value, *, loc=None, ip=None):
    """One element to any memory, that of another block of the cluster too."""
    llvm.store(value.ir_value(loc=loc, ip=ip), pointer.to_llvm_ptr(loc=loc, ip=ip), loc=loc, ip=ip)


@cute.jit
def push(value, tensor, offset, rank):
    """An element into the shared memory of the block of that rank in the cluster."""
    store_at(cute.arch.map_dsmem_ptr(tensor.iterator + offset, rank), value)
