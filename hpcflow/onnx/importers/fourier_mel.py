"""ONNX import of DFT, STFT and mel weights; complex numbers are a last axis of size 2."""

from __future__ import annotations

import numpy as np

from hpcflow.graph.dtypes import float32
from hpcflow.graph.graph import Tensor
from hpcflow.onnx.element_types import from_onnx
from hpcflow.onnx.importers.importer_table import imports
from hpcflow.onnx.importers.onnx_node import OnnxNode
from hpcflow.ops.array.array_ops import constant, expand_dims, transpose
from hpcflow.ops.array.broadcast_ops import zeros_like
from hpcflow.ops.array.concat_split_ops import pad, stack
from hpcflow.ops.array.gather_ops import gather
from hpcflow.ops.array.slice_ops import getitem
from hpcflow.ops.linalg import fft_ops
from hpcflow.ops.math import arithmetic_ops
from hpcflow.ops.math.complex_number_ops import complex, imag
from hpcflow.ops.math.complex_number_ops import real as real_part


def _of_length(x: Tensor, axis: int, have: int, length: int) -> Tensor:
    """`x` truncated or zero-padded at the end of `axis`."""
    rank = len(x.shape or ())
    if length <= have:
        return getitem(x, (*[slice(None)] * axis, slice(0, length)))
    return pad(x, [(0, length - have) if a == axis else (0, 0) for a in range(rank)])


def transformed(
    node: OnnxNode, x: Tensor, axis: int, length: int | None, inverse: bool, half: bool
) -> Tensor:
    """The discrete Fourier transform along `axis`; `half`: one-sided (real input or output)."""
    have = node.static_shape(x)[axis]
    if length is None:
        length = 2 * (have - 1) if inverse and half else have
    x = _of_length(x, axis, have, length // 2 + 1 if inverse and half else length)
    wide = x if x.dtype.itemsize > 2 else arithmetic_ops.cast(x, float32)
    rank = node.rank(x) - 1
    perm = list(range(rank))
    perm[axis], perm[-1] = perm[-1], perm[axis]
    real = transpose(wide[..., 0], perm)
    is_real = node.static_shape(x)[-1] == 1
    signal = real if is_real else complex(real, transpose(wide[..., 1], perm))
    if inverse and half:
        complex_signal = complex(signal, zeros_like(signal)) if is_real else signal
        real_output = transpose(fft_ops.irfft(complex_signal, [length]), perm)
        return arithmetic_ops.cast(expand_dims(real_output, -1), x.dtype)
    if half and is_real:
        spectrum = fft_ops.rfft(signal)
    else:
        complex_signal = complex(signal, zeros_like(signal)) if is_real else signal
        spectrum = (fft_ops.ifft if inverse else fft_ops.fft)(complex_signal)
        if half:
            spectrum = getitem(spectrum, (..., slice(0, length // 2 + 1)))
    parts = [arithmetic_ops.cast(transpose(f(spectrum), perm), x.dtype) for f in (real_part, imag)]
    return stack(parts, -1)


@imports("DFT")
def _dft_17(node: OnnxNode, x: Tensor, length: Tensor | None = None) -> Tensor:
    return _dft_of(node, x, length, node.attr("axis", 1))


@imports("DFT", since=20)
def _dft(
    node: OnnxNode, x: Tensor, length: Tensor | None = None, axis: Tensor | None = None
) -> Tensor:
    return _dft_of(node, x, length, -2 if axis is None else int(node.value(axis, "axis")))


def _dft_of(node: OnnxNode, x: Tensor, length: Tensor | None, axis: int) -> Tensor:
    count = None if length is None else int(node.value(length, "dft_length"))
    flags = bool(node.attr("inverse", 0)), bool(node.attr("onesided", 0))
    return transformed(node, x, axis % node.rank(x), count, *flags)


@imports("STFT")
def _stft(
    node: OnnxNode,
    signal: Tensor,
    step: Tensor,
    window: Tensor | None = None,
    frame_length: Tensor | None = None,
) -> Tensor:
    """Fourier transforms of frames `step` apart: [batch, frames, frequencies, 2]."""
    length = node.static_shape(signal)[1]
    if frame_length is not None:
        size = int(node.value(frame_length, "frame_length").reshape(()))
    else:
        size = length if window is None else node.static_shape(window)[0]
    hop = int(node.value(step, "frame_step").reshape(()))
    starts = np.arange(1 + (length - size) // hop) * hop
    frames = gather(signal, constant(starts[:, None] + np.arange(size)), axis=1)
    if window is not None:
        frames = arithmetic_ops.multiply(frames, expand_dims(window, -1))
    return transformed(node, frames, 2, None, False, bool(node.attr("onesided", 1)))


@imports("MelWeightMatrix")
def _mel_weights(
    node: OnnxNode, bands: Tensor, length: Tensor, rate: Tensor, low: Tensor, high: Tensor
) -> Tensor:
    """Triangular filters over frequencies, evenly spaced on the mel scale."""
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
