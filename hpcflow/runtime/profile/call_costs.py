"""Costs of the calls of a profiled operation: features and times of single calls.

They are the field `timings` of the rows of `ops` in profile.json. At the end of the job they are
added to the profile of the machine.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from hpcflow.plan.cost.op_flops_and_bytes import cost_input_specs
from hpcflow.plan.cost.operation_features import operation_features
from hpcflow.plan.cost.profile_costs import profiled_operations
from hpcflow.platform.machine_profile import MachineProfile
from hpcflow.platform.measured_costs import SampleSummary
from hpcflow.platform.rank_logging import logger
from hpcflow.runtime.dynamic_types import Json
from hpcflow.runtime.step.step_instance import CompiledPartition


def node_timings(compiled: CompiledPartition, row: Json, times: Sequence[int]) -> list[Json]:
    """Device, dtypes, FLOPs, bytes and times of the calls of an operation; `row` is its row.

    `times` are the nanoseconds of its statements, in order. [] for what has no kernel or no known
    features, and if the statements cannot be divided into calls.
    """
    node, calls = compiled.part.nodes.get(row["name"]), row["calls"]
    if node is None or not row["provider"] or not calls or len(times) % calls:
        return []
    features = operation_features(node, cost_input_specs(node, compiled.part))
    if features is None:
        return []
    each = len(times) // calls
    seconds = [max(1, sum(times[i : i + each])) / 1e9 for i in range(0, len(times), each)]
    timing: Json = {"device": node.kind, "dtypes": list(features.dtypes)}
    timing |= {"flops": features.flops, "nbytes": features.nbytes}
    return [{**timing, "seconds": SampleSummary.of(seconds).as_data()}]


def joined(a: list[Json], b: list[Json]) -> list[Json]:
    """The timings of two versions of an operation, for other shapes; equal features are joined."""
    timings: dict[str, Json] = {}
    for timing in (*a, *b):
        same = timings.setdefault(repr({**timing, "seconds": None}), timing)
        if same is not timing:
            both = [SampleSummary.from_data(each["seconds"]) for each in (same, timing)]
            same["seconds"] = both[0].merged(both[1]).as_data()
    return list(timings.values())


def keep(profile: Json, folder: str) -> str:
    """Add the operations of a rank's profile to the profile of this machine.

    `folder` is the setting `cost_cache`. Return a line about it; "" if nothing was added. If the
    file cannot be written, a warning tells it.
    """
    from hpcflow.kernels.machine_facts import own_profile_file

    try:
        rows = tuple(operation.cost for operation in profiled_operations(profile, time.time()))
    except ValueError as error:
        logger.warning("measured costs are not kept: %s", error)
        return ""
    file = own_profile_file(folder) if rows else None
    if file is None or not file.add(MachineProfile(operations=rows)):
        return ""
    return f"measured costs of {len(rows)} operations are in {file.path}"
