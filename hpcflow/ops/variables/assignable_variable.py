"""What a variable and a variable in pieces have in common."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcflow.graph.graph import Tensor
from hpcflow.graph.operator_overloads import Operand
from hpcflow.graph.static_shape import Shape
from hpcflow.graph.tensor_shape import TensorShape


class Assignable(Operand[Tensor]):
    """A tensor of a known shape whose value can be changed."""

    name: str
    dtype: np.dtype
    shape: Shape

    def assign(
        self,
        value: Any,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Set it to `value`; its value after that, or without `read_value` the operation.

        A step sees all of an update or nothing: `use_locking` changes nothing.
        """
        return self._changed("assign", value, name, read_value)

    def assign_add(
        self,
        value: Any,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Add `value` to it; its value after that, or without `read_value` the operation."""
        return self._changed("assign_add", value, name, read_value)

    def assign_sub(
        self,
        value: Any,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Subtract `value` from it; its value after that, or without `read_value` the operation."""
        return self._changed("assign_sub", value, name, read_value)

    def _changed(self, method: str, value: Any, name: str | None, read_value: bool) -> Any:
        """What `method` gives."""
        raise NotImplementedError

    def get_shape(self) -> TensorShape:
        """Its shape as TensorFlow 1 gives it."""
        return TensorShape(self.shape)
