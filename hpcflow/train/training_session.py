"""Training session: initializes, counts steps, saves checkpoints, and writes the job's result."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from hpcflow.errors import CheckpointError
from hpcflow.graph.device_names import parse_device
from hpcflow.graph.graph import Graph
from hpcflow.graph.graph_keys import GraphKeys
from hpcflow.launch.time_limit import launch_time
from hpcflow.ops.variables.variable_ops import Variable
from hpcflow.platform.exception_translation import user_line
from hpcflow.platform.rank_logging import logger, number_spans
from hpcflow.ps.sync_rule import SyncRule
from hpcflow.ps.sync_rules import rule
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.job.stop_signal import stop_reason
from hpcflow.runtime.session.config_proto import ConfigProto, RunMetadata, RunOptions
from hpcflow.runtime.session.session import Session
from hpcflow.train import run_records
from hpcflow.train.checkpoint_location import CheckpointLocation, choose_location, warn_own_loop
from hpcflow.train.data_position import restore_batch_position
from hpcflow.train.dead_worker_data import DeadWorkerData
from hpcflow.train.job_result import job_summary
from hpcflow.train.preemption import ANEW, Preemption
from hpcflow.train.result_files import versions, write_json
from hpcflow.train.speed_exchange import Rows, SpeedExchange
from hpcflow.train.step_timing import StepTiming
from hpcflow.train.straggler_detection import StragglerDetector

if TYPE_CHECKING:
    from hpcflow.train.checkpoint_manager import CheckpointManager
    from hpcflow.train.equal_feeds_warning import EqualFeeds
    from hpcflow.train.every_n_steps_or_secs import PeriodicAction
    from hpcflow.train.saver import Saver
    from hpcflow.train.server_loads import ServerLoads
    from hpcflow.train.task_speeds import TaskSpeeds

RESULT = "result.json"
SYNC = "sync_replicas"  # collection with the synchronization rule of a graph


class TrainingSession(Session):
    """A session with initialized variables and a finalized graph.

    `step` runs a training step and counts it; `run` does neither. At the end `wait` waits for the
    other workers, and `result` gathers the result. The graph is finalized.

    With a folder `checkpoints` the whole state of the job is saved there in the background (or in
    the foreground, by the setting `save`): every `save_every` steps
    (500) or seconds ("30s", "10m"), by default at the optimal interval ("auto"); at the end of
    training; and when a signal or the end of the job's time stops it. `resume` continues from the
    newest valid checkpoint, if any, at its position in the datasets; without `resume`, a folder
    with checkpoints is an error. `max_to_keep` are kept, 0 for all. With `keep_best`, such as
    ("loss", "min", 3), the 3 checkpoints are kept that `save(metrics={"loss": value})` saved with
    the smallest values. `form` is that of `hf.train.Saver`. See `hpcflow help checkpoints`.

    `pace.work` and `pace.wait` are this worker's own work and its waiting for other ranks, in
    seconds of the last step. Persistently slow workers are logged with their hosts.

    With parameter servers `sync` is the synchronization rule and overrides the setting: "async"
    (each worker's gradients are applied on arrival), "all" (synchronous), `hf.Backup(k)`
    (synchronous without the last k), `hf.Stale(bound)` (asynchronous, with no worker more than
    `bound` steps ahead), or a rule of the script (`hf.SyncRule`).

    Ranks: every rank that runs the script has a session; replicas start from the first one's
    values.
    """

    def __init__(
        self,
        graph: Graph | None = None,
        context: RankContext | None = None,
        *,
        checkpoints: str | Path | None = None,
        save_every: int | str | None = None,
        resume: bool = False,
        max_to_keep: int = 5,
        keep_best: tuple[str, str, int] | None = None,
        form: str = "auto",
        sync: str | SyncRule | None = None,
        config: ConfigProto | None = None,
    ) -> None:
        super().__init__(graph=graph, config=config, context=context)
        for declared in self.graph.get_collection(SYNC) if sync is None else ():
            sync = declared.rule(self.context.roles.replicas)
        if sync is not None:
            self.context.set_sync_rule(rule(sync))
        self.steps = 0  # of this worker
        self.samples = 0  # fed to this worker
        self.seconds = 0.0  # from the first step until every worker was done
        self.preemption = Preemption(self.context)
        self.pace = StepTiming(self.context.executor, self._input_wait_seconds)
        self._exchange = self._make_exchange()
        self._loads = self._make_loads()
        self._speeds = self._make_speeds()
        self.heirs: DeadWorkerData | None = None  # data of dead workers of parameter servers
        if self._exchange is not None and self._is_served and self.context.settings.survive:
            number = self._exchange.number
            self.heirs = DeadWorkerData(self.context, self.graph, number, self._meet_at_end)
        self._stragglers = StragglerDetector(self.context)
        self._has_nan = False  # a fetched number was NaN
        self._equal_feeds = self._watch_feeds()
        self._begun: float | None = None
        self._waited_before = 0.0  # for input, before the first step
        self._seconds_to_first_step: float | None = None
        self._met = True  # met the other workers since the last step
        self._has_waited = True  # for their ends
        self._initialize(self._finished())
        self._policies: list[PeriodicAction] = []
        self._checkpoints: CheckpointManager | None = None
        chosen = self._choose(checkpoints)
        self._resumes = resume or chosen.by_setting  # restarted as the same job
        if chosen.folder is not None and self.context.on_plan is None:
            self._keep_checkpoints(chosen, save_every, max_to_keep, form, keep_best)
        self._log = run_records.run_log_of(self.context)
        me = weakref.ref(self)
        self.context.steps = lambda: getattr(me(), "steps", None)

    def _make_exchange(self) -> SpeedExchange | None:
        """The speed exchange of several workers."""
        if self.context.control is None or len(self.context.roles.drivers) < 2:
            return None
        return SpeedExchange(self.context, self.graph)

    def _make_loads(self) -> ServerLoads | None:
        """What measures the servers, on the chief."""
        context = self.context
        if context.control is None or not (context.is_chief and context.roles.servers):
            return None
        from hpcflow.train.server_loads import ServerLoads

        return ServerLoads(context)

    def _make_speeds(self) -> TaskSpeeds | None:
        """What compares the tasks of this replica, where they were placed automatically."""
        if self.context.control is None or not self.context.settings.automatic:
            return None
        from hpcflow.train.task_speeds import TaskSpeeds

        return TaskSpeeds(self.context)

    def _keep_checkpoints(
        self,
        chosen: CheckpointLocation,
        save_every: int | str | None,
        max_to_keep: int,
        form: str,
        keep_best: tuple[str, str, int] | None,
    ) -> None:
        """Resume from the chosen folder, or begin anew, and save there from now on."""
        from hpcflow.train.saver import Saver, state_of_job

        assert chosen.folder is not None
        saver = Saver(state_of_job(self.graph), max_to_keep, form, keep_best)
        keeper = self._keep(chosen.folder, save_every, saver)
        if not self._resumes:
            keeper.start_fresh()
        elif keeper.resume() and chosen.by_setting:
            warn_own_loop(self, self.first_step)

    def _choose(self, script_folder: str | Path | None) -> CheckpointLocation:
        """The checkpoint folder; `script_folder` is the folder that the script names."""
        return choose_location(self.context, script_folder)

    def replicas_changed(self) -> None:
        """A replica has died: reset the speeds of the others."""
        super().replicas_changed()
        self._stragglers = StragglerDetector(self.context)
        if self._exchange is not None:
            self._exchange.replicas_changed()

    def _finished(self) -> list[Variable]:
        """The variables of the graph, which is finalized."""
        variables: list[Variable] = [
            *self.graph.get_collection(GraphKeys.GLOBAL_VARIABLES),
            *self.graph.get_collection(GraphKeys.LOCAL_VARIABLES),
        ]
        self.graph.finalize()
        tell_idle_tasks(self.graph, self.context)
        return variables

    def _initialize(self, variables: Sequence[Variable]) -> None:
        """Run the initializers."""
        if variables:
            self.run([v.initializer for v in variables])

    def _keep(
        self,
        folder: Path,
        save_every: int | str | None,
        saver: Saver,
        counter: Variable | None = None,
    ) -> CheckpointManager:
        """Save the state of the job in `folder` from now on."""
        from hpcflow.train.checkpoint_manager import CheckpointManager

        resumes, heirs = self._resumes, self.heirs
        self._checkpoints = CheckpointManager(
            self, folder, save_every, saver, resumes, counter, heirs
        )
        return self._checkpoints

    def _unsaved_reason(self) -> str:
        keeper: CheckpointManager | None = getattr(self, "_checkpoints", None)
        if keeper is None:
            return (
                "it keeps no checkpoints, so its progress would be lost: give TrainingSession("
                "checkpoints=DIR, resume=True), or hpcflow run --set checkpoints=DIR"
            )
        if self._begun is None:
            return "it trains by `run`, which saves nothing: train by the session's `step`"
        if not self._resumes:
            return (
                f"does not resume by itself: it saves in {keeper.directory} before, but needs "
                "resume=True"
            )
        return ""

    @property
    def first_step(self) -> int:
        """The step from which the job resumed: the number of steps of earlier starts, or 0.

        For a loop with its own counter: `for step in range(sess.first_step, 1000)`. It counts as
        checkpoints do: steps of synchronous workers once, those of asynchronous workers added up.
        """
        return 0 if self._checkpoints is None else self._checkpoints.first_step

    @property
    def is_chief(self) -> bool:
        """True on the one rank that acts for the whole job."""
        return self.context.is_chief

    @property
    def worker(self) -> int:
        """The number of this worker, from 0."""
        return self.context.replica

    @property
    def run_dir(self) -> Path:
        """The folder for results."""
        return Path(self.context.settings.run_dir)

    def step(
        self,
        fetches: Any,
        batch: Mapping[Any, Any],
        options: RunOptions | None = None,
        run_metadata: RunMetadata | None = None,
        *,
        deadline: float | None = None,
    ) -> Any:
        """Run and count one training step on a batch of `hf.data`; returns the fetched values.

        A copy with more feeds, `batch | {rate: 0.1}` or `{**batch, rate: 0.1}`, counts as `batch`.
        `deadline` applies to this step, as that of `run`; a step that exceeds it is not counted.
        `options` and `run_metadata` are those of `run`.
        Errors: Preempted, which ends the script on all workers if one got SIGUSR1 or SIGTERM;
                DataError for other feeds of a dataset's placeholders.
        """
        batch = restore_batch_position(batch, self.graph)
        self.between_steps()
        begins = self._begun is None
        if begins:
            self._begin_first_step()
        self._met = self._has_waited = False
        if self._speeds is not None:
            self._speeds.begin()
        values = super().run(fetches, batch, options, run_metadata, deadline=deadline)
        self.pace.end(batch)
        if self._speeds is not None:
            self._speeds.end()
        if begins:
            self._first_step_is_done()
        self.steps += 1
        self.samples += getattr(batch, "size", 0)
        if not self._has_nan and (nan := _nan_fetch(fetches, values)) is not None:
            self._warn_of_nan(nan, batch)
        if self._equal_feeds is not None and not self._equal_feeds.step(batch):
            self._equal_feeds = None
        if self._checkpoints is not None:
            self._checkpoints.count(batch)
        if self.heirs is not None:
            self.heirs.count(batch)
        if self._exchange is not None:
            self._compare(self._exchange.step(self.pace))
        elif self._log is not None:
            self._log.own_pace(self.steps, self.pace)
        if self._loads is not None:
            loads = self._loads.step(self.pace.ended)
            if self._log is not None:
                self._log.load(self.steps, loads)
        return values

    def _begin_first_step(self) -> None:
        self._begun, self._waited_before = time.perf_counter(), self._input_wait_seconds()
        self.pace.begin()

    def _input_wait_seconds(self) -> float:
        """Seconds that this worker has waited for batches so far."""
        return sum(data.input_wait_seconds for data in self.graph.get_collection("datasets"))

    def _first_step_is_done(self) -> None:
        """Record the time since the launch of the job."""
        self._seconds_to_first_step = round(time.time() - launch_time(), 3)
        if self._log is not None:
            self._log.first_step(self._seconds_to_first_step, self.context.plans.digest)

    def _watch_feeds(self) -> EqualFeeds | None:
        """What compares the first batches of synchronous replicas; None for others."""
        ledger = self.context.executor.ledger
        if ledger is None or not self.context.cluster.joins or self.context.roles.replicas == 1:
            return None
        from hpcflow.train.equal_feeds_warning import EqualFeeds

        return EqualFeeds(ledger.directory)

    def _warn_of_nan(self, fetch: Any, batch: Mapping[Any, Any]) -> None:
        """Warn once; the mean of a batch without samples is NaN, too, and no mistake."""
        if not all(np.size(value) for value in batch.values()):
            return
        self._has_nan = True
        name, op = getattr(fetch, "name", str(fetch)), getattr(fetch, "op", None)
        logger.warning(
            "%s: %r%s is NaN at step %d\n"
            "  next  --set check_numerics=1 names the first operation with a NaN or infinity; "
            "usual causes are a high learning rate, hf.log of 0 and NaN in the data",
            *(user_line(), name, f" ({op.line})" if op is not None else "", self.steps),
        )

    def _compare(self, rows: Rows) -> None:
        """Detect stragglers, on the chief."""
        if not rows or not self.is_chief:
            return
        for line in self._stragglers.add(rows):
            logger.warning(line)
            if self._log is not None:
                self._log.slow(self._stragglers.stragglers())
        if self._log is not None:
            self._log.pace(self.steps, rows)

    def between_steps(self) -> None:
        """Stop if a rank got a signal, save if due; `step` calls it first.

        A rank that waits before its next step must call it from time to time.
        """
        if self._checkpoints is not None:
            self._checkpoints.saves.poll()
        is_late = (
            self._checkpoints is not None
            and self.is_chief
            and self._checkpoints.decide_save(self.steps)
        )
        bound = self.preemption.is_bound(self.first_step, self.steps)
        stops = self.preemption.due(is_late)
        if bound:  # on all ranks
            self._meet(stopping=True)
        if self._is_led:
            self._led_edge(stops, is_late)
        elif stops:
            self._meet(stopping=True)
        elif self._checkpoints is not None or self._policies:
            self._edge()

    def every(self, steps: int, action: Callable[[], Any]) -> None:
        """Call `action()` every `steps` steps, on all ranks that run the script together.

        For custom policies: `sess.every(100, lambda: saver.save(sess, "weights", count))`. For
        asynchronous workers the steps of all are counted, approximately, and they meet between
        their steps.

        Ranks: every rank that runs the script, with the same `steps` in the same order.
        """
        from hpcflow.train.every_n_steps_or_secs import PeriodicAction

        self._policies.append(PeriodicAction(self.context, steps, action, self.first_step))

    def _edge(self) -> None:
        """Run the due actions between two steps, all workers together."""
        drivers, control = self.context.roles.drivers, self.context.control
        due = self._due()
        if len(drivers) > 1 and self._is_served:
            assert control is not None
            if due and self.is_chief:
                for rank in drivers[1:]:
                    control.note(rank, self.steps)  # asks them to meet at their next step
            elif not control.notes:
                return
            control.notes.clear()
            self._meet(saving=due)
            due = self.preemption.saving
        self._do(due)

    @property
    def _is_led(self) -> bool:
        """Whether the chief names the step of a meeting, since each update needs every worker.

        Not where steps are only planned: there is no job.
        """
        several = len(self.context.roles.drivers) > 1 and self.context.control is not None
        return several and self.context.cluster.sync.in_step and self._is_served

    @property
    def _is_served(self) -> bool:
        return self.context.cluster.mode == "ps"

    def _led_edge(self, stops: bool, is_late: bool) -> None:
        """Between two steps of workers that run the same number of steps.

        Actions that are due by the number of steps are known to all. To stop, or to save after some
        time, the chief names a step that no worker has begun: the one after the next, since a
        worker can be one step ahead of the chief.
        """
        control = self.context.control
        assert control is not None
        if self.is_chief and (stops or is_late) and not control.notes:
            number = self.steps + 2
            request = {"service": "note", "number": number}
            control.call(dict.fromkeys(self.context.roles.drivers[1:], request))()
            control.notes.append(number)
        noted = bool(control.notes) and self.steps >= control.notes[0]
        due = self._due() | (noted and self.is_chief and is_late)
        if not noted and not due:
            return
        self._meet(stopping=noted and self.context.stop.number != 0, saving=due)
        self._do(self.preemption.saving)

    def _due(self, ended: bool = False) -> int:
        """The due actions as bits: save (1), then the policies.

        The chief sends them to asynchronous workers.
        """
        if self._is_served and not self.is_chief and not self.context.cluster.in_step:
            return 0
        due = sum(2 << i for i, policy in enumerate(self._policies) if policy.due(self.steps))
        keeper = None if ended else self._checkpoints
        return due + (
            keeper is not None and (self.preemption.late or keeper.is_save_due(self.steps))
        )

    def _do(self, due: int) -> None:
        """Run the due actions, outside of steps."""
        if due & 1 and self._checkpoints is not None:
            self._checkpoints.save(self.steps, self.samples, waits=False)
        for i, policy in enumerate(self._policies):
            if due & 2 << i:
                policy.run(self.steps)
        if due:
            self.pace.begin()

    def save(self, metrics: Mapping[str, Any] | None = None) -> Path:
        """Save the state of the job now, in the foreground; returns the checkpoint.

        `metrics` are stored for `keep_best`.

        Ranks:  every rank that runs the script, between steps.
        Errors: CheckpointError, on all of them; earlier checkpoints are unchanged.
        """
        if self._checkpoints is None:
            raise CheckpointError(
                "this session keeps no checkpoints", hint="give TrainingSession(checkpoints=DIR)"
            )
        path = self._checkpoints.save(self.steps, self.samples, metrics)
        assert path is not None
        return path

    def _save_last(self) -> None:
        """Wait for the save in progress, and save the remaining steps."""
        if self._checkpoints is not None:
            self._checkpoints.saves.finish()
            if self.preemption.unsaved or self._checkpoints.saves.failing:
                self.save()

    def _meet(self, stopping: bool = False, saving: int = 0, at_end: bool = False) -> None:
        """Wait for all workers; if one got a stop request, end the script.

        `at_end`: this worker has no batches left.
        """
        unsaved = self._checkpoints is not None and self._checkpoints.is_new(self.steps)
        stops = self.preemption.meet(stopping, saving, unsaved)
        if self._is_led and self.context.control is not None:
            self.context.control.notes.clear()  # they are handled
        if stops:
            self._stop()
        if self.heirs is not None:
            self.steps = self.heirs.all_finished(at_end and not self.preemption.saving, self.steps)
        self.pace.begin()

    def wait(self) -> None:
        """Wait for every worker; all updates are then applied."""
        self._met = self._has_waited = True
        if self.heirs is None:
            self._meet_at_end()
        else:
            self.heirs.finish()
        self._save_last()
        self.preemption.over()
        if self._checkpoints is not None:
            self._checkpoints.end()
        if self._speeds is not None:
            self._speeds.finish()
        if self._begun is not None:
            self.seconds = time.perf_counter() - self._begun
            if self._loads is not None:
                self._loads.finish()

    def meet(self) -> None:
        """Wait between two steps until every worker has called it; all updates are then applied.

        For what the workers do together in the midst of training, such as a validation after each
        epoch. Workers that save meanwhile, or stop, take this one with them.

        Ranks:  every rank that runs the script.
        Errors: Preempted, as of `step`.
        """
        self._meet_others(at_end=False)

    def _meet_at_end(self) -> None:
        """Wait for all workers at the end of the data; save with those that have batches left."""
        self._meet_others(at_end=True)

    def _meet_others(self, at_end: bool) -> None:
        self._meet(saving=self._due(ended=True), at_end=at_end)
        while self.preemption.saving:  # requested by others, or after the last step
            self._do(self.preemption.saving)
            if self.context.control is not None:
                self.context.control.notes.clear()  # they are handled
            self._meet(at_end=at_end)

    def _stop(self) -> NoReturn:
        """End the script early, on all workers together."""
        self._met = True
        self._save_last()
        if self._speeds is not None:
            self._speeds.finish()
        step = self.steps
        if self.context.cluster.in_step:
            step += self.first_step
        if self._log is not None:
            self._log.stop(stop_reason(self.preemption.number), step)
        raise self.preemption.end(
            step, ANEW if self._checkpoints is None else self._checkpoints.stop_outlook()
        )

    def __exit__(self, *error: object) -> None:
        if error[:1] in ((), (None,)) and not self._met:
            self.wait()  # another worker may be waiting for a common stop
        self.preemption.over()
        self.close()

    def close(self) -> None:
        """Release plans and prefetched data."""
        super().close()
        if self._checkpoints is not None:
            self._checkpoints.close()
        if self.heirs is not None:
            self.heirs.close()
        for data in self.graph.get_collection("datasets"):
            data.close()

    def result(self, **extra: Any) -> dict[str, Any] | None:
        """Write `result.json` to the run directory, with `extra` in it; returns its contents.

        Waits for all workers first, as `wait`, unless that was called since the last step.

        Ranks: every worker calls it; the chief writes, the others get None.
        """
        if not self._has_waited:
            self.wait()
        waited = self._input_wait_seconds() - self._waited_before
        report = {
            "steps": self.steps,
            "samples": self.samples,
            "seconds": self.seconds,
            "seconds_to_first_step": self._seconds_to_first_step,
            "input_wait_seconds": round(waited, 6),
            "work_seconds": round(self.pace.work_seconds, 6),
            "wait_seconds": round(self.pace.wait_seconds, 6),
        }
        reports = self.context.reports(report)
        if reports is None:
            return None
        names = [v.name for v in self.graph.get_collection("trainable_variables")]
        summary = job_summary(self.context, reports, names)
        if self._checkpoints is not None:
            summary["saves"] = self._checkpoints.saves.report()
        if self._loads is not None:
            summary |= self._loads.report()
        summary |= {"random_seed": self.store.seed.job, "stragglers": self._stragglers.stragglers()}
        summary |= {**extra, "versions": versions()}
        write_json(self.run_dir / RESULT, summary)
        if self._log is not None:
            self._log.end(finished=True)
        return summary


def _nan_fetch(fetches: Any, values: Any) -> Any:
    """The first fetch of a step whose value is the number NaN; None if there is none."""
    pairs = (
        zip(fetches, values, strict=True) if type(values) in (list, tuple) else [(fetches, values)]
    )
    return next((f for f, v in pairs if isinstance(v, np.floating) and v != v), None)


def tell_idle_tasks(graph: Graph, context: RankContext) -> None:
    """Warn on the chief about tasks of a replica that no operation of `graph` uses."""
    if context.settings.automatic or graph.root.has_requirements:
        return  # the plan tells them
    spans = context.settings.tasks_per_replica
    used_tasks = {parse_device(op.device).task for op in graph.get_operations()}
    idle = [k for k in range(1, spans) if k not in used_tasks]
    if idle and context.is_chief:
        logger.warning(
            "%d of %d worker ranks are idle: no operation is placed on /job:worker/task:%s, "
            "of %d in a replica; use hf.device, or leave --tasks-per-replica out",
            *(len(idle) * context.roles.replicas, len(context.roles.workers)),
            *(number_spans(idle), spans),
        )
