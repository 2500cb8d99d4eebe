"""Terminal detection: the terminal that the user sees, the stream's own or the launcher's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TextIO

# of Open MPI: they give ranks their own pseudo-terminals, even when they write to a log
FORWARDERS = ("mpirun", "mpiexec", "prterun", "orterun", "prted", "orted")


def progress_stream(stream: TextIO) -> TextIO | None:
    """The stream on which a progress bar can be drawn; None in a job's log.

    Open MPI forwards whole lines only, so a bar on a rank's terminal would appear only at its end.
    It is drawn on the launcher's terminal, if the launcher is on this node and has one.
    """
    if not stream.isatty():
        return None
    try:
        launcher = _launcher(os.fstat(stream.fileno()).st_rdev)
        return stream if launcher is None else _terminal(f"/proc/{launcher}/fd/1")
    except (OSError, ValueError):  # a process of another user, or no /proc
        return stream if os.get_terminal_size(stream.fileno()).columns else None


def _launcher(terminal: int) -> int | None:
    """The launcher that made the terminal `terminal`: the first ancestor with another stdout."""
    process = os.getppid()
    while process > 0:
        if os.stat(f"/proc/{process}/fd/1").st_rdev != terminal:
            name = Path(f"/proc/{process}/comm").read_text().strip()
            return process if name in FORWARDERS else None
        process = _parent(process)
    return None


def _parent(process: int) -> int:
    """The parent's PID; the process name before it may hold spaces and brackets."""
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def _terminal(path: str) -> TextIO | None:
    if not os.stat(path).st_rdev:  # a file or a pipe
        return None
    stream = open(os.open(path, os.O_WRONLY | os.O_NOCTTY), "w", encoding="utf-8")
    if stream.isatty():
        return stream
    stream.close()  # /dev/null
    return None
