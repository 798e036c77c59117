"""PyTorch function → tensor graph."""

from .export import capture
from .ops import supported
from .trace import capturing

__all__ = ["capture", "capturing", "supported"]
