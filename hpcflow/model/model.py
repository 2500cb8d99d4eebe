"""Model `hf.Model`: trains, evaluates and predicts by one call each, as Keras's `Model`.

A model has a graph; the first call that runs it opens a training session, which stays open. Batches
are global: each of the ranks that run the script takes its share. So the ranks make the same calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcflow.data.array_rows import ArraySource
from hpcflow.data.dataset import Dataset
from hpcflow.errors import FeedError, GraphError
from hpcflow.graph.dtypes import bool_, float32, float64, uint8
from hpcflow.graph.graph import Tensor
from hpcflow.model.callbacks import Callback, History
from hpcflow.model.fit_loop import EpochSteps, FitLoop, join_workers, line_of, values_of
from hpcflow.model.metric_names import Totals
from hpcflow.model.model_graph import ModelGraph
from hpcflow.model.sample_rows import (
    arrays_of,
    batch_of,
    check_counts,
    check_labels,
    class_weights,
    count_of,
    counted,
    fitted,
    numbers_of,
    share_of,
    shares,
    source_of,
    split_off,
    verbosity,
)
from hpcflow.model.training_graph import several_layers
from hpcflow.ops.variables.variable_ops import Variable
from hpcflow.train.checkpoint_listing import best_metric
from hpcflow.train.saver import Saver

ARRAYS = "give arrays: model.evaluate(x, y), model.predict(x), fit(validation_data=(x, y))"
PREDICT = "model.predict(x) gives the outputs for an array of samples"
SEEDS_APART = 1_000_003


class Model(ModelGraph):
    """A model: `Model(inputs, outputs)`, or a subclass with `call(self, x, training)`.

    `inputs` is a placeholder or a list of them, [None, ...]; `outputs` a tensor of the same graph.
    A subclass creates layers or `hf.get_variable` in `call`, which is called twice, for training
    and for the rest, with the same variables; its inputs take dtype and shape from the first data.
    Instead of a subclass, `call` is a function.

        model = hf.Sequential([hf.layers.Dense(64, hf.nn.relu), hf.layers.Dense(10, hf.nn.softmax)])
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        model.fit(images, labels, batch_size=64, epochs=5, validation_split=0.1)
        model.evaluate(test_images, test_labels)
        classes = model.predict(new_images).argmax(-1)

    Ranks: every rank that runs the script makes the same calls with the same data, in every mode.
           Losses and metrics are those of the samples of all ranks.
    """

    def __call__(self, x: Any, training: bool = False) -> Tensor:
        """Refuse the call: a model of inputs and outputs, or with `call`, is no layer.

        Errors: GraphError that names `predict`.
        """
        hint = "a hf.Sequential is a layer of another model" if isinstance(x, Tensor) else PREDICT
        raise GraphError(f"{self.name!r} is no function of {_kind(x)}", hint=hint)

    # -- data

    def _sources(self, x: Any, what: str) -> dict[Tensor, Any]:
        """The sources of the inputs; a model of `call` is built for the first ones."""
        if isinstance(x, Dataset):
            raise FeedError(f"{what}() takes arrays, not a dataset", hint=ARRAYS)
        names = [t.op.name for t in self.inputs]
        if not names:
            several = isinstance(x, tuple) or (
                isinstance(x, list) and bool(x) and hasattr(x[0], "shape") and x[0].ndim > 0
            )
            values = list(x) if several else [x]
            several = len(values) > 1
            sources = [numbers_of(v, f"x[{k}]" if several else "x") for k, v in enumerate(values)]
            self._build([(_input_dtype(s.dtype), s.row_shape) for s in sources])
        else:
            sources = [source_of(value) for value in arrays_of(x, names, what)]
        labels = [("x", "the model's input")]
        if len(sources) > 1:
            labels = [(f"x[{k}]", f"the model's input {k}") for k in range(len(sources))]
        triples = zip(self.inputs, sources, labels, strict=True)
        return {key: fitted(key, source, *label) for key, source, label in triples}

    def _labelled(self, x: Any, y: Any, weights: Any, what: str) -> dict[Tensor, Any]:
        """The sources of inputs, labels and weights."""
        sources = self._sources(x, what)
        if y is None:
            self._built()
            raise FeedError(f"{what}() needs labels y")
        labels = source_of(y)
        row = () if weights is None else np.shape(weights)[1:]
        built = self._built((labels.dtype, labels.row_shape), () if row == (1,) else row)
        if weights is not None and built.is_scalar:
            raise FeedError(
                "the loss is one value for a batch: samples cannot be weighted",
                hint="return a value for each sample, without reduce_mean",
            )
        assert self._compiled is not None
        check_labels(self._compiled.loss, built.labels, labels)
        sources[built.labels] = fitted(built.labels, labels, "y", "the loss")
        count = count_of(sources)
        one = np.float32(1)
        steps = [size or 1 for size in (built.weights.shape or (None,))[1:]]
        given = (
            np.broadcast_to(one, (count, *steps))
            if weights is None
            else np.asarray(weights, one.dtype)
        )
        sources[built.weights] = fitted(
            built.weights, ArraySource(given), "sample_weight", "the model"
        )
        count_of(sources)
        return sources

    # -- training

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Sequence[Callback] | Callback | None = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: Mapping[int, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: int = 1,
        *,
        seed: int = 0,
        checkpoints: str | Path | None = None,
        save_every: int | str | None = None,
        resume: bool = False,
    ) -> History:
        """Train on all samples of `x` and `y` in each of `epochs`; the arguments are Keras's.

        `x` and `y` are arrays, HDF5 datasets or objects with a length and items; `x` is a list or a
        dict for several inputs, or a `hf.data.Dataset`. `batch_size` (32) is that of all ranks.
        An epoch is a pass over the data, or `steps_per_epoch` batches of repeated passes: the next
        epoch goes on where it ended. `validation_steps` batches of the validation data are used.
        `seed` determines the order of the samples. `checkpoints`, `save_every` and `resume` are
        those of `hf.train.TrainingSession`. With `--run-dir`, `result.json` is written.

        Ranks:  every rank that runs the script.
        Errors: ShapeError, DTypeError or FeedError that names the data that do not fit.
        """
        verbose = verbosity(verbose)
        sizes = batch_size, validation_batch_size
        check_counts(epochs, initial_epoch, validation_freq, sizes, seed)
        if validation_split:
            x, y, sample_weight, validation_data = self._cut(x, y, sample_weight, validation_split)
        if class_weight is not None:
            sample_weight = class_weights(self._compiled, y, class_weight, sample_weight)
        data = self._dataset(x, y, batch_size, shuffle, sample_weight, seed)
        check = self._validation(validation_data, sizes[1] or sizes[0], validation_steps)
        session = self._opened(checkpoints=checkpoints, save_every=save_every, resume=resume)
        counts = EpochSteps(data, steps_per_epoch)
        loop = FitLoop(self, session, self._built(), counts, epochs, callbacks or (), verbose)
        self.history = loop.train(initial_epoch, check, validation_freq)
        return self.history

    def _validation(
        self, data: Any, batch_size: Any, steps: Any
    ) -> Callable[[], dict[str, float]] | None:
        """What evaluates the validation data; None without data."""
        if data is None:
            return None
        if not isinstance(data, (tuple, list)) or len(data) not in (2, 3):
            raise FeedError("validation_data is not (x, y) or (x, y, sample_weight)", hint=ARRAYS)
        x, y, *weights = data
        sources = self._labelled(x, y, weights[0] if weights else None, "fit(validation_data)")
        batch = batch_of(batch_size)
        samples = counted(count_of(sources), batch, steps, "validation_steps")
        return lambda: self._check(sources, samples, batch)

    def _cut(self, x: Any, y: Any, weights: Any, share: float) -> tuple[Any, Any, Any, Any]:
        """The first samples, labels and weights, and the last as validation data."""
        share = share_of("validation_split", share)
        if x is None or y is None:
            raise FeedError("fit() needs samples x and labels y")
        single = not isinstance(x, (tuple, Mapping)) and (
            isinstance(x, np.ndarray) or not isinstance(x, list) or not hasattr(x[0], "shape")
        )
        if single:
            first, last = split_off(x, share, "x")
        else:
            pairs = {
                k: split_off(v, share, "x")
                for k, v in (x.items() if isinstance(x, Mapping) else enumerate(x))
            }
            parts = [{k: pair[i] for k, pair in pairs.items()} for i in (0, 1)]
            first, last = parts if isinstance(x, Mapping) else [tuple(p.values()) for p in parts]
        labels, held = split_off(y, share, "y")
        if not len(labels) or not len(held):
            raise FeedError(
                f"validation_split={share} of {len(labels) + len(held)} samples leaves none"
            )
        if weights is None:
            return first, labels, None, (last, held)
        weights, rest = np.split(np.asarray(weights), [len(labels)])
        return first, labels, weights, (last, held, rest)

    def _dataset(
        self, x: Any, y: Any, batch: int | None, shuffle: bool, weights: Any, seed: int
    ) -> Dataset:
        if isinstance(x, Dataset):
            if y is not None or batch is not None or weights is not None:
                raise FeedError(
                    "a dataset has labels, weights and its batch itself",
                    hint="give fit(dataset, epochs=...) alone",
                )
            built = self._built()
            missing = {built.labels, built.weights, *self.inputs} - set(x.keys)
            if missing:
                raise FeedError(
                    f"the dataset does not feed {', '.join(sorted(t.op.name for t in missing))}",
                    hint="Dataset({model.inputs[0]: x, model.labels: y, model.sample_weight: "
                    "np.ones(len(y), 'float32')}, batch=64)",
                )
            return x
        sources = self._labelled(x, y, weights, "fit")
        self._fits += 1
        mixed = seed + SEEDS_APART * (self._fits - 1)  # another order in each fit
        return Dataset(sources, batch=batch_of(batch), shuffle=shuffle, seed=mixed)

    # -- evaluation

    def evaluate(
        self,
        x: Any,
        y: Any = None,
        batch_size: int | None = None,
        verbose: Any = "auto",
        sample_weight: Any = None,
        steps: int | None = None,
        return_dict: bool = False,
    ) -> Any:
        """The loss, and the metrics if there are any, over all samples: a list, or a dict by name.

        With `steps` they are those of the first `steps` batches.

        Ranks: every rank that runs the script; each computes its share and gets the same values.
        """
        verbose, batch = verbosity(verbose), batch_of(batch_size)
        sources = self._labelled(x, y, sample_weight, "evaluate")
        self._opened()
        values = self._check(sources, counted(count_of(sources), batch, steps), batch)
        if verbose and self._session is not None:
            self.say(line_of(values))
        if return_dict:
            return values
        return list(values.values()) if len(values) > 1 else values["loss"]

    def _check(self, sources: Any, samples: int, batch: int) -> dict[str, float]:
        """The values of the metrics over the first samples of some sources."""
        session, totals = self._opened(), Totals(self._built().evaluated)
        context = session.context
        for _, feeds in shares(sources, samples, batch, context.replica, context.roles.replicas):
            totals.add(session.run(totals.fetches, feeds))
        return values_of(session, totals)

    def predict(
        self,
        x: Any,
        batch_size: int | None = None,
        verbose: Any = "auto",
        steps: int | None = None,
    ) -> np.ndarray:
        """The outputs for all samples, or for those of the first `steps` batches.

        Ranks: every rank that runs the script; each computes its share and gets all outputs.
        """
        sources = self._sources(x, "predict")
        session, context = self._opened(), self._opened().context
        replica, replicas = context.replica, context.roles.replicas
        batch = batch_of(batch_size)
        samples = counted(count_of(sources), batch, steps)
        result: np.ndarray | None = None
        for first, feeds in shares(sources, samples, batch, replica, replicas):
            rows = np.asarray(session.run(self._outputs(), feeds))
            if result is None:
                result = np.zeros((samples, *rows.shape[1:]), rows.dtype)
            result[first : first + len(rows)] = rows
        assert result is not None
        join_workers(session, _bits(result), "sum", "the predictions of all workers")
        return result

    # -- weights

    def get_weights(self) -> list[np.ndarray]:
        """The values of `weights`."""
        values = self._opened().run(self.weights)
        return [np.asarray(value) for value in values]

    def set_weights(self, values: Sequence[Any]) -> None:
        """Set the values of `weights`. Ranks: every rank that runs the script, the same values."""
        weights = self.weights
        if len(values) != len(weights):
            raise FeedError(
                f"set_weights() got {len(values)} arrays, the model has {len(weights)} variables",
                hint=", ".join(v.name for v in weights),
            )
        self._load(
            [(v, np.asarray(value, v.dtype)) for v, value in zip(weights, values, strict=True)]
        )

    def save_weights(
        self,
        folder: str | Path,
        step: int = 0,
        max_to_keep: int = 5,
        metrics: Mapping[str, float] | None = None,
    ) -> str:
        """Save `weights` as a checkpoint `step-N` in a folder; returns its path.

        `metrics` are for `hf.train.best_checkpoint`.
        """
        session = self._opened()
        with self.graph.as_default():
            saver = self._savers.setdefault(str(folder), Saver(self._by_name(), max_to_keep))
        return saver.save(session, folder, step, metrics)

    def saved_metric(self, folder: str | Path, metric: str, rises: bool) -> float | None:
        """The best value of a metric among the checkpoints of a folder, as the chief reads it."""
        found = np.zeros(2)
        if self.is_chief:
            value = best_metric(folder, metric, "max" if rises else "min")
            found[:] = (0.0, 0.0) if value is None else (1.0, value)
        join_workers(self._opened(), found, "sum", "the best value of an earlier run")
        return float(found[1]) if found[0] else None

    def load_weights(self, path: str | Path) -> None:
        """Load `weights` from a checkpoint, or the newest of a folder."""
        session = self._opened()
        with self.graph.as_default():
            Saver(self._by_name()).restore(session, path)

    def _by_name(self) -> dict[str, Variable]:
        """The weights by their names without that of the model."""
        return {v.name.removeprefix(f"{self.name}/"): v for v in self.weights}


class Sequential(Model):
    """A model of layers in order: objects of `hf.layers`, or functions of a tensor.

    A first element `hf.Input(shape)` gives the shape of the samples; else the first data do.
    """

    def __init__(self, layers: Sequence[Any] = (), name: str | None = None) -> None:
        super().__init__(call=self._through, name=name)
        self.layers = [layer for layer in layers if not isinstance(layer, Tensor)]
        for first in layers[:1]:
            if isinstance(first, Tensor):
                self.add(first)

    def add(self, layer: Any) -> None:
        """Append a layer; an `hf.Input` gives the shape of the samples."""
        if self.outputs is not None:
            raise GraphError(f"{self.name!r} is built: no layers can be added")
        if isinstance(layer, Tensor):
            self._given = (layer.dtype, (layer.shape or (None,))[1:])
        else:
            self.layers.append(layer)

    def __call__(self, x: Any, training: bool | None = None) -> Tensor:
        """`x` through its layers: a model as a layer of another.

        Without `training` it is true in `fit` of the other, and only there.
        """
        if not isinstance(x, Tensor):
            raise GraphError(f"{self.name!r} is a function of a tensor, not of {_kind(x)}",
                             hint=PREDICT)  # fmt: skip
        return self._through(x, training=training)

    def _through(self, *inputs: Tensor, training: bool | None) -> Tensor:
        if len(inputs) != 1:
            raise FeedError(
                f"{self.name!r} takes one input, not {len(inputs)}",
                hint="join them first, or write hf.Model(inputs, outputs)",
            )
        result: Tensor = several_layers(self.layers, inputs[0], training)
        return result


def _kind(x: Any) -> str:
    return "an array" if isinstance(x, np.ndarray) else f"a {type(x).__name__}"


def _bits(array: np.ndarray) -> np.ndarray:
    """A view of an array as integers: sums with zeros keep every bit of every dtype."""
    flat = array.reshape(-1).view(np.uint8)
    return flat.view(np.int64) if flat.size % 8 == 0 else flat


def _input_dtype(dtype: np.dtype) -> Any:
    """float32 for float64, images of bytes and bools, as Keras; other dtypes stay."""
    return float32 if dtype in (float64, uint8, bool_) else dtype
