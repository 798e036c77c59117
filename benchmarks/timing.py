"""Median times of kernels side by side: each candidate is a graph of launches over cold sets, and the graphs take turns."""
from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Mapping, Sequence

import torch

REPEATS = 30
WARM = 3
FLUSH_BYTES = 512 << 20

Calls = Sequence[Callable[[], object]]


def recorded(calls: Calls, stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    """A graph of all calls, each of which has run once before: nothing is compiled while it is recorded, and what a call allocates
    comes from the graph's own memory."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    return graph


def side_by_side(candidates: Mapping[str, Calls], cold: bool, repeats: int = REPEATS) -> tuple[dict[str, float], dict[str, str]]:
    """({candidate: median µs per call}, {candidate: why it could not be recorded}).

    The graphs are replayed in turns, so that clocks and temperature are the same for all. cold: one round of the sets does not fit
    the second-level cache; where it does, other memory is read between the replays, outside of what is timed.
    """
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        graphs, failed = _graphs(candidates, stream)
        flush = None if cold else torch.ones(FLUSH_BYTES // 4, device="cuda")
        pairs: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in graphs}
        gc.collect()
        for turn in range(WARM + repeats):
            for name, graph in graphs.items():
                if flush is not None:
                    flush.sum()
                start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                start.record(stream)
                graph.replay()
                stop.record(stream)
                torch.cuda.synchronize()
                if turn >= WARM:
                    pairs[name].append((start, stop))
    return {name: _median(found) / len(candidates[name]) for name, found in pairs.items()}, failed


def _median(pairs: Sequence[tuple[torch.cuda.Event, torch.cuda.Event]]) -> float:
    """µs between the events of a pair."""
    return statistics.median(start.elapsed_time(stop) for start, stop in pairs) * 1e3


def _graphs(candidates: Mapping[str, Calls], stream: torch.cuda.Stream) -> tuple[dict[str, torch.cuda.CUDAGraph], dict[str, str]]:
    graphs, failed = {}, {}
    for name, calls in candidates.items():
        try:
            graphs[name] = recorded(calls, stream)
        except Exception as error:  # A candidate of others' may do what a recording forbids.
            failed[name] = f"not recorded: {type(error).__name__}: {str(error)[:200]}"
    return graphs, failed
