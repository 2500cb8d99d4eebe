"""Advice on parameter servers: other numbers of them and the default of `shard_bytes`.

`paces.csv` has the share of the time in which each server works, `result.json` the bytes of each
variable in a step, `plan.json` the variables and their servers. `server_what_if.py` predicts the
step with other servers.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from typing import Any

from hpcflow.plan.cost.cost_model import MESSAGE_BYTES_PER_S
from hpcflow.plan.distribution.variable_cost import VariableLoad
from hpcflow.plan.ir.layer_names import FORWARD
from hpcflow.plan.listing.picture_operations import UPDATES_OF_SERVER
from hpcflow.ps.sync_rule import SyncRule
from hpcflow.ps.sync_rules import rule
from hpcflow.report.advised_run import DEFAULTS, Advice, AdvisedRun
from hpcflow.report.plan_file import HeldVariable
from hpcflow.report.run_directory_reader import FileFacts, has_type
from hpcflow.report.run_summary import RESULT, SERVERS, TRAFFIC
from hpcflow.report.server_replay import WORKER, ServerJob, ServerLoad, ServerPhases
from hpcflow.report.server_what_if import (
    SAME,
    ServerVariable,
    ServerWhatIf,
    VariableDivision,
    divide_variables,
)
from hpcflow.settings import as_bytes

BUILT_IN_RULE = re.compile(r"async|all|(backup|stale):[0-9]{1,6}")
MOST_HELD = 1 << 30  # bytes of variables of one of fewer servers: any rank has as much memory
UNLIKE = 0.1  # relative difference of the largest load, by the rule and in the run


def server_advice(run: AdvisedRun) -> list[Advice]:
    """What more servers and the default of `shard_bytes` would have gained, if set by hand.

    More servers count only if the ranks together spend no more time on a step.
    Errors: HpcflowError if a file of the run is not readable.
    """
    what_if = _what_if(run)
    if what_if is None:
        return []
    found, own = [], what_if.servers
    median, ranks = run.steps.median, run.plan.workers + own
    if "shard_bytes" in run.by_hand and own > 1:
        default = DEFAULTS["shard_bytes"]
        gain = what_if.gain(own, int(default))
        given = run.settings["shard_bytes"]
        found.append(Advice("shard_bytes", given, default, median, median - gain))
    if "ps" in run.by_hand and run.topology is None:
        for count in sorted({own + 1, 2 * own}):
            step = median - what_if.gain(count, what_if.shard_bytes)
            jobs = ranks, ranks + count - own
            if step * jobs[1] <= median * jobs[0]:
                found.append(Advice("ps", str(own), str(count), median, step, jobs))
    return found


def fewer_servers(run: AdvisedRun) -> Advice | None:
    """The fewest servers with which a step would take as long, for sure; None if none is known.

    Errors: HpcflowError if a file of the run is not readable.
    """
    what_if = _what_if(run)
    if what_if is None or "ps" not in run.by_hand or run.topology is not None:
        return None
    own, median, ranks = what_if.servers, run.steps.median, run.plan.workers + what_if.servers
    for count in sorted({1, own // 4, own // 2, own - 1} - {0, own}):
        if what_if.held_bytes(count) > what_if.most_held:
            continue
        step = what_if.step_of_fewer(count)
        if step <= (1 + SAME) * median:
            return Advice("ps", str(own), str(count), median, step, (ranks, ranks - own + count))
    return None


# -- the files of a run


def _what_if(run: AdvisedRun) -> ServerWhatIf | None:
    """The what-if of a run; None if its files do not tell enough.

    Nor on nodes with more ranks than cores, where servers and workers wait for cores. Nor if
    anything but the load of the servers decided which variables they hold.
    """
    plan, settings, median = run.plan, run.settings, run.steps.median
    sync, shard_bytes = settings.get("sync") or "async", settings.get("shard_bytes", "")
    is_usual = settings.get("placement") == "" and settings.get("prefetch") == "False"
    has_cores = run.manifest.get("crowded", [str], None) == []
    is_known = BUILT_IN_RULE.fullmatch(sync) and shard_bytes.isdecimal() and int(shard_bytes) > 0
    if not (is_usual and has_cores and is_known and plan.workers and plan.servers and median):
        return None
    result = FileFacts(run.folder / RESULT, [])
    traffic = result.get("traffic", TRAFFIC, {})
    rows, shares = traffic.get("servers", []), run.steps.server_shares
    if not len(rows) == len(shares) == plan.servers or max(shares) >= plan.servers:
        return None
    variables = _variables(plan.variables, traffic)
    own = _own_division(plan.variables, variables, plan.servers)
    if not sum(own.moved) or not _is_by_rule(plan.variables, variables, own, int(shard_bytes)):
        return None
    ways = [row["measured"] for row in rows]
    loads = [
        ServerLoad(shares[i] * median, float(way["received"]), float(way["sent"]))
        for i, way in enumerate(ways)
    ]
    chosen, works = rule(sync), sorted(work for some in run.steps.work.values() for work in some)
    job = ServerJob(
        run.steps.classes(plan.workers), run.network, chosen, _phases(run, chosen, loads)
    )
    cut = len(works) // 20
    return ServerWhatIf(
        job,
        variables,
        own,
        loads,
        median,
        [works[cut], statistics.median(works), works[-1 - cut]],
        _work_after_forward_pass(run),
        int(shard_bytes),
        *_memory(run, result),
    )


def _variables(held: Sequence[HeldVariable], traffic: dict[str, Any]) -> list[ServerVariable]:
    """The variables of a run with what they moved; [] if that is not known of each."""
    moved = traffic.get("variables")
    sums: dict[str, list[int]] = {}
    for one in held:
        total = sums.setdefault(one.name, [0, 0])
        total[0] += one.rows
        total[1] += one.nbytes
    found = []
    for name, (rows, nbytes) in sums.items():
        row: Any = moved.get(name) if isinstance(moved, dict) else None
        if not has_type(row, {"bytes": int, "messages": float}):
            return []
        is_whole = row["bytes"] >= nbytes
        load = VariableLoad(row["bytes"], round(row["messages"]), is_whole)
        found.append(ServerVariable(name, max(1, rows), nbytes, load))
    return found


def _own_division(
    held: Sequence[HeldVariable], variables: Sequence[ServerVariable], servers: int
) -> VariableDivision:
    """What each server of the run has."""
    own, known = (
        VariableDivision([0.0] * servers, [0.0] * servers),
        {one.name: one for one in variables},
    )
    for piece in held if known else ():
        one = known[piece.name]
        own.held[piece.server] += piece.nbytes
        own.moved[piece.server] += one.load.weight(0, piece.rows / one.rows)
    return own


def _is_by_rule(
    held: Sequence[HeldVariable],
    variables: Sequence[ServerVariable],
    own: VariableDivision,
    shard_bytes: int,
) -> bool:
    """Whether the rule divides the variables as the run has divided them."""
    by_rule = divide_variables(variables, len(own.moved), shard_bytes)
    is_near = abs(max(by_rule.moved) - max(own.moved)) <= UNLIKE * max(own.moved)
    return is_near and all(piece.by_load for piece in held)


def _phases(run: AdvisedRun, chosen: SyncRule, loads: Sequence[ServerLoad]) -> ServerPhases:
    """The shares of the work of servers, by the cost model and the bytes that they copy."""
    count, step, update = run.plan.workers, 0.0, 0.0
    for op in run.plan.picture.operations:
        if op.task.startswith(SERVERS):
            step += op.seconds * (not op.task.endswith(UPDATES_OF_SERVER))
            update += op.seconds * op.task.endswith(UPDATES_OF_SERVER)
    sending = count * sum(load.sent for load in loads) / MESSAGE_BYTES_PER_S
    taking = count * (step + sum(load.received for load in loads) / MESSAGE_BYTES_PER_S)
    update *= chosen.joins
    total = sending + taking + update
    if not total:
        return ServerPhases(0.0, 1.0, 0.0)
    return ServerPhases(sending / total, taking / total, update / total)


def _work_after_forward_pass(run: AdvisedRun) -> float:
    """The share of a worker's own work after its forward pass, by the cost model; 1 if unknown."""
    own = [op for op in run.plan.picture.operations if op.task == WORKER]
    total = sum(op.seconds for op in own)
    return sum(op.seconds for op in own if op.phase != FORWARD) / total if total else 1.0


def _memory(run: AdvisedRun, result: FileFacts) -> tuple[float, float]:
    """The bytes of variables on all servers, slots included, and the most bytes for a server."""
    roles, rows = run.manifest.get("roles", [str], []), result.get("memory", [{}], [])
    held = [
        row.get("variables")
        for role, row in zip(roles, rows, strict=False)
        if role.startswith(SERVERS)
    ]
    is_known = len(held) == run.plan.servers and has_type(held, [int])
    limit = as_bytes(run.settings.get("memory_limit", "")) or MOST_HELD
    return sum(held) if is_known else math.inf, min(limit, MOST_HELD)
