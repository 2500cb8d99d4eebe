"""Second buffers of variables, allocated before the first asynchronous save.

The first update of a pinned version goes to a second buffer. The system clears each page of new
memory at its first use, which takes longer than to fill it. So a thread populates the pages while
training continues, and no step waits for them.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpcflow.checkpoint.background_writer import run_in_thread
from hpcflow.checkpoint.parallel_hdf5_write import local_pieces, slab_states
from hpcflow.checkpoint.participating_ranks import served_ranks
from hpcflow.checkpoint.row_partitioning import rows_to_write
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.state.state_store import StateStore

AT_ONCE = 2 << 20  # bytes per madvise call, which holds a lock that other threads may need
POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, since Linux 5.14: populates pages, changes no byte


def reserve_buffers(
    context: RankContext,
    store: StateStore,
    array_names: Mapping[str, str],
    per_replica_names: Mapping[str, str],
) -> None:
    """Allocate the second buffers of what this rank and its served ranks will write.

    `array_names` and `per_replica_names` are variables -> names in the checkpoint, as for a save.
    Served ranks do so without a reply.

    Ranks: every rank that runs the script, each by itself, when its variables have values.
    """
    request = {
        "do": "prepare",
        "wanted": dict(array_names),
        "own": list(per_replica_names.values()),
        "replica": context.replica,
        "leads": context.is_chief,
        "store": [context.rank, store.number],
    }

    def begin() -> None:
        for rank in served_ranks(context):
            assert context.control is not None and context.world is not None
            if rank not in context.world.lost:
                context.control.post(rank, {"service": "checkpoint", **request})
        reserve_local_buffers(context, store, request)

    context.executor.run_locked(begin, lambda: True)


def reserve_local_buffers(
    context: RankContext, store: StateStore, request: Mapping[str, Any]
) -> None:
    """Reserve this rank's second buffers, populated by a thread; needs the progress lock."""
    names = request["wanted"]
    pieces = local_pieces(store, names)
    duty = rows_to_write(
        context, context.rank, pieces, request["own"], request["replica"], request["leads"]
    )
    states = [state for _, state in slab_states(store, names, duty)]
    hosts = [state for state in states if isinstance(state.array, np.ndarray)]
    buffers = [b for b in (state.reserve() for state in hosts) if b is not None]
    if buffers:
        run_in_thread(lambda: populate_pages(buffers))


def populate_pages(buffers: Sequence[np.ndarray]) -> None:
    """Populate all pages of these arrays, which may be in use at the same time; on Linux only."""
    if sys.platform != "linux":
        return
    advise = ctypes.CDLL(None).madvise  # ctypes releases the interpreter lock during the call
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    page = mmap.PAGESIZE
    for buffer in buffers:
        start = -(-buffer.ctypes.data // page) * page
        stop = (buffer.ctypes.data + buffer.nbytes) // page * page
        for at in range(start, stop, AT_ONCE):
            if advise(at, min(AT_ONCE, stop - at), POPULATE_WRITE):
                return
