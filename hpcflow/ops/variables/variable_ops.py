"""Variables: mutable state, read and updated through handles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from hpcflow.errors import ArgumentError, DTypeError, ShapeError
from hpcflow.graph import default_session
from hpcflow.graph.deprecated_arguments import accepts_and_ignores
from hpcflow.graph.dtypes import as_dtype, bool_, resource, string
from hpcflow.graph.function_body import innermost_graph, root_as_default
from hpcflow.graph.graph import (
    Graph,
    Operation,
    Tensor,
    convert_to_tensor,
    get_default_graph,
)
from hpcflow.graph.graph_keys import GraphKeys, VariableSynchronization
from hpcflow.graph.name_scopes import reopen_for_session
from hpcflow.graph.op_registry import NoGrad, op
from hpcflow.graph.static_shape import Shape, Spec, is_known, merge_shapes, refine_shape, shape_text
from hpcflow.graph.tensor_shape import Sizes
from hpcflow.ops import flop_counts
from hpcflow.ops.array.array_ops import placeholder
from hpcflow.ops.control_flow.control_dependencies import group
from hpcflow.ops.shape_inference import integer_argument, several
from hpcflow.ops.variables.assignable_variable import Assignable
from hpcflow.ops.variables.sparse_row_update_ops import RowUpdates, the_variable
from hpcflow.platform.exception_translation import translate_exceptions
from hpcflow.platform.lazy_imports import LazyMethod

_HANDLE = NoGrad("a handle is not a number")
_UPDATE = NoGrad("an update of state is not a function of its inputs")
_BY_METHOD = {"assign": "Assign", "assign_add": "AssignAdd", "assign_sub": "AssignSub"}  # ops


def _handle(inputs: Sequence[Spec], attrs: dict[str, Any]) -> list[Spec]:
    return [Spec(resource, ())]


def _read(inputs: Sequence[Spec], attrs: dict[str, Any]) -> list[Spec]:
    return [Spec(np.dtype(attrs["dtype"]), tuple(attrs["shape"]))]


def _update(handles: int, likes: tuple[int, ...]) -> Callable[..., list[Spec]]:
    """Shape rule of an update: inputs at `likes` have the variable's shape, others are scalars."""

    def infer(inputs: Sequence[Spec], attrs: dict[str, Any]) -> list[Spec]:
        dtype, shape = np.dtype(attrs["dtype"]), tuple(attrs["shape"])
        for i, spec in enumerate(inputs[handles:], handles):
            if spec.dtype != dtype:
                raise DTypeError(f"input {i} is {spec.dtype}; the variable is {dtype}")
            need: Shape = shape if i in likes else ()
            try:
                merge_shapes(spec.shape, need)
            except ShapeError:
                raise ShapeError(
                    f"input {i} is {shape_text(spec.shape)}; the variable needs {shape_text(need)}"
                ) from None
        return []

    return infer


def _read_gradient(operation: Operation, grad: Tensor) -> list[Tensor]:
    return [grad]  # the gradient of a handle is that of its value


def _infer_counter(inputs: Sequence[Spec], attrs: dict[str, Any]) -> list[Spec]:
    dtype = np.dtype(attrs["dtype"])
    if dtype.kind not in "iu":
        raise DTypeError(f"a counter must be an integer, not {dtype}")
    if tuple(attrs["shape"]) != ():
        raise ShapeError(f"a counter must be a scalar; the variable is {list(attrs['shape'])}")
    return [Spec(dtype, ())]


op("Variable", infer=_handle, grad=_HANDLE, stateful=True, variable="handle", work="nothing")
op(
    "ReadVariable",
    infer=_read,
    grad=_read_gradient,
    reads=(0,),
    slices=True,
    no_kernel=True,
    variable="read",
    work="nothing",
)
op(
    "Assign",
    infer=_update(1, (1,)),
    grad=_UPDATE,
    writes=(0,),
    no_kernel=True,
    variable="assign",
    overwrites=True,
    work="move",
    tiled=True,
)
op(
    "AssignAdd",
    infer=_update(1, (1,)),
    grad=_UPDATE,
    writes=(0,),
    tiled=True,
)
op(
    "AssignSub",
    infer=_update(1, (1,)),
    grad=_UPDATE,
    writes=(0,),
    tiled=True,
)
op(
    "ApplyGradientDescent",
    infer=_update(1, (2,)),
    grad=_UPDATE,
    writes=(0,),
    flops=flop_counts.per_input(2),
)
op(
    "ApplyMomentum",
    infer=_update(2, (4,)),
    grad=_UPDATE,
    writes=(0, 1),
    flops=flop_counts.momentum,
)
op(
    "ApplyAdam",
    infer=_update(4, (8,)),
    grad=_UPDATE,
    writes=(0, 1, 2, 3),
    flops=flop_counts.per_input(12),
)
op(
    "IsVariableInitialized",
    infer=lambda inputs, attrs: [Spec(bool_, ())],
    grad=NoGrad("its output is booleans"),
    reads=(0,),
    variable="is_initialized",
)
op(
    "CountUpTo",
    infer=_infer_counter,
    grad=NoGrad("its output is an integer"),
    writes=(0,),
    waits=True,
    stateful=True,
)
op(
    "WaitInitialized",
    infer=lambda inputs, attrs: [],
    grad=_HANDLE,
    stateful=True,
    waits=True,
    variable="wait",
)


