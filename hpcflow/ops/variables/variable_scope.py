"""Variable scopes: `get_variable` creates or shares variables by name in `variable_scope`s.

The rules are TensorFlow 1's: names are joined by scope, inner scopes inherit reuse, and a scope
entered by its object is the same scope everywhere.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hpcflow.errors import GraphError, VariableNameError
from hpcflow.graph.deprecated_arguments import accepts_and_ignores
from hpcflow.graph.dtypes import as_array, float32
from hpcflow.graph.function_body import root_as_default
from hpcflow.graph.graph import Graph, get_default_graph
from hpcflow.graph.graph_keys import GraphKeys, VariableSynchronization
from hpcflow.graph.name_scopes import name_scope
from hpcflow.ops.variables.variable_ops import Variable, is_trained
from hpcflow.ops.variables.variable_store import VariableStore
from hpcflow.platform.exception_translation import translate_exceptions

Getter = Callable[..., Any]


class _Reuse(enum.Enum):
    """The value of `reuse` for "share the variable if it exists, else create it"."""

    AUTO_REUSE = 1


AUTO_REUSE = _Reuse.AUTO_REUSE
_STATE = ("variable scopes",)  # collection of a graph's variable scopes


class _GraphVariables:
    """A graph's variables by name, and the current scope of each thread."""

    def __init__(self) -> None:
        self.store = VariableStore()
        self._thread = threading.local()

    @property
    def scope(self) -> VariableScope:
        """The current scope of this thread."""
        if not hasattr(self._thread, "scope"):
            self._thread.scope = VariableScope(False)
        return self._thread.scope

    @scope.setter
    def scope(self, scope: VariableScope) -> None:
        self._thread.scope = scope

    @property
    def opened(self) -> dict[str, int]:
        """The number of times each scope was opened; inner scopes are reset when a scope closes."""
        if not hasattr(self._thread, "opened"):
            self._thread.opened = {}
        return self._thread.opened

    @opened.setter
    def opened(self, counts: dict[str, int]) -> None:
        self._thread.opened = counts

    def free_name(self, prefix: str) -> str:
        """`prefix` inside the current scope, with a number if such a scope was opened before."""
        full, n = _join(self.scope.name, prefix), 0
        while self.opened.get(full if not n else f"{full}_{n}"):
            n += 1
        return prefix if not n else f"{prefix}_{n}"


def _state(graph: Graph | None = None) -> _GraphVariables:
    states = (graph or get_default_graph()).get_collection_ref(_STATE)
    if not states:
        states.append(_GraphVariables())
    return states[0]


