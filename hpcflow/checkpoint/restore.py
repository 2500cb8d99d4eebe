"""Restore: all ranks check the newest good checkpoint; each reads the rows that it hosts."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcflow.checkpoint import checkpoint_directory
from hpcflow.checkpoint.checkpoint_layout import ArraySpec, replica_names
from hpcflow.checkpoint.checkpoint_reader import SavedCheckpoint
from hpcflow.checkpoint.checkpoint_service import load_local as load_here
from hpcflow.checkpoint.load_plan import LoadPlan
from hpcflow.checkpoint.participating_ranks import (
    ParticipatingRanks,
    error_from_answer,
    run_or_error,
    served_ranks,
)
from hpcflow.errors import CheckpointCorruptError, CheckpointError
from hpcflow.platform.rank_logging import logger
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.state.state_store import StateStore

Facts = dict[str, Any]


def newest_valid_checkpoint(context: RankContext, directory: Path) -> SavedCheckpoint | None:
    """The newest checkpoint of a folder without a damaged byte; None if the folder has none.

    Each bad checkpoint is logged with its faults.

    Ranks:  every rank that runs the script; each checks its share.
    Errors: CheckpointCorruptError if the folder has checkpoints but no good one.
    """
    team = ParticipatingRanks(context)
    ckpts: list[checkpoint_directory.CheckpointEntry] = []

    def look(rows: Sequence[Any]) -> int:
        ckpts.extend(
            checkpoint_directory.with_storage_errors(
                f"reading {directory}", lambda: checkpoint_directory.find_checkpoints(directory)
            )
        )
        return len(ckpts)

    bad: list[str] = []
    for i in range(team.decide({}, look)):
        ckpt = ckpts[i] if context.is_chief else None
        path, error, facts = team.broadcast(
            ckpt and [str(ckpt.path), _fault_message(ckpt), ckpt.facts]
        )
        wrong = (
            [error]
            if error
            else team.broadcast(_collect_faults(team, SavedCheckpoint(Path(path), facts)))
        )
        if not wrong:
            return SavedCheckpoint(Path(path), facts)
        bad += wrong
        if context.is_chief:
            logger.warning("%s is not used: %s", path, "; ".join(wrong[:3]))
    if bad:
        raise CheckpointCorruptError(
            f"no checkpoint of {directory} is good:\n  " + "\n  ".join(bad[:10]),
            rank=context.rank,
            hint="restore the files from a backup, or choose another folder to start from scratch",
        )
    return None


def _fault_message(entry: checkpoint_directory.CheckpointEntry) -> str | None:
    return None if entry.error is None else entry.error.message


def open_valid_checkpoint(context: RankContext, path: Path) -> SavedCheckpoint:
    """The checkpoint at `path`, a step's directory or file.

    Ranks:  every rank that runs the script; each checks its share.
    Errors: CheckpointCorruptError that names the bad files.
    """
    team = ParticipatingRanks(context)
    row = run_or_error(context, lambda: _readable(path).facts) if context.is_chief else None
    answer = team.broadcast(row)
    if "error" in answer:
        raise error_from_answer(answer)
    saved = SavedCheckpoint(path, answer["value"])
    wrong = team.broadcast(_collect_faults(team, saved))
    if wrong:
        raise CheckpointCorruptError(
            f"{path} is damaged:\n  " + "\n  ".join(wrong[:10]),
            rank=context.rank,
            hint="restore another checkpoint of its folder, or the files from a backup",
        )
    return saved


def _readable(path: Path) -> checkpoint_directory.CheckpointEntry:
    """Errors: CheckpointError if there is no checkpoint at `path`, or it is not readable."""
    if not os.path.exists(path):
        raise CheckpointError(
            f"there is no checkpoint {path}", hint="list the checkpoints with hpcflow inspect DIR"
        )
    ckpt = checkpoint_directory.read_entry(path)
    if ckpt.error is not None:
        raise ckpt.error
    return ckpt


def _collect_faults(team: ParticipatingRanks, saved: SavedCheckpoint) -> list[str]:
    """On the chief: the faults that all ranks found; [] elsewhere."""
    answer = run_or_error(team.context, lambda: saved.problems(team.number, team.size))
    rows = team.gather(answer)
    if rows is None:
        return []
    return [text for row in rows for text in (row["value"] if "value" in row else [row["error"]])]


def restore_variables(
    context: RankContext,
    store: StateStore,
    saved: SavedCheckpoint,
    array_names: Mapping[str, str],
    arrays: list[ArraySpec],
    with_draws: bool = True,
    per_replica_names: Mapping[str, str] | None = None,
    reshape: bool = False,
) -> None:
    """Set the variables `array_names` (variable -> name in the checkpoint) to their saved values.

    `arrays` are those variables by their names in the checkpoint; every rank reads the rows that it
    hosts. Each replica has its own value of the variables in `per_replica_names`. Their saved
    values are distributed over the replicas: a replica that gets several values adds them, one that
    gets none takes zeros. With `reshape`, variables that replicas share may have another shape with
    as many elements.

    Ranks:  every rank that runs the script, between steps.
    Errors: CheckpointMismatchError with a diff; CheckpointError if a file cannot be read.
    """
    team = ParticipatingRanks(context)
    team.decide(
        run_or_error(
            context, lambda: saved.check_fits(arrays, _checkpoint_text(saved.facts), reshape)
        ),
        lambda rows: None,
    )
    plan = LoadPlan(
        path=os.path.abspath(saved.path),
        id=saved.facts["id"],
        wanted=dict(array_names),
        own=_names_to_add(context, saved, per_replica_names or {}),
        seed=saved.facts.get("random_seed") if with_draws else None,
        draws=(),
    )

    def plan_of(rank: int) -> LoadPlan:
        draws = saved_draws(saved.facts, context, rank) if with_draws else ()
        return dataclasses.replace(plan, draws=draws)

    requests = {
        rank: {"do": "load", **plan_of(rank).as_message()} for rank in served_ranks(context)
    }
    answers = team.call(requests, store)
    answer = run_or_error(context, lambda: load_here(context, store, plan_of(context.rank)))
    rows = [answer, *answers().values()]
    wrong = [row for row in rows if "error" in row]
    team.decide(wrong[0] if wrong else {"value": 0}, lambda rows: None)


def _names_to_add(
    context: RankContext, saved: SavedCheckpoint, per_replica_names: Mapping[str, str]
) -> dict[str, list[str]]:
    """Variable -> the names in the checkpoint whose values this replica adds."""
    there = int(saved.facts["replicas"])
    replicas = range(context.replica, there, context.roles.replicas)
    dealt = {
        v: [replica_names({v: name}, r)[v] for r in replicas]
        for v, name in per_replica_names.items()
    }
    return {v: [name for name in names if name in saved.arrays] for v, names in dealt.items()}


def saved_draws(facts: Facts, context: RankContext, rank: int) -> list[Any]:
    """The random draws that a rank had made; in a job of another shape, the most of all ranks."""
    draws: Facts = facts["draws"]
    same = (facts["ranks"], facts["servers"], facts["tasks_per_replica"]) == (
        context.size,
        context.cluster.servers,
        context.cluster.tasks_per_replica,
    )
    task_draws = draws["tasks"].get(context.task_name(rank)) if same else None
    counts: list[Any] = draws["most"] if task_draws is None else task_draws
    return counts


def _checkpoint_text(facts: Facts) -> str:
    return f"step {facts['step']}, saved {facts['saved']} in {facts['mode']} mode"
