"""Function bodies: graphs inside a graph, for loops and branches of conditionals.

A body grows like any graph. A tensor of an outer graph that it uses becomes one of its parameters,
a *capture*; the operation that owns the body takes the captured tensors as inputs.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hpcflow.errors import GraphError
from hpcflow.graph.graph import (
    Graph,
    Operation,
    Tensor,
    as_operation,
    convert_to_tensor,
    get_default_graph,
)
from hpcflow.graph.op_registry import NoGrad, lookup_op, op
from hpcflow.graph.static_shape import Spec

op(
    "Parameter",
    infer=lambda inputs, attrs: [Spec(attrs["dtype"], attrs["shape"])],
    grad=NoGrad("it has no inputs"),
    stateful=True,
    source="parameter",
)


def last_name(op: Operation) -> str:
    """The name of an operation without its name scopes."""
    return op.name.rpartition("/")[2]


class FunctionBody(Graph):
    """A graph whose parameters its operation feeds; its names are unique in the root graph."""

    def __init__(self, outer: Graph, name: str) -> None:
        super().__init__()
        self.outer = outer
        self._collections = outer.root._collections  # collections are those of the root graph
        self.captures: dict[Tensor, Tensor] = {}  # outer tensor -> its parameter
        self._origins: dict[Tensor, Tensor] = {}  # parameter -> outer tensor
        scope, around = self._scopes(), outer._scopes()
        self.prefix = outer.unique_name(name) + "/"  # of the names of its operations
        scope["name"] = self.prefix
        scope["device"], scope["colocate"] = list(around["device"]), list(around["colocate"])

    @property
    def root(self) -> Graph:
        """The outermost graph, which contains the variables."""
        return self.outer.root

    def parameter(self, spec: Spec, name: str) -> Tensor:
        """A new parameter."""
        attrs = {"dtype": spec.dtype, "shape": spec.shape}
        with self.inside(), self.device(None):
            return self.create_op("Parameter", [], attrs, name).outputs[0]

    def adopt(self, t: Tensor) -> Tensor:
        """The tensor of this graph for `t`: `t` itself, or its capture."""
        if t.graph is self:
            return t
        if t.graph is not self.outer:
            t = self.outer.adopt(t)
        if t not in self.captures:
            self.capture(t, self.parameter(t.spec, last_name(t.op)))
        return self.captures[t]

    def capture(self, outer: Tensor, param: Tensor) -> None:
        """Make `param` the capture of `outer`; it has the constant value of `outer`, if any."""
        self.captures[outer], self._origins[param] = param, outer
        param.know(outer.spec.value)

    def origin(self, t: Tensor) -> Tensor | None:
        """The outer tensor of a capture; None if `t` is no capture."""
        return self._origins.get(t)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Make this the default graph, with only the scopes of the body itself."""
        with self.as_default(), self.name_scope(self.prefix), self.control_dependencies(None):
            yield

    def check_reachable(self, op: Operation) -> None:
        """Errors: GraphError unless `op` is of this graph or of an outer one."""
        if op.graph is not self:
            self.outer.check_reachable(op)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name or name in self.outer

    def unique_name(self, name: str) -> str:
        """A name that no operation of the root graph and its bodies has."""
        return self.root._unique(name, self._scopes()["name"])

    def get_operation_by_name(self, name: str) -> Operation:
        """An operation of this graph or of an outer one."""
        operation = self._by_name.get(name)
        return self.outer.get_operation_by_name(name) if operation is None else operation


class FunctionDependencies(NamedTuple):
    """What results of a function depend on: operations and their used outputs, and outside."""

    inside: Mapping[Operation, set[int]]
    outside: Sequence[Operation]  # control inputs of the operations inside


