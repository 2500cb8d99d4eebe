"""The cost model of strategies, fitted to a few steps of a machine that is simulated."""

from __future__ import annotations

import numpy as np
import pytest

from hpcflow.errors import PlacementError
from hpcflow.placement.least_squares import minimize
from hpcflow.placement.strategy_fit import MINIMUM_ROWS, StrategyPredictor, fit_predictor

from . import strategy_machine

SETUPS = strategy_machine.setups()
MEASURED = strategy_machine.noisy(SETUPS, seed=1)


def fitted(seed: int, rows: int = 20) -> tuple[StrategyPredictor, np.ndarray]:
    drawn = np.random.default_rng(seed).choice(len(SETUPS), rows, replace=False)
    setups = [SETUPS[i] for i in drawn]
    return fit_predictor(setups, MEASURED[drawn].tolist(), strategy_machine.tables()), drawn


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_twenty_rows_predict_the_others_and_the_choice(seed: int) -> None:
    predictor, drawn = fitted(seed)
    predicted = predictor.seconds(SETUPS)
    misses = np.delete(np.abs(predicted / MEASURED - 1), drawn)
    assert misses.mean() < 0.06
    slower, middle = [], []
    for group in strategy_machine.by_group(SETUPS):
        best, chosen = MEASURED[group].min(), group[int(np.argmin(predicted[group]))]
        slower.append(MEASURED[chosen] / best - 1)
        middle.append(np.median(MEASURED[group]) / best - 1)
    assert np.mean(slower) < 0.01 and np.mean(middle) > 0.3


def test_more_rows_predict_better() -> None:
    few = [np.abs(fitted(seed, 10)[0].seconds(SETUPS) / MEASURED - 1).mean() for seed in range(3)]
    many = [np.abs(fitted(seed, 150)[0].seconds(SETUPS) / MEASURED - 1).mean() for seed in range(1)]
    assert np.mean(many) < 0.6 * np.mean(few)


def test_the_order_of_rows_does_not_count() -> None:
    predictor, drawn = fitted(0)
    back = drawn[::-1]
    setups = [SETUPS[i] for i in back]
    other = fit_predictor(setups, MEASURED[back].tolist(), strategy_machine.tables())
    assert other.seconds(SETUPS) == pytest.approx(predictor.seconds(SETUPS), rel=1e-3)


def test_a_row_of_the_fit_is_met_within_its_noise() -> None:
    predictor, drawn = fitted(0)
    predicted = predictor.seconds([SETUPS[i] for i in drawn])
    assert np.abs(np.log(predicted / MEASURED[drawn])).max() < 0.05


def test_what_cannot_be_fitted_is_refused() -> None:
    tables, few = strategy_machine.tables(), SETUPS[: MINIMUM_ROWS - 1]
    with pytest.raises(PlacementError, match="not enough"):
        fit_predictor(few, [1.0] * len(few), tables)
    with pytest.raises(PlacementError, match="not enough"):
        fit_predictor(SETUPS[:20], [1.0] * 19, tables)
    for wrong in (0.0, -1.0, 1e-7, 1e7, float("nan"), float("inf")):
        with pytest.raises(PlacementError, match="not between"):
            fit_predictor(SETUPS[:20], [1.0] * 19 + [wrong], tables)


def test_times_that_nothing_explains_are_refused() -> None:
    """Equal strategies of equal models take times that differ by orders of magnitude."""
    setups = SETUPS[:600:30]
    noise = np.random.default_rng(5).permutation(np.geomspace(1e-3, 1e3, 2 * len(setups)))
    with pytest.raises(PlacementError, match="from any fit"):
        fit_predictor([*setups, *setups], noise.tolist(), strategy_machine.tables())


def test_a_machine_far_from_the_usual_ranges_is_fitted_too() -> None:
    slow, drawn = 1e4 * MEASURED, range(0, len(SETUPS), 20)
    setups, times = [SETUPS[i] for i in drawn], slow[drawn].tolist()
    predicted = fit_predictor(setups, times, strategy_machine.tables()).seconds(SETUPS)
    assert np.abs(predicted / slow - 1).mean() < 0.3


def test_least_squares_finds_a_curved_minimum() -> None:
    """Rosenbrock's valley."""
    found = minimize(lambda p: np.array([10 * (p[1] - p[0] ** 2), 1 - p[0]]), np.array([-1.2, 1.0]))
    assert found == pytest.approx([1, 1], abs=1e-3)
    there = minimize(lambda p: p - 3, np.array([3.0]))
    assert there == pytest.approx([3])
