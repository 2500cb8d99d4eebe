"""Callbacks `hf.callbacks` of `Model.fit`: names and behaviour of Keras's.

Ranks: each callback runs on every rank that runs the script, with the same logs; only the chief
       writes files and prints. If a rank sets `model.stop_training`, all stop after that epoch.
"""

from __future__ import annotations

import csv
import inspect
import math
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hpcflow.errors import GraphError
from hpcflow.platform.exception_translation import translate_module
from hpcflow.platform.lazy_imports import LazyMethod

__all__ = [
    "CSVLogger",
    "Callback",
    "EarlyStopping",
    "History",
    "LambdaCallback",
    "LearningRateScheduler",
    "ModelCheckpoint",
    "ReduceLROnPlateau",
    "TerminateOnNaN",
]

Logs = MutableMapping[str, float]


class TrainedModel(Protocol):
    """What callbacks use of the model."""

    stop_training: bool
    learning_rate: float

    @property
    def is_chief(self) -> bool: ...

    def say(self, text: str) -> None: ...

    def get_weights(self) -> list[np.ndarray]: ...

    def set_weights(self, values: Sequence[Any]) -> None: ...

    def save_weights(
        self,
        folder: str | Path,
        step: int,
        max_to_keep: int,
        metrics: Mapping[str, float] | None = None,
    ) -> str: ...

    def saved_metric(self, folder: str | Path, metric: str, rises: bool) -> float | None: ...


class Callback:
    """Called by `fit`: at the beginning and end of training, of epochs and of steps.

    `logs` has the values of the epoch (`loss`, metrics, `val_loss` ...) or, after a step, the loss
    of this rank's share of the batch, if it has samples. What a callback adds to the values of the
    epoch, later callbacks and the history have too. `self.model` is the model; `validates`
    says whether some epochs are validated, `resumed` whether an earlier job has begun this epoch.
    """

    model: TrainedModel
    validates = resumed = False

    def set_model(self, model: TrainedModel) -> None:
        """Called first."""
        self.model = model

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Before the first step."""

    def on_train_end(self, logs: Logs | None = None) -> None:
        """After the last step."""

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Before an epoch; epochs count from 0."""

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """After an epoch and its validation."""

    def on_train_batch_begin(self, batch: int, logs: Logs | None = None) -> None:
        """Before a step; steps of an epoch count from 0."""

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """After a step."""


class History(Callback):
    """The values of each epoch: `history` maps names to lists; `epoch` has the epochs' numbers."""

    _repr_html_ = LazyMethod("hpcflow.report.model_html", "history_html")

    def __init__(self) -> None:
        self.epoch: list[int] = []
        self.history: dict[str, list[float]] = {}

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Add the values of the epoch."""
        self.epoch.append(epoch)
        for name, value in (logs or {}).items():
            self.history.setdefault(name, []).append(value)


class LambdaCallback(Callback):
    """Calls the given functions: `LambdaCallback(on_epoch_end=lambda epoch, logs: ...)`."""

    def __init__(self, **functions: Callable[..., Any]) -> None:
        for name, function in functions.items():
            if not name.startswith("on_") or not hasattr(Callback, name):
                raise TypeError(f"LambdaCallback() has no event {name!r}")
            setattr(self, name, function)


class _Monitor(Callback):
    """A callback that watches one value of the logs for improvement."""

    def __init__(self, monitor: str, mode: str, min_delta: float = 0.0) -> None:
        if mode not in ("auto", "min", "max"):
            raise GraphError(f"mode={mode!r} is not one of auto, min, max")
        words = ("acc", "auc", "precision", "recall", "f1")
        rises = mode == "max" or (mode == "auto" and any(word in monitor for word in words))
        self.monitor, self.min_delta, self._sign = monitor, abs(min_delta), -1.0 if rises else 1.0
        self.best = self._sign * math.inf

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Begin anew."""
        self.best = self._sign * math.inf

    def _watched(self, logs: Logs | None) -> float | None:
        """The watched value; None in an epoch without validation."""
        if self.monitor not in (logs or {}):
            has_validation = any(name.startswith("val_") for name in logs or {})
            if self.monitor.startswith("val_") and self.validates and not has_validation:
                return None
            raise GraphError(
                f"{type(self).__name__} watches {self.monitor!r}, but the epoch has only "
                f"{', '.join(logs or {})}",
                hint="give fit(validation_data=...) or a metric of that name",
            )
        assert logs is not None
        return float(logs[self.monitor])

    def _improves(self, value: float, least: float = 0.0) -> bool:
        """Whether a value is better than the best; NaN never is."""
        return self._sign * value < self._sign * self.best - least


