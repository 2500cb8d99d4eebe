"""What TensorFlow 1 calls a target: the task that a session belongs to, as a text."""

from __future__ import annotations

from hpcflow.errors import LaunchError
from hpcflow.runtime.job.job_membership import current
from hpcflow.runtime.job.rank_context import Context


class Target(str):
    """The text `mpi://worker/3` that knows the context of its task."""

    context: Context

    def __new__(cls, text: str, context: Context) -> Target:
        """`text`, for the task of `context`."""
        made = super().__new__(cls, text)
        made.context = context
        return made


def context_of(target: str | None) -> Context:
    """The context of a server's target; without one that in force.

    Errors: LaunchError for any other text.
    """
    if not target:
        return current()
    if isinstance(target, Target):
        return target.context
    raise LaunchError(
        f"{target!r} is the target of no hf.train.Server",
        hint="give server.target, or leave it out",
    )
