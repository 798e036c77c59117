"""What emitted code makes tensors with and moves them by: layouts, views, fragments, shared memory, copies."""
from __future__ import annotations

from typing import Any

import numpy as np

from .asynchronous import CopyG2SOp
from .machine import current
from .mbarriers import CopyBulkG2SOp, bulk_copy
from .numeric import EmulationError, Int8, Numeric, convert, size_of
from .numeric import select as select_value
from .tensors import Layout, Pointer, Registers, Tensor, Vector, same_type, widest

REGISTER_ALIGNMENT = 32


def make_layout(shape: Any, *, stride: Any = None) -> Layout:
    """A layout; without strides the first mode runs fastest."""
    return Layout(shape, stride)


def make_tensor(pointer: Pointer, layout: Any) -> Tensor:
    """A view. In shared memory a static view bounds what pointers derived from it may reach: it is a buffer of the plan."""
    layout = layout if isinstance(layout, Layout) else Layout(layout)
    if pointer.space == "dsmem":
        raise EmulationError("a tensor in another block's shared memory (dsmem) doesn't support load and store")
    if pointer.space == "shared" and layout.static and isinstance(pointer.offset, int):
        low, high = pointer.offset, pointer.offset + layout.cosize * size_of(pointer.dtype)
        if pointer.extent is not None:
            low, high = max(low, pointer.extent[0]), min(high, pointer.extent[1])
        pointer = Pointer(pointer.memory, pointer.offset, pointer.dtype, pointer.align, (low, high), pointer.undef)
    return Tensor(pointer, layout)


def make_rmem_tensor(shape: Any, dtype: Any) -> Tensor:
    """A register fragment, nothing in it yet."""
    layout = shape if isinstance(shape, Layout) else Layout(shape)
    return Tensor(Pointer(Registers(current(), layout.cosize, dtype), 0, dtype, REGISTER_ALIGNMENT), layout)


def recast_ptr(pointer: Pointer, swizzle: Any = None, dtype: Any = None) -> Pointer:
    """The same address as a pointer to another type."""
    if swizzle is not None:
        raise EmulationError("swizzles are outside of the subset")
    return Pointer(pointer.memory, pointer.offset, dtype, pointer.align, pointer.extent, pointer.undef)


def recast_tensor(tensor: Tensor, dtype: Any) -> Tensor:
    """The same elements as another type of their width."""
    if dtype.width != tensor.element_type.width:
        raise EmulationError(f"recast_tensor from {tensor.element_type} to {dtype}: other widths are outside of the subset")
    return Tensor(recast_ptr(tensor.pointer, dtype=dtype), tensor.layout)


def size(tensor: Any) -> Any:
    """How many elements a tensor, a vector or a shape has."""
    return tensor.layout.size if isinstance(tensor, Tensor) else Layout(tensor.shape if isinstance(tensor, Vector) else tensor).size


def assume(value: Any, divby: int) -> Any:
    """A promise that a value is a multiple; a finding where it is not."""
    if not isinstance(value, Numeric):
        if value % divby:
            current().find("misaligned", f"{value} is said to be a multiple of {divby}")
        return value
    m = current()
    bad = np.broadcast_to(value.v % np.asarray(divby, value.held) != 0, m.shape) & m.active()
    if bad.any():
        m.find("misaligned", f"an offset said to be a multiple of {divby} is not, at {m.where(bad)}", int(bad.sum()))
    made = type(value).of(value.v, value.undef)
    made.divisor = divby
    return made


def _same(source: Tensor, target: Tensor) -> None:
    if not same_type(source.element_type, target.element_type):
        raise EmulationError(f"copy of {source.element_type.__name__} to {target.element_type.__name__}")
    if source.layout.size != target.layout.size:
        raise EmulationError(f"copy of {source.shape} to {target.shape}")


def _copied(source: Tensor, target: Tensor, width: int) -> None:
    _same(source, target)
    v, undef = source.read(width)
    target.write(convert(v, source.element_type, target.element_type), undef, width)


def autovec_copy(source: Tensor, target: Tensor, *, l1c_evict_priority: Any = None) -> None:
    """A copy in the widest accesses that both sides' types allow."""
    limit = widest()
    _copied(source, target, min(source.width(limit), target.width(limit)))


class CopyAtom:
    """make_copy_atom: how wide one access is."""

    def __init__(self, op: Any, dtype: Any, *, num_bits_per_copy: int = 0, l1c_evict_priority: Any = None) -> None:
        self.op, self.dtype, self.bits = op, dtype, num_bits_per_copy or dtype.width


def copy(atom: CopyAtom, source: Tensor, target: Tensor, *, mbar_ptr: Pointer | None = None) -> None:
    """A copy in accesses of the atom's width; the pointers' types must promise it. mbar_ptr: what a bulk copy completes on."""
    if isinstance(atom.op, CopyBulkG2SOp):
        _same(source, target)
        bulk_copy(source, target, mbar_ptr)
        return
    nbytes = atom.bits // 8
    for side in (source, target):
        if side.pointer.align < nbytes:
            found = f"'cute.copy' op ptr alignment ({side.pointer.align * 8} bits)"
            raise EmulationError(f"{found} does not meet requirement ({atom.bits} bits)")
    if isinstance(atom.op, CopyG2SOp):
        atom.op.check(atom.bits, source, target)
    wanted = min(nbytes, widest()) // size_of(atom.dtype)
    if min(source.width(nbytes), target.width(nbytes)) < wanted:
        raise EmulationError(f"'cute.copy' needs {wanted} neighbours on both sides")
    if not isinstance(atom.op, CopyG2SOp):
        _copied(source, target, wanted)
        return
    _same(source, target)
    v, _ = source.read(wanted)
    target.copy_in(v, wanted)


def where(condition: Any, yes: Any, no: Any) -> Any:
    """Element by element: `yes` where the condition holds."""
    if not isinstance(condition, Vector):
        return select_value(condition, yes, no)
    shape = condition.shape
    parts = [x.value if isinstance(x, Vector) else x for x in (yes, no)]
    return Vector(select_value(condition.value, *parts), shape)


class SmemAllocator:
    """Hands out shared memory upwards from byte 0."""

    def __init__(self) -> None:
        self.used = 0

    def allocate(self, size: int, byte_alignment: int = 1) -> Pointer:
        """`size` bytes."""
        m = current()
        start = -(-self.used // byte_alignment) * byte_alignment
        self.used = start + size
        m.allocate_shared(self.used)
        return Pointer(m.shared, start, Int8, byte_alignment, (start, start + size))

    def allocate_tensor(self, element_type: Any, layout: Layout, byte_alignment: int = 1) -> Tensor:
        """A tensor in shared memory."""
        pointer = self.allocate(layout.cosize * size_of(element_type), byte_alignment)
        return make_tensor(recast_ptr(pointer, dtype=element_type), layout)
