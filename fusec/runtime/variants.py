"""Variants of a kernel that are asked for ahead of time: for tensors that are less aligned, or that have other strides.

A variant is a mapping from arguments to what they are like in it: a number says how many bytes the data and the strides that are
free are a multiple of, a tensor (whose values and memory do not matter) shows its strides. "unaligned" is every argument and output
aligned to its element only.
"""
from __future__ import annotations

from collections.abc import Mapping
from typing import Union

import torch

from ..errors import ArgumentError, FusecError
from ..ir.dtype import BYTES
from ..ir.graph import Graph

Variant = Union[str, Mapping[str, Union[torch.Tensor, int]]]
UNALIGNED = "unaligned"
MOST = 32


def resolve(variant: Variant, graph: Graph, example: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], dict[str, int]]:
    """(tensors of a call that is like this, bytes that some are aligned to). Raises ArgumentError for what is no variant."""
    known = {**{a.name: a for a in graph.arguments}, **{a.name: a for a in graph.fresh}}
    if variant == UNALIGNED:
        variant = {a.name: BYTES[a.dtype] for a in known.values()}
    if not isinstance(variant, Mapping):
        raise ArgumentError(f"variant: expected {UNALIGNED!r} or a mapping from arguments to bytes or tensors, given {variant!r}")
    tensors, alignment = dict(example), {}
    for name, given in variant.items():
        if name not in known:
            raise ArgumentError(f"variant: {name}: expected one of {', '.join(known)}")
        if isinstance(given, torch.Tensor) and name in example:
            tensors[name] = given
        elif type(given) is int and BYTES[known[name].dtype] <= given <= MOST and not given & (given - 1):
            alignment[name] = given
        else:
            raise ArgumentError(f"variant: {name}: expected a tensor, or a power of two from {BYTES[known[name].dtype]} to {MOST}, "
                                f"given {given if isinstance(given, int) else type(given).__name__}")
    return tensors, alignment


def parse(text: str) -> Variant:
    """"unaligned", or {"x": 2, "y": 4} from "x=2,y=4"."""
    if text == UNALIGNED:
        return text
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(name.isidentifier() and size.isdecimal() for name, _, size in pairs):
        raise FusecError(f"--variant {text}: expected {UNALIGNED}, or argument=bytes,…")
    return {name: int(size) for name, _, size in pairs}


def label(alignment: Mapping[str, int], graph: Graph) -> str:
    """What a kernel of poorer alignment is called in a table; '' for the usual one."""
    sizes = {a.name: BYTES[a.dtype] for a in (*graph.arguments, *graph.fresh)}
    if alignment and dict(alignment) == sizes:
        return UNALIGNED
    return ", ".join(f"{name} at {given} bytes" for name, given in alignment.items())
