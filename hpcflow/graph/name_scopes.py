"""Scope functions of the default graph, with TensorFlow 1's names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from hpcflow.errors import GraphError
from hpcflow.graph.deprecated_arguments import accepts_aliases
from hpcflow.graph.device_spec import DeviceSpec
from hpcflow.graph.graph import Graph, Operation, Tensor, get_default_graph


def name_scope(
    name: str | None, default_name: str | None = None, values: Sequence[Any] = ()
) -> AbstractContextManager[str]:
    """Names of operations created inside begin with `name/`; without a name, with `default_name/`.

    The graph is that of the first tensor, operation or variable of `values`, else the default
    graph. It is the default graph inside.
    """
    graphs = [v.graph for v in values if isinstance(getattr(v, "graph", None), Graph)]
    graph = graphs[0] if graphs else get_default_graph()
    return _graph_scope(graph, name if name is not None else default_name)


@contextmanager
def _graph_scope(graph: Graph, name: str | None) -> Iterator[str]:
    with graph.as_default(), graph.name_scope(name) as full:
        yield full


@contextmanager
def reopen_for_session(graph: Graph) -> Iterator[None]:
    """Inside, a session may add operations that it needs for variables to a finalized graph."""
    root = graph.root
    before, root.finalized = root.finalized, False
    try:
        yield
    finally:
        root.finalized = before


@accepts_aliases(device_name_or_function="name")
def device(
    name: str | DeviceSpec | Callable[[Operation], str] | None = "",
    *,
    requires: str | None = None,
    near: str | None = None,
) -> AbstractContextManager[None]:
    """Operations created inside run on a device that matches `name`, e.g. "/job:ps" or "/cpu:0".

    A function returns the name for each operation, as that of `hf.train.replica_device_setter`; in
    `op.device` it sees the constraint of inner scopes, whose parts win. None clears the outer
    scopes.

    `requires` says what their task must have: "gpu", memory ("20 GB"), or both ("gpu, 20 GB").
    The memory is reserved once on each task that runs operations of this scope. `near` is a task,
    "/job:worker/task:3": they run on its node, on the task itself if possible. Requirements of
    nested scopes add up.
    """
    if isinstance(name, DeviceSpec):
        name = name.to_string()
    return get_default_graph().device(name, requires, near)


@contextmanager
def container(container_name: str) -> Iterator[str]:
    """Accept the name of a container for compatibility: state is named by its operation."""
    if not isinstance(container_name, str):
        raise GraphError(f"{container_name!r} is not the name of a container", hint="give a string")
    yield container_name


@accepts_aliases(control_inputs="before")
def control_dependencies(
    before: Iterable[Operation | Tensor] | None,
) -> AbstractContextManager[None]:
    """Operations created inside run after `before`; None clears the outer ones."""
    return get_default_graph().control_dependencies(before)


def colocate_with(op: Any, ignore_existing: bool = False) -> AbstractContextManager[None]:
    """Operations created inside run where `op` (an operation, tensor or variable) runs.

    With `ignore_existing`, outer colocation scopes do not apply.
    """
    return get_default_graph().colocate_with(op, ignore_existing)


def add_to_collection(name: str, value: Any) -> None:
    """Add `value` to the collection `name` of the default graph."""
    get_default_graph().add_to_collection(name, value)


def add_to_collections(names: str | Iterable[str], value: Any) -> None:
    """Add `value` to each of the collections `names` of the default graph."""
    get_default_graph().add_to_collections(names, value)


def get_collection(key: str, scope: str | None = None) -> list[Any]:
    """The items of the collection `key` of the default graph, in the order they were added.

    With `scope`, a regular expression, only items whose name begins with a match.
    """
    return get_default_graph().get_collection(key, scope)


def get_collection_ref(key: str) -> list[Any]:
    """The list of the collection `key` itself: changing it changes the collection."""
    return get_default_graph().get_collection_ref(key)
