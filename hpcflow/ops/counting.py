"""Counting up to a limit: the end of data that is in the graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpcflow.errors import DTypeError, ShapeError
from hpcflow.graph.graph import Tensor
from hpcflow.graph.registry import NoGrad, op
from hpcflow.graph.shape import Spec
from hpcflow.ops.rules import Attrs
from hpcflow.ops.state import Variable


def _counted(inputs: Sequence[Spec], attrs: Attrs) -> list[Spec]:
    dtype = np.dtype(attrs["dtype"])
    if dtype.kind not in "iu":
        raise DTypeError(f"a count is an integer, not {dtype}")
    if tuple(attrs["shape"]) != ():
        raise ShapeError(f"a count is a scalar; the variable is {list(attrs['shape'])}")
    return [Spec(dtype, ())]


op("CountUpTo", infer=_counted, grad=NoGrad("a count"), writes=(0,), waits=True, stateful=True)


def count_up_to(ref: Variable, limit: int, name: str | None = None) -> Tensor:
    """The value of the integer scalar variable `ref`, which grows by one.

    Errors: OutOfRangeError, which ends the step alone, once it is `limit`.
    """
    graph = ref.graph
    attrs = {"dtype": ref.dtype, "shape": ref.shape, "limit": int(limit)}
    with graph.colocate_with(ref.op):
        counted = graph.create_op("CountUpTo", [ref.handle], attrs, name or "CountUpTo")
    return counted.outputs[0]
