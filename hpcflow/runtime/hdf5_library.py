"""Lazy import of h5py: the only file that imports it, when `library()` is first called."""

from __future__ import annotations

import functools
import sys
from typing import Any

from hpcflow.errors import MissingPackageError


@functools.cache
def library() -> Any:
    """The module h5py.

    If MPI is in use, its library is loaded first, so that an h5py built with MPI uses the same
    libmpi.
    Errors: MissingPackageError if h5py cannot be imported.
    """
    if "mpi4py" in sys.modules:
        from hpcflow.comm import mpi_library

        mpi_library.initialized_mpi()
    try:
        import h5py
    except ImportError as error:
        raise MissingPackageError(
            f"HDF5 files need the package h5py: {error}", hint="pip install h5py"
        ) from error
    from hpcflow.runtime.job import job_membership

    # h5py closes HDF5 at exit, when a save may still need it: leave the job before that
    job_membership.register_leave()
    return h5py


def is_parallel() -> bool:
    """Whether h5py is built with MPI, so that several ranks can write one file together."""
    return bool(library().get_config().mpi)
