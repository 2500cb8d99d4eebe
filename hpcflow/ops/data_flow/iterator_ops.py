"""Iterator ops: op table rows of dataset iterators; see `hpcflow/data/dataset_iterator.py`.

The dataset is a Python object, so its operations run on the ranks that run the script.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcflow.graph.dtypes import resource, string
from hpcflow.graph.op_registry import NoGrad, op
from hpcflow.graph.static_shape import Spec

_DATA = NoGrad("data is not a function of the step", none=True)
_STATE: dict[str, Any] = {"grad": _DATA, "stateful": True, "script": True, "device": "cpu"}


def _next(inputs: Sequence[Spec], attrs: dict[str, Any]) -> list[Spec]:
    types, shapes = attrs["component_types"], attrs["shapes"]
    return [Spec(dtype, shape) for dtype, shape in zip(types, shapes, strict=True)]


op("Iterator", infer=lambda inputs, attrs: [Spec(resource, ())], **_STATE)
op("MakeIterator", infer=lambda inputs, attrs: [], waits=True, **_STATE)
op("IteratorGetNext", infer=_next, waits=True, **_STATE)
op("IteratorToHandle", infer=lambda inputs, attrs: [Spec(string, ())], waits=True, **_STATE)
op("IteratorGetNextOf", infer=_next, waits=True, **_STATE)
