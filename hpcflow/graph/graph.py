"""The dataflow graph of operations and tensors; it only grows, operations never change."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hpcflow.errors import (
    ArgumentError,
    DTypeError,
    FinalizedGraphError,
    GraphError,
    HpcflowError,
    UnknownNameError,
)
from hpcflow.graph import default_session, device_names
from hpcflow.graph.dtypes import as_dtype, name_of
from hpcflow.graph.node_def import NodeDef
from hpcflow.graph.op_registry import lookup_op
from hpcflow.graph.operator_overloads import OPERATORS, OverloadedOperand
from hpcflow.graph.static_shape import Shape, Spec, refine_shape, shape_text
from hpcflow.graph.tensor_shape import Sizes, TensorShape, to_plain
from hpcflow.platform.exception_translation import translate_exceptions, user_line, value_text
from hpcflow.platform.lazy_imports import LazyMethod

OF_SHAPES = ("Shape", "Size", "Rank")  # operations whose value depends on static shapes only
_NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\-/]*\Z")


@translate_exceptions
class Tensor(OverloadedOperand["Tensor"]):
    """An output of an operation: a value that exists when the graph runs."""

    __slots__ = ("_shape", "_spec", "assign", "dtype", "index", "name", "op")
    _repr_html_ = LazyMethod("hpcflow.report.html_representation", "tensor_html")

    assign: Callable[..., Any]  # only of a slice of a variable

    def __init__(self, op: Operation, index: int, spec: Spec) -> None:
        self.op, self.index, self.dtype = op, index, spec.dtype
        self._spec = Spec(spec.dtype, to_plain(spec.shape), spec.value)
        self._shape: Sizes | None = None  # created at first use
        self.name = f"{op.name}:{index}"

    @property
    def graph(self) -> Graph:
        """The graph that contains it."""
        return self.op.graph

    @property
    def device(self) -> str:
        """The requested device of its operation, "" if none."""
        return self.op.device

    @property
    def spec(self) -> Spec:
        """Its dtype, static shape, and value if constant."""
        return self._spec

    @property
    def constant(self) -> np.ndarray | None:
        """Its value if it is constant. The caller relies on it, so it cannot be fed any more."""
        if self._spec.value is not None:
            self.graph.bind(self)
        return self._spec.value

    def know(self, value: np.ndarray | None) -> None:
        """Set its constant value, None if it has none."""
        self._spec = self._spec._replace(value=value)

    @property
    def shape(self) -> Shape:
        """Its static shape: a tuple with None for unknown sizes, None alone for an unknown rank.

        The tuple has the methods of `hf.TensorShape`.
        """
        if self._shape is None and self._spec.shape is not None:
            self._shape = Sizes(self._spec.shape)
        return self._shape

    @shape.setter
    def shape(self, shape: Shape) -> None:
        self._spec, self._shape = self._spec._replace(shape=to_plain(shape)), None

    def get_shape(self) -> TensorShape:
        """Its static shape as in TensorFlow 1: unknown sizes are `Dimension(None)`."""
        return TensorShape(self._spec.shape)

    def set_shape(self, shape: Any) -> None:
        """Refine its static shape; ShapeError if it contradicts what is known."""
        self.shape = refine_shape(self._spec.shape, shape, self.op)

    def eval(self, feed_dict: Any = None, session: Any = None) -> Any:
        """Its value, computed by `session` or the default session: `session.run(tensor)`."""
        return default_session.session_or_default(session, self.graph, repr(self.name)).run(
            self, feed_dict
        )

    def consumers(self) -> list[Operation]:
        """Operations that take this tensor as input."""
        return [op for op in self.graph.get_operations() if any(t is self for t in op.inputs)]

    def __repr__(self) -> str:
        return (
            f"<hf.Tensor {self.name!r} shape={shape_text(self.shape)} dtype={name_of(self.dtype)}>"
        )

    def __bool__(self) -> bool:
        raise ArgumentError(
            "a tensor has no truth value while the graph is built",
            op=self.op.name,
            line=self.op.line,
            hint="run it in a session, or compute with hf.where",
        )

    def __float__(self) -> float:
        raise _value_error(self, "float()")

    def __int__(self) -> int:
        raise _value_error(self, "int()")

    def __index__(self) -> int:
        raise _value_error(self, "an index")

    def __format__(self, form: str) -> str:
        if form:
            raise _value_error(self, f"the format {form!r}")
        return str(self)

    def __str__(self) -> str:
        return f"{self!r:}"[:-1] + f", made at {self.op.line}; session.run(tensor) computes it>"

    def __getattr__(self, name: str) -> Any:
        if name in _OF_VALUES:
            raise AttributeError(_no_value(self, f".{name}"))
        if name == "backward":
            raise AttributeError(
                "a tensor has no backward(): hf.train.AdamOptimizer(0.001).minimize(loss) makes "
                "the operation that trains, hf.gradients(loss, variables) the gradients"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __iter__(self) -> Iterator[Tensor]:
        raise ArgumentError(
            "a tensor cannot be iterated over while the graph is built",
            op=self.op.name,
            line=self.op.line,
            hint="hf.unstack(tensor) is the list of its rows, hf.map_fn a loop over them",
        )

    def __len__(self) -> int:
        raise ArgumentError(
            "len() of a tensor is unknown", op=self.op.name, hint="use tensor.shape[0] or hf.shape"
        )


_OF_VALUES = ("astype", "cpu", "cuda", "detach", "item", "numpy", "tolist")  # of arrays elsewhere


def _no_value(t: Tensor, what: str) -> str:
    """The message for what needs a value: a tensor of a graph has one in a session's run only."""
    instead = "hf.cast(tensor, dtype)" if what == ".astype" else "session.run(tensor)"
    return f"{what} of {t!r}: a tensor has no value while the graph is built; use {instead}"


