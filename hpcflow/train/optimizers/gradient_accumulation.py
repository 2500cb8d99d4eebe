"""Gradient accumulation: several micro-batches make one update, as one large batch would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpcflow.errors import GraphError
from hpcflow.graph.dtypes import float32
from hpcflow.graph.graph import (
    Operation,
    Tensor,
    convert_to_tensor,
    get_default_graph,
    user_line,
)
from hpcflow.ops.array.array_ops import identity
from hpcflow.ops.control_flow.control_dependencies import group
from hpcflow.ops.math.arithmetic_ops import add, cast, equal, multiply, where
from hpcflow.ops.variables.indexed_slices import IndexedSlices
from hpcflow.ops.variables.row_list_ops import sum_equal_rows
from hpcflow.ops.variables.variable_ops import Variable, update
from hpcflow.train.optimizers.optimizer import Optimizer, Pairs
from hpcflow.train.optimizers.update_formula import FormulaOptimizer


class AccumulatingOptimizer(Optimizer):
    """`optimizer` with one update per `steps` runs, by the mean of their gradients.

    With equal micro-batch sizes the update equals that of one batch of all their samples. The sums
    are variables placed with the trained ones (float32 for 16-bit variables). Checkpoints contain
    the sums and the count of runs. `global_step` counts updates. Gradients are summed over replicas
    in every run. IndexedSlices are accumulated in a dense variable placed with the table, and each
    run processes all of it: slots of rows that were not read change too.
    """

    def __init__(self, optimizer: Optimizer, steps: int) -> None:
        super().__init__("Accumulate")
        if int(steps) < 1:
            raise GraphError(
                f"the number of steps to accumulate must be at least 1, not {steps}",
                line=user_line(),
            )
        if not isinstance(optimizer, FormulaOptimizer):
            raise GraphError(
                f"{type(optimizer).__name__} cannot skip an update, which accumulation needs",
                line=user_line(),
                hint="derive it from hf.train.FormulaOptimizer",
            )
        self._optimizer, self._steps = optimizer, int(steps)
        self._count: Variable | None = None

    def _own_gradients(
        self, loss: Tensor, var_list: Sequence[Variable] | None, grad_loss: Any
    ) -> list[tuple[Any, Variable]]:
        """The gradients of the wrapped optimizer for this micro-batch."""
        return self._optimizer._own_gradients(loss, var_list, grad_loss)

    def apply_gradients(
        self, grads_and_vars: Pairs, global_step: Variable | None = None, name: str | None = None
    ) -> Operation:
        """Accumulate the gradients; every `steps`-th run applies their mean and resets the sums."""
        pairs = [(g, v) for g, v in grads_and_vars if g is not None]
        with get_default_graph().name_scope(name or self.name):
            if self._count is None:
                self._count = Variable(np.int64(0), trainable=False, name="micro_batches")
            due, counted = self._counted(_values(pairs[-1][0]))  # it is ready first
            means, assigns = [], [counted]
            for g, v in pairs:
                with v.here.colocate_with(v.op):
                    mean, keep = self._added(g, v, due)
                means.append((mean, v))
                assigns.append(keep)
            with self._optimizer._applied_only_if(due):
                ops = [self._optimizer.apply_gradients(means), *assigns]
            if global_step is not None:
                with get_default_graph().control_dependencies(ops):
                    ops.append(update("AssignAdd", [global_step], [cast(due, global_step.dtype)]))
            return group(*ops)

    def _counted(self, gradient: Tensor) -> tuple[Tensor, Operation]:
        """Whether this run is due for an update, and the operation that stores the count of runs.

        It follows a gradient: servers then count once for all workers whose gradients they join.
        It waits for it where the count is, so that no other count comes between read and write.
        """
        assert self._count is not None
        with get_default_graph().colocate_with(self._count.op):
            with get_default_graph().control_dependencies([gradient]):
                count = add(self._count.read_value(), 1)
            due = equal(count, self._steps)
            return due, update("Assign", [self._count], [where(due, 0, count)])

    def _added(self, g: Any, v: Variable, due: Tensor) -> tuple[Tensor, Operation]:
        """The mean of the gradients so far, and the operation that stores their sum."""
        dtype = float32 if v.dtype.itemsize == 2 else v.dtype
        slot = self._slot(v, "sum", "gradient_sum", dtype=dtype)
        # Wait for inputs from other devices, so that no other update comes between the reads and
        # the writes.
        due = identity(due)
        if isinstance(g, IndexedSlices):  # only the rows are sent
            rows = sum_equal_rows(g, optional=True)
            with v.here.control_dependencies([due]):
                added = slot.scatter_add(rows.with_values(cast(rows.values, dtype)))
            with v.here.control_dependencies([added]):
                total = slot.read_value()
        else:
            g = identity(g)
            with v.here.control_dependencies([due, g]):
                total = add(slot.read_value(), cast(g, dtype))
        mean = cast(multiply(total, 1 / self._steps), v.dtype)
        return mean, update("Assign", [slot], [where(due, 0, total)])

    def get_slot(self, var: Variable, name: str) -> Variable | None:
        """The slot of the wrapped optimizer, or the sum of gradients, "sum"."""
        return super().get_slot(var, name) or self._optimizer.get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        """The slot names of both."""
        return sorted({*super().get_slot_names(), *self._optimizer.get_slot_names()})

    def variables(self) -> list[Variable]:
        """The slots of both, and the count of micro-batches."""
        counters = [] if self._count is None else [self._count]
        return [*counters, *super().variables(), *self._optimizer.variables()]


def _values(gradient: Any) -> Tensor:
    return convert_to_tensor(gradient.values if isinstance(gradient, IndexedSlices) else gradient)
