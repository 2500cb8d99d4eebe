"""Server: TensorFlow 1's name for being a task of a cluster; here MPI's rank says which one."""

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
from hpcflow.platform.rank_logging import show
from hpcflow.runtime.job.job_membership import current, joined
from hpcflow.runtime.job.rank_context import Context
from hpcflow.runtime.session.config_proto import ConfigProto
from hpcflow.runtime.session.session_target import Target
from hpcflow.settings import PREFIX, Settings
from hpcflow.tf1.cluster_spec import ClusterSpec

TOLD = 8  # tasks named in the line that says which rank is which


@dataclasses.dataclass(frozen=True)
class ServerDef:
    """What a server is: its cluster, and which task of it."""

    cluster: ClusterSpec
    job_name: str
    task_index: int
    protocol: str = "mpi"


class Server:
    """This rank as a task of a cluster: its sessions run in `target`.

    `cluster` lists the tasks (`ClusterSpec`); MPI's ranks are mapped to them, and the chief prints
    how. `job_name` and `task_index` may be left out: the rank knows. If all ranks that run the
    script are told the same task, as by one command line for all, the rank decides; use
    `server_def.task_index`. `protocol`, `config` and `start` are taken for TensorFlow's sake: a
    session has a config of its own.

    Ranks:  every rank. One that serves variables does so from here on until the job ends, and never
            returns; under `hpcflow run` it does not run the script at all.
    Errors: LaunchError with the command line that fits if the job has other ranks than the cluster
            tasks, or if ranks were each told a task and it is not theirs.
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
        given = server_or_cluster_def
        if isinstance(given, ServerDef):
            job_name = given.job_name if job_name is None else job_name
            task_index = given.task_index if task_index is None else task_index
            given = given.cluster
        cluster = ClusterSpec(given)
        _check_jobs(cluster)
        context = _join(cluster, job_name)
        _check_size(cluster, context)
        told = _told(job_name, task_index)
        is_same = _check_told(told, context)
        if context.is_chief:
            show(describe(cluster, context, told if is_same else ""))
        self._be(cluster, context)

    def _be(
        self, cluster: ClusterSpec, context: Context, serving: threading.Thread | None = None
    ) -> None:
        _, job, task = (part.partition(":")[2] for part in _name(context).split("/"))
        self.context, self._serving = context, serving
        self.server_def = ServerDef(cluster, job, int(task))

    @classmethod
    def of(
        cls, cluster: ClusterSpec, context: Context, serving: threading.Thread | None = None
    ) -> Server:
        """The server of a context that is a task of `cluster`, `serving` in a thread or not."""
        made = cls.__new__(cls)
        made._be(cluster, context, serving)
        return made

    @staticmethod
    def create_local_server(config: ConfigProto | None = None, start: bool = True) -> Server:
        """A task that is a cluster of its own, whatever job this process belongs to."""
        alone = {"ps": 0, "serve": False, "tasks_per_replica": 1, "sync": "", "inject": ""}
        context = Context(Settings.from_environ(**alone))
        return Server.of(ClusterSpec({"worker": ["localhost:0"]}), context)

    @property
    def target(self) -> str:
        """For `hf.Session(server.target)`, `MonitoredTrainingSession(master=server.target)` ..."""
        job, task = self.server_def.job_name, self.server_def.task_index
        return Target(f"mpi://{job}/{task}", self.context)

    def start(self) -> None:
        """Nothing: it has begun when it is made."""

    def join(self) -> None:
        """Serve until the job ends, where this rank serves; a rank of MPI does not come back.

        Errors: LaunchError on a rank that runs the script: nobody would run it any more.
        """
        if self._serving is not None:
            self._serving.join()
            return
        if not self.context.is_driver:
            self.context.serve()
            raise SystemExit(0)
        raise LaunchError(
            f"join() on {_name(self.context)}, which runs the script: it would wait for ever",
            rank=self.context.rank,
            hint="ranks that serve variables never come here: leave job_name to the rank, or start "
            "with --job_name=worker; for workers that one graph spans start with "
            "--tasks-per-replica",
        )


def _name(context: Context) -> str:
    return context.task_name(context.rank)


def _told(job_name: str | None, task_index: int | None) -> str:
    """The task that the script names, "" if none."""
    if not job_name and task_index is None:
        return ""
    return f"/job:{job_name or 'worker'}/task:{task_index or 0}"


def _check_jobs(cluster: ClusterSpec) -> None:
    other = [job for job in cluster.jobs if job not in ("ps", "worker")]
    if other or "worker" not in cluster.jobs:
        raise LaunchError(
            f"a cluster with the jobs {', '.join(cluster.jobs) or 'of nobody'}",
            hint="name them ps and worker: worker 0 is the chief",
        )


def _counts(cluster: ClusterSpec) -> tuple[int, int]:
    """How many servers and workers it lists."""
    return cluster.num_tasks("ps") if "ps" in cluster.jobs else 0, cluster.num_tasks("worker")


def _join(cluster: ClusterSpec, job_name: str | None) -> Context:
    """This rank's context; where MPI's ranks have no roles yet they get those of the cluster."""
    if joined():
        return current()
    servers, workers = _counts(cluster)
    if launcher_detection.detect() is None and servers + workers > 1:
        raise _misfit(cluster, "this process was started alone, without a launcher", None)
    given: dict[str, object] = {"ps": servers, "serve": job_name == "ps"}
    return current(**{k: v for k, v in given.items() if PREFIX + k.upper() not in os.environ})


def _check_size(cluster: ClusterSpec, context: Context) -> None:
    servers, workers = _counts(cluster)
    found = len(context.roles.servers), len(context.roles.workers)
    if found != (servers, workers):
        raise _misfit(
            cluster,
            f"this job has {context.size} ranks: {found[0]} serve variables, {found[1]} work",
            context,
        )


def _misfit(cluster: ClusterSpec, here: str, context: Context | None) -> LaunchError:
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


def _check_told(told: str, context: Context) -> bool:
    """Whether all were told one and the same task, so that the ranks decide.

    Errors: LaunchError on all ranks if one was told a task that is another's.
    """
    drivers, said = context.drivers, [told]
    if drivers is not None and drivers.size > 1:
        context.meet("making an hf.train.Server")
        said = drivers.all_gather_text(told)
    names = [context.task_name(rank) for rank in context.roles.drivers]
    if len(set(said)) == 1:
        return bool(told) and (len(names) > 1 or told != names[0])
    wrong = [
        f"rank {rank} is {name}, but was told {text}"
        for rank, name, text in zip(context.roles.drivers, names, said, strict=True)
        if text not in ("", name)
    ]
    if not wrong:
        return False
    raise LaunchError(
        "; ".join(wrong[:TOLD]),
        rank=context.rank,
        hint="give the tasks in the order of the ranks, or the same command line to all ranks "
        "without job_name and task_index",
    )


def describe(cluster: ClusterSpec, context: Context, told: str = "") -> str:
    """The line that says which rank each task is; `told` is what all ranks were told."""
    named = list(_tasks(cluster, context))
    words = [f"{task} ({address}) is rank {rank}" for task, address, rank in named[:TOLD]]
    more = f" and so on, {len(named)} tasks" if len(named) > TOLD else ""
    why = f". All were told {told}: the ranks decide" if told else ""
    return f"the cluster over MPI, no address is used: {', '.join(words)}{more}{why}"


def _tasks(cluster: ClusterSpec, context: Context) -> Iterator[tuple[str, str, int]]:
    """(task, address, rank) of each task."""
    roles = context.roles
    for job, ranks in (("ps", roles.servers), ("worker", roles.workers)):
        for number, rank in zip(cluster.task_indices(job) if ranks else [], ranks, strict=True):
            yield f"/job:{job}/task:{number}", cluster.task_address(job, number), rank
