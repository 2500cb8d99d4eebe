"""Logging `hf.logging`: the script's log messages by TensorFlow 1's names, on hpcflow's logger.

Rank 0 prints messages of at least the level of `set_verbosity` (default WARN). Every rank prints
warnings and errors. Equal lines of several ranks are merged (`hpcflow/platform/rank_logging.py`).
"""

from __future__ import annotations

import logging
import sys
from typing import Any

from hpcflow.platform import rank_logging
from hpcflow.platform.exception_translation import translate_module, user_line

DEBUG, INFO, WARN = logging.DEBUG, logging.INFO, logging.WARNING
ERROR, FATAL = logging.ERROR, logging.CRITICAL

__all__ = [
    *("debug", "error", "fatal", "flush", "get_verbosity", "info", "log", "log_every_n"),
    *("log_first_n", "log_if", "set_verbosity", "vlog", "warn", "warning"),
]


class _EarlyHandler(logging.Handler):
    """Prints messages logged before the first session, when ranks are not yet known."""

    def emit(self, record: logging.LogRecord) -> None:
        if not rank_logging.logger.handlers and not logging.root.handlers:
            print(f"hpcflow {record.getMessage()}", file=sys.stderr)


_logger = logging.getLogger("hpcflow.script")
_logger.setLevel(WARN)
_logger.addHandler(_EarlyHandler())
_counts: dict[str, int] = {}  # number of calls from each line of the script


def set_verbosity(v: int) -> None:
    """Set the least level that is printed: one of DEBUG, INFO, WARN, ERROR, FATAL."""
    _logger.setLevel(v)


def get_verbosity() -> int:
    """The level given to `set_verbosity`."""
    return _logger.level


def log(level: int, msg: Any, *args: Any, **kwargs: Any) -> None:
    """Log `msg % args` at `level`."""
    _logger.log(level, msg, *args, **kwargs)


def vlog(level: int, msg: Any, *args: Any, **kwargs: Any) -> None:
    """The same as `log`."""
    _logger.log(level, msg, *args, **kwargs)


def debug(msg: Any, *args: Any, **kwargs: Any) -> None:
    """Log at DEBUG."""
    _logger.debug(msg, *args, **kwargs)


def info(msg: Any, *args: Any, **kwargs: Any) -> None:
    """Log at INFO."""
    _logger.info(msg, *args, **kwargs)


def warn(msg: Any, *args: Any, **kwargs: Any) -> None:
    """Log at WARN."""
    _logger.warning(msg, *args, **kwargs)


warning = warn


def error(msg: Any, *args: Any, **kwargs: Any) -> None:
    """Log at ERROR."""
    _logger.error(msg, *args, **kwargs)


def fatal(msg: Any, *args: Any, **kwargs: Any) -> None:
    """Log at FATAL."""
    _logger.critical(msg, *args, **kwargs)


def log_if(level: int, msg: Any, condition: Any, *args: Any) -> None:
    """Log if `condition` is true."""
    if condition:
        _logger.log(level, msg, *args)


def log_every_n(level: int, msg: Any, n: int, *args: Any) -> None:
    """Log the first of every `n` calls from this line of the script."""
    if _count_call() % n == 0:
        _logger.log(level, msg, *args)


def log_first_n(level: int, msg: Any, n: int, *args: Any) -> None:
    """Log the first `n` calls from this line of the script."""
    if _count_call() < n:
        _logger.log(level, msg, *args)


def _count_call() -> int:
    """The number of earlier calls from the script's current line."""
    line = user_line()
    _counts[line] = _counts.get(line, -1) + 1
    return _counts[line]


def flush() -> None:
    """Flush the handlers."""
    for handler in rank_logging.logger.handlers:
        handler.flush()


translate_module(globals(), __all__)