@translate_exceptions
class VariableScope:
    """The defaults of `get_variable`: name prefix and default arguments.

    `reuse` False creates variables, True shares existing ones, AUTO_REUSE does either.
    """

    def __init__(
        self,
        reuse: Any,
        name: str = "",
        initializer: Any = None,
        regularizer: Callable[..., Any] | None = None,
        partitioner: Callable[..., Sequence[int]] | None = None,
        custom_getter: Getter | None = None,
        name_scope: str = "",
        dtype: Any = float32,
        constraint: Callable[..., Any] | None = None,
    ) -> None:
        self._name, self._reuse, self._name_scope = name, reuse, name_scope
        self._initializer, self._regularizer = initializer, regularizer
        self._partitioner, self._custom_getter, self._dtype = partitioner, custom_getter, dtype
        self._constraint = constraint

    @property
    def name(self) -> str:
        """The prefix of its variables, without the last slash."""
        return self._name

    @property
    def original_name_scope(self) -> str:
        """The name scope of operations at its first opening; ends in a slash."""
        return self._name_scope

    @property
    def reuse(self) -> Any:
        """Whether variables are shared: True, False or AUTO_REUSE."""
        return self._reuse

    @property
    def initializer(self) -> Any:
        """The default initializer."""
        return self._initializer

    @property
    def regularizer(self) -> Callable[..., Any] | None:
        """The default regularizer."""
        return self._regularizer

    @property
    def partitioner(self) -> Callable[..., Sequence[int]] | None:
        """The default partitioner."""
        return self._partitioner

    @property
    def constraint(self) -> Callable[..., Any] | None:
        """The default constraint, which optimizers apply to a variable after each update."""
        return self._constraint

    @property
    def custom_getter(self) -> Getter | None:
        """The function called in place of `get_variable`, which is its first argument."""
        return self._custom_getter

    @property
    def dtype(self) -> Any:
        """The default dtype."""
        return self._dtype

    def reuse_variables(self) -> None:
        """Share variables from here on, in this scope and inner scopes."""
        self._reuse = True

    def set_initializer(self, initializer: Any) -> None:
        """Change the default initializer."""
        self._initializer = initializer

    def set_regularizer(self, regularizer: Callable[..., Any] | None) -> None:
        """Change the default regularizer."""
        self._regularizer = regularizer

    def set_partitioner(self, partitioner: Callable[..., Sequence[int]] | None) -> None:
        """Change the default partitioner."""
        self._partitioner = partitioner

    def set_custom_getter(self, custom_getter: Getter | None) -> None:
        """Change the custom getter."""
        self._custom_getter = custom_getter

    def set_dtype(self, dtype: Any) -> None:
        """Change the default dtype."""
        self._dtype = dtype

    def get_collection(self, name: str) -> list[Any]:
        """The elements of the collection `name` whose names are in this scope."""
        return get_default_graph().get_collection(name, self._name + "/" if self._name else "")

    def global_variables(self) -> list[Variable]:
        """Its variables shared by replicas."""
        return self.get_collection(GraphKeys.GLOBAL_VARIABLES)

    def local_variables(self) -> list[Variable]:
        """Its variables local to each replica."""
        return self.get_collection(GraphKeys.LOCAL_VARIABLES)

    def trainable_variables(self) -> list[Variable]:
        """Its variables that optimizers update."""
        return self.get_collection(GraphKeys.TRAINABLE_VARIABLES)

    def get_variable(
        self,
        name: str,
        shape: Any = None,
        dtype: Any = None,
        initializer: Any = None,
        regularizer: Callable[..., Any] | None = None,
        reuse: Any = None,
        trainable: bool | None = None,
        collections: Sequence[str] | None = None,
        partitioner: Callable[..., Sequence[int]] | None = None,
        custom_getter: Getter | None = None,
        constraint: Callable[..., Any] | None = None,
        synchronization: VariableSynchronization | None = None,
    ) -> Any:
        """The variable `name` of this scope, see `hf.get_variable`."""
        getter: Getter = _state().store.get
        for wrap in (custom_getter, self._custom_getter):
            if wrap is not None:
                getter = functools.partial(wrap, getter)
        initializer = self._initializer if initializer is None else initializer
        constraint = self._constraint if constraint is None else constraint
        with root_as_default(get_default_graph()) as root, root.name_scope(None):
            return getter(
                name=_join(self._name, name),
                shape=shape,
                dtype=_dtype_of(initializer, self._dtype) if dtype is None else dtype,
                initializer=initializer,
                regularizer=self._regularizer if regularizer is None else regularizer,
                reuse=_as_reuse(self._reuse if reuse is None else reuse),
                trainable=is_trained(trainable, synchronization),
                collections=collections,
                partitioner=self._partitioner if partitioner is None else partitioner,
                **({} if constraint is None else {"constraint": constraint}),
            )


def _dtype_of(initializer: Any, default: Any) -> Any:
    """The dtype of a variable without an explicit one: that of a value, else the scope's."""
    if initializer is None or callable(initializer):
        return default
    dtype = getattr(initializer, "dtype", None)
    return as_array(initializer).dtype if dtype is None else dtype


def _as_reuse(reuse: Any) -> bool | None:
    """True, False, or None for AUTO_REUSE, for the store."""
    return None if reuse is AUTO_REUSE else bool(reuse)


def _join(scope: str, name: str) -> str:
    return f"{scope}/{name}" if scope and name else scope or name


def get_variable_scope() -> VariableScope:
    """The innermost variable scope of this thread in the default graph."""
    return _state().scope


@accepts_and_ignores("use_resource", "validate_shape", "caching_device", "aggregation")
def get_variable(
    name: str,
    shape: Any = None,
    dtype: Any = None,
    initializer: Any = None,
    regularizer: Callable[..., Any] | None = None,
    trainable: bool | None = None,
    collections: Sequence[str] | None = None,
    partitioner: Callable[..., Sequence[int]] | None = None,
    custom_getter: Getter | None = None,
    constraint: Callable[..., Any] | None = None,
    synchronization: VariableSynchronization | None = None,
) -> Any:
    """The variable `name` of the current variable scope, created or shared.

    `initializer` is a function of (shape, dtype), a function without arguments, or the value, which
    then gives the shape; by default Glorot uniform for floats and zeros for others. The result of
    `regularizer(variable)` is added to the collection "regularization_losses". With a `partitioner`
    the result is a `PartitionedVariable`. `constraint` and `synchronization` are as in `Variable`.

    Errors: VariableNameError if it exists and may not be shared, does not exist and must be shared,
            or has another shape or dtype.
    """
    return get_variable_scope().get_variable(
        name,
        shape,
        dtype,
        initializer,
        regularizer,
        trainable=trainable,
        collections=collections,
        partitioner=partitioner,
        custom_getter=custom_getter,
        constraint=constraint,
        synchronization=synchronization,
    )


def get_local_variable(name: str, *args: Any, **kwargs: Any) -> Any:
    """As `get_variable`, but local to each replica, not trainable and not in checkpoints."""
    if "trainable" in kwargs:
        raise TypeError("get_local_variable() takes no 'trainable': a local variable is not")
    kwargs["collections"] = [GraphKeys.LOCAL_VARIABLES, *(kwargs.get("collections") or ())]
    return get_variable(name, *args, **{**kwargs, "trainable": False})


