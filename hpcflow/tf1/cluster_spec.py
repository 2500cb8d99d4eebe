"""ClusterSpec: the tasks of a job by TensorFlow 1's names, each with a `host:port`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpcflow.errors import LaunchError

MOST_TASKS = 1 << 24
Addresses = Sequence[str] | Mapping[int, str]


class ClusterSpec:
    """The tasks of a job: {"ps": ["host0:2222"], "worker": ["host1:2222", "host2:2222"]}.

    The tasks of a job may also be a dict {number: address}. MPI ranks are assigned to the tasks,
    see `hf.train.Server`. Addresses are used only as names; no connection is made to them.
    Errors: LaunchError for another kind of argument.
    """

    def __init__(self, cluster: ClusterSpec | Mapping[str, Addresses]) -> None:
        addresses: Any = cluster.as_dict() if isinstance(cluster, ClusterSpec) else cluster
        if not isinstance(addresses, Mapping):
            raise LaunchError(
                f"{cluster!r} is not a cluster", hint="give {'ps': [...], 'worker': [...]}"
            )
        jobs = sorted(addresses, key=str)
        self._jobs = {str(job): _tasks(str(job), addresses[job]) for job in jobs}

    @property
    def jobs(self) -> list[str]:
        """The names of the jobs."""
        return list(self._jobs)

    def as_dict(self) -> dict[str, list[str] | dict[int, str]]:
        """A dict {job: addresses}; the addresses are a dict by number if numbers are missing."""
        return {
            job: list(tasks.values()) if list(tasks) == list(range(len(tasks))) else dict(tasks)
            for job, tasks in self._jobs.items()
        }

    def num_tasks(self, job_name: str) -> int:
        """The number of tasks of a job.

        Errors: LaunchError for an unknown job.
        """
        return len(self._job(job_name))

    def task_indices(self, job_name: str) -> list[int]:
        """The task numbers of a job."""
        return list(self._job(job_name))

    def task_address(self, job_name: str, task_index: int) -> str:
        """The address of a task.

        Errors: LaunchError for an unknown task.
        """
        tasks = self._job(job_name)
        if task_index not in tasks:
            raise LaunchError(
                f"/job:{job_name}/task:{task_index} is not in the cluster",
                hint=f"job {job_name!r} has the tasks {', '.join(map(str, tasks))}",
            )
        return tasks[task_index]

    def job_tasks(self, job_name: str) -> list[str | None]:
        """The addresses of a job by task number; None for missing numbers."""
        tasks = self._job(job_name)
        return [tasks.get(i) for i in range(max(tasks, default=-1) + 1)]

    def _job(self, name: str) -> dict[int, str]:
        if name not in self._jobs:
            raise LaunchError(
                f"the cluster has no job {name!r}", hint=f"its jobs are {', '.join(self._jobs)}"
            )
        return self._jobs[name]

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClusterSpec) and self._jobs == other._jobs

    def __hash__(self) -> int:
        return hash(str(self._jobs))

    def __repr__(self) -> str:
        return f"ClusterSpec({self.as_dict()})"


def _tasks(job: str, tasks: Any) -> dict[int, str]:
    """The tasks of a job as a dict {number: address}."""
    if isinstance(tasks, Mapping):
        pairs = list(tasks.items())
    elif isinstance(tasks, (list, tuple)):
        pairs = list(enumerate(tasks))
    else:
        raise LaunchError(
            f"the tasks of job {job!r} must be a list, not {tasks!r}",
            hint="give a list of 'host:port'",
        )
    for number, address in pairs:
        is_number = isinstance(number, int) and 0 <= number < MOST_TASKS
        if not is_number or not isinstance(address, str) or not address:
            raise LaunchError(
                f"task {number!r} of job {job!r} has an invalid index or address {address!r}",
                hint="give strings 'host:port'; text.split(',') makes a list of them",
            )
    return dict(sorted(pairs))
