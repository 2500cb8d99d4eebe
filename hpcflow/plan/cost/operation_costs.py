"""Operation costs: predicted seconds of operations from rows that were measured on a machine.

An operation with a measured row has the time of this row. Others have that of a model of the
nearest kind of rows: seconds = a + b FLOPs + c bytes with non-negative coefficients, fitted by
least squares of relative errors, and corrected by the errors of the rows with similar features.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any, NamedTuple

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
        self._tables: dict[tuple[str, str], _Table | None] = {}  # by device, and type or family
        self._models: dict[tuple[str, str, int], _Model] = {}

    def seconds(
        self, node: Node, inputs: Sequence[Spec], threads: int, provider: str = ""
    ) -> Estimate:
        """The seconds of one call of `node` in a rank of `threads` threads.

        `inputs` are the specs of its inputs as of `cost_input_specs`: that of a handle is the spec
        of its variable. `node` is as it runs: after fusion a loop has a time, not its operations.
        `provider` is that of the kernel that runs it; "": any. A node without work takes 0 s.
        Messages and collectives have no kernels: their times depend on links, not on this.
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
        return self._modelled(features, device, threads, provider)

    def left_out(self, row: OperationCost) -> Estimate:
        """The estimate for a row from the rows of other features: how good the model is for it."""
        key = row.key
        return self._modelled(_features(row), key.device, key.threads, key.provider, True)

    def _modelled(
        self,
        features: OperationFeatures,
        device: str,
        threads: int,
        provider: str,
        leaves_out: bool = False,
    ) -> Estimate:
        """The estimate of the nearest kind of rows; `leaves_out` rows of the same features."""
        family = f"{features.type.partition(':')[0]}:"  # fused loops are near to each other
        kinds = ((SAME_TYPE, features.type), (OTHER_TYPES, family), (OTHER_TYPES, ""))
        for source, kind in kinds:
            table = self._table(device, kind)
            if table is None:
                continue
            if leaves_out:
                kept = table.others(features)
                if not kept.any():
                    continue
                model = _Model(table.selected(table.nearest(threads, kept)))
            else:
                if (device, kind, threads) not in self._models:
                    everything = np.ones(len(table.seconds), bool)
                    rows = table.selected(table.nearest(threads, everything))
                    self._models[device, kind, threads] = _Model(rows)
                model = self._models[device, kind, threads]
            return model.estimate(features, provider, self._shortest(device), source)
        return _interval(_constant_seconds(features), CONSTANTS_SPREAD, CONSTANTS)

    def _table(self, device: str, kind: str) -> _Table | None:
        """The rows of a type, of a family (`Fused:`), or of all types (""); None without rows."""
        if (device, kind) not in self._tables:
            rows = self._by_type.get((device, kind), [])
            if not kind or kind.endswith(":"):
                on_device = (row for row in self.rows if row.key.device == device)
                rows = [row for row in on_device if row.key.type.startswith(kind)]
            self._tables[device, kind] = _Table.of(rows) if rows else None
        return self._tables[device, kind]

    def _shortest(self, device: str) -> float:
        """The time of the fastest kernel: no operation takes less."""
        table = self._table(device, "")
        return float(table.seconds.min()) if table is not None else 0.0


@dataclasses.dataclass(frozen=True)
class _Table:
    """Rows as arrays; equal texts have equal numbers, by `names`."""

    names: dict[Any, int]
    sizes: np.ndarray  # FLOPs, bytes
    pairs: np.ndarray  # numbers of equal sizes
    seconds: np.ndarray  # medians
    threads: np.ndarray
    types: np.ndarray
    dtypes: np.ndarray
    providers: np.ndarray

    @classmethod
    def of(cls, rows: Sequence[OperationCost]) -> _Table:
        names: dict[Any, int] = {}

        def numbers(values: Iterable[Any]) -> np.ndarray:
            return np.array([names.setdefault(value, len(names)) for value in values])

        keys = [row.key for row in rows]
        sizes = [(key.flops, key.nbytes) for key in keys]
        return cls(
            names,
            np.array(sizes, float),
            numbers(sizes),
            np.array([row.seconds.median for row in rows]),
            np.array([key.threads for key in keys], float),
            numbers(key.type for key in keys),
            numbers(key.dtypes for key in keys),
            numbers(key.provider for key in keys),
        )

    def number(self, name: Any) -> int:
        """The number of a name, -1 for one that no row has."""
        return self.names.get(name, -1)

    def selected(self, kept: np.ndarray) -> _Table:
        arrays = [getattr(self, field.name)[kept] for field in dataclasses.fields(self)[1:]]
        return _Table(self.names, *arrays)

    def others(self, features: OperationFeatures) -> np.ndarray:
        """Which rows have other features."""
        same = self.pairs == self.number((features.flops, features.nbytes))
        same &= self.types == self.number(features.type)
        return ~(same & (self.dtypes == self.number(features.dtypes)))

    def nearest(self, threads: int, kept: np.ndarray) -> np.ndarray:
        """Which of the kept rows have the number of threads that is nearest to `threads`."""
        distances = np.abs(np.log(self.threads / threads))
        return kept & (distances <= distances[kept].min())


class _Model:
    """The model of the time of some rows."""

    def __init__(self, rows: _Table) -> None:
        self._rows = rows
        self._coefficients: np.ndarray | None = None
        self._scale = 1.0
        constants = KERNEL_START_S + np.max(rows.sizes / (FLOPS, BYTES), axis=1)
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
        least = LEAST_SPREAD if self._coefficients is not None else SCALED_SPREAD
        self._spread = max(spread, least)

    def estimate(
        self, features: OperationFeatures, provider: str, shortest: float, source: str
    ) -> Estimate:
        """The estimate of an operation; it takes at least `shortest` seconds."""
        size = np.array([features.flops, features.nbytes], float)
        rows = self._rows
        unlike = (rows.dtypes != rows.number(features.dtypes)).astype(float)
        if provider:
            unlike += rows.providers != rows.number(provider)
        distances = np.sum((self._logs - np.log1p(size)) ** 2, axis=1) / NEAR + unlike
        weights = np.exp(-distances)
        correction = float(weights @ self._errors / (weights.sum() + NO_CORRECTION))
        if self._coefficients is None:
            base = self._scale * _constant_seconds(features)
        else:
            base = float(self._coefficients[0] + self._coefficients[1:] @ size)
        median = max(shortest, max(shortest, base) * math.exp(correction))
        return _interval(median, self._spread, source)


def _non_negative_least_squares(columns: np.ndarray) -> np.ndarray:
    """The x >= 0 that minimizes |columns x - 1|; exact, by trying each set of non-zero entries."""
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


def _features(row: OperationCost) -> OperationFeatures:
    key = row.key
    return OperationFeatures(key.type, key.dtypes, key.flops, key.nbytes)


def _constant_seconds(features: OperationFeatures) -> float:
    return KERNEL_START_S + max(features.flops / FLOPS, features.nbytes / BYTES)


def _interval(median: float, spread: float, source: str) -> Estimate:
    factor = math.exp(spread)
    return Estimate(median, median / factor, median * factor, source)
