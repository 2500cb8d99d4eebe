"""Optimizer base class: gradients of the global batch, and updates on the variables' devices."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hpcflow.autodiff.gradients import free_gradients
from hpcflow.errors import ArgumentError, DTypeError, GradientError, ShapeError
from hpcflow.graph.deprecated_arguments import accepts_and_ignores
from hpcflow.graph.dtypes import as_dtype, float32, is_floating, is_half
from hpcflow.graph.function_body import root_as_default
from hpcflow.graph.graph import (
    Graph,
    Operation,
    Tensor,
    convert_to_tensor,
    get_default_graph,
)
from hpcflow.graph.graph_keys import GraphKeys
from hpcflow.graph.static_shape import merge_shapes, require_known, shape_text
from hpcflow.ops.array.array_ops import constant, ensure_shape
from hpcflow.ops.array.broadcast_ops import fill, ones_like
from hpcflow.ops.control_flow.control_dependencies import group
from hpcflow.ops.math.arithmetic_ops import cast, multiply
from hpcflow.ops.replicas.replica_ops import replica_share, replica_sum
from hpcflow.ops.shape_inference import several
from hpcflow.ops.variables.indexed_slices import IndexedSlices
from hpcflow.ops.variables.sparse_row_update_ops import the_variable
from hpcflow.ops.variables.variable_ops import Variable, trainable_variables, update
from hpcflow.plan.verification.suspicious_graph_warnings import MINIMIZED, MINIMIZED_FOR
from hpcflow.platform.exception_translation import user_line, value_text

Pairs = Sequence[tuple[Any, Variable]]


def compute_gradients_for(var: Variable) -> np.dtype:
    """The dtype of slots, hyperparameters and arithmetic: float32 for 16-bit variables."""
    return float32 if is_half(var.dtype) else var.dtype


class Optimizer:
    """Base class of the optimizers.

    A subclass creates the update of one variable in `_apply_dense` and, for gradients of rows, in
    `_apply_sparse`. `update_formula.FormulaOptimizer` needs only one formula.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._slots: dict[tuple[Variable, str], Variable] = {}
        self._scalars: dict[tuple[Graph, str, Any], Tensor] = {}
        self._only_if: Tensor | None = None  # condition of updates

    @contextlib.contextmanager
    def _applied_only_if(self, condition: Tensor) -> Iterator[None]:
        """Updates created inside have an effect only in steps where `condition` is true."""
        self._only_if = condition
        try:
            yield
        finally:
            self._only_if = None

    GATE_NONE, GATE_OP, GATE_GRAPH = 0, 1, 2  # all three mean the same

    @accepts_and_ignores("gate_gradients", "aggregation_method", "colocate_gradients_with_ops")
    def minimize(
        self,
        loss: Tensor,
        global_step: Variable | None = None,
        var_list: Sequence[Variable] | None = None,
        name: str | None = None,
        grad_loss: Any = None,
    ) -> Operation:
        """The training step: `compute_gradients`, then `apply_gradients`."""
        pairs = self.compute_gradients(loss, var_list, grad_loss)
        return self.apply_gradients(pairs, global_step, name)

    @accepts_and_ignores("gate_gradients", "aggregation_method", "colocate_gradients_with_ops")
    def compute_gradients(
        self, loss: Tensor, var_list: Sequence[Variable] | None = None, grad_loss: Any = None
    ) -> list[tuple[Any, Variable]]:
        """Pairs (gradient, variable) for `var_list`, by default the trainable variables.

        A gradient is a tensor, IndexedSlices if only rows of the variable are read, or None. Each
        shard of a partitioned variable is a separate variable. `grad_loss` is a factor, by default
        1.

        Shapes: `loss` is a scalar: a mean over the samples fed to this replica. Terms that do not
                depend on samples, such as weight decay, may be added. Another tensor is summed.
        Ranks:  the gradients are those of the global batch of all synchronous replicas, weighted by
                numbers of samples, and the same on all; clipping works as on one replica.
        """
        return [
            (combined_update(g, v), v) for g, v in self._own_gradients(loss, var_list, grad_loss)
        ]

    def _own_gradients(
        self, loss: Tensor, var_list: Sequence[Variable] | None, grad_loss: Any
    ) -> list[tuple[Any, Variable]]:
        """This replica's contribution to the gradients of `compute_gradients`."""
        loss = convert_to_tensor(loss)
        if not is_floating(loss.dtype):
            raise DTypeError(
                f"the loss {loss.name!r} is {loss.dtype}; gradients need floating-point values",
                op=loss.op.name,
                line=loss.op.line,
                hint="convert with hf.cast(loss, hf.float32)",
            )
        requested: list[Any] = (
            list(trainable_variables()) if var_list is None else several(var_list, "var_list")
        )
        variables = [piece for v in requested for piece in (v if hasattr(v, "partitions") else [v])]
        if not variables:
            raise GradientError(
                "there are no trainable variables",
                op=loss.op.name,
                line=loss.op.line,
                hint="make weights with hf.Variable(initial), or give var_list",
            )
        share = cast(replica_share(), loss.dtype)
        if grad_loss is not None:
            share = share * convert_to_tensor(grad_loss, loss.dtype)
        loss.graph.add_to_collection(MINIMIZED, loss)
        if loss.shape not in (None, ()):
            share = multiply(share, ones_like(loss))
        gradients = free_gradients(loss, variables, grad_ys=share)  # the collectives are ordered
        if all(g is None for g in gradients):
            raise _no_gradients(variables)
        if var_list is None:
            for v, g in zip(variables, gradients, strict=True):
                loss.graph.add_to_collection(MINIMIZED_FOR, (v, g is not None))
        return list(zip(gradients, variables, strict=True))

    def apply_gradients(
        self, grads_and_vars: Pairs, global_step: Variable | None = None, name: str | None = None
    ) -> Operation:
        """One operation that updates each variable by its gradient, then adds 1 to `global_step`.

        Variables with gradient None do not change. The operation is added to the collection
        "train_op".
        """
        all_pairs = [_pair(pair) for pair in several(grads_and_vars, "apply_gradients")]
        pairs = [(_gradient(g), v) for g, v in all_pairs if g is not None]
        if not pairs:
            raise _no_gradients([v for _, v in all_pairs])
        for _, v in pairs:
            the_variable("apply_gradients", v)
        graph = pairs[0][1].here
        train_op = self._applied(graph, pairs, global_step, name)
        if train_op not in graph.get_collection(GraphKeys.TRAIN_OP):
            graph.add_to_collection(GraphKeys.TRAIN_OP, train_op)
        return train_op

    def _applied(
        self, graph: Graph, pairs: Pairs, global_step: Variable | None, name: str | None
    ) -> Operation:
        with graph.name_scope(name or self.name) as scope:
            updates = [_constrained(v, self._update(g, v)) for g, v in pairs]
            if global_step is None:
                return group(*updates, name=scope)
            counter = the_variable("global_step", global_step)
            one = constant(1, counter.dtype)  # does not wait for the updates
            with graph.control_dependencies(updates):
                return update("AssignAdd", [counter], [one], name=scope)

    def get_slot(self, var: Variable, name: str) -> Variable | None:
        """The slot `name` of `var`; None if there is none."""
        return self._slots.get((var, name))

    def get_slot_names(self) -> list[str]:
        """The names of slots."""
        return sorted({name for _, name in self._slots})

    def variables(self) -> list[Variable]:
        """All slots, in order of creation."""
        return list(self._slots.values())

    # -- for subclasses

    def _update(self, grad: Any, var: Variable) -> Operation:
        """The operation that updates `var` and its slots by `grad`."""
        grad = _fitting(grad, var)
        if isinstance(grad, IndexedSlices):
            return self._apply_sparse(grad, var)
        return self._apply_dense(grad, var)

    def _apply_dense(self, grad: Tensor, var: Variable) -> Operation:
        """The operation that updates all of `var`."""
        raise NotImplementedError

    def _apply_sparse(self, grad: IndexedSlices, var: Variable) -> Operation:
        """The operation that updates rows of `var`; by default it updates all and logs this."""
        with var.here.colocate_with(var.op):
            return self._apply_dense(convert_to_tensor(grad), var)

    def _slot(
        self,
        var: Variable,
        name: str,
        suffix: str,
        shape: Any = None,
        dtype: Any = None,
        value: float = 0,
    ) -> Variable:
        """The slot `name` of `var`, created at first use: shaped as `var`, filled with `value`."""
        if (var, name) not in self._slots:
            full, dtype = f"{var.name}/{suffix}", dtype or compute_gradients_for(var)
            shape = var.shape if shape is None else shape
            with (
                root_as_default(var.graph) as root,
                root.colocate_with(var.op),
                root.name_scope(None),
            ):
                self._slots[var, name] = Variable(
                    lambda: fill(shape, as_dtype(dtype).type(value)),
                    trainable=False,
                    name=full,
                )
        return self._slots[var, name]

    def _scalar(self, name: str, value: Any, var: Variable) -> Tensor:
        """The hyperparameter `name` in the dtype of updates of `var`; a tensor may vary.

        A function without arguments is called once, at first use.
        """
        dtype = compute_gradients_for(var)
        key = (var.graph, name, dtype)
        if key not in self._scalars:
            value = value() if callable(value) else value
            if isinstance(value, str):
                raise DTypeError(
                    f"{name}={value!r} of {self.name} is text, not a number",
                    line=user_line(),
                    hint=f"convert it: {name}=float(...)",
                )
            with root_as_default(var.graph) as graph, graph.name_scope(f"{self.name}/"):
                if isinstance(value, (int, float)):
                    scalar = constant(value, dtype, name=name)
                else:
                    scalar = cast(convert_to_tensor(value), dtype, name)
            self._scalars[key] = scalar
        return self._scalars[key]


