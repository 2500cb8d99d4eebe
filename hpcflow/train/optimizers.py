"""Optimizers: gradients of the joined batch, then updates where the variables live."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpcflow.autodiff import gradients
from hpcflow.errors import GradientError, GraphError, ShapeError
from hpcflow.graph.dtypes import int64
from hpcflow.graph.graph import Graph, Operation, Tensor, convert_to_tensor
from hpcflow.graph.shape import show
from hpcflow.ops.array import constant
from hpcflow.ops.broadcast import zeros
from hpcflow.ops.comm import replica_share, replica_sum
from hpcflow.ops.control import group
from hpcflow.ops.math import cast
from hpcflow.ops.state import Variable, trainable_variables, update

Pairs = Sequence[tuple[Tensor | None, Variable]]


class Optimizer:
    """Base of the optimizers; one serves one graph. A subclass makes one variable's `_update`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._graph: Graph | None = None
        self._slots: dict[tuple[Variable, str], Variable] = {}
        self._scalars: dict[tuple[str, Any], Tensor] = {}

    def minimize(
        self,
        loss: Tensor,
        global_step: Variable | None = None,
        var_list: Sequence[Variable] | None = None,
        name: str | None = None,
    ) -> Operation:
        """The training step: `compute_gradients`, then `apply_gradients`."""
        return self.apply_gradients(self.compute_gradients(loss, var_list), global_step, name)

    def compute_gradients(
        self, loss: Tensor, var_list: Sequence[Variable] | None = None
    ) -> list[tuple[Tensor | None, Variable]]:
        """Pairs (gradient, variable) for `var_list`, by default the trainable variables.

        Shapes: `loss` is a scalar: a mean over the samples that this replica is fed; terms that
                no sample enters, as weight decay, may be added.
        Ranks:  the gradients are those of the joined batch of all synchronous replicas, each
                counted by its samples, and the same on all: clip them as if there were one.
        """
        loss = convert_to_tensor(loss)
        if loss.shape not in (None, ()):
            raise ShapeError(
                f"the loss has shape {show(loss.shape)}, not that of a scalar",
                op=loss.op.name,
                line=loss.op.line,
                hint="minimize hf.reduce_mean(losses), a mean over the samples",
            )
        variables = trainable_variables() if var_list is None else list(var_list)
        if not variables:
            raise GradientError(
                "there are no trainable variables",
                op=loss.op.name,
                line=loss.op.line,
                hint="make weights with hf.Variable(initial), or give var_list",
            )
        share = cast(replica_share(), loss.dtype)
        found = gradients(loss, variables, grad_ys=share)
        if all(g is None for g in found):
            raise _no_gradients(variables)
        return [(_joined(g, v), v) for g, v in zip(found, variables, strict=True)]

    def apply_gradients(
        self, grads_and_vars: Pairs, global_step: Variable | None = None, name: str | None = None
    ) -> Operation:
        """One operation that updates each variable by its gradient, then adds 1 to `global_step`.

        Variables whose gradient is None stay as they are.
        """
        pairs = [(g, v) for g, v in grads_and_vars if g is not None]
        if not pairs:
            raise _no_gradients([v for _, v in grads_and_vars])
        graph = pairs[0][1].graph
        if self._graph not in (None, graph):
            raise GraphError(
                f"optimizer {self.name!r} has been used in another graph",
                hint="make an optimizer for each graph",
            )
        self._graph = graph
        with graph.name_scope(name or self.name) as scope:
            updates = [self._update(g, v) for g, v in pairs]
            if global_step is None:
                return group(*updates, name=scope)
            one = constant(1, global_step.dtype)  # not waiting for the updates
            with graph.control_dependencies(updates):
                return global_step.assign_add(one, name=scope)

    def get_slot(self, var: Variable, name: str) -> Variable | None:
        """The variable kept beside `var` under `name`, None if there is none."""
        return self._slots.get((var, name))

    def get_slot_names(self) -> list[str]:
        """The names under which slots are kept."""
        return sorted({name for _, name in self._slots})

    def variables(self) -> list[Variable]:
        """All slots, in the order they were made."""
        return list(self._slots.values())

    # -- for subclasses

    def _update(self, grad: Tensor, var: Variable) -> Operation:
        """The operation that updates `var` and its slots by `grad`."""
        raise NotImplementedError

    def _slot(
        self, var: Variable, name: str, suffix: str, shape: Any = None, dtype: Any = None
    ) -> Variable:
        """The slot `name` of `var`, made at first use: zeros, like `var` by default, beside it."""
        if (var, name) not in self._slots:
            full, dtype = f"{var.name}/{suffix}", dtype or var.dtype
            shape = var.shape if shape is None else shape
            with var.graph.colocate_with(var.op), var.graph.name_scope(None):
                self._slots[var, name] = Variable(
                    lambda: zeros(shape, dtype), trainable=False, name=full
                )
        return self._slots[var, name]

    def _scalar(self, name: str, value: Any, var: Variable) -> Tensor:
        """The hyperparameter `name` in the dtype of `var`; a tensor or variable may change."""
        if (name, var.dtype) not in self._scalars:
            graph = var.graph
            with graph.name_scope(f"{self.name}/"), graph.control_dependencies(None):
                if isinstance(value, (int, float)):
                    made = constant(value, var.dtype, name=name)
                else:
                    made = cast(convert_to_tensor(value), var.dtype, name)
            self._scalars[name, var.dtype] = made
        return self._scalars[name, var.dtype]


