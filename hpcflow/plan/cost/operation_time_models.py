"""Operation time models: seconds of operations as functions of FLOPs and bytes, fitted to rows.

seconds = a + b FLOPs + c bytes, with non-negative coefficients by least squares of relative errors.
It is corrected by the mean error of the rows with similar FLOPs and bytes (kernel regression:
Nadaraya, Theory of Probability and its Applications 9(1), 1964).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from hpcflow.plan.cost.cost_model import roofline_seconds
from hpcflow.plan.cost.operation_features import OperationFeatures
from hpcflow.plan.cost.thread_ratios import NEAR
from hpcflow.platform.measured_costs import OperationCost

MEASURED, OTHER_THREADS = "measured", "other threads"
SAME_TYPE, OTHER_TYPES, CONSTANTS = "same type", "other types", "constants"
LOW, HIGH = 0.1, 0.9  # quantiles of `Estimate`
FITTED_ROWS = 4  # rows of distinct sizes from which on three coefficients are fitted
# Least spreads of intervals, the logarithm of high / median: of fitted coefficients, of a multiple
# of the cost model's constants, and of these constants.
FITTED_SPREAD, SCALED_SPREAD, CONSTANTS_SPREAD = 0.05, math.log(3), math.log(10)
NO_CORRECTION = 0.1  # weight of an error of 0, beside those of the rows with similar sizes


class Estimate(NamedTuple):
    """Predicted seconds of one call, with an interval; `source` says where they are from.

    MEASURED: a row; 80 % of its calls are in the interval. OTHER_THREADS: the same, scaled to
    another number of threads; the interval is wider by the spread of the ratios. SAME_TYPE,
    OTHER_TYPES: a model; the interval is a factor either way that 90 % of the model's rows keep.
    CONSTANTS: the cost model; a factor of 10 either way.
    """

    median: float
    low: float
    high: float
    source: str


def estimate_of(median: float, spread: float, source: str) -> Estimate:
    """An estimate with an interval of a factor exp(spread) either way."""
    factor = math.exp(spread)
    return Estimate(median, median / factor, median * factor, source)


@dataclasses.dataclass(frozen=True)
class OperationTable:
    """Rows as arrays with one entry a row.

    `types`, `dtypes`, `providers` and `pairs` (FLOPs and bytes) are numbers, which `names` gives to
    equal values.
    """

    names: dict[Any, int]
    sizes: np.ndarray  # (rows, 2): FLOPs, bytes
    pairs: np.ndarray
    seconds: np.ndarray  # medians
    types: np.ndarray
    dtypes: np.ndarray
    providers: np.ndarray

    @classmethod
    def of(cls, rows: Sequence[OperationCost], seconds: Sequence[float]) -> OperationTable:
        """The table of rows, with other seconds than theirs."""
        names: dict[Any, int] = {}

        def numbers(values: Iterable[Any]) -> np.ndarray:
            return np.array([names.setdefault(value, len(names)) for value in values])

        keys = [row.key for row in rows]
        sizes = [(key.flops, key.nbytes) for key in keys]
        return cls(
            names,
            np.array(sizes, float),
            numbers(sizes),
            np.array(seconds),
            numbers(key.type for key in keys),
            numbers(key.dtypes for key in keys),
            numbers(key.provider for key in keys),
        )

    def number(self, name: Any) -> int:
        """The number of a value, -1 for one that no row has."""
        return self.names.get(name, -1)

    def selected(self, kept: np.ndarray) -> OperationTable:
        """The rows where the mask `kept` is true."""
        arrays = [getattr(self, field.name)[kept] for field in dataclasses.fields(self)[1:]]
        return OperationTable(self.names, *arrays)

    def others(self, features: OperationFeatures) -> np.ndarray:
        """Which rows have other features."""
        same = self.pairs == self.number((features.flops, features.nbytes))
        same &= self.types == self.number(features.type)
        return ~(same & (self.dtypes == self.number(features.dtypes)))


class OperationTimeModel:
    """A model of the times of some rows.

    With rows of `FITTED_ROWS` or more sizes it has three coefficients, else it is a multiple of the
    cost model.
    """

    def __init__(self, rows: OperationTable) -> None:
        self._rows = rows
        self._coefficients: np.ndarray | None = None
        self._scale = 1.0
        constants = np.array([roofline_seconds(*size) for size in rows.sizes.tolist()])
        if len(np.unique(rows.pairs)) >= FITTED_ROWS:
            columns = np.column_stack((np.ones(len(rows.seconds)), rows.sizes))
            self._coefficients = _non_negative_least_squares(columns / rows.seconds[:, None])
            base = np.maximum(columns @ self._coefficients, rows.seconds.min())
        else:
            self._scale = math.exp(np.mean(np.log(rows.seconds / constants)))
            base = self._scale * constants
        self._errors = np.log(rows.seconds / base)
        self._logs = np.log1p(rows.sizes)
        spread = float(np.quantile(np.abs(self._errors), HIGH))
        least = FITTED_SPREAD if self._coefficients is not None else SCALED_SPREAD
        self._spread = max(spread, least)

    def estimate(
        self, features: OperationFeatures, provider: str, shortest: float, source: str
    ) -> Estimate:
        """The estimate of an operation; the median is at least `shortest` seconds."""
        size = np.array([features.flops, features.nbytes], float)
        rows = self._rows
        unlike = (rows.dtypes != rows.number(features.dtypes)).astype(float)
        if provider:
            unlike += rows.providers != rows.number(provider)
        distances = np.sum((self._logs - np.log1p(size)) ** 2, axis=1) / NEAR + unlike
        weights = np.exp(-distances)
        correction = float(weights @ self._errors / (weights.sum() + NO_CORRECTION))
        if self._coefficients is None:
            base = self._scale * roofline_seconds(features.flops, features.nbytes)
        else:
            base = float(self._coefficients[0] + self._coefficients[1:] @ size)
        median = max(shortest, max(shortest, base) * math.exp(correction))
        return estimate_of(median, self._spread, source)


def _non_negative_least_squares(columns: np.ndarray) -> np.ndarray:
    """The x >= 0 that minimizes |columns x - 1|, of 3 columns.

    Exact: it tries each set of non-zero entries, the smaller ones first.
    """
    scale = np.maximum(np.linalg.norm(columns, axis=0), 1e-300)
    scaled = columns / scale
    gram, sums = scaled.T @ scaled, scaled.sum(axis=0)
    best, least = np.zeros(3), math.inf
    for number in (1, 2, 3):
        for kept in map(list, combinations(range(3), number)):
            x = np.linalg.lstsq(gram[np.ix_(kept, kept)], sums[kept], rcond=None)[0]
            error = float(x @ gram[np.ix_(kept, kept)] @ x - 2.0 * sums[kept] @ x)
            if x.min() >= 0.0 and error < least:
                best, least = np.zeros(3), error
                best[kept] = x
    return best / scale
