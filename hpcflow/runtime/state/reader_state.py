"""Readers: ops that read records of files, whose names are dequeued from a queue."""

from __future__ import annotations

import collections
import os
from collections.abc import Callable, Iterator

import numpy as np

from hpcflow.errors import DataError, HpcflowError, RangeError
from hpcflow.plan.ir.program import Node
from hpcflow.runtime.dynamic_types import Attributes, Value
from hpcflow.runtime.executor.async_ops import AsyncWait, CompletedWait, async_op
from hpcflow.runtime.state.queue_backpressure import Queue, QueueAttempt
from hpcflow.runtime.state.state_store import state_type
from hpcflow.runtime.step.step_instance import StepInstance

Record = tuple[bytes, bytes]  # key, value


def _lines(name: bytes, attrs: Attributes) -> Iterator[Record]:
    with open(name, "rb") as file:
        for number, line in enumerate(file, 1):
            if number > attrs["skip_header_lines"]:
                yield b"%s:%d" % (name, number), line.removesuffix(b"\n").replace(b"\r", b"")


def _whole_file(name: bytes, attrs: Attributes) -> Iterator[Record]:
    with open(name, "rb") as file:
        yield name, file.read()


def _file_name(name: bytes, attrs: Attributes) -> Iterator[Record]:
    yield name, name


def _fixed_records(name: bytes, attrs: Attributes) -> Iterator[Record]:
    size, hop, at = attrs["record_bytes"], attrs["hop_bytes"], attrs["header_bytes"]
    with open(name, "rb") as file:
        end = os.fstat(file.fileno()).st_size - attrs["footer_bytes"]
        number = 0
        while at + size <= end:
            file.seek(at)
            yield b"%s:%d" % (name, number), file.read(size)
            at, number = at + hop, number + 1


KINDS: dict[str, Callable[[bytes, Attributes], Iterator[Record]]] = {
    "TextLine": _lines,
    "WholeFile": _whole_file,
    "Identity": _file_name,
    "FixedLength": _fixed_records,
}


class ReaderState:
    """The position of a reader; it never blocks, and serves reads in FIFO order."""

    def __init__(self, node: Node) -> None:
        self.attrs, self.line = node.attrs, collections.deque[_ReadWait]()
        self.reset()

    def reset(self) -> None:
        """Reset the counts and continue with the next file."""
        self.counts = {"records": 0, "files": 0}
        self._file: Iterator[Record] | None = None
        self._name = b""
        self._pending_name: QueueAttempt | None = None  # the pending dequeue of the next file name

    def take(self, queue: Queue, max_records: int, wake: Callable[[], object]) -> list[Record]:
        """The next records, of one file; none while the name of the next file is pending.

        Errors: OutOfRangeError and others of the queue; DataError if a file cannot be read.
        """
        while True:
            if self._file is None and not self._opened(queue, wake):
                return []
            records = self._read(max_records)
            self.counts["records"] += len(records)
            if len(records) < max_records:
                self._file = None
                self.counts["files"] += 1
            if records:
                return records

    def _opened(self, queue: Queue, wake: Callable[[], object]) -> bool:
        if self._pending_name is None:
            self._pending_name = queue.dequeue()
            self._pending_name.when_over(wake)
        if not self._pending_name.completed:
            return False
        attempt, self._pending_name = self._pending_name, None
        if attempt.error is not None:
            raise attempt.error
        self._name = attempt.elements[0][0].item()
        self._file = KINDS[self.attrs["kind"]](self._name, self.attrs)
        return True

    def _read(self, max_records: int) -> list[Record]:
        assert self._file is not None
        records = []
        try:
            for record in self._file:
                records.append(record)
                if len(records) == max_records:
                    break
        except OSError as error:
            self._file = None
            filename = self._name.decode(errors="replace")
            raise DataError(f"{filename!r} cannot be read: {error.strerror or error}") from None
        return records

    def release_name(self) -> None:
        """A read was cancelled: a file name that no read waits for stays in the queue."""
        if not self.line and self._pending_name is not None:
            self._pending_name.cancel()
            self._pending_name = None


state_type("Reader")(ReaderState)


class _ReadWait:
    """A read in the queue of its reader."""

    local = True  # it ends by steps of this rank, not by a message

    def __init__(
        self,
        instance: StepInstance,
        node: Node,
        reader: ReaderState,
        queue: Queue,
        max_records: int,
    ):
        self.instance, self.node, self.reader, self.queue = instance, node, reader, queue
        self.max_records, self.cancelled = max_records, False
        reader.line.append(self)

    def test(self) -> bool:
        """True once it has records.

        Errors: as `ReaderState.take`.
        """
        if self.cancelled:
            return True
        if self.reader.line[0] is not self:
            return False
        wake = self.instance.link.executor.serve
        try:
            records = self.reader.take(self.queue, self.max_records, wake)
        except HpcflowError:
            self.reader.line.popleft()
            raise
        if not records:
            return False
        self.reader.line.popleft()
        if self.node.type == "ReaderRead":
            self.instance.put(self.node.name, *(np.array(part, object) for part in records[0]))
        else:
            columns = zip(*records, strict=True)
            self.instance.put(self.node.name, *(_vector(column) for column in columns))
        return True

    def cancel(self) -> None:
        """Leave the reader's queue."""
        self.cancelled = True
        if self in self.reader.line:
            self.reader.line.remove(self)
            self.reader.release_name()


def _vector(column: tuple[bytes, ...]) -> np.ndarray:
    vector = np.empty(len(column), object)
    vector[:] = column
    return vector


@async_op("ReaderRead")
def _begin(instance: StepInstance, node: Node, reader: ReaderState, queue: Queue) -> AsyncWait:
    return _ReadWait(instance, node, reader, queue, 1)


@async_op("ReaderReadUpTo")
def _begin_some(
    instance: StepInstance, node: Node, reader: ReaderState, queue: Queue, count: Value
) -> AsyncWait:
    if count < 1:
        raise RangeError(f"{int(count)} records were asked for", op=node.name, line=node.line)
    return _ReadWait(instance, node, reader, queue, int(count))


@async_op("ReaderCount")
def _count(instance: StepInstance, node: Node, reader: ReaderState) -> AsyncWait:
    return CompletedWait(instance, node, np.array(reader.counts[node.attrs["what"]], np.int64))


@async_op("ReaderReset")
def _reset(instance: StepInstance, node: Node, reader: ReaderState) -> AsyncWait:
    reader.reset()
    return CompletedWait(instance, node)
