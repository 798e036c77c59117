"""The back half of the pipeline: from the folded graph to one KernelSpec, each step a pass of its own."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ..errors import ResourceError
from ..ir.dtype import BYTES
from ..ir.graph import Graph
from ..ir.kernel import Copy, Global, KernelSpec, Let, Linear, Parameter, Statement, Term, walk
from ..ir.overlap import apart
from ..ir.plan import Layout, Schedule
from ..ir.verify import verify
from ..ir.verify_kernel import verify_kernel
from ..target import TARGETS
from .barriers import insert_barriers
from .bind_loads import bind_loads, register_axes
from .choose_grid import choose_grid
from .coordinates import Coordinates
from .emit import Emitter
from .forms import reduce_forms
from .hold_narrow import hold_narrow
from .levels import assign_levels
from .linearize import linearize
from .localize import localize
from .mask_loads import mask_loads
from .place import place
from .problem import SHARED, Placement, Problem
from .plan_smem import plan_smem, with_spans
from .recompute import recompute
from .round_once import round_once
from .share_lanes import share_lanes


ONCE_WAVES = 6  # Blocks per multiprocessor up to which marking memory as not needed again pays (docs/falsification.md, rule 3).


def to_kernel(
    graph: Graph, arch: str, alignment: dict[str, int] | None = None, avoid: tuple[Layout, ...] = ()
) -> tuple[Schedule, KernelSpec]:
    """The schedule and the kernel of a graph for one arch.

    alignment: per tensor, the bytes its base and its run-time strides are multiples of; where not given, what the kernel likes.
    avoid: layouts of the anchor that spill. Raises FusionError where the graph cannot be one kernel, ResourceError where nothing
    fits.
    """
    graph = verify(mask_loads(bind_loads(graph)), "bind_loads")
    held = register_axes(graph)
    grid = choose_grid(graph, held)
    problem = Problem(recompute(graph, grid), grid, held, TARGETS[arch], avoid=avoid)
    placed = place(problem)
    try:
        return _scheduled(*placed, alignment or {})
    except ResourceError as refusal:
        return _within_limit(problem, alignment or {}, refusal)


def _within_limit(problem: Problem, alignment: dict[str, int], refusal: ResourceError) -> tuple[Schedule, KernelSpec]:
    """The cheapest placement whose shared memory the target has, where the cheapest of all needs more. Raises the refusal where
    there is none."""
    for shared in SHARED[1:]:
        try:
            placed = place(replace(problem, shared=shared))
        except ResourceError:
            break  # What does not fit alone does not fit beside others.
        try:
            return _scheduled(*placed, alignment)
        except ResourceError:
            continue
    raise ResourceError(f"{problem.target.name}: {refusal.message}", refusal.loc, refusal.hint)


def _scheduled(problem: Problem, placed: Placement, alignment: dict[str, int]) -> tuple[Schedule, KernelSpec]:
    """The schedule and the kernel of a placement. Raises ResourceError where its shared memory does not fit."""
    graph, target = problem.graph, problem.target
    placed = share_lanes(problem, placed)
    levels = assign_levels(problem, placed)
    coords = Coordinates(problem, placed)
    emitter = Emitter(problem, placed, coords, alignment)
    for name in sorted(levels.crossing | set(placed.dealt)):
        emitter.partials[name] = coords.fresh(f"{name}_part")
    launch = replace(coords.launch(), once_below=ONCE_WAVES * target.multiprocessors)
    body = localize(linearize(problem, placed, levels, emitter))
    sizes = {e.buffer: (e.dtype, prod(e.extents)) for e in emitter.exchanges.values()}
    tensors = {t.name: t.dtype for t in graph.arguments + graph.fresh}
    body = round_once(body, tensors, {buffer: dtype for buffer, (dtype, _) in sizes.items()})
    origins = {e.buffer: problem.table[e.value].loc for e in emitter.exchanges.values()}
    plan = plan_smem(body, sizes, target.smem_per_block, origins)
    body = insert_barriers(_lets(coords, body) + body, plan, lambda a, b: apart(graph, problem.table[a], problem.table[b]),
                           bool(placed.grid.cluster))
    body = hold_narrow(body, tensors)
    schedule = Schedule(
        placed.anchor,
        placed.threads,
        problem.grid.axes,
        tuple(placed.layouts.items()),
        tuple(emitter.exchanges.values()),
        forms=tuple((name, str(form)) for name, form in reduce_forms(problem, placed)),
    )
    plan = with_spans(plan, body)
    launch = replace(launch, min_blocks=min(launch.min_blocks, target.blocks(plan.total)))
    parameters, summary = _parameters(graph, emitter), _summary(problem, placed)
    return schedule, verify_kernel(KernelSpec(graph.name, graph.name, target.name, parameters, launch, plan, body, summary))


def _lets(coords: Coordinates, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """The coordinates in order of definition, and the unit that constant offsets along run-time strides are counted in."""
    used = any(term.var == "one" for s in walk(body) for term in _terms(s))
    return ((Let("one", Linear((), 1)),) if used else ()) + tuple(coords.lets)


def _terms(statement: Statement) -> list[Term]:
    if not isinstance(statement, Copy):
        return []
    return [t for place in (statement.source, statement.target) if isinstance(place, Global) for t in place.offset.terms]


def _parameters(graph: Graph, emitter: Emitter) -> tuple[Parameter, ...]:
    found: list[Parameter] = []
    for tensor in graph.arguments + graph.fresh:
        width = emitter.widths.get(tensor.name, 1)
        shape = tuple(e if isinstance(e, int) else str(e) for e in tensor.shape)
        divisible = tuple(width if stride is None else 1 for stride in tensor.strides)
        found.append(Parameter(tensor.name, tensor.dtype, shape, tensor.strides, width * BYTES[tensor.dtype], divisible))
    return tuple(found)


def _summary(problem: Problem, placed: Placement) -> tuple[str, ...]:
    grid = " x ".join(f"{name}" + (f" in parts of {part}" if part != 1 else "") for name, _, part in placed.grid.axes)
    lines = [f"grid: {grid or 'one block'}; {placed.threads} threads", f"anchor: {placed.anchor} {placed.layouts[placed.anchor]}"]
    if placed.grid.cluster:
        lines.insert(1, f"clusters: {placed.grid.peers} blocks along {placed.grid.cluster}")
    if problem.walk is not None:
        lines.append(f"walk: along {problem.walk.axis}, {problem.walk.turns} turns of {problem.walk.part}")
    regions: dict[tuple[int, int], list[str]] = {}
    for name, layout in placed.layouts.items():
        if layout.count:
            regions.setdefault((layout.first, layout.count), []).append(name)
    lines += [f"threads {first}..{first + count - 1}: {', '.join(names)}" for (first, count), names in sorted(regions.items())]
    return tuple(lines)

