"""Dataset functions: functions of tensors, traced to a graph and run on one element at a time."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from hpcflow.errors import DTypeError, GraphError, ShapeError
from hpcflow.graph import nested_structure
from hpcflow.graph.graph import Graph, Operation, Tensor, convert_to_tensor
from hpcflow.graph.static_shape import Spec
from hpcflow.ops.array.array_ops import constant, placeholder
from hpcflow.platform.exception_translation import user_line, value_text
from hpcflow.runtime.job.job_membership import current_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.session.session import Session

Element = tuple[np.ndarray, ...]  # the leaves of a structure
CapturedValues = dict[Tensor, np.ndarray]  # values of tensors of the outer graph
Begin = Callable[
    [CapturedValues], Iterator[Element]
]  # starts one pass over the elements of a dataset


class _FunctionGraph(Graph):
    """The graph of a function; outer tensors that it uses are captures, fed to placeholders."""

    def __init__(self, outer: Graph) -> None:
        super().__init__(outer.seed)
        self.outer = outer
        self.captures: dict[Tensor, Tensor] = {}  # outer tensor -> its placeholder

    def adopt(self, t: Tensor) -> Tensor:
        """The tensor of this graph that represents `t`."""
        if t.graph is self:
            return t
        if t.graph is not self.outer.root and isinstance(self.outer, _FunctionGraph):
            t = self.outer.adopt(t)
        if t.graph is not self.outer.root:
            raise GraphError(f"input {t.name!r} belongs to another graph", op=t.op.name)
        if t not in self.captures:
            with self.as_default(), self.control_dependencies(None), self.name_scope(None):
                value = t.op.attrs["value"] if t.op.type == "Const" else t.constant
                inner = placeholder(t.dtype, t.shape) if value is None else constant(value, t.dtype)
            self.captures[t] = inner
        return self.captures[t]

    def _followed(self, before: Iterable[Operation]) -> tuple[Operation, ...]:
        return tuple(b for b in before if b.graph is self)


class _TracedGraph:
    """A function of the elements of a dataset, traced once to a graph.

    A tuple is passed as several arguments. Captured outer tensors have their values at the
    initialization of the iterator. New random numbers are drawn for each element.
    """

    def __init__(self, function: Callable[..., Any], structure: Any, outer: Graph) -> None:
        if not callable(function):
            raise GraphError(f"{function!r} is not a function of the elements of a dataset")
        self.graph = _FunctionGraph(outer)
        with self.graph.as_default():
            self._params = [placeholder(s.dtype, s.shape) for s in leaves_of(structure)]
            leaves = leaves_of(structure)
            parts = [
                leaf.function_argument(t) for leaf, t in zip(leaves, self._params, strict=True)
            ]
            args = pack_components(structure, parts)
            self._results = self._traced(
                function(*args) if isinstance(args, tuple) else function(args)
            )
        self._session: Session | None = None

    def _traced(self, outputs: Any) -> list[Tensor]:
        """The tensors to compute, from the function's result."""
        raise NotImplementedError

    @property
    def needs(self) -> list[Tensor]:
        """The outer tensors whose values it needs."""
        return [t for t, inner in self.graph.captures.items() if inner.op.type == "Placeholder"]

    def bound(self, captured: CapturedValues) -> Callable[[Element], Element]:
        """A function that computes the results of an element, with the values `captured`."""
        if not self._results:
            return lambda element: ()
        if self._session is None:
            self._session = Session(self.graph, context=_single_rank_context())
        session = self._session
        fed = {self.graph.captures[t]: captured[t] for t in self.needs}

        def call(element: Element) -> Element:
            feeds = {**fed, **dict(zip(self._params, element, strict=True))}
            pairs = zip(self._results, session.run(self._results, feeds), strict=True)
            return tuple(np.asarray(value, t.dtype) for t, value in pairs)

        return call


class TensorFunction(_TracedGraph):
    """A function that returns tensors; `structure` has their specs."""

    def _traced(self, outputs: Any) -> list[Tensor]:
        outputs = tensors_of(tuple(outputs) if isinstance(outputs, list) else outputs)
        results = [self.graph.adopt(t) for t in nested_structure.flatten_structure(outputs)]
        self.structure = nested_structure.pack_structure(
            outputs, [TensorComponent(t.dtype, t.shape) for t in results]
        )
        return results


