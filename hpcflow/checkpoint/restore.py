"""Restore: all ranks check the newest good checkpoint; each reads the rows that it hosts."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcflow.checkpoint import checkpoint_directory
from hpcflow.checkpoint.checkpoint_layout import Array, mine_of
from hpcflow.checkpoint.checkpoint_reader import Saved
from hpcflow.checkpoint.checkpoint_service import load as load_here
from hpcflow.checkpoint.load_plan import LoadPlan
from hpcflow.checkpoint.participating_ranks import Team, attempt, failure, served_by
from hpcflow.errors import CheckpointCorruptError, CheckpointError
from hpcflow.platform.rank_logging import logger
from hpcflow.runtime.job.rank_context import Context
from hpcflow.runtime.state.state_store import Store

Facts = dict[str, Any]


def newest_good(context: Context, directory: Path) -> Saved | None:
    """The newest checkpoint of a folder without a damaged byte; None if the folder has none.

    Each bad checkpoint is logged with its faults.

    Ranks:  every rank that runs the script; each checks its share.
    Errors: CheckpointCorruptError if the folder has checkpoints but no good one.
    """
    team = Team(context)
    found: list[checkpoint_directory.Found] = []

    def look(rows: Sequence[Any]) -> int:
        found.extend(
            checkpoint_directory.told(
                f"reading {directory}", lambda: checkpoint_directory.find(directory)
            )
        )
        return len(found)

    bad: list[str] = []
    for i in range(team.decide({}, look)):
        one = found[i] if context.is_chief else None
        path, error, facts = team.say(one and [str(one.path), _message(one), one.facts])
        wrong = [error] if error else team.say(_problems(team, Saved(Path(path), facts)))
        if not wrong:
            return Saved(Path(path), facts)
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


def _message(one: checkpoint_directory.Found) -> str | None:
    return None if one.error is None else one.error.message


def open_good(context: Context, path: Path) -> Saved:
    """The checkpoint at `path`, a step's directory or file.

    Ranks:  every rank that runs the script; each checks its share.
    Errors: CheckpointCorruptError that names the bad files.
    """
    team = Team(context)
    row = attempt(context, lambda: _readable(path).facts) if context.is_chief else None
    answer = team.say(row)
    if "error" in answer:
        raise failure(answer)
    saved = Saved(path, answer["value"])
    wrong = team.say(_problems(team, saved))
    if wrong:
        raise CheckpointCorruptError(
            f"{path} is damaged:\n  " + "\n  ".join(wrong[:10]),
            rank=context.rank,
            hint="restore another checkpoint of its folder, or the files from a backup",
        )
    return saved


def _readable(path: Path) -> checkpoint_directory.Found:
    """Errors: CheckpointError if there is no checkpoint at `path`, or it is not readable."""
    if not os.path.exists(path):
        raise CheckpointError(
            f"there is no checkpoint {path}", hint="list the checkpoints with hpcflow inspect DIR"
        )
    one = checkpoint_directory.look(path)
    if one.error is not None:
        raise one.error
    return one


def _problems(team: Team, saved: Saved) -> list[str]:
    """On the chief: the faults that all ranks found; [] elsewhere."""
    mine = attempt(team.context, lambda: saved.problems(team.number, team.size))
    rows = team.gather(mine)
    if rows is None:
        return []
    return [text for row in rows for text in (row["value"] if "value" in row else [row["error"]])]


def load(
    context: Context,
    store: Store,
    saved: Saved,
    wanted: Mapping[str, str],
    arrays: list[Array],
    with_draws: bool = True,
    own: Mapping[str, str] | None = None,
    reshape: bool = False,
) -> None:
    """Set the variables `wanted` (variable -> name in the checkpoint) to their saved values.

    `arrays` are those variables by their names in the checkpoint; every rank reads the rows that it
    hosts. Each replica has its own value of the variables in `own`. Their saved values are
    distributed over the replicas: a replica that gets several values adds them, one that gets none
    takes zeros. With `reshape`, variables that replicas share may have another shape with as many
    elements.

    Ranks:  every rank that runs the script, between steps.
    Errors: CheckpointMismatchError with a diff; CheckpointError if a file cannot be read.
    """
    team = Team(context)
    team.decide(
        attempt(context, lambda: saved.check_fits(arrays, _about(saved.facts), reshape)),
        lambda rows: None,
    )
    plan = LoadPlan(
        path=os.path.abspath(saved.path),
        id=saved.facts["id"],
        wanted=dict(wanted),
        own=_dealt(context, saved, own or {}),
        seed=saved.facts.get("random_seed") if with_draws else None,
        draws=(),
    )

    def plan_of(rank: int) -> LoadPlan:
        draws = draws_of(saved.facts, context, rank) if with_draws else ()
        return dataclasses.replace(plan, draws=draws)

    requests = {rank: {"do": "load", **plan_of(rank).as_message()} for rank in served_by(context)}
    answers = team.call(requests, store)
    mine = attempt(context, lambda: load_here(context, store, plan_of(context.rank)))
    rows = [mine, *answers().values()]
    wrong = [row for row in rows if "error" in row]
    team.decide(wrong[0] if wrong else {"value": 0}, lambda rows: None)


def _dealt(context: Context, saved: Saved, own: Mapping[str, str]) -> dict[str, list[str]]:
    """Variable -> the names in the checkpoint whose values this replica adds."""
    there = int(saved.facts["replicas"])
    mine = range(context.replica, there, context.roles.replicas)
    dealt = {v: [mine_of({v: name}, r)[v] for r in mine] for v, name in own.items()}
    return {v: [name for name in names if name in saved.arrays] for v, names in dealt.items()}


def draws_of(facts: Facts, context: Context, rank: int) -> list[Any]:
    """The random draws that a rank had made; in a job of another shape, the most of all ranks."""
    draws: Facts = facts["draws"]
    same = (facts["ranks"], facts["servers"], facts["tasks_per_replica"]) == (
        context.size,
        context.cluster.servers,
        context.cluster.tasks_per_replica,
    )
    mine = draws["tasks"].get(context.task_name(rank)) if same else None
    found: list[Any] = draws["most"] if mine is None else mine
    return found


def _about(facts: Facts) -> str:
    return f"step {facts['step']}, saved {facts['saved']} in {facts['mode']} mode"
