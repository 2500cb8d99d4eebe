"""All that subcommands print: names and texts of files cannot steer the terminal."""

from __future__ import annotations

import argparse
import os
import sys
from typing import IO, Any

from hpcflow.platform.terminal_escaping import printable

BROKEN_PIPE = 1  # exit code where nobody reads on, as behind `| head`


def out(text: str = "", end: str = "\n") -> None:
    """Print what was asked for."""
    _write(sys.stdout, text + end)


def err(text: str) -> None:
    """Print what went wrong, or goes on."""
    _write(sys.stderr, text + "\n")


class Parser(argparse.ArgumentParser):
    """One whose messages, which repeat words of the command line, are printed in the same way."""

    def _print_message(self, message: str, file: Any = None) -> None:
        _write(file or sys.stderr, message)


def _write(stream: IO[str], text: str) -> None:
    """Write at once; what the stream's encoding has no letter for is written out."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    text = printable(text).encode(encoding, "backslashreplace").decode(encoding)
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # what is left goes there
        raise SystemExit(BROKEN_PIPE) from None
