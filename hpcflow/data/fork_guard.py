"""Fork guard: forbids forked workers after MPI_Init, since they would share its connections."""

from __future__ import annotations

import sys

from hpcflow.errors import DataError

_MULTIPROCESSING = "multiprocessing.popen_fork"
_is_forbidden = False


def forbid_forks() -> None:
    """From now on a fork by multiprocessing raises an error; other forks are allowed."""
    global _is_forbidden
    if not _is_forbidden:
        _is_forbidden = True
        sys.addaudithook(_refuse)


def _refuse(event: str, _: object) -> None:
    if event != "os.fork":
        return
    frame = sys._getframe(1)
    if frame.f_globals.get("__name__") == _MULTIPROCESSING:
        raise DataError(
            "a process of a job with MPI cannot fork workers: they would share its connections",
            hint="use threads (hf.data reads ahead in one), or "
            "multiprocessing.get_context('forkserver'), started before hpcflow joins the job",
        )