def _joined(grad: Tensor | None, var: Variable) -> Tensor | None:
    """The sum over replicas, made where the variable lives."""
    if grad is None:
        return None
    with var.graph.colocate_with(var.op):
        return replica_sum(grad, f"{var.name}/gradient")


def _no_gradients(variables: Sequence[Variable]) -> GradientError:
    return GradientError(
        f"the loss depends on none of {', '.join(v.name for v in variables)}",
        hint="compute the loss from the variables that are to be trained, without hf.stop_gradient",
    )


class GradientDescentOptimizer(Optimizer):
    """`var -= learning_rate * gradient`."""

    def __init__(self, learning_rate: Any, name: str = "GradientDescent") -> None:
        super().__init__(name)
        self._rate = learning_rate

    def _update(self, grad: Tensor, var: Variable) -> Operation:
        rate = self._scalar("learning_rate", self._rate, var)
        return update("ApplyGradientDescent", [var], [rate, grad])


class MomentumOptimizer(Optimizer):
    """`accum = momentum * accum + gradient; var -= learning_rate * accum`.

    With `use_nesterov` the variable moves by `gradient + momentum * accum` instead of `accum`.
    """

    def __init__(
        self, learning_rate: Any, momentum: Any, name: str = "Momentum", use_nesterov: bool = False
    ) -> None:
        super().__init__(name)
        self._rate, self._momentum, self._nesterov = learning_rate, momentum, bool(use_nesterov)

    def _update(self, grad: Tensor, var: Variable) -> Operation:
        accum = self._slot(var, "momentum", self.name)
        rate = self._scalar("learning_rate", self._rate, var)
        momentum = self._scalar("momentum", self._momentum, var)
        attrs = {"dtype": var.dtype, "shape": var.shape, "use_nesterov": self._nesterov}
        inputs = [var.handle, accum.handle, rate, momentum, grad]
        with var.graph.colocate_with(var.op):
            return var.graph.create_op("ApplyMomentum", inputs, attrs, f"{var.name}/ApplyMomentum")


class AdamOptimizer(Optimizer):
    """Adam (Kingma and Ba, arXiv:1412.6980) in the form of its section 2, as TensorFlow 1.

    `var -= rate * m / (sqrt(v) + epsilon)` with the rate of update t of the variable,
    `learning_rate * sqrt(1 - beta2^t) / (1 - beta1^t)`: `epsilon` is the paper's epsilon-hat, not
    that of its Algorithm 1.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta1: Any = 0.9,
        beta2: Any = 0.999,
        epsilon: Any = 1e-8,
        name: str = "Adam",
    ) -> None:
        super().__init__(name)
        self._numbers = {
            "learning_rate": learning_rate,
            "beta1": beta1,
            "beta2": beta2,
            "epsilon": epsilon,
        }

    def _update(self, grad: Tensor, var: Variable) -> Operation:
        slots = [
            self._slot(var, "m", self.name),
            self._slot(var, "v", f"{self.name}_1"),
            self._slot(var, "step", f"{self.name}_step", (), int64),
        ]
        numbers = [self._scalar(name, value, var) for name, value in self._numbers.items()]
        return update("ApplyAdam", [var, *slots], [*numbers, grad])
