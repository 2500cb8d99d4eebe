"""SyncReplicasOptimizer: TensorFlow 1's class for synchronous workers of parameter servers."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import Any

from hpcflow.errors import GraphError
from hpcflow.graph.deprecated_arguments import accepts_and_ignores
from hpcflow.graph.graph import Graph, Operation, Tensor, user_line
from hpcflow.ops.control_flow.control_dependencies import no_op
from hpcflow.ops.variables.uninitialized_variables import report_uninitialized_variables
from hpcflow.ops.variables.variable_ops import Variable, global_variables
from hpcflow.ps.backup_workers import Backup
from hpcflow.ps.sync_rule import SyncRule
from hpcflow.ps.sync_rules import All
from hpcflow.tf1.session_run_hook import SessionRunHook
from hpcflow.train.optimizers.optimizer import Optimizer, Pairs
from hpcflow.train.training_session import SYNC


@dataclasses.dataclass(frozen=True)
class SyncReplicasRule:
    """The synchronization rule of a graph, which the training session finds in a collection."""

    aggregated: int
    total: int

    def rule(self, workers: int) -> SyncRule:
        """The rule for a job with this number of workers.

        Errors: GraphError if it was created for another number.
        """
        if workers != self.total:
            raise GraphError(
                f"SyncReplicasOptimizer was made for {self.total} workers; this job has {workers}",
                hint=f"give total_num_replicas={workers}, or start {self.total} workers",
            )
        extra = self.total - self.aggregated
        return Backup(extra) if extra else All()


class SyncReplicasOptimizer(Optimizer):
    """`opt` with the first `replicas_to_aggregate` gradients of `total_num_replicas` workers.

    It sets the synchronization rule of the graph's training session: `sync="all"`, or with fewer
    gradients than workers (backup workers) `sync=hf.Backup(total - aggregated)`, which drops the
    late gradients. `total_num_replicas` defaults to `replicas_to_aggregate`. TensorFlow's queues,
    tokens and hooks are not needed; their methods return objects without effect.

    Ranks: sessions are of `hf.train`: `MonitoredTrainingSession`, `Supervisor`, `TrainingSession`.
    """

    @accepts_and_ignores("use_locking")
    def __init__(
        self,
        opt: Optimizer,
        replicas_to_aggregate: int,
        total_num_replicas: int | None = None,
        name: str = "sync_replicas",
    ) -> None:
        super().__init__(name)
        total = replicas_to_aggregate if total_num_replicas is None else total_num_replicas
        if not 1 <= replicas_to_aggregate <= total:
            raise GraphError(
                f"replicas_to_aggregate {replicas_to_aggregate} must be from 1 to "
                f"total_num_replicas {total}",
                line=user_line(),
                hint="for more samples in an update use hf.train.AccumulatingOptimizer",
            )
        self._optimizer, self._sync = opt, SyncReplicasRule(replicas_to_aggregate, total)

    def compute_gradients(
        self, loss: Tensor, var_list: Sequence[Variable] | None = None, grad_loss: Any = None
    ) -> list[tuple[Any, Variable]]:
        """The method of the wrapped optimizer."""
        return self._optimizer.compute_gradients(loss, var_list, grad_loss)

    def _own_gradients(
        self, loss: Tensor, var_list: Sequence[Variable] | None, grad_loss: Any
    ) -> list[tuple[Any, Variable]]:
        return self._optimizer._own_gradients(loss, var_list, grad_loss)

    def apply_gradients(
        self, grads_and_vars: Pairs, global_step: Variable | None = None, name: str | None = None
    ) -> Operation:
        """The method of the wrapped optimizer.

        Errors: GraphError if the graph has another such rule.
        """
        step = self._optimizer.apply_gradients(grads_and_vars, global_step, name)
        _register_sync_rule(step.graph, self._sync)
        return step

    def get_slot(self, var: Variable, name: str) -> Variable | None:
        """The slot of the wrapped optimizer."""
        return self._optimizer.get_slot(var, name)

    def get_slot_names(self) -> list[str]:
        """The slot names of the wrapped optimizer."""
        return self._optimizer.get_slot_names()

    def variables(self) -> list[Variable]:
        """The slots of the wrapped optimizer."""
        return self._optimizer.variables()

    # -- methods for compatibility with TensorFlow scripts

    def make_session_run_hook(self, is_chief: bool, num_tokens: int = -1) -> SessionRunHook:
        """A hook without effect: server 0 starts the steps; there are no tokens to initialize."""
        return SessionRunHook()

    def get_chief_queue_runner(self) -> NoQueueRunner:
        """A queue runner without threads: server 0 applies the aggregated gradients."""
        return NoQueueRunner()

    def get_init_tokens_op(self, num_tokens: int = -1) -> Operation:
        """An operation without effect: there is no token queue to fill."""
        return no_op()

    @property
    def chief_init_op(self) -> Operation:
        """An operation without effect: the servers keep the step number."""
        return no_op()

    local_step_init_op = chief_init_op

    @property
    def ready_for_local_init_op(self) -> Tensor:
        """The names of uninitialized variables."""
        return report_uninitialized_variables(global_variables())


class NoQueueRunner:
    """A queue runner without threads."""

    name = "sync_replicas"

    def create_threads(self, *args: Any, **kwargs: Any) -> list[threading.Thread]:
        """None: it has no threads."""
        return []


def _register_sync_rule(graph: Graph, sync: SyncReplicasRule) -> None:
    rules = graph.get_collection_ref(SYNC)
    if rules and rules != [sync]:
        raise GraphError(
            f"this graph already has {rules[0]}, which differs from {sync}",
            line=user_line(),
            hint="give all optimizers of a graph the same numbers",
        )
    rules[:] = [sync]
