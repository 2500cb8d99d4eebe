"""The dealer: every sample once per epoch, the same joined batches on any number of replicas."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hpcflow.data.epoch_shuffle import sample_order
from hpcflow.data.global_batch_sharding import shard_epoch, split_points, steps_per_epoch

samples = st.integers(1, 300)
batches = st.integers(1, 90)
replicas = st.integers(1, 9)
seeds = st.integers(0, 2**64 - 1)
epochs = st.integers(0, 1000)


@given(samples, batches, seeds, epochs, replicas)
def test_shares_make_up_the_batches_of_one_replica(
    samples: int, batch: int, seed: int, epoch: int, replicas: int
) -> None:
    alone = list(shard_epoch(samples, batch, seed, epoch, 1, 0))
    dealt = [list(shard_epoch(samples, batch, seed, epoch, replicas, r)) for r in range(replicas)]
    for step, whole in enumerate(alone):
        shares = [mine[step] for mine in dealt]
        assert {s.step for s in shares} == {step}
        assert {s.joined_size for s in shares} == {len(whole.indices)}
        np.testing.assert_array_equal(np.concatenate([s.indices for s in shares]), whole.indices)
        counts = [len(s.indices) for s in shares]
        assert max(counts) - min(counts) <= 1


@given(samples, batches, seeds, epochs, replicas)
def test_every_sample_is_drawn_once_per_epoch(
    samples: int, batch: int, seed: int, epoch: int, replicas: int
) -> None:
    drawn = [
        index
        for replica in range(replicas)
        for share in shard_epoch(samples, batch, seed, epoch, replicas, replica)
        for index in share.indices
    ]
    assert sorted(drawn) == list(range(samples))


@given(samples, batches, replicas)
def test_all_batches_but_the_last_are_full(samples: int, batch: int, replicas: int) -> None:
    sizes = [share.joined_size for share in shard_epoch(samples, batch, 0, 0, replicas, 0)]
    assert len(sizes) == steps_per_epoch(samples, batch)
    assert sum(sizes) == samples
    assert set(sizes[:-1]) <= {batch} and 1 <= sizes[-1] <= batch


@given(st.integers(0, 10_000), st.integers(1, 5000))
def test_cuts_are_as_even_as_can_be(size: int, replicas: int) -> None:
    counts = np.diff(split_points(size, replicas))
    assert counts.sum() == size
    assert set(counts) <= {size // replicas, size // replicas + 1}
    assert (np.diff(counts) <= 0).all()  # so that the first replica has samples if any has


def test_orders_of_seeds_and_epochs_are_different_and_repeatable() -> None:
    orders = {(s, e): sample_order(50, s, e).tolist() for s in range(5) for e in range(5)}
    assert len({tuple(o) for o in orders.values()}) == 25
    assert sample_order(50, 3, 4).tolist() == orders[3, 4]
    assert sample_order(50, 3, 4, shuffle=False).tolist() == list(range(50))
    assert sample_order(50, -1, 0).tolist() == sample_order(50, 2**64 - 1, 0).tolist()
    assert sample_order(50, 2**64 - 1, 0).tolist() != sample_order(50, 2**64 - 2, 0).tolist()
    # As the documentation says, so that a script of another kind can draw the same.
    philox = np.random.Generator(np.random.Philox(key=[3, 4]))
    assert philox.permutation(50).tolist() == orders[3, 4]
