"""Job result: `result.json`, assembled from the reports of all ranks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from hpcflow.platform.rank_logging import logger, merge_warnings
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.profile import variable_traffic_counters

# Names in result.json reserved for the session; the script sets others.
FIELDS = frozenset(
    "mode ranks servers sync gradients replicas tasks_per_replica steps samples updates bytes_sent "
    "messages_sent hosts compile memory lost seconds seconds_to_first_step input_wait_seconds "
    "work_seconds wait_seconds server_work_seconds server_wait_seconds samples_per_second traffic "
    "warnings settings saves random_seed stragglers versions".split()
)


def job_summary(
    context: RankContext, reports: Sequence[dict[str, Any]], names: Sequence[str]
) -> dict[str, Any]:
    """The combined result of all ranks' reports; lists are per worker or per rank."""
    workers = sorted((r for r in reports if "steps" in r), key=lambda r: r["replica"])
    ranks = sorted(reports, key=lambda r: r["rank"])
    seconds = max(r["seconds"] for r in workers)
    samples = sum(r["samples"] for r in workers)
    firsts = [r["seconds_to_first_step"] for r in workers]
    return {
        "mode": context.cluster.mode,
        "ranks": context.size,
        "servers": context.cluster.servers,
        **sync_summary(context, ranks),
        "replicas": context.cluster.replicas,
        "tasks_per_replica": context.cluster.tasks_per_replica,
        "steps": [r["steps"] for r in workers],
        "samples": [r["samples"] for r in workers],
        "updates": {name: update_counts(name, ranks) for name in names},
        "bytes_sent": [r["bytes_sent"] for r in ranks],
        "messages_sent": [r["messages_sent"] for r in ranks],
        "hosts": [r["host"] for r in ranks],
        "compile": [{"rank": r["rank"], **r["compile"]} for r in ranks],
        "memory": [r["memory"] for r in ranks],
        "lost": context.lost,
        "seconds": round(seconds, 6),
        "seconds_to_first_step": max((s for s in firsts if s is not None), default=None),
        "input_wait_seconds": [r["input_wait_seconds"] for r in workers],
        "work_seconds": [r["work_seconds"] for r in workers],
        "wait_seconds": [r["wait_seconds"] for r in workers],
        "samples_per_second": round(samples / seconds, 1) if seconds else 0.0,
        **_traffic(reports, context.cluster.servers),
        "warnings": merge_warnings([r.get("warnings", {}) for r in ranks]),
        "settings": context.settings.changed(),
    }


def sync_summary(context: RankContext, reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The synchronization rule of workers, and the numbers of used and dropped gradients."""
    if context.cluster.mode != "ps":
        return {}
    coordinator = next(r for r in reports if r["rank"] == context.roles.servers[0])
    counts = dict(coordinator["state"].get(f"rounds {context.cluster.sync}", {}))
    summary: dict[str, Any] = {"sync": counts.pop("rule", str(context.cluster.sync))}
    return {**summary, "gradients": counts} if counts else summary


def _traffic(reports: Sequence[dict[str, Any]], servers: int) -> dict[str, Any]:
    summary = variable_traffic_counters.traffic_summary(reports, servers)
    return {} if summary is None else {"traffic": summary}


def update_counts(name: str, reports: Sequence[dict[str, Any]]) -> int | list[int]:
    """Updates applied to variable `name`; to each of its copies or shards if they differ."""
    piece = re.compile(re.escape(name) + r"(/part_\d+)?\Z")
    counts = [n for r in reports for variable, n in r["updates"].items() if piece.match(variable)]
    if len(set(counts)) > 1:
        logger.warning(
            "the copies or shards of %s have different numbers of updates: %s", name, counts
        )
        return counts
    return counts[0] if counts else 0