class DatasetFunction(_TracedGraph):
    """A function that returns a dataset; `structure` is that of its elements."""

    def _traced(self, outputs: Any) -> list[Tensor]:
        if not hasattr(outputs, "begin") or not hasattr(outputs, "structure"):
            raise GraphError(
                f"the function returned {value_text(outputs)}, which is not a dataset",
                line=user_line(),
                hint="use map() for functions that return tensors",
            )
        self.structure, self._dataset = outputs.structure, outputs
        return [self.graph.adopt(t) for t in outputs.needs]

    def elements(self, captured: CapturedValues) -> Callable[[Element], Iterator[Element]]:
        """A function from an element to the elements of its dataset."""
        values, dataset = self.bound(captured), self._dataset
        return lambda element: dataset.begin(dict(zip(dataset.needs, values(element), strict=True)))


@functools.lru_cache(maxsize=1)
def _single_rank_context_with(settings: Any) -> RankContext:
    return RankContext(settings)


def _single_rank_context() -> RankContext:
    """A single-rank context: functions of elements take no part in the job's steps."""
    fixed = dict(ps=0, tasks_per_replica=1, run_dir="", inject="", profile=False, tensorboard=False)
    return _single_rank_context_with(dataclasses.replace(current_context().settings, **fixed))  # type: ignore[arg-type]


# -- structures of specs


class TensorComponent:
    """The dtype and static shape of one component; not a tuple, because tuples are structures."""

    def __init__(self, dtype: np.dtype, shape: Any) -> None:
        self.dtype, self.shape = dtype, shape

    @property
    def spec(self) -> Spec:
        """The dtype and shape as a Spec."""
        return Spec(self.dtype, self.shape)

    def function_argument(self, t: Tensor) -> Any:
        """The argument of a function of elements for the component `t`."""
        return t


class RowsComponent(TensorComponent):
    """A component that is a dataset whose elements are the rows of an array.

    `make(t)` is the dataset of the rows of a tensor.
    """

    def __init__(self, dtype: np.dtype, shape: Any, make: Callable[[Tensor], Any]) -> None:
        super().__init__(dtype, shape)
        self._make = make

    def function_argument(self, t: Tensor) -> Any:
        """A dataset of the rows."""
        return self._make(t)


def leaves_of(structure: Any) -> list[TensorComponent]:
    """The components of a structure."""
    return nested_structure.flatten_structure(structure)


def require_tensors(structure: Any, label: str) -> None:
    """Raise GraphError if components are datasets."""
    if any(isinstance(leaf, RowsComponent) for leaf in leaves_of(structure)):
        raise GraphError(
            f"{label} needs tensors, but windows are datasets",
            line=user_line(),
            hint="convert them: windows.flat_map(lambda w: w.batch(size))",
        )


def values_by_component(structure: Any, nested_values: Any) -> list[Any]:
    """The value in `nested_values` for each component; a shape is a leaf, also a list or tuple."""
    if isinstance(structure, dict):
        if not isinstance(nested_values, dict) or set(nested_values) != set(structure):
            raise GraphError(f"{nested_values!r} does not have the structure of an element")
        return [
            x
            for key in sorted(structure)
            for x in values_by_component(structure[key], nested_values[key])
        ]
    if isinstance(structure, tuple):
        if not isinstance(nested_values, (tuple, list)) or len(nested_values) != len(structure):
            raise GraphError(f"{nested_values!r} does not have the structure of an element")
        return [
            x
            for s, g in zip(structure, nested_values, strict=True)
            for x in values_by_component(s, g)
        ]
    return [nested_values]


def pack_components(structure: Any, values: Sequence[Any]) -> Any:
    """The structure with `values` in place of its components."""
    return nested_structure.pack_structure(structure, values)


def map_components(function: Callable[[Any], Any], structure: Any) -> Any:
    """`function` of each component; a list is one component, as in TensorFlow's datasets."""
    if isinstance(structure, dict):
        pairs = ((key, map_components(function, value)) for key, value in structure.items())
        return type(structure)(pairs)
    if isinstance(structure, tuple):
        items = [map_components(function, item) for item in structure]
        return type(structure)(*items) if hasattr(structure, "_fields") else tuple(items)
    return function(structure)


def tensors_of(structure: Any) -> Any:
    """`structure` as a structure of tensors.

    Errors: GraphError for None.
    """
    return map_components(_as_tensor, structure)


def _as_tensor(value: Any) -> Any:
    if value is None:
        raise GraphError("a function of the elements of a dataset returned None")
    return convert_to_tensor(value)


def require_scalar(traced: TensorFunction, kind: str, label: str) -> None:
    """DTypeError or ShapeError unless the function returns one scalar with a dtype of `kind`."""
    leaves = leaves_of(traced.structure)
    if len(leaves) != 1 or leaves[0].dtype.kind not in kind:
        raise DTypeError(f"{label} does not return one value of kind {kind!r}")
    if leaves[0].shape not in (None, ()):
        raise ShapeError(f"{label} returns shape {list(leaves[0].shape)}, not a scalar")
