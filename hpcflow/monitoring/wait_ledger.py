"""Wait ledger: what each rank waits for, in small files that every rank of the node can map.

One file per rank, `rank-NNNNNN`, of RECORD_BYTES in native byte order:

    0    8  sequence    odd while the record is being written
    8    8  rank
    16   8  pid
    24   8  step
    32   8  peer        the rank waited for; -1 any or all; -2 another step of this rank
    40   8  since       start of the wait, wall-clock seconds as a float; 0: no wait
    48   8  heartbeat   wall-clock seconds; when the rank's interpreter was last seen to run
    56   8  ending      1 once the rank has reported why it ends
    64   8  moved       wall-clock seconds; when its program was last seen to move, if checked
    72   8  place       task index in its replica, equal in ranks of one collective; -1: server
    80   8  lines       odd while another thread writes `line`
    88   8  process     state letter of /proc, in copies for other nodes
    96  16  kind        Recv, AllReduce, request, call, queue, inside ...
    112 144 op          name of the operation, newline, the user's line, truncated
    256 64  host
    320 64  task        /job:worker/task:3, in the user's numbering
    384 256 line        position of the main thread at the last heartbeat; start truncated
    640  8  trained     training steps of the rank at the last heartbeat
"""

from __future__ import annotations

import contextlib
import dataclasses
import mmap
import os
import pathlib
import shutil
import struct
import tempfile
import time

from hpcflow.errors import CommError
from hpcflow.platform.private_files import is_own_folder

RECORD_BYTES = 648
ANY, OWN = -1, -2  # values of peer: any or all ranks; a step of this rank
INSIDE = "inside"  # kind: busy inside an op, such as a host function; never a stall
REQUEST = "request"  # kind: a wait outside steps
CALL = "call"  # kind: inside a library call that cannot be polled
PATIENT = "queue"  # kind: waits for other steps without limit; never a stall
_RECORD = struct.Struct("=QqqqqddqdqQ8s16s144s64s64s256sq")
_PROCESS, _KIND, _OP, _LINE = slice(88, 96), slice(96, 112), slice(112, 256), slice(384, 640)
_SEQUENCE, _STEP, _PEER = 0, 3, 4  # indices of eight-byte words
_SINCE, _HEARTBEAT, _ENDING, _MOVED, _LINES, _TRAINED = 5, 6, 7, 8, 10, 80
PREFIX = "hpcflow-ledger-"  # of directory names
DEAD_S = 300.0  # a job without a heartbeat for this long may be dead
ATTEMPTS = 100  # reads of a record that is being written


@dataclasses.dataclass(frozen=True)
class LedgerEntry:
    """A decoded record of one rank."""

    rank: int
    pid: int
    host: str
    step: int
    op: str
    kind: str
    peer: int
    since: float  # wall clock; 0: no wait
    heartbeat: float
    ending: bool = False  # it has reported why it ends
    moved: float = 0.0
    task_index: int = 0
    process: str = ""  # state letter; "": read /proc
    task: str = ""
    line: str = ""  # position of its main thread at the last heartbeat
    created_at: str = ""  # the user's line that created the operation
    trained: int = 0  # steps, at the last heartbeat

    @property
    def name(self) -> str:
        """`rank 3 (/job:ps/task:0)`, as in reports."""
        return f"rank {self.rank} ({self.task})" if self.task else f"rank {self.rank}"

    @property
    def may_stall(self) -> bool:
        """Whether it waits, and the wait should end soon."""
        return self.waits and self.kind != PATIENT

    @property
    def is_server(self) -> bool:
        """Whether it is a parameter server."""
        return self.task_index < 0

    @property
    def description(self) -> str:
        """The operation that it waits in: `AllReduce 'grads' (made at train.py:9) at step 7`."""
        origin = f" (made at {self.created_at})" if self.created_at else ""
        step = f" at step {self.step}" if self.step > 0 else ""
        return f"{self.kind} '{self.op}'{origin}{step}"

    @property
    def waits(self) -> bool:
        """Whether the rank waits; being busy inside an op is not a wait."""
        return self.since > 0 and self.kind != INSIDE


