"""Supervisor: TensorFlow 1's older class for sessions with initialization and checkpoints."""

from __future__ import annotations

import atexit
import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from hpcflow.errors import GraphError
from hpcflow.graph.graph import Graph, Operation, Tensor, get_default_graph
from hpcflow.ops.variables.variable_ops import Variable
from hpcflow.platform.rank_logging import say_once
from hpcflow.runtime.job.job_membership import current_context
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.session.config_proto import ConfigProto, RunMetadata, RunOptions
from hpcflow.runtime.session.session import Session
from hpcflow.runtime.session.session_target import target_context
from hpcflow.runtime.step.feed_and_fetch import flatten_fetches
from hpcflow.tf1.coordinator import Coordinator, LooperThread
from hpcflow.tf1.monitored_session import SAVE_S, save_as_hooked
from hpcflow.tf1.queue_runners import QueueRunner, start_queue_runners
from hpcflow.tf1.scaffold import Scaffold
from hpcflow.tf1.scaffold_session import ScaffoldSession
from hpcflow.tf1.session_hooks import CheckpointSaverHook
from hpcflow.train.global_step_counter import get_global_step
from hpcflow.train.saver import Saver
from hpcflow.train.tensorboard_writer import FileWriter

USE_DEFAULT = object()  # default; None would mean no summaries or no file in `logdir`
SUMMARY_S = 120.0  # seconds between summaries


class SupervisedSession(ScaffoldSession):
    """A session in which a run that updates variables shared by replicas is a training step.

    Before such a step all ranks together check whether to stop or save.
    """

    is_begun = False

    def run(
        self,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
        *,
        deadline: float | None = None,
    ) -> Any:
        """Compute `fetches`, as `hf.Session.run`."""
        run_args = options, run_metadata
        if self.is_begun:
            flat_fetches: list[Tensor | Operation] = []
            flatten_fetches(self.graph, fetches, flat_fetches)
            if self.is_training(flat_fetches):
                feeds = {} if feed_dict is None else feed_dict
                return self.step(fetches, feeds, *run_args, deadline=deadline)
        return super().run(fetches, feed_dict, *run_args, deadline=deadline)


