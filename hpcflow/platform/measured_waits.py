"""Measured waits: how late a rank that waits for a message goes on, by the policy of its waiting.

`doctor/wait_benchmark.py` measures them, and `hpcflow predict` adds them to messages.

`from_data` takes untrusted JSON and raises ValueError if it is malformed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from hpcflow.platform import measured_costs
from hpcflow.platform.measured_costs import SampleSummary

OWN_CORE, SHARED_CORES = "own core", "shared cores"  # policies; `Backoff` in comm/ has them
TYPICAL_US = 2000  # a usual wait for a message within a step, which predictions assume


class WaitKey(NamedTuple):
    """A policy, and the microseconds after which the message was sent to the waiting rank."""

    policy: str  # OWN_CORE, SHARED_CORES
    waited_us: int


class WaitCost(NamedTuple):
    """Seconds from the send of a small message until the rank of its node that waits has it."""

    key: WaitKey
    seconds: SampleSummary

    def as_data(self) -> dict[str, Any]:
        """As JSON."""
        return {**self.key._asdict(), "seconds": self.seconds.as_data()}

    @classmethod
    def from_data(cls, data: Any) -> WaitCost:
        """The inverse of `as_data`."""
        fields = measured_costs.fields_of(data)
        if fields.get("policy") not in (OWN_CORE, SHARED_CORES):
            raise ValueError("a wait has no known policy")
        key = WaitKey(fields["policy"], measured_costs.count_of(fields.get("waited_us"), 1))
        return cls(key, SampleSummary.from_data(fields.get("seconds")))

    def merged(self, other: WaitCost) -> WaitCost:
        """The row of the measurements of both, whose keys are equal."""
        return WaitCost(self.key, self.seconds.merged(other.seconds))


def typical_lateness(rows: Iterable[WaitCost], policy: str) -> SampleSummary | None:
    """Seconds by which a message within a step is late, by a policy; None if not measured."""
    found = {row.key: row.seconds for row in rows}
    return found.get(WaitKey(policy, TYPICAL_US))
