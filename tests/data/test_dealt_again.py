"""Workers die: the joined batches are the same as ever, dealt over those that live."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.data import Batch, Dataset, Stream
from hpcflow.data.global_batch_sharding import shard_epoch
from hpcflow.errors import DataError, ShapeError
from hpcflow.runtime.job.rank_context import RankContext
from tests.runtime.ranks import run_ranks

SAMPLES, BATCH = 41, 12  # the last joined batch of an epoch has 5
TOTAL = 8  # of two epochs
NUMBERS = np.arange(SAMPLES)


def dataset(context: RankContext, **more: Any) -> tuple[Any, hf.Tensor]:
    x = hf.placeholder(hf.int64, [None])
    return Dataset({x: NUMBERS}, BATCH, seed=5, context=context, **more), x


def mapped(context: RankContext) -> tuple[Any, hf.Tensor]:
    return dataset(context, map=lambda batch: {key: rows for key, rows in batch.items()})


def stream(context: RankContext) -> tuple[Any, hf.Tensor]:
    x = hf.placeholder(hf.int64, [None])
    return Stream(x, lambda epoch: iter(NUMBERS), batch=BATCH, context=context), x


def iterator(context: RankContext) -> tuple[Any, hf.Tensor]:
    """As long as two epochs."""
    x = hf.placeholder(hf.int64, [None])
    return Stream(x, iter(range(2 * SAMPLES)), batch=BATCH, context=context), x


def by_speed(context: RankContext) -> tuple[Any, hf.Tensor]:
    """The first is twice as fast: so all are told before the first batch."""
    data, x = dataset(context, balance=True, read_ahead=2)
    data.balance.change(3, [6, 2, 2, 2])
    return data, x


def stream_by_speed(context: RankContext) -> tuple[Any, hf.Tensor]:
    x = hf.placeholder(hf.int64, [None])
    data = Stream(x, lambda epoch: iter(NUMBERS), batch=BATCH, balance=True, context=context)
    data.balance.change(3, [2, 6, 2, 2])
    return data, x


def iterator_by_speed(context: RankContext) -> tuple[Any, hf.Tensor]:
    x = hf.placeholder(hf.int64, [None])
    data = Stream(x, iter(range(2 * SAMPLES)), batch=BATCH, balance=True, context=context)
    data.balance.change(3, [2, 6, 2, 2])
    return data, x


MAKERS = [dataset, mapped, stream, iterator, by_speed, stream_by_speed, iterator_by_speed]


def expected(make: Any) -> list[list[int]]:
    """The joined batches of one worker."""
    if make in (iterator, iterator_by_speed):
        twice = range(2 * SAMPLES)
        return [list(twice[at : at + BATCH]) for at in range(0, len(twice), BATCH)]
    if make in (stream, stream_by_speed):
        return [NUMBERS[at : at + BATCH].tolist() for _ in range(2) for at in range(0, 41, BATCH)]
    return [
        s.indices.tolist()
        for epoch in range(2)
        for s in shard_epoch(SAMPLES, BATCH, 5, epoch, 1, 0)
    ]


def survive(make: Callable[[RankContext], tuple[Any, hf.Tensor]], deaths: dict[int, int]) -> Any:
    """What each of four workers trains, of whom `deaths[step]` dies in that step."""

    def body(context: RankContext) -> list[tuple[list[int], float, int]]:
        data, x = make(context)
        rate = hf.placeholder(hf.float32, [])
        once = make in (iterator, iterator_by_speed)
        batches, living, found = data.epochs(1 if once else 2), [0, 1, 2, 3], []
        for number in range(len(expected(make))):
            batch: Batch = next(batches) | {rate: 0.5}
            if number in deaths:
                if context.rank == deaths[number]:
                    return found
                living.remove(deaths[number])
                context.roles = dataclasses.replace(context.roles, workers=tuple(living))
                context.replica = living.index(context.rank)
                context.cluster = dataclasses.replace(context.cluster, workers=len(living))
                data.replicas_changed()
                batch.renew()
            assert batch[rate] == 0.5  # what is fed besides stays
            assert batch[x].tolist() == batch.indices.tolist()
            found.append((batch[x].tolist(), float(batch[data._share]), batch.offset))
        return found

    return run_ranks(4, body, survive=True)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("deaths", [{0: 1}, {3: 2}, {5: 3, 6: 1}, {6: 1}, {1: 2, 2: 1, 5: 3}])
def test_joined_batches_stay_and_shares_grow(make: Any, deaths: dict[int, int]) -> None:
    """Also the batch in which a worker dies, whole; each with its share and its place."""
    workers = survive(make, deaths)
    for number, joined in enumerate(expected(make)):
        parts = [one[number] for one in workers if len(one) > number]
        assert len(parts) == 4 - sum(step <= number for step in deaths)
        assert [n for part, _, _ in parts for n in part] == joined
        for part, share, offset in parts:
            assert share == pytest.approx(len(part) / len(joined))
            assert joined[offset : offset + len(part)] == part


def test_a_batch_is_as_it_was_while_all_live() -> None:
    def body(context: RankContext) -> None:
        data, x = dataset(context)
        batch = next(data.epochs(1))
        rows = batch[x]
        batch.renew()
        assert batch[x] is rows

    run_ranks(2, body, survive=True)


def test_a_fixed_size_that_the_others_cannot_have_is_told() -> None:
    def body(context: RankContext) -> None:
        x = hf.placeholder(hf.int64, [3])
        data = Dataset({x: NUMBERS[:36]}, BATCH, context=context)
        context.roles = dataclasses.replace(context.roles, workers=(0, 1, 3))
        context.replica = min(context.replica, 2)
        with pytest.raises(ShapeError):
            data.replicas_changed()
        context.roles = dataclasses.replace(context.roles, workers=(0, 1, 2, 3))
        context.replica = context.rank

    run_ranks(4, body, survive=True)


def test_shares_are_by_speed_until_one_dies_and_equal_then() -> None:
    workers = survive(by_speed, {5: 3})
    sizes = [[len(part) for part, _, _ in one] for one in workers]
    assert [one[2] for one in sizes] == [3, 3, 3, 3]
    assert [one[4] for one in sizes] == [6, 2, 2, 2]
    assert [one[5] for one in sizes[:3]] == [4, 4, 4]


def test_shares_follow_the_speeds_again() -> None:
    """As the chief decides, from the same batch on; a decision for more workers is not heeded."""

    def body(context: RankContext) -> None:
        data, _ = dataset(context, balance=True)
        batches = data.epochs(3)
        next(batches)
        context.roles = dataclasses.replace(context.roles, workers=(0, 1, 2))
        if context.rank < 3:
            data.replicas_changed()
            assert data.balance.consumed == 1
            first, shares = data.balance.decide([2.0, 1.0, 1.0])
            assert shares == [6, 3, 3]
            data.balance.change(first, shares)
            sizes = [batch.size for batch in batches]
            assert sizes[0] == 4  # batch 1
            assert sizes[7] == shares[context.replica]  # batch 8
        context.roles = dataclasses.replace(context.roles, workers=(0, 1, 2, 3))

    run_ranks(4, body, survive=True)


def test_an_old_batch_of_an_iterator_cannot_be_dealt_again() -> None:
    def body(context: RankContext) -> None:
        data, _ = iterator(context)
        batches = data.epochs(1)
        old = [next(batches) for _ in range(4)]
        data.dealing += 1
        old[2].renew()
        with pytest.raises(DataError, match="step 0 of the stream cannot be sharded again"):
            old[0].renew()
        data.dealing -= 1
        data.close()

    run_ranks(2, body, survive=True)