@translate_exceptions
class Variable(RowUpdates, Assignable):
    """Mutable state that persists between steps.

    `initial_value` is a value, a tensor, or a function without arguments that returns one; its
    shape must be static. Optimizers update `trainable` variables by default. `collections` are the
    collections that it is added to, by default "variables". A variable in "local_variables" is
    local to a replica: it is on the driver, and every replica initializes it. Optimizers replace
    its value by `constraint(value)` after each update. It is trainable by default unless
    `synchronization` is ON_READ.
    """

    initial_value: Tensor
    initializer: Operation
    _repr_html_ = LazyMethod("hpcflow.report.model_html", "variable_html")

    @accepts_and_ignores("validate_shape", "caching_device", "use_resource", "expected_shape")
    @accepts_and_ignores("import_scope", "aggregation")
    def __init__(
        self,
        initial_value: Any,
        trainable: bool | None = None,
        collections: Sequence[str] | None = None,
        name: str | None = None,
        dtype: Any = None,
        constraint: Callable[[Tensor], Any] | None = None,
        synchronization: VariableSynchronization | None = None,
    ) -> None:
        if constraint is not None and not callable(constraint):
            raise ArgumentError(f"a constraint must be a function of the value, not {constraint!r}")
        trainable = is_trained(trainable, synchronization)
        names = [GraphKeys.GLOBAL_VARIABLES] if collections is None else list(collections)
        with root_as_default(get_default_graph()) as graph:
            self.name = graph.unique_name(name or "Variable")
            with graph.name_scope(f"{self.name}/"):
                value = _initial(initial_value, dtype)
            if value.dtype == string:
                raise DTypeError(f"variable {self.name!r} would hold strings; it holds numbers")
            attrs = {"dtype": value.dtype, "shape": value.shape, "trainable": trainable}
            if GraphKeys.LOCAL_VARIABLES in names:
                attrs["local"] = True
            self.op = graph.create_op("Variable", [], attrs, f"{self.name}/")
            self.dtype, self.shape = value.dtype, value.shape
            self.handle = self.op.outputs[0]
            with graph.name_scope(None):
                self._initialize_to(value)
                self.fetched = self._read(f"{self.name}/value")
        self.trainable, self.constraint = trainable, constraint
        self._load: tuple[Tensor, Operation] | None = None  # the operation of `load`
        if trainable:
            names.append(GraphKeys.TRAINABLE_VARIABLES)
        graph.add_to_collections(names, self)

    def _initialize_to(self, value: Tensor) -> None:
        """Let its initializer assign `value` from now on; sessions that have run it keep theirs."""
        self.initial_value = value
        self.initializer = self._update("Assign", [value], initial=True)

    @property
    def graph(self) -> Graph:
        """The graph of the variable."""
        return self.op.graph

    @property
    def device(self) -> str:
        """The requested device."""
        return self.op.device

    def set_shape(self, shape: Any) -> None:
        """Check that `shape` agrees with its static shape. Errors: ShapeError."""
        refine_shape(self.shape, shape, self.op)

    @property
    def here(self) -> Graph:
        """The graph for new operations on it: its own, or the body of a loop or branch."""
        return innermost_graph(self.graph)

    def read_value(self, name: str = "read") -> Tensor:
        """A new read of its value, after the control dependencies in force.

        It sees the updates that precede it by control or data dependencies, and no other updates of
        its step. The use of a variable as a tensor is such a read, too.
        """
        graph = innermost_graph(self.graph)
        with graph.name_scope(graph.prefix):
            return self._read(f"{self.name}/{name}")

    value = as_tensor = read_value

    def _read(self, name: str) -> Tensor:
        graph = innermost_graph(self.graph)
        attrs = {"dtype": self.dtype, "shape": self.shape}
        with graph.colocate_with(self.op, ignore_existing=True):
            return graph.create_op("ReadVariable", [self.handle], attrs, name).outputs[0]

    def _changed(self, method: str, value: Any, name: str | None, read_value: bool) -> Any:
        update_op = self._update(_BY_METHOD[method], [convert_to_tensor(value, self.dtype)], name)
        return self.after(update_op) if read_value else update_op

    def after(self, update: Operation) -> Tensor:
        """Its value after `update`, an operation just created."""
        graph = update.graph
        with graph.control_dependencies(None), graph.control_dependencies([update]):
            with graph.name_scope(f"{update.name}/"):
                return self._read("value")

    def _update(
        self, type: str, inputs: Sequence[Tensor], name: str | None = None, **marks: bool
    ) -> Operation:
        return update(type, [self], inputs, name, **marks)

    def eval(self, session: Any = None) -> Any:
        """Its value in `session`, by default the default session."""
        return default_session.session_or_default(session, self.graph, repr(self.name)).run(self)

    def dlpack(self, session: Any = None) -> Any:
        """Its memory in `session`, as an array that other libraries take by DLPack without a copy.

        The values do not change while that array, or an import of it, exists: an update writes to a
        second buffer. The memory belongs to the session and must not be written.
        Ranks:  a rank that holds it; each replica has its own copy, a server that of all.
        Errors: UninitializedError; FetchError if it is on another rank.
        """
        return default_session.session_or_default(session, self.graph, repr(self.name)).share(self)

    def load(self, value: Any, session: Any = None) -> None:
        """Set it to `value` in `session`, by default the default session.

        Ranks:  every rank that runs the script, with the same value.
        """
        chosen = default_session.session_or_default(session, self.graph, repr(self.name))
        if self._load is None:
            with (
                reopen_for_session(self.graph),
                self.graph.as_default(),
                self.graph.control_dependencies(None),
            ):
                fed = placeholder(self.dtype, self.shape, f"{self.name}/load")
                self._load = fed, self._update("Assign", [fed], f"{self.name}/Load", uncounted=True)
        fed, assign_op = self._load
        chosen.run(assign_op, {fed: value})

    def initialized_value(self) -> Tensor:
        """Its value if initialized, else its initial value; for initial values of other variables.

        Both may be initialized in one step.
        """
        from hpcflow.ops.control_flow.cond_while import cond

        with self.graph.as_default(), self.graph.control_dependencies(None):
            there = is_variable_initialized(self)
            value = cond(there, self.read_value, lambda: self.initial_value)
        value.set_shape(self.shape)
        return value

    def count_up_to(self, limit: int) -> Tensor:
        """See `hf.count_up_to`."""
        return count_up_to(self, limit)

    def __repr__(self) -> str:
        return f"<hf.Variable {self.name!r} shape={shape_text(self.shape)} dtype={self.dtype}>"

    def __str__(self) -> str:
        return f"{self!r}"[:-1] + f", made at {self.op.line}; session.run(variable) returns it>"

    def __float__(self) -> float:
        return float(self.as_tensor())  # this and the next raise the errors of tensors

    def __int__(self) -> int:
        return int(self.as_tensor())

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.as_tensor())

    def __format__(self, form: str) -> str:
        return format(self.as_tensor(), form) if form else str(self)


