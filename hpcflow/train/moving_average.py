"""Moving averages: exponential averages of variables and tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

from hpcflow.errors import DTypeError, GraphError
from hpcflow.graph.function_body import innermost_graph
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor, get_default_graph
from hpcflow.graph.graph_keys import GraphKeys
from hpcflow.graph.static_shape import is_known, shape_text
from hpcflow.ops.array.array_ops import identity
from hpcflow.ops.array.broadcast_ops import zeros
from hpcflow.ops.control_flow.control_dependencies import group
from hpcflow.ops.math.arithmetic_ops import cast, divide, minimum, multiply, pow, subtract
from hpcflow.ops.math.elementwise_math_ops import div_no_nan
from hpcflow.ops.replicas.replica_ops import replica_share, replica_sum
from hpcflow.ops.variables.variable_ops import (
    Variable,
    moving_average_variables,
    trainable_variables,
    update,
)


class ExponentialMovingAverage:
    """Keeps `average -= (1 - decay) * (average - value)` of variables and tensors.

    With `num_updates`, a number, tensor or variable, the decay is at most `(1 + num_updates) / (10
    + num_updates)`. The average of a variable starts at its initial value. The average of a tensor
    starts at 0; with `zero_debias` its value is divided by `1 - decay ** updates` (Kingma and Ba,
    arXiv:1412.6980, section 3), which requires a constant decay.

    Ranks:  the average is on the device of its variable; each step updates it once. A tensor that
            differs between synchronous replicas is averaged over the global batch first.
    """

    def __init__(
        self,
        decay: Any,
        num_updates: Any = None,
        zero_debias: bool = False,
        name: str = "ExponentialMovingAverage",
    ) -> None:
        self._decay, self._num_updates, self._zero_debias = decay, num_updates, zero_debias
        self._name = name
        self._averages: dict[Any, Variable] = {}
        self._counts: dict[Any, Variable] = {}  # update counts of debiased averages
        self._values: dict[Any, Tensor] = {}

    @property
    def name(self) -> str:
        """The suffix of the names of its variables."""
        return self._name

    def apply(self, var_list: Sequence[Any] | None = None) -> Operation:
        """One operation that updates the averages of `var_list` (default: trainable variables).

        Run it after the training step: `with hf.control_dependencies([train])`. An existing average
        is updated by this operation, too.
        Errors: DTypeError for variables that are not floating-point.
        """
        variables = list(trainable_variables() if var_list is None else var_list)
        for var in variables:
            if var.dtype.kind != "f":
                raise DTypeError(
                    f"{var.name!r} is {var.dtype}: an average needs floating-point values"
                )
        for var in variables:
            if var not in self._averages:
                self._make(var)
        with get_default_graph().name_scope(self._name) as scope:
            return group(*(self._update(var) for var in variables), name=scope)

    def average(self, var: Any) -> Any:
        """The average of `var`: a variable, or a tensor if debiased; None if there is none.

        Its value is that at the start of a step.
        """
        if var not in self._counts:
            return self._averages.get(var)
        if var not in self._values:
            average, graph = self._averages[var], var.graph
            with graph.as_default(), graph.name_scope(None), graph.control_dependencies(None):
                weight = subtract(1.0, pow(self._decay_of(var), cast(self._counts[var], var.dtype)))
                self._values[var] = div_no_nan(average, weight, f"{average.name}/debiased")
        return self._values[var]

    def average_name(self, var: Any) -> str:
        """The name of the variable for the average of `var`, whether or not it exists."""
        if var in self._averages:
            return self._averages[var].name
        return f"{var.op.name}/{self._name}"

    def variables_to_restore(
        self, moving_avg_variables: Sequence[Variable] | None = None
    ) -> dict[str, Variable]:
        """A dict {name: variable} for a `Saver` that restores averages in place of the variables.

        It has the averages of `moving_avg_variables`, by default of all trainable or averaged
        variables, and all other variables, including averages of tensors, under their own names.
        """
        graph = get_default_graph()
        averaged: list[Any] = (
            [*trainable_variables(), *moving_average_variables()]
            if moving_avg_variables is None
            else list(moving_avg_variables)
        )
        by_name = {self.average_name(v): v for v in dict.fromkeys(averaged)}
        covered = set(averaged)
        for v in graph.get_collection(GraphKeys.GLOBAL_VARIABLES):
            if v not in covered and v.name not in by_name:
                by_name[v.name] = v
        return by_name

    def _make(self, source: Any) -> None:
        """Create the variable for the average of `source`, and its counter if debiased."""
        graph, is_state = source.graph, isinstance(source, Variable)
        if not is_known(source.shape):
            raise GraphError(
                f"the average of {source.name!r} needs a known shape, "
                f"not {shape_text(source.shape)}",
                op=source.op.name,
                line=source.op.line,
                hint="use set_shape",
            )
        start = (
            source.initialized_value if is_state else (lambda: zeros(source.shape, source.dtype))
        )
        name = f"{source.op.name}/{self._name}"
        with graph.as_default(), graph.name_scope(None):
            # a tensor's average is placed with variables, not where the tensor is computed
            with graph.colocate_with(source.op) if is_state else contextlib.nullcontext():
                average = self._averages[source] = Variable(start, trainable=False, name=name)
            if self._zero_debias and not is_state:
                with graph.colocate_with(average.op):
                    self._counts[source] = Variable(0, trainable=False, name=f"{name}/updates")
        if is_state:
            graph.add_to_collection(GraphKeys.MOVING_AVERAGE_VARIABLES, source)

    def _decay_of(self, source: Any) -> Tensor:
        return cast(convert_to_tensor(self._decay), source.dtype)

    def _update(self, var: Any) -> Operation:
        average, graph = self._averages[var], innermost_graph(var.graph.root)
        if isinstance(var, Variable):
            value = var.read_value()
        else:
            value = replica_sum(multiply(var, cast(replica_share(), var.dtype)))
        with graph.colocate_with(average.op), graph.name_scope("AssignMovingAvg"):
            decay = self._decay_of(var)
            if self._num_updates is not None:
                n = cast(convert_to_tensor(self._num_updates), var.dtype)
                decay = minimum(decay, divide(n + 1.0, n + 10.0))
            # Wait for an input from another device, so that no other update comes between the read
            # and the write.
            value = identity(value)
            with graph.control_dependencies([value]):
                current = average.read_value()
            change = multiply(subtract(current, value), subtract(1.0, decay))
            update_op = update("AssignSub", [average], [change])
            if var not in self._counts:
                return update_op
            with graph.control_dependencies([update_op]):  # servers make both once for all workers
                return self._counts[var].assign_add(1).op
