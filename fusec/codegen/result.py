"""What a build gives back. A module of its own, so that whoever receives it need not load the kernel compiler."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class BuildResult:
    """object: the exported file's bytes. ptx: its text. resources: the fields of Resources. seconds: spent in this build."""

    object: bytes
    ptx: str
    cubin: bytes
    resources: dict[str, Any]
    seconds: float
