"""What a function leaves in memory: the mutations of arguments and the returned values, as Writes over fresh axes.

An argument ends as a value; walking that value down to the old argument (through updates, scatters of slices and views) gives the
ranges that were written, in order, and leaves out those that were not touched.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import FusionError, Loc
from ..ir.tensor import Argument, Input, Join, Permute, Reshape, Shape, Slice, TensorNode, Update
from .axes_model import Dims, Hop, Model, Write

Path = tuple[tuple[object, ...], ...]
"""Views of an argument, outermost first: ("slice", dim, start, length), ("reshape", shape), ("permute", order)."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a tensor a value belongs: one atom per dim of the tensor, and the hops from there to the value's dims."""

    dims: Dims
    hops: tuple[Hop, ...]


def plan_writes(model: Model, fresh: tuple[Argument, ...], returned: tuple[str, ...]) -> list[Write]:
    """The writes to arguments in the order written, then one per fresh output.

    Raises FusionError where a written range cannot be told.
    """
    writes: list[Write] = []
    for argument, value in model.graph.mutations:
        dims = [model.fresh(n) for n in model.values[value].node.shape]
        hop = _follow(model, dims, model.values[value].dims, value)
        read = next((v for v in model.values.values() if isinstance(v.node.op, Input) and v.node.op.tensor == argument), None)
        if read is not None:  # So that what is stored has the axes of what was loaded.
            model.same.append(_follow(model, read.dims, dims, read.node.name))
        _write_back(model, argument, value, Place(dims, (hop,)), (), writes)
    for tensor, value in zip(fresh, returned):
        node = model.values[value].node
        dims = [model.fresh(n) for n in node.shape]
        writes.append(_write(model, tensor.name, value, dims, Place(dims, ()), node.loc))
    return writes


def _follow(model: Model, source: Dims, target: Dims, name: str, dim: int = -1, start: int = 0) -> Hop:
    """A hop of the place of a write: equal coordinates, shifted by `start` along `dim`."""
    pairs = [(a, b, start if d == dim else 0) for d, (a, b) in enumerate(zip(source, target))]
    return model.hop(pairs, 1, Loc(), name, True)


def _write(model: Model, tensor: str, value: str, dims: Dims, place: Place, loc: Loc) -> Write:
    """A write of a value over fresh axes over `dims`, at a place."""
    own = [None if a is None else model.fresh(model.atoms.extent(a)) for a in dims]
    read = model.read(value, own, loc)
    last = _follow(model, dims, own, value)
    return Write(tensor, value, [a for a in own if a is not None], read, [*place.hops, last], loc, place.dims)


def _write_back(model: Model, tensor: str, name: str, place: Place, path: Path, writes: list[Write]) -> None:
    """Append the writes that make the part of `tensor` at `place` (old value: the views `path`) end as the value `name`."""
    node = model.values[name].node
    if _untouched(model, tensor, name, path):
        return
    if isinstance(node.op, Update):
        _update(model, tensor, node, node.op, place, path, writes)
    elif not _in_parts(model, tensor, name, path):
        writes.append(_write(model, tensor, name, model.values[name].dims, place, node.loc))
    else:
        start = 0
        for part, step in _steps(model, name):
            below = place
            if isinstance(node.op, Join):
                hop = _follow(model, model.values[name].dims, model.values[part].dims, part, node.op.dim, start)
                below = Place(place.dims, (*place.hops, hop))
                start += int(str(step[3]))
            _write_back(model, tensor, part, below, path + (step,), writes)


def _steps(model: Model, name: str) -> list[tuple[str, tuple[object, ...]]]:
    """The values a join, reshape or permutation is made of, each with the view of the whole that it is; [] for other values."""
    op = model.values[name].node.op
    if isinstance(op, Reshape):
        return [(op.arg, ("reshape", model.values[op.arg].node.shape))]
    if isinstance(op, Permute):
        return [(op.arg, ("permute", tuple(op.order.index(i) for i in range(len(op.order)))))]
    steps: list[tuple[str, tuple[object, ...]]] = []
    if isinstance(op, Join):
        start = 0
        for part in op.parts:
            length = model.values[part].node.shape[op.dim]
            assert isinstance(length, int)
            steps.append((part, ("slice", op.dim, start, length)))
            start += length
    return steps


def _in_parts(model: Model, tensor: str, name: str, path: Path) -> bool:
    """Whether some part of a value is an update, or an untouched part of the tensor, so that it is to be written by parts."""
    return any(isinstance(model.values[part].node.op, Update) or _untouched(model, tensor, part, path + (step,))
               or _in_parts(model, tensor, part, path + (step,)) for part, step in _steps(model, name))