def _value_error(t: Tensor, what: str) -> ArgumentError:
    """The error for what needs a number."""
    return ArgumentError(
        f"{what} of {t!r}: a tensor has no value while the graph is built",
        line=user_line(),
        hint="use session.run(tensor) for its value, hf's functions to compute with it",
    )


def _check_shared_name(name: Any) -> None:
    if name is not None and not isinstance(name, str):
        raise GraphError(f"shared_name={value_text(name)} cannot be a name", hint="give a string")


class Attributes(dict[str, Any]):
    """The attributes of an operation: immutable, since plans are built from them."""

    __slots__ = ("op",)

    def __init__(self, op: Operation, values: Mapping[str, Any]) -> None:
        super().__init__({name: to_plain(value) for name, value in values.items()})
        self.op = op

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise _immutable_error(self.op, "attributes")

    __setitem__ = __delitem__ = __ior__ = _refuse
    update = pop = popitem = clear = setdefault = _refuse


@translate_exceptions
class Operation:
    """A node of the graph: an op of the registry, inputs, attributes, placement constraints.

    It is immutable once it is created: GraphError.
    """

    __slots__ = (
        *("attrs", "colocate", "control_inputs", "device", "graph", "index", "inputs"),
        *("line", "name", "outputs", "type"),
    )

    def __init__(self, graph: Graph, name: str, type: str, inputs: Sequence[Tensor]) -> None:
        self.graph, self.name, self.type, self.inputs = graph, name, type, tuple(inputs)
        self.control_inputs: tuple[Operation, ...] = ()
        self.colocate: tuple[str, ...] = ()  # names of operations it shares a device with
        self.device = ""  # the requested device constraint, as a string
        self.attrs: dict[str, Any] = {}
        self.line = ""  # the user's line that created it: "model.py:31"
        self.outputs: tuple[Tensor, ...] = ()
        self.index = -1

    def __setattr__(self, name: str, value: Any) -> None:
        if getattr(self, "index", -1) >= 0:
            raise _immutable_error(self, repr(name))
        object.__setattr__(self, name, value)

    def run(self, feed_dict: Any = None, session: Any = None) -> None:
        """Run it in `session` or the default session: `session.run(operation)`."""
        default_session.session_or_default(session, self.graph, repr(self.name)).run(
            self, feed_dict
        )

    def colocation_groups(self) -> list[bytes]:
        """The operations it is colocated with, as b"loc:@name"; itself if there are none."""
        return [b"loc:@" + name.encode() for name in self.colocate or (self.name,)]

    @property
    def node_def(self) -> NodeDef:
        """The operation as plain data."""
        return NodeDef.of(self)

    def __repr__(self) -> str:
        return f"<hf.Operation {self.name!r} type={self.type}>"


