"""What a call must bring: shapes, dtypes, strides, devices, memory that does not overlap. Everything is refused before a launch.

The contract of a call is the captured graph's: extents that are numbers must be met, extents that are symbols must agree wherever
they occur, strides that are numbers must be met, strides that are None are free. Each message names the argument, what was expected
and what was given.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from ..errors import ArgumentError
from ..ir.kernel import Parameter
from ..ir.reference import TORCH_DTYPE
from ..ir.sizes import evaluate, least, plus
from ..ir.tensor import Argument
from .overlap import View, meet, repeats


class LayoutError(ArgumentError):
    """Strides that this compilation cannot take; another one of the same function might."""


def check_shapes(arguments: Sequence[Argument], tensors: Mapping[str, torch.Tensor], sizes: dict[str, int],
                 dtypes: bool = True) -> None:
    """Check dtypes (unless told not to), shapes and strides of the tensors of these arguments; sizes of symbols go into `sizes`.

    Raises ArgumentError for dtypes and shapes, LayoutError for strides.
    """
    origin = dict.fromkeys(sizes, "the arguments")
    for a in arguments:
        if a.name not in tensors:
            raise ArgumentError(f"argument {a.name}: expected a tensor, given none")
        t = tensors[a.name]
        if dtypes and t.dtype != TORCH_DTYPE[a.dtype]:
            raise ArgumentError(f"argument {a.name}: expected dtype {_dtype(TORCH_DTYPE[a.dtype])}, given {_dtype(t.dtype)}")
        _check_shape(a, t, sizes, origin)
    for a in arguments:
        for extent, given in zip(a.shape, tensors[a.name].shape):
            if (made := plus(str(extent))) is not None and given >= made[1]:
                sizes.setdefault(made[0], given - made[1])
    for a in arguments:
        _check_made(a, tensors[a.name], sizes)
    for a in arguments:
        _check_strides(a, tensors[a.name])
    empty = [a for a in arguments if any(t == 0 and d in a.indexed for d, t in enumerate(tensors[a.name].shape))]
    if empty and not any(0 in tensors[a.name].shape for a in arguments if a not in empty):
        raise ArgumentError(f"argument {empty[0].name}: an index picks from it, given shape {_list(tensors[empty[0].name].shape)}")


def _check_shape(a: Argument, t: torch.Tensor, sizes: dict[str, int], origin: dict[str, str]) -> None:
    fits = len(a.shape) == t.dim()
    for extent, given in zip(a.shape, t.shape) if fits else ():
        name = str(extent)
        fits = fits and (given == extent if isinstance(extent, int) else sizes.setdefault(name, given) == given)
        origin.setdefault(name, a.name)
    if not fits:
        known = {n: s for n, s in sizes.items() if origin.get(n, a.name) != a.name}
        expected = [str(e) if isinstance(e, int) or str(e) not in known else f"{e}={known[str(e)]}" for e in a.shape]
        why = [f"{n} as in {origin[n]}" for n in dict.fromkeys(str(e) for e in a.shape) if n in known]
        raise ArgumentError(f"argument {a.name}: expected shape [{', '.join(expected)}]" + (f" ({', '.join(why)})" if why else "")
                            + f", given {_list(t.shape)}")


def _check_made(a: Argument, t: torch.Tensor, sizes: Mapping[str, int]) -> None:
    """Sizes that are made of others, 2*rows, rows + 1, and rows + more that is no less than the rows."""
    for extent, given in zip(a.shape, t.shape):
        right = given if isinstance(extent, int) else evaluate(str(extent), sizes)
        if right is not None and right != given:
            raise ArgumentError(f"argument {a.name}: expected shape [{', '.join(map(str, a.shape))}] with {extent} = {right}, "
                                f"given {_list(t.shape)}")
        if right is None and given < (few := least(str(extent), sizes)):
            raise ArgumentError(f"argument {a.name}: expected shape [{', '.join(map(str, a.shape))}] with {extent} at least {few}, "
                                f"given {_list(t.shape)}")


def _check_strides(a: Argument, t: torch.Tensor) -> None:
    if t.numel() == 0:
        return
    for expected, given, extent in zip(a.strides, t.stride(), t.shape):
        if expected is not None and extent > 1 and expected != given:
            wanted = ["any" if s is None else str(s) for s in a.strides]
            raise LayoutError(f"argument {a.name}: expected strides [{', '.join(wanted)}], given {_list(t.stride())}")


def check_devices(tensors: Mapping[str, torch.Tensor], device_type: str) -> torch.device:
    """The one device of all tensors, of the given type; ArgumentError where there are others."""
    first = next(iter(tensors))
    device = tensors[first].device
    for name, t in tensors.items():
        if t.device.type != device_type:
            raise ArgumentError(f"argument {name}: expected a tensor on a {device_type} device, given one on {t.device}")
        if t.device != device:
            raise ArgumentError(f"argument {name}: expected a tensor on {device}, where {first} is, given one on {t.device}")
    return device


def check_kind(name: str, value: object) -> torch.Tensor:
    """The value as a plain strided tensor; ArgumentError for anything else."""
    if not isinstance(value, torch.Tensor):
        raise ArgumentError(f"argument {name}: expected a tensor, given {type(value).__name__}")
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        raise ArgumentError(f"argument {name}: expected a plain tensor, given the subclass {type(value).__name__}")
    if value.layout != torch.strided:
        raise ArgumentError(f"argument {name}: expected a strided tensor, given layout {value.layout}")
    if value.is_conj() or value.is_neg():
        raise ArgumentError(f"argument {name}: expected its values in memory, given a lazily conjugated or negated view",
                            hint="resolve_conj() and resolve_neg() write them out")
    return value


def check_gradients(tensors: Mapping[str, torch.Tensor]) -> None:
    """ArgumentError where gradients would be recorded: a compiled step has none."""
    if torch.is_grad_enabled():
        for name, t in tensors.items():
            if t.requires_grad:
                raise ArgumentError(f"argument {name}: expected a tensor without gradient, given one with requires_grad: "
                                    "compiled steps are for inference only", hint="call under torch.no_grad() or inference_mode()")


def view(t: torch.Tensor) -> View:
    """Shape and byte strides of a tensor."""
    item = t.element_size()
    return View(tuple(t.shape), tuple(s * item for s in t.stride()), item)


def check_written(written: Iterable[str], views: Mapping[str, View]) -> None:
    """ArgumentError for a tensor that is written and has two indices for one element."""
    for name in written:
        v = views[name]
        twice = repeats(v)
        if twice is not False:
            what = "has two indices for one element" if twice else "is too irregular to tell that its elements are distinct"
            raise ArgumentError(f"argument {name} is written, and expected to hold each element once; given shape {_list(v.shape)} "
                                f"with strides of {_list(v.strides)} bytes it {what}")


def check_apart(first: str, second: str, views: Mapping[str, View], distance: int) -> None:
    """ArgumentError where two tensors share memory and `first` is written; `distance`: start of second - start of first, bytes."""
    shared = meet(views[first], views[second], distance)
    if shared is not False:
        how = "share memory" if shared else "lie between each other too irregularly to tell that they share no memory"
        raise ArgumentError(f"arguments {first} and {second} alias: they {how}, and {first} is written",
                            hint="pass tensors that do not overlap")


def address(t: torch.Tensor) -> int:
    """Where a tensor's data begin; 0, aligned to anything, for one without memory."""
    from torch._subclasses.fake_tensor import FakeTensor
    return 0 if t.is_meta or isinstance(t, FakeTensor) else t.data_ptr()


def alignment(t: torch.Tensor, free: Sequence[bool], most: int = 32) -> int:
    """The largest power of two up to `most` that divides the address and every stride in bytes that is free and counts."""
    bits: int = address(t) | most
    item = t.element_size()
    for stride, extent, counts in zip(t.stride(), t.shape, free):
        if counts and extent > 1:
            bits |= stride * item
    return bits & -bits


def less_aligned(parameters: Iterable[Parameter], tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """The tensors (by name) that are less aligned than a kernel with these parameters wants, with the bytes they are aligned to."""
    poor = {}
    for p in parameters:
        t = tensors.get(p.name)
        if t is None or t.numel() == 0:
            continue
        free = [s is None for s in p.strides]
        divisible = p.divisible or (1,) * len(free)
        fits = address(t) % p.align == 0
        for stride, extent, counts, by in zip(t.stride(), t.shape, free, divisible):
            fits = fits and (not counts or extent < 2 or stride % by == 0)
        if not fits:
            poor[p.name] = min(alignment(t, free), max(p.align, max(divisible) * t.element_size()))
    return poor


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _list(values: Iterable[object]) -> str:
    return f"[{', '.join(map(str, values))}]"
