"""Whole clusters in one process, for tests."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from hpcflow.comm.thread_communicator import thread_world
from hpcflow.errors import LaunchError
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.settings import Settings
from hpcflow.tf1.cluster_spec import ClusterSpec
from hpcflow.tf1.server import Server


def create_local_cluster(num_workers: int, num_ps: int) -> tuple[list[Server], list[Server]]:
    """Tasks that are threads of this process and exchange messages in memory: (workers, servers).

    Sessions of several workers may run at once, each in a thread of its own. The cluster serves
    until `end_local_cluster`, or until the process ends.
    """
    size = num_workers + num_ps
    if num_workers < 1 or num_ps < 0:
        raise LaunchError(
            f"a cluster cannot have {num_workers} workers and {num_ps} servers",
            hint="give at least one worker",
        )
    settings = Settings.from_environ(ps=num_ps, serve=False, tasks_per_replica=1)
    worlds = thread_world(size)
    contexts: list[RankContext | None] = [None] * size
    barrier = threading.Barrier(size + 1)

    def task(rank: int) -> None:
        contexts[rank] = context = RankContext(settings, worlds[rank], crowded=True)
        barrier.wait()
        if not context.is_driver:
            context.serve()

    threads = [
        threading.Thread(target=task, args=(rank,), daemon=True, name=f"task-{rank}")
        for rank in range(size)
    ]
    for thread in threads:
        thread.start()
    barrier.wait()
    addresses = [f"localhost:{2222 + i}" for i in range(size)]
    jobs = {"ps": addresses[:num_ps], "worker": addresses[num_ps:]}
    cluster = ClusterSpec({job: tasks for job, tasks in jobs.items() if tasks})
    tasks = [
        Server.of(cluster, context, None if context.is_driver else thread)
        for context, thread in zip(contexts, threads, strict=True)
        if context is not None
    ]
    workers = [task for task in tasks if task.server_def.job_name == "worker"]
    return workers, [task for task in tasks if task.server_def.job_name == "ps"]


def end_local_cluster(workers: Sequence[Server]) -> None:
    """End the cluster of these workers, which are all it has; no step may be running."""
    leaving = [threading.Thread(target=w.context.leave, daemon=True) for w in workers]
    for thread in leaving:
        thread.start()
    for thread in leaving:
        thread.join()
