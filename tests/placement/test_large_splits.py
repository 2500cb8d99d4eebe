"""Splits of problems with many closed sets: bounds, loads of pairs, and searches without a list."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from hpcflow.placement.pipeline_splits import contiguous_split as contiguous
from hpcflow.placement.pipeline_splits.chain_bounds import ChainBounds, least_load, most_within
from hpcflow.placement.pipeline_splits.closed_sets import closed_sets, near_sets
from hpcflow.placement.pipeline_splits.pair_loads import PairLoads
from hpcflow.placement.pipeline_splits.split_problem import (
    DeviceType,
    Part,
    SplitProblem,
    Transfer,
    load_of,
)
from hpcflow.placement.pipeline_splits.split_search import improved_split
from hpcflow.placement.pipeline_splits.stage_moves import improved_stages
from tests.placement.made_problems import AMPLE_S, WorkClock, best_load, made_problem


def recurrent(layers: int, steps: int, counts: tuple[int, int]) -> SplitProblem:
    """A recurrent network: a block for each layer and step, after the last step and layer."""
    rng, size = random.Random(3), layers * steps
    before = tuple(
        frozenset({b - 1} if b % steps else ()) | frozenset({b - steps} if b >= steps else ())
        for b in range(size)
    )
    users = [frozenset(b for b in range(size) if a in before[b]) for a in range(size)]
    transfers = tuple(Transfer(a, used, rng.random() / 3) for a, used in enumerate(users) if used)
    times = np.array([rng.choice((0.1, 0.5, 1, 2)) * rng.uniform(0.5, 1.5) for _ in range(size)])
    gpu, cpu = (DeviceType("gpu", counts[0]), DeviceType("cpu", counts[1], np.inf, 0.0))
    return SplitProblem((gpu, cpu), np.stack([times, 10 * times]), times, before, transfers)


def fan(consumers: int) -> SplitProblem:
    """A block, many that use it, and one that uses them."""
    size = consumers + 2
    middle = frozenset(range(1, size - 1))
    before = (frozenset(), *(frozenset({0}) for _ in middle), middle)
    transfers = (
        Transfer(0, middle, 1.0),
        *(Transfer(b, frozenset({size - 1}), 0.5) for b in middle),
    )
    times = np.arange(1.0, size + 1)[None, :]
    return SplitProblem((DeviceType("gpu", 3),), times, times[0], before, transfers)


@pytest.mark.parametrize(
    "problem", [fan(6), recurrent(3, 3, (2, 1)), made_problem(4), made_problem(9)]
)
def test_loads_of_pairs_are_those_of_their_differences(problem):
    sets = closed_sets(problem.before, 10_000) or []
    pairs = PairLoads(problem, sets)
    features = pairs.features(np.arange(len(sets)))
    for kind, form in enumerate(pairs.forms(1000.0)):
        loads = features @ form @ features.T
        for (i, later), (j, earlier) in itertools.product(enumerate(sets), repeat=2):
            blocks = frozenset(b for b in range(problem.size) if (later & ~earlier) >> b & 1)
            expected = load_of(problem, Part(kind, blocks)) if not earlier & ~later else np.inf
            if np.isfinite(expected):
                assert loads[i, j] == pytest.approx(expected)
            elif earlier & ~later:
                assert loads[i, j] > 1000


def test_an_output_with_many_users_has_a_feature_for_each_number_of_them():
    problem = fan(14)
    sets = closed_sets(problem.before, 100_000) or []
    assert len(sets) == 2**14 + 2
    features = PairLoads(problem, sets).features(np.arange(4))
    assert features.shape[1] < 2 * problem.size + 3 * 14, "not one for each combination of users"


def test_bounds_exclude_no_set_of_a_best_split():
    for seed in range(60):
        problem = made_problem(seed)
        found, least = contiguous.contiguous_split(problem, AMPLE_S), best_load(problem, True)
        if found is None:
            continue
        assert least_load(problem) <= least * (1 + 1e-9)
        sets = closed_sets(problem.before, 10_000) or []
        bounds, closed = ChainBounds(problem, sets), 0
        used = [0] * len(problem.devices)
        for part in found.parts:
            used[part.device_type] += 1
            closed |= sum(1 << block for block in part.blocks)
            assert bounds.possible(tuple(used), found.load * (1 + 1e-9))[sets.index(closed)], seed


def test_most_within_is_the_fractional_knapsack():
    values, times = np.array([6.0, 5.0, 4.0, 9.0, 1.0]), np.array([2.0, 1.0, 4.0, 90.0, 0.0])
    assert most_within(values, times, 4.0) == 1 + 5 + 6 + 1
    assert most_within(values, times, 0.0) == 1


def test_sets_near_a_cut_are_closed_and_all_are_found():
    problem = recurrent(4, 5, (2, 0))
    everything = closed_sets(problem.before, 10_000) or []
    assert len(everything) == 126
    cut = everything[60]
    assert sorted(near_sets(problem.before, cut, 1000, random.Random(0))) == sorted(everything)
    few = near_sets(problem.before, cut, 30, random.Random(0))
    assert few[0] == cut and len(few) == 30 and set(few) <= set(everything)


@pytest.mark.slow
@pytest.mark.parametrize("counts", [(6, 1), (8, 2)])
def test_the_optimum_is_found_without_the_list_of_all_sets(monkeypatch, counts):
    problem = recurrent(4, 8, counts)
    best = contiguous.contiguous_split(problem, AMPLE_S)
    assert best is not None and best.is_exact
    monkeypatch.setattr(contiguous, "MOST_SETS", 10)
    clock = WorkClock(monkeypatch)
    found = contiguous.contiguous_split(problem, 2)
    assert clock.now < 2.5
    assert found is not None and not found.is_exact
    assert found.load == pytest.approx(best.load, rel=1e-6)


def test_moves_between_stages_keep_the_order_and_use_spare_devices():
    problem = recurrent(4, 8, (4, 1))
    start = [Part(0, frozenset(range(problem.size)))]
    parts = improved_stages(problem, start, 20_000, random.Random(1))
    stage = {block: i for i, part in enumerate(parts) for block in part.blocks}
    assert all(stage[a] <= stage[b] for b, needed in enumerate(problem.before) for a in needed)
    assert max(load_of(problem, part) for part in parts) < 0.5 * load_of(problem, start[0])


def test_blocks_that_cost_nothing_are_no_error(monkeypatch):
    times, before = np.zeros((1, 8)), (frozenset[int](),) * 8
    problem = SplitProblem((DeviceType("gpu", 2, 6.0),), times, np.ones(8), before, ())
    monkeypatch.setattr(contiguous, "MOST_SETS", 10)
    WorkClock(monkeypatch)
    found = contiguous.contiguous_split(problem, 0.2)
    assert found is not None and found.load == 0
    assert improved_split(problem, found.parts, 1000)


@pytest.mark.slow
def test_a_long_chain_is_split_in_time(monkeypatch):
    rng, size = random.Random(1), 4000
    before = (frozenset[int](), *(frozenset({b}) for b in range(size - 1)))
    transfers = tuple(Transfer(b, frozenset({b + 1}), rng.random() / 3) for b in range(size - 1))
    times = np.array([[rng.uniform(0.1, 2) for _ in range(size)]])
    problem = SplitProblem((DeviceType("gpu", 6),), times, np.zeros(size), before, transfers)
    clock = WorkClock(monkeypatch)
    found = contiguous.contiguous_split(problem, 60)
    assert found is not None and found.is_exact and found.load < 1.002 * times.sum() / 6
    assert clock.now < 60
