"""Made by tools/stubs.py."""

# ruff: noqa
# fmt: off
from hpcflow.ops.linalg.fft_ops import fft as fft
from hpcflow.ops.linalg.fft_ops import fft2d as fft2d
from hpcflow.ops.linalg.fft_ops import fft3d as fft3d
from hpcflow.ops.linalg.fft_ops import fftshift as fftshift
from hpcflow.ops.linalg.fft_ops import ifft as ifft
from hpcflow.ops.linalg.fft_ops import ifft2d as ifft2d
from hpcflow.ops.linalg.fft_ops import ifft3d as ifft3d
from hpcflow.ops.linalg.fft_ops import ifftshift as ifftshift
from hpcflow.ops.linalg.fft_ops import irfft as irfft
from hpcflow.ops.linalg.fft_ops import irfft2d as irfft2d
from hpcflow.ops.linalg.fft_ops import irfft3d as irfft3d
from hpcflow.ops.linalg.fft_ops import rfft as rfft
from hpcflow.ops.linalg.fft_ops import rfft2d as rfft2d
from hpcflow.ops.linalg.fft_ops import rfft3d as rfft3d
