"""Measured costs: rows of operations, links and collectives, each with a summary of its samples.

Rows are plain data. `from_data` takes untrusted JSON and raises ValueError if it is malformed.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

MOST_POINTS = 24  # of the compressed distribution of a summary
MOST_TEXT = 500  # characters of a name
MOST_DTYPES = 64
MOST_COUNT = 2**60
SAME_NODE, OTHER_NODE = "same node", "other node"  # kinds of links


@dataclasses.dataclass(frozen=True)
class SampleSummary:
    """Count, mean and variance of positive samples, exact over all merges, and quantiles.

    `points` are (value, number of samples), ascending: at most MOST_POINTS, so that quantiles of
    more samples are approximate.
    """

    count: int
    mean: float
    variance: float  # of the population
    points: tuple[tuple[float, int], ...]

    @classmethod
    def of(cls, samples: Sequence[float]) -> SampleSummary:
        """The summary of samples, of which there must be at least one."""
        points = _compressed([(value, 1) for value in sorted(samples)])
        return cls(len(samples), statistics.fmean(samples), statistics.pvariance(samples), points)

    def merged(self, other: SampleSummary) -> SampleSummary:
        """The summary of the samples of both (Chan, Golub, LeVeque 1979)."""
        count = self.count + other.count
        delta = other.mean - self.mean
        squares = self.variance * self.count + other.variance * other.count
        squares += delta * delta * self.count * other.count / count
        mean = self.mean + delta * other.count / count
        points = _compressed(sorted((*self.points, *other.points)))
        return SampleSummary(count, mean, squares / count, points)

    def quantile(self, share: float) -> float:
        """The quantile, for example 0.9; it is interpolated between the centres of the points."""
        total, before = sum(n for _, n in self.points), 0.0
        last_place, last_value = 0.0, self.points[0][0]
        for value, n in self.points:
            place = (before + n / 2) / total
            if place >= share:
                span = place - last_place
                part = (share - last_place) / span if span > 0 else 1.0
                return last_value + part * (value - last_value)
            before, last_place, last_value = before + n, place, value
        return last_value

    @property
    def median(self) -> float:
        """The median."""
        return self.quantile(0.5)

    def as_data(self) -> dict[str, Any]:
        """As JSON."""
        moments = {"count": self.count, "mean": self.mean, "variance": self.variance}
        return {**moments, "points": list(map(list, self.points))}

    @classmethod
    def from_data(cls, data: Any) -> SampleSummary:
        """The inverse of `as_data`."""
        fields, points = fields_of(data), list_of(fields_of(data).get("points"), MOST_POINTS)
        pairs = [list_of(point, 2) for point in points]
        if not pairs or any(len(pair) != 2 for pair in pairs):
            raise ValueError("a summary has no points")
        read = tuple((number_of(value, least=1e-12), count_of(n, 1)) for value, n in pairs)
        return cls(
            count_of(fields.get("count"), 1),
            number_of(fields.get("mean"), least=1e-12),
            number_of(fields.get("variance")),
            tuple(sorted(read)),
        )


class OperationKey(NamedTuple):
    """What a measured operation is: type, dtypes, who computes it, and its features.

    `dtypes` are those of its inputs and outputs, each once, sorted. `flops` and `nbytes` are of one
    call.
    """

    type: str  # the label of the node: `MatMul`, `Fused: Add, Relu`
    dtypes: tuple[str, ...]
    provider: str
    threads: int
    device: str  # the kind: cpu, gpu
    flops: int
    nbytes: int


class OperationCost(NamedTuple):
    """The measured seconds of calls of an operation, and the time of the last measurement."""

    key: OperationKey
    seconds: SampleSummary
    updated: int = 0  # seconds since 1970

    def as_data(self) -> dict[str, Any]:
        """As JSON."""
        key = {**self.key._asdict(), "dtypes": list(self.key.dtypes)}
        return {**key, "seconds": self.seconds.as_data(), "updated": self.updated}

    @classmethod
    def from_data(cls, data: Any) -> OperationCost:
        """The inverse of `as_data`."""
        fields = fields_of(data)
        key = OperationKey(
            text_of(fields.get("type")),
            tuple(map(text_of, list_of(fields.get("dtypes"), MOST_DTYPES))),
            text_of(fields.get("provider")),
            count_of(fields.get("threads"), 1),
            text_of(fields.get("device")),
            count_of(fields.get("flops")),
            count_of(fields.get("nbytes")),
        )
        summary = SampleSummary.from_data(fields.get("seconds"))
        return cls(key, summary, count_of(fields.get("updated")))

    def merged(self, other: OperationCost) -> OperationCost:
        """The row of the calls of both, whose keys are equal."""
        updated = max(self.updated, other.updated)
        return OperationCost(self.key, self.seconds.merged(other.seconds), updated)


class LinkCost(NamedTuple):
    """Latency in seconds and bytes/s, each way at once, between two ranks; `key` is the kind."""

    key: str  # SAME_NODE or OTHER_NODE
    latency_s: SampleSummary
    bytes_per_s: SampleSummary

    def as_data(self) -> dict[str, Any]:
        """As JSON."""
        summaries = {"latency_s": self.latency_s, "bytes_per_s": self.bytes_per_s}
        return {"kind": self.key, **{name: s.as_data() for name, s in summaries.items()}}

    @classmethod
    def from_data(cls, data: Any) -> LinkCost:
        """The inverse of `as_data`."""
        fields = fields_of(data)
        if fields.get("kind") not in (SAME_NODE, OTHER_NODE):
            raise ValueError("a link is of no known kind")
        summaries = (fields.get("latency_s"), fields.get("bytes_per_s"))
        return cls(fields["kind"], *map(SampleSummary.from_data, summaries))

    def merged(self, other: LinkCost) -> LinkCost:
        """The row of the measurements of both, whose kinds are equal."""
        latency = self.latency_s.merged(other.latency_s)
        return LinkCost(self.key, latency, self.bytes_per_s.merged(other.bytes_per_s))


class CollectiveKey(NamedTuple):
    """A collective operation of `ranks` ranks on `nodes` nodes, and its bytes on one rank."""

    type: str  # all_reduce
    nbytes: int
    ranks: int
    nodes: int


class CollectiveCost(NamedTuple):
    """The measured seconds of a collective."""

    key: CollectiveKey
    seconds: SampleSummary

    def as_data(self) -> dict[str, Any]:
        """As JSON."""
        return {**self.key._asdict(), "seconds": self.seconds.as_data()}

    @classmethod
    def from_data(cls, data: Any) -> CollectiveCost:
        """The inverse of `as_data`."""
        fields = fields_of(data)
        counts = [count_of(fields.get(name), 1) for name in ("nbytes", "ranks", "nodes")]
        key = CollectiveKey(text_of(fields.get("type")), *counts)
        return cls(key, SampleSummary.from_data(fields.get("seconds")))

    def merged(self, other: CollectiveCost) -> CollectiveCost:
        """The row of the measurements of both, whose keys are equal."""
        return CollectiveCost(self.key, self.seconds.merged(other.seconds))


def _compressed(points: Sequence[tuple[float, int]]) -> tuple[tuple[float, int], ...]:
    """At most MOST_POINTS points of about equal numbers of samples, from ascending points."""
    if len(points) <= MOST_POINTS:
        return tuple(points)
    total = sum(n for _, n in points)
    groups: dict[int, list[tuple[float, int]]] = {}
    before = 0
    for value, n in points:
        groups.setdefault(int((before + n / 2) / total * MOST_POINTS), []).append((value, n))
        before += n
    return tuple(map(_centre, groups.values()))


def _centre(points: Sequence[tuple[float, int]]) -> tuple[float, int]:
    count = sum(n for _, n in points)
    return sum(value * n for value, n in points) / count, count


def fields_of(data: Any) -> dict[str, Any]:
    """An object of JSON. Errors: ValueError."""
    if not isinstance(data, dict):
        raise ValueError("a row is no object")
    return data


def list_of(value: Any, most: int) -> list[Any]:
    """A list of at most `most` elements. Errors: ValueError."""
    if not isinstance(value, list) or len(value) > most:
        raise ValueError("a list is missing or too long")
    return value


def text_of(value: Any) -> str:
    """A text of at most MOST_TEXT characters. Errors: ValueError."""
    if not isinstance(value, str) or len(value) > MOST_TEXT:
        raise ValueError("a name is missing or too long")
    return value


def count_of(value: Any, least: int = 0) -> int:
    """An integer from `least` to MOST_COUNT. Errors: ValueError."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MOST_COUNT:
        raise ValueError("a count is missing or out of range")
    return value


def number_of(value: Any, least: float = 0.0) -> float:
    """A finite number from `least` on. Errors: ValueError."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not least <= value < 1e30 or not math.isfinite(value):
        raise ValueError("a number is missing or out of range")
    return float(value)
