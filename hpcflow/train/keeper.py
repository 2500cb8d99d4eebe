"""Keeper: what a training session saves and when, and how it goes on from there."""

from __future__ import annotations

import contextlib
import functools
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from hpcflow.checkpoint import folder
from hpcflow.checkpoint.load import newest_good
from hpcflow.checkpoint.team import Team
from hpcflow.errors import CheckpointError, HpcflowError
from hpcflow.logs import logger
from hpcflow.ops.state import Variable
from hpcflow.runtime.context import Context
from hpcflow.runtime.session import Session
from hpcflow.runtime.stop import LOSS, RESTARTS, TIME
from hpcflow.slurm import AGAIN, TEMPORARY_FAILURE
from hpcflow.train.heirs import Heirs
from hpcflow.train.often import AUTO, FIRST_S, Often, of_job
from hpcflow.train.preempt import NO_PROGRESS, TOO_OFTEN, Outlook, leave
from hpcflow.train.saver import Saver
from hpcflow.train.saves import Saves, Took
from hpcflow.train.starts import Starts

_SECONDS = {"s": 1, "m": 60, "h": 3600}


class Listener(Protocol):
    """Who is told of saves, on the ranks that have one."""

    def before_save(self, session: Any, step: int, /) -> Any: ...  # noqa: D102

    def after_save(self, session: Any, step: int, /) -> Any: ...  # noqa: D102


