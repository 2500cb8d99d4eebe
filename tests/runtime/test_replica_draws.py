"""Replicas draw for their shares of a joined batch what one draws for all of it."""

from __future__ import annotations

import numpy as np
import pytest

import hpcflow as hf
from hpcflow.data import Dataset, Stream
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.session.session import Session
from tests.runtime.ranks import run_ranks

SAMPLES, BATCH = 22, 5  # shares are uneven, and one of three replicas gets no sample at the end
ROWS = np.arange(SAMPLES * 3, dtype=np.float32).reshape(SAMPLES, 3) + 1


def draws_of(x: hf.Tensor) -> dict[str, hf.Tensor]:
    """One value a sample, or several, of everything that may be drawn for a batch."""
    n = hf.shape(x)[0]
    rate = hf.reduce_sum(x, 1)
    return {
        "dropout": hf.nn.dropout(x, 0.6),
        "rows": hf.nn.dropout(x, rate=0.3, noise_shape=[n, 1]),
        "uniform": hf.random_uniform([n, 7], -1, 1),
        "limits": hf.random_uniform(hf.shape(x), x, x + 2),
        "whole": hf.random_uniform([n], 0, 1000, hf.int32),
        "normal": hf.random_normal([n, 5], dtype=hf.float64),
        "cut": hf.truncated_normal([n], x[:, 0], 0.5),
        "gamma": hf.random_gamma([], rate),
        "poisson": hf.random_poisson(rate, []),
        "class": hf.multinomial(x, 4),
        "stateless": hf.random.stateless_normal(hf.shape(x), [3, 4]),
    }


def epoch(context: RankContext, stream: bool) -> list[dict]:
    """What a replica draws in each step of two epochs."""
    x = hf.placeholder(hf.float32, [None, 3])
    made = draws_of(x)
    total = hf.replica_sum(hf.reduce_sum(made["dropout"]))
    data = Stream(x, lambda e: iter(ROWS), BATCH) if stream else Dataset({x: ROWS}, BATCH, seed=1)
    with Session() as session:
        return [session.run({**made, "total": total}, batch) for batch in data.epochs(2)]


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True], ids=["dataset", "stream"])
@pytest.mark.parametrize("ranks", [2, 3])
def test_any_number_of_replicas_draws_for_the_joined_batch(ranks: int, stream: bool) -> None:
    (whole,) = run_ranks(1, lambda context: epoch(context, stream))
    parts = run_ranks(ranks, lambda context: epoch(context, stream))
    assert len(whole) == 10
    for step, alone in enumerate(whole):
        for name, value in alone.items():
            if name != "total":
                joined = np.concatenate([part[step][name] for part in parts])
                assert joined.tobytes() == value.tobytes(), name
    names = set(whole[0]) - {"total", "stateless"}
    for name in names:
        assert not np.array_equal(whole[0][name][:3], whole[1][name][:3]), name


def test_replicas_that_are_not_told_where_they_stand_draw_apart() -> None:
    def body(context: RankContext) -> list[np.ndarray]:
        x = hf.placeholder(hf.float32, [None, 8])
        same = hf.random_uniform(hf.shape(x), batch=False)
        fixed = hf.random_uniform([4, 8])
        named = hf.random_uniform([4, 8], batch=True)
        with Session() as session:
            fetches = [hf.nn.dropout(x, 0.5), named, same, fixed]
            return session.run(fetches, {x: np.ones((4, 8), np.float32)})

    first, second = run_ranks(2, body)
    for at in (0, 1):
        assert (first[at] != second[at]).any()
    for at in (2, 3):
        assert (first[at] == second[at]).all()


def test_a_batch_of_known_size_is_told() -> None:
    def body(context: RankContext, told: bool) -> list[np.ndarray]:
        size = 6 // context.roles.replicas
        x = hf.placeholder(hf.float32, [size, 4])
        y = hf.nn.dropout(x, 0.5, batch=told)
        data = Dataset({x: np.ones((12, 4), np.float32)}, 6, shuffle=False)
        with Session() as session:
            return [session.run(y, batch) for batch in data.epoch(0)]

    for told in (True, False):
        (whole,) = run_ranks(1, lambda context, told=told: body(context, told))
        parts = run_ranks(3, lambda context, told=told: body(context, told))
        joined = [np.concatenate(step) for step in zip(*parts, strict=True)]
        assert all((a == b).all() for a, b in zip(joined, whole, strict=True)) == told


def test_a_replica_of_two_tasks_draws_on_the_second() -> None:
    def body(context: RankContext, device: str | None) -> list[np.ndarray]:
        x = hf.placeholder(hf.float32, [None, 3])
        with hf.device(device):
            y = hf.nn.dropout(x, 0.5)
        data = Dataset({x: ROWS}, BATCH, seed=1)
        with Session() as session:
            return [session.run(y, batch) for batch in data.epoch(0)]

    (whole,) = run_ranks(1, lambda context: body(context, None))
    parts = run_ranks(4, lambda context: body(context, "/job:worker/task:1"), tasks_per_replica=2)
    for step, alone in enumerate(whole):
        assert np.concatenate([part[step] for part in parts]).tobytes() == alone.tobytes()


def test_asynchronous_workers_draw_apart() -> None:
    def body(context: RankContext) -> np.ndarray:
        x = hf.placeholder(hf.float32, [None, 8])
        with Session() as session:
            return session.run(hf.nn.dropout(x, 0.5), {x: np.ones((9, 8), np.float32)})

    first, second = run_ranks(3, body, ps=1)
    assert 0.25 < (first != second).mean() < 0.75


def test_draws_inside_a_loop_are_those_of_the_joined_batch() -> None:
    def body(context: RankContext) -> list[np.ndarray]:
        x = hf.placeholder(hf.float32, [None, 3])

        def again(i: hf.Tensor, y: hf.Tensor) -> list[hf.Tensor]:
            return [i + 1, hf.nn.dropout(y, 0.7)]

        _, y = hf.while_loop(lambda i, y: i < 3, again, [0, x])
        data = Dataset({x: ROWS}, BATCH, seed=1)
        with Session() as session:
            return [session.run(y, batch) for batch in data.epoch(0)]

    (whole,) = run_ranks(1, body)
    parts = run_ranks(3, body)
    for step, alone in enumerate(whole):
        assert np.concatenate([part[step] for part in parts]).tobytes() == alone.tobytes()
    kept = np.mean([(value != 0).mean() for value in whole])
    assert 0.2 < kept < 0.5  # 0.7**3: each turn draws anew


def test_the_offset_is_fed_like_any_value() -> None:
    def body(context: RankContext) -> list[np.ndarray]:
        y = hf.random.stateless_uniform([4, 3], [1, 2], batch=True)
        with Session() as session:
            return [session.run(y), session.run(y, {hf.replica_offset(): np.int64(2)})]

    ((first, later),) = run_ranks(1, body)
    assert (first[2:] == later[:2]).all() and (first[:2] != later[2:]).all()
