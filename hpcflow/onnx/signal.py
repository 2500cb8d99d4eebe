"""Discrete Fourier transforms as products with their matrices, and weights of mel bands.

A complex number is the last axis of two. The matrix costs n * n for n samples: frames of audio, not
whole recordings.
"""

from __future__ import annotations

import numpy as np

from hpcflow.graph.dtypes import float64
from hpcflow.graph.graph import Tensor
from hpcflow.onnx.dtypes import from_onnx
from hpcflow.onnx.node import Node
from hpcflow.onnx.table import imports
from hpcflow.ops import math
from hpcflow.ops.array import constant, expand_dims, transpose
from hpcflow.ops.gather import gather
from hpcflow.ops.join import pad, stack
from hpcflow.ops.matmul import matmul
from hpcflow.ops.slicing import getitem


def _waves(rows: int, length: int, columns: int, sign: float) -> np.ndarray:
    """`exp(sign * 2 pi i j k / length)` for j < rows, k < columns."""
    turns = np.outer(np.arange(rows), np.arange(columns)) % length / length
    return np.exp(sign * 2j * np.pi * turns)


def _of_length(x: Tensor, axis: int, have: int, length: int) -> Tensor:
    """`x` cut, or with zeros added, at the end of `axis`."""
    rank = len(x.shape or ())
    if length <= have:
        return getitem(x, (*[slice(None)] * axis, slice(0, length)))
    return pad(x, [(0, length - have) if a == axis else (0, 0) for a in range(rank)])


def _parts(x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Real and imaginary part; None if the last axis has one number."""
    last = (x.shape or (None,))[-1]
    return x[..., 0], None if last == 1 else x[..., 1]


def transformed(
    node: Node, x: Tensor, axis: int, length: int | None, inverse: bool, half: bool
) -> Tensor:
    """The transform along `axis`; of one side, or from one side, if `half`. In float64."""
    have = node.known(x)[axis]
    if length is None:
        length = 2 * (have - 1) if inverse and half else have
    rows = length // 2 + 1 if inverse and half else length
    x = _of_length(x, axis, have, rows)
    rank = len(x.shape or ()) - 1
    perm = list(range(rank))
    perm[axis], perm[-1] = perm[-1], perm[axis]
    columns = length // 2 + 1 if half and not inverse else length
    waves = _waves(rows, length, columns, 1.0 if inverse else -1.0)
    if inverse:
        waves = waves / length
        if half:  # each but the first, and the last of an even length, stands for two
            twice = np.full(rows, 2.0)
            twice[0] = 1.0
            if length % 2 == 0:
                twice[-1] = 1.0
            waves = waves * twice[:, None]
    cosine, sine = constant(waves.real), constant(waves.imag)
    wide = math.cast(x, float64)
    real, imaginary = (None if p is None else transpose(p, perm) for p in _parts(wide))
    assert real is not None
    made_real, made_imaginary = matmul(real, cosine), matmul(real, sine)
    if imaginary is not None:
        made_real = math.subtract(made_real, matmul(imaginary, sine))
        made_imaginary = math.add(made_imaginary, matmul(imaginary, cosine))
    made_real = math.cast(transpose(made_real, perm), x.dtype)
    if inverse and half:
        return expand_dims(made_real, -1)
    return stack([made_real, math.cast(transpose(made_imaginary, perm), x.dtype)], -1)


@imports("DFT")
def _dft_17(node: Node, x: Tensor, length: Tensor | None = None) -> Tensor:
    return _dft_of(node, x, length, node.attr("axis", 1))


@imports("DFT", since=20)
def _dft(node: Node, x: Tensor, length: Tensor | None = None, axis: Tensor | None = None) -> Tensor:
    return _dft_of(node, x, length, -2 if axis is None else int(node.value(axis, "axis")))


def _dft_of(node: Node, x: Tensor, length: Tensor | None, axis: int) -> Tensor:
    count = None if length is None else int(node.value(length, "dft_length"))
    flags = bool(node.attr("inverse", 0)), bool(node.attr("onesided", 0))
    return transformed(node, x, axis % node.rank(x), count, *flags)


@imports("STFT")
def _stft(
    node: Node,
    signal: Tensor,
    step: Tensor,
    window: Tensor | None = None,
    frame_length: Tensor | None = None,
) -> Tensor:
    """Transforms of frames, `step` apart: [batch, frames, frequencies, 2]."""
    length = node.known(signal)[1]
    if frame_length is not None:
        size = int(node.value(frame_length, "frame_length").reshape(()))
    else:
        size = length if window is None else node.known(window)[0]
    hop = int(node.value(step, "frame_step").reshape(()))
    starts = np.arange(1 + (length - size) // hop) * hop
    frames = gather(signal, constant(starts[:, None] + np.arange(size)), axis=1)
    if window is not None:
        frames = math.multiply(frames, expand_dims(window, -1))
    return transformed(node, frames, 2, None, False, bool(node.attr("onesided", 1)))


@imports("MelWeightMatrix")
def _mel_weights(
    node: Node, bands: Tensor, length: Tensor, rate: Tensor, low: Tensor, high: Tensor
) -> Tensor:
    """Triangles over frequencies, evenly spaced on the mel scale."""
    count, points, samples, bottom, top = (
        float(node.value(t, "the size or a frequency").reshape(()))
        for t in (bands, length, rate, low, high)
    )
    mel = 2595 * np.log10(1 + np.array([bottom, top]) / 700)
    centers = mel[0] + np.arange(count + 2) * (mel[1] - mel[0]) / (count + 2)
    bins = ((points + 1) * (700 * (10 ** (centers / 2595) - 1)) // samples).astype(int)
    at = np.arange(int(points) // 2 + 1)[:, None]
    left, center, right = bins[:-2], bins[1:-1], bins[2:]
    rising = (at - left) / np.where(center > left, center - left, 1)
    rising = np.where((at >= left) & (at <= center) & (center > left), rising, 0.0)
    rising = np.where((at == center) & (center == left), 1.0, rising)
    falling = (right - at) / np.where(right > center, right - center, 1)
    weights = np.where((at >= center) & (at < right), falling, rising)
    return constant(weights.astype(from_onnx(node.attr("output_datatype", 1))))
