"""Session target, as in TensorFlow 1: names the task that a session belongs to."""

from __future__ import annotations

from hpcflow.errors import LaunchError
from hpcflow.runtime.job.job_membership import current_context
from hpcflow.runtime.job.rank_context import RankContext


class SessionTarget(str):
    """A string such as `mpi://worker/3`, with the context of its task."""

    context: RankContext

    def __new__(cls, text: str, context: RankContext) -> SessionTarget:
        """The target `text` for the task of `context`."""
        target = super().__new__(cls, text)
        target.context = context
        return target


def target_context(target: str | None) -> RankContext:
    """The context of a server's target; the current context if `target` is None or empty.

    Errors: LaunchError for any other string.
    """
    if not target:
        return current_context()
    if isinstance(target, SessionTarget):
        return target.context
    raise LaunchError(
        f"{target!r} is the target of no hf.train.Server",
        hint="give server.target, or leave it out",
    )
