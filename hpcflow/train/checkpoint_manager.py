"""Checkpoint manager: saves the state of a training session and resumes from it."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from hpcflow.checkpoint import checkpoint_directory
from hpcflow.checkpoint.participating_ranks import ParticipatingRanks
from hpcflow.checkpoint.restore import newest_valid_checkpoint
from hpcflow.errors import CheckpointError
from hpcflow.launch.slurm_requeue import RESTART_HINT, TEMPORARY_FAILURE
from hpcflow.monitoring import run_directory_lock
from hpcflow.ops.variables.variable_ops import Variable
from hpcflow.platform.rank_logging import logger
from hpcflow.runtime.job.stop_signal import LOSS, RESTARTS, TIME
from hpcflow.runtime.session.session import Session
from hpcflow.train import run_records
from hpcflow.train.checkpoint_interval import AUTO, FIRST_S, CheckpointInterval, interval_for_job
from hpcflow.train.dead_worker_data import DeadWorkerData
from hpcflow.train.every_n_steps_or_secs import is_multiple_reached, parse_interval
from hpcflow.train.preemption import NO_PROGRESS, TOO_OFTEN, StopOutlook, leave
from hpcflow.train.restart_count import RestartCount
from hpcflow.train.saver import Saver
from hpcflow.train.saves_in_flight import SaveDurations, SavesInFlight


class SaveListener(Protocol):
    """Callbacks of saves, on the ranks that have a listener."""

    def before_save(self, session: Any, step: int, /) -> Any: ...  # noqa: D102

    def after_save(self, session: Any, step: int, /) -> Any: ...  # noqa: D102


class CheckpointManager:
    """Saves the whole state of a training job, and restores it.

    The step of a checkpoint counts the steps of synchronous workers once, and adds the steps of
    asynchronous workers. Its samples are those of all workers. Both continue after a resume. With a
    `counter`, a variable, the step is its value.
    """

    def __init__(
        self,
        session: Session,
        directory: Path,
        interval: int | str | None,
        saver: Saver,
        resumes: bool,
        counter: Variable | None,
        heirs: DeadWorkerData | None,
    ) -> None:
        self.session, self.context, self.directory = session, session.context, directory
        interval = AUTO if interval is None else interval
        self.steps_between, self._seconds_between = parse_interval(interval)
        self.saver, self._counter, self._heirs = saver, counter, heirs
        self.datasets: list[Any] = session.graph.get_collection("datasets")
        self.listener: SaveListener | None = None
        self.always_waits = False  # for each save, on all ranks
        self._resumes = resumes  # restarted as the same job
        self.first_step = self.first_samples = 0  # of earlier runs
        self._is_joint = self.context.cluster.in_step
        # dataset -> shard (0: this worker's own) -> epoch and step of its last batch
        self._last: dict[int, dict[int, tuple[int, int]]] = {}
        self._saved_at = 0  # this worker's steps at the last save
        self._kept_at = self._kept_before = 0  # the same for the last two successful saves
        self._saved_time = time.monotonic()
        self.saves = SavesInFlight(self.context, self._saved, self._save_failed)
        self._in_foreground = self.context.settings.save == "foreground"
        if saver.form == "parallel" and not self._in_foreground:
            self._in_foreground = True
            if self.context.is_chief:
                logger.info("checkpoints in one file are written by all ranks while training waits")
        if self.context.is_chief:
            saver.describe(session)  # before training, since it would delay the first save
        self._steps = 0  # steps of this worker
        self._is_prepared = self._in_foreground  # preparation of a background save has started
        self._starts, self._restarts = RestartCount(directory), 0
        self._is_told = interval != AUTO  # the interval was logged
        self._is_claimed = False  # the chief has locked the folder
        self._newest = 0  # step of the newest checkpoint of this start

    @functools.cached_property
    def interval(self) -> CheckpointInterval:
        """The interval estimate, on the chief."""
        return interval_for_job(self.context, self._seconds_between, self._starts.record_durations)

    # -- schedule

    def count(self, batch: Mapping[Any, Any]) -> None:
        """Record a completed step on this batch."""
        source = getattr(batch, "source", None)
        for number, dataset in enumerate(self.datasets):
            if dataset is source:
                place = batch.epoch, batch.step  # type: ignore[attr-defined]
                self._last.setdefault(number, {})[batch.line] = place  # type: ignore[attr-defined]
        self._steps += 1
        if not self._is_prepared and self._is_near():
            self._is_prepared = True
            self.saver._prepare(self.session)

    def _is_near(self) -> bool:
        """Whether this worker is at least half way to its first save, by its own estimate."""
        if self.steps_between:
            joint = self._steps * (1 if self._is_joint else self.context.roles.replicas)
            return 2 * joint >= self.steps_between
        between = FIRST_S if self._seconds_between is None else self._seconds_between
        return 2 * (time.monotonic() - self._saved_time) >= between

    def is_save_due(self, steps: int) -> bool:
        """Whether to save before this worker's next step; the same on all synchronous workers.

        For asynchronous workers the chief decides, from its own steps.
        """
        every, first = self.steps_between, self.first_step
        return bool(every) and is_multiple_reached(
            self.context, every, steps, self._saved_at, first
        )

    def decide_save(self, steps: int) -> bool:
        """Whether it is time to save; called on the chief before its next step.

        It requests a stop of all ranks if another step would leave too little time for the last
        save, or if a worker has died and the job is to restart with a replacement.
        """
        self.interval.begin_step()
        if steps and self.interval.leaves_no_time():
            self.context.stop.note(TIME)
        if steps and self.context.lost and self._is_to_replace:
            self.context.stop.note(LOSS)
        between = self.interval.seconds
        late = time.monotonic() - self._saved_time >= between
        is_new = steps > self._saved_at and not self.saves.is_saving
        return bool(between) and late and is_new

    def is_new(self, steps: int) -> bool:
        """Whether this worker has run steps that no checkpoint contains."""
        return steps > self._kept_at

    # -- saving

    def save(
        self,
        steps: int,
        samples: int,
        metrics: Mapping[str, Any] | None = None,
        waits: bool = True,
    ) -> Path | None:
        """Save the state of the job; this worker has run `steps` steps on `samples` samples.

        Returns the checkpoint; None if it is written in the background, which `waits` excludes.

        Ranks: every rank that runs the script, all between steps.
        """
        self.saves.finish()
        last = [list(self._last.get(number, {}).items()) for number in range(len(self.datasets))]
        row: dict[str, Any] = {
            "steps": steps,
            "samples": samples,
            "last": last,
            "worker": self.context.replica,
        }
        if self._counter is not None:
            row["counted"] = int(self.session.run(self._counter))
        self._kept_before, self._kept_at = self._kept_at, steps
        args = (self.session, self.directory, self._facts, row, metrics)
        step = row.get("counted", self.first_step + steps)
        if self.listener is not None:
            self.listener.before_save(self.session, step)
        waits = waits or self.always_waits
        try:
            if self._in_foreground:
                path: Path | None = self.saves.in_foreground(lambda: self.saver._save(*args))
            else:
                path = self.saves.in_background(lambda one: self.saver._begin(one, *args), waits)
        except BaseException:
            self._save_failed()
            raise
        self._saved_at, self._saved_time = steps, time.monotonic()
        if self.context.is_chief:
            self.interval.exclude_pause()
        if self.listener is not None:
            self.listener.after_save(self.session, step)
        return path

    def _saved(self, path: Path, took: SaveDurations) -> None:
        """A checkpoint is complete and has its name."""
        self._newest = checkpoint_directory.step_of(path)
        if self.context.is_chief:
            self._report_duration(took)
        self._set_restart_advice(path)

    def _save_failed(self) -> None:
        """A save has failed: the steps since the previous one are in no checkpoint."""
        self._kept_at = self._kept_before

    def _report_duration(self, took: SaveDurations) -> None:
        """Record the duration of a save on the chief; the first time, log the chosen interval."""
        self.interval.record_save(None if self.saves.waited else took.held, took.published)
        self._starts.record_save(self.interval.durations)
        if not self._is_told and self.interval.save_s is not None:
            self._is_told = True
            logger.info(self.interval.explain(len(set(self.context.hosts))))

    def stop_outlook(self) -> StopOutlook:
        """The exit code and message if the job stops now; the same code on all ranks."""
        settings = self.context.settings
        if self._newest <= self.first_step:
            return StopOutlook(
                NO_PROGRESS,
                f"nothing was trained since the start at step {self.first_step}, so "
                "another start would "
                f"not help: the job is not queued again (exit code {NO_PROGRESS})",
            )
        if self._is_last and self._resumes:
            return StopOutlook(TOO_OFTEN, f"saved; {self._count_start()}")
        comes_back = self._resumes and settings.requeue
        return StopOutlook(TEMPORARY_FAILURE, f"saved; {RESTART_HINT}", comes_back)

    @property
    def _is_last(self) -> bool:
        """Whether the job has reached its limit of restarts."""
        return 0 <= self.context.settings.max_restarts <= self._restarts

    @property
    def _is_to_replace(self) -> bool:
        return self.context.settings.replace and self._resumes and not self._is_last

    def _count_start(self) -> str:
        most = self.context.settings.max_restarts
        return (
            f"this is restart {self._restarts}, with max_restarts={most}: the job is not "
            "queued again "
            f"(exit code {TOO_OFTEN})"
        )

    def end(self) -> None:
        """The training is complete."""
        if self.context.is_chief:
            self._starts.end()

    def continue_as(self, other: CheckpointManager) -> None:
        """Continue with the steps and samples that `other` has restored."""
        self.first_step, self.first_samples = other.first_step, other.first_samples
        if self.directory == other.directory:
            self._starts, self._restarts = other._starts, other._restarts

    def _tell_resume(self, path: Path) -> None:
        """Print and record from which checkpoint the job resumes, on the chief."""
        print(f"resumed step={self.first_step} samples={self.first_samples}", flush=True)
        log = run_records.run_log_of(self.context)
        if log is not None:
            log.events.add(run_records.RESUME, f"from {path.name}", self.first_step)

    def _set_restart_advice(self, path: Path) -> None:
        """Tell the runtime how the job can resume if a rank dies from now on."""
        path = path.resolve()
        if self._resumes:
            text = f"the same command resumes from {path}"
        else:
            text = f"start it again with resume=True: it resumes from {path}"
        self.context.set_restart_advice(text, str(path))

    def _facts(self, rows: Sequence[Any]) -> dict[str, Any]:
        steps = [row["steps"] for row in rows]
        step = self.first_step + (max(steps) if self._is_joint else sum(steps))
        rule = {"sync": str(self.context.cluster.sync)} if self.context.cluster.servers else {}
        return {
            **rule,
            "step": step if self._counter is None else max(row["counted"] for row in rows),
            "samples": self.first_samples + sum(row["samples"] for row in rows),
            "position": [
                dataset.position(self._places(rows, number))
                for number, dataset in enumerate(self.datasets)
            ],
        }

    def _places(self, rows: Sequence[Any], number: int) -> list[Any]:
        """The last (epoch, step) of each worker; of a dead worker, those of its shard's parts."""
        by_worker = {
            row["worker"]: {line: tuple(place) for line, place in row["last"][number]}
            for row in rows
        }
        if self._heirs is not None:
            self._heirs.ask()  # about workers that died during the save
            return self._heirs.lines(self.datasets[number]).last_batches_by_share(by_worker)
        return [by_worker[worker].get(0) for worker in sorted(by_worker)]

    def start_fresh(self) -> None:
        """Start without a checkpoint; the folder must have none.

        Ranks:  every rank that runs the script.
        Errors: CheckpointError if it has some. This run would delete them by `max_to_keep`, and
                save the same step numbers again.
        """
        place = self.directory

        def look(rows: Sequence[Any]) -> int:
            self._claim()
            entries = checkpoint_directory.with_storage_errors(
                f"reading {place}", lambda: checkpoint_directory.find_checkpoints(place)
            )
            if entries:
                raise CheckpointError(
                    f"{place} has checkpoints of another run; the newest is {entries[0].path.name}",
                    hint="resume from it: TrainingSession(checkpoints=DIR, resume=True), or "
                    f"hpcflow run --set checkpoints={place}; or use another folder",
                )
            return 0

        ParticipatingRanks(self.context).decide({}, look)

    def claim(self) -> None:
        """Lock the folder for this job until `close`.

        Ranks:  every rank that runs the script.
        Errors: CheckpointError that names the other job.
        """
        ParticipatingRanks(self.context).decide({}, lambda rows: self._claim())

    def _claim(self) -> None:
        """Lock the folder, on the chief."""
        if not self._is_claimed:
            with contextlib.suppress(OSError):  # a save will report it
                run_directory_lock.claim_directory(self.directory, run_directory_lock.CHECKPOINTS)
                self._is_claimed = True

    def close(self) -> None:
        """Unlock the folder; an unfinished save is abandoned at the end of the job."""
        if self._is_claimed and not self.saves.is_saving:
            self._is_claimed = False
            run_directory_lock.release_directory(self.directory)

    def resume(self, saves: bool = True) -> bool:
        """Resume from the newest valid checkpoint of the folder, if any; the chief prints which.

        Returns whether there was one. A session that only restores (not `saves`) may do so while
        another job saves to the folder.

        Ranks:  every rank that runs the script.
        Errors: Preempted after too many restarts; CheckpointError that names another job which
                saves to the folder.
        """

        def begin(rows: Sequence[Any]) -> int:
            if saves:
                self._claim()
            elif not run_directory_lock.is_free(self.directory):
                return 0  # drafts and restart count belong to another job
            checkpoint_directory.remove_drafts(self.directory)
            return self._starts.begin()

        self._restarts = ParticipatingRanks(self.context).decide({}, begin)
        if 0 <= self.context.settings.max_restarts < self._restarts:
            if self.context.is_chief:
                logger.error(self._count_start())
            raise leave(self.context, RESTARTS, self._count_start(), TOO_OFTEN)
        saved = newest_valid_checkpoint(self.context, self.directory)
        if saved is None:
            self.context.set_restart_advice(
                f"the same command starts from scratch: {self.directory} is empty"
            )
            if self.context.is_chief:
                logger.info("no checkpoint in %s: training starts from scratch", self.directory)
            return False
        facts = saved.facts
        self.saver._load(self.session, saved, with_draws=True)
        positions = facts.get("position", [])
        if len(positions) != len(self.datasets):
            raise CheckpointError(
                f"{saved.path} has positions of {len(positions)} datasets, but here are "
                f"{len(self.datasets)}",
                hint="create the datasets before the training session, as when it was saved",
            )
        for dataset, position in zip(self.datasets, positions, strict=True):
            dataset.restore(position)
        self.first_step, self.first_samples = facts["step"], facts.get("samples", 0)
        self._set_restart_advice(saved.path)
        if self.context.is_chief:
            with contextlib.suppress(OSError):  # an earlier save may have ended before the rename
                checkpoint_directory.write_latest(saved.path)
            self._tell_resume(saved.path)
        return True
