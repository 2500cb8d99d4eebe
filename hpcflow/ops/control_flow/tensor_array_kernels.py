"""TensorArray kernels: a Python object that holds arrays by index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hpcflow.errors import RangeError, ShapeError
from hpcflow.kernels.cuda_graph_restrictions import STATE_ON_HOST
from hpcflow.kernels.kernel_registry import KernelNode, kernel


class ArrayElements:
    """The elements written so far, of `size`; `like` gives the shapes of zeros.

    With `same_shape` all have the same shape as those written.
    """

    __slots__ = ("dynamic", "items", "like", "same_shape", "size")

    def __init__(
        self,
        size: int,
        dynamic: bool = False,
        like: ArrayElements | None = None,
        same_shape: bool = False,
    ) -> None:
        self.items: dict[int, Any] = {}
        self.size, self.dynamic, self.like, self.same_shape = size, dynamic, like, same_shape

    def checked_index(self, index: Any, grow: bool = False) -> int:
        """`index` as a valid int; with `grow` a dynamic array is extended."""
        i = int(index)
        if grow and self.dynamic and i >= self.size:
            self.size = i + 1
        if not 0 <= i < self.size:
            raise RangeError(f"index {i} is outside of a TensorArray of {self.size} elements")
        return i

    def put(self, index: Any, value: Any) -> None:
        """Write a new element; to a gradient array it is added."""
        i = self.checked_index(index, grow=True)
        if i in self.items and self.like is not None:
            value = self.items[i] + value
        elif i in self.items:
            raise RangeError(
                f"element {i} of a TensorArray is written twice",
                hint="write each index once in a step, e.g. at the loop's counter",
            )
        self.items[i] = value

    def add(self, index: Any, value: Any) -> None:
        """Add to an element of a gradient array."""
        i = self.checked_index(index, grow=True)
        self.items[i] = self.items[i] + value if i in self.items else value

    def get(self, xp: Any, index: Any, node: KernelNode) -> Any:
        """An element; zeros for an unwritten one of known shape."""
        i = self.checked_index(index)
        if i in self.items:
            return self.items[i]
        shape = self.shape_of(i, node.attrs["shape"])
        if shape is not None:
            return xp.zeros(shape, node.attrs["dtype"])
        raise RangeError(
            f"element {i} of a TensorArray is read before it is written, and its shape is unknown",
            hint="write every element, or give element_shape",
        )

    def shape_of(
        self, i: int, static_shape: tuple[int | None, ...] | None
    ) -> tuple[int, ...] | None:
        """The shape of element `i`, merged with `static_shape`; None if unknown."""
        if self.like is not None and i in self.like.items:
            return tuple(self.like.items[i].shape)
        if self.same_shape and self.items:
            return tuple(next(iter(self.items.values())).shape)
        if static_shape is not None and None not in static_shape:
            return tuple(d for d in static_shape if d is not None)
        return None


def _stacked(xp: Any, rows: list[Any], node: KernelNode) -> Any:
    if rows:
        for row in rows:
            if row.shape != rows[0].shape:
                raise ShapeError(
                    f"elements of shapes {list(rows[0].shape)} and {list(row.shape)} cannot be "
                    "stacked",
                    hint="concat joins elements of different lengths",
                )
        return _of_shape(xp.stack(rows), node.outputs[0].shape)
    return _no_rows(xp, node)


def _of_shape(value: Any, shape: tuple[int | None, ...] | None) -> Any:
    """The value, which has the static shape of the elements written.

    Errors: ShapeError if an element of another shape was written through another handle.
    """
    if (
        shape is None
        or shape == value.shape
        or (
            len(shape) == len(value.shape)
            and all(d in (None, n) for d, n in zip(shape, value.shape, strict=True))
        )
    ):
        return value
    raise ShapeError(
        f"an element of a TensorArray has shape {list(value.shape)}, not {list(shape)} as the "
        "others",
        hint="infer_shape=False lets elements have different shapes",
    )


def _no_rows(xp: Any, node: KernelNode) -> Any:
    """The output of no elements: its other sizes as far as known."""
    shape = node.outputs[0].shape or (0,)
    return xp.zeros((0, *(d or 0 for d in shape[1:])), node.attrs["dtype"])


@kernel("TensorArrayNew", "new", moves=True, uncaptured=STATE_ON_HOST)
def _new(xp: Any, node: KernelNode) -> Callable[..., Any]:
    dynamic, same_shape = node.attrs["dynamic"], node.attrs["infer"]

    def run(size: Any) -> ArrayElements:
        if not 0 <= int(size) < 1 << 31:
            raise RangeError(f"a TensorArray cannot have {int(size)} elements")
        return ArrayElements(int(size), dynamic, same_shape=same_shape)

    return run


@kernel("TensorArrayWrite", "new", moves=True, uncaptured=STATE_ON_HOST)
def _write(xp: Any, node: KernelNode) -> Callable[..., Any]:
    """Store a copy if the value's buffer is reused in the next iteration."""
    keep = xp.asarray if node.attrs.get("owned") else xp.array

    def run(array: ArrayElements, index: Any, value: Any) -> ArrayElements:
        array.put(index, keep(value))
        return array

    return run


@kernel("TensorArrayRead", "new", moves=True, uncaptured=STATE_ON_HOST)
def _read(xp: Any, node: KernelNode) -> Callable[..., Any]:
    shape = node.outputs[0].shape
    return lambda array, index: _of_shape(array.get(xp, index, node), shape)


