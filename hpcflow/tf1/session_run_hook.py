"""Session run hooks: the methods that are called around each run of a monitored session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from hpcflow.graph.graph import Graph
from hpcflow.runtime.session.config_proto import RunMetadata, RunOptions
from hpcflow.tf1.coordinator import Coordinator
from hpcflow.train.training_session import TrainingSession


class SessionRunArgs(NamedTuple):
    """Additional fetches, feeds and options of a run."""

    fetches: Any
    feed_dict: Mapping[Any, Any] | None = None
    options: RunOptions | None = None


class SessionRunValues(NamedTuple):
    """Results of the run for a hook: its fetches' values, and the run's options and metadata."""

    results: Any
    options: RunOptions | None = None
    run_metadata: RunMetadata | None = None


class SessionRunContext:
    """The run that a hook is called for: its arguments, its session, and the stop request."""

    def __init__(self, original_args: SessionRunArgs, session: TrainingSession) -> None:
        self.original_args, self.session = original_args, session
        self.stop_requested = False

    def request_stop(self) -> None:
        """Stop after this run: `should_stop` of the session becomes true."""
        self.stop_requested = True

    @property
    def is_joint(self) -> bool:
        """Whether replicas are synchronous: all must then fetch the same in this run."""
        return self.session.context.cluster.mode == "collective"


class SessionRunHook:
    """Base class of hooks; every method is optional.

    Ranks: synchronous replicas (collective mode) must all return the same fetches from
    `before_run`, and must stop after the same run.
    """

    def begin(self) -> None:
        """Called before the session is created; may add operations, the same on all ranks."""

    def after_create_session(self, session: TrainingSession, coord: Coordinator) -> None:
        """Called once with the new session; the graph is finalized."""

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Called before each run; returns additional fetches and feeds."""
        return None

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Called after each successful run with the values of the hook's fetches."""

    def end(self, session: TrainingSession) -> None:
        """Called when all workers have run their last step, unless this rank failed."""


class CheckpointSaverListener:
    """Base class of listeners of a `CheckpointSaverHook`; every method is optional.

    With listeners, training waits for the end of each save.

    Ranks: called on each rank whose own hook has the listener. What it runs in `session`, all
           synchronous replicas must run.
    """

    def begin(self) -> None:
        """Called before the session is created; may add operations."""

    def before_save(self, session: TrainingSession, global_step_value: int) -> None:
        """Called before each save."""

    def after_save(self, session: TrainingSession, global_step_value: int) -> bool | None:
        """Called after each save; returning True requests a stop after the next run."""

    def end(self, session: TrainingSession, global_step_value: int) -> None:
        """Called at the end of the session, after the last save."""


class NonChiefHook(SessionRunHook):
    """A chief-only hook on another rank: builds the same graph and fetches the same."""

    def __init__(self, hook: SessionRunHook) -> None:
        self._hook = hook

    def begin(self) -> None:
        """The same as on the chief."""
        self._hook.begin()

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """The same as on the chief, for synchronous replicas."""
        return self._hook.before_run(run_context) if run_context.is_joint else None


def tensor_of(graph: Graph, reference: Any) -> Any:
    """A tensor or variable, also given by name."""
    return graph.get_tensor_by_name(reference) if isinstance(reference, str) else reference