class EarlyStopping(_Monitor):
    """Stops when `monitor` has not improved by `min_delta` for `patience` epochs.

    With `baseline` it has to be better than that. With `restore_best_weights` the model has the
    weights of the best epoch afterwards. `start_from_epoch` epochs are not counted. A resumed job
    counts anew.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        min_delta: float = 0.0,
        patience: int = 0,
        verbose: int = 0,
        mode: str = "auto",
        baseline: float | None = None,
        restore_best_weights: bool = False,
        start_from_epoch: int = 0,
    ) -> None:
        super().__init__(monitor, mode, min_delta)
        self.patience, self.verbose, self.baseline = patience, verbose, baseline
        self.restore_best_weights, self.start_from_epoch = restore_best_weights, start_from_epoch
        self.wait = self.stopped_epoch = self.best_epoch = 0
        self.best_weights: list[np.ndarray] | None = None

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Count anew."""
        super().on_train_begin(logs)
        self.wait = self.stopped_epoch = self.best_epoch = 0
        self.best_weights = None

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Count the epochs without improvement."""
        value = self._watched(logs)
        if value is None or epoch < self.start_from_epoch:
            return
        if self.restore_best_weights and self.best_weights is None:
            self.best_weights = self.model.get_weights()
        self.wait += 1
        if self._improves(value, self.min_delta):
            self.best, self.best_epoch = value, epoch
            if self.restore_best_weights:
                self.best_weights = self.model.get_weights()
            bound = self.baseline
            if bound is None or self._sign * value < self._sign * bound:
                self.wait = 0
            return
        if self.wait >= self.patience and epoch > 0:
            self.stopped_epoch, self.model.stop_training = epoch, True

    def on_train_end(self, logs: Logs | None = None) -> None:
        """Restore the weights of the best epoch."""
        if self.stopped_epoch and self.verbose:
            self.model.say(f"epoch {self.stopped_epoch + 1}: early stopping")
        if self.best_weights is not None:
            if self.verbose:
                self.model.say(f"restoring the weights of epoch {self.best_epoch + 1}, the best")
            self.model.set_weights(self.best_weights)


class ModelCheckpoint(_Monitor):
    """Saves the model's weights in the folder `filepath` after each epoch, as `step-EPOCH`.

    With `save_best_only` only when `monitor` has improved, and only the best is kept: that of an
    earlier run in the folder counts, unless `initial_value_threshold` is given. The folder is for
    `model.load_weights`, `hf.train.Saver` and `hpcflow inspect`. For resuming a job, give
    `fit(checkpoints=DIR)`.
    """

    def __init__(
        self,
        filepath: str | Path,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_best_only: bool = False,
        mode: str = "auto",
        initial_value_threshold: float | None = None,
        max_to_keep: int = 5,
    ) -> None:
        super().__init__(monitor, mode)
        self.filepath, self.verbose, self.save_best_only = Path(filepath), verbose, save_best_only
        self._keep = 1 if save_best_only else max_to_keep
        self._threshold = initial_value_threshold
        if "{" in str(filepath):
            raise GraphError(
                f"filepath={str(filepath)!r}: checkpoints are named step-EPOCH",
                hint="give a folder, which save_weights and load_weights take",
            )

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Begin with `initial_value_threshold` or the value of the folder's best as the best."""
        super().on_train_begin(logs)
        if self._threshold is not None:
            self.best = self._threshold
        elif self.save_best_only:
            earlier = self.model.saved_metric(self.filepath, self.monitor, self._sign < 0)
            if earlier is not None:
                self.best = earlier
                self.model.say(
                    f"{self.filepath}: the checkpoint of an earlier run with {self.monitor} "
                    f"{earlier:.4g} stays until an epoch is better"
                )

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Save, if this epoch is to be saved."""
        metrics = None
        if self.save_best_only:
            value = self._watched(logs)
            if value is None or not self._improves(value):
                return
            self.best, metrics = value, {self.monitor: value}
        path = self.model.save_weights(self.filepath, epoch + 1, self._keep, metrics)
        if self.verbose:
            self.model.say(f"epoch {epoch + 1}: saved {path}")


class ReduceLROnPlateau(_Monitor):
    """Multiplies the learning rate by `factor` after `patience` epochs without improvement.

    `cooldown` epochs after that are not counted; the rate stays at least `min_lr`. The history gets
    the rate of each epoch as `learning_rate`.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        factor: float = 0.1,
        patience: int = 10,
        verbose: int = 0,
        mode: str = "auto",
        min_delta: float = 1e-4,
        cooldown: int = 0,
        min_lr: float = 0.0,
    ) -> None:
        super().__init__(monitor, mode, min_delta)
        if factor >= 1.0:
            raise GraphError(f"factor={factor} would not reduce the learning rate")
        self.factor, self.patience, self.verbose = factor, patience, verbose
        self.cooldown, self.min_lr, self.wait, self._rests = cooldown, min_lr, 0, 0

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """Count anew."""
        super().on_train_begin(logs)
        self.wait = self._rests = 0

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Count the epochs without improvement; reduce the rate if they are enough."""
        _add_rate(logs, self.model)
        value = self._watched(logs)
        if value is None:
            return
        if self._rests > 0:
            self._rests, self.wait = self._rests - 1, 0
        if self._improves(value, self.min_delta):
            self.best, self.wait = value, 0
        elif self._rests <= 0:
            self.wait += 1
            old = self.model.learning_rate
            if self.wait >= self.patience and old > self.min_lr:
                self.model.learning_rate = max(old * self.factor, self.min_lr)
                self._rests, self.wait = self.cooldown, 0
                if self.verbose:
                    self.model.say(
                        f"epoch {epoch + 1}: learning rate {self.model.learning_rate:.4g}"
                    )


class LearningRateScheduler(Callback):
    """Sets the learning rate before each epoch to `schedule(epoch, rate)` or `schedule(epoch)`.

    The history gets it as `learning_rate`.
    """

    def __init__(self, schedule: Callable[..., float], verbose: int = 0) -> None:
        self.schedule, self.verbose = schedule, verbose

    def on_epoch_begin(self, epoch: int, logs: Logs | None = None) -> None:
        """Set the rate."""
        if self.resumed:  # the rate was set by the job that began the epoch
            return
        takes_rate = len(inspect.signature(self.schedule).parameters) > 1
        old = (self.model.learning_rate,) if takes_rate else ()
        rate = self.schedule(epoch, *old)
        self.model.learning_rate = float(rate)
        if self.verbose:
            self.model.say(f"epoch {epoch + 1}: learning rate {float(rate):.4g}")

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Add the rate of the epoch to its values."""
        _add_rate(logs, self.model)


