"""Checkpoint service: one rank's work in a save or a load; a driver calls it on served ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcflow.checkpoint import checkpoint_directory, header_digests, parallel_hdf5_write
from hpcflow.checkpoint.background_writer import BackgroundWriter
from hpcflow.checkpoint.checkpoint_layout import Slab
from hpcflow.checkpoint.checkpoint_reader import SavedCheckpoint
from hpcflow.checkpoint.load_plan import LoadPlan
from hpcflow.checkpoint.participating_ranks import run_or_error
from hpcflow.checkpoint.save_plan import SavePlan
from hpcflow.checkpoint.snapshot_buffers import reserve_local_buffers
from hpcflow.errors import CommError
from hpcflow.ops.random.random_kernels import DrawCount
from hpcflow.runtime.job.rank_context import RankContext
from hpcflow.runtime.state.state_store import StateStore


def answer(
    context: RankContext, request: dict[str, Any], reply: Callable[[dict[str, Any]], None]
) -> None:
    """Answer a driver's request: survey, write, begin or load; an error is part of the reply.

    The request "prepare" has no reply.

    "written" and "ended" are messages about an asynchronous save, for a rank that is a driver.
    """
    if request["do"] in ("written", "ended"):
        assert context.saving is not None
        context.saving.handle_message(request)
        return
    store = context.store_for(*request["store"])
    if request["do"] == "prepare":
        reserve_local_buffers(context, store, request)
        return

    def duty() -> list[Slab]:
        return [Slab(*slab) for slab in request["duty"]]

    work: dict[str, Callable[[], Any]] = {
        "survey": lambda: survey_variables(store, request["wanted"]),
        "write": lambda: write_local(context, store, SavePlan.of_message(request), duty()),
        "begin": lambda: begin_write(context, store, SavePlan.of_message(request), duty()),
        "load": lambda: load_local(context, store, LoadPlan.of_message(request)),
    }
    if request["do"] not in work:
        raise CommError(f"a checkpoint is not made by {request['do']!r}", rank=context.rank)
    context.executor.finish_tiled()  # finish the updates in progress
    reply(run_or_error(context, work[request["do"]]))


def survey_variables(store: StateStore, array_names: Mapping[str, str]) -> dict[str, Any]:
    """This rank's variables among `array_names`, and the random draws that it has made."""
    draws = [[label, op, d.total] for (label, op), d in store.draws.items()]
    return {"held": parallel_hdf5_write.local_pieces(store, array_names), "draws": draws}


def write_local(
    context: RankContext, store: StateStore, plan: SavePlan, duty: Sequence[Slab]
) -> Sequence[Mapping[str, Any]]:
    """Write the slabs `duty`; returns the record of this rank's file, or for the form "parallel"
    its slabs of the shared file.
    """
    draft = Path(plan.draft)

    def run() -> Sequence[Mapping[str, Any]]:
        if plan.is_parallel:
            comm = writer_communicator(context, plan.writers)
            return parallel_hdf5_write.write_shared(draft, plan, duty, snapshot.versions, comm)
        path = draft / f"part-{context.rank:05d}.h5"
        record = parallel_hdf5_write.write_part(path, plan, context.rank, duty, snapshot.versions)
        parallel_hdf5_write.check_part(path, plan, context.rank, record)
        return [record]

    snapshot = parallel_hdf5_write.PinnedSnapshot(store, plan.wanted, duty)
    try:
        records: Sequence[Mapping[str, Any]] = checkpoint_directory.with_storage_errors(
            f"writing {draft}", run
        )
    finally:
        snapshot.release()
    return records


def begin_write(
    context: RankContext, store: StateStore, plan: SavePlan, duty: Sequence[Slab]
) -> int:
    """Pin the slabs `duty` and write them in a thread; returns their bytes."""
    return BackgroundWriter(context, store, plan, duty).nbytes


def writer_communicator(context: RankContext, ranks: Sequence[int]) -> Any:
    """The communicator of the ranks that write one file; None for a single rank."""
    if len(ranks) == 1:
        return None
    from hpcflow.comm.mpi_communicator import MpiCommunicator

    assert isinstance(context.world, MpiCommunicator)
    return context.world.group_of(ranks)


def load_local(context: RankContext, store: StateStore, plan: LoadPlan) -> int:
    """Fill this rank's variables of `plan.wanted` from the checkpoint; returns their bytes."""
    saved = SavedCheckpoint(Path(plan.path))
    if saved.facts["id"] != plan.id:
        raise header_digests.foreign_file_error(
            saved.index, "it was replaced while it was being loaded"
        )

    def run() -> int:
        nbytes = 0
        for state in store.states.values():
            if state.variable in plan.wanted:
                nbytes += _fill_variable(state, saved, plan.wanted[state.variable])
            elif state.variable in plan.own:
                nbytes += _fill_sum(state, saved, plan.own[state.variable])
        return nbytes

    if plan.seed is not None:
        store.seed.set(*plan.seed)
    for label, op, count in plan.draws:
        store.draws.setdefault((label, op), DrawCount()).continue_after(count)
    nbytes: int = checkpoint_directory.with_storage_errors(f"reading {saved.path}", run)
    return nbytes


def _fill_variable(state: Any, saved: SavedCheckpoint, name: str) -> int:
    """Read the local rows of one variable; rows on a device go through a staging buffer."""
    target, (start, stop) = state.refill(), state.rows
    if isinstance(target, np.ndarray):
        row = target.nbytes // max(stop - start, 1)  # the checkpoint's rows may have another size
        saved.read_bytes(name, start * row, stop * row, target)
        return target.nbytes
    rows = target.reshape((stop - start, -1))
    row = rows.shape[1] * state.dtype.itemsize
    step = max(header_digests.PIECE_BYTES // max(row, 1), 1)
    for low in range(start, stop, step):
        high = min(low + step, stop)
        host = np.empty((high - low, rows.shape[1]), state.dtype)
        saved.read_bytes(name, low * row, high * row, host)
        rows[low - start : high - start] = state.device.from_host(host)
    return int(target.nbytes)


def _fill_sum(state: Any, saved: SavedCheckpoint, names: Sequence[str]) -> int:
    """Set a variable to the sum of arrays of its shape."""
    total = np.zeros(state.shape, state.dtype)
    for name in names:
        total += saved.read(name)
    state.refill()[...] = state.device.from_host(total)
    return int(total.nbytes)