class WaitLedger:
    """This rank's record; `enter` when a wait's first poll failed, `leave` when the wait ends.

    `directory` belongs to this run alone, preferably in memory (/dev/shm) or on a local disk.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        rank: int,
        host: str,
        task: str = "",
        task_index: int = 0,
    ) -> None:
        self.directory, self.rank, self.host = pathlib.Path(directory), rank, host
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_own_folder(self.directory):
            raise CommError(
                f"{self.directory} is not this user's own folder",
                rank=rank,
                hint="someone else has put it there: remove it, or ask who did",
            )
        path = self.directory / f"rank-{rank:06d}"
        record = _RECORD.pack(
            *(0, rank, os.getpid(), -1, -1, 0.0, time.time(), 0, 0.0, task_index, 0),
            *(b"", b"", b"", host.encode()[:64], task.encode()[:64], b"", 0),
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

    def enter(
        self, step: int, op: str, peer: int = -1, kind: str = "recv", since: float = 0.0
    ) -> None:
        """Record that this rank waits for `peer` in `op` since `since` (0: now).

        `op` may have a second line: the user's line that created the operation.
        """
        names, words, times = self._names, self._words, self._times
        if op not in names or kind not in names:
            names.setdefault(op, op.encode()[:144].ljust(144, b"\0"))
            names.setdefault(kind, kind.encode()[:144].ljust(144, b"\0"))
        now = time.time()
        words[_SEQUENCE] += 1
        words[_STEP], words[_PEER] = step, peer
        times[_SINCE], times[_HEARTBEAT] = since or now, now
        self._memory[_KIND], self._memory[_OP] = names[kind][:16], names[op]
        words[_SEQUENCE] += 1

    def leave(self) -> None:
        """Record the end of the wait."""
        self._words[_SEQUENCE] += 1
        self._times[_SINCE] = 0.0
        self._words[_SEQUENCE] += 1

    def update_heartbeat(self, line: str = "", trained: int = 0) -> None:
        """Record a heartbeat: the interpreter runs, the main thread is at `line`.

        `trained` is the number of training steps. Only the watchdog calls it, so the heartbeat and
        the line stay as they were when the interpreter stops running.
        """
        self._words[_LINES] += 1
        self._memory[_LINE] = line.encode(errors="replace")[-256:].ljust(256, b"\0")
        self._times[_HEARTBEAT], self._words[_TRAINED] = time.time(), trained
        self._words[_LINES] += 1

    def moves(self) -> None:
        """Record that the program of this rank moves."""
        self._times[_MOVED] = time.time()

    def ends(self) -> None:
        """Record that this rank has reported why it ends: its death is not reported."""
        self._words[_ENDING] = 1

    def read(self) -> LedgerEntry | None:
        """This rank's own record; None in the rare case that every read met a writer."""
        record = _complete_record(self._memory)
        return decode(record) if record is not None else None

    def close(self) -> None:
        """Unmap and remove the file; a second call does nothing."""
        if self._map.closed:
            return
        for view in (self._words, self._times, self._memory):
            view.release()
        self._map.close()
        (self.directory / f"rank-{self.rank:06d}").unlink(missing_ok=True)


def read_all(directory: str | os.PathLike[str]) -> list[LedgerEntry]:
    """The records of all ranks in `directory`, by rank, without those that cannot be read."""
    paths = files_in(pathlib.Path(directory), "rank-*")
    return [entry for path in paths if (entry := read_one(path)) is not None]


def files_in(folder: pathlib.Path, pattern: str) -> list[pathlib.Path]:
    """The files of a folder that match, sorted; none if its job has ended and removed it."""
    try:
        return sorted(folder.glob(pattern))
    except OSError:
        return []


def read_one(path: pathlib.Path) -> LedgerEntry | None:
    """The record in a file; None if it is missing or not yet written."""
    record = raw_entries(path)
    return decode(record) if record is not None else None


