"""Graphs inside a graph: the bodies of loops and the branches of conditions.

A body grows like any graph. A tensor from outside that it uses becomes a parameter of it, a
*capture*; the operation that owns the body takes the captured tensors as inputs.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from hpcflow.errors import GraphError
from hpcflow.graph.graph import (
    Graph,
    Operation,
    Tensor,
    as_operation,
    convert_to_tensor,
    get_default_graph,
)
from hpcflow.graph.registry import NoGrad, lookup, op
from hpcflow.graph.shape import Spec

op(
    "Parameter",
    infer=lambda inputs, attrs: [Spec(attrs["dtype"], attrs["shape"])],
    grad=NoGrad("it has no inputs"),
    stateful=True,
)


def last_name(op: Operation) -> str:
    """The name of an operation without its scopes."""
    return op.name.rpartition("/")[2]


class Body(Graph):
    """A graph whose parameters the operation that runs it feeds; names are the outer graph's."""

    def __init__(self, outer: Graph, name: str) -> None:
        super().__init__()
        self.outer = outer
        self._collections = outer.root._collections  # what the program remembers
        self.captures: dict[Tensor, Tensor] = {}  # outer tensor -> its parameter
        self._origins: dict[Tensor, Tensor] = {}  # parameter -> outer tensor
        scope, around = self._scopes(), outer._scopes()
        self.prefix = outer.unique_name(name) + "/"  # its own operations' names begin with it
        scope["name"] = self.prefix
        scope["device"], scope["colocate"] = list(around["device"]), list(around["colocate"])

    @property
    def root(self) -> Graph:
        """The graph around all bodies: variables live there."""
        return self.outer.root

    def parameter(self, spec: Spec, name: str) -> Tensor:
        """A new parameter."""
        attrs = {"dtype": spec.dtype, "shape": spec.shape}
        with self.inside(), self.device(None):
            return self.create_op("Parameter", [], attrs, name).outputs[0]

    def adopt(self, t: Tensor) -> Tensor:
        """The tensor of this graph that stands for `t`: itself, or its capture."""
        if t.graph is self:
            return t
        if t.graph is not self.outer:
            t = self.outer.adopt(t)
        if t not in self.captures:
            self.capture(t, self.parameter(t.spec, last_name(t.op)))
        return self.captures[t]

    def capture(self, outer: Tensor, param: Tensor) -> None:
        """Let `param` stand for `outer`: where that is constant, so is it."""
        self.captures[outer], self._origins[param] = param, outer
        param.know(outer.spec.value)

    def origin(self, t: Tensor) -> Tensor | None:
        """The tensor outside that a parameter stands for; None if `t` is no capture."""
        return self._origins.get(t)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Make this the default graph, out of the scopes in force in it."""
        with self.as_default(), self.name_scope(self.prefix), self.control_dependencies(None):
            yield

    def check_reachable(self, op: Operation) -> None:
        """Errors: GraphError unless `op` is of this graph or of one around it."""
        if op.graph is not self:
            self.outer.check_reachable(op)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name or name in self.outer

    def unique_name(self, name: str) -> str:
        """A name that no operation of the whole program has."""
        return self.root._unique(name, self._scopes()["name"])

    def get_operation_by_name(self, name: str) -> Operation:
        """An operation of this graph or of those around it."""
        found = self._by_name.get(name)
        return self.outer.get_operation_by_name(name) if found is None else found


@dataclasses.dataclass(frozen=True)
class Function:
    """A body as a function: of parameters and captures, to results, after `targets` have run.

    It stays as it is when its graph grows: gradients take further results from the same graph.
    """

    body: Body
    params: tuple[Tensor, ...]
    captures: tuple[tuple[Tensor, Tensor], ...]  # (outer tensor, parameter)
    results: tuple[Tensor, ...]
    targets: tuple[Operation, ...] = ()

    @property
    def outer(self) -> tuple[Tensor, ...]:
        """The captured tensors, as inputs of the operation that runs it."""
        return tuple(outer for outer, _ in self.captures)

    def but(self, **changes: Any) -> Function:
        """A copy with fields changed."""
        return dataclasses.replace(self, **changes)


def closed(
    body: Body,
    params: Sequence[Tensor],
    results: Sequence[Tensor],
    targets: Sequence[Operation] = (),
) -> Function:
    """The function that `body` is now."""
    captures = tuple(body.captures.items())
    return Function(body, tuple(params), captures, tuple(results), tuple(targets))


def trace(
    outer: Graph,
    name: str,
    params: Sequence[tuple[Spec, str]],
    build: Callable[..., Any],
    take: Callable[[Any], tuple[Sequence[Any], Sequence[Any]]],
) -> Function:
    """Run `build(*parameters)` in a new body; `take` gives its results and what it must run."""
    body = Body(outer, name)
    given = [body.parameter(spec, hint) for spec, hint in params]
    with body.as_default():
        results, targets = take(build(*given))
        made = [body.adopt(convert_to_tensor(r)) for r in results]
        runs = [as_operation(t) for t in targets]
    for t in runs:
        if t.graph is not body:
            raise GraphError(f"{t.name!r} was made outside of {name!r}", op=t.name, line=t.line)
    return closed(body, given, made, runs)


@contextlib.contextmanager
def at_root(graph: Graph) -> Iterator[Graph]:
    """Make the root graph of `graph` the default, out of all scopes: for what outlives a step."""
    root = graph.root
    with root.as_default(), root.control_dependencies(None):
        yield root


def innermost(root: Graph) -> Graph:
    """The default graph if it is `root` or a body in it, else `root`."""
    graph = get_default_graph()
    return graph if graph.root is root else root


def variable_of(handle: Tensor) -> Operation:
    """The Variable operation behind a handle, or behind the parameter that stands for one."""
    while (outer := handle.graph.origin(handle)) is not None:
        handle = outer
    return handle.op


def depth(graph: Graph) -> int:
    """How many graphs are around it."""
    count = 0
    while isinstance(graph, Body):
        graph, count = graph.outer, count + 1
    return count


def bodies(operation: Operation) -> Iterator[Function]:
    """The functions among the attributes of an operation."""
    for value in operation.attrs.values():
        if isinstance(value, Function):
            yield value


# -- what an operation needs: an owner of functions only what these need of it


def inputs_of(op: Operation) -> Sequence[Tensor]:
    """The inputs that it needs: of the tensors its functions capture those that they use."""
    if not lookup(op.type).owner:
        return op.inputs
    functions = list(bodies(op))
    own = len(op.inputs) - sum(len(f.captures) for f in functions)
    return [*op.inputs[:own], *(outer for f in functions for outer in captured(f))]


def control_of(op: Operation) -> list[Operation]:
    """The operations of its graph that it follows, itself or by what its functions need."""
    return [c for c in dict.fromkeys(_followed(op)) if c.graph is op.graph]


def captured(f: Function) -> list[Tensor]:
    """The tensors from outside that what a function gives and must run depends on."""
    used = {t for op in reached(f.results, f.targets) for t in op.outputs}
    return [outer for outer, param in f.captures if param in used]


def _followed(op: Operation) -> Iterator[Operation]:
    """The operations that it follows, in its graph or around it."""
    yield from op.control_inputs
    if lookup(op.type).owner:
        for f in bodies(op):
            for inside in reached(f.results, f.targets):
                yield from (c for c in _followed(inside) if c.graph is not f.body)


def reached(results: Iterable[Tensor], targets: Iterable[Operation]) -> list[Operation]:
    """The operations of one graph that results and targets depend on, and they themselves."""
    seen: dict[Operation, None] = {}
    stack = [*(r.op for r in results), *targets]
    while stack:
        op = stack.pop()
        if op not in seen:
            seen[op] = None
            stack.extend(t.op for t in inputs_of(op))
            stack.extend(control_of(op))
    return list(seen)


def all_operations(graph: Graph) -> Iterator[Operation]:
    """The operations of a graph and of all bodies in it, in creation order of the outermost."""
    seen: set[int] = set()
    for operation in graph.get_operations():
        yield operation
        for function in bodies(operation):
            if id(function.body) not in seen:
                seen.add(id(function.body))
                yield from all_operations(function.body)
