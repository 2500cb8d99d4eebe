"""File readers: records of files whose names come from a queue, as in TensorFlow 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.errors import GraphError, ShapeError
from hpcflow.graph.dtypes import int64, resource, string
from hpcflow.graph.function_body import innermost_graph, root_as_default
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor, get_default_graph, user_line
from hpcflow.graph.op_registry import NoGrad, op
from hpcflow.graph.static_shape import Spec
from hpcflow.ops.data_flow.queue_classes import QueueBase
from hpcflow.ops.named_results import ReaderReadUpToV2, ReaderReadV2
from hpcflow.ops.shape_inference import Attrs, require, require_rank

_READ: dict[str, Any] = {
    "grad": NoGrad("records are not differentiable"),
    "stateful": True,
    "device": "cpu",
}
_WAITS: dict[str, Any] = {**_READ, "waits": True, "patient": True}


def _read(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    return [Spec(string, ())] * 2


def _read_up_to(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require("read_up_to's num_records", inputs[2], "iu")
    require_rank("read_up_to's num_records", inputs[2], 0)
    return [Spec(string, (None,))] * 2


op("Reader", infer=lambda inputs, attrs: [Spec(resource, ())], **_READ)
op("ReaderRead", infer=_read, **_WAITS)
op("ReaderReadUpTo", infer=_read_up_to, **_WAITS)
op("ReaderCount", infer=lambda inputs, attrs: [Spec(int64, ())], **_WAITS)
op("ReaderReset", infer=lambda inputs, attrs: [], **_WAITS)


class ReaderBase:
    """Reads the records of files one after the other; the file names come from a queue.

    State:  the position, under the reader's name, on the rank of its queue. Not in checkpoints.
    Waits:  for a file name, when all records of the last file have been read.
    Errors: OutOfRangeError once the queue is closed and empty; DataError for an unreadable file.
    """

    def __init__(self, kind: str, name: str | None, **facts: int) -> None:
        for fact, value in facts.items():
            if not isinstance(value, (int, np.integer)) or value < 0:
                raise ShapeError(
                    f"{fact} of a reader must be an integer of 0 or more, not {value!r}",
                    line=user_line(),
                )
        graph = get_default_graph().root
        attrs = {"kind": kind, **{fact: int(value) for fact, value in facts.items()}}
        with root_as_default(graph):
            self._handle = graph.create_op("Reader", [], attrs, name or f"{kind}Reader").outputs[0]

    @property
    def reader_ref(self) -> Tensor:
        """The handle."""
        return self._handle

    def read(self, queue: QueueBase | Tensor, name: str | None = None) -> ReaderReadV2:
        """The next record: its key (file and position) and its contents; string scalars."""
        key, value = self._run("ReaderRead", [_queue(queue)], name).outputs
        return ReaderReadV2(key, value)

    def read_up_to(
        self, queue: QueueBase | Tensor, num_records: Any, name: str | None = None
    ) -> ReaderReadUpToV2:
        """At most `num_records` records of one file; two vectors of strings."""
        count = convert_to_tensor(num_records)
        keys, values = self._run("ReaderReadUpTo", [_queue(queue), count], name).outputs
        return ReaderReadUpToV2(keys, values)

    def num_records_produced(self, name: str | None = None) -> Tensor:
        """The number of records read, int64."""
        return self._run("ReaderCount", [], name, what="records").outputs[0]

    def num_work_units_completed(self, name: str | None = None) -> Tensor:
        """The number of files read completely, int64."""
        return self._run("ReaderCount", [], name, what="files").outputs[0]

    def reset(self, name: str | None = None) -> Operation:
        """An operation that resets the reader to the next file."""
        return self._run("ReaderReset", [], name)

    @property
    def supports_serialize(self) -> bool:
        """Whether the state can be serialized: no."""
        return False

    def _run(
        self, type: str, inputs: Sequence[Tensor], name: str | None, **attrs: Any
    ) -> Operation:
        graph = innermost_graph(self._handle.graph)
        with graph.colocate_with(self._handle.op):
            return graph.create_op(type, [self._handle, *inputs], attrs, name)


def _queue(queue: Any) -> Tensor:
    """The handle of a queue of strings."""
    if isinstance(queue, QueueBase):
        if queue.dtypes != [string]:
            raise GraphError(
                f"a reader takes a queue of file names; queue {queue.name!r} holds {queue.dtypes}",
                line=user_line(),
                hint="use hf.train.string_input_producer([names])",
            )
        return queue.queue_ref
    if isinstance(queue, Tensor) and queue.dtype == resource:
        return queue
    raise GraphError(f"{queue!r} is not a queue", line=user_line())


class TextLineReader(ReaderBase):
    """Reads the lines of text files, without line ends; keys are "file:number", from 1."""

    def __init__(self, skip_header_lines: int | None = None, name: str | None = None) -> None:
        super().__init__("TextLine", name, skip_header_lines=skip_header_lines or 0)


class WholeFileReader(ReaderBase):
    """Reads whole files; the key is the file name."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__("WholeFile", name)


class IdentityReader(ReaderBase):
    """Returns the file names themselves, as key and as contents."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__("Identity", name)


class FixedLengthRecordReader(ReaderBase):
    """Reads records of `record_bytes`; keys are "file:number", from 0.

    A file has `header_bytes` before and `footer_bytes` after the records. Records begin `hop_bytes`
    apart, by default `record_bytes`.
    """

    def __init__(
        self,
        record_bytes: int,
        header_bytes: int | None = None,
        footer_bytes: int | None = None,
        hop_bytes: int | None = None,
        name: str | None = None,
    ) -> None:
        if not isinstance(record_bytes, (int, np.integer)) or record_bytes < 1:
            raise ShapeError(
                f"record_bytes must be an integer of 1 or more, not {record_bytes!r}",
                line=user_line(),
            )
        sizes = {"header_bytes": header_bytes or 0, "footer_bytes": footer_bytes or 0}
        hop = hop_bytes or record_bytes
        super().__init__("FixedLength", name, record_bytes=record_bytes, hop_bytes=hop, **sizes)
