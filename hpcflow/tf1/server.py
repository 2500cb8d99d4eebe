"""Server: TensorFlow 1's class for a task of a cluster; the MPI rank determines the task."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
import threading
from collections.abc import Iterator
from typing import Any

from hpcflow.errors import LaunchError
from hpcflow.launch import launcher_detection
from hpcflow.platform.rank_logging import print_always
from hpcflow.runtime.job.job_membership import current_context, has_joined
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.session.config_proto import ConfigProto
from hpcflow.runtime.session.session_target import SessionTarget
from hpcflow.settings import PREFIX, Settings
from hpcflow.tf1.cluster_spec import ClusterSpec

MAX_LISTED_TASKS = 8  # tasks named in the mapping message


@dataclasses.dataclass(frozen=True)
class ServerDef:
    """A server's cluster, and its task in it."""

    cluster: ClusterSpec
    job_name: str
    task_index: int
    protocol: str = "mpi"


class Server:
    """This rank as a task of a cluster; sessions run in its `target`.

    `cluster` lists the tasks (`ClusterSpec`). MPI ranks are mapped to them, and the chief prints
    the mapping. `job_name` and `task_index` are optional, since the rank determines them. If all
    ranks that run the script are given the same task, as by one command line for all, the rank
    decides; use `server_def.task_index`. `protocol`, `config` and `start` are accepted for
    compatibility with TensorFlow: a session has a config of its own.

    Ranks:  every rank. A rank that is a parameter server serves from here until the job ends, and
            the constructor does not return; under `hpcflow run` such a rank does not run the
            script.
    Errors: LaunchError with the correct command line if the numbers of ranks and of tasks in the
            cluster differ, or if ranks were given tasks that are not theirs.
    """

    def __init__(
        self,
        server_or_cluster_def: Any,
        job_name: str | None = None,
        task_index: int | None = None,
        protocol: str | None = None,
        config: ConfigProto | None = None,
        start: bool = True,
    ) -> None:
        definition = server_or_cluster_def
        if isinstance(definition, ServerDef):
            job_name = definition.job_name if job_name is None else job_name
            task_index = definition.task_index if task_index is None else task_index
            definition = definition.cluster
        cluster = ClusterSpec(definition)
        _check_jobs(cluster)
        context = _join(cluster, job_name)
        _check_size(cluster, context)
        task = _script_task(job_name, task_index)
        is_same = _check_told(task, context)
        if context.is_chief:
            print_always(describe(cluster, context, task if is_same else ""))
        self._be(cluster, context)

    def _be(
        self, cluster: ClusterSpec, context: RankContext, serving: threading.Thread | None = None
    ) -> None:
        _, job, task = (part.partition(":")[2] for part in _name(context).split("/"))
        self.context, self._serving = context, serving
        self.server_def = ServerDef(cluster, job, int(task))

    @classmethod
    def of(
        cls, cluster: ClusterSpec, context: RankContext, serving: threading.Thread | None = None
    ) -> Server:
        """The server of a context that is a task of `cluster`; `serving` if a thread serves it."""
        server = cls.__new__(cls)
        server._be(cluster, context, serving)
        return server

    @staticmethod
    def create_local_server(config: ConfigProto | None = None, start: bool = True) -> Server:
        """A server whose cluster is this process alone, in any job."""
        alone = {"ps": 0, "serve": False, "tasks_per_replica": 1, "sync": "", "inject": ""}
        context = RankContext(Settings.from_environ(**alone))
        return Server.of(ClusterSpec({"worker": ["localhost:0"]}), context)

    @property
    def target(self) -> str:
        """The target, the argument of `hf.Session` or `master` of `MonitoredTrainingSession`."""
        job, task = self.server_def.job_name, self.server_def.task_index
        return SessionTarget(f"mpi://{job}/{task}", self.context)

    def start(self) -> None:
        """Do nothing: a server starts when it is created."""

    def join(self) -> None:
        """Serve until the job ends, on a parameter server; an MPI rank does not return.

        Errors: LaunchError on a rank that runs the script, since it would block forever.
        """
        if self._serving is not None:
            self._serving.join()
            return
        if not self.context.is_driver:
            self.context.serve()
            raise SystemExit(0)
        raise LaunchError(
            f"join() on {_name(self.context)}, which runs the script, would wait for ever",
            rank=self.context.rank,
            hint="ranks that serve variables do not run the script: leave job_name out, or "
            "start with "
            "--job_name=worker; use --tasks-per-replica for workers that one graph spans",
        )


def _name(context: RankContext) -> str:
    return context.task_name(context.rank)