def is_trained(trainable: bool | None, synchronization: VariableSynchronization | None) -> bool:
    """The value of `trainable`; the default depends on `synchronization`."""
    if trainable is None:
        return synchronization != VariableSynchronization.ON_READ
    return bool(trainable)


def _initial(initial_value: Any, dtype: Any) -> Tensor:
    """The initial value of a variable as a tensor of static shape."""
    dtype = None if dtype is None else as_dtype(dtype)
    if callable(initial_value):
        with get_default_graph().name_scope("Initializer"):
            value = convert_to_tensor(initial_value(), dtype)
    else:
        value = convert_to_tensor(initial_value, dtype, "initial_value")
    if not is_known(value.shape):
        raise ShapeError(
            f"the initial value of a variable has shape {shape_text(value.shape)}",
            op=value.op.name,
            line=value.op.line,
            hint="give an initial value whose shape is known",
        )
    return value


def variable_of_op(
    operation: Operation, initializer: Operation, read: Tensor | None, trainable: bool
) -> Variable:
    """The variable of imported operations; `read` is the read run by a fetch."""
    variable = Variable.__new__(Variable)
    variable.name, variable.op, variable.handle = operation.name, operation, operation.outputs[0]
    variable.dtype, variable.shape = operation.attrs["dtype"], Sizes(operation.attrs["shape"])
    variable.initializer, variable.initial_value = initializer, initializer.inputs[1]
    variable.trainable, variable.constraint, variable._load = trainable, None, None
    with root_as_default(operation.graph) as graph, graph.name_scope(None):
        variable.fetched = variable._read(f"{operation.name}/value") if read is None else read
    return variable


