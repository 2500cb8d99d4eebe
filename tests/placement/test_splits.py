"""Splits of small problems are the best of all assignments; of large ones, in time and valid."""

from __future__ import annotations

import random

import numpy as np
import pytest

from hpcflow.errors import PlacementError
from hpcflow.placement.pipeline_splits.closed_sets import closed_sets
from hpcflow.placement.pipeline_splits.contiguous_split import contiguous_split
from hpcflow.placement.pipeline_splits.dominated_blocks import without_dominated_blocks
from hpcflow.placement.pipeline_splits.order_cycles import strongly_connected, without_cycles
from hpcflow.placement.pipeline_splits.split_latency import latency_of, least_latency
from hpcflow.placement.pipeline_splits.split_problem import (
    DeviceType,
    Part,
    SplitProblem,
    Transfer,
    greatest_load,
    topological_order,
)
from hpcflow.placement.pipeline_splits.split_search import greedy_split, improved_split
from tests.placement.made_problems import AMPLE_S, WorkClock, best_load, covers, made_problem


@pytest.mark.parametrize("seeds", [range(i, i + 20) for i in range(0, 200, 20)], ids=str)
def test_a_contiguous_split_is_the_best_of_all(seeds):
    for seed in seeds:
        problem = made_problem(seed)
        found, least = contiguous_split(problem, AMPLE_S), best_load(problem, contiguous=True)
        if not np.isfinite(least):
            assert found is None, seed
            continue
        assert found is not None and found.is_exact, seed
        assert found.load == pytest.approx(least, rel=1e-9, abs=1e-9), seed
        assert greatest_load(problem, found.parts) == found.load
        assert covers(problem, list(found.parts)), seed
        stage = {block: i for i, part in enumerate(found.parts) for block in part.blocks}
        assert all(stage[a] <= stage[b] for b, needed in enumerate(problem.before) for a in needed)


def test_problems_without_dominated_blocks_are_smaller_and_have_the_same_optimum():
    smaller = 0
    for seed in range(60):
        problem = made_problem(seed)
        reduced = without_dominated_blocks(problem)
        smaller += reduced.problem.size < problem.size
        least = best_load(problem, contiguous=True)
        assert best_load(reduced.problem, contiguous=True) == pytest.approx(least), seed
    assert smaller > 20


@pytest.mark.slow
def test_a_search_without_cuts_finds_the_best_of_all():
    better = 0
    for seed in range(40):
        problem = made_problem(seed)
        start, least = greedy_split(problem), best_load(problem, contiguous=False)
        if start is None or not np.isfinite(least):
            continue
        found = improved_split(problem, start, 30_000)
        assert covers(problem, found), seed
        assert greatest_load(problem, found) <= greatest_load(problem, start)
        assert greatest_load(problem, found) == pytest.approx(least, abs=1e-9), seed
        better += greatest_load(problem, found) < greatest_load(problem, start)
    assert better > 5


def test_a_search_never_returns_a_worse_split():
    problem = made_problem(3)
    found = contiguous_split(problem, AMPLE_S)
    assert found is not None
    again = improved_split(problem, found.parts, 3000)
    assert greatest_load(problem, again) <= found.load
    assert again == improved_split(problem, found.parts, 3000), "each rank finds the same"


def ladder(chains: int, length: int, seed: int = 0) -> SplitProblem:
    """Chains side by side: (length + 1) ** chains closed sets."""
    rng = random.Random(seed)
    size = chains * length
    before = tuple(frozenset({b - 1} if b % length else ()) for b in range(size))
    transfers = tuple(
        Transfer(b - 1, frozenset({b}), rng.random()) for b in range(size) if b % length
    )
    times = np.array([[rng.uniform(1, 3) for _ in range(size)]])
    return SplitProblem((DeviceType("gpu", 4),), times, np.zeros(size), before, transfers)


def test_too_many_closed_sets_give_a_good_split_in_time(monkeypatch):
    problem, clock = ladder(6, 10), WorkClock(monkeypatch)
    assert closed_sets(problem.before, 10_000) is None
    found = contiguous_split(problem, 0.5)
    assert found is not None and not found.is_exact and covers(problem, list(found.parts))
    assert found.load < 1.04 * problem.times.sum() / 4
    assert clock.now < 0.7


def test_a_search_without_time_finds_some_split_that_fits():
    """It would be told that none fits, because a busy machine had let it wait."""
    for seed in range(20):
        problem, found = made_problem(seed), contiguous_split(made_problem(seed), 1e-9)
        if np.isfinite(best_load(problem, contiguous=True)):
            assert found is not None and covers(problem, list(found.parts)), seed


def test_closed_sets_are_counted_as_the_ladder_says():
    assert len(closed_sets(ladder(2, 9).before, 10**6) or ()) == 100
    assert len(closed_sets(ladder(3, 4).before, 10**6) or ()) == 125


def test_blocks_that_need_each_other_become_one():
    before = (frozenset({2}), frozenset({0}), frozenset({1}), frozenset({2}))
    assert sorted(map(sorted, strongly_connected(before))) == [[0, 1, 2], [3]]
    problem = SplitProblem(
        (DeviceType("gpu", 2),),
        np.ones((1, 4)),
        np.ones(4),
        before,
        (Transfer(0, frozenset({1}), 5.0), Transfer(2, frozenset({3, 0}), 0.25)),
    )
    with pytest.raises(PlacementError, match="cycle"):
        topological_order(problem.before)
    merged = without_cycles(problem)
    found = contiguous_split(merged.problem, AMPLE_S)
    assert found is not None and found.load == 3.25
    parts = merged.expand(found.parts)
    assert [sorted(part.blocks) for part in parts] == [[0, 1, 2], [3]]


def test_a_split_that_fits_no_memory_is_none():
    problem = SplitProblem(
        (DeviceType("gpu", 2, memory=1.0),),
        np.ones((1, 3)),
        np.ones(3),
        (frozenset(), frozenset({0}), frozenset({1})),
        (),
    )
    assert contiguous_split(problem, AMPLE_S) is None and greedy_split(problem) is None


def test_latency_is_that_of_the_longest_chain_of_calls():
    """A fork of two equal branches: one device has both, or each has one and pays transfers."""
    before = (frozenset(), frozenset({0}), frozenset({0}), frozenset({1, 2}))
    times = np.array([[1.0, 8.0, 8.0, 1.0]])
    transfers = (
        Transfer(0, frozenset({1, 2}), 0.5),
        Transfer(1, frozenset({3}), 0.5),
        Transfer(2, frozenset({3}), 0.5),
    )
    problem = SplitProblem((DeviceType("gpu", 4),), times, np.zeros(4), before, transfers)
    alone = [Part(0, frozenset(range(4)))]
    assert latency_of(problem, alone) == 18
    spread = [Part(0, frozenset({b})) for b in range(4)]
    assert latency_of(problem, spread) == (1 + 0.5) + (0.5 + 8 + 0.5) + (0.5 + 0.5 + 1)
    crossed = [Part(0, frozenset({0, 3})), Part(0, frozenset({1, 2}))]
    assert latency_of(problem, crossed) == np.inf
    found = least_latency(problem, alone, 10_000)
    assert latency_of(problem, found) == 12.5 and len(found) == 4
