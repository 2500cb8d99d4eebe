"""Session target, as in TensorFlow 1: names the task that a session belongs to."""

from __future__ import annotations

from hpcflow.errors import LaunchError
from hpcflow.runtime.job.job_membership import current
from hpcflow.runtime.job.rank_context import Context


class Target(str):
    """A string such as `mpi://worker/3`, with the context of its task."""

    context: Context

    def __new__(cls, text: str, context: Context) -> Target:
        """The target `text` for the task of `context`."""
        made = super().__new__(cls, text)
        made.context = context
        return made


def context_of(target: str | None) -> Context:
    """The context of a server's target; the current context if `target` is None or empty.

    Errors: LaunchError for any other string.
    """
    if not target:
        return current()
    if isinstance(target, Target):
        return target.context
    raise LaunchError(
        f"{target!r} is the target of no hf.train.Server",
        hint="give server.target, or leave it out",
    )