def update(
    type: str,
    variables: Sequence[Variable],
    inputs: Sequence[Tensor],
    name: str | None = None,
    initial: bool = False,
    uncounted: bool = False,
) -> Operation:
    """An operation of `type` that updates `variables` in place, on the device of the first.

    One that sets values from outside, such as saved ones, is `uncounted` among the updates.
    """
    first = variables[0]
    graph = innermost_graph(first.graph)
    attrs: dict[str, Any] = {"dtype": first.dtype, "shape": first.shape}
    if initial:
        attrs["initial"] = True
    if uncounted:
        attrs["uncounted"] = True
    handles = [v.handle for v in variables]
    with graph.colocate_with(first.op):
        return graph.create_op(type, [*handles, *inputs], attrs, name or f"{first.name}/{type}")


def is_variable_initialized(variable: Variable) -> Tensor:
    """Whether `variable` is initialized; a boolean scalar."""
    graph = the_variable("is_variable_initialized", variable).here
    with graph.colocate_with(variable.op):
        initialized = graph.create_op("IsVariableInitialized", [variable.handle], {}, None)
    return initialized.outputs[0]


def assign(
    ref: Variable,
    value: Any,
    validate_shape: bool | None = None,
    use_locking: bool | None = None,
    name: str | None = None,
) -> Tensor:
    """Set the variable `ref` to `value`; returns its new value.

    The shape is always validated, and `use_locking` has no effect.
    """
    return the_variable("assign", ref).assign(value, name=name)


def assign_add(
    ref: Variable, value: Any, use_locking: bool | None = None, name: str | None = None
) -> Tensor:
    """Add `value` to the variable `ref`; returns its new value."""
    return the_variable("assign_add", ref).assign_add(value, name=name)


def assign_sub(
    ref: Variable, value: Any, use_locking: bool | None = None, name: str | None = None
) -> Tensor:
    """Subtract `value` from the variable `ref`; returns its new value."""
    return the_variable("assign_sub", ref).assign_sub(value, name=name)


def count_up_to(ref: Variable, limit: int, name: str | None = None) -> Tensor:
    """The value of the integer scalar variable `ref`, which is then incremented.

    Errors: OutOfRangeError, which ends only the step, once it is `limit`.
    """
    graph = the_variable("count_up_to", ref).here
    attrs = {"dtype": ref.dtype, "shape": ref.shape, "limit": integer_argument(limit, "limit")}
    with graph.colocate_with(ref.op):
        counted = graph.create_op("CountUpTo", [ref.handle], attrs, name or "CountUpTo")
    return counted.outputs[0]


def global_variables(scope: str | None = None) -> list[Variable]:
    """The variables of the default graph shared by replicas, in creation order.

    `scope`, a regular expression, selects those whose name begins with a match.
    """
    return get_default_graph().get_collection(GraphKeys.GLOBAL_VARIABLES, scope)


def trainable_variables(scope: str | None = None) -> list[Variable]:
    """The variables that optimizers update by default; `scope` as in `global_variables`."""
    return get_default_graph().get_collection(GraphKeys.TRAINABLE_VARIABLES, scope)


def local_variables(scope: str | None = None) -> list[Variable]:
    """The variables local to each replica; `scope` as in `global_variables`."""
    return get_default_graph().get_collection(GraphKeys.LOCAL_VARIABLES, scope)


def model_variables(scope: str | None = None) -> list[Variable]:
    """The variables in the collection of model variables; `scope` as in `global_variables`."""
    return get_default_graph().get_collection(GraphKeys.MODEL_VARIABLES, scope)


def moving_average_variables(scope: str | None = None) -> list[Variable]:
    """The variables with a moving average; `scope` as in `global_variables`."""
    return get_default_graph().get_collection(GraphKeys.MOVING_AVERAGE_VARIABLES, scope)


def variables_initializer(var_list: Sequence[Variable], name: str = "init") -> Operation:
    """One operation that initializes `var_list`."""
    listed = several(var_list, "variables_initializer")
    for v in listed:
        if not hasattr(v, "initializer"):
            the_variable("variables_initializer", v)
    return group(*(v.initializer for v in listed), name=name)


def global_variables_initializer() -> Operation:
    """One operation that initializes every variable created so far."""
    return variables_initializer(global_variables())


def local_variables_initializer() -> Operation:
    """One operation that initializes every local variable created so far."""
    return variables_initializer(local_variables())