class Supervisor:
    """Creates the session of a training program, with initialization, queue runners, checkpoints.

    The session restores the newest checkpoint in `logdir`. Without one, `init_op`, fed
    `init_feed_dict`, initializes the variables (default: their initializers); then
    `init_fn(session)` is called. All ranks save to `logdir` every `save_model_secs` seconds (0:
    never) and at the end. The graph is finalized when the supervisor is created.

    The rank decides who is chief. `is_chief` and `recovery_wait_secs` are accepted for
    compatibility with TensorFlow: a worker waits for a message of the chief.

    The chief writes the result of `summary_op` (default: all summaries of the graph) to a file in
    `logdir` every `save_summaries_secs` (120; 0: never), in a separate step in a thread. Pass None
    as `summary_op` if it needs feeds. Synchronous replicas do not write it; there
    `summary_computed` writes a summary that a step has computed.

    Ranks: every rank that runs the script has a supervisor; the chief's decisions apply.
    """

    def __init__(
        self,
        graph: Graph | None = None,
        ready_op: Any = None,
        ready_for_local_init_op: Any = None,
        is_chief: bool = True,
        init_op: Any = None,
        init_feed_dict: Mapping[Any, Any] | None = None,
        local_init_op: Any = None,
        logdir: Any = None,
        summary_op: Any = USE_DEFAULT,
        saver: Saver | None = None,
        global_step: Variable | None = None,
        save_summaries_secs: float = SUMMARY_S,
        save_model_secs: float = SAVE_S,
        recovery_wait_secs: float = 30,
        stop_grace_secs: float = 120,
        summary_writer: Any = USE_DEFAULT,
        init_fn: Callable[[Any], Any] | None = None,
    ) -> None:
        self.graph = graph or get_default_graph()
        self.global_step = global_step or get_global_step(self.graph)
        self.logdir, self.save_model_secs = logdir, save_model_secs
        self.coord, self._grace_s = Coordinator(), stop_grace_secs
        called = None if init_fn is None else lambda scaffold, session: init_fn(session)
        with self.graph.as_default():
            self._scaffold = Scaffold(
                init_op,
                init_feed_dict,
                called,
                ready_op,
                ready_for_local_init_op,
                local_init_op,
                summary_op if summary_op is not USE_DEFAULT else None,
                saver,
            ).finalize()
        self.summary_op = None if summary_op is None else self._scaffold.summary_op
        self.save_summaries_secs, self._writer = save_summaries_secs, summary_writer
        self.graph.finalize()
        self._unfinished: list[SupervisedSession] = []
        self._context: RankContext | None = None  # of the last session

    @property
    def is_chief(self) -> bool:
        """Whether this rank is the chief of the job."""
        return (self._context or current_context()).is_chief

    @property
    def saver(self) -> Saver | None:
        """The saver; None in a graph without variables."""
        return self._scaffold.saver

    def prepare_or_wait_for_session(
        self,
        master: str = "",
        config: ConfigProto | None = None,
        start_standard_services: bool = True,
    ) -> SupervisedSession:
        """The initialized session; `start_standard_services` starts queue runners and saving.

        Ranks: every rank that runs the script; the others wait for the chief's initialization.
        """
        self.coord.clear_stop()
        self._context = context = target_context(master)
        with self.graph.as_default():
            session = SupervisedSession(self._scaffold, self.graph, context, config)
            session.begin(self.logdir, None)
        if start_standard_services:
            hooks = []
            if self.logdir and self.save_model_secs:
                hooks = [
                    CheckpointSaverHook(self.logdir, self.save_model_secs, scaffold=self._scaffold)
                ]
            save_as_hooked(session, hooks, self.global_step)
            start_queue_runners(session, self.coord)
            self._write_summaries(session)
        session.is_begun = True
        self._unfinished.append(session)
        if context.roles.replicas > 1:  # other ranks may wait for a collective save
            atexit.register(_at_exit, weakref.ref(self))
        return session

    def _write_summaries(self, session: SupervisedSession) -> None:
        """Start the chief's thread that computes and writes summaries."""
        context, every = session.context, self.save_summaries_secs
        if self.summary_op is None or not self.logdir or not every:
            return
        if context.cluster.in_step and context.roles.replicas > 1:
            say_once(
                "the Supervisor writes no summaries: all replicas run the same step; "
                "compute them in a "
                "step and give them to Supervisor.summary_computed"
            )
        elif context.is_chief:
            self.loop(every, self._write_now, (session,))

    def _write_now(self, session: SupervisedSession) -> None:
        writer = self.summary_writer
        assert writer is not None
        fetches = [self.summary_op, *([] if self.global_step is None else [self.global_step])]
        summary, *step = session.run(fetches)
        writer.add_summary(summary, int(step[0]) if step else None)

    @property
    def summary_writer(self) -> FileWriter | None:
        """The summary writer; None without `logdir` or if disabled."""
        if self._writer is USE_DEFAULT:
            self._writer = FileWriter(self.logdir) if self.logdir else None
        return self._writer

    def summary_computed(self, sess: Session, summary: Any, global_step: int | None = None) -> None:
        """Write a summary that `sess` has computed; the default step is the current global step.

        Errors: GraphError without a summary writer.
        """
        writer = self.summary_writer
        if writer is None:
            raise GraphError(
                "the supervisor has no summary writer", hint="give it a logdir or a summary_writer"
            )
        if global_step is None and self.global_step is not None:
            global_step = int(sess.run(self.global_step))
        writer.add_summary(summary, global_step)

    @contextlib.contextmanager
    def managed_session(
        self,
        master: str = "",
        config: ConfigProto | None = None,
        start_standard_services: bool = True,
    ) -> Iterator[SupervisedSession]:
        """The session of `prepare_or_wait_for_session`, ended and closed after the `with` block.

        The end of the data (OutOfRangeError) ends the block. Other errors are raised after all
        threads were requested to stop.
        """
        session = self.prepare_or_wait_for_session(master, config, start_standard_services)
        try:
            yield session
        except Exception as error:
            self.request_stop(error)
        except BaseException:
            self._unfinished.clear()
            raise
        finally:
            try:
                self.stop()
            finally:
                session.preemption.over()
                session.close()

    def start_queue_runners(
        self, sess: Any, queue_runners: Sequence[QueueRunner] | None = None
    ) -> list[threading.Thread]:
        """Start the threads of `queue_runners`, by default of all in the graph."""
        if queue_runners is None:
            return start_queue_runners(sess, self.coord)
        return [t for qr in queue_runners for t in qr.create_threads(sess, self.coord, True, True)]

    def loop(
        self,
        timer_interval_secs: float | None,
        target: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> LooperThread:
        """Call `target` in a separate thread every so many seconds, until the stop."""
        return LooperThread.loop(self.coord, timer_interval_secs, target, args or (), kwargs)

    def should_stop(self) -> bool:
        """Whether a thread has requested a stop."""
        return self.coord.should_stop()

    def request_stop(self, ex: Any = None) -> None:
        """Request all threads to stop; `ex` is the reason."""
        self.coord.request_stop(ex)

    def stop_on_exception(self) -> contextlib.AbstractContextManager[None]:
        """A context manager that turns an exception into a stop request."""
        return self.coord.stop_on_exception()

    def wait_for_stop(self) -> None:
        """Wait for a stop request."""
        self.coord.wait_for_stop()

    def stop(
        self,
        threads: Iterable[threading.Thread] | None = None,
        ignore_live_threads: bool = False,
    ) -> None:
        """Stop the threads, wait for the steps of all workers, and save.

        Ranks:  every rank that runs the script.
        Errors: the first one with which a thread requested the stop.
        """
        ending, self._unfinished = self._unfinished, []
        self.coord.request_stop()
        self.coord.join(threads, self._grace_s, ignore_live_threads)
        for session in ending:
            session.wait()
            if session.context.settings.run_dir:
                session.result()
        if isinstance(self._writer, FileWriter):
            self._writer.flush()


def _at_exit(reference: weakref.ref[Supervisor]) -> None:
    supervisor = reference()
    if supervisor is not None and supervisor._unfinished:
        supervisor.stop(ignore_live_threads=True)
