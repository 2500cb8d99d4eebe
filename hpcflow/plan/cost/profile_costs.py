"""Profile costs: measured operations of a profile.json, and the errors of their predicted times.

`profile.json` is written by `hpcflow.runtime.profile`; its content is untrusted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from hpcflow.plan.cost.operation_costs import OperationCosts
from hpcflow.plan.cost.operation_features import OperationFeatures
from hpcflow.plan.cost.operation_time_models import Estimate
from hpcflow.platform.measured_costs import OperationCost


class ProfiledOperation(NamedTuple):
    """An operation of the profile of one rank: its name in the graph, and its measured cost."""

    name: str
    cost: OperationCost

    def estimate(self, costs: OperationCosts) -> Estimate:
        """The predicted seconds of a call."""
        key = self.cost.key
        features = OperationFeatures.of_key(key)
        return costs.seconds_of(features, key.device, key.threads, key.provider)


def profiled_operations(profile: Mapping[str, Any], now: float = 0.0) -> list[ProfiledOperation]:
    """The operations of the profile of one rank that have kernels and known features.

    An operation that ran on several shapes is there once for each.
    `now` is the time of the measurement in seconds since 1970.
    Errors: ValueError if the profile is malformed or from a version without these rows.
    """
    threads, rows = profile.get("threads"), profile.get("ops")
    if not isinstance(rows, list):
        raise ValueError("it has no operations")
    operations = []
    for row in rows:
        if not isinstance(row, dict) or not isinstance(row.get("timings"), list):
            raise ValueError("its operations have no timings of calls")
        for timing in row["timings"]:
            if not isinstance(timing, dict) or not isinstance(row.get("name"), str):
                raise ValueError("an operation is malformed")
            data = {**timing, "type": row.get("title"), "provider": row.get("provider")}
            data |= {"threads": threads, "updated": int(now)}
            operations.append(ProfiledOperation(row["name"], OperationCost.from_data(data)))
    return operations


def log_ratio(predicted: float, measured: float) -> float:
    """The error of a prediction as |log(predicted / measured)|, for positive times."""
    return abs(math.log(predicted / measured))


def percent(log_ratio: float) -> float:
    """The error in percent: 100 for a time that is twice, or half, the measured one."""
    return 100 * (math.exp(log_ratio) - 1)
