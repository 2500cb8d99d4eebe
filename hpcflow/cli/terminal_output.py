"""Terminal output of subcommands: control characters in names and texts are escaped."""

from __future__ import annotations

import argparse
import os
import sys
from typing import IO, Any

from hpcflow.platform.terminal_escaping import escape_text

BROKEN_PIPE = 1  # exit code if the reader has closed the pipe, as with `| head`


def out(text: str = "", end: str = "\n") -> None:
    """Print results to stdout."""
    _write(sys.stdout, text + end)


def clear_screen() -> None:
    """Clear the terminal that stdout is, and go to its first line."""
    stream = sys.stdout
    stream.write("\x1b[H\x1b[J")


def err(text: str) -> None:
    """Print errors and progress to stderr."""
    _write(sys.stderr, text + "\n")


class EscapingParser(argparse.ArgumentParser):
    """An argument parser whose messages are escaped, since they repeat the command line."""

    def _print_message(self, message: str, file: Any = None) -> None:
        _write(file or sys.stderr, message)


def _write(stream: IO[str], text: str) -> None:
    """Write and flush; characters that the encoding lacks are escaped."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    text = escape_text(text).encode(encoding, "backslashreplace").decode(encoding)
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # discards unwritten output
        raise SystemExit(BROKEN_PIPE) from None
