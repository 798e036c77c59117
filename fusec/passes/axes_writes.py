"""Writes over axes: what a function leaves in arguments and returns, each over fresh atoms, its place in the tensor as hops."""
from __future__ import annotations

from ..errors import FusionError, Loc
from ..ir.tensor import Argument, Input, Shape
from .atoms import DoesNotNest
from .axes_model import Dims, Hop, Model, Write
from .written import Step, Written, after


def add_writes(model: Model, writes: tuple[Written, ...], fresh: tuple[Argument, ...]) -> list[Write]:
    """One Write per write to an argument or a fresh tensor, in order.

    Raises FusionError where a view that is written through is no index map.
    """
    shapes = {a.name: a.shape for a in (*model.graph.arguments, *fresh)}
    results = {a.name for a in fresh}
    made = []
    for w in writes:
        if w.tensor in results and not w.path:
            made.append(_store(model, w.tensor, w.value, _fresh(model, w.node.shape), [], w.node.loc))
        else:
            made.append(_write(model, w, shapes[w.tensor]))
    return made


def _fresh(model: Model, shape: Shape) -> Dims:
    return [model.fresh(n) for n in shape]


def _follow(model: Model, source: Dims, target: Dims, name: str, dim: int = -1, start: int = 0) -> Hop:
    """A hop of the place of a write: equal coordinates, shifted by `start` along `dim`."""
    pairs = [(a, b, start if d == dim else 0) for d, (a, b) in enumerate(zip(source, target))]
    return model.hop(pairs, 1, Loc(), name, True)


def _write(model: Model, write: Written, shape: Shape) -> Write:
    """The write with its place: through the views of its path, and the index of an update."""
    start = dims = _fresh(model, shape)
    read = next((v for v in model.values.values() if isinstance(v.node.op, Input) and v.node.op.tensor == write.tensor), None)
    if read is not None:  # So that what is stored has the axes of what was loaded.
        model.same.append(_follow(model, read.dims, dims, read.node.name))
    hops = [_follow(model, dims, dims := _fresh(model, shape), write.value)]
    for step in write.path:
        dims, shape = _through(model, step, dims, shape, hops, write), after(step, shape)
    if write.update is None or write.update.index is None:
        made = _store(model, write.tensor, write.value, dims, hops, write.node.loc, start)
        if write.update is not None:
            axes = iter(made.axes)
            own = [None if a is None else next(axes) for a in dims]
            made.place[-1].pick = model.pick(None, "", write.update.where, own, write.node.loc)
        return made
    return _picked(model, write, dims, hops, start)


def _through(model: Model, step: Step, dims: Dims, shape: Shape, hops: list[Hop], write: Written) -> Dims:
    """The dims of a view of `dims`; a slice adds a hop, a reshape unites pieces."""
    if step[0] == "permute":
        return [dims[i] for i in step[1]]
    own = _fresh(model, after(step, shape))
    if step[0] == "slice":
        hops.append(_follow(model, dims, own, write.value, step[1], int(step[2])))
        return own
    try:
        model.atoms.unify([a for a in dims if a is not None], [a for a in own if a is not None])
    except DoesNotNest:
        raise FusionError(f"{write.tensor} is written through a view whose sizes have no common pieces with its own",
                          write.node.loc, "view the sizes as products of common factors") from None
    return own


def _store(model: Model, tensor: str, value: str, dims: Dims, place: list[Hop], loc: Loc,
           start: Dims | None = None) -> Write:
    """A write of a value over `dims`, at a place."""
    own = [None if a is None else model.fresh(model.atoms.extent(a)) for a in dims]
    read = model.read(value, own, loc)
    last = _follow(model, dims, own, value)
    return Write(tensor, value, [a for a in own if a is not None], read, [*place, last], loc, start if start is not None else dims)


def _picked(model: Model, write: Written, dims: Dims, hops: list[Hop], start: Dims) -> Write:
    """A write through an index: the index's dims in the place of the picked one."""
    update = write.update
    assert update is not None and update.index is not None
    rank, loc = len(model.values[update.index].dims), write.node.loc
    rest = dims[:update.dim] + model.values[update.index].dims + dims[update.dim + 1:]
    own = [None if a is None else model.fresh(model.atoms.extent(a)) for a in rest]
    kept = own[:update.dim] + own[update.dim + rank:]
    hop = _follow(model, dims[:update.dim] + dims[update.dim + 1:], kept, write.value)
    hop.pick = model.pick(dims[update.dim], update.index, update.where, own[update.dim:update.dim + rank], loc)
    read = model.read(write.value, own, loc)
    return Write(write.tensor, write.value, [a for a in own if a is not None], read, [*hops, hop], loc, start)


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
