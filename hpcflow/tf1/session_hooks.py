"""Session hooks of TensorFlow 1: stop, log, save, summarize, and check for NaN."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hpcflow.errors import GraphError, HpcflowError
from hpcflow.graph.graph import get_default_graph
from hpcflow.ops.variables.variable_ops import Variable
from hpcflow.platform.rank_logging import logger, say_once
from hpcflow.tf1.coordinator import Coordinator
from hpcflow.tf1.session_run_hook import (
    CheckpointSaverListener,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
    tensor_of,
)
from hpcflow.train.global_step_counter import get_global_step
from hpcflow.train.saver import Saver
from hpcflow.train.tensorboard_writer import FileWriter, FileWriterCache
from hpcflow.train.training_session import TrainingSession

LOOK_S = 0.05  # polling interval of the global step


class NanLossDuringTrainingError(HpcflowError, RuntimeError):
    """The loss became NaN."""


class SecondOrStepTimer:
    """Triggers every so many seconds or every so many steps; exactly one is given."""

    def __init__(self, every_secs: float | None = None, every_steps: int | None = None) -> None:
        if (every_secs is None) == (every_steps is None):
            raise HpcflowError(
                f"every_secs is {every_secs} and every_steps is {every_steps}",
                hint="give exactly one of them",
            )
        self._secs, self._steps = every_secs, every_steps
        self._last_step: int | None = None
        self._last_time = 0.0

    def should_trigger_for_step(self, step: int) -> bool:
        """Whether to trigger at this step: always at the first, never twice at the same."""
        if self._last_step is None:
            return True
        if step == self._last_step:
            return False
        if self._secs is not None:
            return time.monotonic() >= self._last_time + self._secs
        assert self._steps is not None
        return step >= self._last_step + self._steps

    def update_last_triggered_step(self, step: int) -> tuple[float | None, int | None]:
        """Record a trigger at this step.

        Returns the seconds and steps since the previous trigger; None without one.
        """
        now, since = time.monotonic(), (None, None)
        if self._last_step is not None:
            since = now - self._last_time, step - self._last_step  # type: ignore[assignment]
        self._last_time, self._last_step = now, step
        return since

    def last_triggered_step(self) -> int | None:
        """The step of the last trigger."""
        return self._last_step


def _global_step(hook: SessionRunHook) -> Variable:
    counter = get_global_step()
    if counter is None:
        raise GraphError(
            f"{type(hook).__name__} needs a global step, and the graph has none",
            hint="make one with hf.train.get_or_create_global_step() and give it to minimize",
        )
    return counter


class StopAtStepHook(SessionRunHook):
    """Stops when the global step is `last_step`, or `num_steps` after the start of the session."""

    def __init__(self, num_steps: int | None = None, last_step: int | None = None) -> None:
        if (num_steps is None) == (last_step is None):
            raise HpcflowError(
                f"num_steps is {num_steps} and last_step is {last_step}",
                hint="give exactly one of num_steps and last_step",
            )
        self._num_steps, self._last_step = num_steps, last_step

    def begin(self) -> None:
        """Look up the global step."""
        self._global_step = _global_step(self)

    def after_create_session(self, session: TrainingSession, coord: Coordinator) -> None:
        """Compute the last step."""
        if self._last_step is None:
            assert self._num_steps is not None
            self._last_step = int(session.run(self._global_step)) + self._num_steps

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Fetch the global step before the run."""
        return SessionRunArgs(self._global_step)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Stop at the last step.

        Near it, the step is read again, since servers may have applied further updates.
        """
        assert self._last_step is not None
        if (
            run_values.results + 1 >= self._last_step
            and run_context.session.run(self._global_step) >= self._last_step
        ):
            run_context.request_stop()


class CheckpointSaverHook(SessionRunHook):
    """Saves the job's state to a folder every so many seconds or steps, and at the end.

    The session saves on all ranks together when the chief decides, as
    `hf.train.TrainingSession(checkpoints=...)`, with the global step in the name. A session has one
    such hook. `saver` or the saver of `scaffold` selects the variables, by default all. `listeners`
    are called at each save.
    """

    def __init__(
        self,
        checkpoint_dir: Any,
        save_secs: float | None = None,
        save_steps: int | None = None,
        saver: Saver | None = None,
        scaffold: Any = None,
        listeners: Sequence[CheckpointSaverListener] | None = None,
    ) -> None:
        if saver is not None and scaffold is not None:
            raise HpcflowError(
                "saver and scaffold cannot both be given", hint="give at most one of them"
            )
        SecondOrStepTimer(save_secs, save_steps)  # exactly one is given
        self.interval = save_steps if save_secs is None else f"{float(save_secs):f}s"
        self.checkpoint_dir, self._saver, self._scaffold = checkpoint_dir, saver, scaffold
        self.listeners, self._stops = list(listeners or ()), False

    def begin(self) -> None:
        """Call `begin` of the listeners."""
        for listener in self.listeners:
            listener.begin()

    def before_save(self, session: TrainingSession, global_step_value: int) -> None:
        """Call `before_save` of the listeners."""
        for listener in self.listeners:
            listener.before_save(session, global_step_value)

    def after_save(self, session: TrainingSession, global_step_value: int) -> None:
        """Call `after_save` of the listeners."""
        stops = [listener.after_save(session, global_step_value) for listener in self.listeners]
        self._stops = self._stops or any(stops)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Request a stop if a listener did."""
        if self._stops:
            run_context.request_stop()

    def end(self, session: TrainingSession) -> None:
        """Call `end` of the listeners."""
        counter = get_global_step(session.graph)
        for listener in self.listeners:
            listener.end(session, session.steps if counter is None else int(session.run(counter)))

    @property
    def saver(self) -> Saver | None:
        """The saver; None for the session's own."""
        return self._scaffold.saver if self._scaffold is not None else self._saver


