"""Samples that a user gives to a model: rows for its placeholders, and shares of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from hpcflow.data.array_rows import ArraySource, Source, sources_of
from hpcflow.data.global_batch_sharding import split_points
from hpcflow.data.placeholder_checks import common_length, fit_source
from hpcflow.errors import DataError, FeedError
from hpcflow.graph.graph import Tensor
from hpcflow.model.loss_names import Loss
from hpcflow.model.training_graph import Compiled
from hpcflow.platform.exception_translation import value_text
from hpcflow.runtime.step.feed_and_fetch import cast

BATCH = 32  # Keras's default


def arrays_of(given: Any, names: Sequence[str], what: str) -> list[Any]:
    """One value for each of the model's inputs: a list, a dict by their names, or the value itself.

    Errors: FeedError if their number or names differ.
    """
    if isinstance(given, Mapping):
        if sorted(given) != sorted(names):
            raise FeedError(
                f"{what} has {sorted(given)}, the model's inputs are {sorted(names)}",
                hint="give each input by its name",
            )
        return [given[name] for name in names]
    is_one = isinstance(given, list) and len(given) == 1 and np.ndim(given[0]) > 0
    if len(names) == 1 and not isinstance(given, tuple) and not is_one:
        return [given]
    values = list(given) if isinstance(given, (list, tuple)) else [given]
    if len(values) != len(names):
        raise FeedError(
            f"{what} has {len(values)} arrays, the model has {len(names)} inputs",
            hint="give one array for each input: " + ", ".join(names),
        )
    return values


def numbers_of(value: Any, name: str) -> Source:
    """As `source_of`, of samples for a model that takes their dtype. Errors: FeedError."""
    source = source_of(value)
    if source.dtype.kind in "OUSMm":
        what = "Python objects" if source.dtype.kind == "O" else str(source.dtype)
        raise FeedError(
            f"{name} is an array of {what}, not of numbers",
            hint=f"give numbers, such as {name}.astype('float32')",
        )
    return source


def source_of(value: Any) -> Source:
    """The rows of a value: an array, an HDF5 dataset, or an object with a length and items."""
    (source,) = sources_of(value, None)
    if isinstance(source, ArraySource) and not source.array.ndim and source.dtype == object:
        from hpcflow.platform.other_frameworks import DATASET

        raise FeedError(
            f"a {type(value).__name__} has no length and items, as arrays of samples have",
            hint=f"give arrays, or {DATASET}",
        )
    source.open()
    return source


def fitted(key: Tensor, source: Source, name: str, taker: str) -> Source:
    """A source whose rows fit a placeholder, the `taker`; `name` is that of the argument.

    An array is converted to its dtype, as by Keras (float64 to float32, integer labels to numbers),
    and gets or loses a last axis of size 1.
    """
    if isinstance(source, ArraySource):
        array = source.array
        if key.shape is not None and array.ndim:
            if array.ndim == len(key.shape) + 1 and array.shape[-1] == 1:
                array = array[..., 0]
            elif array.ndim == len(key.shape) - 1 and key.shape[-1] == 1:
                array = array[..., np.newaxis]
        source = ArraySource(array)
        if array.dtype != key.dtype and array.dtype.kind in "biuf" and _is_exact(key, array):
            source.take(array.astype(key.dtype))
    fit_source(key, source, name, taker)
    return source


def check_labels(loss: Loss, key: Tensor, source: Source) -> None:
    """Name the loss that takes labels of this form. Errors: FeedError."""
    if not isinstance(source, ArraySource) or key.shape is None:
        return
    array, rank = source.array, len(key.shape)
    if loss.takes_classes and array.ndim == rank + 1 and array.shape[-1] > 1:
        other = loss.name.replace("sparse_", "")
        raise FeedError(
            f"loss={loss.name!r} takes class numbers, the labels have shape {list(array.shape)}",
            hint=f"for one-hot labels use loss={other!r}, or give y.argmax(-1)",
        )
    if loss.kind == "classes" and not loss.takes_classes and array.ndim == rank - 1:
        raise FeedError(
            f"loss={loss.name!r} takes one-hot labels, the labels have shape {list(array.shape)}",
            hint=f"for class numbers use loss={'sparse_' + loss.name!r}",
        )


def _is_exact(key: Tensor, array: np.ndarray) -> bool:
    """Whether values keep their meaning in the placeholder's dtype: no fractions are cut off."""
    if key.dtype.kind in "iu" and array.dtype.kind == "f":
        return bool(np.all(np.isfinite(array)) and np.all(array == np.rint(array)))
    return key.dtype.kind in "fiu"


def count_of(sources: Mapping[Tensor, Source]) -> int:
    """The number of samples, equal for all."""
    return common_length({key.name: len(source) for key, source in sources.items()})


