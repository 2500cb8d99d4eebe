"""Readers: records of files whose names come out of a queue, as TensorFlow 1's input pipelines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.errors import GraphError, ShapeError
from hpcflow.graph.dtypes import int64, resource, string
from hpcflow.graph.function_body import at_root, innermost
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
    """Gives the records of files, one after the other; their names come out of a queue.

    State:  where it stands, with the reader's name; it lives where its queue does. Not in
            checkpoints.
    Waits:  for a name, when all records of the last file have been read.
    Errors: OutOfRangeError once the queue is closed and empty; DataError for a file that cannot be
            read.
    """

    def __init__(self, kind: str, name: str | None, **facts: int) -> None:
        for fact, value in facts.items():
            if not isinstance(value, (int, np.integer)) or value < 0:
                raise ShapeError(f"{fact}={value!r} of a reader", line=user_line())
        graph = get_default_graph().root
        attrs = {"kind": kind, **{fact: int(value) for fact, value in facts.items()}}
        with at_root(graph):
            self._handle = graph.create_op("Reader", [], attrs, name or f"{kind}Reader").outputs[0]

    @property
    def reader_ref(self) -> Tensor:
        """Its handle."""
        return self._handle

    def read(self, queue: QueueBase | Tensor, name: str | None = None) -> ReaderReadV2:
        """The next record: what it is called (file and place), and its content; string scalars."""
        key, value = self._run("ReaderRead", [_queue(queue)], name).outputs
        return ReaderReadV2(key, value)

    def read_up_to(
        self, queue: QueueBase | Tensor, num_records: Any, name: str | None = None
    ) -> ReaderReadUpToV2:
        """The next records of one file, `num_records` at most; two vectors of strings."""
        count = convert_to_tensor(num_records)
        keys, values = self._run("ReaderReadUpTo", [_queue(queue), count], name).outputs
        return ReaderReadUpToV2(keys, values)

    def num_records_produced(self, name: str | None = None) -> Tensor:
        """How many records it has given, int64."""
        return self._run("ReaderCount", [], name, what="records").outputs[0]

    def num_work_units_completed(self, name: str | None = None) -> Tensor:
        """How many files it has read to their end, int64."""
        return self._run("ReaderCount", [], name, what="files").outputs[0]

    def reset(self, name: str | None = None) -> Operation:
        """An operation after which it begins anew, with the next file."""
        return self._run("ReaderReset", [], name)

    @property
    def supports_serialize(self) -> bool:
        """Whether its state can be a string: no."""
        return False

    def _run(
        self, type: str, inputs: Sequence[Tensor], name: str | None, **attrs: Any
    ) -> Operation:
        graph = innermost(self._handle.graph)
        with graph.colocate_with(self._handle.op):
            return graph.create_op(type, [self._handle, *inputs], attrs, name)


def _queue(given: Any) -> Tensor:
    """The handle of a queue of strings."""
    if isinstance(given, QueueBase):
        if given.dtypes != [string]:
            raise GraphError(
                f"a reader takes the names of files; queue {given.name!r} has {given.dtypes}",
                line=user_line(),
                hint="hf.train.string_input_producer([names])",
            )
        return given.queue_ref
    if isinstance(given, Tensor) and given.dtype == resource:
        return given
    raise GraphError(f"{given!r} is no queue", line=user_line())


class TextLineReader(ReaderBase):
    """Gives the lines of text files, without their ends; called "file:number", from 1 on."""

    def __init__(self, skip_header_lines: int | None = None, name: str | None = None) -> None:
        super().__init__("TextLine", name, skip_header_lines=skip_header_lines or 0)


class WholeFileReader(ReaderBase):
    """Gives the contents of files, called as the file."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__("WholeFile", name)


class IdentityReader(ReaderBase):
    """Gives the names themselves, as what they are called and as their content."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__("Identity", name)


class FixedLengthRecordReader(ReaderBase):
    """Gives records of `record_bytes`, called "file:number", from 0 on.

    A file has `header_bytes` before and `footer_bytes` behind them; records begin `hop_bytes`
    apart, by default one behind the other.
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
            raise ShapeError(f"records of {record_bytes!r} bytes", line=user_line())
        sizes = {"header_bytes": header_bytes or 0, "footer_bytes": footer_bytes or 0}
        hop = hop_bytes or record_bytes
        super().__init__("FixedLength", name, record_bytes=record_bytes, hop_bytes=hop, **sizes)