class LoggingTensorHook(SessionRunHook):
    """Logs values of `tensors`: a list or a dict {label: tensor}, of tensors or names.

    It logs every `every_n_iter` runs, every `every_n_secs` seconds, or only `at_end`. `formatter`
    returns a line for {label: value}. Rank 0 prints it; other ranks write it to their log files.
    """

    def __init__(
        self,
        tensors: Mapping[str, Any] | Sequence[Any],
        every_n_iter: int | None = None,
        every_n_secs: float | None = None,
        at_end: bool = False,
        formatter: Callable[[dict[str, Any]], str] | None = None,
    ) -> None:
        only_at_end = at_end and every_n_iter is None and every_n_secs is None
        self._timer = None if only_at_end else SecondOrStepTimer(every_n_secs, every_n_iter)
        if every_n_iter is not None and every_n_iter < 1:
            raise HpcflowError(f"every_n_iter must be at least 1, not {every_n_iter}")
        by_name = tensors if isinstance(tensors, Mapping) else {_name(t): t for t in tensors}
        self._tensors: dict[str, Any] = dict(by_name)
        self._at_end, self._formatter = at_end, formatter
        self._runs, self._is_time = 0, False

    def begin(self) -> None:
        """Look up the tensors."""
        graph = get_default_graph()
        self._tensors = {name: tensor_of(graph, t) for name, t in self._tensors.items()}

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Fetch the tensors if due, or always if all replicas must fetch the same."""
        self._is_time = self._timer is not None and self._timer.should_trigger_for_step(self._runs)
        return SessionRunArgs(self._tensors) if self._is_time or run_context.is_joint else None

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Log the values if due."""
        if self._is_time:
            self._log(run_values.results)
        self._runs += 1

    def end(self, session: TrainingSession) -> None:
        """Log the values at the end if requested."""
        if self._at_end:
            self._log(session.run(self._tensors))

    def _log(self, values: dict[str, Any]) -> None:
        seconds = None
        if self._timer is not None:
            seconds, _ = self._timer.update_last_triggered_step(self._runs)
        if self._formatter is not None:
            logger.info("%s", self._formatter(values))
            return
        text = ", ".join(f"{name} = {value}" for name, value in values.items())
        logger.info("%s%s", text, "" if seconds is None else f" ({seconds:.3f} sec)")


def _name(tensor: Any) -> str:
    return tensor if isinstance(tensor, str) else tensor.name


class StepCounterHook(SessionRunHook):
    """Logs the global steps per second, every so many steps or seconds.

    With `output_dir` or `summary_writer` it also writes them as a summary for TensorBoard.
    """

    def __init__(
        self,
        every_n_steps: int | None = 100,
        every_n_secs: float | None = None,
        output_dir: Any = None,
        summary_writer: FileWriter | None = None,
    ) -> None:
        every_n_steps = None if every_n_secs is not None else every_n_steps
        self._timer = SecondOrStepTimer(every_n_secs, every_n_steps)
        self._writer, self._folder = summary_writer, output_dir

    def begin(self) -> None:
        """Look up the global step."""
        self._global_step = _global_step(self)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Fetch the global step."""
        return SessionRunArgs(self._global_step)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Log the rate if due."""
        step = int(run_values.results) + 1
        if self._timer.should_trigger_for_step(step):
            seconds, steps = self._timer.update_last_triggered_step(step)
            if seconds and steps is not None:
                logger.info("global_step/sec: %g", steps / seconds)
                self._write(steps / seconds, step)

    def _write(self, rate: float, step: int) -> None:
        if self._writer is None and self._folder is not None:
            self._writer = FileWriterCache.get(self._folder)
        if self._writer is not None:
            self._writer.add_value(f"{self._global_step.name}/sec", rate, step)


