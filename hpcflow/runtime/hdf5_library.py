"""The only file that imports h5py, and not before `library()` is called."""

from __future__ import annotations

import functools
import sys
from typing import Any

from hpcflow.errors import MissingPackageError


@functools.cache
def library() -> Any:
    """The module h5py.

    Where MPI is in use, it was loaded before: an h5py built with MPI then takes the same libmpi.
    """
    if "mpi4py" in sys.modules:
        from hpcflow.comm import mpi_library

        mpi_library.running()
    try:
        import h5py
    except ImportError as error:
        raise MissingPackageError(
            f"HDF5 files need the package h5py: {error}", hint="pip install h5py"
        ) from error
    from hpcflow.runtime.job import job_membership

    # h5py ends HDF5 at the end of the program: a save may still need it
    job_membership.leave_first()
    return h5py


def is_parallel() -> bool:
    """Whether several ranks can write one file together."""
    return bool(library().get_config().mpi)