@dataclasses.dataclass(frozen=True)
class Function:
    """A body as a function: from parameters and captures to results, after `targets` have run.

    It does not change when its graph grows: gradients take further results from the same graph.
    """

    body: FunctionBody
    params: tuple[Tensor, ...]
    captures: tuple[tuple[Tensor, Tensor], ...]  # (outer tensor, parameter)
    results: tuple[Tensor, ...]
    targets: tuple[Operation, ...] = ()
    needs: dict[tuple[int, ...], FunctionDependencies] = dataclasses.field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    @property
    def outer(self) -> tuple[Tensor, ...]:
        """The captured tensors, which are inputs of the operation that runs it."""
        return tuple(outer for outer, _ in self.captures)

    def but(self, **changes: Any) -> Function:
        """A copy with fields changed."""
        return dataclasses.replace(self, **changes)


def close_function(
    body: FunctionBody,
    params: Sequence[Tensor],
    results: Sequence[Tensor],
    targets: Sequence[Operation] = (),
) -> Function:
    """The function of the current state of `body`."""
    captures = tuple(body.captures.items())
    return Function(body, tuple(params), captures, tuple(results), tuple(targets))


def trace_function(
    outer: Graph,
    name: str,
    params: Sequence[tuple[Spec, str]],
    build: Callable[..., Any],
    take: Callable[[Any], tuple[Sequence[Any], Sequence[Any]]],
) -> Function:
    """Run `build(*parameters)` in a new body; `take` returns its results and its targets."""
    body = FunctionBody(outer, name)
    arguments = [body.parameter(spec, hint) for spec, hint in params]
    with body.as_default():
        results, targets = take(build(*arguments))
        results_here = [body.adopt(convert_to_tensor(r)) for r in results]
        runs = [as_operation(t) for t in targets]
    for t in runs:
        if t.graph is not body:
            raise GraphError(f"{t.name!r} was made outside of {name!r}", op=t.name, line=t.line)
    return close_function(body, arguments, results_here, runs)


@contextlib.contextmanager
def root_as_default(graph: Graph) -> Iterator[Graph]:
    """Make the root graph of `graph` the default, without scopes: for what outlives a step."""
    root = graph.root
    with root.as_default(), root.control_dependencies(None):
        yield root


def innermost_graph(root: Graph) -> Graph:
    """The default graph if it is `root` or a body in it, else `root`."""
    graph = get_default_graph()
    return graph if graph.root is root else root


def variable_operation(handle: Tensor) -> Operation:
    """The Variable operation of a handle, also of a capture of one."""
    while (outer := handle.graph.origin(handle)) is not None:
        handle = outer
    return handle.op


def depth(graph: Graph) -> int:
    """The number of graphs around `graph`."""
    count = 0
    while isinstance(graph, FunctionBody):
        graph, count = graph.outer, count + 1
    return count


def bodies(operation: Operation) -> Iterator[Function]:
    """The functions among the attributes of an operation."""
    for value in operation.attrs.values():
        if isinstance(value, Function):
            yield value


# -- dependencies of results: of a branch or loop, only those of the outputs in use


def needed_operations(
    fetches: Iterable[Tensor | Operation],
    is_available: Callable[[Tensor | Operation], bool] = lambda _: False,
) -> dict[Operation, set[int]]:
    """The operations of one graph that `fetches` depend on, and which of their outputs are in use.

    A control dependency or a fetch of an operation uses all its outputs. Items for which
    `is_available` is true are left out, and so are their dependencies.
    """
    used: dict[Operation, set[int]] = {}
    stack = list(fetches)
    while stack:
        item = stack.pop()
        if is_available(item):
            continue
        op = item if isinstance(item, Operation) else item.op
        outputs = {item.index} if isinstance(item, Tensor) else set(range(len(op.outputs)))
        new = op not in used
        used_outputs = used.setdefault(op, set())
        if new or not (outputs <= used_outputs):
            used_outputs |= outputs
            if new or lookup_op(op.type).owner:
                stack += used_inputs(op, used_outputs)
                stack += used_control_inputs(op, used_outputs)
    return used


