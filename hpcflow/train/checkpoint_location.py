"""Checkpoint location: the folder of a training session, from the script or from a setting.

The setting `checkpoints` replaces the folder that the script names. `default_checkpoints` applies
to scripts that name none; job scripts set it. The session resumes from either.
"""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import Any, NamedTuple

from hpcflow.platform.rank_logging import logger
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.session.session import Session
from hpcflow.train.global_step_counter import get_global_step

_sessions: weakref.WeakKeyDictionary[RankContext, list[str]] = weakref.WeakKeyDictionary()


class CheckpointLocation(NamedTuple):
    """The folder (None: no checkpoints), and whether a setting chose it, which implies resuming."""

    folder: Path | None
    by_setting: bool


def choose_location(context: RankContext, script_folder: Any) -> CheckpointLocation:
    """The folder of a new session of this process; the script names `script_folder` (or None).

    A second session must not resume from the variables of the first. The sessions of a script with
    several therefore use DIR, DIR-2, DIR-3; sessions that name the same folder share one.

    Ranks: every rank that runs the script creates the same sessions in the same order.
    """
    script_folder = None if not script_folder else str(script_folder)
    settings = context.settings
    folder = settings.checkpoints or (settings.default_checkpoints if script_folder is None else "")
    if not folder:
        return CheckpointLocation(None if script_folder is None else Path(script_folder), False)
    names = _sessions.setdefault(context, [])
    name = f"session {len(names)}" if script_folder is None else os.path.abspath(script_folder)
    if name not in names:
        names.append(name)
    number = names.index(name) + 1
    chosen = Path(folder if number == 1 else f"{Path(folder)}-{number}")
    if script_folder is not None and name != os.path.abspath(chosen) and context.is_chief:
        text = "the setting checkpoints, %s, replaces the script's folder %s"
        logger.info(text, chosen, script_folder)
    return CheckpointLocation(chosen, True)


def warn_own_loop(session: Session, step: int) -> None:
    """Warn that a script resumes at `step` although its own loop begins at 0.

    A dataset of `hf.data` or a global step would resume at its position.
    """
    graph = session.graph
    counts = graph.get_collection("datasets") or get_global_step(graph) is not None
    if session.context.is_chief and not counts:
        logger.warning(
            "training resumes from step %d, but the script feeds its own data, whose loop starts "
            "again: start it at the session's `first_step` "
            "(`hpcflow help checkpoints`)",
            step,
        )
