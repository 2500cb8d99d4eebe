"""What each rank waits for, in small files that every rank of the node maps and may read.

One file per rank, `rank-NNNNNN`, of RECORD_BYTES in native byte order:

    0    8  sequence    odd while the record is being written
    8    8  rank
    16   8  pid
    24   8  step
    32   8  peer        the rank waited for, -1 for any or all
    40   8  since       wall-clock seconds as a float; 0: waits for nothing
    48   8  heartbeat   wall-clock seconds; when the rank's interpreter was last seen to run
    56   8  ending      1 once the rank has said why it ends
    64  16  kind        recv, send, collective, queue, token, inside ...
    80  112 op          name of the operation, cut to fit
    192 64  host
    256 64  task        /job:worker/task:3, as users count
"""

from __future__ import annotations

import contextlib
import dataclasses
import mmap
import os
import pathlib
import shutil
import stat
import struct
import tempfile
import time

from hpcflow.errors import CommError

RECORD_BYTES = 320
INSIDE = "inside"  # the kind of a rank that is busy in an op, a host function say: never a stall
PATIENT = "queue"  # of one that waits for what other steps do, as long as it takes: never a stall
_RECORD = struct.Struct("=Qqqqqddq16s112s64s64s")
_KIND, _OP = slice(64, 80), slice(80, 192)
_SEQUENCE, _STEP, _PEER = 0, 3, 4  # as eight-byte words
_SINCE, _HEARTBEAT, _ENDING = 5, 6, 7
PREFIX = "hpcflow-ledger-"  # of the names of directories
DEAD_S = 300.0  # a job with no heartbeat for so long may be dead
ATTEMPTS = 100  # readings of a record that is being written


@dataclasses.dataclass(frozen=True)
class Entry:
    """One rank's record, as read."""

    rank: int
    pid: int
    host: str
    step: int
    op: str
    kind: str
    peer: int
    since: float  # wall clock; 0 where the rank waits for nothing
    heartbeat: float
    ending: bool = False  # it has said why it ends
    task: str = ""

    @property
    def name(self) -> str:
        """`rank 3 (/job:ps/task:0)`, as reports call it."""
        return f"rank {self.rank} ({self.task})" if self.task else f"rank {self.rank}"

    @property
    def may_stall(self) -> bool:
        """Whether it is a wait that should end soon."""
        return self.waits and self.kind != PATIENT

    @property
    def waits(self) -> bool:
        """Whether the rank waits for others; being busy inside an op is no wait."""
        return self.since > 0 and self.kind != INSIDE


class Ledger:
    """This rank's record; `enter` when a wait's first poll failed, `leave` when it is over.

    `directory` belongs to this run alone, and is best in memory (/dev/shm or a local disk).
    """

    def __init__(
        self, directory: str | os.PathLike[str], rank: int, host: str, task: str = ""
    ) -> None:
        self.directory, self.rank, self.host = pathlib.Path(directory), rank, host
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_ours(self.directory):
            raise CommError(
                f"{self.directory} is not this user's own folder",
                rank=rank,
                hint="someone else has put it there: remove it, or ask who did",
            )
        path = self.directory / f"rank-{rank:06d}"
        record = _RECORD.pack(
            *(0, rank, os.getpid(), -1, -1, 0.0, time.time(), 0),
            *(b"", b"", host.encode()[:64], task.encode()[:64]),
        )
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        try:
            os.write(fd, record)
            self._map = mmap.mmap(fd, RECORD_BYTES)
        finally:
            os.close(fd)
        self._memory = memoryview(self._map)
        self._words, self._times = self._memory.cast("q"), self._memory.cast("d")
        self._names: dict[str, bytes] = {}

    def enter(self, step: int, op: str, peer: int = -1, kind: str = "recv") -> None:
        """Write down that this rank waits in `op` for `peer` (-1: any or all) from now on."""
        names, words, times = self._names, self._words, self._times
        if op not in names or kind not in names:
            names.setdefault(op, op.encode()[:112].ljust(112, b"\0"))
            names.setdefault(kind, kind.encode()[:112].ljust(112, b"\0"))
        now = time.time()
        words[_SEQUENCE] += 1
        words[_STEP], words[_PEER] = step, peer
        times[_SINCE] = times[_HEARTBEAT] = now
        self._memory[_KIND], self._memory[_OP] = names[kind][:16], names[op]
        words[_SEQUENCE] += 1

    def leave(self) -> None:
        """The wait is over."""
        self._words[_SEQUENCE] += 1
        self._times[_SINCE] = 0.0
        self._words[_SEQUENCE] += 1

    def beat(self) -> None:
        """The interpreter runs; called by the watchdog, so that one that does not is seen."""
        self._times[_HEARTBEAT] = time.time()

    def ends(self) -> None:
        """This rank has said why it ends: its death is no news."""
        self._words[_ENDING] = 1

    def read(self) -> Entry | None:
        """This rank's own record; None in the rare case that each reading met a writer."""
        return _decode(self._memory)

    def close(self) -> None:
        """Unmap and remove the file; a second call does nothing."""
        if self._map.closed:
            return
        for view in (self._words, self._times, self._memory):
            view.release()
        self._map.close()
        (self.directory / f"rank-{self.rank:06d}").unlink(missing_ok=True)


