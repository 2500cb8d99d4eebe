"""Which device each operation of a replica asks for: variables on servers, the rest on a worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hpcflow.errors import PlacementError
from hpcflow.graph.device_names import DeviceName, parse
from hpcflow.graph.graph import Operation
from hpcflow.graph.op_registry import lookup
from hpcflow.graph.static_shape import size_of
from hpcflow.runtime.job.job_membership import current, joined
from hpcflow.tf1.cluster_spec import ClusterSpec

STATE = ("Variable",)
Strategy = Callable[[Operation], int]


def replica_device_setter(
    ps_tasks: int = 0,
    ps_device: str = "/job:ps",
    worker_device: str = "/job:worker",
    merge_devices: bool = True,
    cluster: Any = None,
    ps_ops: Sequence[str] | None = None,
    ps_strategy: Strategy | None = None,
) -> Callable[[Operation], str] | None:
    """A function for `hf.device`: operations of the types `ps_ops` go to servers in turn.

    The number of servers is `ps_tasks` or, with `cluster`, that of the tasks of `ps_device`'s job;
    None if there are none. The others go to `worker_device`, but for constants, which have a copy
    wherever they are used. `ps_strategy` picks the server of an operation, by default round and
    round. Parts of a device that inner scopes ask for stay. Without `merge_devices` an operation
    with a scope of its own is left to it. The number of this worker in `worker_device` is its own;
    another one is a task of the replica, as in `hf.device`.
    Variables outside of it are dealt to the servers by bytes, and large ones are cut: often better.
    """
    server, worker = parse(ps_device), _own_task(worker_device)
    if worker == DeviceName("worker"):
        worker = DeviceName()  # where operations run that ask for nothing
    if cluster is not None:
        spec = ClusterSpec(cluster)
        ps_tasks = spec.num_tasks(server.job) if server.job in spec.jobs else 0
    if not ps_tasks:
        return None
    types = frozenset(STATE if ps_ops is None else ps_ops)
    strategy = _RoundRobin(ps_tasks) if ps_strategy is None else ps_strategy
    if not callable(strategy):
        raise PlacementError(
            f"ps_strategy {strategy!r} is no function", hint="give one of an operation"
        )

    def device_of(op: Operation) -> str:
        asked = parse(op.device)
        if op.device and not merge_devices:
            return op.device
        if op.type in types and asked.job in (None, server.job):
            return str(asked.within(server._replace(task=strategy(op))))
        is_free = not op.inputs and lookup(op.type).pure  # a constant is best where it is used
        return op.device if is_free else str(asked.within(worker))

    return device_of


def _own_task(worker_device: str) -> DeviceName:
    """A worker's device; where it has the number of this worker, as within its replica."""
    named = parse(worker_device)
    if named.job != "worker" or named.task is None or not joined():
        return named
    context = current()
    is_own = context.cluster.tasks_per_replica == 1 and named.task == context.replica
    return named._replace(task=None) if is_own else named


class _RoundRobin:
    def __init__(self, tasks: int) -> None:
        self._tasks, self._next = tasks, 0

    def __call__(self, op: Operation) -> int:
        task, self._next = self._next, (self._next + 1) % self._tasks
        return task


class GreedyLoadBalancingStrategy:
    """For `replica_device_setter`: each operation to the server with the smallest load so far.

    `load_fn` says an operation's load, as `byte_size_load_fn`. TensorFlow's `contrib.training`.
    """

    def __init__(self, num_tasks: int, load_fn: Callable[[Operation], float]) -> None:
        self._loads, self._load_fn = [0.0] * num_tasks, load_fn

    def __call__(self, op: Operation) -> int:
        """The server of `op`; the first of those with equal loads."""
        task = self._loads.index(min(self._loads))
        self._loads[task] += self._load_fn(op)
        return task


def byte_size_load_fn(op: Operation) -> float:
    """The bytes of a variable. Errors: PlacementError for another operation."""
    if op.type != "Variable":
        raise PlacementError(
            f"{op.name!r} is a {op.type}, whose bytes are not known",
            op=op.name,
            line=op.line,
            hint="give GreedyLoadBalancingStrategy a load_fn that knows it",
        )
    return float(op.attrs["dtype"].itemsize * size_of(op.attrs["shape"]))
