"""Workers of servers draw what one that has died has left, wherever they hear of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.data import Dataset, Stream
from hpcflow.data.epoch_shuffle import sample_order
from hpcflow.data.global_batch_sharding import shard_epoch
from hpcflow.errors import HpcflowError
from hpcflow.runtime.failure.shard_reassignment import ShardAssignment, WorkerLoss
from hpcflow.runtime.job.rank_context import RankContext
from tests.runtime.ranks import run_ranks

WORKERS, SAMPLES, BATCH, SEED, EPOCHS = 3, 41, 12, 5, 3  # the last batch of an epoch has 5
DEAD = 1


class Heirs:
    """Tells of the death after so many questions; a session would ask the first server."""

    def __init__(self, when: int, loss: WorkerLoss) -> None:
        self.left, self.loss = when, loss

    def deaths(self, dataset: Any) -> int:
        self.left -= 1
        return int(self.left < 0)

    def lines(self, dataset: Any) -> ShardAssignment:
        return ShardAssignment(WORKERS, [self.loss])

    def reshards(self, dataset: Any, deaths: int, has_drawn: bool) -> bool:
        self.left = 0
        return deaths == 0


def make(kind: str, context: RankContext) -> Any:
    x = hf.placeholder(hf.int64, [None])
    if kind == "stream":
        return Stream(x, lambda epoch: iter(range(SAMPLES)), BATCH, context=context)
    ahead = 2 if kind == "ahead" else None
    return Dataset({x: np.arange(SAMPLES)}, BATCH, seed=SEED, read_ahead=ahead, context=context)


def draw(kind: str, done: int, when: dict[int, int], stop: int = 10**6) -> tuple[Any, Any]:
    """What is drawn where worker 1 dies after `done` batches, of which others hear at `when`.

    (epoch, sample) as often as drawn; the dataset's position where each stops after `stop` batches.
    """
    shares = [
        (epoch, share.step)
        for epoch in range(EPOCHS)
        for share in shard_epoch(SAMPLES, BATCH, SEED, epoch, WORKERS, DEAD)
        if len(share.indices)
    ]
    loss = WorkerLoss(DEAD, {0: shares[done - 1]} if done else {})
    drawn: list[tuple[int, int]] = []
    told: dict[int, dict[int, tuple[int, int]]] = {}
    datasets: list[Any] = []

    def body(context: RankContext) -> None:
        data, me = make(kind, context), context.replica
        datasets.append(data)
        data.heirs = Heirs(when.get(me, 10**6), loss)
        last = told.setdefault(me, {})
        for number, batch in enumerate(data.epochs(EPOCHS)):
            if number == (done if me == DEAD else stop):
                break
            (values,) = (batch[key] for key in data._keys)
            assert values.tolist() == batch.indices.tolist()
            drawn.extend((batch.epoch, one) for one in batch.indices.tolist())
            last[batch.line] = batch.epoch, batch.step

    run_ranks(WORKERS + 1, body, ps=1, survive=True)
    del told[DEAD]
    lines = ShardAssignment(WORKERS, [loss])
    return sorted(drawn), datasets[0].position(lines.last_batches_by_share(told))


@pytest.mark.parametrize("kind", ["memory", "ahead", "stream"])
@pytest.mark.parametrize(
    ("done", "when"),
    [(0, {0: 1, 2: 1}), (3, {0: 7, 2: 99}), (9, {0: 2, 2: 5}), (5, {0: 99, 2: 99})],
)
def test_every_sample_is_drawn_once_an_epoch(kind: str, done: int, when: dict[int, int]) -> None:
    """By who was behind the dead one, before it, or had no batches left."""
    drawn, _ = draw(kind, done, when)
    assert drawn == [(epoch, one) for epoch in range(EPOCHS) for one in range(SAMPLES)]


@pytest.mark.parametrize(("done", "when", "stop"), [(2, {0: 4, 2: 2}, 7), (7, {0: 1, 2: 6}, 9)])
def test_a_position_has_what_nobody_has_drawn(done: int, when: dict[int, int], stop: int) -> None:
    drawn, position = draw("memory", done, when, stop)
    left: list[tuple[int, int]] = []
    for epoch in range(position["epoch"], EPOCHS):
        places = position["left"].get(str(epoch), [[0, SAMPLES]])
        ordered = sample_order(SAMPLES, SEED, epoch)
        left += [(epoch, int(one)) for a, b in places for one in ordered[a:b]]
    assert sorted(drawn + left) == [(e, one) for e in range(EPOCHS) for one in range(SAMPLES)]
    assert drawn and left


def test_shares_by_speed_are_refused() -> None:
    def body(context: RankContext) -> None:
        x = hf.placeholder(hf.int64, [None])
        with pytest.raises(HpcflowError, match="not reassigned when a worker dies"):
            Dataset({x: np.arange(SAMPLES)}, BATCH, balance=True, context=context)

    run_ranks(3, body, ps=1, survive=True, sync="all")
