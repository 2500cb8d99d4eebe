"""TensorBoard event files: written by the chief, and read back."""

from __future__ import annotations

import itertools
import os
import struct
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from hpcflow.errors import ArgumentError, DataError, GraphError, HpcflowError
from hpcflow.graph.dtypes import name_of
from hpcflow.graph.graph import Graph, Operation, get_default_graph
from hpcflow.ops.metrics.summary_kernels import messages
from hpcflow.platform.artifact_cache import as_path
from hpcflow.platform.exception_translation import value_text
from hpcflow.platform.rank_logging import say_once
from hpcflow.runtime.job.job_membership import current_context
from hpcflow.runtime.session.config_proto import RunMetadata
from hpcflow.train.run_metadata_proto import as_bytes

_numbers = itertools.count(1)  # of this process's files after the first


class FileWriter:
    """Writes summaries and graphs as TensorBoard events to a file in `logdir`.

    Events are flushed to disk after `max_queue` of them, after `flush_secs` seconds, at `flush` and
    at `close`. Use it in a `with` statement, or close it.

    Ranks:  the chief's writes; on other ranks all methods do nothing.
    Errors: MissingPackageError without tensorboardX; HpcflowError if the folder cannot be written.
    """

    def __init__(
        self,
        logdir: Any,
        graph: Graph | None = None,
        max_queue: int = 10,
        flush_secs: float = 120,
        graph_def: None = None,
        filename_suffix: str | None = None,
    ) -> None:
        if graph_def is not None:
            raise GraphError("FileWriter takes no graph_def", hint="give the graph: graph=...")
        self._logdir, self._suffix = os.fspath(as_path(logdir, "logdir")), filename_suffix or ""
        self._max_queue, self._flush_s = int(max_queue), float(flush_secs)
        self._lock, self._tags, self._runs = threading.Lock(), set[str](), set[str]()
        self._writes = current_context().is_chief
        self._file: Any = None
        self._closed = True
        self.reopen()
        if graph is not None:
            self.add_graph(graph)

    def reopen(self) -> None:
        """After `close`, continue in a new file of the folder."""
        if not self._closed:
            return
        self._closed, self._waiting, self._flushed = False, 0, time.monotonic()
        if self._writes:
            self._file = _opened(self._logdir, self._suffix)
            self._ends = weakref.finalize(self, self._file.close)

    def get_logdir(self) -> str:
        """The folder."""
        return self._logdir

    def add_summary(self, summary: Any, global_step: int | None = None) -> None:
        """Write a summary: the result of a session run, its bytes, or a `Summary` message."""
        if not self._writes:
            return
        if not isinstance(summary, messages().summary.Summary):
            summary = _parsed(summary)
        for value in summary.value:
            if value.HasField("metadata"):
                if value.tag in self._tags:
                    value.ClearField("metadata")
                self._tags.add(value.tag)
        self._add(global_step, summary=summary)

    def add_graph(self, graph: Graph, global_step: int | None = None) -> None:
        """Write the operations of a graph, for TensorBoard's graph view."""
        if not isinstance(graph, Graph):
            raise GraphError(f"{graph!r} is not a graph", hint="give session.graph")
        if self._writes:
            self._add(global_step, graph_def=graph_message(graph).SerializeToString())

    def add_session_log(self, session_log: Any, global_step: int | None = None) -> None:
        """Write a `SessionLog` message: the start, stop or checkpoint of a run."""
        if self._writes:
            self._add(global_step, session_log=session_log)

    def add_run_metadata(
        self, run_metadata: RunMetadata, tag: str, global_step: int | None = None
    ) -> None:
        """Write the times of operations of a traced run, under a tag unique among runs.

        Errors: GraphError if it is not a RunMetadata; ArgumentError if the tag is in use.
        """
        if not isinstance(run_metadata, RunMetadata):
            raise GraphError(
                f"{value_text(run_metadata)} is not a RunMetadata", hint="give hf.RunMetadata()"
            )
        if tag in self._runs:
            raise ArgumentError(f"the tag {tag!r} is already in use", hint="give another one")
        self._runs.add(tag)
        if self._writes:
            message = messages().event.TaggedRunMetadata(tag=tag)
            message.run_metadata = as_bytes(run_metadata)
            self._add(global_step, tagged_run_metadata=message)

    def add_value(self, tag: str, value: float, global_step: int) -> None:
        """Write a summary of one number."""
        if self._writes:
            summary = messages().summary.Summary()
            summary.value.add(tag=tag, simple_value=value)
            self.add_summary(summary, global_step)

    def add_start(self, global_step: int) -> None:
        """Write the start of a run: TensorBoard drops later events of an earlier run."""
        if self._writes:
            log = messages().event.SessionLog
            self.add_session_log(log(status=log.START), global_step)

    def _add(self, step: int | None, **what: Any) -> None:
        event = messages().event.Event(wall_time=time.time(), **what)
        if step is not None:
            event.step = int(step)
        self.add_event(event)

    def add_event(self, event: Any) -> None:
        """Write an `Event` message."""
        if self._closed:
            say_once(
                f"the FileWriter of {self._logdir} is closed and writes nothing: call "
                "reopen() first"
            )
            return
        if not self._writes:
            return
        with self._lock:
            self._file.write_event(event)
            self._waiting += 1
            now = time.monotonic()
            if self._waiting >= self._max_queue or now >= self._flushed + self._flush_s:
                self._flush(now)

    def _flush(self, now: float) -> None:
        self._file.flush()
        self._waiting, self._flushed = 0, now

    def flush(self) -> None:
        """Flush all events to disk."""
        if self._writes and not self._closed:
            with self._lock:
                self._flush(time.monotonic())

    def close(self) -> None:
        """Flush all events to disk and end writing."""
        if self._writes and not self._closed:
            self._ends()
        self._closed = True

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _opened(folder: str, suffix: str) -> Any:
    """A new event file in `folder`."""
    messages()  # raises the error for a missing package
    from tensorboardX.event_file_writer import EventsWriter

    try:
        os.makedirs(folder, exist_ok=True)
        return EventsWriter(
            os.path.join(folder, "events"), f".{os.getpid()}.{next(_numbers)}{suffix}"
        )
    except OSError as error:
        raise HpcflowError(
            f"no events can be written into {folder!r}: {error.strerror or error}",
            hint="give FileWriter a folder that this rank can write",
        ) from None


