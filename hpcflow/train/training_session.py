"""A session that trains: it counts what this worker does and writes the job's result."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from hpcflow.errors import CheckpointError
from hpcflow.graph.device_names import parse
from hpcflow.graph.graph import Graph
from hpcflow.graph.graph_keys import GraphKeys
from hpcflow.ops.variables.variable_ops import Variable
from hpcflow.platform.rank_logging import logger, numbers
from hpcflow.ps.sync_rule import SyncRule
from hpcflow.ps.sync_rules import rule
from hpcflow.runtime.job.rank_context import Context
from hpcflow.runtime.job.stop_signal import reason
from hpcflow.runtime.session.config_proto import ConfigProto, RunMetadata, RunOptions
from hpcflow.runtime.session.session import Session
from hpcflow.train import run_records
from hpcflow.train.checkpoint_location import Chosen, choose, tell_own_loop
from hpcflow.train.data_position import as_dealt
from hpcflow.train.dead_worker_data import Heirs
from hpcflow.train.job_result import summary
from hpcflow.train.preemption import ANEW, Preemption
from hpcflow.train.result_files import versions, write_json
from hpcflow.train.speed_exchange import Exchange, Rows
from hpcflow.train.step_timing import Pace
from hpcflow.train.straggler_detection import Stragglers

if TYPE_CHECKING:
    from hpcflow.train.checkpoint_manager import Keeper
    from hpcflow.train.every_n_steps_or_secs import Policy
    from hpcflow.train.saver import Saver

RESULT = "result.json"
SYNC = "sync_replicas"  # the collection in which a graph says how its workers keep step


class TrainingSession(Session):
    """A session whose variables have their initial values and whose graph is complete.

    `step` trains and counts, `run` does neither; then `wait` for the other workers and gather the
    `result`. No operation can be added to the graph any more.

    With a folder for `checkpoints` the whole state of the job is saved there while it trains on (or
    waits, by the setting `save`; docs/checkpoint-format.md): after `save_every`
    steps (500) or time ("30s", "10m"), by default as often as pays ("auto"), when the training has
    ended, and when a signal or the end of the job's time stops it. `resume` goes on from the newest
    good one, if there is one, at its place in the datasets; without it a folder with checkpoints is
    refused. `max_to_keep` are kept, 0 for all, and with `keep_best`, as ("loss", "min", 3), those 3
    that `save(metrics={"loss": value})` has saved with the smallest value. `form` is as for
    `hf.train.Saver`. docs/survival.md tells all of it.

    `pace.work` and `pace.wait` tell this worker's own work from its waiting for other ranks, in
    seconds of the last step. A worker that is slow for long is named, with its host.

    With parameter servers `sync` says how the workers keep step, in place of the setting of that
    name: "async" (each updates as it comes), "all" (every update is by all workers' gradients),
    `hf.Backup(k)` (by all but the last k), `hf.Stale(bound)` (as async, but nobody is more than
    `bound` steps ahead).

    Ranks: every rank that runs the script has one; replicas start from the values of the first.
    """

    def __init__(
        self,
        graph: Graph | None = None,
        context: Context | None = None,
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
        for said in self.graph.get_collection(SYNC) if sync is None else ():
            sync = said.rule(self.context.roles.replicas)
        if sync is not None:
            self.context.keep_step(rule(sync))
        self.steps = 0  # taken by this worker
        self.samples = 0  # fed to this worker
        self.seconds = 0.0  # from the first step until every worker was done
        self.preemption = Preemption(self.context)
        self.pace = Pace(self.context.engine)
        self._exchange: Exchange | None = None
        if self.context.control is not None and len(self.context.roles.drivers) > 1:
            self._exchange = Exchange(self.context, self.graph)
        self.heirs: Heirs | None = None  # of workers of servers that have died
        if self._exchange is not None and self._is_served and self.context.settings.survive:
            number = self._exchange.number
            self.heirs = Heirs(self.context, self.graph, number, self._meet_at_end)
        self._stragglers = Stragglers(self.context)
        self._begun: float | None = None
        self._met = True  # with the other workers, since the last step
        self._initialize(self._finished())
        self._policies: list[Policy] = []
        self._keeper: Keeper | None = None
        chosen = self._choose(checkpoints)
        self._resumes = resume or chosen.by_setting  # the same job, started again, goes on
        if chosen.folder is not None and self.context.on_plan is None:
            from hpcflow.train.saver import Saver, state_of_job

            saver = Saver(state_of_job(self.graph), max_to_keep, form, keep_best)
            keeper = self._keep(chosen.folder, save_every, saver)
            if not self._resumes:
                keeper.begin_anew()
            elif keeper.resume() and chosen.by_setting:
                tell_own_loop(self, self.first_step)
        self._log = run_records.of(self.context)
        me = weakref.ref(self)
        self.context.steps = lambda: getattr(me(), "steps", None)

    def _choose(self, own: str | Path | None) -> Chosen:
        """Where it keeps checkpoints; the script names `own`."""
        return choose(self.context, own)

    def replicas_changed(self) -> None:
        """A replica has died: the pace of the others counts anew."""
        super().replicas_changed()
        self._stragglers = Stragglers(self.context)
        if self._exchange is not None:
            self._exchange.replicas_changed()

    def _finished(self) -> list[Variable]:
        """The variables of the graph, to which nothing can be added from now on."""
        variables: list[Variable] = [
            *self.graph.get_collection(GraphKeys.GLOBAL_VARIABLES),
            *self.graph.get_collection(GraphKeys.LOCAL_VARIABLES),
        ]
        self.graph.finalize()
        tell_idle_tasks(self.graph, self.context)
        return variables

    def _initialize(self, variables: Sequence[Variable]) -> None:
        """Give them their initial values."""
        if variables:
            self.run([v.initializer for v in variables])

    def _keep(
        self,
        folder: Path,
        save_every: int | str | None,
        saver: Saver,
        counter: Variable | None = None,
    ) -> Keeper:
        """Save the state of the job in `folder` from now on."""
        from hpcflow.train.checkpoint_manager import Keeper

        resumes, heirs = self._resumes, self.heirs
        self._keeper = Keeper(self, folder, save_every, saver, resumes, counter, heirs)
        return self._keeper

    def _why_unsaved(self) -> str:
        keeper: Keeper | None = getattr(self, "_keeper", None)
        if keeper is None:
            return (
                "it keeps no checkpoints: what it trains is lost then. Give TrainingSession("
                "checkpoints=DIR, resume=True), or hpcflow run --set checkpoints=DIR"
            )
        if self._begun is None:
            return "`run` trains here, of which nothing is saved: train by the session's `step`"
        if not self._resumes:
            return (
                f"does not go on by itself: it saves in {keeper.directory} before, and stays away "
                "without resume=True"
            )
        return ""

    @property
    def first_step(self) -> int:
        """The step that the job has gone on from, 0 if it began anew: steps of earlier starts.

        For a loop that counts for itself: `for step in range(sess.first_step, 1000)`. It counts as
        checkpoints do: joint steps of synchronous workers, those of all asynchronous ones together.
        """
        return 0 if self._keeper is None else self._keeper.first_step

    @property
    def is_chief(self) -> bool:
        """True on the one rank that speaks for the job."""
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
        """Run one training step on a batch of `hf.data`, and count it; the fetched values.

        A copy with more feeds, `batch | {rate: 0.1}` or `{**batch, rate: 0.1}`, counts as `batch`.
        `deadline` is for the step alone, as that of `run`; one that misses it is not counted.
        `options` and `run_metadata` are those of `run`.
        Errors: Preempted, which ends the script, on all workers if one had SIGUSR1 or SIGTERM;
                DataError for other feeds of the placeholders that a dataset deals for.
        """
        batch = as_dealt(batch, self.graph)
        self.between_steps()
        if self._begun is None:
            self._begun = time.perf_counter()
            self.pace.begin()
        self._met = False
        values = super().run(fetches, batch, options, run_metadata, deadline=deadline)
        self.pace.end(batch)
        self.steps += 1
        self.samples += getattr(batch, "size", 0)
        if self._keeper is not None:
            self._keeper.count(batch)
        if self.heirs is not None:
            self.heirs.count(batch)
        if self._exchange is not None:
            self._compare(self._exchange.step(self.pace))
        return values

    def _compare(self, rows: Rows) -> None:
        """Look for workers that are slow for long, on the chief."""
        if not rows or not self.is_chief:
            return
        for line in self._stragglers.add(rows):
            logger.warning(line)
            if self._log is not None:
                self._log.slow(self._stragglers.found())
        if self._log is not None:
            self._log.pace(self.steps, rows)

    def between_steps(self) -> None:
        """Stop if a rank was told to, save if it is time; `step` begins with it.

        Only a rank that waits before its next step needs to call it, now and then.
        """
        if self._keeper is not None:
            self._keeper.saves.poll()
        is_late = self._keeper is not None and self.is_chief and self._keeper.look(self.steps)
        bound = self.preemption.is_bound(self.first_step, self.steps)
        stops = self.preemption.due(is_late)
        if bound:  # on all alike
            self._meet(stopping=True)
        if self._is_led:
            self._led_edge(stops, is_late)
        elif stops:
            self._meet(stopping=True)
        elif self._keeper is not None or self._policies:
            self._edge()

    def every(self, steps: int, action: Callable[[], Any]) -> None:
        """Call `action()` after each so many steps, on all ranks that run the script together.

        For a policy of one's own: `sess.every(100, lambda: saver.save(sess, "weights", count))`.
        Asynchronous workers count the steps of all, about, and meet between their own steps.

        Ranks: every rank that runs the script, with the same `steps` in the same order.
        """
        from hpcflow.train.every_n_steps_or_secs import Policy

        self._policies.append(Policy(self.context, steps, action, self.first_step))

    def _edge(self) -> None:
        """Between two steps: do what it is time for, all workers together."""
        drivers, control = self.context.roles.drivers, self.context.control
        due = self._due()
        if len(drivers) > 1 and self._is_served:
            assert control is not None
            if due and self.is_chief:
                for rank in drivers[1:]:
                    control.note(rank, self.steps)  # come, at your next step
            elif not control.notes:
                return
            control.notes.clear()
            self._meet(saving=due)
            due = self.preemption.saving
        self._do(due)

    @property
    def _is_led(self) -> bool:
        """Whether the chief says before which step all meet: a round needs each worker."""
        several = len(self.context.roles.drivers) > 1
        return several and self.context.cluster.sync.in_step and self._is_served

    @property
    def _is_served(self) -> bool:
        return self.context.cluster.mode == "ps"

    def _led_edge(self, stops: bool, is_late: bool) -> None:
        """Between two steps of which every worker does the same number.

        What it is time for by the number of steps all know. For a wish to stop, or to save after
        some time, the chief names a step that nobody can begin before it has heard of it: that
        after the next, for a worker can be one step ahead of the chief.
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
        """What it is time for, as bits: to save (1), then the policies; the chief says it to
        asynchronous workers.
        """
        if self._is_served and not self.is_chief and not self.context.cluster.in_step:
            return 0
        due = sum(2 << i for i, one in enumerate(self._policies) if one.due(self.steps))
        keeper = None if ended else self._keeper
        return due + (keeper is not None and (self.preemption.late or keeper.due(self.steps)))

    def _do(self, due: int) -> None:
        """Do what it is time for, apart from the steps."""
        if due & 1 and self._keeper is not None:
            self._keeper.save(self.steps, self.samples, waits=False)
        for i, policy in enumerate(self._policies):
            if due & 2 << i:
                policy.run(self.steps)
        if due:
            self.pace.begin()

    def save(self, metrics: Mapping[str, Any] | None = None) -> Path:
        """Save the state of the job now, and wait for it; the checkpoint.

        `metrics` say how good it is.

        Ranks:  every rank that runs the script, between steps.
        Errors: CheckpointError, on all of them; earlier checkpoints stay.
        """
        if self._keeper is None:
            raise CheckpointError(
                "this session keeps no checkpoints", hint="give TrainingSession(checkpoints=DIR)"
            )
        path = self._keeper.save(self.steps, self.samples, metrics)
        assert path is not None
        return path

    def _save_last(self) -> None:
        """Wait for the save that goes on, and save what is in none."""
        if self._keeper is not None:
            self._keeper.saves.finish()
            if self.preemption.unsaved or self._keeper.saves.failing:
                self.save()

    def _meet(self, stopping: bool = False, saving: int = 0, at_end: bool = False) -> None:
        """Wait for all workers; if one of them was told to stop, end the script.

        `at_end` says that this one has no batches left.
        """
        unsaved = self._keeper is not None and self._keeper.is_new(self.steps)
        stops = self.preemption.meet(stopping, saving, unsaved)
        if self._is_led and self.context.control is not None:
            self.context.control.notes.clear()  # this was what they were for
        if stops:
            self._stop()
        if self.heirs is not None:
            self.steps = self.heirs.agree(at_end and not self.preemption.saving, self.steps)
        self.pace.begin()

    def wait(self) -> None:
        """Wait until every worker is here: all updates are then applied."""
        self._met = True
        if self.heirs is None:
            self._meet_at_end()
        else:
            self.heirs.finish()
        self._save_last()
        self.preemption.over()
        if self._keeper is not None:
            self._keeper.end()
        if self._begun is not None:
            self.seconds = time.perf_counter() - self._begun

    def _meet_at_end(self) -> None:
        """Wait for all workers without batches of one's own, and save with those who have some."""
        self._meet(saving=self._due(ended=True), at_end=True)
        while self.preemption.saving:  # for those who have steps left, or after the last one
            self._do(self.preemption.saving)
            if self.context.control is not None:
                self.context.control.notes.clear()  # this was what they were for
            self._meet(at_end=True)

    def _stop(self) -> NoReturn:
        """End the script early, on all workers together."""
        self._met = True
        self._save_last()
        step = self.steps
        if self.context.cluster.in_step:
            step += self.first_step
        if self._log is not None:
            self._log.stop(reason(self.preemption.number), step)
        raise self.preemption.end(step, ANEW if self._keeper is None else self._keeper.outlook())

    def __exit__(self, *error: object) -> None:
        if error[:1] in ((), (None,)) and not self._met:
            self.wait()  # another worker may be waiting to stop together
        self.preemption.over()
        self.close()

    def close(self) -> None:
        """Let go of plans, and of what was read ahead for steps that will not be."""
        super().close()
        if self._keeper is not None:
            self._keeper.close()
        if self.heirs is not None:
            self.heirs.close()
        for data in self.graph.get_collection("datasets"):
            data.close()

    def result(self, **extra: Any) -> dict[str, Any] | None:
        """Write `result.json` in the run directory, with `extra` in it; what it says.

        Ranks: every worker calls it, after `wait`; the chief writes, the others get None.
        """
        waited = sum(data.input_wait_seconds for data in self.graph.get_collection("datasets"))
        mine = {
            "steps": self.steps,
            "samples": self.samples,
            "seconds": self.seconds,
            "input_wait_seconds": round(waited, 6),
            "work_seconds": round(self.pace.work_seconds, 6),
            "wait_seconds": round(self.pace.wait_seconds, 6),
        }
        reports = self.context.reports(mine)
        if reports is None:
            return None
        names = [v.name for v in self.graph.get_collection("trainable_variables")]
        found = summary(self.context, reports, names)
        if self._keeper is not None:
            found["saves"] = self._keeper.saves.report()
        found |= {"random_seed": self.store.seed.job, "stragglers": self._stragglers.found()}
        found |= {**extra, "versions": versions()}
        write_json(self.run_dir / RESULT, found)
        if self._log is not None:
            self._log.end(finished=True)
        return found


def tell_idle_tasks(graph: Graph, context: Context) -> None:
    """Warn on the chief of tasks of a replica that no operation of `graph` asks for."""
    spans = context.settings.tasks_per_replica
    named = {parse(op.device).task for op in graph.get_operations()}
    idle = [k for k in range(1, spans) if k not in named]
    if idle and context.is_chief:
        logger.warning(
            "%d of %d worker ranks have nothing to do: no operation asks for /job:worker/task:%s, "
            "of %d in a replica; place some there by hf.device, or leave --tasks-per-replica out",
            *(len(idle) * context.roles.replicas, len(context.roles.workers)),
            *(numbers(idle), spans),
        )