def _script_task(job_name: str | None, task_index: int | None) -> str:
    """The task that the script gives, or ""."""
    if not job_name and task_index is None:
        return ""
    return f"/job:{job_name or 'worker'}/task:{task_index or 0}"


def _check_jobs(cluster: ClusterSpec) -> None:
    unknown_jobs = [job for job in cluster.jobs if job not in ("ps", "worker")]
    if unknown_jobs or "worker" not in cluster.jobs:
        raise LaunchError(
            "the jobs of the cluster must be ps and worker, not "
            f"{', '.join(cluster.jobs) or 'none'}",
            hint="name them ps and worker; worker 0 is the chief",
        )


def _counts(cluster: ClusterSpec) -> tuple[int, int]:
    """The numbers of servers and workers in the cluster."""
    return cluster.num_tasks("ps") if "ps" in cluster.jobs else 0, cluster.num_tasks("worker")


def _join(cluster: ClusterSpec, job_name: str | None) -> RankContext:
    """This rank's context; ranks without roles get the roles of the cluster."""
    if has_joined():
        return current_context()
    servers, workers = _counts(cluster)
    if launcher_detection.detect_launcher() is None and servers + workers > 1:
        raise _misfit(cluster, "this process was started alone, without a launcher", None)
    settings: dict[str, object] = {"ps": servers, "serve": job_name == "ps"}
    return current_context(
        **{k: v for k, v in settings.items() if PREFIX + k.upper() not in os.environ}
    )


def _check_size(cluster: ClusterSpec, context: RankContext) -> None:
    servers, workers = _counts(cluster)
    counts = len(context.roles.servers), len(context.roles.workers)
    if counts != (servers, workers):
        raise _misfit(
            cluster,
            f"this job has {context.size} ranks: {counts[0]} servers and {counts[1]} workers",
            context,
        )


def _misfit(cluster: ClusterSpec, here: str, context: RankContext | None) -> LaunchError:
    servers, workers = _counts(cluster)
    spans = context.settings.tasks_per_replica if context is not None else 1
    words = ["hpcflow", "run", "-n", str(servers + workers)]
    words += ["--ps", str(servers)] if servers else []
    words += ["--tasks-per-replica", str(spans)] if spans > 1 else []
    return LaunchError(
        f"the cluster lists {servers} ps and {workers} worker tasks, but {here}",
        rank=context.rank if context is not None else None,
        hint=f"start it by: {' '.join(words)} {shlex.join(sys.argv) or 'SCRIPT'}",
    )


def _check_told(task: str, context: RankContext) -> bool:
    """Whether all ranks were given the same task, so that the ranks decide.

    Errors: LaunchError on all ranks if one was given the task of another.
    """
    drivers, tasks = context.drivers, [task]
    if drivers is not None and drivers.size > 1:
        context.meet("making an hf.train.Server")
        tasks = drivers.all_gather_text(task)
    names = [context.task_name(rank) for rank in context.roles.drivers]
    if len(set(tasks)) == 1:
        return bool(task) and (len(names) > 1 or task != names[0])
    wrong = [
        f"rank {rank} is {name}, but its command line says {text}"
        for rank, name, text in zip(context.roles.drivers, names, tasks, strict=True)
        if text not in ("", name)
    ]
    if not wrong:
        return False
    raise LaunchError(
        "; ".join(wrong[:MAX_LISTED_TASKS]),
        rank=context.rank,
        hint="give the tasks in the order of the ranks, or the same command line to all ranks "
        "without job_name and task_index",
    )


def describe(cluster: ClusterSpec, context: RankContext, requested_task: str = "") -> str:
    """The message with the rank of each task; `requested_task` is the task given to all ranks."""
    tasks = list(_tasks(cluster, context))
    words = [
        f"{task} ({address}) is rank {rank}" for task, address, rank in tasks[:MAX_LISTED_TASKS]
    ]
    suffix = f" and so on, {len(tasks)} tasks" if len(tasks) > MAX_LISTED_TASKS else ""
    why = f". All command lines say {requested_task}; the ranks decide" if requested_task else ""
    return f"the cluster runs over MPI and uses no address: {', '.join(words)}{suffix}{why}"


def _tasks(cluster: ClusterSpec, context: RankContext) -> Iterator[tuple[str, str, int]]:
    """Task, address and rank of each task."""
    roles = context.roles
    for job, ranks in (("ps", roles.servers), ("worker", roles.workers)):
        for number, rank in zip(cluster.task_indices(job) if ranks else [], ranks, strict=True):
            yield f"/job:{job}/task:{number}", cluster.task_address(job, number), rank
