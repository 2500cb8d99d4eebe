"""Loss scaling: multiplies the loss so that small gradients do not underflow in float16.

Float16 has no positive numbers below 6e-8. Gradients are computed times a scale, then divided by
it. A dynamic scale grows while all gradients are finite. An update with a gradient that is not
finite is skipped entirely, and the scale shrinks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.errors import GraphError
from hpcflow.graph.dtypes import int64
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor, get_default_graph
from hpcflow.ops.array.array_ops import constant, identity
from hpcflow.ops.array.concat_split_ops import stack
from hpcflow.ops.control_flow.control_dependencies import group
from hpcflow.ops.math.arithmetic_ops import cast, equal, maximum, where
from hpcflow.ops.math.elementwise_math_ops import is_finite
from hpcflow.ops.math.reduction_ops import reduce_all
from hpcflow.ops.variables.indexed_slices import IndexedSlices
from hpcflow.ops.variables.variable_ops import Variable, update
from hpcflow.train.optimizers.optimizer import Optimizer, Pairs
from hpcflow.train.optimizers.update_formula import FormulaOptimizer


class DynamicLossScale:
    """A scale that is multiplied by `multiplier` after `increment_period` finite steps in a row.

    A step with a gradient that is not finite divides it by `multiplier`, to at least 1.
    """

    def __init__(
        self,
        initial_loss_scale: float = 2.0**15,
        increment_period: int = 2000,
        multiplier: float = 2.0,
    ) -> None:
        self._initial, self._period = float(initial_loss_scale), int(increment_period)
        self._multiplier = float(multiplier)
        self._scale: Variable | None = None
        self._good: Variable | None = None

    def __call__(self) -> Tensor:
        """The scale at the start of the step: a float32 scalar."""
        return self._variables()[0].value()

    def _variables(self) -> tuple[Variable, Variable]:
        if self._scale is None or self._good is None:
            self._scale = Variable(np.float32(self._initial), trainable=False, name="loss_scale")
            with get_default_graph().colocate_with(self._scale.op):
                self._good = Variable(np.int64(0), trainable=False, name="good_steps")
        return self._scale, self._good

    def update(self, finite: Tensor) -> Operation:
        """The operation that updates the scale after a step; `finite` if all its gradients were."""
        scale, good = self._variables()
        graph = get_default_graph()
        with graph.colocate_with(scale.op):
            # Wait for an input from another device, so that no other update comes between the reads
            # and the writes.
            finite = identity(finite)
            with graph.control_dependencies([finite]):
                now, count = scale.read_value(), good.read_value() + 1
            full = equal(count, self._period)
            grown = where(full, now * self._multiplier, now)
            grown = where(is_finite(grown), grown, now)
            shrunk = maximum(now / self._multiplier, 1)
            none = constant(0, int64)
            updates = [
                update("Assign", [scale], [where(finite, grown, shrunk)]),
                update("Assign", [good], [where(finite, where(full, none, count), none)]),
            ]
        return group(*updates)


class LossScaleOptimizer(Optimizer):
    """`optimizer` with loss scaling: `loss_scale` is a number, or a DynamicLossScale.

    The results of `compute_gradients` are already divided by the scale and may be clipped as usual.
    """

    def __init__(self, optimizer: Optimizer, loss_scale: Any = None) -> None:
        super().__init__("LossScale")
        self._optimizer = optimizer
        self._dynamic: DynamicLossScale | None = None
        if loss_scale is None or isinstance(loss_scale, DynamicLossScale):
            self._dynamic = loss_scale or DynamicLossScale()
        self._fixed = 1.0 if self._dynamic else float(loss_scale)
        if self._dynamic and not isinstance(optimizer, FormulaOptimizer):
            raise GraphError(
                f"{type(optimizer).__name__} cannot skip an update, which a dynamic scale needs",
                hint="derive it from hf.train.FormulaOptimizer, or give a number as loss_scale",
            )

    def loss_scale(self) -> Tensor:
        """The scale of this step."""
        return self._dynamic() if self._dynamic else convert_to_tensor(self._fixed)

    def _own_gradients(
        self, loss: Tensor, var_list: Sequence[Variable] | None, grad_loss: Any
    ) -> list[tuple[Any, Variable]]:
        """The gradients of the wrapped optimizer, computed times the scale and divided by it."""
        loss, scale = convert_to_tensor(loss), self.loss_scale()
        seed = cast(scale, loss.dtype)
        if grad_loss is not None:
            seed = seed * convert_to_tensor(grad_loss, loss.dtype)
        pairs = self._optimizer._own_gradients(loss, var_list, seed)
        return [(_times(g, 1.0 / scale), v) for g, v in pairs]

    def apply_gradients(
        self, grads_and_vars: Pairs, global_step: Variable | None = None, name: str | None = None
    ) -> Operation:
        """Apply the gradients; with a dynamic scale only if all are finite."""
        pairs = list(grads_and_vars)
        if self._dynamic is None:
            return self._optimizer.apply_gradients(pairs, global_step, name)
        with get_default_graph().name_scope(name or self.name):
            finite = reduce_all(stack([_finite(g, v) for g, v in pairs if g is not None]))
            with self._optimizer._applied_only_if(finite):
                ops = [self._optimizer.apply_gradients(pairs)]
            ops.append(self._dynamic.update(finite))
            if global_step is not None:
                increment = cast(finite, global_step.dtype)
                with get_default_graph().control_dependencies(ops):
                    ops.append(update("AssignAdd", [global_step], [increment]))
            return group(*ops)

    def get_slot(self, var: Variable, name: str) -> Variable | None:
        """The slot of the wrapped optimizer."""
        return self._optimizer.get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        """The slot names of the wrapped optimizer."""
        return self._optimizer.get_slot_names()

    def variables(self) -> list[Variable]:
        """The slots of the wrapped optimizer."""
        return self._optimizer.variables()


def _times(g: Any, factor: Tensor) -> Any:
    if g is None:
        return None
    with get_default_graph().beside(g.op):
        if isinstance(g, IndexedSlices):
            return g.with_values(g.values * cast(factor, g.dtype))
        return g * cast(factor, g.dtype)


def _finite(g: Any, var: Variable) -> Tensor:
    values = g.values if isinstance(g, IndexedSlices) else g
    with var.here.colocate_with(var.op):
        return reduce_all(is_finite(values))
