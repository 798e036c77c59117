"""What a function leaves in memory, as a list of writes in order: which ranges of which argument end as which value.

An argument ends as a value; walking that value down to the old argument, through updates, scatters of slices and views, gives the
ranges that were written and leaves out those that were not touched. Structure only: dims have no axes yet.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import FusionError
from ..ir.tensor import Input, Join, Permute, Reshape, Shape, Slice, TensorGraph, TensorNode, Update

Step = tuple[Any, ...]
"""A view of a tensor, outermost first: ("slice", dim, start, length), ("reshape", shape), ("permute", order)."""
Path = tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Written:
    """The view `path` of `tensor` ends as `value`; of an update through an index, the picked elements of that view do."""

    tensor: str
    path: Path
    value: str
    node: TensorNode
    update: Update | None = None


def written(graph: TensorGraph) -> tuple[Written, ...]:
    """The writes to arguments, in the order of the function.

    Raises FusionError where an update through an index goes to something else than what it reads from.
    """
    walk = _Walk(graph)
    for argument, value in graph.mutations:
        walk.back(argument, value, ())
    return tuple(walk.found)


def written_whole(graph: TensorGraph, tensor: str, name: str, path: Path = ()) -> tuple[Written, ...]:
    """The writes that leave a value in a fresh tensor: unequal parts of a join each by itself: they share no axis."""
    node = graph.table[name]
    op = node.op
    if not isinstance(op, Join) or len({graph.table[p].shape[op.dim] for p in op.parts}) == 1:
        return (Written(tensor, path, name, node),)
    found: list[Written] = []
    start: Any = 0
    for part in op.parts:
        length = graph.table[part].shape[op.dim]
        found += written_whole(graph, tensor, part, path + (("slice", op.dim, start, length),))
        start = start + length
    return tuple(found)


class _Walk:
    """From the values that arguments end as down to their old values."""

    def __init__(self, graph: TensorGraph) -> None:
        self.table = graph.table
        self.shapes = {a.name: a.shape for a in graph.arguments}
        self.found: list[Written] = []

    def back(self, tensor: str, name: str, path: Path) -> None:
        """Append the writes that make the view `path` of a tensor end as the value `name`."""
        node = self.table[name]
        op = node.op
        if self.untouched(tensor, name, path):
            return
        if isinstance(op, Update):
            self._update(tensor, node, op, path)
        elif not self.in_parts(tensor, name, path):
            self.found.append(Written(tensor, path, name, node))
        else:
            base = self._base(tensor, name, path)
            if base is not None:
                self.back(tensor, base, path)
            for part, step in self._steps(name):
                if base is None or not self._is_kept(part, step, base):
                    self.back(tensor, part, path + (step,))

    def _update(self, tensor: str, node: TensorNode, op: Update, path: Path) -> None:
        if op.index is None and op.where is None:
            self.found.append(Written(tensor, path, op.value, node))
            return
        if self._old(op.target) is not None and not self.untouched(tensor, op.target, path):
            raise FusionError(f"the update does not write where {tensor} is read", node.loc,
                              f"update {tensor} itself, or a slice of it, in place")
        self.back(tensor, op.target, path)
        self.found.append(Written(tensor, path, op.value, node, op))

    # ---- parts ------------------------------------------------------------------------------------------------------------------

    def _steps(self, name: str) -> list[tuple[str, Step]]:
        """The values a join, reshape or permutation is made of, each with the view of the whole that it is; [] for other values."""
        op = self.table[name].op
        if isinstance(op, Reshape):
            return [(op.arg, ("reshape", self.table[op.arg].shape))]
        if isinstance(op, Permute):
            return [(op.arg, ("permute", tuple(op.order.index(i) for i in range(len(op.order)))))]
        steps: list[tuple[str, Step]] = []
        if isinstance(op, Join):
            start: Any = 0
            for part in op.parts:
                length = self.table[part].shape[op.dim]
                steps.append((part, ("slice", op.dim, start, length)))
                start = start + length
        return steps

    def in_parts(self, tensor: str, name: str, path: Path) -> bool:
        """Whether a value holds an update, or old values where they were, so that only parts of it are to be written."""
        if isinstance(self.table[name].op, Update) or self.untouched(tensor, name, path):
            return True
        if self._base(tensor, name, path) is not None:
            return True
        return any(self.in_parts(tensor, part, path + (step,)) for part, step in self._steps(name))

    def _base(self, tensor: str, name: str, path: Path) -> str | None:
        """The value that a join keeps all but some ranges of, if that one is itself written in parts (a scatter into it)."""
        node = self.table[name]
        if not isinstance(node.op, Join):
            return None
        for part, step in self._steps(name):
            op = self.table[part].op
            if isinstance(op, Slice) and self._is_kept(part, step, op.arg) and self.table[op.arg].shape == node.shape \
                    and self.in_parts(tensor, op.arg, path):
                return op.arg
        return None

    def _is_kept(self, part: str, step: Step, base: str) -> bool:
        op = self.table[part].op
        return isinstance(op, Slice) and op.step == 1 and op.arg == base and (op.dim, op.start) == step[1:3]

    # ---- which part of the old argument a value is ------------------------------------------------------------------------------

    def untouched(self, tensor: str, name: str, path: Path) -> bool:
        """Whether a value is the old value of just the view `path` of the tensor."""
        old = self._old(name)
        if old is None or old[0] != tensor:
            return False
        return normal(old[1], self.shapes[tensor]) == normal(path, self.shapes[tensor])

    def _old(self, name: str) -> tuple[str, Path] | None:
        """(argument, path) of a value that is nothing but a view of an argument's old value; None for any other."""
        node = self.table[name]
        op = node.op
        step: Step
        if isinstance(op, Input):
            return op.tensor, ()
        if isinstance(op, Slice) and op.step == 1:
            step = ("slice", op.dim, op.start, node.shape[op.dim])
        elif isinstance(op, Reshape):
            step = ("reshape", node.shape)
        elif isinstance(op, Permute):
            step = ("permute", op.order)
        else:
            return None
        below = self._old(op.arg)
        return None if below is None else (below[0], below[1] + (step,))


def after(step: Step, shape: Shape) -> Shape:
    """The shape of a view of a tensor of that shape."""
    if step[0] == "slice":
        return shape[:step[1]] + (step[3],) + shape[step[1] + 1:]
    return tuple(step[1]) if step[0] == "reshape" else tuple(shape[i] for i in step[1])


def normal(path: Path, shape: Shape) -> Path:
    """A path with neighbouring reshapes, slices of one dim and permutations merged, so that equal parts have equal paths."""
    out: list[tuple[Step, Shape]] = []  # Each step with the shape before it.
    for step in path:
        before = shape
        shape = after(step, shape)
        if out and out[-1][0][0] == step[0] and (step[0] != "slice" or out[-1][0][1] == step[1]):
            last, before = out.pop()
            step = _merge(last, step)
        if shape != before or step[0] == "permute" and step[1] != tuple(range(len(shape))):
            out.append((step, before))
    return tuple(step for step, _ in out)


def _merge(first: Step, second: Step) -> Step:
    if second[0] == "slice":
        return ("slice", second[1], first[2] + second[2], second[3])
    return second if second[0] == "reshape" else ("permute", tuple(first[1][i] for i in second[1]))
