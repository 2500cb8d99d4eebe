"""Quantization of exported models by onnxruntime, and measurement of its accuracy."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hpcflow.errors import MissingPackageError, OnnxError
from hpcflow.platform.install_hints import install_hint

Arrays = Mapping[str, np.ndarray]


class QuantizationResult(NamedTuple):
    """A model's size in bytes, and its accuracy on labelled data (None without labels)."""

    bytes: int
    accuracy: float | None


def runtime() -> Any:
    """The module onnxruntime."""
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingPackageError(
            "quantization needs the package onnxruntime", hint=install_hint("onnx")
        ) from error
    return onnxruntime


def quantize(model: Path, out: Path, data: Arrays | None = None, batch: int = 32) -> None:
    """Write `model` with 8-bit integers to `out`.

    With `data`, arrays of samples by input name, the ranges of activations are fixed (static
    quantization). Without data they are computed in each run and only weights are stored as
    integers (dynamic quantization).
    """
    runtime()
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder) / "ready.onnx"
        quant_pre_process(str(model), str(ready), skip_symbolic_shape=True)
        if data is None:
            quantization.quantize_dynamic(ready, out)
        else:
            quantization.quantize_static(
                ready, out, CalibrationBatches(data, batch), per_channel=True
            )


class CalibrationBatches:
    """A calibration data reader of onnxruntime: yields samples in batches."""

    def __init__(self, data: Arrays, batch: int) -> None:
        self._batches = batches(data, batch)

    def get_next(self) -> dict[str, np.ndarray] | None:
        """The next batch; None at the end."""
        return next(self._batches, None)


def batches(data: Arrays, batch: int) -> Iterator[dict[str, np.ndarray]]:
    """The samples in batches of `batch`."""
    count = len(next(iter(data.values())))
    for start in range(0, count, batch):
        yield {name: array[start : start + batch] for name, array in data.items()}


def run(model: Path, data: Arrays, batch: int = 256) -> list[np.ndarray]:
    """The outputs of a model for all samples, by onnxruntime on the CPU.

    Errors: OnnxError if the data lacks an input.
    """
    ort = runtime()
    session = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    names = [v.name for v in session.get_inputs()]
    if set(names) - set(data):
        raise OnnxError(f"{model} takes {names}, but the data has {sorted(data)}")
    parts = [
        session.run(None, {name: part[name] for name in names}) for part in batches(data, batch)
    ]
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


def measure(model: Path, data: Arrays | None, labels: np.ndarray | None) -> QuantizationResult:
    """Size, and accuracy: the share of samples whose first output is largest at the label."""
    size = model.stat().st_size
    if data is None or labels is None:
        return QuantizationResult(size, None)
    scores = run(model, data)[0]
    hits = scores.reshape(len(scores), -1).argmax(1) == labels.reshape(-1)
    return QuantizationResult(size, float(hits.mean()))


def deviation(model: Path, other: Path, data: Arrays) -> float:
    """The largest difference between two models' first outputs, relative to their range."""
    a, b = run(model, data)[0], run(other, data)[0]
    spread = float(a.max() - a.min()) or 1.0
    return float(np.abs(a - b).max()) / spread
