"""Summary ops of `hf.summary`: strings that contain serialized `Summary` messages."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hpcflow.errors import GraphError, ShapeError
from hpcflow.graph.dtypes import float32, string
from hpcflow.graph.graph import Tensor, convert_to_tensor, get_default_graph, user_line
from hpcflow.graph.graph_keys import GraphKeys
from hpcflow.graph.name_scopes import name_scope
from hpcflow.graph.op_registry import Infer, NoGrad, op
from hpcflow.graph.static_shape import Spec
from hpcflow.ops.shape_inference import Attrs, first_output, require, require_rank

_MESSAGE = NoGrad("a summary is a message, not a number")
_NOT_IN_TAGS = re.compile(r"[^-/\w.]")


def _message(op_name: str, kinds: str, *ranks: int) -> Infer:
    """Shape rule of an op that returns one message."""

    def infer(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
        for s in inputs:
            require(op_name, s, kinds)
            if ranks:
                require_rank(op_name, s, *ranks)
        return [Spec(string, ())]

    return infer


def _image(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    dtype, shape = inputs[0][:2]
    require("summary.image", inputs[0], "uf")
    require_rank("summary.image", inputs[0], 4)
    if dtype.kind == "u" and dtype != np.uint8:
        require("summary.image", inputs[0], "f")
    if shape is not None and shape[3] not in (None, 1, 3, 4):
        raise ShapeError(
            f"images have {shape[3]} channels", hint="give 1 (gray), 3 (RGB) or 4 (RGBA)"
        )
    return [Spec(string, ())]


def _audio(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    require("summary.audio", inputs[0], "f")
    require_rank("summary.audio", inputs[0], 2, 3)
    require("summary.audio's sample_rate", inputs[1], "f")
    require_rank("summary.audio's sample_rate", inputs[1], 0)
    return [Spec(string, ())]


op("ScalarSummary", infer=_message("summary.scalar", "iuf", 0), grad=_MESSAGE, device="cpu")
op("HistogramSummary", infer=_message("summary.histogram", "iuf"), grad=_MESSAGE, device="cpu")
op("ImageSummary", infer=_image, grad=_MESSAGE, device="cpu")
op("AudioSummary", infer=_audio, grad=_MESSAGE, device="cpu")
op("TensorSummary", infer=_message("summary.tensor", "biufO"), grad=_MESSAGE, device="cpu")
op("MergeSummary", infer=_message("summary.merge", "O"), grad=_MESSAGE, device="cpu")


@contextlib.contextmanager
def _tagged(name: str, family: str | None, values: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """The tag of a summary in the current name scope, and the exact name of its operation."""
    name = _tag(name)
    family = None if family is None else _tag(family)
    with name_scope(f"{family}/{name}" if family else name, None, values) as scope:
        inner = scope.rstrip("/")
        yield f"{family}/{inner}" if family else inner, scope


def _tag(name: str) -> str:
    if not isinstance(name, str) or not name.strip("/"):
        raise GraphError(f"{name!r} is not a valid name of a summary", line=user_line())
    return _NOT_IN_TAGS.sub("_", name).lstrip("/")


def _collected(message: Tensor, collections: Any, default: Sequence[str]) -> Tensor:
    names = default if collections is None else collections
    message.graph.add_to_collections([names] if isinstance(names, str) else list(names), message)
    return message


def _output_limit(max_outputs: Any, op_name: str) -> int:
    if not isinstance(max_outputs, (int, np.integer)) or max_outputs < 1:
        raise ShapeError(f"{op_name}: max_outputs must be at least 1, not {max_outputs!r}")
    return int(max_outputs)


def scalar(name: str, tensor: Any, collections: Any = None, family: str | None = None) -> Tensor:
    """The summary of a scalar; its tag is `name` in the current name scope.

    It is added to `collections`, by default "summaries". `family` is a prefix of the tag, by which
    TensorBoard groups.
    """
    x = convert_to_tensor(tensor)
    with _tagged(name, family, [x]) as (tag, scope):
        summary = first_output("ScalarSummary", [x], {"tag": tag}, scope)
    return _collected(summary, collections, [GraphKeys.SUMMARIES])


def histogram(name: str, values: Any, collections: Any = None, family: str | None = None) -> Tensor:
    """The summary with a histogram of all `values`; other arguments as `scalar`.

    Errors: NumericError at run time for a value that is not finite.
    """
    x = convert_to_tensor(values)
    with _tagged(name, family, [x]) as (tag, scope):
        summary = first_output("HistogramSummary", [x], {"tag": tag}, scope)
    return _collected(summary, collections, [GraphKeys.SUMMARIES])


def image(
    name: str,
    tensor: Any,
    max_outputs: int = 3,
    collections: Any = None,
    family: str | None = None,
) -> Tensor:
    """The summary with the first `max_outputs` images as PNG; other arguments as `scalar`.

    uint8 values are unchanged. Floats of an image are scaled so that the maximum is 255, or, with
    negative values, so that 0 is 128; pixels that are not finite are red.
    Shapes: [images, height, width, 1, 3 or 4].
    """
    x, most = convert_to_tensor(tensor), _output_limit(max_outputs, "summary.image")
    with _tagged(name, family, [x]) as (tag, scope):
        summary = first_output("ImageSummary", [x], {"tag": tag, "most": most}, scope)
    return _collected(summary, collections, [GraphKeys.SUMMARIES])


def audio(
    name: str,
    tensor: Any,
    sample_rate: Any,
    max_outputs: int = 3,
    collections: Any = None,
    family: str | None = None,
) -> Tensor:
    """The summary with the first `max_outputs` audio clips as WAV; other arguments as `scalar`.

    Samples are in [-1, 1]; `sample_rate` is in Hertz.
    Shapes: [clips, samples] or [clips, samples, channels].
    """
    x, rate = convert_to_tensor(tensor), convert_to_tensor(sample_rate)
    if rate.dtype != float32:
        rate = first_output("Cast", [rate], {"dtype": float32})
    most = _output_limit(max_outputs, "summary.audio")
    with _tagged(name, family, [x]) as (tag, scope):
        summary = first_output("AudioSummary", [x, rate], {"tag": tag, "most": most}, scope)
    return _collected(summary, collections, [GraphKeys.SUMMARIES])


def tensor_summary(
    name: str,
    tensor: Any,
    summary_description: None = None,
    collections: Any = None,
    summary_metadata: Any = None,
    family: str | None = None,
    display_name: str | None = None,
) -> Tensor:
    """The summary with the values of any tensor; other arguments as `scalar`.

    `summary_metadata` is a `SummaryMetadata` message (of tensorboardX), or None.
    """
    if summary_description is not None:
        raise GraphError("summary_description is not supported", hint="put it in summary_metadata")
    x = convert_to_tensor(tensor)
    proto = b"" if summary_metadata is None else summary_metadata.SerializeToString()
    return _tensor(name, x, collections, family, {"metadata": proto, "display": display_name or ""})


def text(name: str, tensor: Any, collections: Any = None) -> Tensor:
    """The summary with strings, which TensorBoard shows as Markdown; arguments as `scalar`."""
    x = convert_to_tensor(tensor)
    require("summary.text", x.spec, "O")
    return _tensor(name, x, collections, None, {"plugin": "text"})


def _tensor(name: str, x: Tensor, collections: Any, family: str | None, attrs: Attrs) -> Tensor:
    with _tagged(name, family, [x]) as (tag, scope):
        summary = first_output("TensorSummary", [x], {"tag": tag, **attrs}, scope)
    return _collected(summary, collections, [GraphKeys.SUMMARIES])


def merge(inputs: Sequence[Any], collections: Any = None, name: str | None = None) -> Tensor:
    """One summary with the values of all `inputs`.

    Errors: DataError at run time for a repeated tag.
    """
    if not isinstance(inputs, (list, tuple)):
        raise GraphError(f"summary.merge takes a list, not {inputs!r}", line=user_line())
    messages = [convert_to_tensor(i) for i in inputs]
    if not messages:
        raise GraphError("summary.merge needs at least one summary", line=user_line())
    with name_scope(None if name is None else _tag(name), "Merge", messages):
        summary = first_output("MergeSummary", messages, {}, "MergeSummary")
    return _collected(summary, collections, [])


def merge_all(
    key: str = GraphKeys.SUMMARIES, scope: str | None = None, name: str | None = None
) -> Tensor | None:
    """One summary with the values of all summaries in the collection `key`; None if there are none.

    `scope`, a regular expression, selects those whose name it matches.
    """
    summaries = get_default_graph().get_collection(key, scope)
    return merge(summaries, name=name) if summaries else None
