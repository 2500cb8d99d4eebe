"""Datasets: batches are feeds with a share of the joined batch; what does not fit is told."""

from __future__ import annotations

import collections
import copy
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.data import Dataset
from hpcflow.errors import DataError, DTypeError, FeedError, HpcflowError, ShapeError
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings
from tests.runtime.ranks import run_ranks

IMAGES = np.arange(20, dtype=np.float32).reshape(10, 2)
LABELS = np.arange(10)


@pytest.fixture(autouse=True)
def graph() -> Iterator[hf.Graph]:
    with hf.Graph().as_default() as graph:
        yield graph


@pytest.fixture
def alone() -> RankContext:
    return RankContext(Settings())


def placeholders() -> tuple[hf.Tensor, hf.Tensor]:
    x = hf.placeholder(hf.float32, [None, 2], name="x")
    return x, hf.placeholder(hf.int64, [None], name="y")


def test_a_batch_is_a_feed_dict(alone: RankContext) -> None:
    x, y = placeholders()
    data = Dataset({x: IMAGES, y: LABELS}, batch=4, seed=5, context=alone)
    batches = list(data.epochs(2))
    assert [b.size for b in batches] == [4, 4, 2] * 2
    assert [(b.epoch, b.step) for b in batches] == [(e, s) for e in (0, 1) for s in (0, 1, 2)]
    for batch in batches:
        assert set(batch) == {x, y}  # one rank: the share is 1 without a feed
        np.testing.assert_array_equal(batch[x], IMAGES[batch.indices])
        np.testing.assert_array_equal(batch[y], batch.indices)
        assert batch.joined_size == batch.size
    assert [b.indices.tolist() for b in data.epochs(1, first=1)] == [
        b.indices.tolist() for b in batches[3:]
    ]


def test_a_batch_with_more_feeds_counts_as_it_does(alone: RankContext) -> None:
    x, y = placeholders()
    rate = hf.placeholder(hf.float32, [])
    data = Dataset({x: IMAGES, y: LABELS}, batch=4, context=alone)
    batch = next(iter(data.epoch(0)))
    more = batch | {rate: 0.1}
    assert more[rate] == 0.1 and rate not in batch and more[x] is batch[x]
    assert vars(more) == vars(batch) and more.source is data


COPIES: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda batch: batch,
    "dict": lambda batch: dict(batch),
    "unpacked": lambda batch: {**batch},
    "method": lambda batch: batch.copy(),
    "shallow": lambda batch: copy.copy(batch),
    "deep": lambda batch: copy.deepcopy(batch),
    "items": lambda batch: {key: batch[key] for key in batch},
    "joined": lambda batch: {} | batch,
    "updated": lambda batch: collections.OrderedDict(batch),
    "chained": lambda batch: collections.ChainMap({}, batch),
    "with more": lambda batch: {**batch, next(iter(batch)): next(iter(batch.values())) * 1},
    "read only": lambda batch: types.MappingProxyType(batch),
    "one of its arrays": lambda batch: {key: batch[key] for key in list(batch)[:1]},
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_a_copy_of_a_batch_keeps_its_place(tmp_path: Path, copied: Callable[[Any], Any]) -> None:
    """A job that goes on draws the samples that are left, and no other."""
    drawn = []
    for resume, steps in ((False, 2), (True, 9)):
        with hf.Graph().as_default():
            context = RankContext(Settings())
            x, y = placeholders()
            w = hf.Variable(np.float32(0), name="w")
            train = w.assign_add(hf.reduce_sum(x))
            Dataset({x: IMAGES[:4], y: LABELS[:4]}, batch=4, context=context)
            data = Dataset({x: IMAGES, y: LABELS}, batch=4, context=context)
            kept = {"checkpoints": tmp_path, "save_every": 99, "resume": resume}
            with hf.train.TrainingSession(context=context, **kept) as session:
                for batch, _ in zip(data.epochs(1), range(steps), strict=False):
                    session.step(train, copied(batch))
                    drawn += batch.indices.tolist()
                assert session.samples == (2 if resume else 8)
                session.wait()
                assert session.run(w) == IMAGES[drawn].sum()
    assert sorted(drawn) == list(range(10))


def test_feeds_of_ones_own_in_place_of_a_batch_are_refused(alone: RankContext) -> None:
    x, y = placeholders()
    z = hf.placeholder(hf.float32, [])
    data = Dataset({x: IMAGES, y: LABELS}, batch=4, context=alone)
    with hf.train.TrainingSession(context=alone) as session:
        session.step(x, {x: IMAGES[:2]})  # nothing was dealt yet
        batches = data.epochs(1)
        first, batch = next(batches), next(batches)
        for feeds in ({x: batch[x] * 2}, {**first}, {x: IMAGES[:2], y: LABELS[:2]}):
            with pytest.raises(DataError, match=r"batch \| \{placeholder: value\}"):
                session.step(x, feeds)
        assert session.samples == 0
        session.step(z, {z: 1.0})  # feeds nothing that is dealt
        session.step(x, batch | {x: batch[x] * 2})
        assert session.samples == 4


