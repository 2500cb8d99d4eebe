"""Fit of the cost model of strategies to a few measured steps, and prediction of others.

The constants of the machine are common to all setups. Beside them, each shape that a device
computes has two deviations of its own, of its layer and of its vocabulary product: kernels differ
by shape in ways that no term describes. Maximum a posteriori: residuals are logarithms of time
ratios, constants have the ranges of strategy_constants, deviations are normal around 0 and
correlated between micro-batches of a shape (a Gaussian process: Rasmussen and Williams, 2006).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from hpcflow.errors import PlacementError
from hpcflow.placement.allreduce_tables import AllreduceTables
from hpcflow.placement.least_squares import minimize
from hpcflow.placement.parallel_strategy import TrainingSetup
from hpcflow.placement.strategy_constants import LOG_DEVIATIONS, LOG_MIDDLES, NAMES
from hpcflow.placement.strategy_costs import SetupColumns, columns, step_seconds
from hpcflow.platform.quantity_text import format_excess

Array = np.ndarray

MINIMUM_ROWS = 8
RESIDUAL = 0.02  # standard deviation of what the terms leave out of a step, relative
OWN, SHARED = 0.12, 0.08  # of a layer: own to a micro-batch; shared with near micro-batches
LENGTH = 1.5  # factors of two between micro-batches over which the shared part decays
LAST = 0.1  # of the vocabulary product
LEAST_S, LARGEST_S = 1e-6, 1e6  # of a measured step
LARGEST_MISS = 0.25  # mean of the rows of a fit; more is no fit


@dataclasses.dataclass(frozen=True)
class StrategyPredictor:
    """Predicts seconds of steps; made by `fit_predictor`."""

    tables: AllreduceTables
    constants: dict[str, float]
    shapes: Array  # of the fit, a row each
    layer_weights: Array
    last_deviations: Array

    def seconds(self, setups: Sequence[TrainingSetup]) -> Array:
        """Predicted seconds of a step of each setup.

        Errors: PlacementError if the tables lack a number of ranks.
        """
        x = columns(setups, self.tables)
        shapes = _shapes(x)
        layer = _covariance(shapes, self.shapes) @ self.layer_weights
        last = _same(shapes, self.shapes) @ self.last_deviations
        return step_seconds(x, self.constants, np.exp(layer), np.exp(last))


def fit_predictor(
    setups: Sequence[TrainingSetup], seconds: Sequence[float], tables: AllreduceTables
) -> StrategyPredictor:
    """The predictor that fits measured seconds of steps.

    Errors: PlacementError for fewer than MINIMUM_ROWS rows, a time that is none of a step, or times
    that no constants of a machine explain.
    """
    measured = np.asarray(seconds, float)
    if len(setups) < MINIMUM_ROWS or len(measured) != len(setups):
        raise PlacementError(
            f"{len(setups)} setups and {len(measured)} times are not enough for a fit",
            hint=f"measure at least {MINIMUM_ROWS} setups",
        )
    if not np.all((measured > LEAST_S) & (measured < LARGEST_S)):
        raise PlacementError(
            f"a measured time is not between {LEAST_S:g} and {LARGEST_S:g} s",
            hint="give seconds of a step; remove or repeat its row",
        )
    x = columns(setups, tables)
    shapes, which = np.unique(_shapes(x), axis=0, return_inverse=True)
    covariance = _covariance(shapes, shapes)
    root = np.linalg.cholesky(covariance)
    count, logs = len(NAMES), np.log(measured)

    def parts(point: Array) -> tuple[dict[str, float], Array, Array]:
        """Constants, and deviations of layers and vocabulary products of each shape."""
        constants = np.exp(LOG_MIDDLES + LOG_DEVIATIONS * point[:count])
        layer, last = np.split(point[count:], 2)
        return dict(zip(NAMES, constants.tolist(), strict=True)), root @ layer, LAST * last

    def residuals(point: Array) -> Array:
        constants, layer, last = parts(point)
        factors = np.exp(layer[which.ravel()]), np.exp(last[which.ravel()])
        misses = np.log(step_seconds(x, constants, *factors)) - logs
        return np.concatenate([misses / RESIDUAL, point])

    start = np.zeros(count + 2 * len(shapes))
    with np.errstate(over="ignore", invalid="ignore"):  # a step that leads to infinity is not taken
        point = minimize(residuals, start)
    _check_fit(RESIDUAL * residuals(point)[: len(logs)])
    constants, layer, last = parts(point)
    return StrategyPredictor(tables, constants, shapes, np.linalg.solve(covariance, layer), last)


def _check_fit(misses: Array) -> None:
    """Errors: PlacementError if logarithms of time ratios are large on average."""
    typical = float(np.mean(np.abs(misses)))
    if not typical < LARGEST_MISS:
        raise PlacementError(
            f"measured times differ by {format_excess(np.expm1(min(typical, 99.0)))} from any fit",
            hint="check times, sizes of the models and degrees of the rows",
        )


def _shapes(x: SetupColumns) -> Array:
    """What a device computes for a micro-batch: rows of log2, the micro-batch last."""
    sizes = [x.hidden, x.heads, x.sequence, x.vocabulary, x.precision_bytes, x.tensor]
    return np.log2(np.stack([*sizes, x.micro_batch], axis=1))


def _same(rows: Array, others: Array) -> Array:
    """1.0 where a row equals another."""
    return np.all(rows[:, None] == others, axis=2).astype(float)


def _covariance(rows: Array, others: Array) -> Array:
    """Of the logarithms of the deviations of layers."""
    alike = np.all(rows[:, None, :-1] == others[:, :-1], axis=2)
    apart = (rows[:, None, -1] - others[:, -1]) / LENGTH
    return OWN**2 * _same(rows, others) + SHARED**2 * alike * np.exp(-0.5 * apart**2)
