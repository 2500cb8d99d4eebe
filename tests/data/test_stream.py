"""Streams: iterators dealt over workers, their position or their refusal."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hpcflow as hf
from hpcflow.data import Batch, Stream
from hpcflow.errors import DataError, DTypeError, HpcflowError, LonelyCollectiveError
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings
from tests.runtime.ranks import run_ranks


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as graph:
        yield graph


@pytest.fixture
def alone() -> RankContext:
    return RankContext(Settings())


def numbers(epoch: int, count: int = 50) -> Iterator[tuple[np.ndarray, int]]:
    for number in range(count):
        yield np.full(2, number, np.float32), number + 100 * epoch


def placeholders() -> tuple[hf.Tensor, hf.Tensor]:
    return hf.placeholder(hf.float32, [None, 2]), hf.placeholder(hf.int64, [None])


@pytest.mark.parametrize("ranks", [1, 3, 9])
@pytest.mark.parametrize("ahead", [0, 2])
def test_every_sample_once_on_any_ranks(ranks: int, ahead: int) -> None:
    def body(context: RankContext) -> list[list[int]]:
        x, y = placeholders()
        data = Stream((x, y), numbers, batch=8, read_ahead=ahead, context=context)
        found = []
        for batch in data.epochs(2):
            np.testing.assert_array_equal(batch[x][:, 0], batch[y] % 100)
            np.testing.assert_array_equal(batch.indices, batch[y] % 100)
            found.append(batch[y].tolist())
        return found

    together = run_ranks(ranks, body)
    joined = [[n for part in parts for n in part] for parts in zip(*together, strict=True)]
    whole = [*range(50), *range(100, 150)]
    cut = [*range(0, 50, 8), 50]
    expected = [whole[a:b] for a, b in itertools.pairwise(cut)]
    assert joined == expected + [[n + 100 for n in part] for part in expected]


@given(st.integers(1, 20), st.integers(1, 20), st.integers(0, 12), st.booleans())
def test_a_function_resumes_where_it_was(first: int, second: int, steps: int, told: bool) -> None:
    context = RankContext(Settings())
    length = 50 if told else None

    def make(batch: int) -> Stream:
        with hf.Graph().as_default():
            y = hf.placeholder(hf.int64, [None])
            return Stream(
                y,
                lambda epoch: (n for _, n in numbers(epoch)),
                batch=batch,
                per_epoch=length,
                read_ahead=0,
                context=context,
            )

    def drawn(batches: list[Batch]) -> list[int]:
        return [int(i) + 50 * b.epoch for b in batches for i in b.indices]

    data, begun = make(first), []
    for batch in data.epochs(2):
        if len(begun) == steps:
            break
        begun.append(batch)
    last = (begun[-1].epoch, begun[-1].step) if begun else None
    again = make(second)
    again.restore(data.position([last]))
    assert drawn(begun) + drawn(list(again.epochs(2))) == list(range(100))


def test_a_position_twice_resumed(alone: RankContext) -> None:
    def make(batch: int) -> Stream:
        return Stream(
            placeholders(), numbers, batch=batch, per_epoch=50, read_ahead=0, context=alone
        )

    first = make(7).position([(0, 1)])
    second = make(5)
    second.restore(first)
    batch = next(second.epochs(1))
    assert batch.indices[0] == 14
    third = make(5)
    third.restore(second.position([(batch.epoch, batch.step)]))
    assert next(third.epochs(1)).indices[0] == 19


def test_an_iterator_says_that_it_cannot_resume(alone: RankContext) -> None:
    def make() -> Stream:
        return Stream(placeholders(), numbers(0), batch=8, context=alone)

    data = make()
    assert sum(batch.size for batch in data.epoch(0)) == 50
    position = data.position([(0, 2)])
    assert position["resumes"] is False
    with pytest.raises(DataError, match="cannot resume"):
        make().restore(position)
    make().restore(make().position([None]))  # nothing is lost
    with pytest.raises(DataError, match="one epoch"):
        list(data.epoch(1))
    shorter = Stream(placeholders(), lambda epoch: numbers(epoch, 3), batch=8, context=alone)
    shorter.restore(position)
    with pytest.raises(DataError, match="ends before sample 24"):
        list(shorter.epochs(1))


def failing() -> Iterator[Any]:
    yield np.zeros(2, np.float32), 1
    raise OSError("the network is gone")


def test_what_a_stream_does_wrong_is_told(alone: RankContext) -> None:
    def first(samples: Any) -> Any:
        return next(Stream(placeholders(), samples, batch=4, context=alone).epochs(1))

    with pytest.raises(DataError, match="OSError: the network is gone"):
        first(failing())
    with pytest.raises(DataError, match="samples 0 to 0"):
        first(iter([(np.zeros(2, np.float32),)]))
    with pytest.raises(DataError, match="samples 0 to 1"):
        first(iter([(np.zeros(2, np.float32), 1), (np.zeros(3, np.float32), 1)]))
    with pytest.raises(DTypeError, match="complex128"):
        first(iter([(np.zeros(2, complex), 1)]))
    with pytest.raises(HpcflowError, match="not known"):
        _ = Stream(placeholders(), numbers, batch=4, context=alone).steps_per_epoch


def test_values_of_a_stream_are_cast_as_feeds_are(alone: RankContext) -> None:
    x, y = placeholders()
    samples = [(np.full(2, 0.1), n) for n in range(4)]
    batch = next(Stream((x, y), iter(samples), batch=4, context=alone).epochs(1))
    np.testing.assert_array_equal(batch[x], np.full((4, 2), np.float32(0.1)))
    assert batch[y].dtype == np.int64
    with pytest.raises(DTypeError, match="float64"):
        next(Stream((y, x), iter([(0.5, [1.0, 2.0])]), batch=4, context=alone).epochs(1))


def test_a_stream_is_mapped_and_described(alone: RankContext) -> None:
    x, y = placeholders()
    data = Stream(
        (x, y),
        lambda epoch: (([n, n], n) for n in range(10)),
        batch=4,
        per_epoch=10,
        map=lambda batch: {x: batch[x].astype(np.float32) + 1, y: batch[y]},
        context=alone,
    )
    assert data.describe() == "10 samples an epoch; a batch of 4 is 4 for one worker"
    assert data.steps_per_epoch == 3
    assert [batch[x][0, 0] for batch in data.epochs(1)] == [1, 5, 9]


@pytest.mark.parametrize(
    ("lengths", "words"),
    [
        ([40, 24], "came to the end of a stream after 24 samples instead"),
        ([24, 40], "came to the end of a stream after 24 samples instead"),
        ([40, 40, 0], "came to the end of a stream after 0 samples instead"),
        ([40, 37], "40 samples .rank 0.; the end of a stream after 37 samples .rank 1."),
    ],
)
def test_streams_that_differ_are_told_and_nobody_waits_forever(
    lengths: list[int], words: str
) -> None:
    def body(context: RankContext) -> int:
        x = hf.placeholder(hf.float32, [None])
        loss = hf.reduce_mean(hf.Variable(1.0) * x)
        train = hf.train.GradientDescentOptimizer(0.1).minimize(loss)
        mine = iter(np.ones(lengths[context.replica], np.float32))
        data = Stream(x, mine, batch=8, context=context)
        with hf.train.TrainingSession(context=context) as session:
            for batch in data.epochs(1):
                session.step(train, batch)
        return session.steps

    with pytest.raises(LonelyCollectiveError, match=words):
        run_ranks(len(lengths), body)
    assert run_ranks(2, body, ps=1) == [-(-lengths[0] // 8)]
