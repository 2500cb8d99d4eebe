"""Terminal output of subcommands: control characters in names and texts are escaped."""

from __future__ import annotations

import argparse
import os
import sys
from typing import IO, Any

from hpcflow.errors import HpcflowError
from hpcflow.platform.terminal_escaping import escape_text

UNWRITTEN = 1  # exit code if stdout cannot be written, or its reader has closed it (`| head`)


def out(text: str = "", end: str = "\n") -> None:
    """Print results to stdout. Exits with `UNWRITTEN` if they cannot be written."""
    if sys.stdout is None:  # started with `>&-`
        err("hpcflow: stdout is closed")
        raise SystemExit(UNWRITTEN)
    _write(sys.stdout, text + end)


def clear_screen() -> None:
    """Clear the terminal that stdout is, and go to its first line."""
    stream = sys.stdout
    stream.write("\x1b[H\x1b[J")


def err(text: str) -> None:
    """Print errors and progress to stderr, if it is open."""
    if sys.stderr is not None:
        _write(sys.stderr, text + "\n")


def error_text(error: Exception, typed: bool = False) -> str:
    """The text of an error, `typed` after its type.

    That of an error of the system names its files and the reason, without its number and type.
    """
    if isinstance(error, HpcflowError) or not isinstance(error, OSError) or not error.strerror:
        return f"{type(error).__name__}: {error}" if typed else str(error)
    names = [os.fsdecode(name) for name in (error.filename, error.filename2)
             if isinstance(name, str | bytes)]  # fmt: skip
    return f"{' and '.join(names)}: {error.strerror}" if names else error.strerror


class EscapingParser(argparse.ArgumentParser):
    """An argument parser whose messages are escaped, since they repeat the command line."""

    def _print_message(self, message: str, file: Any = None) -> None:
        stream = file or sys.stderr
        if stream is not None:  # None: started with `2>&-`
            _write(stream, message)


def _write(stream: IO[str], text: str) -> None:
    """Write and flush; characters that the encoding lacks are escaped."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    text = escape_text(text).encode(encoding, "backslashreplace").decode(encoding)
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # discards unwritten output
        if stream is not sys.stderr and not isinstance(error, BrokenPipeError):
            err(f"hpcflow: stdout cannot be written: {error.strerror}")
        raise SystemExit(UNWRITTEN) from None