def _gradient(grad: Any) -> Any:
    """A gradient as a tensor or IndexedSlices, also from a variable or an array."""
    return grad if isinstance(grad, IndexedSlices) else convert_to_tensor(grad)


def _constrained(var: Variable, update_op: Operation) -> Operation:
    """The update, followed by that of the variable's constraint, if it has one."""
    if var.constraint is None:
        return update_op
    graph = var.here
    with graph.control_dependencies([update_op]), graph.colocate_with(var.op):
        assign_op: Operation = var.assign(var.constraint(var.read_value()), read_value=False)
    return assign_op


def _fitting(grad: Any, var: Variable) -> Any:
    """`grad` with the shape of `var`, checked at run time if unknown before."""
    try:
        merge_shapes(grad.shape, var.shape)
    except ShapeError:
        raise ShapeError(
            f"the gradient of {var.name!r} has shape {shape_text(grad.shape)}, not "
            f"{shape_text(var.shape)}",
            op=grad.op.name,
            line=grad.op.line,
            hint="give one number for each element: gradients are not broadcast",
        ) from None
    if isinstance(grad, IndexedSlices):
        return grad.with_values(_ensured(grad.values, (None, *require_known(var.shape)[1:])))
    return _ensured(grad, var.shape)


def _ensured(tensor: Tensor, shape: Any) -> Tensor:
    """`tensor` with shape `shape`, checked at run time if unknown before."""
    if merge_shapes(tensor.shape, shape) == tensor.shape:
        return tensor
    with get_default_graph().beside(tensor.op):
        return ensure_shape(tensor, shape)


def combined_update(grad: Any, var: Variable, wire: Any = None) -> Any:
    """The sum over replicas on the variable's device; `wire` is that of `replica_sum`."""
    if grad is None:
        return None
    graph = var.here if isinstance(var, Variable) else get_default_graph()
    with graph.colocate_with(var.op):
        return replica_sum(grad, f"{var.op.name}/gradient", wire)


def _pair(pair: Any) -> Any:
    """A gradient and its variable.

    Errors: ArgumentError for anything else.
    """
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise ArgumentError(
            f"apply_gradients takes pairs (gradient, variable), not {value_text(pair)}",
            line=user_line(),
            hint="use the result of compute_gradients",
        )
    return pair


def _no_gradients(variables: Sequence[Variable]) -> GradientError:
    return GradientError(
        f"the loss depends on none of {', '.join(v.name for v in variables)}",
        hint="compute the loss from the variables that are to be trained, without hf.stop_gradient",
    )
