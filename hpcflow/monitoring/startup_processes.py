"""Rank processes of this node before they join the job, and at its end.

A rank without a ledger is unknown to the other ranks. The process that runs the launcher finds such
ranks among its descendants, by the launcher's variables in their environment.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Container, Iterator
from pathlib import Path

from hpcflow.errors import LaunchError
from hpcflow.launch import launcher_detection
from hpcflow.monitoring.stack_dump import STOPPED, bytes_moved, process_state

LOOK_S = 0.5  # between two samples of the ranks' progress


class StartupProcesses:
    """Descendant processes that are ranks of this node and that no other rank watches.

    These are the ranks that have not joined the job yet, or, if created at its end, the ranks that
    are left.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()  # reports processes in the order in which they end
        self._watched: dict[int, tuple[int, int]] = {}  # descriptor -> rank, process
        self._seen_pids: set[int] = set()
        self._expected: int | None = None  # ranks on this node, if the launcher says
        self._is_whole = False  # all ranks are on this node
        self._moved: dict[int, tuple[int, int]] = {}  # process -> CPU ticks and bytes of I/O
        self._idle: dict[int, float] = {}  # process -> seconds without progress
        self._looked = 0.0

    def wait(self, seconds: float) -> list[tuple[int, int]]:
        """(rank, pid) of the ranks that end within `seconds`, in the order of their ends."""
        self._check_processes()
        gone = []
        for descriptor, _ in self._epoll.poll(seconds):
            gone.append(self._watched[descriptor])
            self._drop(descriptor)
        return gone

    def hung(self, seconds: float, stopped_alone: bool = False) -> list[tuple[int, int, str]]:
        """(rank, pid, reason) of the ranks that hang for `seconds`.

        A rank hangs if it is stopped. If all ranks are on this node and `stopped_alone` is False,
        ranks also hang when all of them sleep. A rank that waits for a slow rank does not hang.
        """
        self._look_for_movement()
        idle = [
            (rank, pid, process_state(pid))
            for rank, pid in self._watched.values()
            if self._idle.get(pid, 0.0) >= seconds
        ]
        stopped = [row for row in idle if row[2] == STOPPED]
        all_sleep = self._is_whole and len(idle) == len(self._watched)
        if not stopped and (stopped_alone or not all_sleep):
            return []
        return [(rank, pid, _movement_text(pid, letter)) for rank, pid, letter in stopped or idle]

    def _look_for_movement(self) -> None:
        """Update the idle times, by at most 2 * LOOK_S a sample.

        If this process did not run for longer, the ranks may not have run either.
        """
        now = time.monotonic()
        elapsed = min(now - self._looked, 2 * LOOK_S)
        if elapsed < LOOK_S:
            return
        self._looked = now
        for _, pid in self._watched.values():
            moved = _cpu_ticks(pid), bytes_moved(pid)
            is_idle = self._moved.get(pid) == moved and process_state(pid) != "R"
            self._idle[pid] = self._idle.get(pid, 0.0) + elapsed if is_idle else 0.0
            self._moved[pid] = moved

    def mark_joined(self, processes: Container[int]) -> bool:
        """`processes` have joined: stop watching them. Whether all ranks have joined."""
        for descriptor, (_, pid) in list(self._watched.items()):
            if pid in processes:
                self._drop(descriptor)
        return len(self._seen_pids) == self._expected and not self._watched

    def found_all(self) -> bool:
        """Whether all ranks of this node were found; True if the launcher does not say how many."""
        return self._expected is None or len(self._seen_pids) == self._expected

    def close(self) -> None:
        """Close the descriptors."""
        for descriptor in list(self._watched):
            self._drop(descriptor)
        self._epoll.close()

    def _drop(self, descriptor: int) -> None:
        self._epoll.unregister(descriptor)
        os.close(descriptor)
        del self._watched[descriptor]

    def _check_processes(self) -> None:
        if len(self._seen_pids) == self._expected:
            return
        for place, pid in _ranks_below(os.getpid()):
            if pid in self._seen_pids:
                continue
            with contextlib.suppress(OSError):  # it has just ended
                descriptor = os.pidfd_open(pid)
                self._watched[descriptor] = place.rank, pid
                self._epoll.register(descriptor, select.EPOLLIN)
                self._seen_pids.add(pid)
                self._expected = place.local_size
                self._is_whole = place.local_size == place.size


def _movement_text(pid: int, letter: str) -> str:
    """Why a starting rank makes no progress."""
    if letter == STOPPED:
        return f"is stopped (T; kill -CONT {pid} lets it go on)"
    if letter == "D":
        return "waits for a disk or a file system (D)"
    return f"does not move ({letter})"


def _cpu_ticks(pid: int) -> int:
    """CPU time of a process in clock ticks; 0 if unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


def _ranks_below(pid: int) -> Iterator[tuple[launcher_detection.LaunchedRank, int]]:
    """The ranks among the descendants of a process, without the descendants of ranks."""
    for child in _children(pid):
        place = _rank_of_process(child)
        if place is not None:
            yield place, child
        else:
            yield from _ranks_below(child)


def _children(pid: int) -> list[int]:
    children: list[int] = []
    with contextlib.suppress(OSError):  # the process has ended
        for file in Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # the thread has ended
                children += map(int, file.read_text().split())
    return children


def _rank_of_process(pid: int) -> launcher_detection.LaunchedRank | None:
    """The rank of a process, from its environment; None if it is not a rank."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
        return launcher_detection.detect_launcher(
            dict(word.split("=", 1) for word in words if "=" in word)
        )
    except (OSError, LaunchError):
        return None