def _immutable_error(op: Operation, label: str) -> GraphError:
    return GraphError(
        f"operation {op.name!r} is in the graph and cannot be changed: its {label}",
        op=op.name,
        line=op.line,
        hint="add another operation; plans that have run keep the old one",
    )


@translate_exceptions
class Graph:
    """A dataflow graph. Operations can be added until `finalize`; none is ever changed."""

    prefix = ""  # of the names of its operations
    _repr_html_ = LazyMethod("hpcflow.report.html_representation", "graph_html")

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed  # None if none was set; 0 is a valid seed
        self.finalized = False
        self._operations: list[Operation] = []
        self._by_name: dict[str, Operation] = {}
        self._name_counts: dict[str, int] = {}
        self.reservations = 0  # device scopes that require memory
        self.has_requirements = False  # whether an operation or one of a body has one
        self.planned = 0  # the number of operations when a step was last planned
        self._collections: dict[Hashable, list[Any]] = {}
        self.extensions: dict[Operation, Operation] = {}  # loop -> the loop that saves a history
        self.bound: dict[Tensor, str] = {}  # constants the graph depends on -> user's line
        self._lock = threading.RLock()
        self._scope = threading.local()

    # -- contents

    def get_operations(self) -> list[Operation]:
        """All operations in creation order."""
        return list(self._operations)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    @property
    def version(self) -> int:
        """The number of operations created so far."""
        return len(self._operations)

    def note_planned(self) -> None:
        """Note that a step was planned: all operations so far may have a state on their tasks."""
        self.planned = self.version

    def get_operation_by_name(self, name: str) -> Operation:
        """The operation `name`; UnknownNameError if there is none."""
        if not isinstance(name, str):
            raise ArgumentError(
                f"{value_text(name)} is not an operation's name", hint="give a string"
            )
        try:
            return self._by_name[name]
        except KeyError:
            hint = self._near(name) or "graph.get_operations() lists all, each with its name"
            raise UnknownNameError(f"no operation is called {name!r}", hint=hint) from None

    def as_graph_element(
        self, obj: Any, allow_tensor: bool = True, allow_operation: bool = True
    ) -> Tensor | Operation:
        """The tensor or operation of `obj`: itself, by name, or the value of a variable.

        Errors: GraphError for anything else, or if it is of another graph.
        """
        element: Any = obj
        if isinstance(obj, str):
            is_tensor = ":" in obj and allow_tensor
            element = (self.get_tensor_by_name if is_tensor else self.get_operation_by_name)(obj)
        elif hasattr(obj, "as_tensor"):
            element = obj.as_tensor()
        allowed = (Tensor,) * allow_tensor + (Operation,) * allow_operation
        if not isinstance(element, allowed):
            kinds = " or ".join(kind.__name__ for kind in allowed)
            raise ArgumentError(
                f"{value_text(obj)} is not of type {kinds}", hint="give the object or its name"
            )
        if element.graph is not self:
            raise GraphError(f"{element.name!r} belongs to another graph", op=element.name)
        return element

    def get_tensor_by_name(self, name: str) -> Tensor:
        """The tensor with the name `op:index`."""
        if not isinstance(name, str):
            raise ArgumentError(f"{value_text(name)} is not a tensor's name", hint="give a string")
        op_name, colon, index = name.rpartition(":")
        if not colon or not index.isdigit():
            hint = f"write '{name}:0'" if name in self._by_name else self._near(name)
            raise GraphError(f"{name!r} is not a tensor's name", hint=hint)
        outputs = self.get_operation_by_name(op_name).outputs
        if int(index) >= len(outputs):
            raise UnknownNameError(
                f"operation {op_name!r} has {len(outputs)} outputs, not {name!r}"
            )
        return outputs[int(index)]

    def _near(self, name: str) -> str | None:
        import difflib

        close = difflib.get_close_matches(name, self._by_name, n=3)
        return f"did you mean {', '.join(close)}?" if close else None

    def add_to_collection(self, name: Hashable, value: Any) -> None:
        """Add `value` to the collection `name`, e.g. "trainable_variables"."""
        self.get_collection_ref(name).append(value)

    def add_to_collections(self, names: Hashable | Iterable[Hashable], value: Any) -> None:
        """Add `value` to each of the collections `names`, or to one."""
        is_single = isinstance(names, (str, bytes)) or not isinstance(names, Iterable)
        several: Iterable[Hashable] = [names] if is_single else names  # type: ignore[list-item,assignment]
        for name in dict.fromkeys(several):
            self.add_to_collection(name, value)

    def get_collection(self, name: Hashable, scope: str | None = None) -> list[Any]:
        """The items of a collection; with `scope`, those whose name matches this regex."""
        items = list(self._collections.get(name, ()))
        if scope is None:
            return items
        pattern = re.compile(scope)
        return [item for item in items if hasattr(item, "name") and pattern.match(item.name)]

    def get_collection_ref(self, name: Hashable) -> list[Any]:
        """The list of a collection itself, not a copy."""
        with self._lock:
            return self._collections.setdefault(name, [])

    def get_all_collection_keys(self) -> list[str]:
        """The names of the collections that are not empty."""
        return [
            name for name, items in self._collections.items() if items and isinstance(name, str)
        ]

    def clear_collection(self, name: Hashable) -> None:
        """Remove a collection."""
        self._collections.pop(name, None)

    def as_graph_def(self) -> dict[str, Any]:
        """The graph as plain, JSON-serializable data, for `hf.import_graph_def`."""
        return OPERATORS["as_graph_def"](self)

    # -- creating operations

    def create_op(
        self,
        type: str,
        inputs: Sequence[Tensor],
        attrs: dict[str, Any] | None = None,
        name: str | None = None,
    ) -> Operation:
        """Create an operation in the current scopes; its shapes and dtypes are checked at once."""
        row = lookup_op(type)
        line = user_line()
        attrs = attrs or {}
        with self._lock:
            self._check_open(type, line)
            name = self.unique_name(name or type)
            if name in self._by_name:
                raise GraphError(f"there is an operation {name!r} already", op=name, line=line)
            try:
                _check_shared_name(attrs.get("shared_name"))
                inputs = [self.adopt(t) for t in inputs]
                specs = row.infer([t.spec for t in inputs], attrs)
            except HpcflowError as error:
                error.op, error.line = error.op or name, error.line or line
                raise
            op = Operation(self, name, type, inputs)
            op.attrs, op.line = Attributes(op, attrs), line
            op.outputs = tuple(Tensor(op, i, spec) for i, spec in enumerate(specs))
            self._apply_scopes(op)
            op.index = len(self._operations)  # from here on it is immutable
            self._operations.append(op)
            self._by_name[name] = op
        return op

    def adopt(self, t: Tensor) -> Tensor:
        """The tensor of this graph for `t`; GraphError if `t` is of another graph."""
        if t.op.graph is not self:
            raise GraphError(
                f"input {t.name!r} belongs to another graph; it was made at {t.op.line}",
                hint="make both inside the same `with graph.as_default():`",
            )
        return t

    def origin(self, t: Tensor) -> Tensor | None:
        """The outer tensor of a capture; None if `t` is no capture."""
        return None

    def check_reachable(self, op: Operation) -> None:
        """Errors: GraphError unless `op` is of this graph or of an outer one."""
        if op.graph is not self:
            raise GraphError(
                f"{op.name!r} belongs to another graph, or is inside a loop or a branch",
                op=op.name,
                line=op.line,
                hint="return it as a result of the body, and use that result",
            )

    def bind(self, t: Tensor) -> None:
        """Record that the graph depends on the constant `t`, and on constants it comes from."""
        line, stack = "", [t]
        while stack:
            t = stack.pop()
            if t in t.graph.bound:
                continue
            t.graph.bound[t] = line = line or user_line()
            outer = t.graph.origin(t)
            if outer is not None:
                stack.append(outer)
            elif t.op.type not in OF_SHAPES:
                stack += [i for i in t.op.inputs if i.spec.value is not None]

    @property
    def root(self) -> Graph:
        """The outermost graph: itself, unless it is the body of a loop or a branch."""
        return self

    def _check_open(self, type: str, line: str) -> None:
        if self.root.finalized:
            raise FinalizedGraphError(
                f"the graph is finalized; a {type} cannot be added",
                line=line,
                hint="make all operations before the training loop starts",
            )

    def _apply_scopes(self, op: Operation) -> None:
        scope = self._scopes()
        deps: dict[Operation, None] = {}
        for group in scope["control"]:
            deps.update(dict.fromkeys(group))
        if not lookup_op(op.type).owner:
            for t in op.inputs:
                deps.pop(t.op, None)
        op.control_inputs = self._followed(deps)
        op.colocate = tuple(dict.fromkeys(o.name for o in scope["colocate"]))
        wish = self._device_for(op, scope["device"])
        op.device = str(wish)
        if wish.needs:
            self.root.has_requirements = True

    def _followed(self, before: Iterable[Operation]) -> tuple[Operation, ...]:
        """The control inputs, in this graph, of an operation that is created now."""
        before = tuple(before)
        for op in before:
            self.check_reachable(op)
        return before

    @staticmethod
    def _device_for(op: Operation, scopes: list[Any]) -> device_names.DeviceName:
        """Combine device scopes, inner first; `op.device` has them when a function is called."""
        wish = device_names.DeviceName()
        for scope_device in reversed(scopes):
            if scope_device is None:
                break
            if callable(scope_device):
                op.device = str(wish)
                scope_device = scope_device(op)
            wish = wish.within(device_names.parse_device(scope_device or ""))
        return wish

    def unique_name(self, name: str) -> str:
        """`name` in the name scope, numbered if it is in use; a trailing / makes it exact."""
        return self._unique(name, self._scopes()["name"])

    def _unique(self, name: str, scope: str) -> str:
        if not isinstance(name, str):
            raise GraphError(f"{value_text(name)} cannot be a name", hint="give a string")
        if name.endswith("/"):
            return name[:-1]
        name = scope + name
        if not _NAME.match(name):
            raise GraphError(f"{name!r} cannot be a name", hint="use letters, digits and ._-/")
        with self._lock:
            uses = self._name_counts.get(name, 0)
            self._name_counts[name] = uses + 1
            if uses == 0:
                return name
            return self.unique_name_exact(f"{name}_{uses}")

    def unique_name_exact(self, name: str) -> str:
        """`name`, or the first of `name_1`, `name_2` ... that is not in use."""
        stem, n = name, 0
        while name in self._name_counts:
            n += 1
            name = f"{stem}_{n}"
        self._name_counts[name] = 1
        return name

    # -- scopes

    def _scopes(self) -> dict[str, Any]:
        scope = self._scope.__dict__
        if not scope:
            scope.update(name="", control=[], colocate=[], device=[])
        return scope

    @contextlib.contextmanager
    def _within(self, key: str, value: Any) -> Iterator[None]:
        scope = self._scopes()
        before = scope[key]
        scope[key] = value
        try:
            yield
        finally:
            scope[key] = before

    @property
    def scope_name(self) -> str:
        """The current name scope, with its trailing slash."""
        name: str = self._scopes()["name"]
        return name

    @contextlib.contextmanager
    def name_scope(self, name: str | None) -> Iterator[str]:
        """Names of operations created inside begin with `name/`; None returns to the top level."""
        if not (name is None or isinstance(name, str)):
            raise GraphError(
                f"{value_text(name)} cannot be the name of a scope", hint="give a string"
            )
        if not name:
            full = ""
        elif name.endswith("/"):
            full = name
        else:
            full = self.unique_name(name) + "/"
        with self._within("name", full):
            yield full

    @contextlib.contextmanager
    def control_dependencies(self, before: Iterable[Operation | Tensor] | None) -> Iterator[None]:
        """Operations created inside run after `before`; None clears the outer ones."""
        if before is None:
            with self._within("control", []):
                yield
            return
        if not isinstance(before, Iterable):
            raise GraphError(f"{value_text(before)} is not a list of operations and tensors")
        ops = tuple(as_operation(b) for b in before)
        with self._within("control", [*self._scopes()["control"], ops]):
            yield

    @contextlib.contextmanager
    def device(
        self,
        name: str | Callable[[Operation], str] | None = "",
        requires: str | None = None,
        near: str | None = None,
    ) -> Iterator[None]:
        """Operations created inside run on a device that matches `name`; parts of inner scopes win.

        A function is called with each operation, whose `device` is the constraint of inner scopes.
        `requires` ("gpu, 20 GB") and `near` ("/job:worker/task:3") come to those of outer scopes.
        """
        if not (name is None or callable(name)):
            device_names.parse_device(name)
        scopes = [*self._scopes()["device"], name]
        if requires is not None or near is not None:
            from hpcflow.graph.requirement_text import parse_requirement

            needs = parse_requirement(requires, near, self.new_reservation)
            scopes.append(str(needs))
        with self._within("device", scopes):
            yield

    def new_reservation(self) -> int:
        """A number for the memory that a device scope requires; each is given once."""
        with self._lock:
            self.root.reservations += 1
            return self.root.reservations

    @contextlib.contextmanager
    def colocate_with(
        self, op: Operation | Tensor, ignore_existing: bool = False
    ) -> Iterator[None]:
        """Operations created inside run where `op` runs; outer device scopes do not apply.

        With `ignore_existing`, outer colocation scopes do not apply either.
        """
        outer = [] if ignore_existing else self._scopes()["colocate"]
        with (
            self._within("colocate", [*outer, as_operation(op)]),
            self._within("device", []),
        ):
            yield

    @contextlib.contextmanager
    def beside(self, op: Operation) -> Iterator[None]:
        """Operations created inside have the placement constraints of `op`."""
        with contextlib.ExitStack() as stack:
            for name in op.colocate:
                stack.enter_context(self.colocate_with(self.get_operation_by_name(name)))
            stack.enter_context(self.device(None))
            stack.enter_context(self.device(op.device))
            yield

    @property
    def is_ordering(self) -> bool:
        """Whether control dependencies are in force."""
        return any(self._scopes()["control"])

    def finalize(self) -> None:
        """Forbid further operations; the training loop calls it."""
        self.finalized = True

    def _unsafe_unfinalize(self) -> None:
        """Allow further operations again; no session may rely on the graph as it is."""
        self.finalized = False

    @contextlib.contextmanager
    def as_default(self) -> Iterator[Graph]:
        """Make this the default graph of this thread, to which new operations are added."""
        _stack().append(self)
        try:
            yield self
        finally:
            default_session.remove_last(_stack(), self)


