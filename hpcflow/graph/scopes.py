"""Scopes of the default graph, by TensorFlow 1's names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from hpcflow.graph.graph import Operation, Tensor, get_default_graph


def name_scope(name: str | None, default_name: str | None = None) -> AbstractContextManager[str]:
    """Names of operations made inside begin with `name/`; without a name `default_name/`."""
    return get_default_graph().name_scope(name if name is not None else default_name)


def device(name: str | Callable[[Operation], str] | None) -> AbstractContextManager[None]:
    """Operations made inside run on a device that fits `name`, e.g. "/job:ps" or "/cpu:0"."""
    return get_default_graph().device(name)


def control_dependencies(
    before: Iterable[Operation | Tensor] | None,
) -> AbstractContextManager[None]:
    """Operations made inside run after `before`; None forgets the outer ones."""
    return get_default_graph().control_dependencies(before)


def colocate_with(op: Any) -> AbstractContextManager[None]:
    """Operations made inside run where `op` (an operation, tensor or variable) runs."""
    return get_default_graph().colocate_with(op)


def add_to_collection(name: str, value: Any) -> None:
    """Remember `value` under `name` in the default graph."""
    get_default_graph().add_to_collection(name, value)


def get_collection(name: str) -> list[Any]:
    """What was remembered under `name` in the default graph."""
    return get_default_graph().get_collection(name)
