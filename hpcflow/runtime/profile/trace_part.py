"""Trace parts: the events of one rank, as rows of JSON in a private file on a disk of its node.

The first line has the facts of the rank. Each other line is a row, a list that begins with its
kind. Times are nanoseconds of the rank's clock.

    ["segment", name, plan, step, start, end]
    ["wait", number, name, step, start]          number: of the wait, in this part
    ["sum", number, name, step, start, recovery, ordinal]    ordinal: since that recovery
    ["end", number, time]                        of a wait or a sum
    ["send", name, destination, tag, step, time]
    ["receive", name, source, tag, step, time]
    ["counter", name, time, value]
    ["clock", machine, time, offset, round trip]  offset: that machine's clock minus this one
    ["full", time]                               nothing is recorded any more

A process that is killed leaves the rows written so far; an incomplete last line is ignored.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpcflow.errors import DataError
from hpcflow.platform.private_files import make_folder
from hpcflow.platform.record_files import open_plain

FORMAT = "hpcflow-trace-part-1"
SEGMENT, WAIT, SUM, END = "segment", "wait", "sum", "end"
SEND, RECEIVE, COUNTER, CLOCK, FULL = "send", "receive", "counter", "clock", "full"
BUFFERED_ROWS = 2_000  # rows in memory, at most
Row = list[Any]


@dataclasses.dataclass(frozen=True)
class PartFacts:
    """The first line of a part: the job, and this rank in it.

    `group` numbers the ranks that sum with each other: the task in its replica; -1 for a server.
    """

    job: str
    rank: int
    size: int
    task: str
    group: int
    host: str
    machine: str
    is_chief: bool
    format: str = FORMAT


class TracePart:
    """Writes a part. At most `limit` rows are recorded; later ones are dropped.

    Errors: OSError where the file cannot be created. If it cannot be written later, nothing is
    recorded any more, and `error` says why.
    """

    def __init__(self, folder: Path, facts: PartFacts, limit: int) -> None:
        make_folder(folder)
        self.path, self.facts = part_path(folder, facts.rank), facts
        self.path.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.open(self.path, flags, 0o600)
        self._rows: list[Row] = []
        self._room = limit
        self.error = ""
        self._write(json.dumps(dataclasses.asdict(facts)) + "\n")

    @property
    def is_full(self) -> bool:
        """Whether no more rows are recorded."""
        return self._room <= 0

    @property
    def is_due(self) -> bool:
        """Whether it should be written: it is full, or many rows are in memory."""
        return self._room <= 0 or len(self._rows) >= BUFFERED_ROWS

    def add(self, row: Row, now: int) -> None:
        """Record a row, unless the part is full; the last one says that it is."""
        if self._room <= 0:
            return
        self._rows.append(row)
        self._room -= 1
        if not self._room:
            self._rows.append([FULL, now])

    def add_fact(self, row: Row) -> None:
        """Record a row that a full part needs, too."""
        self._rows.append(row)

    def flush(self) -> None:
        """Write the rows that are in memory."""
        rows, self._rows = self._rows, []
        if rows:
            self._write("".join(json.dumps(row) + "\n" for row in rows))

    def _write(self, text: str) -> None:
        data = memoryview(text.encode())
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            self._room, self.error = 0, error.strerror or str(error)

    def close(self) -> None:
        """Write the rest; no more rows follow."""
        if self._file >= 0:
            self.flush()
            os.close(self._file)
            self._file, self._room = -1, 0

    def remove(self) -> None:
        """Remove the file, and the folder if no other part is in it."""
        self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # parts of other ranks, or removed by one of them
            self.path.parent.rmdir()


def part_path(folder: Path, rank: int) -> Path:
    """The file of a rank."""
    return folder / f"rank-{rank}.part"


def trace_path(file: str) -> Path:
    """The file of all ranks for the setting `trace`: with the ending .json."""
    return Path(file if file.endswith(".json") else f"{file}.json")


def node_folder(file: str) -> Path:
    """The folder of the parts on each node for the setting `trace`, on a local disk."""
    digest = hashlib.sha256(os.path.abspath(trace_path(file)).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"hpcflow-trace-{os.geteuid()}-{digest}"


def read_facts(path: Path) -> PartFacts:
    """The facts of a part. Errors: DataError if it is none, or cannot be read."""
    try:
        with open(open_plain(path), "rb") as file:
            facts = PartFacts(**json.loads(file.readline(1 << 16)))
        kinds = {field.name: field.type for field in dataclasses.fields(PartFacts)}
        for name, kind in kinds.items():
            if type(getattr(facts, name)).__name__ != kind:
                raise ValueError(name)
        if facts.format != FORMAT:
            raise ValueError(facts.format)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, TypeError, RecursionError) as error:
        raise DataError(
            f"{path} is no part of a trace: {error!r}",
            hint="give files rank-N.part, or the folder that has them",
        ) from None
    return facts


def rows(path: Path) -> Iterator[Row]:
    """The rows of a part. Errors: DataError naming the first line that is damaged."""
    with open(open_plain(path), "rb") as file:
        for number, line in enumerate(file, 1):
            if number == 1 or not line.endswith(b"\n"):
                continue
            try:
                row = json.loads(line)
                if not isinstance(row, list) or not row:
                    raise ValueError("it is no row")
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path} is damaged at line {number}: {error}") from None
            yield row


def parts_in(folder: Path) -> list[Path]:
    """The parts in a folder."""
    return sorted(folder.glob("rank-*.part"))


def parts_of_job(paths: list[Path], job: str = "") -> dict[int, tuple[Path, PartFacts]]:
    """The parts of one job by rank: of `job`, else of the job whose part was written last.

    Errors: DataError.
    """
    found = [(path, read_facts(path)) for path in paths]
    if not job and found:
        job = max(found, key=lambda one: one[0].stat().st_mtime)[1].job
    return {facts.rank: (path, facts) for path, facts in found if facts.job == job}


def remove_parts(folder: Path, job: str) -> None:
    """Remove the parts of a job from a folder, and the folder if it is then empty."""
    for path, _ in parts_of_job(parts_in(folder), job).values():
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # parts of other jobs
        folder.rmdir()
