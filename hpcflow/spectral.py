"""`hf.spectral`: the names of TensorFlow 1's `tf.spectral`; re-exports only."""

from __future__ import annotations

from hpcflow.guard import guard_module
from hpcflow.ops.fft import (
    fft,
    fft2d,
    fft3d,
    ifft,
    ifft2d,
    ifft3d,
    irfft,
    irfft2d,
    irfft3d,
    rfft,
    rfft2d,
    rfft3d,
)

__all__ = [
    "fft",
    "fft2d",
    "fft3d",
    "ifft",
    "ifft2d",
    "ifft3d",
    "irfft",
    "irfft2d",
    "irfft3d",
    "rfft",
    "rfft2d",
    "rfft3d",
]

guard_module(globals(), __all__)
