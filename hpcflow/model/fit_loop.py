"""Fit loop: epochs of steps, validation and callbacks, on every rank that runs the script."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcflow.data.batch_iterator import Batch
from hpcflow.data.dataset import Dataset
from hpcflow.errors import GraphError
from hpcflow.model.callbacks import Callback, History, TrainedModel
from hpcflow.model.metric_names import ModelMetric, Totals
from hpcflow.model.sample_rows import whole_number
from hpcflow.model.training_graph import TrainingGraph
from hpcflow.train.progress_bar import Progress
from hpcflow.train.run_records import run_log_of
from hpcflow.train.training_session import TrainingSession


class EpochBatch(NamedTuple):
    """A batch, and its place in the epochs of `fit`."""

    batch: Batch
    epoch: int
    step: int
    joined_size: int  # samples of the global batch


class EpochSteps:
    """The epochs of `fit` on `data`: passes over it, or `steps` global batches of repeated passes.

    `first` is the first epoch with a batch, and `is_within` says that a restored job goes on in
    its midst.
    """

    def __init__(self, data: Dataset, steps: int | None) -> None:
        self._data, self._per_pass = data, data.steps_per_epoch
        chosen = self._per_pass if steps is None else steps
        self.steps_per_epoch = whole_number("steps_per_epoch", chosen, "batches")
        self.batch, self.replicas = data.batch, data.replicas
        self.first, done = divmod(
            data.first_epoch * self._per_pass + data.first_step, self.steps_per_epoch
        )
        self.is_within = done > 0 or (data.resumes_within_epoch and not data.first_step)

    def describe(self) -> str:
        """How the samples are sharded, in one line."""
        text = self._data.describe()
        if self.steps_per_epoch == self._per_pass:
            return text
        return f"{text}; an epoch of fit has {self.steps_per_epoch:,} steps"

    def batches(self, first: int, end: int) -> Generator[EpochBatch]:
        """This worker's batches, from the pass in which epoch `first` begins."""
        begin = first * self.steps_per_epoch // self._per_pass
        passes = -(-end * self.steps_per_epoch // self._per_pass) - begin
        batches = self._data.epochs(max(passes, 0), begin)
        try:
            for batch in batches:
                number = batch.epoch * self._per_pass + batch.step
                yield EpochBatch(batch, *divmod(number, self.steps_per_epoch), batch.joined_size)
        finally:
            close = getattr(batches, "close", None)
            if close is not None:
                close()


class FitLoop:
    """One call of `fit`."""

    def __init__(
        self,
        model: TrainedModel,
        session: TrainingSession,
        graph: TrainingGraph,
        data: EpochSteps,
        epochs: int,
        callbacks: Sequence[Callback] | Callback,
        verbose: int,
    ) -> None:
        self.model, self.session, self.data, self.epochs = model, session, data, epochs
        self.graph, self.history, self.verbose = graph, History(), verbose
        given = [callbacks] if isinstance(callbacks, Callback) else callbacks
        self.callbacks = [*given, self.history]
        for callback in self.callbacks:
            if not isinstance(callback, Callback):
                raise GraphError(
                    f"callbacks: {callback!r} is no callback",
                    hint="give a list of hf.callbacks, or of objects of a subclass of Callback",
                )
            callback.set_model(model)
        self._steps = [  # who wants to know of each step
            one
            for one in self.callbacks
            if type(one).on_train_batch_end is not Callback.on_train_batch_end
            or "on_train_batch_end" in vars(one)
            or type(one).on_train_batch_begin is not Callback.on_train_batch_begin
            or "on_train_batch_begin" in vars(one)
        ]
        self._alone = session.context.roles.replicas == 1

    def train(
        self, first: int, check: Callable[[], dict[str, float]] | None, every: int
    ) -> History:
        """Train until the last epoch, or until a callback stops it.

        `check` evaluates the validation data, after each `every` epochs.
        """
        try:
            self._train(first, check, every)
        except BaseException:
            self.session.preemption.over()
            raise
        if self.session.context.settings.run_dir:
            self.session.result(**{k: v[-1] for k, v in self.history.history.items()})
        return self.history

    def _train(self, first: int, check: Callable[[], dict[str, float]] | None, every: int) -> None:
        model, data, logs = self.model, self.data, dict[str, float]()
        model.stop_training = False
        for callback in self.callbacks:
            callback.validates = check is not None
        self._call("on_train_begin", {})
        first, silent = max(first, data.first), self.verbose != 1
        progress = Progress(data, self.epochs, context=self.session.context, silent=silent)
        batches, epoch = _Groups(data.batches(first, self.epochs)), self.epochs - 1
        for epoch in range(first, self.epochs):
            for callback in self.callbacks:
                callback.resumed = epoch == data.first and data.is_within
            self._call("on_epoch_begin", epoch, {})
            totals = Totals(self.graph.trained)
            self._epoch(batches.of(epoch), totals, progress)
            self.session.meet()
            logs = values_of(self.session, totals)
            if check is not None and (epoch + 1) % every == 0:
                logs |= {f"val_{name}": value for name, value in check().items()}
            text = f"epoch {epoch + 1}/{self.epochs}: {line_of(logs)}"
            progress.end_epoch(text, logs)
            if self.verbose == 2:
                model.say(text)
            self._call("on_epoch_end", epoch, logs)
            if self._stops():
                break
        batches.close()
        log = run_log_of(self.session.context)
        if log is not None:
            log.trained(epoch + 1, self.epochs)
        progress.close()
        self._call("on_train_end", logs)
        self.session.wait()

    def _epoch(self, batches: Iterator[EpochBatch], totals: Totals, progress: Progress) -> None:
        session = self.session
        fetches = [self.graph.train, self.graph.loss, *totals.fetches]
        for place in batches:
            batch, step = place.batch, place.step
            for one in self._steps:
                one.on_train_batch_begin(step, {})
            _, loss, *added = session.step(fetches, batch)
            totals.add(added)
            logs = {"loss": float(loss)} if batch.size else {}  # of no samples there is none
            progress.update(place, **logs)
            for one in self._steps:
                one.on_train_batch_end(step, logs)
            if self.model.stop_training and self._alone:
                return

    def _call(self, event: str, *arguments: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(*arguments)

    def _stops(self) -> bool:
        """Whether a callback on any rank stops the training; all wait for each other here."""
        flag = np.array([self.model.stop_training], np.int64)
        join_workers(self.session, flag, "max", "the end of an epoch's callbacks")
        self.model.stop_training = bool(flag[0])
        return self.model.stop_training


class _Groups:
    """The batches of each epoch, from one iterator over all epochs.

    An asynchronous worker may have no batch in an epoch.
    """

    def __init__(self, batches: Generator[EpochBatch]) -> None:
        self._batches = batches
        self._next: EpochBatch | None = None

    def of(self, epoch: int) -> Iterator[EpochBatch]:
        """The batches of an epoch, after those of earlier ones."""
        while True:
            if self._next is None:
                self._next = next(self._batches, None)
            if self._next is None or self._next.epoch > epoch:
                return
            batch, self._next = self._next, None
            if batch.epoch == epoch:
                yield batch

    def close(self) -> None:
        """Read no more batches."""
        self._batches.close()


def join_workers(session: TrainingSession, array: np.ndarray, op: str, purpose: str) -> None:
    """Combine an array over the ranks that run the script, in place; all wait for each other."""
    context = session.context
    drivers = context.drivers
    if drivers is None or drivers.size == 1:
        return
    context.meet(purpose)
    context.executor.finish(drivers.all_reduce(array, op), purpose)


def values_of(session: TrainingSession, totals: Totals) -> dict[str, float]:
    """The metrics' values for the totals of all ranks; all wait for each other."""
    flat = totals.flat()
    join_workers(session, flat, "sum", "the sums of the metrics of all workers")
    totals.take(flat)
    metrics: Sequence[ModelMetric] = totals.metrics
    values = session.run([one.value for one in metrics], totals.feeds())
    return {one.name: float(v) for one, v in zip(metrics, values, strict=True)}


def line_of(values: Mapping[str, float]) -> str:
    """Values on one line."""
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items())
