"""Limits by parameter servers: do workers wait for a server's own work, its port, or neither?"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from hpcflow.plan.distribution.variable_cost import MESSAGE_BYTES
from hpcflow.platform.quantity_text import format_seconds

SERVER, PORT, MESSAGES = "server", "server's network port", "messages"
MOST_NAMED = 4
UNEQUAL = 1.5  # times the load of the other servers
DOCTOR = "`hpcflow doctor` on these nodes tells what a port can do"


class Servers(NamedTuple):
    """The servers of a run; figures that its files lack are empty or 0."""

    names: Sequence[str] = ()  # task, rank and host
    rates: Sequence[str] = ()  # of each: bytes per second of its port, as words
    busy: Sequence[float] = ()  # the share of the time that each spent in its own work
    nodes: int = 0  # of the job
    message_bytes: float = 0.0  # mean of all messages
    joins: bool = False  # whether the rule lets workers wait for each other


class Cause(NamedTuple):
    """Why workers wait for servers, and what to do about it."""

    resource: str
    text: str
    remedy: str
    seconds: float = 0.0  # by which the run would be shorter without it; 0 if not known


def cause(seconds: float, work: Sequence[float], waits: Sequence[float], servers: Servers) -> Cause:
    """What the workers of a run of `seconds` wait for, by their seconds and the servers' shares.

    Their waiting is divided into the work of the busiest server, waiting for slower workers, and
    messages; the largest part is named.
    """
    named, workers = servers.names, len(waits)
    if len(servers.busy) != len(named):
        text = (
            f"the servers, to which all {workers} workers send, or their network ports: "
            f"{_with_rates(servers)}"
        )
        remedy = f"more servers (--ps), fewer bytes (compression), or larger batches; {DOCTOR}"
        return Cause(MESSAGES, text, remedy)
    first = max(range(len(named)), key=servers.busy.__getitem__)
    own, unequal, rest = _parts(seconds, work, waits, servers)
    if own >= max(unequal, rest):
        return _server(first, servers, own)
    busy = f"the servers work at most {servers.busy[first]:.0%} of the time"
    if unequal > rest:
        own_work = f"{format_seconds(min(work))} to {format_seconds(max(work))}"
        text = f"each other: {busy}, and own work of workers is {own_work}"
        return Cause(MESSAGES, text, "equal shares (Dataset(balance=True)), or --sync async")
    if servers.nodes > 1 and servers.message_bytes >= MESSAGE_BYTES and workers > len(named):
        return _port(first, workers, servers)
    if servers.message_bytes >= MESSAGE_BYTES or not servers.message_bytes:
        text = f"messages to and from the servers, not for their work: {busy}"
        return Cause(
            MESSAGES, text, "larger batches, or fewer bytes (hf.train.CompressedOptimizer)"
        )
    text = (
        f"many small messages to and from the servers, {servers.message_bytes:,.0f} bytes on "
        f"average, not for their work: {busy}"
    )
    return Cause(
        MESSAGES, text, "larger batches, or `--set prefetch=1`, which asks ahead of a step"
    )


def _parts(
    seconds: float, work: Sequence[float], waits: Sequence[float], servers: Servers
) -> tuple[float, float, float]:
    """The mean seconds of waiting for the busiest server, for slower workers, and for messages.

    Where workers wait for each other, all wait while the server works. Else a worker waits for its
    own updates behind those of others: Schweitzer's approximation of mean value analysis (1979),
    response time = service time / (1 - utilization (n - 1) / n), for n workers.
    """
    mean, busy, workers = statistics.fmean(waits), max(servers.busy), len(waits)
    if servers.joins:
        own = min(busy * seconds, mean)
        unequal = max(work) - statistics.fmean(work) if len(work) == workers else 0.0
        unequal = min(unequal, mean - own)
        return own, unequal, mean - own - unequal
    free = max(1 - busy * (workers - 1) / workers, 1e-9)
    own = min(busy * seconds / workers / free, mean)
    return own, 0.0, mean - own


def _server(first: int, servers: Servers, seconds: float) -> Cause:
    others = [share for k, share in enumerate(servers.busy) if k != first]
    share = servers.busy[first]
    text = f"the work of {servers.names[first]}: it is busy {share:.0%} of the time"
    remedy = "more servers (--ps), larger batches, or `--set dense=replicas`"
    if others:
        text += f", the others {statistics.fmean(others):.0%} on average"
    if others and share > UNEQUAL * statistics.fmean(others):
        remedy = (
            "`--set placement=RUN/result.json` of this run, or a smaller `shard_bytes`, divides "
            "the variables more evenly over the servers; else larger batches"
        )
    return Cause(SERVER, text, remedy, seconds)


def _port(first: int, workers: int, servers: Servers) -> Cause:
    text = (
        f"the network ports of the servers, to which all {workers} workers send: "
        f"{_with_rates(servers)}; the servers themselves work at most {servers.busy[first]:.0%} "
        "of the time"
    )
    remedy = (
        "more servers on nodes of their own (--ps), fewer bytes (hf.train.CompressedOptimizer, "
        f"`--set dense=replicas`), or larger batches; {DOCTOR}"
    )
    return Cause(PORT, text, remedy)


def _with_rates(servers: Servers) -> str:
    """The names of the first servers, with the bytes per second of their ports if known."""
    rates = servers.rates if len(servers.rates) == len(servers.names) else [""] * len(servers.names)
    listed = [f"{name}{rate}" for name, rate in zip(servers.names, rates, strict=True)]
    more = f" and {len(listed) - MOST_NAMED} more" if len(listed) > MOST_NAMED else ""
    return ", ".join(listed[:MOST_NAMED]) + more