def _parsed(summary: Any) -> Any:
    encoded = summary.item() if isinstance(summary, np.ndarray) and summary.size == 1 else summary
    if not isinstance(encoded, bytes):
        raise DataError(
            f"{type(summary).__name__} is not a summary",
            hint="give what session.run(hf.summary.scalar(...)) returned",
        )
    try:
        return messages().summary.Summary.FromString(encoded)
    except messages().DecodeError:
        raise DataError(f"{encoded[:40]!r} is not a serialized Summary") from None


class FileWriterCache:
    """One FileWriter per folder."""

    _lock = threading.Lock()
    _cache: ClassVar[dict[str, FileWriter]] = {}

    @classmethod
    def get(cls, logdir: Any) -> FileWriter:
        """The writer of a folder, created with the default graph if there is none."""
        folder = os.fspath(logdir)
        with cls._lock:
            if folder not in cls._cache:
                cls._cache[folder] = FileWriter(folder, get_default_graph())
            return cls._cache[folder]

    @classmethod
    def clear(cls) -> None:
        """Close and remove all writers."""
        with cls._lock:
            for writer in cls._cache.values():
                writer.close()
            cls._cache.clear()


# -- graphs as messages


def graph_message(graph: Graph) -> Any:
    """The operations of a graph as a `GraphDef`: names, ops, inputs, devices, output shapes."""
    graph_def = messages().graph.GraphDef(versions={"producer": 22})
    for op in graph.get_operations():
        _describe(op, graph_def.node.add(name=op.name, op=op.type, device=op.device))
    return graph_def


def _describe(op: Operation, node: Any) -> None:
    """Add the inputs, shapes and dtype of `op` to its message."""
    for t in op.inputs:
        node.input.append(t.op.name if t.index == 0 else t.name)
    node.input.extend(f"^{before.name}" for before in op.control_inputs)
    shapes = node.attr["_output_shapes"].list
    for t in op.outputs:
        shape = shapes.shape.add()
        shape.unknown_rank = t.shape is None
        for size in t.shape or ():
            shape.dim.add(size=-1 if size is None else size)
    if op.outputs:
        dtype = messages().attr_value.AttrValue(s=name_of(op.outputs[0].dtype).encode())
        node.attr["dtype"].CopyFrom(dtype)


# -- reading


def summary_iterator(path: Any) -> Iterator[Any]:
    """The `Event` messages of a file, in order of writing.

    Errors: DataError if the file cannot be read, or is damaged.
    """
    event = messages().event.Event
    try:
        with open(path, "rb") as file:
            while head := file.read(12):
                (length,) = struct.unpack("<Q4x", head.ljust(12, b"\0"))
                body = file.read(length + 4)
                if len(head) < 12 or len(body) < length + 4:
                    raise DataError(f"{os.fspath(path)!r} is cut off inside an event")
                yield event.FromString(body[:length])
    except OSError as error:
        raise DataError(f"{os.fspath(path)!r} cannot be read: {error.strerror or error}") from None
    except messages().DecodeError:
        raise DataError(f"{os.fspath(path)!r} has data that is not an event") from None