def shares(
    sources: Mapping[Tensor, Source], samples: int, batch: int, replica: int, replicas: int
) -> Iterator[tuple[int, dict[Tensor, np.ndarray]]]:
    """This worker's rows of each global batch, with the number of the first, of `samples`."""
    for start in range(0, samples, batch):
        cuts = start + split_points(min(batch, samples - start), replicas)
        numbers = np.arange(cuts[replica], cuts[replica + 1])
        yield (
            int(cuts[replica]),
            {
                key: np.ascontiguousarray(cast(key, source.rows(numbers)))
                for key, source in sources.items()
            },
        )


def split_off(value: Any, share: float, what: str) -> tuple[Any, Any]:
    """The first samples and the last `share` of them, as Keras's `validation_split`.

    Errors: DataError for data that is no array.
    """
    if not isinstance(value, (np.ndarray, list)):
        raise DataError(
            f"validation_split splits arrays, and {what} is a {type(value).__name__}",
            hint="give validation_data=(x, y)",
        )
    array = np.asarray(value)
    at = int(len(array) * (1.0 - share))
    return array[:at], array[at:]


def class_weights(
    given_loss: Compiled | None, y: Any, weights: Mapping[int, float], given: Any
) -> np.ndarray:
    """The weights of samples by their classes, times those given."""
    labels = np.asarray(y)
    loss = None if given_loss is None else given_loss.loss
    one_hot = loss is not None and loss.kind == "classes" and not loss.takes_classes
    if labels.ndim == 2 and labels.shape[-1] > 1 and one_hot:
        classes = labels.argmax(-1)
    elif labels.ndim == 1 or (labels.ndim == 2 and labels.shape[-1] == 1):
        classes = labels.ravel()
    else:
        raise FeedError(
            f"class_weight needs one label a sample, y has shape {list(labels.shape)}",
            hint="give sample_weight",
        )
    found = np.unique(classes)
    missing = [int(c) for c in found if int(c) not in weights]
    if missing:
        raise FeedError(
            f"class_weight has no weight for the classes {missing[:5]}",
            hint="give one for each class of y",
        )
    table = np.array([weights[int(c)] for c in found], np.float32)
    chosen = table[np.searchsorted(found, classes)]
    return chosen if given is None else chosen * np.asarray(given, np.float32)


def whole_number(name: str, value: Any, of: str, least: int = 1) -> int:
    """An argument that is a number of something, at least `least`. Errors: FeedError."""
    is_whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_whole or value < least:
        is_text = isinstance(value, str) and value.strip().isdecimal()
        raise FeedError(
            f"{name}={value_text(value)} is not a number of {of}",
            hint=f"give {name}={int(value)}" if is_text else f"give a whole number from {least} on",
        )
    return int(value)


def check_counts(
    epochs: Any, initial_epoch: Any, validation_freq: Any, batch_sizes: tuple[Any, Any], seed: Any
) -> None:
    """Check these arguments of `fit`. Errors: FeedError that names the wrong one."""
    whole_number("epochs", epochs, "epochs", 0)
    whole_number("initial_epoch", initial_epoch, "epochs", 0)
    whole_number("validation_freq", validation_freq, "epochs")
    for name, size in zip(("batch_size", "validation_batch_size"), batch_sizes, strict=True):
        batch_of(size, name)
    if not isinstance(seed, (int, np.integer)):
        raise FeedError(f"seed={value_text(seed)} is not a whole number")


def verbosity(value: Any) -> int:
    """The argument `verbose`: 0, 1 or 2; "auto" is 1. Errors: FeedError."""
    if isinstance(value, str) and value == "auto":
        return 1
    if not isinstance(value, (int, np.integer)) or not 0 <= value <= 2:
        raise FeedError(f"verbose={value_text(value)} is not 0, 1, 2 or 'auto'")
    return int(value)


def share_of(name: str, value: Any) -> float:
    """An argument that is a share of the samples, 0 for none. Errors: FeedError."""
    if not isinstance(value, (int, float, np.integer, np.floating)) or not 0.0 <= value < 1.0:
        raise FeedError(
            f"{name}={value_text(value)} is not a number between 0 and 1", hint=f"give {name}=0.1"
        )
    return float(value)


def batch_of(size: Any, name: str = "batch_size") -> int:
    """The size of a batch, by default Keras's."""
    return BATCH if size is None else whole_number(name, size, "samples")


def counted(samples: int, batch: int, steps: Any, name: str = "steps") -> int:
    """The number of samples in the first `steps` batches, of all without it."""
    return samples if steps is None else min(samples, batch * whole_number(name, steps, "batches"))
