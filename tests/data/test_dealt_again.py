"""Workers die: the joined batches are the same as ever, dealt over those that live."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.data import Batch, Dataset, Stream
from hpcflow.data.dealer import deal
from hpcflow.errors import HpcflowError, ShapeError
from hpcflow.runtime.context import Context
from tests.runtime.ranks import run_ranks

SAMPLES, BATCH = 41, 12  # the last joined batch of an epoch has 5
TOTAL = 8  # of two epochs
NUMBERS = np.arange(SAMPLES)


def dataset(context: Context, **more: Any) -> tuple[Any, hf.Tensor]:
    x = hf.placeholder(hf.int64, [None])
    return Dataset({x: NUMBERS}, BATCH, seed=5, context=context, **more), x


def mapped(context: Context) -> tuple[Any, hf.Tensor]:
    return dataset(context, map=lambda batch: {key: rows for key, rows in batch.items()})


def stream(context: Context) -> tuple[Any, hf.Tensor]:
    x = hf.placeholder(hf.int64, [None])
    return Stream(x, lambda epoch: iter(NUMBERS), batch=BATCH, context=context), x


def expected(make: Any) -> list[list[int]]:
    """The joined batches of one worker."""
    if make is stream:
        return [NUMBERS[at : at + BATCH].tolist() for _ in range(2) for at in range(0, 41, BATCH)]
    return [s.indices.tolist() for epoch in range(2) for s in deal(SAMPLES, BATCH, 5, epoch, 1, 0)]


def survive(make: Callable[[Context], tuple[Any, hf.Tensor]], deaths: dict[int, int]) -> Any:
    """What each of four workers trains, of whom `deaths[step]` dies in that step."""

    def body(context: Context) -> list[tuple[list[int], float, int]]:
        data, x = make(context)
        rate = hf.placeholder(hf.float32, [])
        batches, living, found = data.epochs(2), [0, 1, 2, 3], []
        for number in range(TOTAL):
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


@pytest.mark.parametrize("make", [dataset, mapped, stream])
@pytest.mark.parametrize("deaths", [{0: 1}, {3: 2}, {5: 3, 6: 1}, {7: 1}, {1: 2, 2: 1, 5: 3}])
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
    def body(context: Context) -> None:
        data, x = dataset(context)
        batch = next(data.epochs(1))
        rows = batch[x]
        batch.renew()
        assert batch[x] is rows

    run_ranks(2, body, survive=True)


def test_a_fixed_size_that_the_others_cannot_have_is_told() -> None:
    def body(context: Context) -> None:
        x = hf.placeholder(hf.int64, [3])
        data = Dataset({x: NUMBERS[:36]}, BATCH, context=context)
        context.roles = dataclasses.replace(context.roles, workers=(0, 1, 3))
        context.replica = min(context.replica, 2)
        with pytest.raises(ShapeError):
            data.replicas_changed()
        context.roles = dataclasses.replace(context.roles, workers=(0, 1, 2, 3))
        context.replica = context.rank

    run_ranks(4, body, survive=True)


def test_what_cannot_be_dealt_again_is_refused() -> None:
    def body(context: Context) -> None:
        x = hf.placeholder(hf.int64, [None])
        with pytest.raises(HpcflowError, match="iterator cannot be dealt again"):
            Stream(x, iter(NUMBERS), batch=BATCH, context=context)
        with pytest.raises(HpcflowError, match="not dealt anew"):
            Dataset({x: NUMBERS}, BATCH, balance=True, context=context)

    run_ranks(2, body, survive=True)
