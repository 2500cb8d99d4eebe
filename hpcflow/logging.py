"""`hf.logging`: what a script says, by TensorFlow 1's names, on hpcflow's own logger.

Rank 0 prints what is at least as grave as `set_verbosity` says (WARN by default), every rank
prints warnings and errors; equal lines are folded (`hpcflow/platform/rank_logging.py`).
"""

from __future__ import annotations

import logging
import sys
from typing import Any

from hpcflow.platform import rank_logging
from hpcflow.platform.exception_translation import guard_module, user_line

DEBUG, INFO, WARN = logging.DEBUG, logging.INFO, logging.WARNING
ERROR, FATAL = logging.ERROR, logging.CRITICAL

__all__ = [
    *("debug", "error", "fatal", "flush", "get_verbosity", "info", "log", "log_every_n"),
    *("log_first_n", "log_if", "set_verbosity", "vlog", "warn", "warning"),
]


class _Early(logging.Handler):
    """Prints what is said before the first session, which tells ranks apart."""

    def emit(self, record: logging.LogRecord) -> None:
        if not rank_logging.logger.handlers and not logging.root.handlers:
            print(f"hpcflow {record.getMessage()}", file=sys.stderr)


_logger = logging.getLogger("hpcflow.script")
_logger.setLevel(WARN)
_logger.addHandler(_Early())
_counts: dict[str, int] = {}  # how often each line of a script came by


def set_verbosity(v: int) -> None:
    """Say what is at least as grave as `v`: one of DEBUG, INFO, WARN, ERROR, FATAL."""
    _logger.setLevel(v)


def get_verbosity() -> int:
    """What `set_verbosity` was told."""
    return _logger.level


def log(level: int, msg: Any, *args: Any, **kwargs: Any) -> None:
    """Say `msg % args`, as grave as `level`."""
    _logger.log(level, msg, *args, **kwargs)


def vlog(level: int, msg: Any, *args: Any, **kwargs: Any) -> None:
    """As `log`."""
    _logger.log(level, msg, *args, **kwargs)


def debug(msg: Any, *args: Any, **kwargs: Any) -> None:
    """Say it at DEBUG."""
    _logger.debug(msg, *args, **kwargs)


def info(msg: Any, *args: Any, **kwargs: Any) -> None:
    """Say it at INFO."""
    _logger.info(msg, *args, **kwargs)


def warn(msg: Any, *args: Any, **kwargs: Any) -> None:
    """Say it at WARN."""
    _logger.warning(msg, *args, **kwargs)


warning = warn


def error(msg: Any, *args: Any, **kwargs: Any) -> None:
    """Say it at ERROR."""
    _logger.error(msg, *args, **kwargs)


def fatal(msg: Any, *args: Any, **kwargs: Any) -> None:
    """Say it at FATAL."""
    _logger.critical(msg, *args, **kwargs)


def log_if(level: int, msg: Any, condition: Any, *args: Any) -> None:
    """Say it if `condition`."""
    if condition:
        _logger.log(level, msg, *args)


def log_every_n(level: int, msg: Any, n: int, *args: Any) -> None:
    """Say it the first of each `n` times that the script comes by this line."""
    if _seen() % n == 0:
        _logger.log(level, msg, *args)


def log_first_n(level: int, msg: Any, n: int, *args: Any) -> None:
    """Say it the first `n` times that the script comes by this line."""
    if _seen() < n:
        _logger.log(level, msg, *args)


def _seen() -> int:
    """How often the script's line has been here before."""
    line = user_line()
    _counts[line] = _counts.get(line, -1) + 1
    return _counts[line]


def flush() -> None:
    """Write what is held back."""
    for handler in rank_logging.logger.handlers:
        handler.flush()


guard_module(globals(), __all__)