class SummarySaverHook(SessionRunHook):
    """Writes summaries for TensorBoard, every so many steps or seconds.

    The summaries are `summary_op`, one or a list, or those of `scaffold`. They go to a file in
    `output_dir`, or to `summary_writer`.
    Ranks: the chief writes. Synchronous replicas all compute the summaries in every step.
    """

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: Any = None,
        summary_writer: FileWriter | None = None,
        scaffold: Any = None,
        summary_op: Any = None,
    ) -> None:
        if (scaffold is None) == (summary_op is None):
            raise HpcflowError(
                "SummarySaverHook needs either a scaffold or a summary_op",
                hint="give exactly one of them",
            )
        self._timer = SecondOrStepTimer(save_secs, save_steps)
        self._writer, self._folder = summary_writer, output_dir
        self._scaffold, self._summary_op = scaffold, summary_op
        self._next: int | None = None
        self._is_time = False

    def begin(self) -> None:
        """Look up the global step."""
        self._global_step = _global_step(self)

    def after_create_session(self, session: TrainingSession, coord: Coordinator) -> None:
        """Open the file, if there are summaries."""
        if self._writer is None and self._folder and self._summaries():
            self._writer = FileWriterCache.get(self._folder)

    def _summaries(self) -> list[Any]:
        summaries = self._summary_op if self._scaffold is None else self._scaffold.summary_op
        if summaries is None:
            return []
        return list(summaries) if isinstance(summaries, (list, tuple)) else [summaries]

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Fetch the global step, and the summaries if due or if all replicas must fetch them."""
        self._is_time = self._next is None or self._timer.should_trigger_for_step(self._next)
        asks = self._is_time or run_context.is_joint
        return SessionRunArgs([self._global_step, self._summaries() if asks else []])

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Write the summaries if due."""
        before, summaries = run_values.results
        step = int(before) + 1
        if self._next is None or self._is_time:
            step = int(run_context.session.run(self._global_step))
        if self._is_time:
            self._timer.update_last_triggered_step(step)
        if self._writer is not None:
            if self._next is None:
                self._writer.add_start(step)
            for summary in summaries if self._is_time else ():
                self._writer.add_summary(summary, step)
        self._next = step + 1

    def end(self, session: TrainingSession) -> None:
        """Flush the file."""
        if self._writer is not None:
            self._writer.flush()


class NanTensorHook(SessionRunHook):
    """Stops the training when `loss_tensor` is NaN.

    Errors: NanLossDuringTrainingError; without `fail_on_nan_loss` a warning and a stop request.
    """

    def __init__(self, loss_tensor: Any, fail_on_nan_loss: bool = True) -> None:
        self._loss, self._fails = loss_tensor, fail_on_nan_loss

    def begin(self) -> None:
        """Look up the tensor."""
        self._loss = tensor_of(get_default_graph(), self._loss)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """Fetch the tensor."""
        return SessionRunArgs(self._loss)

    def after_run(self, run_context: SessionRunContext, run_values: SessionRunValues) -> None:
        """Check the value."""
        if not np.any(np.isnan(run_values.results)):
            return
        if self._fails:
            op = self._loss.op
            raise NanLossDuringTrainingError(
                f"the loss {self._loss.name!r} is NaN",
                op=op.name,
                line=op.line,
                rank=run_context.session.context.rank,
                hint="find the operation that made the first NaN with --set check_numerics=1",
            )
        logger.warning("the loss %r is NaN: the training stops", self._loss.name)
        run_context.request_stop()


class GlobalStepWaiterHook(SessionRunHook):
    """Delays a worker until the global step is `wait_until_step`, for a staggered start.

    Synchronous replicas do not wait, since they run each step together; a message says so.
    """

    def __init__(self, wait_until_step: int) -> None:
        self._until = wait_until_step

    def begin(self) -> None:
        """Look up the global step."""
        self._global_step = _global_step(self)

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs | None:
        """Wait before the first run."""
        session, until = run_context.session, self._until
        self._until = 0
        if until > 0 and session.context.cluster.in_step:
            say_once(
                f"GlobalStepWaiterHook does not wait for global step {until}: all "
                "replicas run the same step"
            )
            return None
        while until > 0 and session.run(self._global_step) < until:
            session.between_steps()  # other ranks may wait for this one to save or stop
            time.sleep(LOOK_S)
        return None


class FinalOpsHook(SessionRunHook):
    """Runs `final_ops` at the end and stores the values in `final_ops_values`."""

    def __init__(
        self, final_ops: Any, final_ops_feed_dict: Mapping[Any, Any] | None = None
    ) -> None:
        self._final_ops, self._feeds = final_ops, final_ops_feed_dict
        self.final_ops_values: Any = None

    def end(self, session: TrainingSession) -> None:
        """Run `final_ops`."""
        if self._final_ops is not None:
            self.final_ops_values = session.run(self._final_ops, self._feeds)


class FeedFnHook(SessionRunHook):
    """Feeds the result of `feed_fn()`, a dict {placeholder: value}, in each run."""

    def __init__(self, feed_fn: Callable[[], Mapping[Any, Any]]) -> None:
        self.feed_fn = feed_fn

    def before_run(self, run_context: SessionRunContext) -> SessionRunArgs:
        """The feeds of `feed_fn()`."""
        return SessionRunArgs(None, self.feed_fn())
