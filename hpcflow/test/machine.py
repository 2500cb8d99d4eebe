"""Where tests run: a folder for their files, the devices of this rank, and the main program."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import tempfile
import unittest
from collections.abc import Sequence
from unittest import mock as mock

from hpcflow.runtime.job.job_membership import current_context


@functools.cache
def get_temp_dir() -> str:
    """A folder for files of tests, the same for all of this process.

    It is that of TEST_TMPDIR in the environment, or else a new one.
    """
    folder = os.environ.get("TEST_TMPDIR")
    if folder:
        os.makedirs(folder, exist_ok=True)
        return folder
    return tempfile.mkdtemp(prefix="hpcflow-")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the tests of the main module, then exit: Python's `unittest.main`."""
    unittest.main(argv=None if argv is None else list(argv))


def gpu_device_name() -> str:
    """The name of the first GPU of this rank, "/device:GPU:0", or "" without one."""
    gpus = [name for name in current_context().devices if name.startswith("gpu")]
    return f"/device:{gpus[0].upper()}" if gpus else ""


def is_gpu_available(
    cuda_only: bool = False, min_cuda_compute_capability: tuple[int, int] | None = None
) -> bool:
    """Whether this rank has a GPU, all of which are CUDA's, of this capability at least."""
    if not gpu_device_name():
        return False
    if min_cuda_compute_capability is None:
        return True
    cupy = importlib.import_module("cupy")
    number = int(cupy.cuda.Device().compute_capability)
    return divmod(number, 10) >= tuple(min_cuda_compute_capability)


def is_built_with_cuda() -> bool:
    """Whether CuPy, by which hpcflow uses GPUs, is installed."""
    return importlib.util.find_spec("cupy") is not None
