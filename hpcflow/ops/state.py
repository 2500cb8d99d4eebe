"""Mutable state: variables, read and updated through their handle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcflow.errors import DTypeError, GraphError, ShapeError
from hpcflow.graph.dtypes import as_dtype, resource
from hpcflow.graph.graph import (
    Graph,
    Operation,
    Tensor,
    convert_to_tensor,
    get_default_graph,
)
from hpcflow.graph.registry import NoGrad, op
from hpcflow.graph.shape import Shape, Spec, is_known, merge, show
from hpcflow.ops.control import group
from hpcflow.ops.scatter import RowUpdates

_HANDLE = NoGrad("a handle is not a number")
_UPDATE = NoGrad("an update of state is not a function of its inputs")


def _handle(inputs: Sequence[Spec], attrs: dict[str, Any]) -> list[Spec]:
    return [Spec(resource, ())]


def _read(inputs: Sequence[Spec], attrs: dict[str, Any]) -> list[Spec]:
    return [Spec(np.dtype(attrs["dtype"]), tuple(attrs["shape"]))]


def _update(handles: int, likes: tuple[int, ...]) -> Callable[..., list[Spec]]:
    """Shape rule of an update: inputs at `likes` are like the variable, the others scalars."""

    def infer(inputs: Sequence[Spec], attrs: dict[str, Any]) -> list[Spec]:
        dtype, shape = np.dtype(attrs["dtype"]), tuple(attrs["shape"])
        for i, spec in enumerate(inputs[handles:], handles):
            if spec.dtype != dtype:
                raise DTypeError(f"input {i} is {spec.dtype}; the variable is {dtype}")
            need: Shape = shape if i in likes else ()
            try:
                merge(spec.shape, need)
            except ShapeError:
                raise ShapeError(
                    f"input {i} is {show(spec.shape)}; the variable needs {show(need)}"
                ) from None
        return []

    return infer


def _read_gradient(operation: Operation, grad: Tensor) -> list[Tensor]:
    return [grad]  # a handle's gradient is the gradient of the value read through it


op("Variable", infer=_handle, grad=_HANDLE, stateful=True)
op("ReadVariable", infer=_read, grad=_read_gradient, reads=(0,), slices=True)
op("Assign", infer=_update(1, (1,)), grad=_UPDATE, writes=(0,))
op("AssignAdd", infer=_update(1, (1,)), grad=_UPDATE, writes=(0,))
op("AssignSub", infer=_update(1, (1,)), grad=_UPDATE, writes=(0,))
op("ApplyGradientDescent", infer=_update(1, (2,)), grad=_UPDATE, writes=(0,))
op("ApplyMomentum", infer=_update(2, (4,)), grad=_UPDATE, writes=(0, 1))
op("ApplyAdam", infer=_update(4, (8,)), grad=_UPDATE, writes=(0, 1, 2, 3))
op("WaitInitialized", infer=lambda inputs, attrs: [], grad=_HANDLE, stateful=True, waits=True)


class Variable(RowUpdates):
    """Mutable state that lives between steps.

    `initial` is a value, a tensor, or a function of no arguments giving one; its static shape must
    be known. `trainable` variables are what optimizers update by default.
    """

    def __init__(
        self, initial: Any, trainable: bool = True, name: str | None = None, dtype: Any = None
    ) -> None:
        graph = get_default_graph()
        with graph.name_scope(None), graph.control_dependencies(None):
            value = convert_to_tensor(
                initial() if callable(initial) else initial,
                None if dtype is None else as_dtype(dtype),
            )
            if not is_known(value.shape):
                raise ShapeError(
                    f"the initial value of a variable has shape {show(value.shape)}",
                    op=value.op.name,
                    line=value.op.line,
                    hint="give an initial value whose shape is known",
                )
            self.dtype, self.shape = value.dtype, value.shape
            attrs = {"dtype": value.dtype, "shape": value.shape, "trainable": trainable}
            self.op = graph.create_op("Variable", [], attrs, name or "Variable")
            self.name = self.op.name
            self.handle = self.op.outputs[0]
            self.initial_value = value
            self.initializer = self._update("Assign", [value], "Assign", initial=True)
        self.trainable = trainable
        self._value: Tensor | None = None
        graph.add_to_collection("variables", self)
        if trainable:
            graph.add_to_collection("trainable_variables", self)

    @property
    def graph(self) -> Graph:
        """The graph it belongs to."""
        return self.op.graph

    @property
    def device(self) -> str:
        """The device asked for."""
        return self.op.device

    def value(self) -> Tensor:
        """Its value at the start of a step, one read shared by all uses."""
        if self._value is None:
            with self.graph.name_scope(None), self.graph.control_dependencies(None):
                self._value = self.read_value("read")
        return self._value

    as_tensor = value

    def read_value(self, name: str = "read") -> Tensor:
        """A new read of its value, after the control dependencies in force."""
        attrs = {"dtype": self.dtype, "shape": self.shape}
        with self.graph.colocate_with(self.op):
            read = self.graph.create_op("ReadVariable", [self.handle], attrs, f"{self.name}/{name}")
        return read.outputs[0]

    def assign(self, value: Any, name: str | None = None) -> Operation:
        """An operation that sets it to `value`."""
        return self._update("Assign", [convert_to_tensor(value, self.dtype)], name)

    def assign_add(self, value: Any, name: str | None = None) -> Operation:
        """An operation that adds `value` to it."""
        return self._update("AssignAdd", [convert_to_tensor(value, self.dtype)], name)

    def assign_sub(self, value: Any, name: str | None = None) -> Operation:
        """An operation that subtracts `value` from it."""
        return self._update("AssignSub", [convert_to_tensor(value, self.dtype)], name)

    def _update(
        self, type: str, inputs: Sequence[Tensor], name: str | None = None, initial: bool = False
    ) -> Operation:
        return update(type, [self], inputs, name, initial=initial)

    def __repr__(self) -> str:
        return f"<hf.Variable {self.name!r} shape={show(self.shape)} dtype={self.dtype}>"

    def __hash__(self) -> int:
        return id(self)


def update(
    type: str,
    variables: Sequence[Variable],
    inputs: Sequence[Tensor],
    name: str | None = None,
    initial: bool = False,
) -> Operation:
    """An operation of `type` that updates `variables` in place, on the device of the first."""
    first = variables[0]
    graph = first.graph
    attrs: dict[str, Any] = {"dtype": first.dtype, "shape": first.shape}
    if initial:
        attrs["initial"] = True
    handles = [v.handle for v in variables]
    with graph.colocate_with(first.op):
        return graph.create_op(type, [*handles, *inputs], attrs, name or f"{first.name}/{type}")


for _method in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"):
    for _name in (f"__{_method}__", f"__r{_method}__"):
        setattr(Variable, _name, lambda self, other, _n=_name: getattr(self.value(), _n)(other))
for _method in ("neg", "abs", "lt", "le", "gt", "ge", "getitem"):
    _name = f"__{_method}__"
    setattr(Variable, _name, lambda self, *others, _n=_name: getattr(self.value(), _n)(*others))


def assign(variable: Variable, value: Any, name: str | None = None) -> Operation:
    """An operation that sets `variable` to `value`."""
    return variable.assign(value, name)


def assign_add(variable: Variable, value: Any, name: str | None = None) -> Operation:
    """An operation that adds `value` to `variable`."""
    return variable.assign_add(value, name)


def assign_sub(variable: Variable, value: Any, name: str | None = None) -> Operation:
    """An operation that subtracts `value` from `variable`."""
    return variable.assign_sub(value, name)


def global_variables() -> list[Variable]:
    """All variables of the default graph, in creation order."""
    return get_default_graph().get_collection("variables")


def trainable_variables() -> list[Variable]:
    """The variables that optimizers update by default."""
    return get_default_graph().get_collection("trainable_variables")


def variables_initializer(variables: Sequence[Variable], name: str = "init") -> Operation:
    """One operation that gives `variables` their initial values."""
    return group(*(v.initializer for v in variables), name=name)


def global_variables_initializer() -> Operation:
    """One operation that gives every variable made so far its initial value."""
    variables = global_variables()
    if not variables:
        raise GraphError("the graph has no variables to initialize")
    return variables_initializer(variables)