class Keeper:
    """Saves the whole state of a training job, and restores it.

    The step of a checkpoint counts the joint steps of synchronous workers, or those of all
    asynchronous workers together; its samples are those of all workers. Both go on after a resume.
    With a `counter`, a variable, the step is its value.
    """

    def __init__(
        self,
        session: Session,
        directory: Path,
        every: int | str | None,
        saver: Saver,
        resumes: bool,
        counter: Variable | None,
        heirs: Heirs | None,
    ) -> None:
        self.session, self.context, self.directory = session, session.context, directory
        every = AUTO if every is None else every
        self.steps_between, self._seconds_between = interval(every)
        self.saver, self._counter, self._heirs = saver, counter, heirs
        self.datasets: list[Any] = session.graph.get_collection("datasets")
        self.listener: Listener | None = None
        self.always_waits = False  # for each save, on all ranks
        self._resumes = resumes  # the same job, started again, goes on
        self.first_step = self.first_samples = 0  # what was done before this run
        self._is_joint = self.context.cluster.in_step
        # dataset -> line (0: this worker's own share) -> epoch and step of its last batch
        self._last: dict[int, dict[int, tuple[int, int]]] = {}
        self._saved_at = 0  # this worker's steps at the last save
        self._kept_at = self._kept_before = 0  # the same, and at that before it, of those not lost
        self._saved_time = time.monotonic()
        self.saves = Saves(self.context, self._saved, self._lost)
        self._in_foreground = self.context.settings.save == "foreground"
        if saver.form == "parallel" and not self._in_foreground:
            self._in_foreground = True
            if self.context.is_chief:
                logger.info("checkpoints in one file are written by all ranks while training waits")
        if self.context.is_chief:
            saver.describe(session)  # before training, which the first save would hold up for it
        self._steps = 0  # steps of this worker
        self._is_prepared = self._in_foreground  # what a save behind training takes is on its way
        self._starts, self._restarts = Starts(directory), 0
        self._is_told = every != AUTO  # what was chosen
        self._newest = 0  # step of the newest checkpoint of this start

    @functools.cached_property
    def often(self) -> Often:
        """On the chief: how often, and until when."""
        return of_job(self.context, self._seconds_between, self._starts.took)

    # -- when

    def count(self, batch: Mapping[Any, Any]) -> None:
        """A step on this batch has ended."""
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
        """Whether half the way to this worker's first save is behind it, as far as it knows."""
        if self.steps_between:
            joint = self._steps * (1 if self._is_joint else self.context.roles.replicas)
            return 2 * joint >= self.steps_between
        between = FIRST_S if self._seconds_between is None else self._seconds_between
        return 2 * (time.monotonic() - self._saved_time) >= between

    def due(self, steps: int) -> bool:
        """Whether to save before this worker's next step: the same on all synchronous workers.

        Of asynchronous ones the chief tells, from its own steps.
        """
        every, first = self.steps_between, self.first_step
        return bool(every) and is_round(self.context, every, steps, self._saved_at, first)

    def look(self, steps: int) -> bool:
        """On the chief, before its next step: whether it is time to save.

        If a further step would leave too little time for the last save, all are to stop; also if
        a worker has died whose place another start of the job fills.
        """
        self.often.edge()
        if steps and self.often.is_over():
            self.context.stop.note(TIME)
        if steps and self.context.lost and self._is_to_replace:
            self.context.stop.note(LOSS)
        between = self.often.seconds
        late = time.monotonic() - self._saved_time >= between
        is_new = steps > self._saved_at and not self.saves.going
        return bool(between) and late and is_new

    def is_new(self, steps: int) -> bool:
        """Whether this worker has done steps that are in no checkpoint."""
        return steps > self._kept_at

    # -- what

    def save(
        self,
        steps: int,
        samples: int,
        metrics: Mapping[str, Any] | None = None,
        waits: bool = True,
    ) -> Path | None:
        """Save the state of the job, of which this worker has done so many steps and samples.

        The checkpoint; None if it is being written behind training, as it may be unless `waits`.

        Ranks: every rank that runs the script, all between steps.
        """
        self.saves.finish()
        last = [list(self._last.get(number, {}).items()) for number in range(len(self.datasets))]
        mine: dict[str, Any] = {
            "steps": steps,
            "samples": samples,
            "last": last,
            "worker": self.context.replica,
        }
        if self._counter is not None:
            mine["counted"] = int(self.session.run(self._counter))
        self._kept_before, self._kept_at = self._kept_at, steps
        told = (self.session, self.directory, self._facts, mine, metrics)
        step = mine.get("counted", self.first_step + steps)
        if self.listener is not None:
            self.listener.before_save(self.session, step)
        waits = waits or self.always_waits
        try:
            if self._in_foreground:
                path: Path | None = self.saves.in_foreground(lambda: self.saver._save(*told))
            else:
                path = self.saves.in_background(lambda one: self.saver._begin(one, *told), waits)
        except BaseException:
            self._lost()
            raise
        self._saved_at, self._saved_time = steps, time.monotonic()
        if self.context.is_chief:
            self.often.rest()
        if self.listener is not None:
            self.listener.after_save(self.session, step)
        return path

    def _saved(self, path: Path, took: Took) -> None:
        """A checkpoint has its name."""
        self._newest = folder.step_of(path)
        if self.context.is_chief:
            self._took(took)
        self._say_next(path)

    def _lost(self) -> None:
        """A save has failed: what was done since the one before is in no checkpoint."""
        self._kept_at = self._kept_before

    def _took(self, took: Took) -> None:
        """On the chief: a save took so long; the first time it says what follows from that."""
        self.often.saved(None if self.saves.waited else took.held, took.published)
        self._starts.saved(self.often.took)
        if not self._is_told and self.often.save_s is not None:
            self._is_told = True
            logger.info(self.often.why(len(set(self.context.hosts))))

    def outlook(self) -> Outlook:
        """What becomes of this job when it stops early; its code is the same on all ranks."""
        settings = self.context.settings
        if self._newest <= self.first_step:
            return Outlook(
                NO_PROGRESS,
                f"nothing was trained since it began at step {self.first_step}, and another start "
                f"would not help: it does not come back (exit code {NO_PROGRESS})",
            )
        if self._is_last and self._resumes:
            return Outlook(TOO_OFTEN, f"saved; {self._counted()}")
        comes_back = self._resumes and settings.requeue
        return Outlook(TEMPORARY_FAILURE, f"saved; {AGAIN}", comes_back)

    @property
    def _is_last(self) -> bool:
        """Whether the job has been started again as often as it may."""
        return 0 <= self.context.settings.max_restarts <= self._restarts

    @property
    def _is_to_replace(self) -> bool:
        return self.context.settings.replace and self._resumes and not self._is_last

    def _counted(self) -> str:
        most = self.context.settings.max_restarts
        return (
            f"this is restart {self._restarts}, with max_restarts={most}: it does not come back "
            f"(exit code {TOO_OFTEN})"
        )

    def end(self) -> None:
        """The training has come to its end."""
        if self.context.is_chief:
            self._starts.end()

    def go_on_as(self, other: Keeper) -> None:
        """What `other` has restored is what this one saves from now on."""
        self.first_step, self.first_samples = other.first_step, other.first_samples
        if self.directory == other.directory:
            self._starts, self._restarts = other._starts, other._restarts

    def _say_next(self, path: Path) -> None:
        """If a rank dies from now on: what then goes on from where."""
        if self._resumes:
            text = f"the same command goes on from {path}"
        else:
            text = f"start it again with resume=True: it goes on from {path}"
        self.context.say_next(text, str(path))

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
        """The last (epoch, step) of each worker; of one that has died those of its parts."""
        told = {
            row["worker"]: {line: tuple(place) for line, place in row["last"][number]}
            for row in rows
        }
        if self._heirs is not None:
            self._heirs.ask()  # of workers that were lost on the way here
            return self._heirs.lines(self.datasets[number]).together(told)
        return [told[worker].get(0) for worker in sorted(told)]

    def begin_anew(self) -> None:
        """Go on from no checkpoint: the folder has to be without any.

        Ranks:  every rank that runs the script.
        Errors: CheckpointError if it has some. This run would remove them by `max_to_keep`, and
                save again the steps that they have.
        """
        place = self.directory

        def look(rows: Sequence[Any]) -> int:
            found = folder.told(f"reading {place}", lambda: folder.find(place))
            if found:
                raise CheckpointError(
                    f"{place} has checkpoints of another run, the newest is {found[0].path.name}",
                    hint="go on from it: TrainingSession(checkpoints=DIR, resume=True), or "
                    f"hpcflow run --set checkpoints={place}; or begin anew in another folder",
                )
            return 0

        Team(self.context).decide({}, look)

    def resume(self) -> bool:
        """Go on from the newest good checkpoint, if the folder has one; the chief prints what.

        Whether it had one.

        Ranks:  every rank that runs the script.
        Errors: Preempted, if it was started again too often.
        """
        begun = self._starts.begin() if self.context.is_chief else None
        self._restarts = Team(self.context).say(begun)
        if 0 <= self.context.settings.max_restarts < self._restarts:
            if self.context.is_chief:
                logger.error(self._counted())
            raise leave(self.context, RESTARTS, self._counted(), TOO_OFTEN)
        if self.context.is_chief:
            folder.sweep(self.directory)
        found = newest_good(self.context, self.directory)
        if found is None:
            self.context.say_next(f"the same command begins anew: {self.directory} is empty")
            if self.context.is_chief:
                logger.info("no checkpoint in %s: training begins anew", self.directory)
            return False
        facts = found.facts
        self.saver._load(self.session, found, with_draws=True)
        positions = facts.get("position", [])
        if len(positions) != len(self.datasets):
            raise CheckpointError(
                f"{found.path} stands in {len(positions)} datasets, here are {len(self.datasets)}",
                hint="make the datasets before the training session, as when it was saved",
            )
        for dataset, position in zip(self.datasets, positions, strict=True):
            dataset.restore(position)
        self.first_step, self.first_samples = facts["step"], facts.get("samples", 0)
        self._say_next(found.path)
        if self.context.is_chief:
            with contextlib.suppress(OSError):  # a save may have died before it was named
                folder.point(found.path)
            print(f"resumed step={self.first_step} samples={self.first_samples}", flush=True)
        return True


