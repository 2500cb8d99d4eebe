"""Shares by speed: they follow it, all replicas cut alike, and every sample is dealt once."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hpcflow as hf
from hpcflow.data.global_batch_sharding import remaining_ranges, shard_epoch, split_points
from hpcflow.data.speed_weighted_sharding import FINENESS, SpeedBalance, shares_by_speed
from hpcflow.errors import HpcflowError, ShapeError
from hpcflow.platform.rank_logging import logger
from hpcflow.runtime.job.rank_context import RankContext
from tests.runtime.ranks import run_ranks

speeds = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=12)


@pytest.mark.slow
@given(speeds, st.integers(1, 3000))
def test_shares_follow_the_speeds(speeds: list[float], batch: int) -> None:
    n, replicas = shares_by_speed(speeds, batch), len(speeds)
    v = np.array(speeds)
    assert n.sum() == batch and (n >= (1 if batch >= replicas else 0)).all()
    # Nobody works longer than with shares in proportion, but for the grain of shares and for
    # replicas that get their one sample.
    grain = replicas * max(1, batch // (replicas * FINENESS)) / batch
    even = batch / v.sum()
    assert ((n <= 1) | (n / v <= even * (1 + grain) * (1 + 1e-9))).all()


@given(st.integers(1, 20), st.integers(1, 3000))
def test_equal_speeds_get_equal_shares(replicas: int, batch: int) -> None:
    n = shares_by_speed([7.0] * replicas, batch)
    assert n.max() - n.min() <= max(1, batch // (replicas * FINENESS))


def test_a_worker_three_times_slower_gets_a_third_of_the_others_shares() -> None:
    assert shares_by_speed([3, 3, 1], 7 * 16).tolist() == [48, 48, 16]
    assert shares_by_speed([1, 1, 1e-9], 32).tolist() == [16, 15, 1]  # never none: it may recover


@settings(max_examples=50)
@given(st.data())
def test_replicas_cut_alike_however_far_they_read_ahead(data: st.DataObject) -> None:
    replicas, samples = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 150))
    batch, lead = data.draw(st.integers(5, 40)), data.draw(st.integers(1, 6))
    balances = [SpeedBalance(replicas, min(batch, samples), lead, r) for r in range(replicas)]
    dealers = [dealt(balances[r], samples, batch, r) for r in range(replicas)]
    drawn: list[list[Any]] = [[] for _ in balances]
    rates = st.lists(st.floats(0.1, 100), min_size=replicas, max_size=replicas)
    for step in range(-(-samples // batch)):
        for r, (balance, dealer, mine) in enumerate(zip(balances, dealers, drawn, strict=True)):
            # the chief, who decides, may be two steps behind the others
            balance.consumed = max(
                balance.consumed, step + 1 + (data.draw(st.integers(0, 2)) if r else 0)
            )
            ahead = data.draw(st.integers(0, lead)) + balance.consumed - len(mine)
            mine += itertools.islice(dealer, max(ahead, 0))
        found = balances[0].decide(data.draw(rates)) if data.draw(st.booleans()) else None
        if found is not None:
            for balance in balances:
                balance.change(*found)
    for dealer, mine in zip(dealers, drawn, strict=True):
        mine += dealer
    for shares in zip(*drawn, strict=True):
        assert len({share.joined_size for share in shares}) == 1
        ends = [share.offset + len(share.indices) for share in shares]
        assert [share.offset for share in shares] == [0, *ends[:-1]]
        assert ends[-1] == shares[0].joined_size
    together = [i for mine in drawn for share in mine for i in share.indices]
    assert sorted(together) == list(range(samples))


def dealt(balance: SpeedBalance, samples: int, batch: int, replica: int) -> Any:
    return shard_epoch(samples, batch, 1, 0, balance.replicas, replica, cut=balance.deal)


@settings(max_examples=50)
@given(st.data())
def test_what_is_left_is_what_nobody_has_drawn(data: st.DataObject) -> None:
    samples, batch = data.draw(st.integers(1, 90)), data.draw(st.integers(1, 30))
    replicas = data.draw(st.integers(1, 4))
    starts = sorted(data.draw(st.sets(st.integers(0, samples), max_size=4)))
    ranges = [[a, b] for a, b in zip([0, *starts], [*starts, samples], strict=True)][::2]
    total = sum(b - a for a, b in ranges)
    places = [p for a, b in ranges for p in range(a, b)]
    steps = -(-total // batch)
    inside = st.tuples(*[st.integers(0, batch)] * (replicas - 1))
    wild = [sorted(data.draw(inside)) for _ in range(steps)]

    def cut(step: int, size: int) -> np.ndarray:
        return np.array([0, *(min(at, size) for at in wild[step]), size])

    taken = [data.draw(st.integers(0, steps)) for _ in range(replicas)]
    drawn = set()
    for step in range(steps):
        at = cut(step, min(batch, total - step * batch)) + step * batch
        for r in range(replicas):
            if step < taken[r]:
                drawn |= {places[i] for i in range(at[r], at[r + 1])}
    left = remaining_ranges(ranges, batch, [[one] for one in taken], cut)
    assert [p for a, b in left for p in range(a, b)] == [p for p in places if p not in drawn]
    assert all(a < b for a, b in left)


def redeal(balance: SpeedBalance, speeds: list[float]) -> bool:
    """Decide and change, as where one worker is alone."""
    found = balance.decide(speeds)
    if found is not None:
        balance.change(*found)
    return found is not None


def test_equal_speeds_change_nothing_and_noise_little() -> None:
    balance = SpeedBalance(4, 100, 2, 0)
    balance.consumed = 10
    assert not redeal(balance, [5.0, 5.1, 4.9, 5.0])
    assert np.array_equal(balance.cuts(1000, 100), split_points(100, 4))
    assert redeal(balance, [5.0, 5.0, 5.0, 0.5])  # one that stumbled is taken for less slow
    assert 5 < balance.shares[3] < 25 and balance.shares[3] > 100 / 31
    for number in (0, 10 + 2 + 3):
        assert np.array_equal(
            balance.cuts(number, 100), split_points(100, 4)
        )  # dealt already, perhaps


@pytest.mark.parametrize("fixed", [0.0, 0.5])
def test_steps_become_equally_long(fixed: float) -> None:
    """Each step costs something besides its samples: shares end where all work equally long."""
    cost, balance, changes = np.array([1.0, 1.0, 3.0, 2.0]), SpeedBalance(4, 640, 1, 0), 0
    for _ in range(12):
        n = np.array(balance.shares)
        changes += redeal(balance, (n / (fixed * 160 + n * cost)).tolist())
        balance.consumed += 10
    times = fixed * 160 + np.array(balance.shares) * cost
    assert times.max() / times.min() < 1.15
    assert 1 <= changes <= 4  # a plan is made for each size


def test_noise_makes_few_plans() -> None:
    """Workers are equal but their clocks noisy: shares settle, and stay about equal."""
    rng, balance = np.random.default_rng(1), SpeedBalance(4, 640, 1, 0)
    changes = sum(redeal(balance, rng.uniform(0.8, 1.2, 4).tolist()) for _ in range(200))
    assert changes < 12 and max(balance.shares) < 1.3 * min(balance.shares)
    # a worker that becomes much slower is seen at once all the same
    assert any(redeal(balance, [1.0, 1.0, 0.3, 1.0]) for _ in range(2))


def test_batches_taken_ahead_of_the_steps_are_refused() -> None:
    balance = SpeedBalance(2, 8, 3, rank=1)
    for number in range(20):
        balance.deal(number, 8)
    with pytest.raises(HpcflowError, match="20 batches were taken ahead") as error:
        balance.change(9, [2, 6])
    assert error.value.rank == 1 and "read_ahead" in str(error.value)


def test_workers_that_stood_at_different_steps_leave_what_they_have_not_drawn() -> None:
    """As synchronous workers of servers may, where one of them saves."""

    def body(context: RankContext) -> Any:
        x = hf.placeholder(hf.float32, [None])
        values = np.arange(100, dtype=np.float32)
        data = hf.data.Dataset({x: values}, batch=12, seed=4, balance=True)
        assert data.balance is not None
        drawn: list[list[int]] = []
        for batch in data.epochs(2):
            drawn.append(batch.indices.tolist())
            if len(drawn) in (1, 5):
                redeal(data.balance, [6.0, 1.0, 3.0 * len(drawn)])
            if len(drawn) == 16:
                break
        position = data.position([(1, 5), (1, 6), (1, 4)])
        again = hf.data.Dataset({x: values}, batch=12, seed=4, balance=True)
        again.restore(position)
        return drawn, [batch.indices.tolist() for batch in again.epochs(2)]

    results = run_ranks(3, body)
    assert len({len(drawn[-2]) for drawn, _ in results}) == 3  # all unlike by then
    second = [i for _, again in results for batch in again for i in batch]
    for (drawn, _), steps in zip(results, (6, 7, 5), strict=True):
        second += [i for batch in drawn[9 : 9 + steps] for i in batch]
    assert sorted(second) == list(range(100))


# -- where it has no effect, or cannot be


def made(**settings: Any) -> Callable[[RankContext], Any]:
    def body(context: RankContext) -> Any:
        x = hf.placeholder(hf.float32, [None])
        data = hf.data.Dataset({x: np.zeros(8, "f4")}, batch=4, balance=True)
        hf.data.Stream(x, lambda epoch: iter(np.zeros(8, "f4")), batch=4, balance=True)
        return data.balance

    return body


def test_one_worker_has_nothing_to_balance() -> None:
    assert run_ranks(1, lambda context: made()(context) is None) == [True]


@pytest.mark.parametrize(
    ("sync", "why"),
    [
        ("async", "with asynchronous workers: each reads its own shard at its own speed"),
        ("stale:1", "with asynchronous workers: each reads its own shard at its own speed"),
        ("backup:1", "with sync=backup:1: late gradients are dropped"),
        ("all", ""),
    ],
)
def test_workers_that_do_not_wait_for_each_other_are_told_that_it_has_no_effect(
    sync: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(logger, "log", lambda level, line: said.append(line))

    def body(context: RankContext) -> bool:
        x = hf.placeholder(hf.float32, [None])
        data = hf.data.Dataset({x: np.zeros(8, "f4")}, batch=4, balance=True)
        hf.train.TrainingSession(sync=sync)  # chosen when the dataset is there
        assert [batch.joined_size for batch in data.epochs(1)] == [4, 4]
        return data.balance is None

    assert run_ranks(3, body, ps=1) == [bool(why)] * 2
    lines = [line for line in said if line.startswith("balance")]
    assert len(lines) == bool(why) and (not why or f"balance=True has no effect {why}" in lines[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "why"),
    [({"exact": True}, "exact=1"), ({"tasks_per_replica": 2}, "needs one rank per worker")],
)
def test_what_cannot_be_balanced_is_refused(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(HpcflowError, match=f"balance=True shards by measured time.*{why}"):
        run_ranks(4, made(), **settings)


def test_a_placeholder_of_fixed_size_cannot_be_balanced() -> None:
    def body(context: RankContext) -> None:
        x = hf.placeholder(hf.float32, [4], name="images")
        hf.data.Dataset({x: np.zeros(8, "f4")}, batch=8, balance=True)

    with pytest.raises(ShapeError, match=r"'images:0' takes 4 rows, but with balance=True"):
        run_ranks(2, body)
