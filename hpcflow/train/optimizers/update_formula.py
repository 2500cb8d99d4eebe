"""Update formula: an optimizer's formula, written once, for whole variables and for rows.

A formula operates on cells: the variable and its slots before and after the update. For a dense
gradient the cells are whole arrays. For IndexedSlices they are the rows of the gradient, with
gradients of equal indices added up. Other rows and their slots do not change (lazy update). With
momentum and moving averages this differs from the dense update, which also moves rows of zero
gradient.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcflow.graph.dtypes import float64, int64, is_half
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor
from hpcflow.ops.array.array_ops import constant, identity
from hpcflow.ops.control_flow.control_dependencies import group
from hpcflow.ops.math.arithmetic_ops import cast, where
from hpcflow.ops.variables.indexed_slices import IndexedSlices
from hpcflow.ops.variables.row_list_ops import sum_equal_rows
from hpcflow.ops.variables.variable_ops import Variable, update
from hpcflow.train.optimizers.optimizer import Optimizer, compute_gradients_for

ONLY_IF = "only_if"  # the condition of an update


class FormulaOptimizer(Optimizer):
    """An optimizer defined by its `_formula`.

    `SLOTS` lists the slots, which have the variable's shape. `STEP` is true if it counts the
    updates of each variable. `ROWS` is false if the formula needs the whole variable (such as its
    norm).
    """

    SLOTS: tuple[str, ...] = ()
    STEP = False
    ROWS = True

    def __init__(self, name: str, **numbers: Any) -> None:
        super().__init__(name)
        self._numbers = numbers

    def rate_variable(self, name: str) -> Variable | None:
        """The learning rate as a variable that a program may change; None if it is a tensor.

        `name` is that of the variable. To be called before the first gradient is applied.
        """
        rate = self._numbers.get("learning_rate")
        if isinstance(rate, (int, float, np.floating)):
            rate = Variable(np.float32(rate), trainable=False, name=name)
            self._numbers["learning_rate"] = rate
        return rate if isinstance(rate, Variable) else None

    def _formula(self, c: Cells, g: Tensor) -> None:
        """The update by gradient `g`, expressed with `c.keep` and `c.subtract` or `c.set`."""
        raise NotImplementedError

    def _fused(self, grad: Tensor, var: Variable) -> Operation | None:
        """One fused operation for the update of all of `var`, if there is one."""
        return None

    def _start(self, name: str, var: Variable) -> float:
        """The initial value of a slot."""
        return 0

    def _slots_of(self, var: Variable) -> None:
        """Create the slots in order."""
        for i, name in enumerate(self.SLOTS):
            suffix = f"{self.name}_{i}" if i else self.name
            self._slot(var, name, suffix, value=self._start(name, var))
        if self.STEP:
            self._slot(var, "step", f"{self.name}_step", (), int64)

    def _apply_dense(self, grad: Tensor, var: Variable) -> Operation:
        self._slots_of(var)
        simple = self._only_if is None and not is_half(var.dtype)
        fused = self._fused(grad, var) if simple else None
        return fused if fused is not None else self._by_formula(grad, var, None)

    def _apply_sparse(self, grad: IndexedSlices, var: Variable) -> Operation:
        if not self.ROWS:
            return super()._apply_sparse(grad, var)
        self._slots_of(var)
        with var.here.colocate_with(var.op):
            rows = sum_equal_rows(grad, f"{var.name}/distinct")
        return self._by_formula(rows.values, var, rows.indices)

    def _by_formula(self, grad: Tensor, var: Variable, indices: Tensor | None) -> Operation:
        graph = var.here
        # scalars are computed where their inputs are, not on the device of `var`
        numbers = {name: self._scalar(name, n, var) for name, n in self._numbers.items()}
        if self._only_if is not None:
            numbers[ONLY_IF] = self._only_if
        with graph.name_scope(f"{var.name}/update"), graph.colocate_with(var.op):
            # wait for inputs from other devices before any read, so that no other update comes
            # between
            # the reads and the writes
            grad = identity(grad, "gradient")
            here = {k: n if n.constant is not None else identity(n, k) for k, n in numbers.items()}
            after = [grad, *(n for n in here.values() if n.op.inputs)]
            cells = Cells(self, var, indices, here, after)
            self._formula(cells, cast(grad, compute_gradients_for(var)))
            return group(*cells.updates, name=self.name)


class Cells:
    """A variable and its slots, whole or the rows `indices`, before and after an update."""

    def __init__(
        self,
        optimizer: FormulaOptimizer,
        var: Variable,
        indices: Tensor | None,
        numbers: dict[str, Tensor],
        after: list[Tensor],
    ) -> None:
        self._optimizer, self._var, self._indices = optimizer, var, indices
        self._numbers, self._after = numbers, after
        self.updates: list[Operation] = []

    @property
    def name(self) -> str:
        """The variable's name."""
        return self._var.name

    # -- before the update

    @property
    def value(self) -> Tensor:
        """The variable's value."""
        return self._read(self._var, self._indices)

    def slot(self, name: str) -> Tensor:
        """A slot's value."""
        return self._read(self._slot_variable(name), self._indices)

    def number(self, name: str) -> Tensor:
        """A hyperparameter as a scalar of the dtype of updates."""
        return self._numbers[name]

    def exact(self, name: str) -> Tensor:
        """A hyperparameter in float64, so that 1 - decay and powers keep their precision."""
        return cast(self.number(name), float64)

    def rounded(self, x: Any) -> Tensor:
        """A scalar cast to the dtype of updates."""
        return cast(convert_to_tensor(x), compute_gradients_for(self._var))

    def rest(self, name: str) -> Tensor:
        """One minus a hyperparameter."""
        return self.rounded(1.0 - self.exact(name))

    def step(self) -> Tensor:
        """The number of this update of the variable, from 1, in float64; increments the counter."""
        slot = self._slot_variable("step")
        count = self._read(slot, None) + 1
        self._change("Assign", slot, count, None)
        return cast(count, float64)

    # -- after the update

    def keep(self, name: str, value: Tensor) -> None:
        """Set the slot's value."""
        self._change("Assign", self._slot_variable(name), value, self._indices)

    def set(self, value: Tensor) -> None:
        """Set the variable's value."""
        self._change("Assign", self._var, value, self._indices)

    def subtract(self, delta: Tensor) -> None:
        """Subtract `delta` from the variable."""
        if is_half(self._var.dtype):  # rounded once
            self.set(self.value - delta)
            return
        self._change("AssignSub", self._var, delta, self._indices)

    def _slot_variable(self, name: str) -> Variable:
        return self._optimizer._slots[self._var, name]

    def _read(self, variable: Variable, indices: Tensor | None) -> Tensor:
        """The value in the dtype of updates; `_change` rounds it to the variable's."""
        with variable.here.control_dependencies(self._after):
            current = variable.read_value() if indices is None else variable.sparse_read(indices)
        return cast(current, compute_gradients_for(variable))

    def _change(self, type: str, variable: Variable, value: Tensor, indices: Tensor | None) -> None:
        value = cast(value, variable.dtype)
        only_if = self._numbers.get(ONLY_IF)
        if only_if is not None:
            fallback = constant(0, value.dtype)
            if type == "Assign":
                fallback = cast(self._read(variable, indices), value.dtype)
            value = where(only_if, value, fallback)
        if indices is None:
            op = update(type, [variable], [value])
        else:
            by_rows = {"Assign": "ScatterUpdate", "AssignSub": "ScatterSub"}[type]
            op = variable._rows(by_rows, indices, value, None, distinct=True)
        self.updates.append(op)
