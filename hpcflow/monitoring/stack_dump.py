"""Where a process is: the line of its main thread, and what the kernel tells of one that is silent.

A process tells its own line; of another one /proc is all that can be read.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import FrameType

OPS = "__ops__"  # in the globals of generated code: the operation of each of its lines
PACKAGE = str(Path(__file__).resolve().parents[1])
OTHERS = (PACKAGE, *{p for p in map(os.path.dirname, (os.__file__, threading.__file__)) if p})
LEAST_BYTES = 1 << 20  # between two looks; less is no saving or loading
STOPPED, DEBUGGED, DEAD = "T", "t", "ZX?"  # letters of process_state


def main_op() -> str:
    """The operation of a step that the main thread runs; "" where it runs none."""
    frame = _main_frame()
    while frame is not None:
        names = frame.f_globals.get(OPS, ())
        at = (frame.f_lineno or 0) - 1  # between two lines a running frame has none
        if 0 <= at < len(names) and names[at]:
            return names[at]
        frame = frame.f_back
    return ""


def main_line() -> str:
    """Where the main thread is: `train.py:21 in load`, and behind `>` the operation, or our line.

    The first is the user's own innermost line, if one is running.
    """
    frame = theirs = _main_frame()
    if frame is None:
        return "its end"
    while theirs is not None and _is_ours(theirs):
        theirs = theirs.f_back
    op = main_op()
    inner = f"op '{op}'" if op else _line(frame)
    if theirs is None or _line(theirs) == inner:
        return inner
    return f"{_line(theirs)} > {inner}"


def _main_frame() -> FrameType | None:
    return sys._current_frames().get(threading.main_thread().ident or 0)


def raised_at(error: BaseException) -> str:
    """The user's own innermost line in the traceback of an error; "" if there is none."""
    found, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not _is_ours(trace.tb_frame):
            found = f"{file}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def _is_ours(frame: FrameType) -> bool:
    """Whether it is a frame of hpcflow, of generated code or of an installed library."""
    file = frame.f_code.co_filename
    return file.startswith((*OTHERS, "<")) and not file.startswith("<stdin")


def _line(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_filename}:{frame.f_lineno or code.co_firstlineno} in {code.co_name}"


def own_stacks() -> str:
    """The stacks of all threads of this process."""
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file=file)
        file.seek(0)
        return file.read().decode(errors="replace")


def process_state(pid: int) -> str:
    """The letter by which Linux tells the state of a process here: R, S, D, T ...; ? if unknown.

    `t` is one that a debugger holds, or follows.
    """
    try:
        with open(f"/proc/{pid}/stat") as file:
            letter = file.read().rpartition(")")[2].split()[0]
        return DEBUGGED if letter != STOPPED and _tracer(pid) else letter
    except OSError:
        return "?"


def _tracer(pid: int) -> int:
    with open(f"/proc/{pid}/status") as file:
        found = next((line for line in file if line.startswith("TracerPid:")), "TracerPid: 0")
    return int(found.split()[1])


def bytes_moved(pid: int) -> int:
    """What a process here has read and written by system calls, in bytes; 0 if unknown."""
    try:
        with open(f"/proc/{pid}/io") as file:
            rows = dict(line.split(": ") for line in file.read().splitlines())
        return int(rows["rchar"]) + int(rows["wchar"])
    except (OSError, KeyError, ValueError):
        return 0


class Files:
    """When processes of this node were last seen to read or write files, as when they save.

    Their own interpreters need not run. A process that hangs moves next to nothing between two
    looks; messages over TCP may count as well.
    """

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, float]] = {}  # process: its bytes, and when it moved some

    def moved(self, pid: int) -> float:
        """Wall clock; 0 if it was not seen to."""
        now = bytes_moved(pid)
        before, when = self._seen.get(pid, (now, 0.0))
        if now - before >= LEAST_BYTES:
            when = time.time()
        self._seen[pid] = now, when
        return when


def why_silent(pid: int, letter: str) -> str:
    """Why an interpreter does not run, by the state of its process."""
    if letter in DEAD:
        return f"process {pid} is dead"
    if letter == STOPPED:
        return f"process {pid} is stopped (T; kill -CONT {pid} lets it go on)"
    if letter == "D":
        return f"process {pid} waits for a disk or a file system (D)"
    runs = "computes" if letter == "R" else "waits"
    return f"process {pid} {runs} in a call that keeps the GIL ({letter})"