def no_regularizer(_: Any) -> None:
    """The regularizer that disables that of an outer scope."""
    return None


@accepts_and_ignores("use_resource", "caching_device")
@contextlib.contextmanager
def variable_scope(
    name_or_scope: str | VariableScope | None,
    default_name: str | None = None,
    values: Sequence[Any] = (),
    initializer: Any = None,
    regularizer: Callable[..., Any] | None = None,
    partitioner: Callable[..., Sequence[int]] | None = None,
    custom_getter: Getter | None = None,
    reuse: Any = None,
    dtype: Any = None,
    auxiliary_name_scope: bool = True,
    constraint: Callable[..., Any] | None = None,
) -> Iterator[VariableScope]:
    """A scope in which variables of `get_variable` are named `scope/name`; also operations.

    `name_or_scope` is relative to the current scope; a VariableScope is reopened. None means
    `default_name`, with a number if in use. `reuse` True shares variables, AUTO_REUSE creates
    missing ones; inner scopes inherit it. With `auxiliary_name_scope` False the names of operations
    do not change. `values` are as in `hf.name_scope`.
    """
    _check_scope_arguments(name_or_scope, default_name, reuse)
    settings = {
        "initializer": initializer,
        "regularizer": regularizer,
        "partitioner": partitioner,
        "dtype": dtype,
        "constraint": constraint,
    }
    with contextlib.ExitStack() as stack:
        ops: str | None = default_name
        if isinstance(name_or_scope, VariableScope):
            ops = name_or_scope.name.rpartition("/")[2]
        elif name_or_scope is not None:
            ops = name_or_scope
        if auxiliary_name_scope and ops:
            stack.enter_context(name_scope(ops, None, values))
        elif values:
            stack.enter_context(_graph_of(values).as_default())
        full = get_default_graph().scope_name
        state = _state()
        if name_or_scope is None:
            name_or_scope = state.free_name(str(default_name))
        scope = _opened(state.scope, name_or_scope, settings, custom_getter, reuse, full)
        yield stack.enter_context(_inside(state, scope, isinstance(name_or_scope, VariableScope)))


def _check_scope_arguments(name_or_scope: Any, default_name: str | None, reuse: Any) -> None:
    """Errors: GraphError without a name or scope; VariableNameError if a new scope has `reuse`."""
    if name_or_scope is None and default_name is None:
        raise GraphError("variable_scope() needs a name, a scope or a default_name")
    if not isinstance(name_or_scope, (str, VariableScope, type(None))):
        raise GraphError(
            f"{name_or_scope!r} is not a variable scope", hint="give a name or a VariableScope"
        )
    if name_or_scope is None and reuse:
        raise VariableNameError(
            f"variable_scope(None, {default_name!r}) makes a new scope: it has nothing to reuse",
            hint="give the scope's name",
        )


def _graph_of(values: Sequence[Any]) -> Graph:
    return next((v.graph for v in values if hasattr(v, "graph")), get_default_graph())


def _opened(
    outer: VariableScope,
    inner: str | VariableScope,
    arguments: dict[str, Any],
    custom_getter: Getter | None,
    reuse: Any,
    ops: str,
) -> VariableScope:
    """The scope opened by a `with`: its own settings override those of the scope it continues."""
    reopened = isinstance(inner, VariableScope)
    base = inner if isinstance(inner, VariableScope) else outer
    settings = {
        key: getattr(base, key) if value is None else value for key, value in arguments.items()
    }
    getter = base.custom_getter
    if custom_getter is not None:
        getter = custom_getter if getter is None else _nested(getter, custom_getter)
    return VariableScope(
        reuse or base.reuse,
        inner.name if isinstance(inner, VariableScope) else _join(outer.name, inner),
        custom_getter=getter,
        name_scope=base.original_name_scope if reopened else ops,
        **settings,
    )


def _nested(outer: Getter, inner: Getter) -> Getter:
    """Getters of nested scopes: the innermost is called first and calls the outer one."""

    def getter(next_getter: Getter, *args: Any, **kwargs: Any) -> Any:
        return inner(functools.partial(outer, next_getter), *args, **kwargs)

    return getter


@contextlib.contextmanager
def _inside(
    state: _GraphVariables, scope: VariableScope, reentered: bool
) -> Iterator[VariableScope]:
    """Make `scope` current; inner scopes are numbered anew at each entry."""
    outer, before = state.scope, dict(state.opened)
    state.opened[scope.name] = state.opened.get(scope.name, 0) + 1
    state.scope = scope
    try:
        yield scope
    finally:
        state.scope = outer
        if reentered:
            state.opened = before
        else:
            inner = scope.name + "/"
            state.opened = {n: k for n, k in state.opened.items() if not n.startswith(inner)}
