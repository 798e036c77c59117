"""The method of a check: a model in fp64 that keeps every written rounding, a check build with probes, the production build.

1. *The function itself* in eager mode against the model (an error of capture shows here).
2. *The check build*: the graph that also stores its value at each written rounding. Each must be within 1 ulp of the model,
   and the model goes on from the kernel's value; so every later value is compared as if nothing had been rounded differently
   before, and fp32 values must agree everywhere. One wrong rounding, one wrong axis is seen at the value where it happens.
3. *The production build*, without probes: elements whose bits are those of the check build are right as it is; of the others 99.9 %
   agree with the model and all are within what flips of the written roundings can make (bound.py).

Moved values and integers are compared bit for bit (a code that a float becomes may be the next one where fp32 does not tell which
it is), and so is every byte of the mutated arguments' storages that the call does not own.
If the check build is wrong, a second one with a probe at every value names the first that is.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from ..errors import FusecError, InternalError, Loc
from ..ir.dtype import FLOATS
from ..ir.graph import Graph, Index, Node, Store
from ..ir.reference import TORCH_DTYPE
from .attribution import attribute
from .bound import BOUND, noise, reach
from .cases import rows_at
from .compare import (
    ATOL, RTOL, UNIT, Subject, as_production, codes, exactly, rounded_within_one_ulp, within_one_ulp, within_tolerance,
)
from .facts import facts, row_dim_of
from .levels import Execute, device_of, interpreted, model, shape_of, sizes
from .masks import COMPUTED, MOVED, Touched, touched
from .probes import GIVEN, Probe, every_value, probes, roundings, with_given, with_probes
from .report import Compared, Difference, Findings
from .storage import changed, clone, key, raw, scramble
from .ulp import same_bits

TURN = 1 << 25
"""Elements of the largest value that are looked at together where the analysis of flips needs dozens of such values."""
Run = Callable[[dict[str, Tensor]], dict[str, Tensor]]
"""Arguments, changed in place -> fresh outputs by name."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be compared. eager: the function itself, outputs named as the graph's; check_build: how a graph with probes is run
    (None: it cannot be built, `why`); production: the build that a caller gets (None: there is none besides the check build)."""

    name: str
    graph: Graph
    eager: Run | None
    check_build: Execute | None
    production: Run | None
    seed: int = 0


def check(question: Question, tensors: Mapping[str, Tensor]) -> tuple[tuple[Compared, ...], tuple[str, ...], Difference | None]:
    """(everything compared, notes, the first wrong value where a second check build found it). The tensors stay as they are."""
    findings = Findings()
    scene = Scene(question, tensors)
    if question.eager is not None:
        after = scene.run(question.eager)
        scene.as_production("the function in eager mode", after, findings)
    checked, located = None, None
    if question.check_build is not None:
        checked, located = _check_build(scene, findings)
    if question.production is not None:
        scene.as_production("production build", scene.run(question.production), findings, checked)
    return tuple(findings.compared), tuple(findings.notes), located


def _check_build(scene: "Scene", findings: Findings) -> tuple[dict[str, Tensor] | None, Difference | None]:
    """The check build against the model; gives what it left in each tensor, if it is right."""
    graph, execute = scene.question.graph, scene.question.check_build
    assert execute is not None
    try:
        after = scene.run(lambda t: execute(with_probes(graph), t))
    except FusecError as refusal:
        findings.note(f"no check build, so roundings are compared in the production build only: {refusal.message}")
        return None, None
    expected = scene.model_from(after, roundings(graph))
    before = len(findings.compared)
    scene.as_check_build("check build", after, expected, roundings(graph), findings)
    if all(c.ok for c in findings.compared[before:]):
        return after, None
    return None, _locate(scene, execute, findings)


def _locate(scene: "Scene", execute: Execute, findings: Findings) -> Difference | None:
    """The first wrong value of a build that stores every value."""
    graph = scene.question.graph
    nodes, inner = every_value(graph), Findings()
    try:
        after = scene.run(lambda t: execute(with_probes(graph, nodes), t))
    except (FusecError, InternalError) as refusal:
        findings.note(f"no build that stores every value: {type(refusal).__name__}")
        return None
    scene.as_check_build("build with every value", after, scene.model_from(after, nodes), nodes, inner)
    return next((c.first for c in inner.compared if not c.ok), None)


class Scene:
    """The arguments of a check as every run gets them: copies with all bytes that the call does not touch made random."""

    def __init__(self, question: Question, tensors: Mapping[str, Tensor]) -> None:
        self.question, self.graph = question, question.graph
        names = {a.name for a in self.graph.arguments}
        self.base = clone({n: t for n, t in tensors.items() if n in names})
        self.known = sizes(self.graph.arguments, self.base)
        self.touched: Touched = touched(self.graph, self.base)
        for storage, (keep, _) in self.touched.bytes.items():
            scramble(storage_of(self.base, storage), keep, question.seed)
        self._free: dict[str, Tensor] | None = None
        self._reach: dict[str, Tensor] | None = None
        self._noise: dict[tuple[str, ...], dict[str, Tensor]] = {}

    @property
    def stored(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(n.op.tensor for n in self.graph.nodes if isinstance(n.op, Store)))

    def run(self, execute: Run) -> dict[str, Tensor]:
        """Every tensor after a run on a copy: arguments and fresh outputs by name."""
        mine = clone(self.base)
        return {**mine, **execute(mine)}

    def free(self) -> dict[str, Tensor]:
        """The model with its own roundings."""
        if self._free is None:
            self._free = self.run(lambda t: model(self.graph, t))
        return self._free

    def model_from(self, after: Mapping[str, Tensor], nodes: tuple[Node, ...]) -> dict[str, Tensor]:
        """The model that goes on, at each of the nodes, from the value that a check build stored."""
        given = {}
        for p in probes(self.graph, nodes):
            own = after[p.tensor][0] if p.copies else after[p.tensor]
            own = own.reshape(own.shape or (1,))
            given[GIVEN + p.value] = own.to(TORCH_DTYPE[self.graph.table[p.value].dtype])
        return self.run(lambda t: model(with_given(self.graph, nodes), {**t, **given}))

    def reach(self, tensor: str) -> Tensor:
        """How far each element may be from the free model's beyond the fp32 tolerance."""
        if self._reach is None:
            self._reach = self._bounds(*reach(self.graph, RTOL, ATOL, UNIT))
        found = self._reach.get(tensor)
        return torch.zeros(self._shape(tensor), device=device_of(self.base)) if found is None else found

    def noise(self, tensor: str, like: Tensor, nodes: tuple[Node, ...] = ()) -> Tensor:
        """How far fp32 itself may put each element of a stored tensor, or of a probe at one of `nodes`, off."""
        key_ = tuple(n.name for n in nodes)
        if key_ not in self._noise:
            self._noise[key_] = self._bounds(*noise(self.graph, nodes, UNIT))
        found = self._noise[key_].get(tensor)
        return torch.zeros(like.shape, device=like.device) if found is None else found.to(torch.float64).nan_to_num(0.0, 0.0, 0.0)

    def _bounds(self, graph: Graph, names: tuple[str, ...]) -> dict[str, Tensor]:
        """What a graph of bounds leaves for each tensor; rows go in turns of as many as memory has room for."""
        device, known, shapes = device_of(self.base), facts(self.graph), {n: graph.tensors[BOUND + n] for n in names}
        along = {n: d for n in names if (d := row_dim_of(shapes[n].shape, self.graph.rows)) is not None}
        whole = {n: torch.zeros(shape_of(shapes[n], self.known), device=device) for n in names if n not in along}
        parts: dict[str, list[Tensor]] = {n: [] for n in along}
        for rows in self._turns():
            given = self.base if rows is None else rows_at(known, self.base, rows)
            own = {n: shape_of(shapes[n], sizes(self.graph.arguments, given)) for n in along}
            zeros = {n: torch.zeros(shape, device=device) for n, shape in own.items()}
            interpreted(graph, {**clone(given), **{BOUND + n: t for n, t in {**whole, **zeros}.items()}}, "f64")
            for name, t in zeros.items():
                parts[name].append(t)
        return {**whole, **{n: torch.cat(parts[n], along[n]) for n in along}}

    def _turns(self) -> list[list[int] | None]:
        rows = self.known.get(self.graph.rows or "")
        widest = max((prod(a.extent for a in n.axes if isinstance(a.extent, int)) for n in self.graph.nodes), default=1)
        step = max(1, TURN // widest)
        if rows is None or rows <= step:
            return [None]
        return [list(range(i, min(i + step, rows))) for i in range(0, rows, step)]

    def _shape(self, tensor: str) -> tuple[int, ...]:
        return shape_of(self.graph.tensors[tensor], self.known)

    # ---- comparisons

    def subject(self, tensor: str, where: str) -> Subject:
        """A tensor that the graph stores to, as the report names it."""
        last = [n for n in self.graph.nodes if isinstance(n.op, Store) and n.op.tensor == tensor][-1]
        value = self.graph.table[last.op.arg.value]  # type: ignore[union-attr]
        table: list[tuple[Tensor, Tensor | None]] = []

        def place(at: tuple[int, ...]) -> tuple[str, Loc, int | None]:
            if not table:
                table.append(attribute(self.graph, tensor, clone(self.base), self._shape(tensor)))
            which, rows = table[0]
            node = self.graph.nodes[int(which[at])] if int(which[at]) >= 0 else value
            row = None if rows is None or int(rows[at]) < 0 else int(rows[at])
            return (tensor if tensor == node.name else f"{tensor} ({node.name})"), node.loc, row

        return Subject(tensor, value.loc or last.loc, _dims(last), where, None, place)

    def as_production(self, where: str, after: Mapping[str, Tensor], findings: Findings,
                      checked: Mapping[str, Tensor] | None = None) -> None:
        """A run without probes against the model."""
        expected = self.free()
        for tensor in self.stored:
            if tensor not in after:
                continue
            subject, mask = self.subject(tensor, where), self.touched.masks[tensor]
            kernel, right = after[tensor], expected[tensor]
            if self.graph.tensors[tensor].dtype not in FLOATS:
                same = None if checked is None else same_bits(kernel, checked[tensor])
                findings.compared.append(codes(subject, kernel, right,
                                               lambda t=tensor, k=kernel: self.reach(t) + self.noise(t, k), same))
                continue
            if not self._moved(subject, kernel, right, mask, findings):
                continue
            known = mask != COMPUTED
            if checked is not None:
                known = known | same_bits(kernel, checked[tensor])
            findings.compared.append(as_production(subject, kernel, right, lambda t=tensor: self.reach(t), known,
                                                    lambda t=tensor, k=kernel: self.noise(t, k)))
        findings.compared += self.untouched(where, after)

    def as_check_build(self, where: str, after: Mapping[str, Tensor], expected: Mapping[str, Tensor], nodes: tuple[Node, ...],
                       findings: Findings) -> None:
        """A run with probes at `nodes` against the model that went on from their values, in the order of the graph."""
        probed = {p.value: p for p in probes(self.graph, nodes)}
        for node in self.graph.nodes:
            if node.name in probed:
                self._probe(node, probed[node.name], where, after, expected, nodes, findings)
            if isinstance(node.op, Store):
                self._stored(node.op.tensor, where, after, expected, findings)
        findings.compared += self.untouched(where, after)

    def _probe(self, node: Node, probe: Probe, where: str, after: Mapping[str, Tensor], expected: Mapping[str, Tensor],
               nodes: tuple[Node, ...], findings: Findings) -> None:
        row = next((i for i, a in enumerate(probe.axes) if str(a.extent) == self.graph.rows), None)
        subject = Subject(node.name, node.loc, tuple(a.name for a in probe.axes) or ("",), where, row)
        kernel, right = after[probe.tensor], expected[probe.tensor]

        def off() -> Tensor:
            return self.noise(probe.tensor, kernel, nodes)
        findings.compared.append(within_tolerance(subject, kernel, right, noise=off) if node.dtype == "f32" else
                                 rounded_within_one_ulp(subject, kernel, right, TORCH_DTYPE[node.dtype], off))

    def _stored(self, tensor: str, where: str, after: Mapping[str, Tensor], expected: Mapping[str, Tensor],
                findings: Findings) -> None:
        subject, kernel, right = self.subject(tensor, where), after[tensor], expected[tensor]
        dtype = self.graph.tensors[tensor].dtype
        if dtype not in FLOATS:
            findings.compared.append(codes(subject, kernel, right, lambda: self.noise(tensor, kernel)))
            return
        mask = self.touched.masks[tensor]
        if not self._moved(subject, kernel, right, mask, findings):
            return
        among = mask == COMPUTED if kernel.shape == mask.shape else None
        findings.compared.append(within_one_ulp(subject, kernel, right, among) if dtype != "f32" else
                                 within_tolerance(subject, kernel, right, among, lambda: self.noise(tensor, kernel)))

    def _moved(self, subject: Subject, kernel: Tensor, right: Tensor, mask: Tensor, findings: Findings) -> bool:
        """Compare what is only moved; whether there is anything else to compare."""
        same = kernel.shape == right.shape
        if bool((mask == MOVED).any()):
            findings.compared.append(exactly(subject, kernel, right, mask == MOVED if same else None))
        return not same or bool((mask != MOVED).any())

    def untouched(self, where: str, after: Mapping[str, Tensor]) -> list[Compared]:
        """Bytes of the mutated arguments' storages that no live row owns."""
        compared = []
        for storage, (_, owned) in self.touched.bytes.items():
            names = [n for n, t in self.base.items() if key(t) == storage and n in self.graph.mutated]
            before, now = raw(self.base[names[0]]), raw(after[names[0]])
            at = changed(before, now, owned)
            found = None if at is None else self._byte(names[0], at, before, now, where)
            name, rule = f"storage of {', '.join(names)}", "untouched bytes bit-identical"
            compared.append(Compared(name, Loc(), where, rule, before.numel(), int(at is not None), found, found, at is None))
        return compared

    def _byte(self, tensor: str, at: int, before: Tensor, now: Tensor, where: str) -> Difference:
        store = [n for n in self.graph.nodes if isinstance(n.op, Store) and n.op.tensor == tensor][-1]
        where = f"{where}; {_element(self.base[tensor], at)}"
        return Difference(tensor, store.loc, None, (("byte", at),), int(now[at]), int(before[at]), float("inf"),
                          "a byte that no live row owns", where)


def storage_of(tensors: Mapping[str, Tensor], storage: int) -> Tensor:
    return raw(next(t for t in tensors.values() if key(t) == storage))


def _element(t: Tensor, byte: int) -> str:
    """Which element of a strided tensor a byte of its storage belongs to, in words."""
    at, rest = byte // t.element_size() - t.storage_offset(), []
    order = sorted(range(t.dim()), key=lambda d: -t.stride(d))
    for dim in order:
        step = t.stride(dim)
        digit = at // step if step else 0
        if not 0 <= digit < t.shape[dim]:
            return "in a gap between its elements"
        at -= digit * step
        rest.append((dim, digit))
    if at:
        return "in a gap between its elements"
    return f"element [{', '.join(str(i) for _, i in sorted(rest))}]"


def _dims(store: Node) -> tuple[str, ...]:
    assert isinstance(store.op, Store)
    out = []
    for i, dim in enumerate(store.op.index):
        source = dim[0].source if len(dim) == 1 else None
        out.append(source.axis or f"dim{i}" if isinstance(source, Index) else f"dim{i}")
    return tuple(out)
