"""The learned correction of a step: its fit against closed forms, and which rows count."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hpcflow.plan.cost import step_correction
from hpcflow.plan.cost.step_correction import (
    RIDGE,
    TERMS,
    USUAL,
    USUAL_ERROR,
    WIDTHS,
    corrected_own_work,
    correction,
    cross_validation,
    feature_vector,
    fit,
    seconds_from_rows,
)
from hpcflow.plan.cost.step_features import _merged
from hpcflow.platform.measured_costs import OperationCost, OperationKey, SampleSummary
from hpcflow.platform.measured_step_costs import (
    ELEMENTWISE,
    OTHER,
    PRODUCT,
    CountedOperation,
    StepCost,
    StepFeatures,
    StepKey,
)

CONSTANTS = seconds_from_rows(())


def operation(kind: str, milliseconds: float, calls: int = 1, device: str = "cpu"):
    about = kind, f"type of {kind}", ("float32",), device, True, 1000, 4000
    return CountedOperation(*about, 1e-3 * milliseconds, calls)


def step(products: float = 1.0, elementwise: float = 1.0, other: float = 1.0, **more: int):
    """A step whose operations take so many milliseconds by the constants."""
    times = {PRODUCT: products, ELEMENTWISE: elementwise, OTHER: other}
    return StepFeatures(tuple(operation(kind, time) for kind, time in times.items()), **more)


def row(name: str, features: StepFeatures, milliseconds: float, threads: int = 1) -> StepCost:
    seconds = SampleSummary.of([1e-3 * milliseconds] * 3)
    return StepCost(StepKey(name, 1, 1, 1, threads), f"{name}.py", features, seconds, seconds)


def drawn(rows: int, truth: np.ndarray, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    columns = np.exp(np.random.default_rng(seed).normal(size=(rows, len(TERMS))))
    return columns, columns @ truth


def test_without_rows_it_is_the_uncorrected_model() -> None:
    found = fit(np.empty((0, len(TERMS))), np.empty(0), np.empty(0))
    assert list(found) == list(USUAL) == [1, 0, 0, 0]
    assert correction([], CONSTANTS, step(), "plan", 1) is None
    assert USUAL @ feature_vector(step(2, 3, 4), CONSTANTS, 1, 4) == pytest.approx(9e-3)


def test_the_features_are_those_of_the_step() -> None:
    planned = StepFeatures(
        (operation(PRODUCT, 2, calls=3), operation(OTHER, 5)), fed_bytes=1000, fetched_bytes=500,
        messages=2, message_bytes=10_000, collectives=1, collective_bytes=40_000,
    )  # fmt: skip
    found = feature_vector(planned, CONSTANTS, 1, 4)
    exchange = 3 * step_correction.EXCHANGE_S + 50_000 / 5e9
    assert list(found) == pytest.approx([11e-3, 1e-4, exchange, 11e-3 * 3 / 4])
    assert feature_vector(planned, CONSTANTS, 1, 1)[3] == 0.0


def test_measured_operations_take_their_measured_time() -> None:
    key = OperationKey("type of product", ("float32",), "numpy", 2, "cpu", 1000, 4000)
    seconds = seconds_from_rows([OperationCost(key, SampleSummary.of([7e-3]))])
    assert seconds(operation(PRODUCT, 1.0), 2) == pytest.approx(7e-3)
    assert seconds(operation(PRODUCT, 1.0)._replace(known=False), 2) == pytest.approx(1e-3)


@pytest.mark.parametrize("seed", range(5))
def test_a_fit_is_that_of_ridge_regression(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """One iteration from the uncorrected model, by least squares of rows and ridge together."""
    monkeypatch.setattr(step_correction, "ITERATIONS", 1)
    columns, measured = drawn(30, np.array([2, 3, 1.5, 1]), seed)
    weights = np.random.default_rng(seed).uniform(0.5, 2, 30)
    root = np.sqrt(measured * (columns @ USUAL))
    errors = abs(measured - columns @ USUAL) / root
    scale = np.sqrt(weights * USUAL_ERROR / np.maximum(errors, USUAL_ERROR)) / root
    ridge = np.sqrt(RIDGE) / WIDTHS
    stacked = np.vstack([columns * scale[:, None], np.diag(ridge)])
    target = np.concatenate([measured * scale, ridge * USUAL])
    expected = np.linalg.lstsq(stacked, target, rcond=None)[0]
    assert expected.min() > 0, "the problem has a bound, which least squares do not know"
    assert fit(columns, measured, weights) == pytest.approx(expected, rel=1e-9)


def test_a_bound_that_least_squares_would_cross_is_kept() -> None:
    """Against projected gradient descent."""
    rng = np.random.default_rng(3)
    for _ in range(8):
        matrix = rng.normal(size=(12, 5))
        gram, sums = matrix.T @ matrix + np.eye(5), matrix.T @ rng.normal(size=12)
        x, rate = np.zeros(5), 1 / np.linalg.norm(gram, 2)
        for _ in range(1000):
            x = np.maximum(0.0, x - rate * (gram @ x - sums))
        assert step_correction._non_negative(gram, sums) == pytest.approx(x, abs=1e-6)


def test_many_rows_of_a_law_give_its_coefficients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_correction, "RIDGE", 1e-9)
    truth = np.array([2.0, 0.5, 0.0, 4.0])
    columns, measured = drawn(200, truth)
    assert fit(columns, measured, np.ones(200)) == pytest.approx(truth, abs=1e-4)


def test_one_row_moves_the_model_towards_it_but_not_past_it() -> None:
    columns, measured = drawn(1, 3 * USUAL)
    before, after = columns[0] @ USUAL, columns[0] @ fit(columns, measured, np.ones(1))
    assert before < after < measured[0]


def test_an_unusual_row_moves_the_model_little() -> None:
    """Nine programs are as the model says, one takes a hundred times as long."""
    columns, measured = drawn(10, USUAL, 1)
    measured[4] *= 100
    found = columns @ fit(columns, measured, np.ones(10)) / measured
    assert np.delete(found, 4) == pytest.approx(1.0, rel=0.15)


def test_a_row_of_the_same_plan_counts_more() -> None:
    rows = [row("a", step(), 3.0), *(row(f"b{i}", step(2, 1, 1), 16.0) for i in range(5))]
    times = {}
    for plan in ("a", "none"):
        found = correction(rows, CONSTANTS, step(), plan, 1)
        assert found is not None
        times[plan] = corrected_own_work(found, step(), CONSTANTS, 1, 1)
    assert abs(times["a"] - 3e-3) < 0.6 * abs(times["none"] - 3e-3)


def test_rows_of_other_devices_and_farther_threads_do_not_count() -> None:
    gpu = StepFeatures((operation(PRODUCT, 1, device="gpu"),))
    rows = [row("a", gpu, 50.0), row("b", step(), 9.0, threads=8), row("c", step(), 6.0, threads=2)]
    found = correction(rows, CONSTANTS, step(), "d", 1)
    assert found is not None and (found.runs, found.threads) == (1, 2)
    assert correction(rows[:1], CONSTANTS, step(), "d", 1) is None


def test_a_left_out_row_does_not_know_the_rows_of_its_script() -> None:
    planned = [step(1, 2, 1), step(4, 1, 1), step(1, 1, 5)]
    rows = [row(name, planned[i], 10.0 + i) for i, name in enumerate("abc")]
    rows.append(row("a", planned[0], 17.0)._replace(key=StepKey("other", 2, 2, 1, 1)))
    found = {one.row.key: one for one in cross_validation(rows, CONSTANTS)}
    changed = [one if one.script != "a.py" else row("a", one.features, 500.0) for one in rows]
    changed[3] = changed[3]._replace(key=rows[3].key)
    again = {one.row.key: one for one in cross_validation(changed, CONSTANTS)}
    assert len(found) == 4
    for key, one in found.items():
        same = again[key].corrected == one.corrected
        assert same == (one.row.script == "a.py")
        assert one.uncorrected == again[key].uncorrected


def test_the_interval_holds_most_programs() -> None:
    """Rows that scatter by a factor of two give an interval of about that."""
    factors = np.exp(np.random.default_rng(0).normal(0.0, math.log(2), 40))
    rows = [row(f"p{i}", step(1 + i % 3, 1 + i % 2, 1), 9 * f) for i, f in enumerate(factors)]
    found = correction(rows, CONSTANTS, step(), "new", 1)
    assert found is not None and found.programs == 40
    errors = [abs(math.log(o.corrected / o.measured)) for o in cross_validation(rows, CONSTANTS)]
    assert 0.85 <= np.mean(np.array(errors) <= found.spread + 1e-12) <= 0.95


def test_a_large_plan_has_few_rows_and_the_same_work() -> None:
    many = [
        operation(PRODUCT, 0.01 * (i + 1), calls=2)._replace(flops=i + 1, nbytes=8 * i)
        for i in range(1000)
    ]
    kept = _merged(many)
    assert len(kept) <= 256 and sum(one.calls for one in kept) == 2000
    seconds = [sum(one.calls * one.constant_s for one in each) for each in (kept, many)]
    assert seconds[0] == pytest.approx(seconds[1])
    flops = [sum(one.calls * one.flops for one in each) for each in (kept, many)]
    assert flops[0] == pytest.approx(flops[1], rel=1e-2)
