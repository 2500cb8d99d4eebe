"""Graphs inside a graph: the bodies of loops and the branches of conditions.

A body grows like any graph. A tensor from outside that it uses becomes a parameter of it, a
*capture*; the operation that owns the body takes the captured tensors as inputs.
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
from hpcflow.graph.op_registry import NoGrad, lookup, op
from hpcflow.graph.static_shape import Spec

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


class Need(NamedTuple):
    """What results of a function need: operations in it, with the outputs in use, and outside."""

    inside: Mapping[Operation, set[int]]
    outside: Sequence[Operation]  # that those inside follow


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
    needs: dict[tuple[int, ...], Need] = dataclasses.field(
        default_factory=dict, init=False, compare=False, repr=False
    )

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


# -- what results need: of a branch or loop only what the outputs in use need


def needed(
    wanted: Iterable[Tensor | Operation],
    there: Callable[[Tensor | Operation], bool] = lambda _: False,
) -> dict[Operation, set[int]]:
    """The operations of one graph behind `wanted`, and which of their outputs are in use.

    Whoever follows an operation, or fetches it, uses all its outputs. What is `there` needs nothing
    and is left out.
    """
    used: dict[Operation, set[int]] = {}
    stack = list(wanted)
    while stack:
        item = stack.pop()
        if there(item):
            continue
        op = item if isinstance(item, Operation) else item.op
        outputs = {item.index} if isinstance(item, Tensor) else set(range(len(op.outputs)))
        new = op not in used
        mine = used.setdefault(op, set())
        if new or not (outputs <= mine):
            mine |= outputs
            if new or lookup(op.type).owner:
                stack += inputs_of(op, mine)
                stack += control_of(op, mine)
    return used


def inputs_of(op: Operation, used: Collection[int] | None = None) -> Sequence[Tensor]:
    """The inputs that the outputs `used`, by default all, need."""
    if not lookup(op.type).owner:
        return op.inputs
    outside = [outer for f, results in functions_of(op, used) for outer in captured(f, results)]
    if op.type == "If":
        return [op.inputs[0], *outside]
    begins = op.inputs[: len(op.attrs["body"].params) - op.attrs["lists"]]
    return [*(begins[i] for i in alive(op, used) if i < len(begins)), *outside]


def control_of(op: Operation, used: Collection[int] | None = None) -> list[Operation]:
    """The operations of its graph that it follows, itself or by what its functions need."""
    return [c for c in dict.fromkeys(_followed(op, used)) if c.graph is op.graph]


def functions_of(
    op: Operation, used: Collection[int] | None = None
) -> list[tuple[Function, Sequence[int]]]:
    """The functions of a branch or loop, and which of their results the outputs `used` need."""
    if op.type == "If":
        results = sorted(range(len(op.outputs)) if used is None else used)
        return [(op.attrs[side], results) for side in ("then", "else")]
    return [(op.attrs["cond"], [0]), (op.attrs["body"], alive(op, used))]


def alive(op: Operation, used: Collection[int] | None = None) -> list[int]:
    """The variables of a loop that matter: those of the outputs `used`, and what these need."""
    test, step = op.attrs["cond"], op.attrs["body"]
    found = set(range(len(op.outputs)) if used is None else used)
    found |= {i for i, p in enumerate(test.params) if p.op in _behind(test, [0])}
    while True:
        behind = _behind(step, sorted(found))
        more = {i for i, p in enumerate(step.params) if p.op in behind} - found
        if not more:
            return sorted(found)
        found |= more


def captured(f: Function, results: Sequence[int]) -> list[Tensor]:
    """The tensors from outside that these results, and what must run, depend on."""
    behind = _behind(f, results)
    return [outer for outer, param in f.captures if param.op in behind]


def _behind(f: Function, results: Sequence[int]) -> Mapping[Operation, set[int]]:
    """The operations in a function that these results, and what must run, depend on."""
    return _need(f, results).inside


def _followed(op: Operation, used: Collection[int] | None) -> Iterator[Operation]:
    """The operations that it follows, in its graph or around it."""
    yield from op.control_inputs
    if lookup(op.type).owner:
        for f, results in functions_of(op, used):
            yield from _need(f, results).outside


def _need(f: Function, results: Sequence[int]) -> Need:
    """What results of a function need; it is found once, for a function stays as it is."""
    key = tuple(results)
    if key not in f.needs:
        inside = needed([*(f.results[i] for i in key), *f.targets])
        followed = (c for op, used in inside.items() for c in _followed(op, used))
        outside = tuple(dict.fromkeys(c for c in followed if c.graph is not f.body))
        f.needs[key] = Need(inside, outside)
    return f.needs[key]


def all_operations(graph: Graph) -> Iterator[Operation]:
    """The operations of a graph and of all bodies in it, in creation order of the outermost."""
    seen: set[int] = set()
    for operation in graph.get_operations():
        yield operation
        for function in bodies(operation):
            if id(function.body) not in seen:
                seen.add(id(function.body))
                yield from all_operations(function.body)