def used_inputs(op: Operation, used_outputs: Collection[int] | None = None) -> Sequence[Tensor]:
    """The inputs that the outputs `used_outputs` (all by default) depend on."""
    if not lookup_op(op.type).owner:
        return op.inputs
    outside = [
        outer
        for f, results in used_functions(op, used_outputs)
        for outer in captured_tensors(f, results)
    ]
    if op.type == "If":
        return [op.inputs[0], *outside]
    begins = op.inputs[: len(op.attrs["body"].params) - op.attrs["lists"]]
    return [
        *(begins[i] for i in live_loop_variables(op, used_outputs) if i < len(begins)),
        *outside,
    ]


def used_control_inputs(
    op: Operation, used_outputs: Collection[int] | None = None
) -> list[Operation]:
    """The control inputs of an operation and of its functions, as operations of its own graph."""
    return [
        c for c in dict.fromkeys(_outer_control_inputs(op, used_outputs)) if c.graph is op.graph
    ]


def used_functions(
    op: Operation, used_outputs: Collection[int] | None = None
) -> list[tuple[Function, Sequence[int]]]:
    """The functions of a branch or loop, and the results that `used_outputs` depend on."""
    if op.type == "If":
        results = sorted(range(len(op.outputs)) if used_outputs is None else used_outputs)
        return [(op.attrs[side], results) for side in ("then", "else")]
    return [(op.attrs["cond"], [0]), (op.attrs["body"], live_loop_variables(op, used_outputs))]


def live_loop_variables(op: Operation, used_outputs: Collection[int] | None = None) -> list[int]:
    """The live variables of a loop: those of `used_outputs`, and those that these depend on."""
    test, step = op.attrs["cond"], op.attrs["body"]
    live = set(range(len(op.outputs)) if used_outputs is None else used_outputs)
    live |= {i for i, p in enumerate(test.params) if p.op in _dependencies(test, [0])}
    while True:
        behind = _dependencies(step, sorted(live))
        newly_live = {i for i, p in enumerate(step.params) if p.op in behind} - live
        if not newly_live:
            return sorted(live)
        live |= newly_live


def captured_tensors(f: Function, results: Sequence[int]) -> list[Tensor]:
    """The outer tensors that these results, and the targets, depend on."""
    behind = _dependencies(f, results)
    return [outer for outer, param in f.captures if param.op in behind]


def _dependencies(f: Function, results: Sequence[int]) -> Mapping[Operation, set[int]]:
    """The operations in a function that these results, and the targets, depend on."""
    return _cached_dependencies(f, results).inside


def _outer_control_inputs(
    op: Operation, used_outputs: Collection[int] | None
) -> Iterator[Operation]:
    """The control inputs of an operation and of its functions, in its graph or an outer one."""
    yield from op.control_inputs
    if lookup_op(op.type).owner:
        for f, results in used_functions(op, used_outputs):
            yield from _cached_dependencies(f, results).outside


def _cached_dependencies(f: Function, results: Sequence[int]) -> FunctionDependencies:
    """The dependencies of results of a function, cached: a function does not change."""
    key = tuple(results)
    if key not in f.needs:
        inside = needed_operations([*(f.results[i] for i in key), *f.targets])
        followed = (c for op, used in inside.items() for c in _outer_control_inputs(op, used))
        outside = tuple(dict.fromkeys(c for c in followed if c.graph is not f.body))
        f.needs[key] = FunctionDependencies(inside, outside)
    return f.needs[key]


def all_operations(graph: Graph) -> Iterator[Operation]:
    """The operations of a graph and of all bodies in it, in creation order of the outermost."""
    visited: set[int] = set()
    for operation in graph.get_operations():
        yield operation
        for function in bodies(operation):
            if id(function.body) not in visited:
                visited.add(id(function.body))
                yield from all_operations(function.body)
