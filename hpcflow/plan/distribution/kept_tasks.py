"""Kept tasks: a variable, queue or random operation keeps its task when the graph grows.

Steps that were planned find its value, or count its draws, on that task.
"""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections.abc import Mapping, Sequence

from hpcflow.graph.dtypes import resource
from hpcflow.graph.graph import Graph, Operation
from hpcflow.graph.op_registry import lookup_op
from hpcflow.plan.ir.program import Cluster

_lock = threading.RLock()
_by_graph: weakref.WeakKeyDictionary[Graph, KeptTasks] = weakref.WeakKeyDictionary()


@dataclasses.dataclass
class KeptTasks:
    """The tasks of state that steps may have used: they do not change when the graph grows.

    Automatic placement keeps those that it chooses among several by itself, by `keep_tasks`.
    """

    cluster: Cluster
    tasks: dict[str, int] = dataclasses.field(default_factory=dict)
    count: int = 0  # of operations of the graph when tasks were last assigned

    def keep(
        self,
        operations: Sequence[Operation],
        allowed: Mapping[str, tuple[int, ...]],
        automatic: bool,
    ) -> None:
        """Keep the tasks of the state among all operations of a graph.

        `allowed` has the tasks of operations with requirements, the first of them that without a
        search. Other state is on the driver, unless its tasks are automatic.
        """
        for op in operations[self.count :]:
            tasks = allowed.get(op.name, () if automatic else (0,))
            if _has_state(op) and tasks and (len(tasks) == 1 or not automatic):
                self.tasks[op.name] = tasks[0]
        self.count = len(operations)


def _has_state(op: Operation) -> bool:
    """Return whether a task holds something of an operation between steps: values, or draws."""
    return lookup_op(op.type).draws_rows or any(t.dtype == resource for t in op.outputs)


def kept_tasks(root: Graph, cluster: Cluster, automatic: bool) -> KeptTasks:
    """Return the kept tasks of a graph: at first, state of planned steps is on the driver."""
    with _lock:
        kept = _by_graph.get(root)
        if kept is None or kept.cluster != cluster:
            kept = _by_graph[root] = KeptTasks(cluster)
            if not automatic:
                kept.keep(root.get_operations()[: root.planned], {}, False)
        return kept


def keep_tasks(root: Graph, cluster: Cluster, tasks: Mapping[str, int]) -> None:
    """Keep the tasks that automatic placement has chosen for variables and random operations."""
    with _lock:
        kept_tasks(root, cluster, True).tasks.update(tasks)
