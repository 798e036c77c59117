"""PyTorch function → tensor graph."""

from .declare import capture
from .ops import supported
from .trace import capturing

__all__ = ["capture", "capturing", "supported"]
