"""Operation costs: predicted seconds of operations from rows that were measured on a machine.

An operation with a measured row has the time of this row. Others have that of a model of the
nearest kind of rows: seconds = a + b FLOPs + c bytes with non-negative coefficients, fitted by
least squares of relative errors, and corrected by the errors of the rows with similar features.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from hpcflow.graph.static_shape import Spec
from hpcflow.plan.cost.cost_model import BYTES, FLOPS, KERNEL_START_S, predicted_seconds
from hpcflow.plan.cost.operation_features import OperationFeatures, operation_features
from hpcflow.plan.ir.program import Node
from hpcflow.platform.measured_costs import OperationCost

MEASURED, SAME_TYPE, OTHER_TYPES, CONSTANTS = "measured", "same type", "other types", "constants"
LOW, HIGH = 0.1, 0.9  # quantiles of `Estimate`
FITTED_ROWS = 4  # rows of distinct features from which on three coefficients are fitted
LEAST_SPREAD = 0.05  # of a model: the logarithm of high / median
SCALED_SPREAD, CONSTANTS_SPREAD = math.log(3), math.log(10)
NEAR = 8.0  # squared distance of log features: a row of 4 times the FLOPs and bytes has 3.8
NO_CORRECTION = 0.1  # weight of the model itself beside the rows with similar features


class Estimate(NamedTuple):
    """Predicted seconds of one call, with the interval that holds 80 % of the calls.

    `source` says what it is from: MEASURED, SAME_TYPE, OTHER_TYPES or CONSTANTS. Of constants the
    interval is a factor of 10 each way.
    """

    median: float
    low: float
    high: float
    source: str


class OperationCosts:
    """Predicts seconds of operations from measured rows; pure: the same rows, the same results.

    >>> costs = OperationCosts(profile.operations)
    >>> costs.seconds(node, cost_input_specs(node, part), threads=4).median

    Ranks may have different rows. So what has to be equal on all ranks, such as a plan, may use it
    only with rows that are equal on all ranks.
    """

    def __init__(self, rows: Iterable[OperationCost]) -> None:
        self.rows = tuple(rows)
        self._by_type: dict[tuple[str, str], list[OperationCost]] = {}
        self._measured: dict[tuple[OperationFeatures, str, int], list[OperationCost]] = {}
        for row in self.rows:
            key = row.key
            self._by_type.setdefault((key.device, key.type), []).append(row)
            self._measured.setdefault((_features(row), key.device, key.threads), []).append(row)
        self._shortest: dict[str, float] = {}  # by device: the time of the fastest kernel
        for row in self.rows:
            shortest = self._shortest.get(row.key.device, math.inf)
            self._shortest[row.key.device] = min(shortest, row.seconds.median)
        self._models: dict[tuple[_Operation, str], tuple[_Model | None, str]] = {}

    def seconds(
        self, node: Node, inputs: Sequence[Spec], threads: int, provider: str = ""
    ) -> Estimate:
        """The seconds of one call of `node` in a rank of `threads` threads.

        `inputs` are the specs of its inputs as of `cost_input_specs`: that of a handle is the spec
        of its variable. `node` is as it runs: after fusion a loop has a time, not its operations.
        `provider` is that of the kernel that runs it; "": any. A node without work takes 0 s.
        """
        if node.row.work == "nothing":
            return Estimate(0.0, 0.0, 0.0, CONSTANTS)
        features = operation_features(node, inputs)
        if features is None:
            return _interval(predicted_seconds(node, inputs), CONSTANTS_SPREAD, CONSTANTS)
        return self.seconds_of(features, node.kind or "cpu", threads, provider)

    def seconds_of(
        self, features: OperationFeatures, device: str, threads: int, provider: str = ""
    ) -> Estimate:
        """The same for an operation of these features on a kind of device, `cpu` or `gpu`."""
        rows = self._measured.get((features, device, threads), ())
        rows = [row for row in rows if provider in ("", row.key.provider)]
        if rows:
            seconds = max(rows, key=lambda row: row.seconds.count).seconds
            return Estimate(seconds.median, seconds.quantile(LOW), seconds.quantile(HIGH), MEASURED)
        operation = _Operation(features.type, features.dtypes, device, threads)
        if (operation, provider) not in self._models:
            self._models[operation, provider] = self._model(operation, provider, None)
        return _modelled(features, *self._models[operation, provider])

    def left_out(self, row: OperationCost) -> Estimate:
        """The estimate for a row from the rows of other features: how good the model is for it."""
        key = row.key
        operation = _Operation(key.type, key.dtypes, key.device, key.threads)
        features = _features(row)
        return _modelled(features, *self._model(operation, key.provider, features))

    def _model(
        self, operation: _Operation, provider: str, without: OperationFeatures | None
    ) -> tuple[_Model | None, str]:
        """The model for an operation, without rows of some features, and the source of its rows."""
        threads = operation.threads

        def distance(row: OperationCost) -> float:
            return abs(math.log(row.key.threads / threads))

        for source, candidates in self._candidates(operation):
            rows = [row for row in candidates if _features(row) != without]
            if rows:
                nearest = min(map(distance, rows))
                rows = [row for row in rows if distance(row) <= nearest]
                shortest = self._shortest[operation.device]
                return _Model(rows, operation, provider, shortest), source
        return None, CONSTANTS

    def _candidates(self, operation: _Operation) -> Iterator[tuple[str, Sequence[OperationCost]]]:
        """The nearest kind of rows first; fused loops of other operations are near to a loop."""
        yield SAME_TYPE, self._by_type.get((operation.device, operation.type), [])
        family = f"{operation.type.partition(':')[0]}:"
        on_device = [row for row in self.rows if row.key.device == operation.device]
        yield OTHER_TYPES, [row for row in on_device if row.key.type.startswith(family)]
        yield OTHER_TYPES, on_device


class _Operation(NamedTuple):
    """What a model is for: operations of any size."""

    type: str
    dtypes: tuple[str, ...]
    device: str
    threads: int


class _Model:
    """The model of the time of some rows; no operation takes less than `shortest` seconds."""

    def __init__(
        self, rows: Sequence[OperationCost], operation: _Operation, provider: str, shortest: float
    ) -> None:
        self._shortest = shortest
        self._logs = np.array([_log_features(_features(row)) for row in rows])
        seconds = np.array([row.seconds.median for row in rows])
        columns = np.array([[1.0, row.key.flops, row.key.nbytes] for row in rows])
        self._coefficients: np.ndarray | None = None
        self._scale = 1.0
        if len({(row.key.flops, row.key.nbytes) for row in rows}) >= FITTED_ROWS:
            self._coefficients = _non_negative_least_squares(columns / seconds[:, None])
        else:
            ratios = [
                math.log(row.seconds.median / _constant_seconds(_features(row))) for row in rows
            ]
            self._scale = math.exp(sum(ratios) / len(ratios))
        base = np.array([self._base(_features(row)) for row in rows])
        self._errors = np.log(seconds / base)
        spread = float(np.quantile(np.abs(self._errors), HIGH))
        least = LEAST_SPREAD if self._coefficients is not None else SCALED_SPREAD
        self._spread = max(spread, least)
        unlike = [
            (row.key.dtypes != operation.dtypes) + (provider not in ("", row.key.provider))
            for row in rows
        ]
        self._likeness = np.exp(-np.array(unlike, float))

    def estimate(self, features: OperationFeatures, source: str) -> Estimate:
        """The estimate of an operation."""
        distances = np.sum((self._logs - _log_features(features)) ** 2, axis=1)
        weights = self._likeness * np.exp(-distances / NEAR)
        correction = float(weights @ self._errors / (weights.sum() + NO_CORRECTION))
        return _interval(self._base(features) * math.exp(correction), self._spread, source)

    def _base(self, features: OperationFeatures) -> float:
        if self._coefficients is None:
            return self._scale * _constant_seconds(features)
        terms = (1.0, features.flops, features.nbytes)
        return max(self._shortest, float(self._coefficients @ terms))


def _non_negative_least_squares(columns: np.ndarray) -> np.ndarray:
    """The x >= 0 that minimizes |columns x - 1|; exact, by trying each set of non-zero entries."""
    scale = np.maximum(np.linalg.norm(columns, axis=0), 1e-300)
    scaled = columns / scale
    gram, sums = scaled.T @ scaled, scaled.sum(axis=0)
    best, least = np.zeros(3), math.inf
    for number in (1, 2, 3):
        for kept in map(list, combinations(range(3), number)):
            x = np.linalg.lstsq(gram[np.ix_(kept, kept)], sums[kept], rcond=None)[0]
            error = float(np.sum((scaled[:, kept] @ x - 1.0) ** 2))
            if x.min() >= 0.0 and error < least:
                best, least = np.zeros(3), error
                best[kept] = x
    return best / scale


def _features(row: OperationCost) -> OperationFeatures:
    key = row.key
    return OperationFeatures(key.type, key.dtypes, key.flops, key.nbytes)


def _log_features(features: OperationFeatures) -> tuple[float, float]:
    return math.log1p(features.flops), math.log1p(features.nbytes)


def _constant_seconds(features: OperationFeatures) -> float:
    return KERNEL_START_S + max(features.flops / FLOPS, features.nbytes / BYTES)


def _modelled(features: OperationFeatures, model: _Model | None, source: str) -> Estimate:
    if model is None:
        return _interval(_constant_seconds(features), CONSTANTS_SPREAD, CONSTANTS)
    return model.estimate(features, source)


def _interval(median: float, spread: float, source: str) -> Estimate:
    factor = math.exp(spread)
    return Estimate(median, median / factor, median * factor, source)
