"""Gradient descent: plain, with momentum, and with a proximal step."""

from __future__ import annotations

from typing import Any

from hpcflow.graph.deprecated_arguments import accepts_and_ignores
from hpcflow.graph.dtypes import is_half
from hpcflow.graph.graph import Operation, Tensor
from hpcflow.ops.math.arithmetic_ops import abs, maximum, sign
from hpcflow.ops.variables.indexed_slices import IndexedSlices
from hpcflow.ops.variables.row_list_ops import sum_equal_rows
from hpcflow.ops.variables.variable_ops import Variable, update
from hpcflow.train.optimizers.update_formula import Cells, FormulaOptimizer


class GradientDescentOptimizer(FormulaOptimizer):
    """`var -= learning_rate * gradient`."""

    @accepts_and_ignores("use_locking")
    def __init__(self, learning_rate: Any, name: str = "GradientDescent") -> None:
        super().__init__(name, learning_rate=learning_rate)

    def _formula(self, c: Cells, g: Tensor) -> None:
        c.subtract(c.number("learning_rate") * g)

    def _fused(self, grad: Tensor, var: Variable) -> Operation | None:
        rate = self._scalar("learning_rate", self._numbers["learning_rate"], var)
        return update("ApplyGradientDescent", [var], [rate, grad])

    def _apply_sparse(self, grad: IndexedSlices, var: Variable) -> Operation:
        if self._only_if is not None or is_half(var.dtype):
            return super()._apply_sparse(grad, var)
        rate = self._scalar("learning_rate", self._numbers["learning_rate"], var)
        with var.here.colocate_with(var.op):  # rows with equal indices are subtracted one by one
            rows = sum_equal_rows(grad, f"{var.name}/distinct", optional=True)
            return var._rows("ScatterSub", rows.indices, rows.values * rate, None)


class MomentumOptimizer(FormulaOptimizer):
    """`accum = momentum * accum + gradient; var -= learning_rate * accum`.

    With `use_nesterov` the update uses `gradient + momentum * accum` in place of `accum`.
    """

    SLOTS = ("momentum",)

    @accepts_and_ignores("use_locking")
    def __init__(
        self, learning_rate: Any, momentum: Any, name: str = "Momentum", use_nesterov: bool = False
    ) -> None:
        super().__init__(name, learning_rate=learning_rate, momentum=momentum)
        self._nesterov = bool(use_nesterov)

    def _formula(self, c: Cells, g: Tensor) -> None:
        momentum, rate = c.number("momentum"), c.number("learning_rate")
        accum = c.slot("momentum") * momentum + g
        c.keep("momentum", accum)
        c.subtract((accum * momentum + g if self._nesterov else accum) * rate)

    def _fused(self, grad: Tensor, var: Variable) -> Operation | None:
        accum = self._slots[var, "momentum"]
        numbers = [self._scalar(n, self._numbers[n], var) for n in ("learning_rate", "momentum")]
        attrs = {"dtype": var.dtype, "shape": var.shape, "use_nesterov": self._nesterov}
        inputs = [var.handle, accum.handle, *numbers, grad]
        with var.here.colocate_with(var.op):
            return var.here.create_op("ApplyMomentum", inputs, attrs, f"{var.name}/ApplyMomentum")


class ProximalGradientDescentOptimizer(FormulaOptimizer):
    """Gradient descent, then the proximal step of L1 and L2 penalties (Duchi and Singer 2009)."""

    @accepts_and_ignores("use_locking")
    def __init__(
        self,
        learning_rate: Any,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        name: str = "ProximalGradientDescent",
    ) -> None:
        super().__init__(
            name,
            learning_rate=learning_rate,
            l1=l1_regularization_strength,
            l2=l2_regularization_strength,
        )

    def _formula(self, c: Cells, g: Tensor) -> None:
        rate = c.number("learning_rate")
        c.set(shrunk(c.value - rate * g, rate, c))


def shrunk(moved: Tensor, rate: Tensor, c: Cells) -> Tensor:
    """The proximal step: shrinks by `rate * l1` towards zero, then by 1 / (1 + rate * l2)."""
    size = maximum(abs(moved) - rate * c.number("l1"), 0)
    return sign(moved) * size / (rate * c.number("l2") + 1)
