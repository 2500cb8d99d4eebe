"""Calls of layers without `training=`, which a model repeats in the graph that it trains.

Keras's layers take `training` from the method that runs them: it is true in `fit` alone. Here a
call without it has its default, and is recorded in the graph. A model that is trained copies its
graph, and repeats these calls with `training=True`; see `hpcflow.model.training_ends`.
"""

from __future__ import annotations

import contextlib
import contextvars
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from hpcflow.graph.graph import Graph, Operation, Tensor, get_default_graph
from hpcflow.graph.graph_keys import GraphKeys
from hpcflow.graph.nested_structure import flatten_structure, map_structure, pack_structure
from hpcflow.ops.array.array_ops import identity

_CALLS = ("calls without training=",)  # collection of a graph
_phase: contextvars.ContextVar[bool | None] = contextvars.ContextVar("training", default=None)
_ENTRIES = (GraphKeys.REGULARIZATION_LOSSES, GraphKeys.UPDATE_OPS)


class TrainingCall(NamedTuple):
    """A call without `training=`: `function(*args, **kwargs)` made the tensors `results`."""

    label: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    position: int  # of `training` among the arguments
    results: tuple[Tensor, ...]
    start: int  # index of the first operation of the call in the graph
    entries: tuple[Any, ...]  # penalties and updates that it made

    @property
    def inputs(self) -> list[Tensor]:
        """The tensors among its arguments."""
        return _tensors((self.args, self.kwargs))

    def repeat(self, other: Mapping[Tensor, Tensor]) -> list[Tensor]:
        """Call it with `training=True` and other inputs; new tensors for the results."""

        def swapped(leaf: Any) -> Any:
            return other.get(leaf, leaf) if isinstance(leaf, Tensor) else leaf

        args, kwargs = map_structure(swapped, (self.args, self.kwargs))
        args, kwargs = _with_training(args, kwargs, self.position, True)
        with training_phase(True):
            return _tensors(self.function(*args, **kwargs))


@contextlib.contextmanager
def training_phase(training: bool) -> Iterator[None]:
    """Calls without `training=` inside get this value, and are not recorded."""
    token = _phase.set(training)
    try:
        yield
    finally:
        _phase.reset(token)


def accepts_training(function: Callable[..., Any]) -> bool:
    """Whether a function has an argument `training`."""
    return "training" in inspect.signature(function).parameters


def calls_without_training(graph: Graph) -> list[TrainingCall]:
    """The recorded calls of a graph and of bodies in it, inner calls before outer ones."""
    return graph.get_collection(_CALLS)


def call_in_phase(
    run: Callable[..., Any],
    signed: Callable[..., Any],
    again: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    label: str,
) -> Any:
    """`run(*args, **kwargs)`, where `training` is that of the phase unless it is given.

    `signed` has the signature. Outside of a phase, `training` has its default, and the call is
    recorded: `again` repeats it. A default of True stays.
    """
    parameter = inspect.signature(signed).parameters.get("training")
    if parameter is None:
        return run(*args, **kwargs)
    position = _position(signed, parameter)
    given = args[position] if len(args) > position else kwargs.get("training")
    if given is not None:
        return run(*args, **kwargs)
    phase, default = _phase.get(), parameter.default
    value = (False if default is parameter.empty else default) if phase is None else phase
    with_value = _with_training(args, kwargs, position, value)
    if phase is not None or value:
        return run(*with_value[0], **with_value[1])
    return _recorded(run, with_value, TrainingCall(label, again, args, kwargs, position, (), 0, ()))


def _position(signed: Callable[..., Any], parameter: inspect.Parameter) -> int:
    if parameter.kind is parameter.KEYWORD_ONLY:
        return sys.maxsize
    return list(inspect.signature(signed).parameters).index("training")


def _recorded(
    run: Callable[..., Any], how: tuple[tuple[Any, ...], dict[str, Any]], call: TrainingCall
) -> Any:
    """The result of a call, whose tensors are new ones, so that they are of this call alone."""
    graph = next((t.graph for t in call.inputs), get_default_graph())
    start, before = graph.version, [len(graph.get_collection(key)) for key in _ENTRIES]
    result = run(*how[0], **how[1])
    leaves = [_new(leaf, graph, start) for leaf in flatten_structure(result)]
    results = tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))
    pairs = zip(_ENTRIES, before, strict=True)
    made = tuple(entry for key, count in pairs for entry in graph.get_collection(key)[count:])
    if results:
        done = call._replace(results=results, start=start, entries=made)
        graph.add_to_collection(_CALLS, done)
    return pack_structure(result, leaves)


def _new(leaf: Any, graph: Graph, start: int) -> Any:
    """`leaf`; a copy of a tensor that was there before the operation number `start`."""
    if isinstance(leaf, Tensor) and (leaf.graph is not graph or leaf.op.index < start):
        with graph.as_default():
            return identity(leaf)
    return leaf


def _with_training(
    args: tuple[Any, ...], kwargs: dict[str, Any], position: int, value: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if len(args) > position:
        return (*args[:position], value, *args[position + 1 :]), kwargs
    return args, {**kwargs, "training": value}


def _tensors(structure: Any) -> list[Tensor]:
    return [leaf for leaf in flatten_structure(structure) if isinstance(leaf, Tensor)]


def external_tensors(call: TrainingCall) -> list[Tensor]:
    """The tensors from before a call that its results depend on and that are not its inputs."""
    inputs, found = set(call.inputs), dict[Tensor, None]()
    visited: set[Operation] = set()
    waiting = [t.op for t in call.results]
    while waiting:
        op = waiting.pop()
        if op in visited:
            continue
        visited.add(op)
        for t in op.inputs:
            if t.op.index >= call.start:
                waiting.append(t.op)
            elif t not in inputs:
                found[t] = None
    return list(found)