class Policy:
    """What a program does after every so many steps."""

    def __init__(self, context: Context, every: int, action: Callable[[], Any], first: int) -> None:
        if not isinstance(every, int) or every < 1:
            raise HpcflowError(f"every {every!r} steps", hint="give a number of steps, 1 or more")
        self._context, self._every, self._action, self._first = context, every, action, first
        self._last = 0  # this worker's steps when it was run

    def due(self, steps: int) -> bool:
        """Whether to run it before this worker's next step."""
        return is_round(self._context, self._every, steps, self._last, self._first)

    def run(self, steps: int) -> None:
        """Do it: on all ranks that run the script together."""
        self._last = steps
        self._action()


def is_round(context: Context, every: int, steps: int, last: int, first: int) -> bool:
    """Whether `every` steps are full with this worker's `steps`; they were with its `last` before.

    `first` joint steps were done by earlier runs. All synchronous workers agree; of asynchronous
    ones the chief estimates it from its own steps.
    """
    if steps == last:
        return False
    if context.cluster.in_step:
        return (first + steps) % every == 0
    return (steps - last) * context.roles.replicas >= every


def interval(every: int | str) -> tuple[int, float | None]:
    """(steps, seconds) of `200`, "200", "30s", "10m" or "2h"; one of them is 0.

    Of "auto" the seconds are None: they follow from what a save costs.
    """
    if every == AUTO:
        return 0, None
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,15})?)([smh]?)", str(every).strip())
    if found is None or float(found.group(1)) <= 0 or (not found[2] and "." in found[1]):
        raise CheckpointError(
            f"{every!r} is no time between two checkpoints",
            hint='give steps, as 500, or 30s, 10m, or "auto"',
        )
    if found.group(2):
        return 0, float(found.group(1)) * _SECONDS[found.group(2)]
    return int(found.group(1)), 0.0
