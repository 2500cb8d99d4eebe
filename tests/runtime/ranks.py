"""Run a function on several ranks that are threads of this process: whole jobs without mpirun."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from hpcflow.comm.thread_communicator import thread_world
from hpcflow.errors import CommError
from hpcflow.graph.graph import Graph
from hpcflow.runtime.job import job_membership
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings

LIMIT_S = 200.0  # only a wrong program needs it
SMALL = {"random_seed": 1, "part_bytes": 1}  # settings of jobs unless they say others


def run_ranks(
    n: int, body: Callable[[RankContext], Any], seed: int | None = None, **settings: Any
) -> list[Any]:
    """`body(context)` on each rank that runs the script, inside a graph of its own.

    The others serve. Returns the drivers' results in rank order; raises the first error of a rank.
    `seed` delays messages at random. Jobs draw the same where nothing has a seed, unless
    `random_seed` says another, and all replicas write parts of their small checkpoints, unless
    `part_bytes` says more.
    """
    delays = {} if seed is None else {"seed": seed}
    settings = {**SMALL, **settings}
    worlds = thread_world(n, **delays)
    results: list[Any] = [None] * n
    errors: list[BaseException] = []

    def rank(r: int) -> None:
        try:
            mine = RankContext(Settings(**settings), worlds[r], crowded=True)
            with job_membership.use_context(mine), Graph().as_default():
                if mine.is_driver:
                    results[r] = body(mine)
                    mine.leave()
                else:
                    mine.serve()
        except BaseException as error:
            errors.append(error)
            with contextlib.suppress(CommError):  # every call fails from now on, this one too
                worlds[r].abort(1)

    threads = [threading.Thread(target=rank, args=(r,), daemon=True) for r in range(n)]
    for thread in threads:
        thread.start()
    late = time.monotonic() + LIMIT_S
    for thread in threads:
        thread.join(max(0.0, late - time.monotonic()))
    if errors:
        raise errors[0]
    if any(thread.is_alive() for thread in threads):
        raise TimeoutError(f"{sum(t.is_alive() for t in threads)} ranks still run")
    return [r for r in results if r is not None]


@contextlib.contextmanager
def checked_passes() -> Iterator[None]:
    """Sessions made here check behind each pass of the planner that no effect was lost."""
    (world,) = thread_world(1)
    context = RankContext(Settings(verify_passes=True, plan_cache="none"), world)
    with job_membership.use_context(context), Graph().as_default():
        yield
        context.leave()


def run_here(body: Callable[[RankContext], Any], **settings: Any) -> Any:
    """`body(context)` on the ranks of mpirun that run the script; the others serve.

    Every rank of the world calls it. Returns the driver's result, None on ranks that served.
    """
    settings = {**SMALL, **settings}
    from hpcflow.comm import mpi_communicator

    world = mpi_communicator.world()
    mine = world.split(range(world.size))
    here = RankContext(Settings(**settings), mine, crowded=True)
    with job_membership.use_context(here), Graph().as_default():
        if not here.is_driver:
            here.serve()
            return None
        result = body(here)
        here.leave()
        return result
