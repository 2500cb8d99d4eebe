"""Thread ratios: how the time of an operation changes with the number of threads of its rank.

It follows from the operations that were measured with both numbers of threads. An operation has the
mean ratio of those with similar features.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from hpcflow.plan.cost.operation_features import OperationFeatures
from hpcflow.platform.measured_costs import OperationCost

NEAR = 8.0  # squared width of the kernel, in logarithms of FLOPs and bytes: 4 times both has 3.8
LEAST_COMMON = 8  # operations that were measured with both of two numbers of threads


class ThreadRatio(NamedTuple):
    """The relative time with another number of threads; `spread` is the deviation of its log."""

    ratio: float
    spread: float


class ThreadRatios:
    """The ratios by measured rows; pure: the same rows, the same ratios."""

    def __init__(self, rows: Iterable[OperationCost]) -> None:
        self._medians = _medians(rows)
        self._comparable: dict[tuple[str, int, int], bool] = {}
        self._pairs: dict[tuple[str, str, int, int], _Pairs | None] = {}

    def ratio(
        self, features: OperationFeatures, device: str, old: int, new: int
    ) -> ThreadRatio | None:
        """The time of an operation with `new` threads divided by that with `old` threads.

        It is that of operations of the same type, else of the same family (`kinds_of`), else of all
        operations. None if fewer than LEAST_COMMON operations were measured with both numbers.
        """
        if not self.are_comparable(device, old, new):
            return None
        for kind in kinds_of(features.type):
            key = device, kind, old, new
            if key not in self._pairs:
                self._pairs[key] = self._found(*key)
            pairs = self._pairs[key]
            if pairs is not None:
                return pairs.ratio(features)
        return None

    def are_comparable(self, device: str, old: int, new: int) -> bool:
        """Whether at least LEAST_COMMON operations of a device were measured with both numbers."""
        key = device, old, new
        if key not in self._comparable:
            both = (on == device and {old, new} <= seconds.keys()
                    for (_, on), seconds in self._medians.items())  # fmt: skip
            self._comparable[key] = sum(both) >= LEAST_COMMON
        return self._comparable[key]

    def others(self, threads: int) -> list[int]:
        """The other numbers of threads of a CPU that the rows compare with one, ascending."""
        numbers = {number for seconds in self._medians.values() for number in seconds}
        return [
            number
            for number in sorted(numbers - {threads})
            if self.are_comparable("cpu", threads, number)
        ]

    def _found(self, device: str, kind: str, old: int, new: int) -> _Pairs | None:
        """The operations of a kind on a device that were measured with both; None if none was."""
        names, logs = list[OperationFeatures](), list[float]()
        for (features, on), seconds in self._medians.items():
            if on == device and is_of_kind(features.type, kind) and {old, new} <= seconds.keys():
                names.append(features)
                logs.append(math.log(seconds[new] / seconds[old]))
        return _Pairs(names, logs) if names else None


class _Pairs:
    """Operations that were measured with both numbers, and the logarithms of their ratios."""

    def __init__(self, names: Sequence[OperationFeatures], logs: Sequence[float]) -> None:
        self._sizes = np.log1p([(one.flops, one.nbytes) for one in names])
        self._dtypes = [one.dtypes for one in names]
        self._logs = np.array(logs)

    def ratio(self, features: OperationFeatures) -> ThreadRatio:
        """The mean of the logarithms, by similarity (Nadaraya 1964, Watson 1964).

        Beyond the sizes of all rows it is that of the nearest row.
        """
        size = np.log1p([features.flops, features.nbytes])
        unlike = np.array([one != features.dtypes for one in self._dtypes], float)
        distances = np.sum((self._sizes - size) ** 2, axis=1) / NEAR + unlike
        weights = np.exp(distances.min() - distances)
        weights /= weights.sum()
        mean = float(weights @ self._logs)
        spread = math.sqrt(float(weights @ (self._logs - mean) ** 2))
        return ThreadRatio(math.exp(mean), spread)


def kinds_of(type_: str) -> tuple[str, str, str]:
    """The kinds of a type, the narrowest first: the type, its family (`Fused:`), all types ("")."""
    return type_, f"{type_.partition(':')[0]}:", ""


def is_of_kind(type_: str, kind: str) -> bool:
    """Whether a type is of a kind of `kinds_of`."""
    is_family = not kind or kind.endswith(":")
    return type_.startswith(kind) if is_family else type_ == kind


def _medians(
    rows: Iterable[OperationCost],
) -> dict[tuple[OperationFeatures, str], dict[int, float]]:
    """The median seconds of operations on a device, by threads; of the provider of most calls."""
    best: dict[tuple[OperationFeatures, str], dict[int, OperationCost]] = {}
    for row in rows:
        key = row.key
        features = OperationFeatures.of_key(key)
        by = best.setdefault((features, key.device), {})
        if key.threads not in by or row.seconds.count > by[key.threads].seconds.count:
            by[key.threads] = row
    return {
        name: {threads: row.seconds.median for threads, row in by.items()}
        for name, by in best.items()
    }
