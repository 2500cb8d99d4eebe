"""Assignable variables: the common base of variables and partitioned variables."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcflow.graph.graph import Tensor
from hpcflow.graph.operator_overloads import OverloadedOperand
from hpcflow.graph.static_shape import Shape
from hpcflow.graph.tensor_shape import TensorShape


class Assignable(OverloadedOperand[Tensor]):
    """A tensor of static shape with a mutable value."""

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
        """Set it to `value`; returns its new value, or without `read_value` the operation.

        Updates are always atomic for a step: `use_locking` has no effect.
        """
        return self._changed("assign", value, name, read_value)

    def assign_add(
        self,
        value: Any,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Add `value` to it; returns its new value, or without `read_value` the operation."""
        return self._changed("assign_add", value, name, read_value)

    def assign_sub(
        self,
        value: Any,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Subtract `value`; returns its new value, or without `read_value` the operation."""
        return self._changed("assign_sub", value, name, read_value)

    def _changed(self, method: str, value: Any, name: str | None, read_value: bool) -> Any:
        """The result of the update `method`."""
        raise NotImplementedError

    def get_shape(self) -> TensorShape:
        """Its shape as a TensorShape."""
        return TensorShape(self.shape)
