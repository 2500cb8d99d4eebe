"""Layer objects: functions of tensors with their own variables."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hpcflow.errors import GraphError, ShapeError
from hpcflow.graph import nested_structure
from hpcflow.graph.deprecated_arguments import accepts_and_ignores
from hpcflow.graph.dtypes import as_dtype
from hpcflow.graph.graph import Graph, Tensor, convert_to_tensor, get_default_graph, user_line
from hpcflow.graph.graph_keys import GraphKeys, VariableSynchronization
from hpcflow.graph.name_scopes import name_scope
from hpcflow.graph.static_shape import as_shape, shape_text, size_of
from hpcflow.graph.tensor_shape import TensorShape
from hpcflow.ops.nn.training_calls import call_in_phase
from hpcflow.ops.variables.partitioned_variable import PartitionedVariable
from hpcflow.ops.variables.variable_ops import Variable, is_trained
from hpcflow.ops.variables.variable_scope import VariableScope, get_variable, variable_scope

Function = Callable[..., Any]
_COUNTS = ("names of layers",)  # collection of layer name counts of a graph


class InputSpec:
    """The required inputs of a layer: dtype, rank (or its bounds), sizes of some axes."""

    def __init__(
        self,
        dtype: Any = None,
        shape: Any = None,
        ndim: int | None = None,
        max_ndim: int | None = None,
        min_ndim: int | None = None,
        axes: dict[int, int | None] | None = None,
    ) -> None:
        self.dtype = None if dtype is None else as_dtype(dtype)
        self.shape, self.axes = as_shape(shape), {int(a): n for a, n in (axes or {}).items()}
        if self.shape is not None:
            ndim = len(self.shape)
            self.axes |= {a: n for a, n in enumerate(self.shape) if n is not None}
        self.ndim, self.max_ndim, self.min_ndim = ndim, max_ndim, min_ndim

    def check(self, x: Any, layer: str) -> None:
        """Check that `x` is a valid input of `layer`. Errors: ShapeError."""
        shape = x.shape
        if shape is None:
            return
        rank, prefix = len(shape), f"{layer} does not take shape {shape_text(shape)}: "
        least = self.ndim if self.ndim is not None else self.min_ndim or 0
        most = self.ndim if self.ndim is not None else self.max_ndim
        if rank < least or (most is not None and rank > most):
            bounds = f"{least}" if least == most else f"{least} to {most or 'any'}"
            raise ShapeError(f"{prefix}it takes rank {bounds}", op=x.op.name, line=user_line())
        for axis, size in self.axes.items():
            if size is not None and shape[axis] not in (None, size):
                raise ShapeError(
                    f"{prefix}it takes size {size} along axis {axis}",
                    op=x.op.name,
                    line=user_line(),
                )


class Layer:
    """A function of tensors that creates its variables at the first call, and keeps them.

    A subclass creates them with `add_weight` in `build(input_shape)` and computes in
    `call(inputs)`. Their names are `name/...`, by default the name of the class, with a number if
    in use. With `trainable` False optimizers do not update them. `dtype` defaults to that of the
    inputs.
    """

    def __init__(
        self, trainable: bool = True, name: str | None = None, dtype: Any = None, **kwargs: Any
    ) -> None:
        self._scope_arg, self._reuse = kwargs.pop("_scope", None), kwargs.pop("_reuse", None)
        self.activity_regularizer = kwargs.pop("activity_regularizer", None)
        if kwargs:
            raise TypeError(
                f"{type(self).__name__}() got an unexpected keyword argument {min(kwargs)!r}"
            )
        self._base_name = name or _snake(type(self).__name__)
        self._name = name or _numbered(self._base_name)
        self.trainable, self.built = trainable, False
        self.dtype = None if dtype is None else as_dtype(dtype)
        self.input_spec: InputSpec | None = None
        self._scope: VariableScope | None = None
        self._variables: list[Variable] = []
        self._losses: list[Any] = []
        self._updates: list[Any] = []

    # -- properties

    @property
    def name(self) -> str:
        """The given name, or the name of the class with a number unique in the graph."""
        return self._name

    @property
    def scope_name(self) -> str:
        """The prefix of its variables; GraphError before the first call."""
        if self._scope is None:
            raise GraphError(f"layer {self.name!r} has no scope yet", hint="call it first")
        return self._scope.name

    @property
    def graph(self) -> Graph:
        """The graph of its variables; the default graph before they exist."""
        variables = self._all_variables()
        return variables[0].graph if variables else get_default_graph()

    def _all_variables(self) -> list[Variable]:
        """Its variables in order of creation."""
        return self._variables

    @property
    def trainable_weights(self) -> list[Variable]:
        """Its variables that optimizers update."""
        return [v for v in self._all_variables() if v.trainable and self.trainable]

    @property
    def non_trainable_weights(self) -> list[Variable]:
        """Its variables that optimizers do not update."""
        return [v for v in self._all_variables() if not (v.trainable and self.trainable)]

    @property
    def weights(self) -> list[Variable]:
        """Its variables, trainable ones first; empty before the first call."""
        return self.trainable_weights + self.non_trainable_weights

    @property
    def variables(self) -> list[Variable]:
        """As `weights`."""
        return self.weights

    @property
    def trainable_variables(self) -> list[Variable]:
        """As `trainable_weights`."""
        return self.trainable_weights

    @property
    def non_trainable_variables(self) -> list[Variable]:
        """As `non_trainable_weights`."""
        return self.non_trainable_weights

    @property
    def losses(self) -> list[Any]:
        """The losses of its regularizers, and those given to `add_loss`."""
        return list(self._losses)

    @property
    def updates(self) -> list[Any]:
        """The operations given to `add_update`."""
        return list(self._updates)

    def count_params(self) -> int:
        """The number of elements of its variables; GraphError before they exist."""
        if not self.built:
            raise GraphError(
                f"layer {self.name!r} has no variables yet",
                line=user_line(),
                hint="call it, or its build(input_shape), first",
            )
        return sum(size_of(v.shape) for v in self._all_variables())

    # -- methods to override

    def build(self, input_shape: Any) -> None:
        """Create the variables; called once, before the first `call`."""
        self.built = True

    def call(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """The outputs; by default the inputs."""
        return inputs

    # -- methods for subclasses

    @accepts_and_ignores("use_resource", "aggregation")
    def add_weight(
        self,
        name: str,
        shape: Any = None,
        dtype: Any = None,
        initializer: Any = None,
        regularizer: Function | None = None,
        trainable: bool | None = None,
        constraint: Function | None = None,
        partitioner: Function | None = None,
        synchronization: VariableSynchronization | None = None,
    ) -> Any:
        """The variable `name` of this layer, see `hf.get_variable`, with the dtype of the layer."""

        def kept(variable: Any) -> Any:
            loss = None if regularizer is None else regularizer(variable)
            self._losses.extend([] if loss is None else [loss])
            return loss

        with self._entered(None, ()):
            weight = get_variable(
                name,
                shape,
                dtype or self.dtype,
                initializer,
                None if regularizer is None else kept,
                is_trained(trainable, synchronization) and bool(self.trainable),
                partitioner=partitioner,
                constraint=constraint,
                synchronization=synchronization,
            )
        pieces = list(weight) if isinstance(weight, PartitionedVariable) else [weight]
        self._variables += [v for v in pieces if all(v is not w for w in self._variables)]
        return weight

    def add_variable(self, *args: Any, **kwargs: Any) -> Any:
        """As `add_weight`."""
        return self.add_weight(*args, **kwargs)

    @accepts_and_ignores("inputs")
    def add_loss(self, losses: Any) -> None:
        """Add losses of the layer, also to the collection of regularization losses."""
        self._add(losses, self._losses, GraphKeys.REGULARIZATION_LOSSES)

    @accepts_and_ignores("inputs")
    def add_update(self, updates: Any) -> None:
        """Add update operations of the layer, also to UPDATE_OPS, which training must run."""
        self._add(updates, self._updates, GraphKeys.UPDATE_OPS)

    def _add(self, entries: Any, store: list[Any], collection: str) -> None:
        for entry in entries if isinstance(entries, (list, tuple)) else [entries]:
            if entry is not None:
                store.append(entry)
                get_default_graph().add_to_collection(collection, entry)

    # -- calling

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Run `call` in the scope of the layer, after `build` at the first call.

        `scope` is the name of this scope if it has none yet. If `call` takes `training` and it is
        not given, or None, it is true in `fit` of a model of the outputs, and only there.
        """
        run = functools.partial(self._run, kwargs.pop("scope", None))
        label = f"the layer {self.name!r}"
        return call_in_phase(run, self.call, self, (inputs, *args), kwargs, label)

    def _run(self, scope: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """The outputs, in the scope of the layer."""
        x = self._convert_inputs(inputs)
        leaves = nested_structure.flatten_structure(x)
        with self._entered(scope, leaves):
            try:
                self._prepare(x, leaves)
                y = self.call(x, *args, **kwargs)
            except ShapeError as error:
                error.op = error.op or getattr(getattr(leaves[0], "op", None), "name", None)
                raise
            if self.activity_regularizer is not None:
                with name_scope("ActivityRegularizer"):
                    self.add_loss(
                        [
                            self.activity_regularizer(t)
                            for t in nested_structure.flatten_structure(y)
                        ]
                    )
            return y

    def apply(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """The same as calling the layer."""
        return self(inputs, *args, **kwargs)

    def _convert_inputs(self, inputs: Any) -> Any:
        """The inputs as tensors; lists of tensors stay lists."""
        if any(isinstance(leaf, Tensor) for leaf in nested_structure.flatten_structure(inputs)):
            return inputs
        return inputs if hasattr(inputs, "graph") else convert_to_tensor(inputs)

    def _prepare(self, x: Any, leaves: Sequence[Any]) -> None:
        """Check the inputs, and create the variables at the first call."""
        if self.dtype is None:
            self.dtype = leaves[0].dtype
        for spec in [self.input_spec] if self.input_spec is not None else []:
            spec.check(leaves[0], self.name)
        if not self.built:
            self.build(nested_structure.map_structure(lambda leaf: TensorShape(leaf.shape), x))
            self.built = True

    @contextlib.contextmanager
    def _entered(self, scope: Any, values: Sequence[Any]) -> Iterator[None]:
        """Enter the variable scope of the layer, created at first use."""
        if self._scope is not None:
            reuse = True if self.built else self._reuse
            with (
                variable_scope(self._scope, values=values, reuse=reuse, auxiliary_name_scope=False),
                name_scope(self._scope.original_name_scope or None),
            ):
                yield
            return
        target = self._scope_arg if scope is None else scope
        if target is None and self._reuse:
            target = self._base_name
        with variable_scope(target, self._base_name, values, reuse=self._reuse) as self._scope:
            yield


def _snake(name: str) -> str:
    """The snake-case name: `BasicLSTMCell` gives basic_lstm_cell, `Conv2D` gives conv2d."""
    words = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", name)
    snake = re.sub(r"([a-z])([A-Z])", r"\1_\2", words).lower()
    return f"private{snake}" if snake.startswith("_") else snake


def _numbered(base: str) -> str:
    """`base_1` for the first unnamed layer of the default graph, and so on."""
    counts = get_default_graph().root.get_collection_ref(_COUNTS)
    if not counts:
        counts.append({})
    counts[0][base] = counts[0].get(base, 0) + 1
    return f"{base}_{counts[0][base]}"
