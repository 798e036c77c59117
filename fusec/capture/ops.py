"""All ops that can be imported: loads the files of the kinds, and answers for the whole registry."""

from __future__ import annotations

from . import activations, bits, contractions, creation, indexing, pointwise, reductions, row_ops, views
from .registry import OPS, Op, nearest, supported

KINDS = (pointwise, activations, reductions, contractions, views, bits, creation, indexing, row_ops)

__all__ = ["KINDS", "OPS", "Op", "nearest", "supported"]