def raw_entries(path: pathlib.Path) -> bytes | None:
    """The bytes of the record in a file, read consistently; None if missing or not yet written."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        with mmap.mmap(fd, RECORD_BYTES, access=mmap.ACCESS_READ) as record:
            return _complete_record(record)
    except (OSError, ValueError):
        return None
    finally:
        os.close(fd)


def user_ledgers(base: str | os.PathLike[str]) -> list[pathlib.Path]:
    """The ledger directories in `base` that belong to this user; those of others are not read."""
    return [path for path in pathlib.Path(base).glob(PREFIX + "*") if is_own_folder(path)]


def process_ledger(
    base: str | os.PathLike[str], pid: int, since: float
) -> tuple[LedgerEntry, pathlib.Path] | None:
    """The record of a process of this user and host, and its directory; None if there is none.

    The process was started after `since` (wall clock): an earlier one may have had the same PID.
    """
    for directory in user_ledgers(base):
        for entry in read_all(directory):
            if entry.pid == pid and entry.heartbeat >= since:
                return entry, directory
    return None


def shared_folder(record: bytes, letter: str, moved: float) -> bytes:
    """A copy of a record for other nodes, which cannot read /proc of its process."""
    copy = bytearray(record)
    copy[_PROCESS] = letter.encode().ljust(8, b"\0")
    (before,) = struct.unpack_from("=d", record, 8 * _MOVED)
    struct.pack_into("=d", copy, 8 * _MOVED, max(before, moved))
    return bytes(copy)


def first(mark: pathlib.Path) -> bool:
    """Whether this rank is the first to create `mark`; all ranks of a node tend to try at once."""
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:  # full disk: every rank reports
        return True
    return True


def is_younger(mark: pathlib.Path, seconds: float) -> bool:
    """Whether a file was written within the last `seconds`; False if it does not exist."""
    try:
        return time.time() - os.stat(mark).st_mtime < seconds
    except OSError:
        return False


def remove(directory: pathlib.Path) -> None:
    """Remove the directory of a job that has ended in order, if this is its last rank here."""
    if not files_in(directory, "rank-*"):
        shutil.rmtree(directory, ignore_errors=True)


def ledger_folder() -> str:
    """The folder of the ledger directories of all jobs, in memory if possible."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()


def remove_stale(base: str | os.PathLike[str], host: str) -> None:
    """Remove from `base` the ledgers of jobs on `host` that died without closing them.

    A job is dead if its processes do not exist and its heartbeats are old. Neither alone is enough:
    PIDs are reused, and processes of another container are not visible.
    """
    old = time.time() - DEAD_S
    for directory in user_ledgers(base):
        with contextlib.suppress(OSError):  # another rank has removed it
            entries = read_all(directory)
            dead = all(e.host == host and e.heartbeat < old and not alive(e.pid) for e in entries)
            if dead and directory.stat().st_mtime < old:
                shutil.rmtree(directory, ignore_errors=True)


def alive(pid: int) -> bool:
    """Whether process `pid` exists on this host, of any user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _complete_record(memory: memoryview | mmap.mmap) -> bytes | None:
    """The record, or None if every read met a writer."""
    for _ in range(ATTEMPTS):
        data = bytes(memory[:RECORD_BYTES])
        before, after = _sequences(data), _sequences(memory)
        if before == after and not any(number % 2 for number in before):
            return data
        time.sleep(1e-5)
    return None


def _sequences(memory: bytes | memoryview | mmap.mmap) -> tuple[int, int]:
    (wait,), (line,) = (struct.unpack_from("=Q", memory, 8 * at) for at in (_SEQUENCE, _LINES))
    return wait, line


def decode(record: bytes) -> LedgerEntry:
    """The entry encoded in a record."""
    fields = _RECORD.unpack(record)
    _, rank, pid, step, peer, since, heartbeat, ending, moved, place, _ = fields[:11]
    process, kind, op, host, task, line = (
        text.rstrip(b"\0").decode(errors="replace") for text in fields[11:17]
    )
    op, _, origin = op.partition("\n")
    return LedgerEntry(
        *(rank, pid, host, step, op, kind, peer, since, heartbeat, bool(ending), moved, place),
        *(process, task, line, origin, fields[17]),
    )
