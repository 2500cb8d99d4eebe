"""Monitored sessions: a training session with hooks around each run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcflow.errors import FeedError, FetchError, HpcflowError, OutOfRangeError, StepError
from hpcflow.graph.graph import Graph, Operation, Tensor, get_default_graph
from hpcflow.ops.variables.variable_ops import Variable
from hpcflow.platform.rank_logging import say_once
from hpcflow.runtime.session import session_options
from hpcflow.runtime.session.config_proto import ConfigProto, RunMetadata, RunOptions
from hpcflow.runtime.session.session_target import target_context
from hpcflow.runtime.step.feed_and_fetch import flatten_fetches
from hpcflow.tf1.coordinator import Coordinator
from hpcflow.tf1.queue_runners import start_queue_runners
from hpcflow.tf1.scaffold import Scaffold
from hpcflow.tf1.scaffold_session import ScaffoldSession, together
from hpcflow.tf1.session_creator import ChiefSessionCreator, SessionCreator
from hpcflow.tf1.session_hooks import CheckpointSaverHook, StepCounterHook, SummarySaverHook
from hpcflow.tf1.session_run_hook import (
    NonChiefHook,
    SessionRunArgs,
    SessionRunContext,
    SessionRunHook,
    SessionRunValues,
)
from hpcflow.train.global_step_counter import get_global_step
from hpcflow.train.saver import Saver, state_of_job
from hpcflow.train.training_session import TrainingSession

SAVE_S = 600.0  # seconds between checkpoints
SUMMARY_STEPS = 100  # steps between summaries
USE_DEFAULT: Any = object()  # None means never


class StepContext:
    """The argument of a step function: the `session` without hooks, and `run_with_hooks`."""

    def __init__(self, session: TrainingSession, run_with_hooks: Callable[..., Any]) -> None:
        self.session, self.run_with_hooks = session, run_with_hooks

    def request_stop(self) -> None:
        """End the training, as the end of the data does."""
        raise StopIteration("a step function has requested the stop")


class MonitoredSession:
    """A session with hooks, queue runners and checkpoints, used in a `with` statement.

    `run` calls the hooks. A run that updates variables shared by replicas is a training step;
    before it all ranks together check whether to stop or save. At the end of the `with` block the
    session waits for the other workers, saves, and calls `end` of the hooks. The end of the data
    (OutOfRangeError) and StopIteration end the block in the same way. The graph is finalized while
    the session is open.

    Ranks: every rank that runs the script has a session; the chief's hooks decide on saving.
    """

    def __init__(
        self,
        session_creator: SessionCreator | None = None,
        hooks: Iterable[SessionRunHook] | None = None,
        stop_grace_period_secs: float = 120,
    ) -> None:
        self._hooks = list(hooks or ())
        self._grace_s = stop_grace_period_secs
        for hook in self._hooks:
            hook.begin()
        self._was_finalized = get_default_graph().finalized
        self._session = (session_creator or ChiefSessionCreator()).create_session()
        self._stops = self._closed = False
        save_as_hooked(self._session, self._hooks)
        self._coord = Coordinator()
        start_queue_runners(self._session, self._coord)
        for hook in self._hooks:
            hook.after_create_session(self._session, self._coord)

    @property
    def graph(self) -> Graph:
        """The graph of the session."""
        return self._session.graph

    def run(
        self,
        fetches: Any,
        feed_dict: Mapping[Any, Any] | None = None,
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
        *,
        deadline: float | None = None,
    ) -> Any:
        """Compute `fetches` and the fetches of the hooks, as `hf.Session.run`.

        The `options` of hooks are merged with the given ones: the higher trace level, the longer
        timeout.

        Errors: FeedError for a placeholder fed twice; the error of a failed queue runner.
        """
        if self._closed:
            raise FetchError("the monitored session is closed", hint="make a new one")
        run_context = SessionRunContext(SessionRunArgs(fetches, feed_dict, options), self._session)
        all_fetches: list[Any] = [fetches]
        feeds: Mapping[Any, Any] = feed_dict if feed_dict is not None else {}
        for hook in self._hooks:
            args = hook.before_run(run_context)
            all_fetches.append(() if args is None or args.fetches is None else args.fetches)
            if args is not None and args.feed_dict:
                feeds = _merge_feeds(feeds, args.feed_dict, hook)
            if args is not None and args.options is not None:
                options = session_options.merge_options(options, args.options)
        if options is not None and run_metadata is None:
            run_metadata = RunMetadata()
        opts = {"options": options, "run_metadata": run_metadata, "deadline": deadline}
        try:
            values = self._run(all_fetches, feeds, opts)
        except StepError:
            self._coord.raise_requested_exception()  # the reason why a queue was closed
            raise
        for hook, value in zip(self._hooks, values[1:], strict=True):
            hook.after_run(run_context, SessionRunValues(value, options, run_metadata))
        self._stops = self._stops or run_context.stop_requested
        return values[0]

    def run_step_fn(self, step_fn: Callable[[StepContext], Any]) -> Any:
        """The result of `step_fn(step_context)`, which runs its own fetches with or without hooks.

        `request_stop` of the step context ends the `with` block of this session.
        """
        return step_fn(StepContext(self._session, self.run))

    def _run(self, fetches: list[Any], feeds: Mapping[Any, Any], opts: dict[str, Any]) -> list[Any]:
        flat: list[Tensor | Operation] = []
        rebuild = flatten_fetches(self.graph, fetches, flat)
        if not flat:
            return rebuild([])
        run = self._session.step if self._session.is_training(flat) else self._session.run
        values = run(flat, feeds, **opts)
        return rebuild([v for v, w in zip(values, flat, strict=True) if isinstance(w, Tensor)])

    def should_stop(self) -> bool:
        """Whether a hook or a queue runner requested a stop, or the session is closed."""
        return self._closed or self._stops or self._coord.should_stop()

    def close(self) -> None:
        """End the session as the end of the `with` block does."""
        self._close(True)

    def __enter__(self) -> MonitoredSession:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> bool:
        is_end = kind is not None and issubclass(kind, (OutOfRangeError, StopIteration))
        self._close(kind is None or is_end)
        return is_end

    def _close(self, well: bool) -> None:
        if self._closed:
            return
        self._closed, session = True, self._session
        try:
            if well:
                session.wait()
                for hook in self._hooks:
                    hook.end(session)
                if session.context.settings.run_dir:
                    session.result()
        finally:
            self._coord.request_stop()
            with contextlib.nullcontext() if well else contextlib.suppress(Exception):
                self._coord.join(stop_grace_period_secs=self._grace_s, ignore_live_threads=True)
            session.preemption.over()
            session.close()
            if self._was_finalized:
                self.graph.finalize()
            else:
                self.graph._unsafe_unfinalize()


class SingularMonitoredSession(MonitoredSession):
    """A monitored session that restores from `checkpoint_dir` and saves only by hooks."""

    def __init__(
        self,
        hooks: Iterable[SessionRunHook] | None = None,
        scaffold: Scaffold | None = None,
        master: str = "",
        config: ConfigProto | None = None,
        checkpoint_dir: Any = None,
        stop_grace_period_secs: float = 120,
        checkpoint_filename_with_path: Any = None,
    ) -> None:
        places = checkpoint_dir, checkpoint_filename_with_path
        creator = ChiefSessionCreator(scaffold, master, config, *places)
        super().__init__(creator, hooks, stop_grace_period_secs)

    def raw_session(self) -> TrainingSession:
        """The session without hooks."""
        return self._session


def MonitoredTrainingSession(
    master: str = "",
    is_chief: bool = True,
    checkpoint_dir: Any = None,
    scaffold: Scaffold | None = None,
    hooks: Sequence[SessionRunHook] | None = None,
    chief_only_hooks: Sequence[SessionRunHook] | None = None,
    save_checkpoint_secs: Any = USE_DEFAULT,
    save_summaries_steps: Any = USE_DEFAULT,
    save_summaries_secs: Any = USE_DEFAULT,
    config: ConfigProto | None = None,
    stop_grace_period_secs: float = 120,
    log_step_count_steps: int | None = 100,
    save_checkpoint_steps: Any = USE_DEFAULT,
    summary_dir: Any = None,
) -> MonitoredSession:
    """A monitored session for training, which restores from `checkpoint_dir` and saves there.

    It saves every `save_checkpoint_secs` (600; 0 or None: never) or `save_checkpoint_steps`, and at
    the end. The chief logs the global steps per second every `log_step_count_steps`. It writes the
    summaries of the graph to `summary_dir` (default: `checkpoint_dir`) every `save_summaries_steps`
    (100; 0 or None: never) or `save_summaries_secs`. `chief_only_hooks` are called on the chief;
    other ranks only build the same graph. The rank decides who is chief; `is_chief` is accepted for
    compatibility with TensorFlow.

    Ranks: every rank that runs the script, with the same arguments except `master`, the target of
           its server.
    """
    context = target_context(master)
    if context.is_chief and not is_chief:
        say_once("is_chief=False has no effect: worker 0 is always the chief")
    scaffold = scaffold or Scaffold()
    chief_hooks: list[SessionRunHook] = list(chief_only_hooks or ())
    if checkpoint_dir and log_step_count_steps and get_global_step() is not None:
        chief_hooks.append(StepCounterHook(log_step_count_steps))
    folder = summary_dir or checkpoint_dir
    chief_hooks += _summaries(folder, scaffold, save_summaries_steps, save_summaries_secs)
    every, secs = _chosen(save_checkpoint_steps, save_checkpoint_secs, None, SAVE_S)
    if checkpoint_dir and (secs or every):
        saving = CheckpointSaverHook(checkpoint_dir, secs or None, every, scaffold=scaffold)
        if any(isinstance(hook, CheckpointSaverHook) for hook in (*(hooks or ()), *chief_hooks)):
            say_once(
                f"the given CheckpointSaverHook saves; no default one is added for {checkpoint_dir}"
            )
        else:
            chief_hooks.append(saving)
    if not context.is_chief:
        chief_hooks = [NonChiefHook(hook) for hook in chief_hooks]
    creator = ChiefSessionCreator(scaffold, master, config, checkpoint_dir)
    return MonitoredSession(creator, [*(hooks or ()), *chief_hooks], stop_grace_period_secs)


def _chosen(steps: Any, secs: Any, by_steps: int | None, by_secs: float | None) -> tuple[Any, Any]:
    """The interval in steps and in seconds; the defaults if neither is given."""
    if steps is USE_DEFAULT and secs is USE_DEFAULT:
        return by_steps, by_secs
    return None if steps is USE_DEFAULT else steps, None if secs is USE_DEFAULT else secs


def _summaries(folder: Any, scaffold: Scaffold, steps: Any, secs: Any) -> list[SessionRunHook]:
    """The hook that writes the summaries of the graph, if requested."""
    steps, secs = _chosen(steps, secs, SUMMARY_STEPS, None)
    if not folder or not (steps or secs) or get_global_step() is None:
        return []
    return [SummarySaverHook(steps or None, secs or None, folder, scaffold=scaffold)]


def _merge_feeds(
    feeds: Mapping[Any, Any], hook_feeds: Mapping[Any, Any], hook: SessionRunHook
) -> Mapping[Any, Any]:
    for tensor in hook_feeds:
        if tensor in feeds:
            raise FeedError(
                f"{type(hook).__name__} feeds {getattr(tensor, 'name', tensor)!r}, which is fed "
                "already",
                hint="feed it in one place",
            )
    base = feeds if isinstance(feeds, dict) else dict(feeds)
    return base | dict(hook_feeds)  # a batch of hf.data keeps its type


def save_as_hooked(
    session: ScaffoldSession, hooks: Sequence[SessionRunHook], counter: Variable | None = None
) -> None:
    """Save as the chief's CheckpointSaverHook specifies, otherwise as the setting does."""
    saver_hooks = [hook for hook in hooks if isinstance(hook, CheckpointSaverHook)]
    if len(saver_hooks) > 1:
        raise HpcflowError(
            f"there are {len(saver_hooks)} CheckpointSaverHooks, but one saves the whole state "
            "of the job",
            hint="give one CheckpointSaverHook; for other policies session.every(steps, action)",
        )
    if session.context.on_plan is not None:
        return
    policy = together(session.context, _as_data(saver_hooks[0], session) if saver_hooks else {})
    counter = counter or get_global_step(session.graph)
    if not policy:
        session.save_as_set(counter)
    else:
        by_name = {v.name: v for v in state_of_job(session.graph)}
        chosen = {name: by_name[text] for name, text in policy["variables"].items()}
        saver = Saver(chosen, policy["keep"], policy["form"])
        listener = saver_hooks[0] if saver_hooks and saver_hooks[0].listeners else None
        waits = policy["has_listeners"]
        session.save_in(policy["folder"], policy["every"], saver, counter, listener, waits)


def _as_data(hook: CheckpointSaverHook, session: ScaffoldSession) -> dict[str, Any]:
    """The parameters of a hook as plain data, for a broadcast."""
    saver = hook.saver or Saver(state_of_job(session.graph))
    return {
        "folder": str(Path(hook.checkpoint_dir).absolute()),
        "every": hook.interval,
        "variables": {name: variable.name for name, variable in saver.variables.items()},
        "keep": saver.max_to_keep,
        "form": saver.form,
        "has_listeners": bool(hook.listeners),
    }
