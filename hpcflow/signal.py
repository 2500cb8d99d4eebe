"""Signal processing `hf.signal`: the names of TensorFlow 1's `tf.signal`; re-exports only."""

from __future__ import annotations

from hpcflow.ops.linalg.fft_ops import (
    fft,
    fft2d,
    fft3d,
    fftshift,
    ifft,
    ifft2d,
    ifft3d,
    ifftshift,
    irfft,
    irfft2d,
    irfft3d,
    rfft,
    rfft2d,
    rfft3d,
)
from hpcflow.platform.exception_translation import guard_module

__all__ = [
    "fft",
    "fft2d",
    "fft3d",
    "fftshift",
    "ifft",
    "ifft2d",
    "ifft3d",
    "ifftshift",
    "irfft",
    "irfft2d",
    "irfft3d",
    "rfft",
    "rfft2d",
    "rfft3d",
]

guard_module(globals(), __all__)
