"""A bar goes to the terminal that is watched, past a launcher that forwards whole lines."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

RANK = """
import sys
from hpcflow.platform.terminal_detection import progress_stream
terminal = progress_stream(sys.stdout)
if terminal is None:
    print("no one watches")
else:
    print("a bar", end="", flush=True, file=terminal)
    terminal.close()
"""
LAUNCHER = """
import os, pty, subprocess, sys
with open("/proc/self/comm", "w") as name:
    name.write(sys.argv.pop(1))
mine, of_rank = pty.openpty()
subprocess.run(sys.argv[1:], stdout=of_rank, check=True)
os.close(of_rank)
told = b""
while not told.endswith(b"\\n"):  # whole lines, or nothing
    try:
        told += os.read(mine, 1000)
    except OSError:
        break
if told.endswith(b"\\n"):
    os.write(1, b"forwarded: " + told)
"""
RANKS = [
    pytest.param([sys.executable, "-c", RANK], id="python"),
    pytest.param(["sh", "-c", '"$@"; true', "sh", sys.executable, "-c", RANK], id="shell"),
]


def launched(rank: list[str], stdout: int, name: str = "prterun") -> None:
    program = [sys.executable, "-c", LAUNCHER, name, *rank]
    subprocess.run(program, stdout=stdout, check=True, timeout=220)


@pytest.mark.parametrize("rank", RANKS)
def test_a_launchers_terminal_is_written_to(rank: list[str]) -> None:
    ours, theirs = pty.openpty()
    launched(rank, theirs)
    assert os.read(ours, 100) == b"a bar"
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize("rank", RANKS)
def test_who_made_the_terminal_and_is_no_launcher_is_not_written_to(rank: list[str]) -> None:
    ours, theirs = pty.openpty()
    launched(rank, theirs, name="tmux: server")
    os.close(theirs)
    with pytest.raises(OSError):  # nothing, until the end
        os.read(ours, 100)
    os.close(ours)


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("log", ["file", "/dev/null"])
def test_a_launchers_log_is_no_terminal(rank: list[str], log: str, tmp_path: Path) -> None:
    path = tmp_path / "log" if log == "file" else Path(log)
    with open(path, "w") as stream:
        launched(rank, stream.fileno())
    if log == "file":
        assert path.read_text().split() == "forwarded: no one watches".split()


@pytest.mark.parametrize("rank", RANKS)
def test_a_pipe_is_no_terminal(rank: list[str]) -> None:
    ours, theirs = os.pipe()
    launched(rank, theirs)
    assert b"no one watches" in os.read(ours, 100)
    os.close(ours)
    os.close(theirs)