def dealt(context: RankContext, batch: int) -> list[tuple[int, int, float | None, list[int]]]:
    x, y = placeholders()
    data = Dataset({x: IMAGES, y: LABELS}, batch=batch, context=context)
    share = hf.replica_share()
    return [
        (b.step, b.joined_size, float(b[share]) if share in b else None, b.indices.tolist())
        for b in data.epoch(0)
    ]


def test_synchronous_replicas_get_a_share_of_every_batch() -> None:
    ranks = run_ranks(4, lambda context: dealt(context, 4))
    for mine in ranks:
        assert [(step, joined) for step, joined, _, _ in mine] == [(0, 4), (1, 4), (2, 2)]
        assert all(share == len(i) / joined for _, joined, share, i in mine)
    assert [len(i) for _, _, _, i in ranks[3]] == [1, 1, 0]
    assert sorted(i for mine in ranks for *_, found in mine for i in found) == list(range(10))


def test_asynchronous_workers_skip_batches_without_samples() -> None:
    ranks = run_ranks(5, lambda context: dealt(context, 4), ps=1)
    assert [[step for step, *_ in mine] for mine in ranks] == [[0, 1, 2]] * 2 + [[0, 1]] * 2
    assert {share for mine in ranks for _, _, share, _ in mine} == {None}  # each has its own mean
    assert sorted(i for mine in ranks for *_, found in mine for i in found) == list(range(10))


def test_batch_per_rank_is_multiplied() -> None:
    def body(context: RankContext) -> tuple[int, list[int], str]:
        x, _ = placeholders()
        data = Dataset({x: IMAGES}, batch_per_rank=2, context=context)
        return data.batch, data.shares, data.describe()

    batch, shares, text = run_ranks(3, body)[0]
    assert (batch, shares) == (6, [2, 2, 2])
    assert text == "10 samples in 2 steps an epoch; a batch of 6 is 2 for each of 3 workers"


def test_values_are_converted_where_nothing_is_lost(alone: RankContext) -> None:
    x, y = placeholders()
    data = Dataset({x: IMAGES.tolist(), y: LABELS.astype(np.int16)}, batch=10, context=alone)
    (batch,) = data.epoch(0)
    assert (batch[x].dtype, batch[y].dtype) == (hf.float32, hf.int64)


def test_a_finished_graph_without_training_needs_no_share() -> None:
    def body(context: RankContext) -> int:
        x, _ = placeholders()
        x.graph.finalize()
        return len(next(Dataset({x: IMAGES}, batch=4, context=context).epoch(0)))

    assert run_ranks(2, body) == [1, 1]


def wrong(context: RankContext, **changes: Any) -> str:
    x, y = placeholders()
    arrays = {x: changes.get("x", IMAGES), y: changes.get("y", LABELS)}
    sizes = changes.get("sizes", {"batch": 4})
    with pytest.raises(changes["error"]) as caught:
        Dataset(arrays, **sizes, context=context)
    return str(caught.value)


def test_what_does_not_fit_is_told(alone: RankContext) -> None:
    text = wrong(alone, error=ShapeError, y=LABELS[:7])
    assert "10 for 'x:0', 7 for 'y:0'" in text
    text = wrong(alone, error=DTypeError, x=IMAGES.astype(np.complex64))
    assert "complex64" in text and "astype('float32')" in text and "test_dataset.py" in text
    text = wrong(alone, error=ShapeError, x=np.zeros((10, 3), np.float32))
    assert "[10, 3]" in text and "[?, 2]" in text
    wrong(alone, error=ShapeError, x=np.float32(1))
    wrong(alone, error=ShapeError, x=IMAGES[:0], y=LABELS[:0])
    assert "batch=0" in wrong(alone, error=HpcflowError, sizes={"batch": 0})
    assert "batch=2.5" in wrong(alone, error=HpcflowError, sizes={"batch": 2.5})
    wrong(alone, error=HpcflowError, sizes={})
    wrong(alone, error=HpcflowError, sizes={"batch": 4, "batch_per_rank": 4})


def test_keys_are_tensors(alone: RankContext) -> None:
    with pytest.raises(FeedError, match="not a tensor"):
        Dataset({"x": IMAGES}, batch=4, context=alone)  # type: ignore[dict-item]
    with pytest.raises(ShapeError, match="a dataset needs samples"):
        Dataset({}, batch=4, context=alone)


def test_a_placeholder_of_fixed_size_needs_equal_batches(alone: RankContext) -> None:
    x = hf.placeholder(hf.float32, [5, 2], name="fixed")
    assert [b.size for b in Dataset({x: IMAGES}, batch=5, context=alone).epoch(0)] == [5, 5]
    with pytest.raises(ShapeError, match="takes 5 rows, but a worker's share has 2 or 4"):
        Dataset({x: IMAGES}, batch=4, context=alone)
