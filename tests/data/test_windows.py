"""Windows, reduce, options and `hf.data.experimental`: TensorFlow's elements, written down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import ArgumentError, DTypeError, GraphError, OutOfRangeError, ShapeError

Dataset: Any = hf.data.Dataset


@pytest.fixture(autouse=True)
def graph() -> Iterator[None]:
    with hf.Graph().as_default():
        yield


def elements(dataset: Any) -> list[Any]:
    element = dataset.make_one_shot_iterator().get_next()
    found = []
    with hf.Session() as session:
        while True:
            try:
                value = session.run(element)
            except OutOfRangeError:
                return found
            is_tuple = isinstance(value, tuple)
            found.append([v.tolist() for v in value] if is_tuple else np.asarray(value).tolist())


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ((3,), [[0, 1, 2], [3, 4, 5], [6]]),
        ((3, 1, 2), [[0, 2, 4], [1, 3, 5], [2, 4, 6], [3, 5], [4, 6], [5], [6]]),
        ((3, 1, 2, True), [[0, 2, 4], [1, 3, 5], [2, 4, 6]]),
        ((2, 3), [[0, 1], [3, 4], [6]]),
        ((2, 4, 1, True), [[0, 1], [4, 5]]),
        ((2, 5, 3), [[0, 3], [5]]),
        ((10,), [[0, 1, 2, 3, 4, 5, 6]]),
        ((10, 1, 1, True), []),
    ],
)
def test_windows(told: tuple[Any, ...], expected: list[list[int]]) -> None:
    windows = Dataset.range(7).window(*told)
    assert elements(windows.flat_map(lambda w: w.batch(10))) == expected


def test_a_window_has_a_dataset_for_each_component() -> None:
    x, at = np.arange(8.0).reshape(4, 2), np.arange(4)
    expected = [[[[0, 1], [2, 3]], [0, 1]], [[[4, 5], [6, 7]], [2, 3]]]
    pairs = Dataset.from_tensor_slices((x, at)).window(2)
    found = pairs.flat_map(lambda a, b: Dataset.zip((a.batch(2), b.batch(2))))
    assert elements(found) == expected
    named = Dataset.from_tensor_slices({"x": x, "at": at}).window(2)
    found = named.flat_map(lambda w: Dataset.zip((w["x"].batch(2), w["at"].batch(2))))
    assert elements(found) == expected
    assert found.output_shapes == ((None, 2), (None,))


def test_windows_are_elements() -> None:
    windows = Dataset.range(6).window(2)
    chosen = windows.skip(1).take(1).repeat(2)
    assert elements(chosen.flat_map(lambda w: w.batch(2))) == [[2, 3], [2, 3]]
    assert elements(windows.interleave(lambda w: w, 2)) == [0, 2, 1, 3, 4, 5]
    assert elements(windows.flat_map(lambda w: w.map(lambda x: x * 2))) == [0, 2, 4, 6, 8, 10]


def test_what_is_no_window() -> None:
    windows = Dataset.range(6).window(2)
    bad: list[Callable[[], Any]] = [
        windows.make_one_shot_iterator,
        windows.make_initializable_iterator,
        windows.unbatch,
        lambda: windows.batch(2),
        lambda: windows.window(2),
    ]
    for one in bad:
        with pytest.raises(GraphError, match="windows are datasets"):
            one()
    with pytest.raises(ShapeError, match=r"window\(0\)"):
        Dataset.range(6).window(0)
    uneven = Dataset.range(3).flat_map(lambda n: Dataset.from_tensors(hf.range(n)))
    with pytest.raises(Exception, match="a window has elements of shapes"):
        elements(uneven.window(2).flat_map(lambda w: w))


def test_reduce() -> None:
    x, at = np.arange(8.0).reshape(4, 2), np.arange(4)
    start = hf.placeholder_with_default(np.int64(7), [])
    found = [
        Dataset.range(5).reduce(np.int64(0), lambda s, n: s + n),
        Dataset.range(5).reduce(
            (np.int64(0), np.int64(1)), lambda s, n: (s[0] + n, s[1] * (n + 1))
        ),
        Dataset.from_tensor_slices((x, at)).reduce(
            np.float64(0), lambda s, e: s + hf.reduce_sum(e[0])
        ),
        Dataset.range(0).reduce(start, lambda s, n: s + n),
    ]
    with hf.Session() as session:
        for _ in range(2):
            assert session.run(found) == [10, (10, 120), 28.0, 7]


def test_what_a_state_may_be() -> None:
    grown = Dataset.range(3).reduce(hf.constant([], hf.int64), lambda s, n: hf.concat([s, [n]], 0))
    assert grown.shape == (None,)
    with hf.Session() as session:
        assert session.run(grown).tolist() == [0, 1, 2]
    with pytest.raises(DTypeError, match="from float32 to int64"):
        Dataset.range(3).reduce(0.0, lambda s, n: n)


def test_options_change_nothing() -> None:
    options = hf.data.Options()
    options.experimental_deterministic = False
    options.experimental_optimization.map_fusion = True
    dataset = Dataset.range(3).with_options(options)
    assert elements(dataset) == [0, 1, 2] and dataset.options() is options
    with pytest.raises(ArgumentError, match="no 'experimental_speed'"):
        options.experimental_speed = 2
    with pytest.raises(GraphError, match="takes hf"):
        Dataset.range(3).with_options({"a": 1})


def test_experimental_names() -> None:
    names = hf.data.experimental
    parallel = names.AUTOTUNE
    mapped = Dataset.range(5).map(lambda n: n * n, num_parallel_calls=parallel).prefetch(parallel)
    assert elements(mapped) == [0, 1, 4, 9, 16]
    batches = Dataset.range(5).apply(names.map_and_batch(lambda n: n + 1, 2, drop_remainder=True))
    assert elements(batches) == [[1, 2], [3, 4]]
    assert elements(batches.apply(names.unbatch())) == [1, 2, 3, 4]
    mixed = Dataset.range(5).apply(names.shuffle_and_repeat(5, 2, seed=1))
    assert sorted(elements(mixed)) == sorted([*range(5)] * 2)
    counted = Dataset.range(5, 7).apply(names.enumerate_dataset(3))
    assert elements(counted) == [[3, 5], [4, 6]]
    assert elements(Dataset.range(5).apply(names.take_while(lambda n: n < 2))) == [0, 1]


def test_elements_of_other_ranks_are_not_padded() -> None:
    def rows() -> Iterator[np.ndarray]:
        yield np.ones(2)
        yield np.ones((2, 2))

    uneven = Dataset.from_generator(rows, hf.float64)
    with pytest.raises(ShapeError, match=r"shapes .* and .* cannot be padded"):
        elements(uneven.padded_batch(2, [None]))
