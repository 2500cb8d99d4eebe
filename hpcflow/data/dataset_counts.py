"""Element counts of datasets: ints, or tensors that are evaluated when an iterator starts."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcflow.data.dataset_functions import Given
from hpcflow.errors import DTypeError, ShapeError
from hpcflow.graph.graph import Tensor, convert_to_tensor


def as_integer(what: str, given: Any, least: int) -> int:
    """`given` as an int.

    Errors: ShapeError if it is not an integer, or below `least`.
    """
    if not isinstance(given, (int, np.integer)) or given < least:
        raise ShapeError(f"{what}({given!r}): a dataset needs an int of {least} or more here")
    return int(given)


class ElementCount:
    """A number of elements: an int, or an integer scalar tensor.

    Errors: ShapeError, for a tensor when its value is known, if it is below `least`; DTypeError.
    """

    def __init__(self, what: str, given: Any, least: int) -> None:
        self._description, self._least = what, least
        self.known: int | None = None
        self.needs: list[Tensor] = []  # the tensor, if the value is one
        if not isinstance(given, Tensor) and not hasattr(given, "as_tensor"):
            self.known = as_integer(what, given, least)
            return
        tensor = convert_to_tensor(given)
        if tensor.dtype.kind not in "iu" or tensor.shape not in (None, ()):
            raise DTypeError(
                f"{what}({tensor.name!r}) of a dataset is {tensor.dtype} {tensor.shape}",
                op=tensor.op.name,
                line=tensor.op.line,
                hint="give an integer scalar",
            )
        if tensor.op.type == "Const":
            self.known = as_integer(what, int(tensor.op.attrs["value"]), least)
        else:
            self.needs = [tensor]

    def of(self, given: Given) -> int:
        """The number; `given` has the values of tensors."""
        if self.known is not None:
            return self.known
        return as_integer(self._description, int(given[self.needs[0]]), self._least)
