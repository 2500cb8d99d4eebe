"""SessionManager: TensorFlow 1's class that creates initialized or restored plain sessions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hpcflow.errors import CheckpointError, DeadlineExceededError, GraphError, UninitializedError
from hpcflow.graph.graph import Graph, get_default_graph
from hpcflow.runtime.session.config_proto import ConfigProto
from hpcflow.runtime.session.session import Session
from hpcflow.train.checkpoint_listing import checkpoint_exists
from hpcflow.train.saver import Saver

LOOK_S = 0.05  # polling interval for a checkpoint or a variable of another rank


class SessionManager:
    """Creates sessions with initialized variables: from a checkpoint, otherwise by an `init_op`.

    `ready_op` returns the names of uninitialized variables, as
    `hf.report_uninitialized_variables()`. `ready_for_local_init_op` does so before `local_init_op`,
    fed `local_init_feed_dict`, runs. `recovery_wait_secs` is the polling interval of
    `wait_for_session`.

    Ranks: every rank that runs the script has a manager. With parameter servers the chief prepares
           the session and the others wait. Synchronous replicas prepare theirs together.
    """

    def __init__(
        self,
        local_init_op: Any = None,
        ready_op: Any = None,
        ready_for_local_init_op: Any = None,
        graph: Graph | None = None,
        recovery_wait_secs: float = 30,
        local_init_feed_dict: Mapping[Any, Any] | None = None,
    ) -> None:
        self._local_init_op, self._local_feeds = local_init_op, local_init_feed_dict
        self._ready_op, self._ready_for_local = ready_op, ready_for_local_init_op
        self._graph = graph or get_default_graph()
        self._wait_s = recovery_wait_secs

    def prepare_session(
        self,
        master: str = "",
        init_op: Any = None,
        saver: Saver | None = None,
        checkpoint_dir: Any = None,
        checkpoint_filename_with_path: Any = None,
        wait_for_checkpoint: bool = False,
        max_wait_secs: float = 7200,
        config: ConfigProto | None = None,
        init_feed_dict: Mapping[Any, Any] | None = None,
        init_fn: Callable[[Session], Any] | None = None,
    ) -> Session:
        """A session, restored by `saver` if a checkpoint exists, otherwise initialized.

        It is initialized by `init_op`, fed `init_feed_dict`, then by `init_fn(session)`.
        Errors: UninitializedError if variables remain uninitialized; GraphError if there is neither
                a checkpoint nor an initializer.
        """
        session, restored = self._restored(
            master,
            saver,
            checkpoint_dir,
            checkpoint_filename_with_path,
            max_wait_secs if wait_for_checkpoint else 0,
            config,
        )
        if not restored:
            if init_op is None and init_fn is None and self._local_init_op is None:
                raise GraphError(
                    "there is no checkpoint, and neither an init_op nor an init_fn",
                    hint="give init_op=hf.global_variables_initializer()",
                )
            if init_op is not None:
                session.run(init_op, init_feed_dict)
            if init_fn is not None:
                init_fn(session)
        missing = self._local_init(session) or self._missing(session, self._ready_op)
        if missing:
            raise UninitializedError(
                f"variables have no value in a prepared session: {missing}",
                rank=session.context.rank,
                hint="create init_op by hf.global_variables_initializer() after all variables",
            )
        return session

    def recover_session(
        self,
        master: str = "",
        saver: Saver | None = None,
        checkpoint_dir: Any = None,
        checkpoint_filename_with_path: Any = None,
        wait_for_checkpoint: bool = False,
        max_wait_secs: float = 7200,
        config: ConfigProto | None = None,
    ) -> tuple[Session, bool]:
        """A session, and whether its variables were restored from a checkpoint."""
        wait_s = max_wait_secs if wait_for_checkpoint else 0
        session, restored = self._restored(
            master, saver, checkpoint_dir, checkpoint_filename_with_path, wait_s, config
        )
        if not restored:
            return session, False
        return session, not (self._local_init(session) or self._missing(session, self._ready_op))

    def wait_for_session(
        self,
        master: str = "",
        config: ConfigProto | None = None,
        max_wait_secs: float = float("inf"),
    ) -> Session:
        """A session, once another rank has initialized the variables.

        Errors: DeadlineExceededError after `max_wait_secs`; GraphError for synchronous replicas,
                since each has its own variables.
        """
        session = Session(master, self._graph, config)
        cluster = session.context.cluster
        if cluster.mode == "collective" and cluster.replicas > 1:
            raise GraphError(
                "wait_for_session needs parameter servers: here each replica has its own variables",
                rank=session.context.rank,
                hint="call prepare_session on every rank",
            )
        end = time.monotonic() + max_wait_secs
        while True:
            missing = self._local_init(session) or self._missing(session, self._ready_op)
            if not missing:
                return session
            if time.monotonic() >= end:
                raise DeadlineExceededError(
                    f"after {max_wait_secs} s variables have no value: {missing}",
                    rank=session.context.rank,
                    hint="check that the chief calls prepare_session",
                )
            time.sleep(max(0.0, min(self._wait_s, end - time.monotonic())))

    def _restored(
        self,
        master: str,
        saver: Saver | None,
        folder: Any,
        file: Any,
        wait_s: float,
        config: ConfigProto | None,
    ) -> tuple[Session, bool]:
        """A session, and whether a checkpoint was restored in it."""
        if folder and file:
            raise CheckpointError(
                "a folder of checkpoints and a checkpoint cannot both be restored",
                hint="give one of them",
            )
        session, place = Session(master, self._graph, config), file or folder
        if saver is None or not place:
            return session, False
        end = time.monotonic() + wait_s
        while not checkpoint_exists(place):
            if time.monotonic() >= end:
                return session, False
            time.sleep(LOOK_S)
        saver.restore(session, place)
        return session, True

    def _local_init(self, session: Session) -> str:
        """Run `local_init_op` if ready; otherwise return the names of uninitialized variables."""
        if self._local_init_op is None:
            return ""
        missing = self._missing(session, self._ready_for_local)
        if not missing:
            session.run(self._local_init_op, self._local_feeds)
        return missing

    def _missing(self, session: Session, ready: Any) -> str:
        if ready is None:
            return ""
        names = np.atleast_1d(session.run(ready)).tolist()
        return ", ".join(n.decode() if isinstance(n, bytes) else str(n) for n in names)