@kernel("TensorArraySize", "new", moves=True, uncaptured=STATE_ON_HOST)
def _size(xp: Any, node: KernelNode) -> Callable[..., Any]:
    return lambda array: xp.asarray(array.size, np.int32)


@kernel("TensorArrayStack", "new", moves=True, uncaptured=STATE_ON_HOST)
def _stack(xp: Any, node: KernelNode) -> Callable[..., Any]:
    return lambda array: _stacked(xp, [array.get(xp, i, node) for i in range(array.size)], node)


@kernel("TensorArrayGather", "new", moves=True, uncaptured=STATE_ON_HOST)
def _gather(xp: Any, node: KernelNode) -> Callable[..., Any]:
    return lambda array, indices: _stacked(
        xp, [array.get(xp, i, node) for i in indices.tolist()], node
    )


@kernel("TensorArrayUnstack", "new", moves=True, uncaptured=STATE_ON_HOST)
def _unstack(xp: Any, node: KernelNode) -> Callable[..., Any]:
    def run(array: ArrayElements, value: Any) -> ArrayElements:
        rows = xp.array(value)
        for i in range(len(rows)):
            array.put(i, rows[i, ...])  # an array, also of a string
        return array

    return run


@kernel("TensorArrayScatter", "new", moves=True, uncaptured=STATE_ON_HOST)
def _scatter(xp: Any, node: KernelNode) -> Callable[..., Any]:
    write = ArrayElements.add if node.attrs["add"] else ArrayElements.put

    def run(array: ArrayElements, indices: Any, value: Any) -> ArrayElements:
        rows = xp.array(value)
        if len(indices) != len(rows):
            raise ShapeError(
                f"scatter of a TensorArray: {len(indices)} indices do not fit {len(rows)} elements"
            )
        for k, i in enumerate(indices.tolist()):
            write(array, i, rows[k, ...])
        return array

    return run


def _of_told(joined: Any, node: KernelNode) -> Any:
    """All elements concatenated.

    Errors: ShapeError if an element does not have the common length given.
    """
    expected = node.outputs[0].shape
    if expected and expected[0] not in (None, len(joined)):
        raise ShapeError(
            f"the concatenated elements have {len(joined)} rows, not the expected {expected[0]}",
            hint="infer_shape=False lets elements have different lengths",
        )
    return joined


@kernel("TensorArrayConcat", "new", moves=True, uncaptured=STATE_ON_HOST)
def _concat(xp: Any, node: KernelNode) -> Callable[..., Any]:
    def run(array: ArrayElements) -> tuple[Any, Any]:
        rows = [array.get(xp, i, node) for i in range(array.size)]
        lengths = xp.asarray([len(row) for row in rows], np.int32)
        if not rows:
            return _no_rows(xp, node), lengths
        return _of_told(xp.concatenate(rows), node), lengths

    return run


@kernel("TensorArraySplit", "new", moves=True, uncaptured=STATE_ON_HOST)
def _split(xp: Any, node: KernelNode) -> Callable[..., Any]:
    def run(array: ArrayElements, value: Any, lengths: Any) -> ArrayElements:
        rows, at = xp.array(value), 0
        if len(lengths) != array.size and not array.dynamic:
            raise ShapeError(
                f"split: {len(lengths)} lengths do not fit a TensorArray of {array.size} elements",
                hint="give one length for each element, or dynamic_size=True",
            )
        for i, length in enumerate(lengths.tolist()):
            array.put(i, rows[at : at + length])
            at += length
        if at != len(rows):
            raise ShapeError(
                f"split: the lengths add up to {at}, but the value has {len(rows)} rows"
            )
        return array

    return run


@kernel("TensorArrayFirst", "new", moves=True, uncaptured=STATE_ON_HOST)
def _first(xp: Any, node: KernelNode) -> Callable[..., Any]:
    def run(array: ArrayElements, count: Any) -> ArrayElements:
        first = ArrayElements(int(count), like=array.like)
        first.items = {i: array.items[i] for i in range(first.size) if i in array.items}
        return first

    return run


@kernel("TensorArrayEmpty", "new", moves=True, uncaptured=STATE_ON_HOST)
def _empty(xp: Any, node: KernelNode) -> Callable[..., Any]:
    def run(like: ArrayElements) -> ArrayElements:
        return ArrayElements(like.size, like.dynamic, like.like or like)

    return run


@kernel("TensorArrayAccumulate", "new", moves=True, uncaptured=STATE_ON_HOST)
def _accumulate(xp: Any, node: KernelNode) -> Callable[..., Any]:
    def run(total: ArrayElements, addend: ArrayElements) -> ArrayElements:
        for i, value in addend.items.items():
            total.add(i, value)
        total.size = max(total.size, addend.size)
        return total

    return run


@kernel("TensorArrayAddN", "new", moves=True, uncaptured=STATE_ON_HOST)
def _add_n(xp: Any, node: KernelNode) -> Callable[..., Any]:
    def run(first: ArrayElements, *others: ArrayElements) -> ArrayElements:
        total = ArrayElements(first.size, first.dynamic, first.like)
        for part in (first, *others):
            for i, value in part.items.items():
                total.add(i, value)
            total.size = max(total.size, part.size)
        return total

    return run
