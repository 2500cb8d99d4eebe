"""Where a training session keeps its checkpoints: in the script's folder, or in that of a setting.

`checkpoints` takes the place of the folder that the script names, `default_checkpoints` is for
scripts that name none, as job scripts give it. From either the session goes on.
"""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import Any, NamedTuple

from hpcflow.platform.rank_logging import logger
from hpcflow.runtime.job.rank_context import Context
from hpcflow.runtime.session.session import Session
from hpcflow.train.global_step_counter import get_global_step

_sessions: weakref.WeakKeyDictionary[Context, list[str]] = weakref.WeakKeyDictionary()


class Chosen(NamedTuple):
    """The folder, None for no checkpoints; with `by_setting` the session goes on from there."""

    folder: Path | None
    by_setting: bool


def choose(context: Context, own: Any) -> Chosen:
    """The folder of one more session of this process, whose script names `own` (None: no folder).

    A second session in the folder of a setting would go on from the first one's variables. So the
    sessions of a script that has several keep theirs in DIR, DIR-2, DIR-3; those that name one
    folder of the script's share one.

    Ranks: every rank that runs the script makes the same sessions in the same order.
    """
    own = None if not own else str(own)
    settings = context.settings
    folder = settings.checkpoints or (settings.default_checkpoints if own is None else "")
    if not folder:
        return Chosen(None if own is None else Path(own), False)
    names = _sessions.setdefault(context, [])
    name = f"session {len(names)}" if own is None else os.path.abspath(own)
    if name not in names:
        names.append(name)
    number = names.index(name) + 1
    chosen = Path(folder if number == 1 else f"{Path(folder)}-{number}")
    if own is not None and name != os.path.abspath(chosen) and context.is_chief:
        text = "the setting checkpoints: %s takes the place of the script's own folder %s"
        logger.info(text, chosen, own)
    return Chosen(chosen, True)


def tell_own_loop(session: Session, step: int) -> None:
    """A script that need not know of checkpoints goes on at `step`: what if it counts by itself?

    A dataset of `hf.data` goes on at its place, and a global step with its value.
    """
    graph = session.graph
    counts = graph.get_collection("datasets") or get_global_step(graph) is not None
    if session.context.is_chief and not counts:
        logger.warning(
            "training goes on from step %d, but the script feeds its own data, and a loop of its "
            "own begins anew: let it begin at the session's `first_step` "
            "(`hpcflow help checkpoints`)",
            step,
        )
