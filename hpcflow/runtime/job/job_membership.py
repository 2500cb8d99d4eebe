"""Job membership: joins this process to its job, and sets the context of the current thread."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from hpcflow.launch import launcher_detection
from hpcflow.monitoring import cross_node_wait_ledgers, failure_json, srun_rank_supervisor
from hpcflow.platform import rank_logging
from hpcflow.platform.rank_logging import logger
from hpcflow.ps import script_rules
from hpcflow.runtime.failure import abort_on_error
from hpcflow.runtime.job.rank_context import OnPlan, RankContext
from hpcflow.settings import Settings

_current: RankContext | None = None
_override = threading.local()


def current_context(**given: object) -> RankContext:
    """The current context: that of `use`, else this process's own; joins the job if necessary.

    It joins with the settings `given`. A rank that does not run the script serves here until the
    job ends, then raises SystemExit.
    """
    override = getattr(_override, "context", None)
    if override is not None:
        return override
    context = join_job(**given)
    if not context.is_driver:
        serve()
        raise SystemExit(0)
    return context


@contextlib.contextmanager
def use_context(context: RankContext) -> Iterator[RankContext]:
    """Make `context` the current one of this thread: for tests and planning."""
    before = getattr(_override, "context", None)
    _override.context = context
    try:
        yield context
    finally:
        _override.context = before


@contextlib.contextmanager
def simulated_driver(ranks: int, settings: Settings, on_plan: OnPlan) -> Iterator[RankContext]:
    """Inside, a script is the driver of replica 0 in a simulated job of `ranks` ranks.

    Each step is planned and passed to `on_plan`, but does not run: fetches are zeros of the right
    shape. The first plan that updates state, other than initialization, ends the script by
    `PlanningFinished`.
    """
    context = RankContext(settings, simulated_ranks=ranks, on_plan=on_plan)
    with use_context(context):
        yield context


class PlanningFinished(BaseException):
    """Ends a script that is only planned; no Exception, so that `except Exception` passes it on."""


def has_joined() -> bool:
    """Whether this thread has a context, or this process has joined its job."""
    return getattr(_override, "context", None) is not None or _current is not None


def join_job(**given: object) -> RankContext:
    """Join the job as a rank, once; without a launcher MPI is not used.

    The settings are those of the environment and, on the first call, those `given`.
    Errors: LaunchError if launcher and MPI disagree on the number of ranks.
    """
    global _current
    script_rules.check_not_importing()
    if _current is None:
        settings = Settings.from_environ(**given)
        place = launcher_detection.detect_launcher()
        if place is None:
            failure_json.prepare_folder(settings.run_dir)
            rank_logging.set_up_logging(0, 1, settings.run_dir, settings.log_files)
            _current = RankContext(settings)
        else:
            _current = _create_context(settings, place)
        _tell_missing_pack()
        hook = sys.excepthook
        is_imports = getattr(hook, "__module__", None) == "hpcflow"  # of `import hpcflow`
        hook = sys.__excepthook__ if is_imports else hook
        sys.excepthook = functools.partial(abort_on_error.on_error, _current, hook)
        atexit.register(_current.leave)
    return _current


def _tell_missing_pack() -> None:
    """Warn if the pack that HPCFLOW_PACK_FILE names could not be used."""
    if os.environ.get("HPCFLOW_PACK_FILE"):
        from hpcflow.platform.pack_importer import problems

        for text in problems:
            logger.warning("hpcflow is imported file by file: %s", text)


def register_leave() -> None:
    """At exit, leave the job before the exit handlers of the libraries loaded so far run."""
    if _current is not None:
        atexit.unregister(_current.leave)
        atexit.register(_current.leave)


def _create_context(
    settings: Settings, launched_rank: launcher_detection.LaunchedRank
) -> RankContext:
    from hpcflow.comm import mpi_communicator, mpi_library
    from hpcflow.comm.polling_backoff import crowded_hosts

    if settings.survive:
        launcher_detection.check_survive(launched_rank)
    launcher_detection.check_library(launched_rank, mpi_library.build_facts())
    with abort_on_error.abort_on_exception(
        launched_rank.rank, launched_rank.size, settings, mpi_library.abort
    ):
        world = mpi_communicator.world()
        srun_rank_supervisor.share_connection()
    launcher_detection.check_world(launched_rank, world.size, mpi_library.library_version())
    with abort_on_error.abort_on_exception(world.rank, world.size, settings, mpi_library.abort):
        if world.rank == 0:
            failure_json.prepare_folder(settings.run_dir)
            cross_node_wait_ledgers.remove_stale_folders(Path(settings.run_dir))
        rank_logging.set_up_logging(world.rank, world.size, settings.run_dir, settings.log_files)
        crowded = crowded_hosts(world) if not settings.crowded else frozenset(world.hosts)
        context = RankContext(settings, world, world.hosts[world.rank] in crowded, crowded)
        if context.is_chief:
            rank_logging.log_from_info()  # rank 0 may be a server
        context.watch()
        table = context.table()
        if context.rank == 0 and context.size > 1:
            changed = ", ".join(f"{k}={v}" for k, v in settings.changed().items())
            logger.info("%s mode, %s\n%s", context.cluster.mode, changed or "defaults", table)
    return context


def serve() -> None:
    """Serve until the job ends: the main loop of a rank that does not run the script."""
    context = join_job()
    try:
        context.serve()
    except Exception as error:
        abort_on_error.on_error(
            context, sys.__excepthook__, type(error), error, error.__traceback__
        )
