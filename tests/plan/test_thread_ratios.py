"""Times with other threads than those of the measurement, and which numbers rows compare."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hpcflow.plan.cost.operation_costs import OperationCosts
from hpcflow.plan.cost.operation_features import OperationFeatures
from hpcflow.plan.cost.operation_time_models import MEASURED, OTHER_THREADS, SAME_TYPE
from hpcflow.plan.cost.thread_ratios import LEAST_COMMON, ThreadRatios
from hpcflow.platform.measured_costs import OperationCost, OperationKey, SampleSummary

SIZES = [10**k for k in range(3, 12)]


def row(size, seconds, threads, type="MatMul", device="cpu", by="numpy"):
    key = OperationKey(type, ("float32",), by, threads, device, size, size)
    return OperationCost(key, SampleSummary.of([0.5 * seconds, seconds, 2 * seconds]))


def both(ratio, type="MatMul", sizes=SIZES):
    """Rows of one and of two threads, whose times are `ratio(size)` of the first."""
    pairs = [(1, lambda size: 1.0), (2, ratio)]
    return [row(n, (1e-6 + n / 1e9) * by(n), k, type) for k, by in pairs for n in sizes]


def features(size, type="MatMul"):
    return OperationFeatures(type, ("float32",), size, size)


def test_what_one_thread_was_measured_for_is_scaled_and_not_taken_from_a_model():
    """The measured operation takes 20 times the law of the others: their model does not know it."""
    slow = row(777_777, 20 * (1e-6 + 777_777 / 1e9), 1)
    costs = OperationCosts([*both(lambda n: 0.5), slow])
    one, two = (costs.seconds_of(features(777_777), "cpu", n) for n in (1, 2))
    assert (one.source, two.source) == (MEASURED, OTHER_THREADS)
    for name in ("median", "low", "high"):  # all rows have the same ratio
        assert getattr(two, name) == pytest.approx(0.5 * getattr(one, name))
    assert costs.seconds_of(features(777_777), "cpu", 1, "onednn").source == SAME_TYPE


def test_models_of_numbers_that_were_measured_unequally_do_not_differ_by_that():
    """With two threads only large sizes were measured; a model of these alone is another law."""
    draw = np.random.default_rng(5)
    noise = dict(zip(SIZES, np.exp(0.5 * draw.standard_normal(len(SIZES))), strict=True))
    rows = [
        row(n, factor * noise[n] * (1e-6 + n / 1e9), threads)
        for threads, factor, sizes in ((1, 1.0, SIZES), (2, 0.5, SIZES[-LEAST_COMMON:]))
        for n in sizes
    ]
    costs = OperationCosts([*rows, row(1, 1e-8, 1, "Add")])  # nothing takes less than this
    for size in (12_345, 10**7 + 1, 10**12):
        one, two = (costs.seconds_of(features(size), "cpu", n).median for n in (1, 2))
        assert two == pytest.approx(0.5 * one, rel=1e-6)


def test_the_gain_of_threads_depends_on_the_size():
    def ratio(size):
        return 2.0 if size < 10**6 else 0.5

    ratios = ThreadRatios(both(ratio))
    found = [ratios.ratio(features(n), "cpu", 1, 2) for n in (10, 3_000, 10**9, 10**14)]
    assert [round(one.ratio, 2) for one in found] == [2.0, 2.0, 0.5, 0.5]
    between = ratios.ratio(features(300_000), "cpu", 1, 2)
    assert 0.5 < between.ratio < 2.0 and between.spread > 0.3 > found[1].spread
    back = ratios.ratio(features(300_000), "cpu", 2, 1)
    assert back.ratio == pytest.approx(1 / between.ratio)


def test_a_type_that_was_not_measured_with_both_has_the_ratio_of_its_family_then_of_all():
    rows = [*both(lambda n: 0.25, "Fused: Add, Relu"), *both(lambda n: 0.5)]
    loop, other = row(5_000, 1e-3, 1, "Fused: Tanh"), row(5_000, 1e-3, 1, "Gather")
    costs = OperationCosts([*rows, loop, other])
    found = costs.seconds_of(features(5_000, "Fused: Tanh"), "cpu", 2)
    assert found.median == pytest.approx(0.25e-3)
    found = costs.seconds_of(features(5_000, "Gather"), "cpu", 2)
    assert 0.25e-3 < found.median < 0.5e-3
    # also a model of the rows of one thread
    found = [costs.seconds_of(features(9_999, "Fused: Tanh"), "cpu", n).median for n in (1, 2)]
    assert found[1] == pytest.approx(0.25 * found[0])


def test_without_common_operations_the_nearest_number_counts():
    apart = [row(n + 1, 2e-6, 4) for n in SIZES]
    costs = OperationCosts([*(row(n, 1e-3, 1) for n in SIZES), *apart])
    assert ThreadRatios(costs.rows).ratio(features(10**6), "cpu", 1, 4) is None
    found = costs.seconds_of(features(10**6), "cpu", 4)  # the model of the rows of 4 threads
    assert found.source == SAME_TYPE and found.median == pytest.approx(2e-6)


def test_nothing_becomes_faster_than_the_fastest_kernel():
    rows = [*both(lambda n: 0.1 if n > 10**9 else 1.0), row(10**10 + 1, 2e-6, 1)]
    found = OperationCosts(rows).seconds_of(features(10**10 + 1), "cpu", 2)
    assert found.source == OTHER_THREADS
    assert found.median == pytest.approx(1e-6 + 1e3 / 1e9)  # the row of the smallest size


def test_numbers_are_compared_by_operations_that_were_measured_with_both():
    few = [row(n, 1e-3, 4) for n in SIZES[: LEAST_COMMON - 1]]
    gpu = [row(n, 1e-3, 8, device="gpu") for n in SIZES]
    others = [row(n + 1, 1e-3, 16) for n in SIZES]
    rows = [*both(lambda n: 0.5), *few, *gpu, *others]

    def compared(threads, *more):
        return ThreadRatios([*rows, *more]).others(threads)

    assert compared(1) == [2] and compared(2) == [1] and compared(8) == compared(16) == []
    assert compared(1, row(SIZES[LEAST_COMMON - 1], 1e-3, 4)) == [2, 4]
    assert compared(1, row(SIZES[0], 1e-3, 4, by="onednn")) == [2]  # the operation of a row


def test_a_law_of_threads_is_found_again():
    """Amdahl's law with 90 % in parallel; sizes between those that were measured."""
    ratio = 0.1 + 0.9 / 2
    ratios = ThreadRatios(both(lambda n: ratio))
    for size in (5, 12_345, 10**13):
        found = ratios.ratio(features(size), "cpu", 1, 2)
        assert found.ratio == pytest.approx(ratio) and math.isclose(found.spread, 0, abs_tol=1e-6)
