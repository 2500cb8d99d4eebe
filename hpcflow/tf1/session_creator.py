"""Session creators: initialize or restore the session of a monitored session."""

from __future__ import annotations

from typing import Any

from hpcflow.graph.graph import get_default_graph
from hpcflow.runtime.session.config_proto import ConfigProto
from hpcflow.runtime.session.session_target import target_context
from hpcflow.tf1.scaffold import Scaffold
from hpcflow.tf1.scaffold_session import ScaffoldSession


class SessionCreator:
    """Creates the session of a `MonitoredSession`."""

    def create_session(self) -> ScaffoldSession:
        """The initialized session.

        Ranks: every rank that runs the script.
        """
        raise NotImplementedError


class ChiefSessionCreator(SessionCreator):
    """Restores the newest checkpoint of `checkpoint_dir`, or the given checkpoint.

    The arguments of the chief's creator apply to all ranks.
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
        """The initialized session.

        Ranks: every rank that runs the script.
        """
        scaffold = self._scaffold.finalize()
        session = ScaffoldSession(
            scaffold, get_default_graph(), target_context(self._master), self._config
        )
        session.begin(self._folder, self._file)
        return session


class WorkerSessionCreator(ChiefSessionCreator):
    """Initializes as the chief, after the chief.

    `max_wait_secs` is accepted for compatibility with TensorFlow; the setting `stall_abort_s`
    limits the wait.
    """

    def __init__(
        self,
        scaffold: Scaffold | None = None,
        master: str = "",
        config: ConfigProto | None = None,
        max_wait_secs: float = 1800,
    ) -> None:
        super().__init__(scaffold, master, config)
