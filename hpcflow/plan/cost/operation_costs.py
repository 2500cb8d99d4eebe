"""Operation costs: predicted seconds of operations from rows that were measured on a machine.

A row is an operation of a machine profile with its times. An operation with a row has the time of
this row. Others have that of a model (`operation_time_models.py`) of the nearest kind of rows: of
the same type, of other fused loops, or of all operations.

A row that was measured only with another number of threads is scaled by `thread_ratios.py`. So the
models for all numbers of threads that the rows compare are fitted to the same operations.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence

from hpcflow.graph.static_shape import Spec
from hpcflow.plan.cost.cost_model import predicted_seconds, roofline_seconds
from hpcflow.plan.cost.operation_features import OperationFeatures, operation_features
from hpcflow.plan.cost.operation_time_models import (
    CONSTANTS,
    CONSTANTS_SPREAD,
    HIGH,
    LOW,
    MEASURED,
    OTHER_THREADS,
    OTHER_TYPES,
    SAME_TYPE,
    Estimate,
    OperationTable,
    OperationTimeModel,
    estimate_of,
)
from hpcflow.plan.cost.thread_ratios import ThreadRatios, is_of_kind, kinds_of
from hpcflow.plan.ir.program import Node
from hpcflow.platform.measured_costs import OperationCost


class OperationCosts:
    """Predicts seconds of operations from measured rows; the same rows give the same results.

    >>> costs = OperationCosts(profile.operations)
    >>> costs.seconds(node, cost_input_specs(node, part), threads=4).median

    Ranks may have different rows. What must be equal on all ranks, such as a plan, may use it only
    with rows that are equal on all ranks.
    """

    def __init__(self, rows: Iterable[OperationCost]) -> None:
        self.rows = tuple(rows)
        self._measured: dict[tuple[OperationFeatures, str], list[OperationCost]] = {}
        for row in self.rows:
            self._measured.setdefault((_features(row), row.key.device), []).append(row)
        self._ratios = ThreadRatios(self.rows)
        self._shortest: dict[str, float] = {}  # of a device: the time of its fastest kernel
        for row in self.rows:
            device, median = row.key.device, row.seconds.median
            self._shortest[device] = min(median, self._shortest.get(device, median))
        # by device, type or family, and threads
        self._tables: dict[tuple[str, str, int], OperationTable | None] = {}
        self._models: dict[tuple[str, str, int], OperationTimeModel] = {}

    def seconds(
        self, node: Node, inputs: Sequence[Spec], threads: int, provider: str = ""
    ) -> Estimate:
        """The seconds of one call of `node` in a rank of `threads` threads.

        `inputs` are the specs of `cost_input_specs`. `node` is one after fusion: a fused loop has
        rows, its operations have none. `provider` is that of its kernel; "": any. A node without
        work takes 0 s. Messages and collectives have no kernels, so their times are not known here.
        """
        if node.row.work == "nothing":
            return Estimate(0.0, 0.0, 0.0, CONSTANTS)
        features = operation_features(node, inputs)
        if features is None:
            return estimate_of(predicted_seconds(node, inputs), CONSTANTS_SPREAD, CONSTANTS)
        return self.seconds_of(features, node.kind or "cpu", threads, provider)

    def seconds_of(
        self, features: OperationFeatures, device: str, threads: int, provider: str = ""
    ) -> Estimate:
        """The same for an operation of these features on a kind of device, `cpu` or `gpu`."""
        rows = self._measured.get((features, device), ())
        rows = self._of_threads(
            (row for row in rows if provider in ("", row.key.provider)), threads
        )
        if rows:
            return self._measured_estimate(rows, threads)
        return self._modelled(features, device, threads, provider)

    def _measured_estimate(self, rows: Sequence[OperationCost], threads: int) -> Estimate:
        """The estimate by rows of one operation, which are those of `_of_threads`."""
        row = max(rows, key=lambda row: row.seconds.count)
        seconds, old, device = row.seconds, row.key.threads, row.key.device
        low, high = seconds.quantile(LOW), seconds.quantile(HIGH)
        if old == threads:
            return Estimate(seconds.median, low, high, MEASURED)
        change = self._ratios.ratio(_features(row), device, old, threads)
        assert change is not None, "of rows with other threads only comparable ones are used"
        ratio, factor, least = change.ratio, math.exp(change.spread), self._shortest[device]
        return Estimate(
            max(least, seconds.median * ratio),
            max(least, low * ratio / factor),
            max(least, high * ratio * factor),
            OTHER_THREADS,
        )

    def _of_threads(self, rows: Iterable[OperationCost], threads: int) -> list[OperationCost]:
        """The rows of one operation from which its time with `threads` threads follows.

        They have this number of threads, else the nearest number that is comparable with it; [] if
        none is.
        """
        able = [
            row
            for row in rows
            if row.key.threads == threads
            or self._ratios.are_comparable(row.key.device, row.key.threads, threads)
        ]
        return _nearest(able, threads)

    def held_out(self, row: OperationCost) -> Estimate:
        """The estimate for a row by the rows of other features (leave-one-out cross-validation)."""
        key = row.key
        return self._modelled(_features(row), key.device, key.threads, key.provider, True)

    def _modelled(
        self,
        features: OperationFeatures,
        device: str,
        threads: int,
        provider: str,
        holds_out: bool = False,
    ) -> Estimate:
        """The estimate by a model of the nearest kind of rows; by the cost model without rows.

        `holds_out`: the model leaves out the rows with the same features.
        """
        sources = (SAME_TYPE, OTHER_TYPES, OTHER_TYPES)
        for source, kind in zip(sources, kinds_of(features.type), strict=True):
            table = self._table(device, kind, threads)
            if table is None:
                continue
            if holds_out:
                kept = table.others(features)
                if not kept.any():
                    continue
                model = OperationTimeModel(table.selected(kept))
            else:
                if (device, kind, threads) not in self._models:
                    self._models[device, kind, threads] = OperationTimeModel(table)
                model = self._models[device, kind, threads]
            return model.estimate(features, provider, self._shortest[device], source)
        seconds = roofline_seconds(features.flops, features.nbytes)
        return estimate_of(seconds, CONSTANTS_SPREAD, CONSTANTS)

    def _table(self, device: str, kind: str, threads: int) -> OperationTable | None:
        """The rows of a kind (`kinds_of`), scaled to so many threads; None without rows.

        If no row is comparable with this number, they are the rows of the nearest number, unscaled.
        """
        if (device, kind, threads) not in self._tables:
            groups = [
                rows
                for (features, on), rows in self._measured.items()
                if on == device and is_of_kind(features.type, kind)
            ]
            found = [
                (row, self._measured_estimate([row], threads).median)
                for group in groups
                for row in self._of_threads(group, threads)
            ]
            if not found:
                nearest = _nearest([row for group in groups for row in group], threads)
                found = [(row, row.seconds.median) for row in nearest]
            rows, seconds = [row for row, _ in found], [median for _, median in found]
            self._tables[device, kind, threads] = (
                OperationTable.of(rows, seconds) if found else None
            )
        return self._tables[device, kind, threads]


@functools.lru_cache(maxsize=4)
def operation_costs(rows: tuple[OperationCost, ...]) -> OperationCosts:
    """The costs by these rows; their models are fitted once for all predictions."""
    return OperationCosts(rows)


def _features(row: OperationCost) -> OperationFeatures:
    return OperationFeatures.of_key(row.key)


def _nearest(rows: Sequence[OperationCost], threads: int) -> list[OperationCost]:
    """The rows with the number of threads that is nearest; of equally near ones the smaller."""
    numbers = {row.key.threads for row in rows}
    own = min(numbers, key=lambda n: (abs(math.log(n / threads)), n), default=threads)
    return [row for row in rows if row.key.threads == own]
