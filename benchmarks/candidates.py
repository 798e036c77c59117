"""Who takes part in a case, as calls that can be recorded: fusec, what memory can do, peers, and torch.compile.

Whoever computes something is compared with the reference first; one that is wrong is named and takes no part.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from . import cases
from .cases import Case, Inputs
from .peers import TOLERANCE, Loaded, Peer

if TYPE_CHECKING:
    from fusec.runtime.artifact import Artifact

Call = Callable[[], object]
COMPILED = "torch.compile"


@dataclass(slots=True)
class Candidates:
    """calls: by name, one for each set of inputs. troubles: why another takes no part."""

    calls: dict[str, list[Call]] = field(default_factory=dict)
    troubles: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, make: Callable[[], list[Call] | None]) -> None:
        """What a candidate raises is its own affair: the case goes on without it. None: it takes no part."""
        try:
            calls = make()
        except Wrong as error:
            self.troubles[name] = str(error)
        except Exception as error:
            self.troubles[name] = f"{type(error).__name__}: {str(error)[:200]}"
        else:
            if calls is not None:
                self.calls[name] = calls


class Wrong(Exception):
    """A candidate does not compute what the reference computes."""


def collect(case: Case, artifact: Artifact, inputs: Inputs, moved: int, peers: Iterable[Loaded], compiled: bool) -> Candidates:
    """All that take part. moved: the bytes that the step must move. compiled: whether the run asks for torch.compile."""
    found = Candidates()
    found.add(case.subject.floor, partial(_floor, case, inputs, moved))
    found.add("fusec", partial(_fusec, case, artifact, inputs))
    for loaded in peers:
        if loaded.function == case.subject.name:
            found.add(loaded.name, partial(_peer, case, artifact, inputs, loaded.peer))
    if compiled and case.compiled:
        found.add(COMPILED, partial(_compiled, case, artifact, inputs))
    if case.empty:
        found.add("empty", partial(_empty, inputs))
    return found


def _floor(case: Case, inputs: Inputs, moved: int) -> list[Call]:
    from . import probe
    subject = case.subject
    if subject.pool is not None:
        pool, index = subject.pool
        return [probe.slots(s[pool], s[index]) for s in inputs.sets]
    if subject.splits is not None:
        split, written = subject.splits, _outputs(inputs.outputs[0])[0].element_size()
        return [probe.parts(split.view(s[split.partial], case.tokens), cases.counts(case, s), written) for s in inputs.sets]
    return list(probe.copies(moved, len(inputs.sets)))


def _empty(inputs: Inputs) -> list[Call]:
    from . import probe
    return [probe.empty(_outputs(o)[0]) for o in inputs.outputs]


def _fusec(case: Case, artifact: Artifact, inputs: Inputs) -> list[Call]:
    """Raises Wrong."""
    if wrong := differing(case, artifact, inputs, lambda k: artifact(**k, out=inputs.outputs[0])):
        raise Wrong(wrong)
    return [partial(artifact, **s, out=o) for s, o in zip(inputs.sets, inputs.outputs)]


def _peer(case: Case, artifact: Artifact, inputs: Inputs, peer: Peer) -> list[Call] | None:
    """A peer's calls; None where it does not take the size. Raises Wrong."""
    import torch
    first = _outputs(inputs.outputs[0])
    if peer.bind(inputs.sets[0], first) is None:
        return None
    for output in first:
        output.copy_(torch.full(output.shape, 777.0, device=output.device))

    def once(arguments: dict[str, Any]) -> Any:
        call = peer.bind(arguments, first)
        assert call is not None
        call()
        return first

    if wrong := differing(case, artifact, inputs, once, TOLERANCE, peer.outputs):
        raise Wrong(wrong)
    bound = (peer.bind(s, _outputs(o)) for s, o in zip(inputs.sets, inputs.outputs))
    return [call for call in bound if call is not None]


def _compiled(case: Case, artifact: Artifact, inputs: Inputs) -> list[Call]:
    """torch.compile of the function, for exactly these sizes; its results are new tensors of each call. Raises Wrong."""
    import torch
    import torch._dynamo
    torch._dynamo.reset()  # Of functions that many sizes share only so many compilations are kept.
    fn = torch.compile(artifact.reference, fullgraph=True, dynamic=False)

    def run(arguments: dict[str, Any]) -> Any:
        with torch.no_grad():  # As the comparison calls it, which has compiled it: another mode would compile anew.
            return fn(**arguments)

    if wrong := differing(case, artifact, inputs, run, TOLERANCE):
        raise Wrong(wrong)
    return [partial(run, s) for s in inputs.sets]


def differing(case: Case, artifact: Artifact, inputs: Inputs, call: Callable[[dict[str, Any]], Any],
              tolerance: Mapping[str, tuple[float, float]] | None = None, outputs: tuple[int, ...] | None = None) -> str:
    """What a candidate gets wrong on the first set; '' where it agrees with the reference."""
    from .agree import differences
    first = inputs.sets[0]
    slots = first[case.subject.pool[1]] if case.subject.pool else None
    if slots is not None:
        slots = slots[slots >= 0]
    return "; ".join(differences(artifact.reference, call, first, inputs.mutated, slots, tolerance, outputs))


def _outputs(given: Any) -> tuple[Any, ...]:
    return given if isinstance(given, tuple) else (given,)
