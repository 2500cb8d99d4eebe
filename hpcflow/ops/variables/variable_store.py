"""Variable store: the variables of a graph created by `get_variable`, by name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from hpcflow.errors import DTypeError, ShapeError, VariableNameError
from hpcflow.graph.dtypes import as_dtype, is_floating
from hpcflow.graph.graph import Tensor, convert_to_tensor, get_default_graph, user_line
from hpcflow.graph.graph_keys import GraphKeys
from hpcflow.graph.static_shape import Shape, is_known, merge_shapes, shape_text
from hpcflow.ops.array.slice_ops import slice
from hpcflow.ops.shape_inference import given_shape
from hpcflow.ops.variables.initializer_objects import glorot_uniform_initializer, zeros_initializer
from hpcflow.ops.variables.partitioned_variable import (
    PartitionedVariable,
    PartitionInfo,
    check_partitions,
    offsets,
    pieces_of,
)
from hpcflow.ops.variables.variable_ops import Variable


class VariableStore:
    """Creates variables once and returns them again."""

    def __init__(self) -> None:
        self._variables: dict[str, Any] = {}

    def get(
        self,
        name: str,
        shape: Any = None,
        dtype: Any = None,
        initializer: Any = None,
        regularizer: Callable[..., Any] | None = None,
        reuse: bool | None = None,
        trainable: bool = True,
        collections: Sequence[str] | None = None,
        partitioner: Callable[..., Sequence[int]] | None = None,
        constraint: Callable[..., Any] | None = None,
    ) -> Any:
        """The variable `name`: shared if `reuse`, created if not, either if None."""
        existing = self._variables.get(name)
        shape = None if shape is None else given_shape(shape)
        dtype = as_dtype("float32" if dtype is None else dtype)
        if existing is not None:
            _check_shared(existing, shape, dtype, reuse, partitioner)
            return existing
        if reuse:
            raise VariableNameError(
                f"variable {name!r} does not exist, or was not made by hf.get_variable()",
                line=user_line(),
                hint="create it first, or use reuse=hf.AUTO_REUSE in hf.variable_scope",
            )
        value = _InitialValue(name, shape, dtype, initializer)
        make = functools.partial(
            Variable,
            trainable=trainable,
            collections=collections,
            dtype=dtype,
            constraint=constraint,
        )
        created: Any
        if partitioner is None or value.shape == ():
            created = make(value.full_value(), name=name)
        else:
            cut = partitioner(shape=value.shape, dtype=dtype)
            created = _pieces(value, check_partitions(cut, value.shape), make)
        self._variables[name] = created
        if regularizer is not None:
            for variable in created if isinstance(created, PartitionedVariable) else [created]:
                _regularize(variable, regularizer)
        return created


def _check_shared(var: Any, shape: Shape, dtype: Any, reuse: bool | None, partitioner: Any) -> None:
    """Check that `var` may be shared and matches. Errors: VariableNameError."""
    is_cut = isinstance(var, PartitionedVariable)
    line = (next(iter(var)) if is_cut else var).op.line
    wrong, hint = "", None
    if reuse is False:
        wrong = f"variable {var.name!r} exists already"
        hint = "to share it use reuse=True or reuse=hf.AUTO_REUSE in hf.variable_scope"
    elif var.dtype != dtype:
        wrong = f"variable {var.name!r} is {var.dtype}, not {dtype}"
    elif shape is not None and not _compatible(shape, var.shape):
        wrong = f"variable {var.name!r} has shape {shape_text(var.shape)}, not {shape_text(shape)}"
    elif not is_cut and partitioner is not None and var.shape != ():
        wrong = f"variable {var.name!r} was made without a partitioner"
        hint = "use it without a partitioner, as it was created"
    elif is_cut and not _cut_alike(var, partitioner):
        wrong = f"variable {var.name!r} is split into {list(var.partitions)} shards"
        hint = "use the partitioner that it was created with"
    if wrong:
        raise VariableNameError(wrong, op=var.name, line=line, hint=hint)


def _cut_alike(var: PartitionedVariable, partitioner: Any) -> bool:
    """Whether `partitioner`, if given, divides as `var` is divided."""
    if partitioner is None:
        return True
    return tuple(partitioner(shape=var.shape, dtype=var.dtype)) == var.partitions


def _compatible(shape: Shape, actual: Shape) -> bool:
    try:
        merge_shapes(shape, actual)
    except ShapeError:
        return False
    return True


class _InitialValue:
    """The initial value of a variable, or of its shards, from its initializer."""

    def __init__(self, name: str, shape: Shape, dtype: Any, initializer: Any) -> None:
        self.name, self.dtype = name, dtype
        if initializer is None:
            floating = is_floating(dtype)
            initializer = glorot_uniform_initializer() if floating else zeros_initializer()
        self.initializer: Any = initializer() if inspect.isclass(initializer) else initializer
        self.takes_shape = callable(self.initializer) and _takes_shape(self.initializer)
        if not callable(self.initializer):
            self.initializer = self._constant(shape)
            shape = self.initializer.shape
        elif not self.takes_shape and shape is None:
            with get_default_graph().name_scope(f"{name}/Initializer/"):
                value = convert_to_tensor(self.initializer(), dtype)
            self.initializer, shape = value, value.shape
        if not is_known(shape):
            raise ShapeError(
                f"the shape of the new variable {name!r} is {shape_text(shape)}",
                line=user_line(),
                hint="give get_variable a shape without unknown sizes",
            )
        self.shape: tuple[int, ...] = tuple(shape)  # type: ignore[arg-type]

    def _constant(self, shape: Shape) -> Tensor:
        initializer = self.initializer
        if isinstance(initializer, Tensor) or hasattr(initializer, "as_tensor"):
            value = convert_to_tensor(initializer)
        else:
            with get_default_graph().name_scope(f"{self.name}/"):
                value = convert_to_tensor(initializer, self.dtype, "initial_value")
        if value.dtype != self.dtype:
            raise DTypeError(
                f"variable {self.name!r} is {self.dtype}, its initial value is {value.dtype}",
                line=user_line(),
                hint=f"get_variable(..., dtype={str(value.dtype)!r}), or hf.cast the value",
            )
        if shape is not None and not _compatible(shape, value.shape):
            raise ShapeError(
                f"variable {self.name!r} is {shape_text(shape)}, its initial value "
                f"{shape_text(value.shape)}",
                line=user_line(),
            )
        return value

    def full_value(self) -> Any:
        """The whole value: a tensor, or a function without arguments."""
        return self._call(self.shape, None) if callable(self.initializer) else self.initializer

    def piece(self, start: tuple[int, ...], shape: tuple[int, ...]) -> Any:
        """The value of the shard that begins at `start`."""
        if not callable(self.initializer):
            value = self.initializer
            return lambda: slice(value, start, shape)
        if not self.takes_shape:
            value = self.initializer
            return lambda: slice(convert_to_tensor(value(), self.dtype), start, shape)
        return self._call(shape, PartitionInfo(self.shape, start))

    def _call(self, shape: tuple[int, ...], info: PartitionInfo | None) -> Callable[[], Any]:
        if not self.takes_shape:
            return self.initializer
        facts: dict[str, Any] = {"dtype": self.dtype}
        if info is not None and "partition_info" in _parameters(self.initializer):
            facts["partition_info"] = info
        return lambda: self.initializer(list(shape), **facts)


def _parameters(function: Callable[..., Any]) -> Any:
    return inspect.signature(function).parameters


def _takes_shape(initializer: Callable[..., Any]) -> bool:
    """Whether it is a function of a shape, not one without arguments."""
    return any(p.default is p.empty for p in _parameters(initializer).values())


def _pieces(
    value: _InitialValue, partitions: tuple[int, ...], make: Callable[..., Variable]
) -> PartitionedVariable:
    shapes, starts = pieces_of(value.shape, partitions), offsets(value.shape, partitions)
    pieces = [
        make(value.piece(start, shape), name=f"{value.name}/part_{i}")
        for i, (start, shape) in enumerate(zip(starts, shapes, strict=True))
    ]
    return PartitionedVariable(value.name, value.shape, value.dtype, pieces, partitions)


def _regularize(variable: Variable, regularizer: Callable[..., Any]) -> None:
    graph = variable.graph
    with graph.colocate_with(variable.op), graph.name_scope(f"{variable.name}/Regularizer/"):
        loss = regularizer(variable)
    if loss is not None:
        graph.add_to_collection(GraphKeys.REGULARIZATION_LOSSES, loss)