def _untouched(model: Model, tensor: str, name: str, path: Path) -> bool:
    """Whether a value is the old value of just the part of the tensor that the views `path` lead to."""
    old = _old(model, name)
    return old is not None and old[0] == tensor and _normal(old[1], _shape_of(model, tensor)) == _normal(path, _shape_of(model, tensor))


def _update(model: Model, tensor: str, node: TensorNode, op: Update, place: Place, path: Path, writes: list[Write]) -> None:
    target = model.values[op.target]
    if op.index is not None or op.where is not None:
        root = model.values[target.root].node.op
        if isinstance(root, Input) and not _untouched(model, tensor, op.target, path):
            raise FusionError(f"the update does not write where {tensor} is read", node.loc,
                              f"update {tensor} itself, or a slice of it, in place")
        _write_back(model, tensor, op.target, place, path, writes)
    if op.index is None:
        write = _write(model, tensor, op.value, target.dims, place, node.loc)
        if op.where is not None:
            own = [b for b in _aligned(write, target.dims)]
            write.place[-1].pick = model._pick(None, "", op.where, own, node.loc)
        writes.append(write)
        return
    index = model.values[op.index]
    rest: Dims = target.dims[:op.dim] + index.dims + target.dims[op.dim + 1:]
    own = [None if a is None else model.fresh(model.atoms.extent(a)) for a in rest]
    kept = own[:op.dim] + own[op.dim + len(index.dims):]
    hop = _follow(model, target.dims[:op.dim] + target.dims[op.dim + 1:], kept, op.value)
    hop.pick = model._pick(target.dims[op.dim], op.index, op.where, own[op.dim:op.dim + len(index.dims)], node.loc)
    read = model.read(op.value, own, node.loc)
    writes.append(Write(tensor, op.value, [a for a in own if a is not None], read, [*place.hops, hop], node.loc, place.dims))


def _aligned(write: Write, dims: Dims) -> Dims:
    axes = iter(write.axes)
    return [None if a is None else next(axes) for a in dims]


# ---- which part of the old argument a value is ------------------------------------------------------------------------------------

def _old(model: Model, name: str) -> tuple[str, Path] | None:
    """(argument, normal path) of a value that is nothing but a view of an argument's old value; None for any other."""
    node = model.values[name].node
    op = node.op
    if isinstance(op, Input):
        return op.tensor, ()
    step: tuple[object, ...]
    if isinstance(op, Slice) and op.step == 1:
        step = ("slice", op.dim, op.start, node.shape[op.dim])
    elif isinstance(op, Reshape):
        step = ("reshape", node.shape)
    elif isinstance(op, Permute):
        step = ("permute", op.order)
    else:
        return None
    below = _old(model, op.arg)
    return None if below is None else (below[0], below[1] + (step,))


def _shape_of(model: Model, tensor: str) -> Shape:
    return next(a.shape for a in model.graph.arguments if a.name == tensor)


def _normal(path: Path, shape: Shape) -> Path:
    """A path with neighbouring reshapes, slices of one dim and permutations merged, so that equal parts have equal paths."""
    out: list[tuple[tuple[object, ...], Shape]] = []  # each step with the shape before it
    for step in path:
        before = shape
        shape = _after(step, shape)
        if out and out[-1][0][0] == step[0] and (step[0] != "slice" or out[-1][0][1] == step[1]):
            last, before = out.pop()
            step = _merge(last, step)
        if shape != before or step[0] == "permute" and step[1] != tuple(range(len(shape))):
            out.append((step, before))
    return tuple(step for step, _ in out)


def _after(step: tuple[Any, ...], shape: Shape) -> Shape:
    if step[0] == "slice":
        return shape[:step[1]] + (step[3],) + shape[step[1] + 1:]
    return tuple(step[1]) if step[0] == "reshape" else tuple(shape[i] for i in step[1])


def _merge(first: tuple[Any, ...], second: tuple[Any, ...]) -> tuple[object, ...]:
    if second[0] == "slice":
        return ("slice", second[1], first[2] + second[2], second[3])
    return second if second[0] == "reshape" else ("permute", tuple(first[1][i] for i in second[1]))


def fresh_tensors(outputs: tuple[tuple[str, Shape, str], ...], taken: frozenset[str]) -> tuple[Argument, ...]:
    """Row-major tensors for returned values (name, shape, dtype); a stride is None where an inner dim is dynamic."""
    made = []
    for name, shape, dtype in outputs:
        while name in taken:
            name += "_"
        strides: list[int | None] = []
        step: int | None = 1
        for extent in reversed(shape):
            strides.insert(0, 0 if extent == 1 else step)
            step = step * extent if isinstance(extent, int) and step is not None else None
        made.append(Argument(name, dtype, shape, tuple(strides)))
    return tuple(made)
