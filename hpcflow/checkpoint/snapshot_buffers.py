"""Second buffers made ahead, before the first save behind training.

The first update of a version that is kept goes to a second buffer. Memory that nobody has used yet
comes page by page, each cleared by the system, which takes longer than to fill it: a thread asks
for the pages while training goes on, so that no step waits for them.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcflow.checkpoint.background_writer import in_thread
from hpcflow.checkpoint.parallel_hdf5_write import held, kept_for
from hpcflow.checkpoint.participating_ranks import served_by
from hpcflow.checkpoint.row_partitioning import duty_of
from hpcflow.runtime.job.rank_context import Context
from hpcflow.runtime.state.state_store import Store

AT_ONCE = 2 << 20  # bytes for which the system is asked: others may need its lock meanwhile
POPULATE_WRITE = 23  # of madvise, since Linux 5.14: gives pages and changes no byte


def prepare(
    context: Context, store: Store, wanted: Mapping[str, str], own: Mapping[str, str]
) -> None:
    """Have this rank, and those it speaks for, make the second buffers of what they will write.

    `wanted` and `own` are variables -> names in the checkpoint, as for a save.

    Ranks: every rank that runs the script, each by itself, when its variables have values.
    """
    told = {
        "do": "prepare",
        "wanted": dict(wanted),
        "own": list(own.values()),
        "replica": context.replica,
        "leads": context.is_chief,
        "store": [context.rank, store.number],
    }

    def begin() -> None:
        for rank in served_by(context):
            assert context.control is not None and context.world is not None
            if rank not in context.world.lost:
                context.control.post(rank, {"service": "checkpoint", **told})
        prepare_here(context, store, told)

    context.engine.with_baton(begin, lambda: True)


def prepare_here(context: Context, store: Store, told: Mapping[str, Any]) -> None:
    """Make those of this rank; a thread sees to their pages. The caller holds the baton."""
    wanted = told["wanted"]
    found = held(store, wanted)
    duty = duty_of(context, context.rank, found, told["own"], told["replica"], told["leads"])
    states = [state for _, state in kept_for(store, wanted, duty)]
    hosts = [state for state in states if isinstance(state.array, np.ndarray)]
    buffers = [b for b in (state.reserve() for state in hosts) if b is not None]
    if buffers:
        in_thread(lambda: populate(buffers))


def populate(buffers: Sequence[np.ndarray]) -> None:
    """Have all pages of these arrays there, whoever uses them meanwhile; where Linux can."""
    if sys.platform != "linux":
        return
    advise = ctypes.CDLL(None).madvise  # the interpreter runs other threads meanwhile
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    page = mmap.PAGESIZE
    for buffer in buffers:
        start = -(-buffer.ctypes.data // page) * page
        stop = (buffer.ctypes.data + buffer.nbytes) // page * page
        for at in range(start, stop, AT_ONCE):
            if advise(at, min(AT_ONCE, stop - at), POPULATE_WRITE):
                return
