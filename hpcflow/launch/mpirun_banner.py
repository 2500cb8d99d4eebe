"""Open MPI's banners about an aborted job, left out of the output of mpirun.

Ranks and `hpcflow run` say why the job ended; mpirun adds that a rank called MPI_ABORT or exited,
and that it could not reach a rank that has ended.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import threading
from typing import IO

READ_BYTES = 1 << 16  # bytes read at once
LET_OUTPUT_END_S = 2.0  # for the output of mpirun after its end
RULE = re.compile(rb"-{60,}\r?\n")
OPENING = re.compile(
    rb"MPI_ABORT was invoked on rank |(prterun|mpirun) (has exited due to process rank |"
    rb"noticed that process rank |detected that one or more processes exited with non-zero )"
)
GONE = re.compile(rb"\[[^\]\s]+:\d+\] PMIX ERROR: PMIX_ERR_UNREACH in file \S+ at line \d+\r?\n")
LINES = re.compile(  # of a banner, after the first
    rb"\s*$|  Proc: \[|  Errorcode: |with errorcode \d|NOTE: invoking MPI_ABORT causes |"
    rb"You may or may not see output from other |exactly when Open MPI kills them|"
    rb"\"abort\"\. This may have caused other |terminated by signals sent by (prterun|mpirun) |"
    rb"thus causing the job to be terminated\. The first |   Process name: \[|   Exit code: |"
    rb"exited on signal \d"
)


class BannerFilter:
    """Leaves out the lines of banners; all other bytes pass, also lines within a banner."""

    def __init__(self) -> None:
        self._held = b""  # the beginning of what may be a banner
        self._in_banner = False
        self._within_line = False  # the last line that passed has not ended

    def feed(self, data: bytes) -> bytes:
        """What to print of further output."""
        passed = []
        *lines, rest = (self._held + data).split(b"\n")
        self._held, rule = b"", b""
        for line in (text + b"\n" for text in lines):
            if self._within_line:
                passed.append(line)
                self._within_line = False
            elif GONE.fullmatch(line):
                passed.append(rule)
                rule = b""
            elif self._in_banner:
                self._in_banner = RULE.fullmatch(line) is None
                if self._in_banner and not (LINES.match(line) or OPENING.match(line)):
                    passed.append(line)
            elif rule and OPENING.match(line):
                self._in_banner, rule = True, b""
            elif RULE.fullmatch(line):
                passed.append(rule)
                rule = line
            else:
                passed += [rule, line]
                rule = b""
        may_begin = self._in_banner or rule or set(rest) <= set(b"-")
        if rest and (self._within_line or not may_begin):
            passed.append(rest)
            self._within_line = True
        else:
            self._held = rule + rest
        return b"".join(passed)

    def end(self) -> bytes:
        """What was held at the end of the output."""
        return self._held


def pipes_without_banners() -> tuple[int | None, int]:
    """The stdout and stderr of mpirun, of which the last is to be copied without banners.

    Where both of this process are one file they share a pipe, which keeps their order.
    """
    with contextlib.suppress(OSError):  # one of the two is closed
        if os.path.sameopenfile(1, 2):
            return subprocess.PIPE, subprocess.STDOUT
    return None, subprocess.PIPE


def copy_without_banners(pipe: IO[bytes] | None, to: int = 2) -> threading.Thread:
    """Copy a pipe to a file descriptor in a thread, without banners, until it ends."""
    assert pipe is not None

    def copy() -> None:
        kept = BannerFilter()
        while data := os.read(pipe.fileno(), READ_BYTES):
            _write(to, kept.feed(data))
        _write(to, kept.end())

    thread = threading.Thread(target=copy, daemon=True)
    thread.start()
    return thread


def _write(to: int, data: bytes) -> None:
    """Write all of it."""
    while data:
        data = data[os.write(to, data) :]
