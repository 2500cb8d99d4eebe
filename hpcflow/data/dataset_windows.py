"""Windows of elements, which are datasets, and the reduction of a dataset to one value."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from hpcflow.data.dataset_batching import stack_elements
from hpcflow.data.dataset_counts import as_integer
from hpcflow.data.dataset_functions import (
    CapturedValues,
    Element,
    RowsComponent,
    TensorComponent,
    TensorFunction,
    leaves_of,
    pack_components,
    require_tensors,
)
from hpcflow.errors import DTypeError
from hpcflow.graph import nested_structure
from hpcflow.graph.graph import Graph, Tensor
from hpcflow.graph.static_shape import common_shape
from hpcflow.platform.exception_translation import user_line

Change = Callable[[Iterator[Element]], Iterator[Element]]


def make_windows(
    structure: Any, size: int, shift: int, stride: int, drop: bool, make: Callable[[Tensor], Any]
) -> tuple[Change, Any]:
    """A function that makes windows of elements of `structure`, and the windows' structure.

    `make` returns the dataset of the rows of a tensor.
    """
    require_tensors(structure, "window()")
    size, shift, stride = (as_integer("window", n, 1) for n in (size, shift, stride))

    def wide(leaf: TensorComponent) -> RowsComponent:
        rows = None if leaf.shape is None else (size if drop else None, *leaf.shape)
        return RowsComponent(leaf.dtype, rows, make)

    def change(elements: Iterator[Element]) -> Iterator[Element]:
        for part in _window_groups(elements, size, shift, stride, drop):
            yield tuple(stack_elements(column, "a window") for column in zip(*part, strict=True))

    return change, pack_components(structure, [wide(leaf) for leaf in leaves_of(structure)])


def _window_groups(
    elements: Iterator[Element], size: int, shift: int, stride: int, drop: bool
) -> Iterator[list[Element]]:
    span, buffer = (size - 1) * stride + 1, list[Element]()
    while True:
        buffer += itertools.islice(elements, span - len(buffer))
        if not buffer or (drop and len(buffer) < span):
            return
        yield buffer[::stride]
        for _ in itertools.islice(elements, max(0, shift - len(buffer))):
            pass
        buffer = buffer[shift:]


def reduce_function(
    structure: Any, initial_state: Any, function: Callable[[Any, Any], Any], graph: Graph
) -> tuple[Callable[[Iterator[Element], CapturedValues], Element], Any, list[Tensor]]:
    """A function that folds elements to a state, the state's structure, and captured tensors."""
    first = TensorFunction(lambda: initial_state, (), graph)
    state, before = first.structure, None
    while before is None or _shapes(state) != before:  # relax the shapes to a fixed point
        before = _shapes(state)
        traced = TensorFunction(function, (state, structure), graph)
        nested_structure.check_same_structure(
            state, traced.structure, "the initial state and the result of reduce_func"
        )
        pairs = list(zip(leaves_of(state), leaves_of(traced.structure), strict=True))
        for old, new in pairs:
            if old.dtype != new.dtype:
                raise DTypeError(
                    f"reduce_func changes the dtype of the state from {old.dtype} to {new.dtype}",
                    line=user_line(),
                )
        state = pack_components(
            state, [TensorComponent(a.dtype, common_shape(a.shape, b.shape)) for a, b in pairs]
        )

    def fold(elements: Iterator[Element], feeds: CapturedValues) -> Element:
        call, state = traced.bound(feeds), first.bound(feeds)(())
        for element in elements:
            state = call((*state, *element))
        return state

    return fold, state, [*first.needs, *traced.needs]


def _shapes(structure: Any) -> list[Any]:
    return [leaf.shape for leaf in leaves_of(structure)]
