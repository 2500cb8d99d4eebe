"""Stack dumps: the line of the main thread, and /proc facts about a process that does not respond.

A process reports its own line. About other processes only /proc can be read.
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

OPS = "__ops__"  # global of generated code: the operation of each line
PACKAGE = str(Path(__file__).resolve().parents[1])
LIBRARY_FOLDERS = (
    PACKAGE,
    *{p for p in map(os.path.dirname, (os.__file__, threading.__file__)) if p},
)
INSTALLED = ("/site-packages/", "/dist-packages/")  # also those of a virtual environment
LEAST_BYTES = 1 << 20  # between two samples; less is not saving or loading
STOPPED, DEBUGGED, DEAD = "T", "t", "ZX?"  # values of process_state


def main_op() -> str:
    """The operation of a step that the main thread runs; "" if it runs none."""
    frame = _main_frame()
    while frame is not None:
        names = frame.f_globals.get(OPS, ())
        at = (frame.f_lineno or 0) - 1  # f_lineno is None between two lines
        if 0 <= at < len(names) and names[at]:
            return names[at]
        frame = frame.f_back
    return ""


def main_line() -> str:
    """Position of the main thread: `train.py:21 in load > INNER`.

    The first part is the innermost line of user code, if there is one; INNER is the operation that
    runs, or the innermost line.
    """
    frame = user_frame = _main_frame()
    if frame is None:
        return "its end"
    while user_frame is not None and _is_ours(user_frame):
        user_frame = user_frame.f_back
    op = main_op()
    inner = f"op '{op}'" if op else _line(frame)
    if user_frame is None or _line(user_frame) == inner:
        return inner
    return f"{_line(user_frame)} > {inner}"


def _main_frame() -> FrameType | None:
    return sys._current_frames().get(threading.main_thread().ident or 0)


TYPED = ("<stdin", "<dynamic-code>", "<ipython-input")  # code of users without a file


def raised_at(error: BaseException) -> str:
    """The innermost line of user code in the traceback of an error; "" if there is none."""
    position, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not _is_ours(trace.tb_frame):
            position = f"{file}:{trace.tb_lineno}"
        trace = trace.tb_next
    return position


def is_library_file(file: str) -> bool:
    """Whether code of this file belongs to hpcflow, generated code or an installed library."""
    installed = any(name in file for name in INSTALLED)
    return (installed or file.startswith((*LIBRARY_FOLDERS, "<"))) and not file.startswith(TYPED)


def _is_ours(frame: FrameType) -> bool:
    return is_library_file(frame.f_code.co_filename)


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
    """The state letter of a local process in /proc (R, S, D, T ...); ? if unknown.

    `t` is a process that a debugger has stopped or traces.
    """
    try:
        with open(f"/proc/{pid}/stat") as file:
            letter = file.read().rpartition(")")[2].split()[0]
        return DEBUGGED if letter != STOPPED and _tracer(pid) else letter
    except OSError:
        return "?"


def _tracer(pid: int) -> int:
    with open(f"/proc/{pid}/status") as file:
        tracer_line = next((line for line in file if line.startswith("TracerPid:")), "TracerPid: 0")
    return int(tracer_line.split()[1])


def bytes_moved(pid: int) -> int:
    """Bytes that a local process has read and written by system calls; 0 if unknown."""
    try:
        with open(f"/proc/{pid}/io") as file:
            rows = dict(line.split(": ") for line in file.read().splitlines())
        return int(rows["rchar"]) + int(rows["wchar"])
    except (OSError, KeyError, ValueError):
        return 0


class ProgressFiles:
    """When processes of this node last read or wrote files, as when they save a checkpoint.

    Their interpreters need not run. A hung process moves almost no bytes between two samples;
    messages over TCP may count as well.
    """

    def __init__(self) -> None:
        self._bytes: dict[int, tuple[int, float]] = {}  # process -> its bytes, time of the last I/O

    def last_io_time(self, pid: int) -> float:
        """Time of the last I/O seen, wall clock; 0 if none."""
        now = bytes_moved(pid)
        before, when = self._bytes.get(pid, (now, 0.0))
        if now - before >= LEAST_BYTES:
            when = time.time()
        self._bytes[pid] = now, when
        return when


def why_silent(pid: int, letter: str) -> str:
    """Why an interpreter does not run, from the state of its process."""
    if letter in DEAD:
        return f"process {pid} is dead"
    if letter == STOPPED:
        return f"process {pid} is stopped (T; kill -CONT {pid} lets it go on)"
    if letter == "D":
        return f"process {pid} waits for a disk or a file system (D)"
    runs = "computes" if letter == "R" else "waits"
    return f"process {pid} {runs} in a call that keeps the GIL ({letter})"
