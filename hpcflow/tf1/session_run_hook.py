"""The protocol of hooks: what is called around each run of a monitored session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from hpcflow.graph.graph import Graph
from hpcflow.runtime.session.config_proto import RunMetadata, RunOptions
from hpcflow.tf1.coordinator import Coordinator
from hpcflow.train.training_session import TrainingSession


class SessionRunArgs(NamedTuple):
    """What to fetch and feed in a run, besides what was asked for."""

    fetches: Any
    feed_dict: Mapping[Any, Any] | None = None
    options: RunOptions | None = None


class SessionRunValues(NamedTuple):
    """The values of what a hook fetched, in the structure of its fetches; what the run was told,
    by all, and tells of itself."""

    results: Any
    options: RunOptions | None = None
    run_metadata: RunMetadata | None = None


class SessionRunContext:
    """A run that a hook is called for: what was asked, the session, and whether to stop."""

    def __init__(self, original_args: SessionRunArgs, session: TrainingSession) -> None:
        self.original_args, self.session = original_args, session
        self.stop_requested = False

    def request_stop(self) -> None:
        """Let `should_stop` of the session be true after this run."""
        self.stop_requested = True

    @property
    def is_joint(self) -> bool:
        """Whether replicas run each step together: all must then fetch the same in it."""
        return self.session.context.cluster.mode == "collective"


class SessionRunHook:
    """Base of hooks; each method may be left as it is.

    Ranks: where replicas train together (collective mode) `before_run` must ask for the same
    fetches on all of them, and all must stop after the same run.
    """

    def begin(self) -> None:
        """Called before the session is made: operations may still be added, alike on all ranks."""

    def after_create_session(self, session: TrainingSession, coord: Coordinator) -> None:
        """Called once, with the new session; no operation can be added any more."""

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Called before each run; what to fetch and feed in it besides."""
        return None

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Called after each run that did not fail, with what `before_run` asked for."""

    def end(self, session: TrainingSession) -> None:
        """Called when all workers have done their last step, unless one failed here."""


class CheckpointSaverListener:
    """Base of what a `CheckpointSaverHook` tells of its saves; each method may be left as it is.

    A save is waited for where there are listeners.

    Ranks: called on each rank whose own hook has it; where replicas train together, what it runs
           in `session` all of them must run.
    """

    def begin(self) -> None:
        """Called before the session is made: operations may still be added."""

    def before_save(self, session: TrainingSession, global_step_value: int) -> None:
        """Called before each save."""

    def after_save(self, session: TrainingSession, global_step_value: int) -> bool | None:
        """Called after each save; True asks for the end, which comes after the next run."""

    def end(self, session: TrainingSession, global_step_value: int) -> None:
        """Called at the end of the session, behind the last save."""


class Elsewhere(SessionRunHook):
    """A hook of the chief on the other ranks: it makes the same graph, and fetches the same."""

    def __init__(self, hook: SessionRunHook) -> None:
        self._hook = hook

    def begin(self) -> None:
        """As the chief's."""
        self._hook.begin()

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """As the chief's, where replicas run each step together."""
        return self._hook.before_run(run_context) if run_context.is_joint else None


def tensor_of(graph: Graph, given: Any) -> Any:
    """A tensor or variable, also by its name."""
    return graph.get_tensor_by_name(given) if isinstance(given, str) else given
