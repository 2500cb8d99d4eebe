"""Tensor list kernels: Python lists of arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcflow.graph.dtypes import OPAQUE
from hpcflow.kernels.cuda_graph_restrictions import STATE_ON_HOST
from hpcflow.kernels.kernel_registry import KernelNode, kernel


@kernel("ListEmpty", "new", moves=True, uncaptured=STATE_ON_HOST)
def _empty(xp: Any, node: KernelNode) -> Callable[..., Any]:
    return list


@kernel("ListCopy", "new", moves=True, uncaptured=STATE_ON_HOST)
def _copy(xp: Any, node: KernelNode) -> Callable[..., Any]:
    return _copied


def _copied(elements: list[Any]) -> list[Any]:
    return [_copied(element) if isinstance(element, list) else element for element in elements]


@kernel("ListPush", "new", moves=True, uncaptured=STATE_ON_HOST)
def _push(xp: Any, node: KernelNode) -> Callable[..., Any]:
    """Store a C-contiguous array: a copy if the value's buffer is reused in the next iteration."""
    if node.inputs[1].dtype in OPAQUE:
        keep: Callable[[Any], Any] = lambda value: value  # noqa: E731 - a list in a list
    elif node.attrs["host"] and xp is not np:
        keep = xp.asnumpy
    elif node.attrs.get("owned"):
        return _push_owned
    else:  # the method takes half the time of the function, which makes arrays of other values
        array = xp.ndarray
        keep = lambda value: (  # noqa: E731
            value.copy() if isinstance(value, array) else xp.array(value, order="C")
        )

    def run(elements: list[Any], value: Any) -> list[Any]:
        elements.append(keep(value))
        return elements

    return run


def _push_owned(elements: list[Any], value: Any) -> list[Any]:
    """The value is in memory of its own: that of an array needs no copy."""
    is_array = isinstance(value, np.ndarray) and value.flags.c_contiguous
    elements.append(value if is_array else np.array(value, order="C"))
    return elements


@kernel("ListPop", "new", moves=True, uncaptured=STATE_ON_HOST)
def _pop(xp: Any, node: KernelNode) -> Callable[..., Any]:
    back = xp.asarray if xp is not np else lambda value: value
    if node.attrs["dtype"] in OPAQUE:
        back = lambda value: value  # noqa: E731

    def run(elements: list[Any]) -> tuple[list[Any], Any]:
        return elements, back(elements.pop())

    return run


@kernel("ListRows", "new", moves=True, uncaptured=STATE_ON_HOST)
def _rows(xp: Any, node: KernelNode) -> Callable[..., Any]:
    """The elements concatenated by rows; no rows for an empty list."""
    first, every = node.attrs["first"], node.attrs["of"]
    none = (0, *node.attrs["shape"][1:])

    def run(elements: list[Any]) -> Any:
        return (
            xp.concatenate(elements[first::every])
            if elements
            else xp.zeros(none, node.attrs["dtype"])
        )

    return run
