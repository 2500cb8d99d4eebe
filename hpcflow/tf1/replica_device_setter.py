"""Replica device setter: places variables on servers and other operations on a worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hpcflow.errors import PlacementError
from hpcflow.graph.device_names import DeviceName, parse_device
from hpcflow.graph.graph import Operation
from hpcflow.graph.op_registry import lookup_op
from hpcflow.graph.static_shape import size_of
from hpcflow.runtime.job.job_membership import current_context, has_joined
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
    """A function for `hf.device` that places operations of types `ps_ops` on servers.

    The number of servers is `ps_tasks` or, with `cluster`, the number of tasks of the job of
    `ps_device`. The result is None for no servers. Other operations go to `worker_device`, except
    constants, which are copied to each device that uses them. `ps_strategy` selects the server of
    an operation, by default round-robin. Fields set by inner device scopes override. Without
    `merge_devices`, an operation that has a device scope is not changed. If `worker_device` has the
    number of this worker, it is the worker itself; another number is a task of the replica, as in
    `hf.device`. Without this function variables are balanced over the servers by bytes, and large
    ones are sharded, which is often better.
    """
    server, worker = parse_device(ps_device), _own_task(worker_device)
    if worker == DeviceName("worker"):
        worker = DeviceName()  # device of operations without a request
    if cluster is not None:
        spec = ClusterSpec(cluster)
        ps_tasks = spec.num_tasks(server.job) if server.job in spec.jobs else 0
    if not ps_tasks:
        return None
    types = frozenset(STATE if ps_ops is None else ps_ops)
    strategy = _RoundRobin(ps_tasks) if ps_strategy is None else ps_strategy
    if not callable(strategy):
        raise PlacementError(
            f"ps_strategy {strategy!r} is not a function", hint="give a function of an operation"
        )

    def device_of(op: Operation) -> str:
        requested = parse_device(op.device)
        if op.device and not merge_devices:
            return op.device
        if op.type in types and requested.job in (None, server.job):
            return str(requested.within(server._replace(task=strategy(op))))
        is_free = not op.inputs and lookup_op(op.type).pure  # constants are copied to their users
        return op.device if is_free else str(requested.within(worker))

    return device_of


def _own_task(worker_device: str) -> DeviceName:
    """A worker's device; the number of this worker is replaced by its task within the replica."""
    device = parse_device(worker_device)
    if device.job != "worker" or device.task is None or not has_joined():
        return device
    context = current_context()
    is_own = context.cluster.tasks_per_replica == 1 and device.task == context.replica
    return device._replace(task=None) if is_own else device


class _RoundRobin:
    def __init__(self, tasks: int) -> None:
        self._tasks, self._next = tasks, 0

    def __call__(self, op: Operation) -> int:
        task, self._next = self._next, (self._next + 1) % self._tasks
        return task


class GreedyLoadBalancingStrategy:
    """A strategy for `replica_device_setter`: the server with the smallest load so far.

    `load_fn` returns the load of an operation, for example `byte_size_load_fn`. The class is from
    TensorFlow's `contrib.training`.
    """

    def __init__(self, num_tasks: int, load_fn: Callable[[Operation], float]) -> None:
        self._loads, self._load_fn = [0.0] * num_tasks, load_fn

    def __call__(self, op: Operation) -> int:
        """The server of `op`: the first of those with the smallest load."""
        task = self._loads.index(min(self._loads))
        self._loads[task] += self._load_fn(op)
        return task


def byte_size_load_fn(op: Operation) -> float:
    """The bytes of a variable.

    Errors: PlacementError for another operation.
    """
    if op.type != "Variable":
        raise PlacementError(
            f"the size in bytes of {op.name!r} ({op.type}) is not known",
            op=op.name,
            line=op.line,
            hint="give GreedyLoadBalancingStrategy a load_fn that returns it",
        )
    return float(op.attrs["dtype"].itemsize * size_of(op.attrs["shape"]))