def _add_rate(logs: Logs | None, model: TrainedModel) -> None:
    """Add the learning rate to the values of an epoch, as Keras's callbacks do that change it."""
    if logs is not None:
        logs["learning_rate"] = model.learning_rate


class TerminateOnNaN(Callback):
    """Stops training after a step whose loss is NaN or infinite."""

    def on_train_batch_end(self, batch: int, logs: Logs | None = None) -> None:
        """Look at the loss."""
        loss = (logs or {}).get("loss", 0.0)
        if not math.isfinite(loss):
            self.model.say(f"step {batch + 1}: the loss is {loss}, training stops")
            self.model.stop_training = True


class CSVLogger(Callback):
    """Writes the values of each epoch to a CSV file, on the chief."""

    def __init__(self, filename: str | Path, separator: str = ",", append: bool = False) -> None:
        self.filename, self.separator, self.append = Path(filename), separator, append
        self._names: list[str] | None = None

    def on_train_begin(self, logs: Logs | None = None) -> None:
        """A file for each training, unless `append`."""
        self._names = None

    def on_epoch_end(self, epoch: int, logs: Logs | None = None) -> None:
        """Add a row."""
        if not self.model.is_chief:
            return
        self.filename.parent.mkdir(parents=True, exist_ok=True)
        row = {"epoch": epoch, **(logs or {})}
        is_new = self._names is None and not (self.append and self.filename.exists())
        self._names = self._names or list(row)
        with open(self.filename, "w" if is_new else "a", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(
                file, self._names, extrasaction="ignore", delimiter=self.separator
            )
            if is_new:
                table.writeheader()
            table.writerow(row)


translate_module(globals(), __all__)

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        from hpcflow.platform.lazy_imports import MissingNameError

        raise MissingNameError("hpcflow.callbacks", name, __all__)
