"""What fusec says while it works: one logger, `fusec`, on standard error; compiles are announced, warnings come once."""
from __future__ import annotations

import logging
import sys

_said: set[str] = set()
logger = logging.getLogger("fusec")


class _Stderr(logging.Handler):
    """Writes to the standard error of the moment, so that captured and redirected streams see it."""

    def emit(self, record: logging.LogRecord) -> None:
        print(f"fusec: {self.format(record)}", file=sys.stderr)


def _ready() -> logging.Logger:
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    if not logger.handlers and not logging.getLogger().handlers:
        logger.addHandler(_Stderr())
    return logger


def log(message: str) -> None:
    """A line about work that takes time, such as a compile."""
    _ready().info(message)


def warn_once(message: str) -> None:
    """A warning that the same process gives once."""
    if message not in _said:
        _said.add(message)
        _ready().warning(message)