def read_all(directory: str | os.PathLike[str]) -> list[Entry]:
    """The records of all ranks in `directory`, by rank; those that cannot be read are left out."""
    paths = sorted(pathlib.Path(directory).glob("rank-*"))
    return [entry for path in paths if (entry := read_one(path)) is not None]


def read_one(path: pathlib.Path) -> Entry | None:
    """The record in a file; None if it is gone, or not yet written."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        with mmap.mmap(fd, RECORD_BYTES, access=mmap.ACCESS_READ) as record:
            return _decode(record)
    except (OSError, ValueError):
        return None
    finally:
        os.close(fd)


def is_ours(directory: str | os.PathLike[str]) -> bool:
    """Whether it is a folder, no link, that this user made and nobody else may write into."""
    try:
        facts = os.lstat(directory)
    except OSError:
        return False
    return (
        stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid() and not facts.st_mode & 0o022
    )


def of_user(base: str | os.PathLike[str]) -> list[pathlib.Path]:
    """The folders of ledgers in `base` that are this user's: what others put there is not read."""
    return [path for path in pathlib.Path(base).glob(PREFIX + "*") if is_ours(path)]


def first(mark: pathlib.Path) -> bool:
    """Whether this rank is the first to make `mark`, as all of a node tend to do at once."""
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:  # a full disk: everyone speaks
        return True
    return True


def remove(directory: pathlib.Path) -> None:
    """Remove the directory of a job that has ended in order, if this is its last rank here."""
    if not any(directory.glob("rank-*")):
        shutil.rmtree(directory, ignore_errors=True)


def base() -> str:
    """The folder of the ledgers of all jobs, best in memory."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()


def sweep(base: str | os.PathLike[str], host: str) -> None:
    """Remove from `base` the ledgers of jobs on `host` that died without closing them.

    Dead is whose processes are gone and whose heartbeats are old: neither alone tells, as process
    numbers are used again and another container's are not seen.
    """
    old = time.time() - DEAD_S
    for directory in of_user(base):
        with contextlib.suppress(OSError):  # another rank was first
            left = read_all(directory)
            dead = all(e.host == host and e.heartbeat < old and not alive(e.pid) for e in left)
            if dead and directory.stat().st_mtime < old:
                shutil.rmtree(directory, ignore_errors=True)


def alive(pid: int) -> bool:
    """Whether there is such a process here, of whatever user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _decode(memory: memoryview | mmap.mmap) -> Entry | None:
    """The record, or None where every reading met a writer."""
    for _ in range(ATTEMPTS):
        data = bytes(memory[:RECORD_BYTES])
        (again,) = struct.unpack_from("=Q", memory)
        sequence, rank, pid, step, peer, since, heartbeat, ending, *texts = _RECORD.unpack(data)
        if sequence == again and not sequence % 2:
            kind, op, host, task = (t.rstrip(b"\0").decode(errors="replace") for t in texts)
            return Entry(
                *(rank, pid, host, step, op, kind, peer, since, heartbeat, bool(ending), task)
            )
        time.sleep(1e-5)
    return None
