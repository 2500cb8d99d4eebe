"""Scopes of the default graph, by TensorFlow 1's names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from hpcflow.errors import GraphError
from hpcflow.graph.deprecated_arguments import also_named
from hpcflow.graph.device_spec import DeviceSpec
from hpcflow.graph.graph import Graph, Operation, Tensor, get_default_graph


def name_scope(
    name: str | None, default_name: str | None = None, values: Sequence[Any] = ()
) -> AbstractContextManager[str]:
    """Names of operations made inside begin with `name/`; without a name `default_name/`.

    The graph is that of the first tensor, operation or variable of `values`, by default the default
    one, and is the default one inside.
    """
    graphs = [v.graph for v in values if isinstance(getattr(v, "graph", None), Graph)]
    graph = graphs[0] if graphs else get_default_graph()
    return _scope_in(graph, name if name is not None else default_name)


@contextmanager
def _scope_in(graph: Graph, name: str | None) -> Iterator[str]:
    with graph.as_default(), graph.name_scope(name) as full:
        yield full


@contextmanager
def reopened(graph: Graph) -> Iterator[None]:
    """Inside, what a session itself needs of a variable may join a graph that is finalized."""
    root = graph.root
    before, root.finalized = root.finalized, False
    try:
        yield
    finally:
        root.finalized = before


@also_named(device_name_or_function="name")
def device(
    name: str | DeviceSpec | Callable[[Operation], str] | None,
) -> AbstractContextManager[None]:
    """Operations made inside run on a device that fits `name`, e.g. "/job:ps" or "/cpu:0".

    A function says it of each operation, as `hf.train.replica_device_setter` makes one; it sees in
    `op.device` what inner scopes ask for, which wins by part. None forgets the outer scopes.
    """
    if isinstance(name, DeviceSpec):
        name = name.to_string()
    return get_default_graph().device(name)


@contextmanager
def container(container_name: str) -> Iterator[str]:
    """Takes the name of a container for TensorFlow's sake: state is named by its operation."""
    if not isinstance(container_name, str):
        raise GraphError(f"{container_name!r} is not the name of a container", hint="give a text")
    yield container_name


@also_named(control_inputs="before")
def control_dependencies(
    before: Iterable[Operation | Tensor] | None,
) -> AbstractContextManager[None]:
    """Operations made inside run after `before`; None forgets the outer ones."""
    return get_default_graph().control_dependencies(before)


def colocate_with(op: Any, ignore_existing: bool = False) -> AbstractContextManager[None]:
    """Operations made inside run where `op` (an operation, tensor or variable) runs.

    With `ignore_existing` the outer scopes of this kind do not bind them.
    """
    return get_default_graph().colocate_with(op, ignore_existing)


def add_to_collection(name: str, value: Any) -> None:
    """Remember `value` under `name` in the default graph."""
    get_default_graph().add_to_collection(name, value)


def add_to_collections(names: str | Iterable[str], value: Any) -> None:
    """Remember `value` under each of `names` in the default graph."""
    get_default_graph().add_to_collections(names, value)


def get_collection(key: str, scope: str | None = None) -> list[Any]:
    """What was remembered under `key` in the default graph, in that order.

    With `scope`, a regular expression, only what has a name that begins with a match.
    """
    return get_default_graph().get_collection(key, scope)


def get_collection_ref(key: str) -> list[Any]:
    """The list itself of what is remembered under `key`: changing it changes the collection."""
    return get_default_graph().get_collection_ref(key)
