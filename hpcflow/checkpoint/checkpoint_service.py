"""Checkpoint service: one rank's work in a save or a load; a driver calls it on served ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcflow.checkpoint import checkpoint_directory, header_digests, parallel_hdf5_write
from hpcflow.checkpoint.background_writer import Writer
from hpcflow.checkpoint.checkpoint_layout import Slab
from hpcflow.checkpoint.checkpoint_reader import Saved
from hpcflow.checkpoint.load_plan import LoadPlan
from hpcflow.checkpoint.participating_ranks import attempt
from hpcflow.checkpoint.save_plan import SavePlan
from hpcflow.checkpoint.snapshot_buffers import prepare_here
from hpcflow.errors import CommError
from hpcflow.ops.random.random_kernels import Draws
from hpcflow.runtime.job.rank_context import Context
from hpcflow.runtime.state.state_store import Store


def answer(
    context: Context, request: dict[str, Any], reply: Callable[[dict[str, Any]], None]
) -> None:
    """Answer a driver's request: survey, write, begin or load; an error is part of the reply.

    The request "prepare" has no reply.

    "written" and "ended" are messages about an asynchronous save, for a rank that is a driver.
    """
    if request["do"] in ("written", "ended"):
        assert context.saving is not None
        context.saving.heard(request)
        return
    store = context.store_for(*request["store"])
    if request["do"] == "prepare":
        prepare_here(context, store, request)
        return

    def duty() -> list[Slab]:
        return [Slab(*slab) for slab in request["duty"]]

    work: dict[str, Callable[[], Any]] = {
        "survey": lambda: survey(store, request["wanted"]),
        "write": lambda: write(context, store, SavePlan.of_message(request), duty()),
        "begin": lambda: begin(context, store, SavePlan.of_message(request), duty()),
        "load": lambda: load(context, store, LoadPlan.of_message(request)),
    }
    if request["do"] not in work:
        raise CommError(f"a checkpoint is not made by {request['do']!r}", rank=context.rank)
    context.engine.settle()  # finish the updates in progress
    reply(attempt(context, work[request["do"]]))


def survey(store: Store, wanted: Mapping[str, str]) -> dict[str, Any]:
    """This rank's variables among `wanted`, and the random draws that it has made."""
    draws = [[label, op, d.made] for (label, op), d in store.draws.items()]
    return {"held": parallel_hdf5_write.held(store, wanted), "draws": draws}


def write(
    context: Context, store: Store, plan: SavePlan, duty: Sequence[Slab]
) -> Sequence[Mapping[str, Any]]:
    """Write the slabs `duty`; returns the record of this rank's file, or for the form "parallel"
    its slabs of the shared file.
    """
    draft = Path(plan.draft)

    def run() -> Sequence[Mapping[str, Any]]:
        if plan.is_parallel:
            comm = writers(context, plan.writers)
            return parallel_hdf5_write.write_shared(draft, plan, duty, kept.versions, comm)
        path = draft / f"part-{context.rank:05d}.h5"
        record = parallel_hdf5_write.write_part(path, plan, context.rank, duty, kept.versions)
        parallel_hdf5_write.check_part(path, plan, context.rank, record)
        return [record]

    kept = parallel_hdf5_write.Snapshot(store, plan.wanted, duty)
    try:
        found: Sequence[Mapping[str, Any]] = checkpoint_directory.told(f"writing {draft}", run)
    finally:
        kept.release()
    return found


def begin(context: Context, store: Store, plan: SavePlan, duty: Sequence[Slab]) -> int:
    """Pin the slabs `duty` and write them in a thread; returns their bytes."""
    return Writer(context, store, plan, duty).nbytes


def writers(context: Context, ranks: Sequence[int]) -> Any:
    """The communicator of the ranks that write one file; None for a single rank."""
    if len(ranks) == 1:
        return None
    from hpcflow.comm.mpi_communicator import MpiCommunicator

    assert isinstance(context.world, MpiCommunicator)
    return context.world.group_of(ranks)


def load(context: Context, store: Store, plan: LoadPlan) -> int:
    """Fill this rank's variables of `plan.wanted` from the checkpoint; returns their bytes."""
    saved = Saved(Path(plan.path))
    if saved.facts["id"] != plan.id:
        raise header_digests.foreign(saved.index, "it was replaced while it was being loaded")

    def run() -> int:
        nbytes = 0
        for state in store.states.values():
            if state.variable in plan.wanted:
                nbytes += _fill(state, saved, plan.wanted[state.variable])
            elif state.variable in plan.own:
                nbytes += _fill_sum(state, saved, plan.own[state.variable])
        return nbytes

    if plan.seed is not None:
        store.seed.set(*plan.seed)
    for label, op, made in plan.draws:
        store.draws.setdefault((label, op), Draws()).made = made
    nbytes: int = checkpoint_directory.told(f"reading {saved.path}", run)
    return nbytes


def _fill(state: Any, saved: Saved, name: str) -> int:
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


def _fill_sum(state: Any, saved: Saved, names: Sequence[str]) -> int:
    """Set a variable to the sum of arrays of its shape."""
    total = np.zeros(state.shape, state.dtype)
    for name in names:
        total += saved.read(name)
    state.refill()[...] = state.device.from_host(total)
    return int(total.nbytes)