_local = threading.local()
_global = Graph()


def _stack() -> list[Graph]:
    if not hasattr(_local, "graphs"):
        _local.graphs = []
    return _local.graphs


def get_default_graph() -> Graph:
    """The innermost default graph of this thread, else the global one of the process."""
    stack = _stack()
    return stack[-1] if stack else _global


def reset_default_graph() -> None:
    """Replace the global default graph; not allowed inside `Graph.as_default()`."""
    global _global
    if _stack():
        raise GraphError("reset_default_graph() inside a graph's as_default() block")
    _global = Graph()


def as_operation(graph_element: Any) -> Operation:
    """The operation of a tensor, an operation, or an object with an `op` (a variable)."""
    if isinstance(graph_element, Operation):
        return graph_element
    op = getattr(graph_element, "op", None)
    if isinstance(op, Operation):
        return op
    raise ArgumentError(f"{value_text(graph_element)} is not an operation or a tensor")


def convert_to_tensor(
    value: Any,
    dtype: Any = None,
    name: str | None = None,
    preferred_dtype: Any = None,
    dtype_hint: Any = None,
) -> Tensor:
    """`value` as a tensor: a tensor itself, a variable's value, else a constant.

    A constant without `dtype` has the `preferred_dtype`, also called `dtype_hint`, if it can.
    Errors: DTypeError if it is a tensor of another dtype than `dtype`.
    """
    if hasattr(value, "as_tensor"):
        value = value.as_tensor()
    if isinstance(value, Tensor):
        if dtype is not None and value.dtype != as_dtype(dtype):
            raise DTypeError(
                f"tensor {value.name!r} is {value.dtype}, but must be {as_dtype(dtype)}",
                op=value.op.name,
                line=value.op.line,
                hint="convert with hf.cast(x, dtype)",
            )
        return value
    wish = preferred_dtype if dtype_hint is None else dtype_hint
    if dtype is None and wish is not None:
        with contextlib.suppress(DTypeError):
            return OPERATORS["constant"](value, as_dtype(wish), name)
    return OPERATORS["constant"](value, dtype, name)
