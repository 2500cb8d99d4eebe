"""Session creators: how a monitored session begins, with initial values or a checkpoint."""

from __future__ import annotations

from typing import Any

from hpcflow.graph.graph import get_default_graph
from hpcflow.runtime.session.config_proto import ConfigProto
from hpcflow.runtime.session.session_target import context_of
from hpcflow.tf1.scaffold import Scaffold
from hpcflow.tf1.scaffold_session import ScaffoldSession


class SessionCreator:
    """Makes the session of a `MonitoredSession`."""

    def create_session(self) -> ScaffoldSession:
        """The session, begun. Ranks: every rank that runs the script."""
        raise NotImplementedError


class ChiefSessionCreator(SessionCreator):
    """Begins from the newest checkpoint of `checkpoint_dir`, or from the given one.

    What the chief's creator says counts on all ranks.
    """

    def __init__(
        self,
        scaffold: Scaffold | None = None,
        master: str = "",
        config: ConfigProto | None = None,
        checkpoint_dir: Any = None,
        checkpoint_filename_with_path: Any = None,
    ) -> None:
        self._scaffold, self._master = scaffold or Scaffold(), master
        self._config = config
        self._folder, self._file = checkpoint_dir, checkpoint_filename_with_path

    def create_session(self) -> ScaffoldSession:
        """The session, begun. Ranks: every rank that runs the script."""
        scaffold = self._scaffold.finalize()
        session = ScaffoldSession(
            scaffold, get_default_graph(), context_of(self._master), self._config
        )
        session.begin(self._folder, self._file)
        return session


class WorkerSessionCreator(ChiefSessionCreator):
    """Begins as the chief does, once the chief has.

    `max_wait_secs` is taken for TensorFlow's sake: the setting `stall_abort_s` ends a long wait.
    """

    def __init__(
        self,
        scaffold: Scaffold | None = None,
        master: str = "",
        config: ConfigProto | None = None,
        max_wait_secs: float = 1800,
    ) -> None:
        super().__init__(scaffold, master, config)
