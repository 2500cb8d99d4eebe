"""Wait-for report: which rank waits for which, from the ranks' records; text of a stall report."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from hpcflow.monitoring.stack_dump import DEBUGGED, STOPPED, process_state, why_silent
from hpcflow.monitoring.wait_ledger import ANY, INSIDE, OWN, LedgerEntry

SILENT_S = 5.0  # an older heartbeat is reported
MOST_NAMED = 8  # ranks listed individually in a message


def missing_ranks(own_entry: LedgerEntry, entries: Iterable[LedgerEntry]) -> list[LedgerEntry]:
    """The `entries` of the ranks that the rank of `own_entry` waits for.

    If it waits for all ranks, these are the ranks of the same task in their replicas that do not
    wait in the same operation and step.
    """
    others = [entry for entry in entries if entry.rank != own_entry.rank]
    if own_entry.peer != ANY:
        return [entry for entry in others if entry.rank == own_entry.peer]
    there = (own_entry.step, own_entry.op, True)
    alike = [entry for entry in others if entry.task_index == own_entry.task_index]
    return [entry for entry in alike if (entry.step, entry.op, entry.waits) != there]


def ranks_waiting_for(own_entry: LedgerEntry, entries: Sequence[LedgerEntry]) -> list[LedgerEntry]:
    """The ranks that the awaited ranks of `own_entry` wait for, transitively."""
    pending = missing_ranks(own_entry, entries)
    visited = {own_entry.rank, *(entry.rank for entry in pending)}
    awaited = []
    while pending:
        entry = pending.pop(0)
        if entry.waits and entry.peer >= 0:
            peers = [e for e in entries if e.rank == entry.peer and e.rank not in visited]
            visited.update(e.rank for e in peers)
            awaited += peers
            pending += peers
    return awaited


def wait_cycle(own_entry: LedgerEntry, entries: Sequence[LedgerEntry]) -> list[int]:
    """The cycle of ranks that the wait of `own_entry` leads to; empty if there is none."""
    by_rank, path, entry = {e.rank: e for e in entries}, [own_entry.rank], own_entry
    while entry.waits and entry.peer in by_rank:
        if entry.peer in path:
            return sorted(path[path.index(entry.peer) :])
        path.append(entry.peer)
        entry = by_rank[entry.peer]
    return []


def wait_chain(own_entry: LedgerEntry, entries: Sequence[LedgerEntry]) -> list[LedgerEntry]:
    """All ranks that `own_entry` waits for, directly or transitively."""
    return [*missing_ranks(own_entry, entries), *ranks_waiting_for(own_entry, entries)]


def is_debugged(own_entry: LedgerEntry, entries: Sequence[LedgerEntry]) -> bool:
    """Whether a debugger traces the rank or one in its wait chain; then a wait is no stall."""
    return any(
        process_state_letter(entry) == DEBUGGED
        for entry in [own_entry, *wait_chain(own_entry, entries)]
    )


def process_state_letter(entry: LedgerEntry) -> str:
    """The state letter of the rank's process, as seen on its own node."""
    return entry.process or process_state(entry.pid)


def is_silent(entry: LedgerEntry, now: float, silent_s: float = SILENT_S) -> bool:
    """Whether its interpreter does not run: stopped, dead, or in a call that holds the GIL."""
    return now - entry.heartbeat > silent_s or process_state_letter(entry) in (STOPPED, DEBUGGED)


def describe_stall(
    own_entry: LedgerEntry,
    entries: Sequence[LedgerEntry],
    size: int,
    path: object,
    silent_s: float = SILENT_S,
) -> str:
    """The short message: the wait, its duration, states of the awaited ranks, the report file."""
    now = time.time()
    missing = missing_ranks(own_entry, entries)
    rows = [
        f"{own_entry.description} has waited {now - own_entry.since:.0f} s for "
        f"{_awaited_rank(own_entry, missing, size)}"
    ]
    rows += [
        f"missing  {entry.rank} on {state(entry, now, silent_s)}" for entry in missing[:MOST_NAMED]
    ]
    if len(missing) > MOST_NAMED:
        rows.append(f"missing  and {len(missing) - MOST_NAMED} more")
    behind = ranks_waiting_for(own_entry, entries)
    rows += [f"behind   {entry.rank} on {state(entry, now, silent_s)}" for entry in behind]
    listed_ranks = {entry.rank for entry in (own_entry, *missing[:MOST_NAMED], *behind)}
    stopped = [
        entry
        for entry in entries
        if entry.rank not in listed_ranks and process_state_letter(entry) == STOPPED
    ]
    rows += [
        f"stopped  {entry.rank} on {state(entry, now, silent_s)}" for entry in stopped[:MOST_NAMED]
    ]
    if circle := wait_cycle(own_entry, entries):
        ranks = ", ".join(map(str, circle))
        rows.append(
            f"ring     {ranks} wait for each other: a message of theirs has not left or come"
        )
    if not missing and own_entry.peer != OWN:
        rows.append(f"missing  not on {own_entry.host}, and the others' nodes have not told of it")
    rows.append(f"here     {own_entry.line or 'not known yet'}")
    rows.append(f"written  {path}")
    return "\n  ".join(rows)


def _awaited_rank(own_entry: LedgerEntry, missing: Sequence[LedgerEntry], size: int) -> str:
    if own_entry.peer == OWN:
        return "a step of this rank, in another thread say"
    if own_entry.peer >= 0:
        return next((entry.name for entry in missing), f"rank {own_entry.peer}")
    return f"{len(missing)} of {size} ranks" if missing else f"ranks among {size}, none here"


def state(entry: LedgerEntry, now: float, silent_s: float = SILENT_S) -> str:
    """Host, task and state of a rank."""
    waited = f"since {now - entry.since:.0f} s"
    if entry.since and entry.kind == INSIDE:
        activity = f"is inside '{entry.op}' {waited}"
    elif entry.since:
        whom = f"rank {entry.peer}" if entry.peer >= 0 else "others"
        activity = f"waits for {whom} in {entry.description}, {waited}"
    elif entry.is_server:
        activity = "waits for nothing: it serves, or is idle"
    else:
        activity = "waits for nothing: it computes, or is idle"
    if is_silent(entry, now, silent_s):
        activity += f"; {why_silent(entry.pid, process_state_letter(entry))}, silent for "
        activity += f"{now - entry.heartbeat:.0f} s, last seen at {entry.line or 'its start'}"
    elif entry.line:
        activity += f"; at {entry.line}"
    return f"{entry.host}{', ' if entry.task else ''}{entry.task}: {activity}"
