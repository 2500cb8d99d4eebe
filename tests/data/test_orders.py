"""Orders of an epoch and positions in it: every sample once, on any ranks, resumed anywhere."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hpcflow as hf
from hpcflow.data import Blocks, Dataset
from hpcflow.data.epoch_shuffle import epoch_order
from hpcflow.data.global_batch_sharding import shard_epoch
from hpcflow.errors import HpcflowError
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings

samples = st.integers(1, 400)
batches = st.integers(1, 60)
replicas = st.integers(1, 7)
seeds = st.integers(0, 2**64 - 1)
blocks = st.builds(Blocks, rows=st.integers(1, 50), window=st.integers(1, 6))
shuffles = st.one_of(st.booleans(), blocks)


@given(samples, seeds, st.integers(0, 99), blocks, batches)
def test_blocks_draw_every_sample_once(
    samples: int, seed: int, epoch: int, blocks: Blocks, batch: int
) -> None:
    drawn = epoch_order(samples, seed, epoch, blocks, batch)
    whole = drawn[0:samples]
    assert np.sort(whole).tolist() == list(range(samples))
    pieces = [drawn[a : a + 13] for a in range(0, samples, 13)]
    np.testing.assert_array_equal(np.concatenate(pieces), whole)
    assert len(drawn[samples : samples + 5]) == 0


@given(samples, blocks)
def test_a_window_has_the_rows_of_its_blocks(samples: int, blocks: Blocks) -> None:
    whole = epoch_order(samples, 1, 2, blocks, batch=10)[0:samples]
    numbers = whole // blocks.rows
    under_way: set[int] = set()
    most = 0
    last = {b: i for i, b in enumerate(numbers.tolist())}
    for i, number in enumerate(numbers.tolist()):
        under_way.add(number)
        most = max(most, len(under_way))
        under_way = {b for b in under_way if last[b] > i}
    assert most <= blocks.window


def test_blocks_are_whole_on_one_rank_where_the_numbers_divide() -> None:
    shuffle = Blocks(rows=32, window=4)
    for replica in range(2):
        for first in range(0, 1024 // 16, 128 // 16):  # the steps of a window
            shares = list(shard_epoch(1024, 16, 3, 0, 2, replica, shuffle))[first : first + 8]
            mine = np.concatenate([share.indices for share in shares]) // 32
            assert np.unique(mine, return_counts=True)[1].tolist() == [32, 32]


def test_orders_differ_by_seed_and_epoch_and_are_repeated() -> None:
    def draw(seed: int, epoch: int) -> list[int]:
        return epoch_order(200, seed, epoch, Blocks(10, 5), 8)[0:200].tolist()

    assert draw(1, 2) == draw(1, 2)
    assert len({tuple(draw(s, e)) for s, e in itertools.product(range(3), range(3))}) == 9
    assert draw(0, 0) != sorted(draw(0, 0))
    assert draw(-1, 0) == draw(2**64 - 1, 0)


@pytest.mark.parametrize("wrong", [{"rows": 0}, {"window": 0}, {"rows": 2.5}])
def test_blocks_have_rows(wrong: dict[str, Any]) -> None:
    with pytest.raises(HpcflowError, match="at least 1"):
        Blocks(**wrong)


class Worker:
    """A dataset of sample numbers, as one of several workers sees it."""

    def __init__(self, count: int, replica: int, replicas: int, **options: Any) -> None:
        with hf.Graph().as_default():
            x = hf.placeholder(hf.int64, [None])
            self.data = Dataset({x: np.arange(count)}, context=RankContext(Settings()), **options)
        self.data.replica, self.data.replicas = replica, replicas
        self.x = x


@pytest.mark.slow
@given(
    samples,
    batches,
    shuffles,
    st.lists(
        st.tuples(replicas, batches, st.booleans(), st.lists(st.integers(0, 30), min_size=7)),
        min_size=1,
        max_size=4,
    ),
    replicas,
)
def test_every_sample_once_per_epoch_whoever_resumes(
    count: int, batch: int, shuffle: Any, runs: list[tuple[int, int, bool, list[int]]], end: int
) -> None:
    drawn: dict[int, list[int]] = {0: [], 1: []}
    position = None
    for workers, size, together, steps in [*runs, (end, batch, True, [10**6] * 7)]:
        last: list[tuple[int, int] | None] = []
        for worker in range(workers):
            data = Worker(count, worker, workers, batch=size, shuffle=shuffle, seed=5).data
            if position is not None:
                data.restore(position)
            mine = list(itertools.islice(data.epochs(2), steps[0] if together else steps[worker]))
            for one in mine:
                drawn[one.epoch] += one.indices.tolist()
            last.append((mine[-1].epoch, mine[-1].step) if mine else None)
        teller = Worker(count, 0, workers, batch=size, shuffle=shuffle, seed=5).data
        if position is not None:
            teller.restore(position)
        position = teller.position(last)
    for epoch in (0, 1):
        assert sorted(drawn[epoch]) == list(range(count))


def test_a_position_of_other_data_is_refused() -> None:
    position = Worker(10, 0, 1, batch=2, shuffle=Blocks(2, 2)).data.position([(0, 1)])
    for options in ({"shuffle": True}, {"shuffle": Blocks(2, 3)}, {"seed": 4}):
        with pytest.raises(HpcflowError, match="other data"):
            Worker(10, 0, 1, batch=2, **{"shuffle": Blocks(2, 2), **options}).data.restore(position)
    with pytest.raises(HpcflowError, match="samples 10, now 11"):
        Worker(11, 0, 1, batch=2, shuffle=Blocks(2, 2)).data.restore(position)
