"""Iterators over datasets, as state of the graph: TensorFlow 1's `tf.data.Iterator`."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, Protocol

import numpy as np

from hpcflow.data.dataset_functions import (
    Begin,
    TensorComponent,
    leaves_of,
    pack_components,
    require_tensors,
    values_by_component,
)
from hpcflow.errors import (
    DTypeError,
    FeedError,
    GraphError,
    OutOfRangeError,
    ShapeError,
    UninitializedError,
)
from hpcflow.graph import nested_structure
from hpcflow.graph.deprecated_arguments import accepts_and_ignores
from hpcflow.graph.dtypes import as_dtype, name_of, string
from hpcflow.graph.function_body import innermost_graph, root_as_default
from hpcflow.graph.graph import Operation, Tensor, convert_to_tensor, get_default_graph
from hpcflow.graph.static_shape import as_shape, merge_shapes
from hpcflow.ops.array.array_ops import identity
from hpcflow.plan.ir.program import Node
from hpcflow.runtime.executor.async_ops import AsyncWait, CompletedWait, async_op
from hpcflow.runtime.state.state_store import state_type
from hpcflow.runtime.step.step_instance import StepInstance


class ElementSource(Protocol):
    """A dataset: the structure of an element, and the start of a pass over the elements."""

    structure: Any
    needs: list[Tensor]
    begin: Begin


class Iterator:
    """Iterates over a dataset: each run of the tensors of `get_next` takes one element.

    State:  in the session, on the rank that runs the script; not in checkpoints.
    Errors: OutOfRangeError after the last element, which ends only its step; UninitializedError
            before the initializer has run.
    """

    def __init__(self, handle: Tensor, structure: Any, initializer: Operation | None) -> None:
        self._handle, self._structure, self._initializer = handle, structure, initializer

    @staticmethod
    @accepts_and_ignores("output_classes")
    def from_structure(
        output_types: Any, output_shapes: Any = None, shared_name: str | None = None
    ) -> Iterator:
        """An iterator for any dataset of these dtypes and shapes; see `make_initializer`."""
        structure = _declared_structure(output_types, output_shapes)
        return Iterator(_handle(None, shared_name), structure, None)

    @staticmethod
    @accepts_and_ignores("output_classes")
    def from_string_handle(
        string_handle: Any, output_types: Any, output_shapes: Any = None
    ) -> Iterator:
        """An iterator that takes elements from the one whose `string_handle` is fed in each step.

        `string_handle` is a string scalar, usually a placeholder. The iterators fed must have these
        dtypes and shapes.
        """
        handle = convert_to_tensor(string_handle)
        if handle.dtype != string:
            raise DTypeError(
                f"{handle.name!r} is {handle.dtype}, not the handle of an iterator",
                op=handle.op.name,
                hint="use hf.placeholder(hf.string, [])",
            )
        return _Feedable(handle, _declared_structure(output_types, output_shapes), None)

    @property
    def initializer(self) -> Operation:
        """The operation that starts it; GraphError for an iterator without initializer."""
        if self._initializer is None:
            raise GraphError(
                "this iterator has no initializer",
                op=self._handle.op.name,
                hint="use dataset.make_initializable_iterator(), or "
                "iterator.make_initializer(dataset)",
            )
        return self._initializer

    def make_initializer(self, dataset: ElementSource, name: str | None = None) -> Operation:
        """An operation that starts an iteration over `dataset`, whose elements must fit."""
        if not hasattr(dataset, "structure") or not hasattr(dataset, "begin"):
            raise GraphError(
                f"{dataset!r} is not a dataset",
                hint="make one, e.g. by hf.data.Dataset.from_tensor_slices",
            )
        nested_structure.check_same_structure(
            self._structure, dataset.structure, "the iterator and the dataset"
        )
        pairs = zip(leaves_of(self._structure), leaves_of(dataset.structure), strict=True)
        for leaf, source in pairs:
            if leaf.dtype != source.dtype:
                raise DTypeError(f"the iterator gives {leaf.dtype}, the dataset {source.dtype}")
            merge_shapes(leaf.shape, source.shape)
        return _initializer(self._handle, dataset, name)

    def get_next(self, name: str | None = None) -> Any:
        """The next element, as tensors in its structure."""
        op = self._create_state_op("IteratorGetNext", self._promise, name or "IteratorGetNext")
        return pack_components(self._structure, op.outputs)

    def string_handle(self, name: str | None = None) -> Tensor:
        """The string scalar to feed to an iterator made by `from_string_handle`.

        Run it in the session that feeds it.
        """
        return self._create_state_op(
            "IteratorToHandle", {}, name or "IteratorToStringHandle"
        ).outputs[0]

    @property
    def _promise(self) -> dict[str, Any]:
        """The dtypes and shapes of the components, as attributes."""
        leaves = leaves_of(self._structure)
        types, shapes = [leaf.dtype for leaf in leaves], [leaf.shape for leaf in leaves]
        return {"component_types": tuple(types), "shapes": tuple(shapes)}

    def _create_state_op(self, type: str, attrs: dict[str, Any], name: str) -> Operation:
        """An operation on its state; its inputs include what a one-shot dataset needs."""
        once = self._handle.op.attrs["dataset"]
        graph = innermost_graph(self._handle.graph)
        with graph.colocate_with(self._handle.op):
            inputs = [self._handle, *(once.needs if once is not None else ())]
            return graph.create_op(type, inputs, attrs, name)

    @property
    def output_types(self) -> Any:
        """The dtypes of an element, in its structure."""
        return nested_structure.map_structure(lambda leaf: leaf.dtype, self._structure)

    @property
    def output_shapes(self) -> Any:
        """The static shapes of an element, in its structure."""
        return pack_components(self._structure, [leaf.shape for leaf in leaves_of(self._structure)])

    @property
    def output_classes(self) -> Any:
        """The classes of an element, in its structure: tensors."""
        return nested_structure.map_structure(lambda leaf: Tensor, self._structure)


def get_output_types(dataset_or_iterator: Any) -> Any:
    """The dtypes of an element, in its structure."""
    return dataset_or_iterator.output_types


def get_output_shapes(dataset_or_iterator: Any) -> Any:
    """The static shapes of an element, in its structure."""
    return dataset_or_iterator.output_shapes


def get_output_classes(dataset_or_iterator: Any) -> Any:
    """The classes of an element, in its structure: tensors."""
    return dataset_or_iterator.output_classes


class _Feedable(Iterator):
    """An iterator whose handle is fed; its own handle is that string."""

    @property
    def initializer(self) -> Operation:
        """Errors: GraphError; run the initializer of the iterator that is fed."""
        raise GraphError(
            "an iterator that is fed by its handle has no initializer",
            op=self._handle.op.name,
            hint="run the initializer of the iterator whose handle is fed",
        )

    def make_initializer(self, dataset: ElementSource, name: str | None = None) -> Operation:
        """Errors: GraphError, as `initializer`."""
        return self.initializer

    def string_handle(self, name: str | None = None) -> Tensor:
        """The handle that is fed."""
        return identity(self._handle, name)

    def _create_state_op(self, type: str, attrs: dict[str, Any], name: str) -> Operation:
        return innermost_graph(self._handle.graph).create_op(
            f"{type}Of", [self._handle], attrs, name
        )


def _declared_structure(output_types: Any, output_shapes: Any) -> Any:
    """The structure of an element with these dtypes and shapes."""
    types = nested_structure.flatten_structure(
        nested_structure.map_structure(as_dtype, output_types)
    )
    shapes = (
        [None] * len(types)
        if output_shapes is None
        else values_by_component(output_types, output_shapes)
    )
    if len(types) != len(shapes):
        raise GraphError(
            f"output_shapes {output_shapes!r} do not fit output_types {output_types!r}"
        )
    leaves = [TensorComponent(t, as_shape(s)) for t, s in zip(types, shapes, strict=True)]
    return pack_components(output_types, leaves)


def one_shot_iterator(dataset: ElementSource) -> Iterator:
    """An iterator over one pass of the dataset, without initializer."""
    require_tensors(dataset.structure, "an iterator")
    fed = [t for t in dataset.needs if t.op.type == "Placeholder"]
    if fed:
        raise GraphError(
            f"a one-shot iterator cannot be fed: its dataset is made of {fed[0].name!r}",
            op=fed[0].op.name,
            hint="dataset.make_initializable_iterator(); feed the placeholder to its initializer",
        )
    return Iterator(_handle(dataset, None), dataset.structure, None)


def initializable_iterator(dataset: ElementSource, shared_name: str | None = None) -> Iterator:
    """An iterator that starts, or restarts, when its `initializer` runs."""
    require_tensors(dataset.structure, "an iterator")
    handle = _handle(None, shared_name)
    return Iterator(handle, dataset.structure, _initializer(handle, dataset, None))


def _handle(dataset: ElementSource | None, shared_name: str | None) -> Tensor:
    graph = get_default_graph().root
    attrs = {"dataset": dataset, "shared_name": shared_name}
    with root_as_default(graph):
        return graph.create_op("Iterator", [], attrs, "Iterator").outputs[0]


def _initializer(handle: Tensor, dataset: ElementSource, name: str | None) -> Operation:
    graph = handle.graph
    with root_as_default(graph), graph.colocate_with(handle.op):
        inputs = [handle, *dataset.needs]
        return graph.create_op("MakeIterator", inputs, {"dataset": dataset}, name or "MakeIterator")


# -- at run time


class _IteratorState:
    """The state of an iterator."""

    def __init__(self, node: Node) -> None:
        self.one_shot_source: ElementSource | None = node.attrs["dataset"]
        self.name = node.attrs.get("shared_name") or node.name
        self._elements: Any = None
        self._lock = threading.Lock()

    def begin(self, dataset: ElementSource, values: Sequence[np.ndarray]) -> None:
        """Start a pass over `dataset`, with the values of the tensors that it needs."""
        feeds = {t: np.array(v) for t, v in zip(dataset.needs, values, strict=True)}
        with self._lock:
            self._elements = dataset.begin(feeds)

    def begin_once(self, values: Sequence[np.ndarray]) -> None:
        """Start a one-shot iterator if it has not started."""
        if self._elements is None and self.one_shot_source is not None:
            self.begin(self.one_shot_source, values)

    def next(self) -> list[np.ndarray]:
        """The next element, as new arrays."""
        if self._elements is None:
            raise UninitializedError(
                f"the iterator {self.name!r} has not been initialized",
                hint="call session.run(iterator.initializer) first",
            )
        with self._lock:
            element = next(self._elements, None)
        if element is None:
            raise OutOfRangeError(f"the iterator {self.name!r} is at the end of its dataset")
        return [np.array(x) for x in element]


state_type("Iterator")(_IteratorState)


@async_op("MakeIterator")
def _make_state(
    instance: StepInstance, node: Node, iterator: _IteratorState, *values: Any
) -> AsyncWait:
    iterator.begin(node.attrs["dataset"], values)
    return CompletedWait(instance, node)


@async_op("IteratorToHandle")
def _to_handle(
    instance: StepInstance, node: Node, iterator: _IteratorState, *values: Any
) -> AsyncWait:
    iterator.begin_once(values)
    return CompletedWait(instance, node, np.array(iterator.name.encode(), object))


@async_op("IteratorGetNext")
def _get_next(
    instance: StepInstance, node: Node, iterator: _IteratorState, *values: Any
) -> AsyncWait:
    iterator.begin_once(values)
    return _checked_next(instance, node, iterator)


@async_op("IteratorGetNextOf")
def _get_next_of(instance: StepInstance, node: Node, handle: Any) -> AsyncWait:
    """The next element of this session's iterator whose handle is fed."""
    name = np.asarray(handle, object).item()
    handle_name = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
    it = instance.compiled.store.known("Iterator", handle_name)
    if it is None:
        raise FeedError(
            f"{handle_name!r} is not the handle of an iterator of this session",
            op=node.name,
            line=node.line,
            hint="feed the result of session.run(iterator.string_handle()) of the same session",
        )
    return _checked_next(instance, node, it)


def _checked_next(instance: StepInstance, node: Node, iterator: _IteratorState) -> AsyncWait:
    """The next element, checked against the node's specs."""
    element = iterator.next()
    for x, spec in zip_longest(element, node.specs):
        try:
            if x is None or spec is None:
                raise ShapeError(f"it has {len(element)} components, not {len(node.specs)}")
            if x.dtype != spec.dtype:
                raise ShapeError(f"its dtype is {name_of(x.dtype)}, not {name_of(spec.dtype)}")
            merge_shapes(x.shape, spec.shape)
        except ShapeError as error:
            raise ShapeError(
                f"the iterator {iterator.name!r} returned an element of another type: {error}",
                op=node.name,
            ) from None
    return CompletedWait(instance, node, *element)
