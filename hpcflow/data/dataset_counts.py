"""Element counts of datasets: ints, or tensors that are evaluated when an iterator starts."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcflow.data.dataset_functions import CapturedValues
from hpcflow.errors import DTypeError, ShapeError
from hpcflow.graph.graph import Tensor, convert_to_tensor


def as_integer(label: str, value: Any, least: int) -> int:
    """`value` as an int.

    Errors: ShapeError if it is not an integer, or below `least`.
    """
    if not isinstance(value, (int, np.integer)) or value < least:
        raise ShapeError(f"{label}({value!r}): a dataset needs an int of {least} or more here")
    return int(value)


class ElementCount:
    """A number of elements: an int, or an integer scalar tensor.

    Errors: ShapeError, for a tensor when its value is known, if it is below `least`; DTypeError.
    """

    def __init__(self, label: str, value: Any, least: int) -> None:
        self._description, self._least = label, least
        self.static_value: int | None = None
        self.needs: list[Tensor] = []  # the tensor, if the value is one
        if not isinstance(value, Tensor) and not hasattr(value, "as_tensor"):
            self.static_value = as_integer(label, value, least)
            return
        tensor = convert_to_tensor(value)
        if tensor.dtype.kind not in "iu" or tensor.shape not in (None, ()):
            raise DTypeError(
                f"{label}({tensor.name!r}) of a dataset is {tensor.dtype} {tensor.shape}",
                op=tensor.op.name,
                line=tensor.op.line,
                hint="give an integer scalar",
            )
        if tensor.op.type == "Const":
            self.static_value = as_integer(label, int(tensor.op.attrs["value"]), least)
        else:
            self.needs = [tensor]

    def evaluate(self, captured: CapturedValues) -> int:
        """The number; `captured` has the values of tensors."""
        if self.static_value is not None:
            return self.static_value
        return as_integer(self._description, int(captured[self.needs[0]]), self._least)
