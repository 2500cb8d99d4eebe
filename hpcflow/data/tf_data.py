"""TensorFlow 1's datasets: sources, transformations and iterators of elements.

`hf.data.Dataset.from_tensor_slices(...)` and its siblings create one. Every rank that runs the
script iterates over all of its elements; `shard` selects a part.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from hpcflow.data.dataset_batching import pad_elements, padded_shape, paddings, stack_elements
from hpcflow.data.dataset_counts import ElementCount, as_integer
from hpcflow.data.dataset_functions import (
    Begin,
    CapturedValues,
    DatasetFunction,
    Element,
    TensorComponent,
    TensorFunction,
    leaves_of,
    pack_components,
    require_scalar,
    require_tensors,
    values_by_component,
)
from hpcflow.data.dataset_interleave import interleave_iterators
from hpcflow.data.dataset_iterator import initializable_iterator, one_shot_iterator
from hpcflow.data.dataset_options import Options
from hpcflow.data.dataset_windows import make_windows, reduce_function
from hpcflow.errors import DTypeError, GraphError, ShapeError
from hpcflow.graph import nested_structure
from hpcflow.graph.dtypes import int64
from hpcflow.graph.graph import Graph, Tensor, get_default_graph
from hpcflow.graph.static_shape import common_shape, shape_text
from hpcflow.platform.exception_translation import value_text


class Pipeline:
    """A dataset of elements of one structure (tensors, tuples, dicts of them).

    Every iteration starts from the beginning. Every method returns another dataset. Nothing is
    computed before an iterator requests elements.
    """

    def __init__(
        self, structure: Any, begin: Begin, needs: Iterable[Tensor] = (), kind: str = ""
    ) -> None:
        self.structure, self.begin, self.kind = structure, begin, kind
        self.needs = list(dict.fromkeys(needs))  # graph tensors that the elements depend on
        self._options = Options()

    def __repr__(self) -> str:
        components = ", ".join(
            f"{leaf.dtype}{shape_text(leaf.shape)}" for leaf in leaves_of(self.structure)
        )
        return f"<hf.data dataset {self.kind} of {components}>"

    @property
    def output_types(self) -> Any:
        """The dtypes of an element, in its structure."""
        return nested_structure.map_structure(lambda leaf: leaf.dtype, self.structure)

    @property
    def output_shapes(self) -> Any:
        """The static shapes of an element, in its structure."""
        return pack_components(self.structure, [leaf.shape for leaf in leaves_of(self.structure)])

    @property
    def output_classes(self) -> Any:
        """The classes of an element, in its structure: tensors."""
        return nested_structure.map_structure(lambda leaf: Tensor, self.structure)

    def then(
        self,
        kind: str,
        change: Callable[[Iterator[Element]], Iterable[Element]],
        structure: Any = None,
    ) -> Pipeline:
        """The dataset whose elements are `change(elements)` of this one's."""
        structure = self.structure if structure is None else structure
        return Pipeline(structure, lambda g: iter(change(self.begin(g))), self.needs, kind)

    def _with_counts(
        self,
        kind: str,
        counts: Sequence[ElementCount],
        change: Callable[..., Iterable[Element]],
        structure: Any = None,
    ) -> Pipeline:
        """Like `then`, but `change` also takes numbers, which may be evaluated at its start."""
        structure = self.structure if structure is None else structure

        def begin(captured: CapturedValues) -> Iterator[Element]:
            return iter(
                change(self.begin(captured), *(count.evaluate(captured) for count in counts))
            )

        needs = [t for count in counts for t in count.needs]
        return Pipeline(structure, begin, [*self.needs, *needs], kind)

    # -- selection and order

    def take(self, count: int) -> Pipeline:
        """The first `count` elements; -1 is all."""
        return self._with_counts(
            "take",
            [ElementCount("take", count, -1)],
            lambda it, n: itertools.islice(it, None if n == -1 else n),
        )

    def skip(self, count: int) -> Pipeline:
        """All but the first `count` elements; -1 skips all."""
        return self._with_counts(
            "skip",
            [ElementCount("skip", count, -1)],
            lambda it, n: () if n == -1 else itertools.islice(it, n, None),
        )

    def shard(self, num_shards: int, index: int) -> Pipeline:
        """Every `num_shards`-th element from number `index`: one shard for each rank."""

        def change(
            elements: Iterator[Element], at: int, num_shards_value: int
        ) -> Iterator[Element]:
            if at >= num_shards_value:
                raise ShapeError(
                    f"shard: index {at} must be less than num_shards {num_shards_value}"
                )
            return itertools.islice(elements, at, None, num_shards_value)

        at, of = ElementCount("shard", index, 0), ElementCount("shard", num_shards, 1)
        if at.static_value is not None and of.static_value is not None:
            change(iter(()), at.static_value, of.static_value)
        return self._with_counts("shard", [at, of], change)

    def repeat(self, count: int | None = None) -> Pipeline:
        """The elements `count` times; without end if it is None or -1."""
        times = ElementCount("repeat", -1 if count is None else count, -1)

        def begin(feeds: CapturedValues) -> Iterator[Element]:
            number = times.evaluate(feeds)
            for _ in itertools.count() if number == -1 else range(number):
                some = False
                for element in self.begin(feeds):
                    some = True
                    yield element
                if not some:
                    return

        return Pipeline(self.structure, begin, [*self.needs, *times.needs], "repeat")

    def concatenate(self, dataset: Pipeline) -> Pipeline:
        """These elements, then those of another dataset, of the same structure and dtypes."""
        nested_structure.check_same_structure(
            self.structure, dataset.structure, "datasets to concatenate"
        )
        pairs = list(zip(leaves_of(self.structure), leaves_of(dataset.structure), strict=True))
        if any(a.dtype != b.dtype for a, b in pairs):
            raise DTypeError(f"{self} and {dataset} cannot be concatenated: dtypes differ")
        structure = pack_components(
            self.structure,
            [TensorComponent(a.dtype, common_shape(a.shape, b.shape)) for a, b in pairs],
        )

        def begin(feeds: CapturedValues) -> Iterator[Element]:
            return itertools.chain(self.begin(feeds), dataset.begin(feeds))

        return Pipeline(structure, begin, [*self.needs, *dataset.needs], "concatenate")

    def shuffle(
        self,
        buffer_size: int,
        seed: int | None = None,
        reshuffle_each_iteration: bool | None = None,
    ) -> Pipeline:
        """The elements in random order, each drawn from a buffer of `buffer_size` elements.

        The order depends on the graph's seed and `seed` and is the same on every rank. It differs
        between iterations unless `reshuffle_each_iteration` is False.
        """
        key = [
            get_default_graph().seed or 0,
            0 if seed is None else as_integer("seed", seed, 0) + 1,
        ]
        times = itertools.count() if reshuffle_each_iteration is not False else itertools.repeat(0)

        def change(elements: Iterator[Element], size: int) -> Iterator[Element]:
            drawn = np.random.default_rng([*(abs(k) for k in key), next(times)])
            buffer = list(itertools.islice(elements, size))
            for new in elements:
                at = int(drawn.integers(len(buffer)))
                yield buffer[at]
                buffer[at] = new
            for at in drawn.permutation(len(buffer)):
                yield buffer[at]

        return self._with_counts("shuffle", [ElementCount("shuffle", buffer_size, 1)], change)

    def cache(self, filename: str = "") -> Pipeline:
        """The elements of the first complete iteration, cached in memory."""
        if filename:
            raise GraphError(
                "cache() keeps elements in memory and takes no filename", hint="leave filename out"
            )
        cached: list[Element] = []
        whole = False

        def begin(feeds: CapturedValues) -> Iterator[Element]:
            nonlocal whole
            if whole:
                yield from cached
                return
            elements = []
            for element in self.begin(feeds):
                elements.append(element)
                yield element
            cached[:], whole = elements, True

        return Pipeline(self.structure, begin, self.needs, "cache")

    def prefetch(self, buffer_size: int) -> Pipeline:
        """The same elements, without prefetching: they are computed on request."""
        return self._with_counts(
            "prefetch", [ElementCount("prefetch", buffer_size, -1)], lambda it, n: it
        )

    def apply(self, transformation_func: Callable[[Pipeline], Pipeline]) -> Pipeline:
        """`transformation_func` of this dataset."""
        dataset = transformation_func(self)
        if not isinstance(dataset, Pipeline):
            raise GraphError(f"apply() needs a function that returns a dataset, not {dataset!r}")
        return dataset

    # -- batching

    def batch(self, batch_size: int, drop_remainder: bool = False) -> Pipeline:
        """Several elements of equal shapes as one, along a new first axis.

        The last one may be smaller, unless `drop_remainder`.
        """
        return self._batched(batch_size, drop_remainder, None, None)

    def padded_batch(
        self,
        batch_size: int,
        padded_shapes: Any = None,
        padding_values: Any = None,
        drop_remainder: bool = False,
    ) -> Pipeline:
        """Like `batch`, for elements of different sizes: pads them with zeros or other values.

        `padded_shapes` has a shape for each component, by default its own; a size of None or -1 is
        that of the largest element in a batch. `padding_values` has a value for each component.
        """
        leaves = leaves_of(self.structure)
        shapes: list[Any] = [leaf.shape for leaf in leaves]
        if padded_shapes is not None:
            requested = values_by_component(self.structure, padded_shapes)
            shapes = [padded_shape(leaf, s) for leaf, s in zip(leaves, requested, strict=True)]
        if None in shapes:
            raise ShapeError("padded_batch needs the rank of each component", hint="padded_shapes")
        return self._batched(
            batch_size, drop_remainder, shapes, paddings(self.structure, leaves, padding_values)
        )

    def _batched(
        self, batch_size: int, drop: bool, shapes: list[Any] | None, fills: list[Any] | None
    ) -> Pipeline:
        require_tensors(self.structure, "batch()")
        size, leaves = ElementCount("batch", batch_size, 1), leaves_of(self.structure)
        rows = [leaf.shape for leaf in leaves] if shapes is None else shapes
        components = [
            TensorComponent(
                leaf.dtype, None if s is None else (size.static_value if drop else None, *s)
            )
            for leaf, s in zip(leaves, rows, strict=True)
        ]

        def change(elements: Iterator[Element], batch_size: int) -> Iterator[Element]:
            while part := list(itertools.islice(elements, batch_size)):
                if drop and len(part) < batch_size:
                    return
                columns = zip(*part, strict=True)
                if shapes is None or fills is None:
                    yield tuple(stack_elements(column, "a batch") for column in columns)
                else:
                    facts = zip(columns, shapes, fills, strict=True)
                    yield tuple(pad_elements(*fact) for fact in facts)

        return self._with_counts(
            "batch", [size], change, pack_components(self.structure, components)
        )

    # -- functions of elements

    def map(self, map_func: Callable[..., Any], num_parallel_calls: int | None = None) -> Pipeline:
        """`map_func` of each element, a function from tensors to tensors.

        A tuple is passed as several arguments. The function may use tensors and variables of the
        outer graph; their values are those at the initialization of the iterator.
        `num_parallel_calls` has no effect: elements keep their order.
        """
        traced = TensorFunction(map_func, self.structure, _root_graph())

        def begin(feeds: CapturedValues) -> Iterator[Element]:
            return map(traced.bound(feeds), self.begin(feeds))

        return Pipeline(traced.structure, begin, [*self.needs, *traced.needs], "map")

    def filter(self, predicate: Callable[..., Any]) -> Pipeline:
        """The elements for which `predicate`, a function of tensors, is true."""
        return self._chosen("filter", predicate, filter)

    def _chosen(
        self, kind: str, predicate: Callable[..., Any], choose: Callable[..., Iterator[Element]]
    ) -> Pipeline:
        traced = TensorFunction(predicate, self.structure, _root_graph())
        require_scalar(traced, "b", f"the predicate of {kind}()")

        def begin(captured: CapturedValues) -> Iterator[Element]:
            holds = traced.bound(captured)
            return choose(lambda element: bool(holds(element)[0]), self.begin(captured))

        return Pipeline(self.structure, begin, [*self.needs, *traced.needs], kind)

    def flat_map(self, map_func: Callable[..., Any]) -> Pipeline:
        """The elements of the datasets `map_func(element)`, one dataset after another."""
        return self._nested("flat_map", map_func, 1, 1)

    def interleave(
        self,
        map_func: Callable[..., Any],
        cycle_length: int | None = None,
        block_length: int = 1,
        num_parallel_calls: int | None = None,
    ) -> Pipeline:
        """The elements of the datasets `map_func(element)`, from `cycle_length` datasets in turn.

        Each turn takes `block_length` elements of one dataset. A dataset that has ended is replaced
        at its next turn. `cycle_length` is 10 by default. `num_parallel_calls` has no effect.
        """
        cycle = as_integer("interleave", 10 if cycle_length in (None, -1) else cycle_length, 1)
        return self._nested(
            "interleave", map_func, cycle, as_integer("interleave", block_length, 1)
        )

    def _nested(self, kind: str, map_func: Callable[..., Any], cycle: int, block: int) -> Pipeline:
        traced = DatasetFunction(map_func, self.structure, _root_graph())

        def begin(captured: CapturedValues) -> Iterator[Element]:
            return interleave_iterators(
                self.begin(captured), traced.elements(captured), cycle, block
            )

        return Pipeline(traced.structure, begin, [*self.needs, *traced.needs], kind)

    def enumerate(self, start: int = 0) -> Pipeline:
        """Pairs of a number and an element, with numbers from `start`."""
        first = as_integer("enumerate", start, -(2**63))
        structure = (TensorComponent(int64, ()), self.structure)

        def change(elements: Iterator[Element]) -> Iterator[Element]:
            return ((np.asarray(i, int64), *x) for i, x in enumerate(elements, first))

        return self.then("enumerate", change, structure)

    def unbatch(self) -> Pipeline:
        """The rows of each element as elements."""
        require_tensors(self.structure, "unbatch()")
        leaves = leaves_of(self.structure)
        if any(leaf.shape == () for leaf in leaves):
            raise ShapeError("unbatch() takes components with rows, not scalars")
        components = [
            TensorComponent(leaf.dtype, None if leaf.shape is None else leaf.shape[1:])
            for leaf in leaves
        ]

        def change(elements: Iterator[Element]) -> Iterator[Element]:
            for element in elements:
                if len({len(x) for x in element}) > 1:
                    raise ShapeError("unbatch() needs components with the same number of rows")
                yield from (tuple(x[i, ...] for x in element) for i in range(len(element[0])))

        return self.then("unbatch", change, pack_components(self.structure, components))

    def window(
        self, size: int, shift: int | None = None, stride: int = 1, drop_remainder: bool = False
    ) -> Pipeline:
        """Datasets of `size` elements each, every `stride`-th; the next begins `shift` later.

        A function of a window gets a dataset for each component:
        `dataset.window(3, 1).flat_map(lambda w: w.batch(3))`. The elements of a window have equal
        shapes. `shift` is `size` by default. The last windows are smaller, or are dropped.
        """
        shift = size if shift is None else shift
        transform = make_windows(self.structure, size, shift, stride, drop_remainder, _rows_of)
        return self.then("window", *transform)

    def reduce(self, initial_state: Any, reduce_func: Callable[[Any, Any], Any]) -> Any:
        """`reduce_func(state, element)` over all elements, starting at `initial_state`: tensors.

        Each run starts a new iteration. Variables have their values from before the first
        run. Placeholders cannot feed it.
        """
        fold, state, needs = reduce_function(
            self.structure, initial_state, reduce_func, _root_graph()
        )

        def begin(feeds: CapturedValues) -> Iterator[Element]:
            yield fold(self.begin(feeds), feeds)

        whole_of = Pipeline(state, begin, [*self.needs, *needs], "reduce")
        return one_shot_iterator(whole_of.repeat()).get_next()

    def with_options(self, options: Options) -> Pipeline:
        """The same dataset: options of TensorFlow's runtime have no effect."""
        if not isinstance(options, Options):
            raise GraphError(f"with_options() takes hf.data.Options(), not {value_text(options)}")
        dataset = Pipeline(self.structure, self.begin, self.needs, self.kind)
        dataset._options = options
        return dataset

    def options(self) -> Options:
        """The options last set on this dataset."""
        return self._options

    def take_while(self, predicate: Callable[..., Any]) -> Pipeline:
        """The elements before the first for which `predicate`, a function of tensors, is false."""
        return self._chosen("take_while", predicate, itertools.takewhile)

    # -- iterators

    def make_one_shot_iterator(self) -> Any:
        """An iterator over one pass; it has no initializer, and placeholders cannot feed it."""
        return one_shot_iterator(self)

    def make_initializable_iterator(self, shared_name: str | None = None) -> Any:
        """An iterator that starts, or restarts, when its `initializer` runs."""
        return initializable_iterator(self, shared_name)


# -- helpers


def _root_graph() -> Graph:
    return get_default_graph().root


def _rows_of(t: Tensor) -> Pipeline:
    """The rows of a tensor."""
    row = TensorComponent(t.dtype, None if t.shape is None else t.shape[1:])
    return Pipeline(row, lambda g: ((g[t][i, ...],) for i in range(len(g[t]))), [t], "window")
