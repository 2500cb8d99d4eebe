"""TensorFlow 1's datasets and iterators: elements as TensorFlow gives them, and where they end."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.errors import (
    DataError,
    DTypeError,
    GraphError,
    OutOfRangeError,
    ShapeError,
    UninitializedError,
)
from hpcflow.runtime.job.rank_context import RankContext
from tests.runtime.ranks import run_ranks

Dataset = hf.data.Dataset
Pair = namedtuple("Pair", "x y")


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as g:
        yield g


def drained(session: hf.Session, element: Any) -> list[Any]:
    """What `element` gives until the end, arrays as lists."""
    found = []
    while True:
        try:
            found.append(plain(session.run(element)))
        except OutOfRangeError:
            return found


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(plain(v) for v in value)
    return np.asarray(value).tolist()


def elements(dataset: Any) -> list[Any]:
    with hf.Session() as session:
        return drained(session, dataset.make_one_shot_iterator().get_next())


ROWS = np.arange(10).reshape(5, 2)
PIPES: list[tuple[Any, list[Any]]] = [  # what TensorFlow 1 gives
    (lambda d: d.range(3), [0, 1, 2]),
    (lambda d: d.range(5, 0, -2), [5, 3, 1]),
    (lambda d: d.from_tensors([1, 2]), [[1, 2]]),
    (lambda d: d.from_tensor_slices(ROWS).take(2), [[0, 1], [2, 3]]),
    (
        lambda d: d.from_tensor_slices(([1, 2], {"a": ["x", "y"]})),
        [(1, {"a": b"x"}), (2, {"a": b"y"})],
    ),
    (lambda d: d.range(5).batch(2), [[0, 1], [2, 3], [4]]),
    (lambda d: d.range(5).batch(2, drop_remainder=True), [[0, 1], [2, 3]]),
    (lambda d: d.range(3).repeat(2), [0, 1, 2, 0, 1, 2]),
    (lambda d: d.range(3).repeat(2).batch(4), [[0, 1, 2, 0], [1, 2]]),
    (lambda d: d.range(2).repeat().take(5), [0, 1, 0, 1, 0]),
    (lambda d: d.range(3).repeat(0), []),
    (lambda d: d.range(6).skip(4), [4, 5]),
    (lambda d: d.range(6).skip(-1), []),
    (lambda d: d.range(6).take(-1).skip(5), [5]),
    (lambda d: d.range(7).shard(3, 1), [1, 4]),
    (lambda d: d.range(2).concatenate(d.range(7, 9)), [0, 1, 7, 8]),
    (lambda d: d.zip((d.range(3), d.range(5, 9))), [(0, 5), (1, 6), (2, 7)]),
    (
        lambda d: d.zip({"a": d.range(2), "b": d.zip((d.range(2), d.range(3)))}).skip(1),
        [{"a": 1, "b": (1, 1)}],
    ),
    (lambda d: d.range(4).map(lambda x: (x, x * x)), [(0, 0), (1, 1), (2, 4), (3, 9)]),
    (lambda d: d.range(4).map(lambda x: (x, x * x)).map(lambda a, b: b - a, 2), [0, 0, 2, 6]),
    (lambda d: d.range(2).map(lambda x: {"k": x + 1}).map(lambda e: e["k"]), [1, 2]),
    (lambda d: d.range(7).filter(lambda x: hf.equal(x % 3, 1)), [1, 4]),
    (lambda d: d.range(3).prefetch(2).cache().repeat(2), [0, 1, 2, 0, 1, 2]),
    (lambda d: d.range(3).apply(lambda s: s.take(1)), [0]),
    (
        lambda d: (
            d.range(1, 4).map(lambda x: hf.fill([hf.cast(x, hf.int32)], x)).padded_batch(2, [None])
        ),
        [[[1, 0], [2, 2]], [[3, 3, 3]]],
    ),
    (
        lambda d: (
            d.range(1, 3)
            .map(lambda x: (hf.fill([hf.cast(x, hf.int32)], x), x))
            .padded_batch(2, ([4], []), (np.int64(-1), np.int64(0)))
        ),
        [([[1, -1, -1, -1], [2, 2, -1, -1]], [1, 2])],
    ),
]


@pytest.mark.parametrize("number", range(len(PIPES)))
def test_elements(number: int) -> None:
    make, expected = PIPES[number]
    assert elements(make(Dataset)) == expected


def test_structure() -> None:
    made = Dataset.from_tensor_slices(Pair(np.zeros((4, 3), "f4"), {"n": [1, 2, 3, 4]})).batch(2)
    assert made.output_types == Pair(hf.float32, {"n": hf.int32})
    assert made.output_shapes == Pair((None, 3), {"n": (None,)})
    element = made.make_one_shot_iterator().get_next()
    assert isinstance(element, Pair) and element.x.shape == (None, 3)
    dropped = Dataset.range(4).batch(3, drop_remainder=True)
    assert dropped.output_shapes == (3,)


def test_shuffled() -> None:
    """Every element once, each from the buffer of its time; another order in each round."""
    made = Dataset.range(100).shuffle(10, seed=3).repeat(2)
    found = elements(made)
    first, second = found[:100], found[100:]
    assert sorted(first) == sorted(second) == list(range(100)) and first != second
    assert all(value < place + 10 for place, value in enumerate(first))
    fixed = elements(Dataset.range(50).shuffle(50, 3, reshuffle_each_iteration=False).repeat(2))
    assert fixed[:50] == fixed[50:] != list(range(50))
    assert elements(Dataset.range(50).shuffle(50, 4)) != fixed[:50]


def test_an_initializable_iterator() -> None:
    x = hf.placeholder(hf.float32, [None])
    scale = hf.Variable(10.0)
    made = Dataset.from_tensor_slices(x).map(lambda v: v * scale)
    iterator = made.make_initializable_iterator()
    element = iterator.get_next()
    with hf.Session() as session:
        session.run(scale.initializer)
        with pytest.raises(UninitializedError, match="has not been initialized"):
            session.run(element)
        session.run(iterator.initializer, {x: [1, 2]})
        assert drained(session, element) == [10, 20]
        with pytest.raises(OutOfRangeError):
            session.run(element)
        session.run(scale.assign(3.0))
        session.run(iterator.initializer, {x: [1, 2, 3]})
        assert session.run(element) == 3  # the variable as it was when the iterator began
        session.run(scale.assign(5.0))
        assert drained(session, element) == [6, 9]
    with hf.Session() as other, pytest.raises(UninitializedError):
        other.run(element)


def test_one_iterator_for_several_datasets() -> None:
    train = Dataset.range(3).map(lambda x: (x, hf.fill([2], x)))
    valid = Dataset.from_tensor_slices((np.array([7, 8]), np.zeros((2, 4), np.int64)))
    iterator = hf.data.Iterator.from_structure(train.output_types, ((), [None]))
    element = iterator.get_next()
    starts = [iterator.make_initializer(d) for d in (train, valid)]
    with hf.Session() as session:
        session.run(starts[0])
        assert session.run(element)[0] == 0
        session.run(starts[1])
        assert drained(session, element) == [(7, [0] * 4), (8, [0] * 4)]
        session.run(starts[0])
        assert [a for a, _ in drained(session, element)] == [0, 1, 2]
    with pytest.raises(DTypeError):
        iterator.make_initializer(Dataset.from_tensors((np.float32(1), np.zeros(2, np.int64))))
    with pytest.raises(GraphError, match="no initializer"):
        _ = iterator.initializer


def test_a_step_takes_one_element() -> None:
    """All that a step computes of `get_next` is of one element; each run takes the next."""
    x, y = Dataset.range(4).map(lambda v: (v, v * v)).make_one_shot_iterator().get_next()
    both = [x + y, x, y]
    with hf.Session() as session:
        assert [session.run(both) for _ in range(4)] == [
            [0, 0, 0],
            [2, 1, 1],
            [6, 2, 4],
            [12, 3, 9],
        ]


def test_two_get_nexts_take_two_elements() -> None:
    iterator = Dataset.range(4).make_one_shot_iterator()
    first, second = iterator.get_next(), iterator.get_next()
    with hf.Session() as session:
        assert sorted(session.run([first, second])) == [0, 1]
        assert sorted(session.run([first, second])) == [2, 3]


def test_training_by_an_iterator() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, 3)).astype(np.float32)
    truth = np.array([[1.0], [-2.0], [0.5]], np.float32)
    rows = Dataset.from_tensor_slices((x, x @ truth)).shuffle(64).repeat(20).batch(16)
    a, b = rows.make_one_shot_iterator().get_next()
    w = hf.Variable(np.zeros((3, 1), np.float32))
    step = hf.train.GradientDescentOptimizer(0.3).minimize(hf.reduce_mean(hf.square(a @ w - b)))
    with hf.Session() as session:
        session.run(hf.global_variables_initializer())
        steps = 0
        while True:
            try:
                session.run(step)
                steps += 1
            except OutOfRangeError:
                break
        assert steps == 80
        np.testing.assert_allclose(session.run(w), truth, atol=1e-3)


def test_python_in_a_map_and_random_numbers() -> None:
    table = hf.constant([10, 20, 30])
    made = Dataset.range(3).map(
        lambda i: (
            hf.py_func(lambda v: v + 1, [i], hf.int64),
            hf.gather(table, i),
            hf.random_uniform([]),
        )
    )
    plus, looked, drawn = zip(*elements(made), strict=True)
    assert (plus, looked) == ((1, 2, 3), (10, 20, 30))
    assert len(set(drawn)) == 3


def test_from_a_generator() -> None:
    rounds = []

    def numbers(n: int) -> Iterator[Any]:
        rounds.append(n)
        for i in range(n):
            yield i, [i] * i

    made = Dataset.from_generator(numbers, (hf.int64, hf.float32), ((), [None]), args=[3]).repeat(2)
    assert elements(made) == [(0, []), (1, [1.0]), (2, [2.0, 2.0])] * 2
    assert rounds == [3, 3]
    for types, shapes in ((hf.int64, [3]), ((hf.int64, hf.int64), None)):
        with pytest.raises(DataError):
            elements(Dataset.from_generator(lambda: [[1, 2], 5], types, shapes).skip(1))
    wrong = Dataset.from_generator(lambda: [np.zeros(2)], hf.float32, [3])
    with pytest.raises(DataError, match=r"\[2\].*\[3\]"):
        elements(wrong)


def test_lines_of_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one\r\ntwo")
    (tmp_path / "b").write_bytes(b"\nthree\n")
    names = [str(tmp_path / "a"), str(tmp_path / "b")]
    made = hf.data.TextLineDataset(names).skip(1)
    assert elements(made) == [b"two", b"", b"three"]
    with pytest.raises(DataError, match="cannot be read"):
        elements(hf.data.TextLineDataset(str(tmp_path / "none")))


def test_what_is_refused() -> None:
    x = hf.placeholder(hf.float32, [None])
    some = Dataset.range(3)
    with pytest.raises(GraphError, match="cannot be fed"):
        Dataset.from_tensor_slices(x).make_one_shot_iterator()
    for make in (
        lambda: some.batch(0),
        lambda: some.shuffle(0),
        lambda: some.take(2.5),
        lambda: some.shard(2, 2),
        lambda: Dataset.range(1, 2, 0),
        lambda: Dataset.from_tensor_slices(3),
        lambda: Dataset.from_tensor_slices(([1, 2], [1, 2, 3])),
        lambda: some.padded_batch(2, [None]),
    ):
        with pytest.raises(ShapeError):
            make()
    for make in (
        lambda: some.concatenate(Dataset.from_tensors(1.0)),
        lambda: some.filter(lambda v: v),
        lambda: hf.data.TextLineDataset(3),
    ):
        with pytest.raises(DTypeError):
            make()
    for make in (
        lambda: some.map(3),
        lambda: some.make_initializable_iterator().make_initializer([1]),
        lambda: some.map(lambda v: None),
        lambda: some.concatenate(Dataset.zip((some, some))),
        lambda: Dataset.zip(()),
        lambda: some.apply(lambda d: 3),
    ):
        with pytest.raises(GraphError):
            make()
    uneven = Dataset.range(1, 3).map(lambda v: hf.fill([hf.cast(v, hf.int32)], v)).batch(2)
    with pytest.raises(ShapeError, match="padded_batch"):
        elements(uneven)


def test_an_element_is_the_callers_own() -> None:
    data = np.zeros((2, 3))
    element = Dataset.from_tensor_slices(data).repeat(2).make_one_shot_iterator().get_next()
    with hf.Session() as session:
        for _ in range(4):
            found = session.run(element)
            assert (found == 0).all()
            found[:] = 1
    assert (data == 0).all()


@pytest.mark.parametrize("ranks, ps", [(3, 0), (3, 1)])
def test_ranks_share_the_elements_by_shard(ranks: int, ps: int) -> None:
    def body(context: RankContext) -> Any:
        replicas = context.roles.replicas
        mixed = Dataset.range(12).shuffle(12, seed=1)
        return elements(mixed.shard(replicas, context.replica).map(lambda x: x * 2))

    found = run_ranks(ranks, body, ps=ps)
    assert len({len(part) for part in found}) == 1
    assert sorted(x for part in found for x in part) == list(range(0, 24, 2))
